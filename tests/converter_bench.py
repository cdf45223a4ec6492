"""Real converters, the committed checkpoints and what becomes of them, from the project's configuration and cache."""

import functools
from pathlib import Path

import pytest

import engine_bench as bench
from findings.convert import Conversion, convert
from findings.environments import ensure_environment, environment_python
from findings.records import Outcome, Record
from findings.sources import ensure_archive, ensure_model, ensure_unpacked, source_path

TARGET, DENSE, CENTROIDS = "tiny-gemma4-target", "tiny-gemma4-assistant-dense", "tiny-gemma4-assistant-centroids"
NEWEST = "converter-b11434"


def _needed(record: Record) -> Record:
    if record.outcome is not Outcome.OK:
        pytest.skip(f"SKIPPED, NOT TESTED: {record.subject} cannot be had here: {record.reason}")
    return record


@functools.cache
def converted(checkpoint_id: str, converter_id: str = NEWEST) -> Record:
    configuration, cache = bench.configuration(), bench.cache()
    converter = configuration.converters[converter_id]
    lock = bench.ROOT / "envs" / f"{converter.environment}.txt"
    environment = _needed(ensure_environment(converter.environment, lock, cache))
    archive = _needed(ensure_archive(converter.source, cache, converter_id))
    checkpoint = _needed(ensure_model(configuration.models[checkpoint_id], cache, bench.ROOT))
    return convert(
        Conversion(
            checkpoint_id=checkpoint_id,
            checkpoint=source_path(checkpoint, cache),
            converter_id=converter_id,
            source=ensure_unpacked(archive, cache, converter.inside),
            python=environment_python(environment, cache),
            cache=cache,
            build=converter.build,
        )
    )


def converted_path(checkpoint_id: str, converter_id: str = NEWEST) -> Path:
    record = converted(checkpoint_id, converter_id)
    assert record.outcome is Outcome.OK, record.reason
    return bench.cache() / str(record.detail["cache_path"])
