"""Simulate sessions with a known truth and write the error rates into docs/method.md.

    python scripts/simulate.py            # 20,000 sessions per line, under a minute on two cores; writes both files
    python scripts/simulate.py --check    # the same, writes nothing, exit 1 where the stored numbers differ

`--from-stored` writes the document from the stored JSON without simulating.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.records import write_text
from findings.simulation import TABLES, simulate
from findings.simulation_tables import PARTS, write_into
from findings.writing import command

ROOT = Path(__file__).resolve().parent.parent


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Command line; exit codes 0 done, 1 numbers differ (--check), 2 bad usage."""
    parser = argparse.ArgumentParser(description="Simulate sessions with a known truth; see docs/method.md.")
    parser.add_argument("--trials", type=int, default=20_000, help="sessions per line of a table (20000)")
    parser.add_argument("--stored", type=Path, default=ROOT / "docs" / "method-simulation.json", help="numbers, JSON")
    parser.add_argument("--document", type=Path, default=ROOT / "docs" / "method.md", help="text with markers")
    parser.add_argument("--check", action="store_true", help="compare with the stored numbers, write nothing")
    parser.add_argument("--from-stored", action="store_true", help="do not simulate, write the document only")
    options = parser.parse_args(argv)
    if options.trials < 1:
        parser.error("--trials must be at least 1")
    try:
        if options.from_stored:
            results = json.loads(options.stored.read_text(encoding="utf-8"))
        else:
            print(f"[simulate] {len(TABLES)} tables, {options.trials} sessions per line", file=sys.stderr, flush=True)
            results = json.loads(json.dumps(simulate(options.trials)))
        text = options.document.read_text(encoding="utf-8")
        if options.check:
            stored = json.loads(options.stored.read_text(encoding="utf-8"))
            same = stored == results and write_into(text, stored) == text
            print("the stored numbers are these" if same else "the stored numbers differ from these", file=sys.stderr)
            return 0 if same else 1
        written = write_into(text, results)
    except (OSError, ValueError) as error:
        print(f"simulate: {error}", file=sys.stderr)
        return 2
    if not options.from_stored:
        write_text(options.stored, json.dumps(results, indent=1) + "\n")
    write_text(options.document, written)
    for name, part in PARTS.items():
        print(f"\n{name}\n{part(results)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
