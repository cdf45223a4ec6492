"""Start one arm once on one engine, ask one short request per prompt class, stop: does it load, does it draft?"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.engine.failure import EngineFailure
from findings.interrupted import end_with_workflow
from findings.job import add_job_arguments, progress, read_job
from findings.measure import load_once, unrun_load
from findings.records import write_record
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the record of the load; 0 for every answer of an engine, 2 for a wrong configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument("--attempt", required=True, help="id of the attempt")
    parser.add_argument("--engine", required=True, help="id of the engine")
    parser.add_argument("--arm", required=True, help="id of the arm")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    end_with_workflow()
    job = read_job(arguments)
    label = f"load {arguments.attempt}/{arguments.arm} on {arguments.engine}"
    try:
        with job.site.alone(label):
            record = load_once(job, arguments.attempt, arguments.engine, arguments.arm)
    except EngineFailure as failure:  # another machine that cannot be reached
        record = unrun_load(job, arguments.attempt, arguments.engine, arguments.arm, failure.outcome, failure.reason)
    write_record(arguments.record, record)
    progress(label, f"{record.outcome.value}: {record.reason}" if record.reason else record.outcome.value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
