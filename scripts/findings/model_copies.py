"""Models that are changed copies of another one (`retyped_from`, `padded_from`): how they are made and recorded."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findings import plan
from findings.cache import CacheError
from findings.config import Model
from findings.job import Job, add_job_arguments, progress, read_job
from findings.records import Kind, Outcome, Record, RecordError, read_record, redact, utc_now, write_record
from findings.sources import model_path

Maker = Callable[[Path, str, str, Path], tuple[Path, str]]


@dataclass(frozen=True)
class Recipe:
    """How a copy is made: the function (original, its sha256, name, cache) -> (path, sha256), and what to record."""

    make: Maker
    detail: Mapping[str, Any]


def copy_record(job: Job, model: Model, recipe: Recipe) -> Record:
    """Have the copy in the cache: a record of kind conversion, ok, or not_run where the original is not here.

    Raises RecordError, CacheError, OSError, and what the recipe raises.
    """
    started, begun = utc_now(), time.monotonic()
    original = str(model.copied_from)
    source = read_record(job.shared / plan.model_record(job.configuration, original))
    if source.outcome is not Outcome.OK:
        reason = f"model {original} is not here: {source.outcome.value}: {source.reason}"
        return Record(Kind.CONVERSION, model.id, Outcome.NOT_RUN, reason, host=job.host, started=started)
    cache = job.cache.resolve()
    sha256 = str(source.detail["sha256"])
    path, digest = recipe.make(model_path(source, cache), sha256, model.file, cache)
    return Record(
        Kind.CONVERSION,
        model.id,
        Outcome.OK,
        host=job.host,
        seconds=round(time.monotonic() - begun, 3),
        started=started,
        detail={
            **recipe.detail,
            "original": {"model": original, "sha256": sha256},
            "sha256": digest,
            "size_bytes": path.stat().st_size,
            "cache_path": path.relative_to(cache).as_posix(),
        },
    )


def run_tool(argv: Sequence[str] | None, about: str, recipe_of: Callable[[Model], Recipe | None], key: str) -> int:
    """The command line of such a tool: 0 with a record, 1 for a fault of the pipeline, 2 for a wrong command line."""
    parser = argparse.ArgumentParser(description=about)
    add_job_arguments(parser)
    parser.add_argument("--model", required=True, help=f"id of a model with {key}")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    job = read_job(arguments)
    model = job.configuration.models.get(arguments.model)
    recipe = recipe_of(model) if model is not None else None
    if model is None or recipe is None:
        parser.error(f"--model {arguments.model}: config/models.yaml has no such model with {key}")
    try:
        record = copy_record(job, model, recipe)
    except (RecordError, CacheError, ValueError) as error:
        print(f"{key} {model.id}: {redact(str(error))}", file=sys.stderr)
        return 1
    write_record(arguments.record, record)
    progress(f"{key} {model.id}", f"{record.outcome.value} {record.reason}".rstrip())
    return 0
