"""Predict one pair of an attempt on one build, before it is loaded: the pre-check as a stage of the workflow."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from findings import plan
from findings.config import Arm, Configuration
from findings.job import Job, add_job_arguments, progress, read_job
from findings.memory_plan import Settings
from findings.precheck import Question, precheck_files
from findings.records import Kind, Outcome, Record, read_record, utc_now, write_record
from findings.sources import model_path
from findings.writing import command
from precheck import prediction_record

UBATCH = 512


def question(configuration: Configuration, attempt: str, engine_id: str, arm: Arm) -> Question:
    """What the pre-check is asked: the arm's speculation and the study's settings on that engine's build."""
    study = configuration.study
    chosen = study.attempts[attempt]
    drafted = arm.speculation.n_max or 1
    return Question(
        build=plan.engine_of(configuration, attempt, engine_id, arm).build,
        spec_type=arm.speculation.type.value,
        settings=Settings(ctx=chosen.ctx or study.ctx, ubatch=min(study.batch, UBATCH), draft_max=drafted),
        budget=min(chosen.memory_budgets_bytes, default=None),
        drafted=drafted,
    )


def predict(job: Job, attempt: str, engine_id: str, arm_id: str) -> Record:
    """The prediction's record; `not_run` where a model of the pair is not here."""
    configuration = job.configuration
    arm = configuration.attempts[attempt].arm(arm_id)
    subject = f"{attempt}/{engine_id}/{arm_id}"
    common: dict[str, Any] = {"host": job.host, "study": configuration.study.id}
    common |= {"attempt": attempt, "engine": engine_id, "arm": arm_id}
    files: list[Path] = []
    for model in (plan.target_of(configuration, attempt, arm), plan.drafter_of(configuration, attempt, arm)):
        if model is None:
            continue
        source = read_record(job.shared / plan.model_record(configuration, model.id))
        if source.outcome is not Outcome.OK:
            reason = f"model {model.id} is not here: {source.outcome.value}: {source.reason}"
            return Record(Kind.PRECHECK, subject, Outcome.NOT_RUN, reason, started=utc_now(), **common)
        files.append(model_path(source, job.cache))
    started, begun = utc_now(), time.monotonic()
    asked = question(configuration, attempt, engine_id, arm)
    prediction = precheck_files(files[0], files[1] if len(files) > 1 else None, asked)
    record = prediction_record(prediction, subject, started, time.monotonic() - begun)
    return replace(record, **common)


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Write the record of the prediction; 0 whatever it says, 2 for a wrong configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    add_job_arguments(parser)
    parser.add_argument("--attempt", required=True, help="id of the attempt")
    parser.add_argument("--engine", required=True, help="id of the engine")
    parser.add_argument("--arm", required=True, help="id of the arm")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args(argv)
    record = predict(read_job(arguments), arguments.attempt, arguments.engine, arguments.arm)
    write_record(arguments.record, record)
    progress(f"pre-check {record.subject}", record.reason or record.outcome.value)
    return 0


if __name__ == "__main__":
    sys.exit(main())
