"""Rewrite the table of keys in config/README.md from the schemas, or check with --check that it is in step."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.config_schema import reference, with_reference
from findings.records import write_text
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0; 1 with --check when the table is not what the schemas say."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing, only compare")
    parser.add_argument("--root", type=Path, default=Path(), help="the project's folder (default: the current one)")
    options = parser.parse_args(argv)
    readme = options.root / "config/README.md"
    text = readme.read_text(encoding="utf-8")
    wanted = with_reference(text, reference())
    if text == wanted:
        return 0
    if options.check:
        print(
            "config/README.md: the keys are not in step; run python scripts/config_reference.py",
            file=sys.stderr,
        )
        return 1
    write_text(readme, wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
