"""Measure one attempt on one engine: blocks of arms until the verdict is settled or the maximum is reached."""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.engine.failure import EngineFailure
from findings.interrupted import end_with_workflow
from findings.job import add_job_arguments, progress, read_job
from findings.measure import measure_attempt, unrun_session
from findings.records import write_record
from findings.session import close_run
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the session's record; 0 for every answer of an engine, 2 for a wrong configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument("--attempt", required=True, help="id of the attempt")
    parser.add_argument("--engine", required=True, help="id of the engine")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write; run folders lie beside it")
    arguments = parser.parse_args(argv)
    end_with_workflow()
    job = read_job(arguments)
    label = f"measure {arguments.attempt} on {arguments.engine}"
    try:
        with job.site.alone(label):
            record = measure_attempt(
                job, arguments.attempt, arguments.engine, arguments.record.parent, functools.partial(progress, label)
            )
    except EngineFailure as failure:  # another machine that cannot be reached
        record = unrun_session(job, arguments.attempt, arguments.engine, failure.outcome, failure.reason)
    write_record(arguments.record, record)
    close_run(arguments.record.parent, record)
    progress(label, f"{record.outcome.value}: {record.reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
