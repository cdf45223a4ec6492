"""Records, bundles, others' files and published figures to the tables in Parquet (docs/tables.md)."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from findings.bundles import BundleError
from findings.config import ConfigurationError, load_configuration
from findings.evidence import collect, gather
from findings.imports import ImportedFileError
from findings.job import add_configuration_arguments
from findings.records import RecordError, write_text
from findings.tables import TableError, document_in
from findings.writing import command

PROGRESS_SECONDS = 5.0


class Progress:
    """Says a line on stderr, at most one every few seconds."""

    def __init__(self) -> None:
        self._next = time.monotonic() + PROGRESS_SECONDS

    def __call__(self, text: str) -> None:
        """Say `text`, unless something was said a moment ago."""
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_SECONDS
            print(f"[tables] {text}", file=sys.stderr, flush=True)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 done, 1 a record or table cannot be used, 2 the configuration or an import is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=Path, default=Path("results/records"), help="folder of the records")
    parser.add_argument("--attempt", default="", help="only this attempt, without imports and published figures")
    add_configuration_arguments(parser)
    parser.add_argument("--out", type=Path, default=Path("results/tables"), help="folder for the tables")
    parser.add_argument("--every-run", action="store_true", help="all complete runs of a session, not the newest alone")
    parser.add_argument("--document", type=Path, help="only write the columns into this file, between its markers")
    arguments = parser.parse_args(argv)
    try:
        if arguments.document is not None:
            write_text(arguments.document, document_in(arguments.document.read_text(encoding="utf-8")))
            return 0
        configuration = load_configuration(arguments.config_root, json.loads(arguments.overrides))
        gathered = gather(configuration, arguments.records, attempt=arguments.attempt, every_run=arguments.every_run)
        done = collect(configuration, gathered, arguments.out, Progress(), published=not arguments.attempt)
    except (ConfigurationError, BundleError, ImportedFileError, json.JSONDecodeError) as error:
        print(f"evidence: {error}", file=sys.stderr)
        return 2
    except (RecordError, TableError) as error:
        print(f"evidence: {error}", file=sys.stderr)
        return 1
    for note in done.notes:
        print(f"[tables] {note}", file=sys.stderr)
    counts = ", ".join(f"{rows} {name}" for name, rows in done.rows.items())
    print(f"[tables] {done.files} record files: {counts}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
