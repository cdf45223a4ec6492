"""Have an isolated Python environment, made from a lock with hashes, in the cache and write its record."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from findings.cache import CacheError, cache_root
from findings.environments import ensure_environment
from findings.interrupted import end_with_workflow
from findings.records import redact, write_record
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 for every outcome of the build, 2 for a lock or an id that cannot be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--environment", required=True, help="id, part of the folder's name")
    parser.add_argument(
        "--lock", type=Path, required=True, help="requirements with hashes, for example envs/engine-b11549.txt"
    )
    parser.add_argument("--cache", default="", help="cache folder (default: FINDINGS_CACHE, else resources/cache)")
    parser.add_argument("--host", default="", help="label of this machine, for the record")
    parser.add_argument("--record", type=Path, required=True, help="where to write the record")
    arguments = parser.parse_args(argv)
    end_with_workflow()
    cache = Path(arguments.cache).resolve() if arguments.cache else cache_root()
    try:
        record = replace(ensure_environment(arguments.environment, arguments.lock, cache), host=arguments.host)
    except (FileNotFoundError, CacheError) as error:
        print(f"environment: {redact(str(error))}", file=sys.stderr)
        return 2
    write_record(arguments.record, record)
    words = f"{record.outcome.value} {redact(record.reason)}".rstrip()
    print(f"[environment {record.subject}] {words}", file=sys.stderr, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
