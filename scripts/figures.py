"""Draw the figures from the tables, each as SVG and PNG."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.buildline import build_points
from findings.bundles import BundleError
from findings.cost_curves import block_costs, curve_rows
from findings.evidence import gather
from findings.figures import FIGURES, Drawn, draw_all
from findings.imports import ImportedFileError
from findings.job import configured, given_overrides, progress
from findings.records import RecordError
from findings.story import frames, read_rows
from findings.tables import TableError
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 drawn (an empty table gives a figure that says so), 1 a table cannot be read, 2 bad usage."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables", type=Path, default=Path("results/tables"), help="folder with the tables")
    parser.add_argument("--config-root", type=Path, default=Path(), help="folder that holds config/")
    parser.add_argument(
        "--records", type=Path, default=Path("results/records"), help="records that the tables were made of (for costs)"
    )
    parser.add_argument(
        "--overrides", default=given_overrides(), help="JSON: keys that replace those of config/config.yaml"
    )
    parser.add_argument("--out", type=Path, default=Path("results/figures"), help="folder for the figures")
    parser.add_argument("--only", nargs="+", choices=list(FIGURES), default=list(FIGURES), help="some of the figures")
    arguments = parser.parse_args(argv)
    configuration = configured(arguments.config_root, arguments.overrides)
    try:
        rows = read_rows(arguments.tables)
        costs = block_costs(gather(configuration, arguments.records).files, rows["effects"])
    except (BundleError, ImportedFileError, RecordError, TableError) as error:
        print(f"figures: {error}", file=sys.stderr)
        return 1
    data = frames(rows)
    drawn = Drawn(
        measurements=data["measurements"],
        effects=data["effects"],
        verdicts=data["verdicts"],
        scores=data["precheck_scores"],
        timeline=build_points(configuration, rows["outcomes"]),
        breakeven=curve_rows(configuration, rows["effects"], costs),
        margin=configuration.study.protocol.margin,
        remarks={attempt.id: "artificial target" for attempt in configuration.attempts.values() if attempt.control_of},
    )
    paths = draw_all(drawn, arguments.out, arguments.only)
    progress("figures", f"{len(paths)} files in {arguments.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
