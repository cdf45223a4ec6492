"""Convert one checkpoint with the converter of one llama.cpp build and write the record of how that ended.

In the workflow: --model ID --converter ID --records ... (what it needs comes from earlier records).
By hand: --checkpoint FOLDER --source LLAMA_CPP_SOURCE --python PYTHON --cache FOLDER --record FILE.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from findings.archives import ArchiveError
from findings.cache import CacheError, cache_root
from findings.checkpoint import CheckpointError
from findings.convert import TIMEOUT_S, Conversion, ConversionError, convert
from findings.environments import environment_python
from findings.interrupted import end_with_workflow
from findings.job import add_configuration_arguments, configured, progress
from findings.records import Kind, Outcome, Record, RecordError, read_record, redact, utc_now, write_record
from findings.sources import ensure_unpacked, source_path
from findings.writing import command


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="id of a checkpoint in config/models.yaml")
    parser.add_argument("--converter", default="", help="id of a converter in config/engines.yaml (by hand: any name)")
    parser.add_argument("--records", type=Path, help="results/records/<host>, with --model")
    add_configuration_arguments(parser)
    parser.add_argument("--checkpoint", type=Path, help="folder of a checkpoint, instead of --model")
    parser.add_argument("--source", type=Path, help="unpacked llama.cpp source, with --checkpoint")
    parser.add_argument("--python", type=Path, help="interpreter with torch and transformers, with --checkpoint")
    parser.add_argument(
        "--target-checkpoint", type=Path, default=None, help="the target's folder, if the converter asks for it"
    )
    parser.add_argument("--outtype", default="f16", choices=("f32", "f16", "bf16", "q8_0"))
    parser.add_argument("--timeout", type=float, default=TIMEOUT_S, help="seconds")
    parser.add_argument("--cache", type=Path, default=cache_root(), help="cache folder")
    parser.add_argument("--record", type=Path, required=True, help="JSON file to write")
    return parser


def planned(given: argparse.Namespace) -> Conversion | Record:
    """The conversion that the configuration describes, or the record `not_run` that says which input is missing."""
    configuration = configured(given.config_root, given.overrides)
    if given.converter not in configuration.converters or given.model not in configuration.models:
        raise ConversionError(f"--model {given.model} --converter {given.converter}: not both are in config/")
    converter = configuration.converters[given.converter]
    blank = Record(
        kind=Kind.CONVERSION,
        subject=f"{given.model}/{given.converter}",
        outcome=Outcome.NOT_RUN,
        started=utc_now(),
        detail={"checkpoint": given.model, "converter": given.converter, "build": converter.build},
    )
    needed = {
        "checkpoint": f"sources/{given.model}.json",
        "converter": f"sources/{given.converter}.json",
        "environment": f"environments/{converter.environment}.json",
    }
    found = {what: read_record(given.records / path) for what, path in needed.items()}
    for what, record in found.items():
        if record.outcome is not Outcome.OK:
            return replace(blank, reason=f"no {what}: {record.subject} is {record.outcome.value}: {record.reason}")
    cache = given.cache.resolve()
    return Conversion(
        checkpoint_id=given.model,
        checkpoint=source_path(found["checkpoint"], cache),
        converter_id=given.converter,
        source=ensure_unpacked(found["converter"], cache, converter.inside),
        python=environment_python(found["environment"], cache),
        cache=cache,
        outtype=given.outtype,
        archive_sha256=str(found["converter"].detail["sha256"]),
        build=converter.build,
        timeout_s=given.timeout,
    )


def by_hand(given: argparse.Namespace) -> Conversion:
    """The conversion that the command line describes."""
    return Conversion(
        checkpoint_id=given.checkpoint.resolve().name,
        checkpoint=given.checkpoint.resolve(),
        converter_id=given.converter or "by-hand",
        source=given.source.resolve(),
        # Not resolved: an environment's interpreter is a link, and its place says which packages it has.
        python=given.python.absolute(),
        cache=given.cache.resolve(),
        outtype=given.outtype,
        target=given.target_checkpoint.resolve() if given.target_checkpoint else None,
        timeout_s=given.timeout,
    )


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 for every answer of a converter, 1 for a fault of the pipeline, 2 for a wrong command line."""
    parser = arguments()
    given = parser.parse_args(argv)
    end_with_workflow()
    if given.model and given.records and not given.checkpoint:
        job_of = planned
    elif given.checkpoint and given.source and given.python and not given.model:
        job_of = by_hand
    else:
        parser.error("give --model, --converter and --records, or --checkpoint, --source and --python")
    try:
        job = job_of(given)
        record = job if isinstance(job, Record) else convert(job)
    except (ConversionError, CheckpointError, CacheError, ArchiveError, RecordError) as error:
        print(f"convert: {redact(str(error))}", file=sys.stderr)
        return 1
    record = replace(record, host=given.records.name if given.records else "")
    write_record(given.record, record)
    progress(f"convert {record.subject}", f"{record.outcome.value} {redact(record.reason)}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
