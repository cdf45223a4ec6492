"""Resolve the hub models of a study to commits, sizes and sha256, and write config/<study>.lock.yaml."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.config import ConfigurationError, load_configuration
from findings.job import given_overrides
from findings.lock import lock_path, update_lock, waiting_models
from findings.records import redact, write_record
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 for every answer of the hub, 2 for a wrong configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default="", help="study (default: that of the configuration)")
    parser.add_argument("--config-root", type=Path, default=Path(), help="the project (default: here)")
    parser.add_argument(
        "--overrides",
        type=json.loads,
        default=given_overrides(),
        help="JSON: keys that replace those of config/config.yaml",
    )
    parser.add_argument("--host", default="", help="label of this machine, for the record")
    parser.add_argument("--record", type=Path, help="where to write the record (default: nowhere)")
    arguments = parser.parse_args(argv)
    overrides = arguments.overrides | ({"study": arguments.study} if arguments.study else {})
    try:
        configuration = load_configuration(arguments.config_root, overrides, use_lock=False)
    except ConfigurationError as error:
        print(f"lock: {error}", file=sys.stderr)
        return 2
    study = configuration.study.id
    models = waiting_models(configuration)
    record = update_lock(models, lock_path(arguments.config_root, study), study, host=arguments.host)
    if arguments.record:
        write_record(arguments.record, record)
    if not models:
        print(f"[lock] no model of the study {study} waits for a lock", file=sys.stderr, flush=True)
    print(f"[lock] {record.outcome.value} {redact(record.reason)}".rstrip(), file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
