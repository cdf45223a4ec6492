"""Write the record of this machine: processor, memory, GPUs, under a generic label."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.host import host_facts, host_record
from findings.records import write_record
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the host record; exit code 2 for a label that cannot be used."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="auto", help="label to publish, or auto")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    try:
        facts = host_facts(arguments.host)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    write_record(arguments.record, host_record(facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
