"""Write the document from tables and configuration: the same inputs give the same bytes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.job import add_configuration_arguments, configured, progress
from findings.leakscan import LeakError
from findings.publish import publish
from findings.readme import ReadmeError, with_verdicts
from findings.records import write_text
from findings.story import read_rows, table_files, tell
from findings.tables import TableError
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 written, 1 a table cannot be read or something private was found, 2 bad usage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, default=Path("results/tables"), help="folder with the tables")
    add_configuration_arguments(parser)
    parser.add_argument("--figures", type=Path, default=Path("docs/figures"), help="folder with the figures (SVG)")
    parser.add_argument("--readme", type=Path, help="README whose table of verdicts is written anew")
    parser.add_argument("--out", type=Path, default=Path("docs/gemma-4-mtp-on-pascal.md"), help="file to write")
    arguments = parser.parse_args(argv)
    configuration = configured(arguments.config_root, arguments.overrides)
    try:
        story = tell(configuration, read_rows(arguments.tables))
        scanned = publish(
            story,
            table_files(arguments.tables),
            arguments.figures,
            arguments.out,
            configuration.settings.leakscan_allowances,
        )
        if arguments.readme is not None:
            write_text(arguments.readme, with_verdicts(arguments.readme.read_text(encoding="utf-8"), story))
    except (LeakError, TableError, ReadmeError) as error:
        print(f"publish: {error}", file=sys.stderr)
        return 1
    progress("publish", f"{arguments.out} written; it and {scanned.files} files behind it were scanned")
    return 0


if __name__ == "__main__":
    sys.exit(main())
