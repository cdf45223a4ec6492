"""Ask an engine of the configuration what it is and what it offers, and write the answer as a record.

An engine that dies, hangs or is not there is an outcome in the record; the exit code is 0 then, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.interrupted import end_with_workflow
from findings.job import add_job_arguments, progress, read_job
from findings.records import Outcome, write_record
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write one probe record; 2 for an engine that is not in the configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument("--engine", required=True, help="id of an engine in config/engines.yaml")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    end_with_workflow()
    job = read_job(arguments)
    engine = job.configuration.engines.get(arguments.engine)
    if engine is None:
        known = ", ".join(sorted(job.configuration.engines))
        print(f"--engine: {arguments.engine!r} is not in config/engines.yaml; it has {known}", file=sys.stderr)
        return 2
    record = job.site.probed(engine, job.host)
    write_record(arguments.record, record)
    said = record.reason if record.outcome is not Outcome.OK else str(record.detail["version"])
    progress(f"probe {engine.id}", f"{record.outcome.value}: {said}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
