"""Write the report: one HTML page with figures inside, for people, offline."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.figures import FIGURES
from findings.job import add_configuration_arguments, configured, progress
from findings.leakscan import LeakError
from findings.report import report
from findings.story import read_rows, table_files, tell
from findings.tables import TableError
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 written, 1 a table cannot be read or something private was found, 2 bad usage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, default=Path("results/tables"), help="folder with the tables")
    add_configuration_arguments(parser)
    parser.add_argument("--figures", type=Path, default=Path("results/figures"), help="folder with the figures (SVG)")
    parser.add_argument(
        "--captions", type=Path, default=Path("workflow/report"), help="folder with the figures' captions (<name>.rst)"
    )
    parser.add_argument("--out", type=Path, default=Path("results/report/index.html"), help="file to write")
    arguments = parser.parse_args(argv)
    configuration = configured(arguments.config_root, arguments.overrides)
    try:
        story = tell(configuration, read_rows(arguments.tables))
        scanned = report(
            story,
            table_files(arguments.tables),
            arguments.figures,
            arguments.captions,
            list(FIGURES),
            arguments.out,
            configuration.settings.leakscan_allowances,
        )
    except (LeakError, TableError, ValueError) as error:
        print(f"report: {error}", file=sys.stderr)
        return 1
    progress("report", f"{arguments.out} written; it and {scanned.files} files behind it were scanned")
    return 0


if __name__ == "__main__":
    sys.exit(main())
