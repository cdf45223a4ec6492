"""Halve the way between builds: between which two neighbouring builds does a finding of an attempt stop holding?

Tries as few builds as it takes, with the same environments, probes, loads and conversions as the workflow, and keeps
their records. Writes a table of what was tried, and says the pair of builds.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from findings.bisection import bisect_attempt
from findings.cache import CacheError
from findings.interrupted import end_with_workflow
from findings.job import add_job_arguments, progress, read_job
from findings.records import RecordError, write_text
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write what was found as JSON; 0 whatever it is, 1 where an earlier record is missing or damaged."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument("--attempt", required=True, help="id of the attempt")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    end_with_workflow()
    job = read_job(arguments)
    label = f"bisect {arguments.attempt}"
    try:
        with job.site.alone(label):
            found = bisect_attempt(job, arguments.attempt, functools.partial(progress, label))
    except (RecordError, CacheError) as error:
        print(f"{label}: {error}", file=sys.stderr)
        return 1
    write_text(arguments.out, json.dumps([item.as_json() for item in found], indent=1) + "\n")
    for item in found:
        print(f"{item.finding}: {item.sentence()}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
