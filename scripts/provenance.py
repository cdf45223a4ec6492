"""Show what a number rests on: verdict, block effects, requests, record files, hashes of models, engine, prompts, code.

One of: `--finding F [--scope S] [--host H] [--engine E]`, `--table verdicts --row 3`, or `--number 25.34`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from findings.provenance import Tables, TraceError, as_text, rows_with_number, short, start_row, trace, verdict_rows
from findings.tables import TableError
from findings.writing import command

MOST_ROWS = 40


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit codes: 0 shown, 2 there is no such row, number or table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--finding", help="id of a finding")
    start.add_argument("--table", help="name of a table (with --row)")
    start.add_argument("--number", help="a number as the document prints it: every row that holds it")
    parser.add_argument("--row", type=int, default=0, help="row of the table, from 0")
    parser.add_argument("--scope", default="", help="as_published or mechanism")
    parser.add_argument("--host", default="", help="label of the host")
    parser.add_argument("--engine", default="", help="id of the engine")
    parser.add_argument("--tables", type=Path, default=Path("results/tables"), help="folder of the tables")
    parser.add_argument("--root", type=Path, default=Path(), help="folder of the project")
    parser.add_argument("--json", action="store_true", help="everything, as JSON")
    arguments = parser.parse_args(argv)
    tables = Tables(arguments.tables, arguments.root)
    try:
        if arguments.finding is not None:
            starts = verdict_rows(tables, arguments.finding, arguments.scope, arguments.host, arguments.engine)
        elif arguments.table is not None:
            starts = [start_row(tables, arguments.table, arguments.row)]
        else:
            starts = rows_with_number(tables, arguments.number)
        if arguments.number is not None and len(starts) > 1 and not arguments.json:
            print(f"{arguments.number} stands in {len(starts)} rows; choose one with --table and --row:")
            print("\n".join(f"  {name}: {short(row)}" for name, row in starts[:MOST_ROWS]))
            return 0
        found = [trace(tables, name, row) for name, row in starts]
    except (TraceError, TableError) as error:
        print(f"provenance: {error}", file=sys.stderr)
        return 2
    if arguments.json:
        print(json.dumps([asdict(item) for item in found], indent=1, sort_keys=True, default=str))
    else:
        print("\n".join(as_text(item) for item in found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
