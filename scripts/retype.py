"""Make a copy of a model with other token types, and the record that says where it is."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from findings import plan
from findings.cache import CacheError
from findings.job import add_job_arguments, progress, read_job
from findings.records import Kind, Outcome, Record, RecordError, read_record, utc_now, write_record
from findings.retype import RetypeError, retyped
from findings.sources import model_path
from findings.writing import command


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the record; `not_run` where the original is not here; 1 for a fault of the pipeline."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument("--model", required=True, help="id of a model with retyped_from")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    job = read_job(arguments)
    model = job.configuration.models[arguments.model]
    started, begun = utc_now(), time.monotonic()
    try:
        source = read_record(job.records / plan.model_record(job.configuration, str(model.retyped_from)))
        if source.outcome is not Outcome.OK:
            reason = f"model {model.retyped_from} is not here: {source.outcome.value}: {source.reason}"
            record = Record(Kind.CONVERSION, model.id, Outcome.NOT_RUN, reason, host=job.host, started=started)
        else:
            path, digest = retyped(
                model_path(source, job.cache), str(source.detail["sha256"]), model.file, job.cache.resolve()
            )
            detail = {
                "retyped_from": model.retyped_from,
                "sha256": digest,
                "size_bytes": path.stat().st_size,
                "cache_path": path.relative_to(job.cache.resolve()).as_posix(),
            }
            record = Record(
                Kind.CONVERSION,
                model.id,
                Outcome.OK,
                host=job.host,
                seconds=round(time.monotonic() - begun, 3),
                started=started,
                detail=detail,
            )
    except (RecordError, RetypeError, CacheError) as error:
        print(f"retype {model.id}: {error}", file=sys.stderr)
        return 1
    write_record(arguments.record, record)
    progress(f"retype {model.id}", f"{record.outcome.value} {record.reason}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
