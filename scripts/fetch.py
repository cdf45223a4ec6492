"""Fetch one model, or the archive of a converter or engine, into the cache and write its record."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from findings.config import ConfigurationError, load_configuration
from findings.interrupted import end_with_workflow
from findings.job import given_overrides
from findings.records import Record, redact, write_record
from findings.sources import cache_root, ensure_archive, ensure_model
from findings.writing import command


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", help="id in config/models.yaml")
    what.add_argument("--archive", help="id of a converter or of an engine with an archive, in config/engines.yaml")
    parser.add_argument("--config-root", type=Path, default=Path(), help="the project (default: here)")
    parser.add_argument(
        "--overrides",
        type=json.loads,
        default=given_overrides(),
        help="JSON: keys that replace those of config/config.yaml",
    )
    parser.add_argument("--host", default="", help="label of this machine, for the record")
    parser.add_argument("--cache", default="", help="cache folder (default: FINDINGS_CACHE, else the configured one)")
    parser.add_argument("--record", type=Path, required=True, help="where to write the record")
    return parser.parse_args(argv)


def fetch(arguments: argparse.Namespace) -> Record:
    """The record of what was asked for. Raises ConfigurationError for a wrong configuration or an unknown id."""
    configuration = load_configuration(arguments.config_root, arguments.overrides)
    cache = Path(arguments.cache).resolve() if arguments.cache else cache_root(configuration.settings.cache)
    root = arguments.config_root.resolve()
    if arguments.model:
        if arguments.model not in configuration.models:
            raise ConfigurationError([f"config/models.yaml: there is no model {arguments.model!r}"])
        return ensure_model(configuration.models[arguments.model], cache, root)
    if arguments.archive in configuration.converters:
        return ensure_archive(configuration.converters[arguments.archive].source, cache, arguments.archive, root)
    engine = configuration.engines.get(arguments.archive)
    if engine is None or engine.archive is None:
        raise ConfigurationError([f"config/engines.yaml: no converter or engine with an archive {arguments.archive!r}"])
    return ensure_archive(engine.archive, cache, arguments.archive, root)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 for every outcome of the download, 2 for a wrong configuration."""
    arguments = parse(argv)
    end_with_workflow()
    try:
        record = replace(fetch(arguments), host=arguments.host)
    except ConfigurationError as error:
        print(f"fetch: {error}", file=sys.stderr)
        return 2
    write_record(arguments.record, record)
    print(
        f"[fetch {record.subject}] {record.outcome.value} {redact(record.reason)}".rstrip(), file=sys.stderr, flush=True
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
