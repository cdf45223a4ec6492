"""Sessions with real engines: interrupted and continued, costs measured in their blocks, not engaged told apart."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest
import yaml

import engine_bench
from findings import measure
from findings.arm_runner import Place, Ready
from findings.blocks import ArmRun, Block
from findings.breakeven import Acceptance, break_even, cost_curve
from findings.bundles import RecordFile
from findings.config import Configuration, Prompt, load_configuration
from findings.cost_curves import block_costs, curve_rows
from findings.costs import REPEATS, widths_up_to
from findings.effects import arm_effects
from findings.evidence import effect_rows
from findings.inference import Verdict
from findings.job import Job
from findings.measure import MOST_DRAFTED, measure_attempt
from findings.records import Engagement, Kind, Outcome, Record, read_record
from findings.session import load_blocks, open_run
from findings.verdicts import HostRecords, judge_speed

pytestmark = pytest.mark.engine

ENGINE = engine_bench.BINDING
LOOKS = [2, 3]
TOKENS = 16


@dataclass(frozen=True)
class Session:
    job: Job
    record: Record
    folder: Path
    said: list[str]

    @property
    def blocks(self) -> list[Block]:
        return load_blocks(self.folder / str(self.record.detail["run"]))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the configuration with a protocol that is over within two or three blocks."""
    root = tmp_path_factory.mktemp("project")
    shutil.copytree(engine_bench.ROOT / "config", root / "config", ignore=shutil.ignore_patterns("*.lock.yaml"))
    path = root / "config/studies/mini.yaml"
    study = yaml.safe_load(path.read_text(encoding="utf-8"))
    study["protocol"] |= {"looks": LOOKS, "max_blocks": LOOKS[-1], "predict_tokens": TOKENS, "warmup_tokens": 2}
    study["protocol"] |= {"start_timeout_s": 240, "request_timeout_s": 240}
    path.write_text(yaml.safe_dump(study), encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def tiny(project: Path) -> Configuration:
    return load_configuration(project)


@pytest.fixture(scope="module")
def self_drafting(tiny: Configuration, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Attempt 2, broken off in the middle of the second block by an exception, then asked for again."""
    job = Job(tiny, place.records, place.cache, place.records)
    folder = tmp_path_factory.mktemp("attempt_2")
    said: list[str] = []
    real = measure.run_arm
    calls: list[str] = []

    def breaks(ready: Ready, prompts: Sequence[Prompt], predict_tokens: int, **more: Any) -> ArmRun:
        calls.append(ready.arm.id)
        if len(calls) == len(tiny.measured_arms("attempt_2")) + 2:
            raise KeyboardInterrupt
        return real(ready, prompts, predict_tokens, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measure, "run_arm", breaks)
        with pytest.raises(KeyboardInterrupt):
            measure_attempt(job, "attempt_2", ENGINE, folder, said.append)
    (first,) = sorted((folder / "run-001").glob("block-*.json"))
    before = first.read_bytes()
    record = measure_attempt(job, "attempt_2", ENGINE, folder, said.append)
    assert first.read_bytes() == before
    return Session(job, record, folder, said)


def test_an_interrupted_session_goes_on_with_the_next_block(self_drafting: Session) -> None:
    record = self_drafting.record
    assert (record.kind, record.outcome) == (Kind.SESSION, Outcome.OK)
    assert record.detail["run"] == "run-001"
    assert "continuing run-001: 1 blocks are there already" in self_drafting.said
    assert [block.block for block in self_drafting.blocks] == list(range(1, record.detail["blocks"] + 1))
    assert len(self_drafting.blocks) >= LOOKS[0]
    assert {block.session for block in self_drafting.blocks} == {record.detail["key"]}
    assert record.detail["stop_reason"]


def test_every_arm_ran_in_every_block_from_a_process_of_its_own(self_drafting: Session) -> None:
    arms = {arm.id for arm in self_drafting.job.configuration.measured_arms("attempt_2")}
    for block in self_drafting.blocks:
        assert set(block.arms) == arms == set(block.order)
        for position, name in enumerate(block.order, start=1):
            run = block.arms[name]
            counted = [r for r in run.requests if r.counted]
            assert (run.outcome, run.position) == (Outcome.OK, position)
            assert [r.predicted_n for r in counted] == [TOKENS] * len(counted)
            assert run.startup_s > 0
    orders = [block.order for block in self_drafting.blocks[:2]]
    assert orders[0] != orders[1]


def test_raw_counters_of_drafting_are_kept_and_agree(self_drafting: Session) -> None:
    for block in self_drafting.blocks:
        run = block.arms["draft"]
        counters = run.settings["draft_counters"]
        assert run.engagement is Engagement.WITH_DRAFTS
        assert counters["drafted"] == sum(r.draft_n or 0 for r in run.requests)
        assert counters["accepted"] == sum(r.draft_n_accepted or 0 for r in run.requests)
        assert sum(counters["accepted_at"]) == counters["accepted"]
        assert 0 < counters["accepted_at"][0] <= counters["rounds"]
        plain = block.arms["baseline"].settings["draft_counters"]
        assert (plain["drafted"], plain["rounds"]) == (0, 0)


def timings(blocks: Sequence[Block]) -> tuple[dict[int, list[float]], list[float]]:
    target: dict[int, list[float]] = {}
    draft: list[float] = []
    for block in blocks:
        for width, values in block.costs["target_ms"].items():
            target.setdefault(int(width), []).extend(values)
        draft += block.costs["draft_ms"]["draft"]
    return target, draft


def test_costs_are_measured_in_each_block(self_drafting: Session) -> None:
    for block in self_drafting.blocks:
        costs = block.costs
        # A timing is kept only where exactly `width` tokens were computed; all widths are there in each block.
        assert costs["reasons"] == {}
        assert {int(width) for width in costs["target_ms"]} == set(widths_up_to(MOST_DRAFTED + 1))
        assert {len(values) for values in costs["target_ms"].values()} == {REPEATS}
        assert len(costs["draft_ms"]["draft"]) == REPEATS
        assert all(
            value > 0 for values in (*costs["target_ms"].values(), *costs["draft_ms"].values()) for value in values
        )
    target, draft = timings(self_drafting.blocks)
    assert min(target[17]) > min(target[1])  # what is verified at once is not free, whatever the noise
    assert 0.2 < min(draft) / min(target[1]) < 5  # the drafter is the target itself: about one token of it


def test_break_even_and_the_predicted_speed_beside_the_measured_one(self_drafting: Session) -> None:
    target, draft = timings(self_drafting.blocks)
    curve = cost_curve(target, draft)
    requests = [r for b in self_drafting.blocks for r in b.arms["draft"].requests if r.counted]
    seen = Acceptance(
        sum(r.predicted_n for r in requests),
        sum(r.draft_n or 0 for r in requests),
        sum(r.draft_n_accepted or 0 for r in requests),
    )
    found = break_even(curve, 3, seen)
    assert found.c == pytest.approx(median(draft) / median(target[1]))
    assert found.needed_tokens_per_round == pytest.approx(3 * found.c + found.v)
    assert found.observed_acceptance is not None
    assert 0.3 < found.observed_acceptance <= 1  # the target agrees with itself
    measured = arm_effects(self_drafting.blocks, "draft")
    assert found.predicted_speedup is not None
    assert found.predicted_speedup > 0
    assert len(measured) == len(self_drafting.blocks)
    # The rows that the figure is made of hold both, from the records of the same blocks.
    run = self_drafting.folder / str(self_drafting.record.detail["run"])
    files = [RecordFile(path.name, "h", path.name, path.read_bytes) for path in sorted(run.glob("block-*.json"))]
    shared = {"evidence": "measured", "host": "h", "attempt": "attempt_2", "engine": ENGINE}
    rows = [
        {**row, **shared, "record": file.label}
        for file, block in zip(files, self_drafting.blocks, strict=True)
        for row in effect_rows({}, block, read_record(run / file.label).detail)
    ]
    drawn = curve_rows(self_drafting.job.configuration, rows, block_costs(files, rows))
    of_draft = drawn[drawn["arm"] == "draft"]
    assert len(of_draft) > 1
    assert of_draft["observed_acceptance"].iloc[0] == pytest.approx(found.observed_acceptance)
    assert of_draft["observed_ratio"].iloc[0] > 0
    # The first token of an answer belongs to no round, so the figure's prediction is a little above the one without.
    timed = Acceptance(seen.generated - len(requests), seen.drafted, seen.accepted)
    expected = break_even(curve, 3, timed).predicted_speedup
    assert of_draft["predicted_ratio"].iloc[0] == pytest.approx(expected)


def test_energy_is_a_number_or_absent(self_drafting: Session) -> None:
    told = Path("/sys/class/powercap/intel-rapl:0/energy_uj")
    for block in self_drafting.blocks:
        for run in block.arms.values():
            if os.access(told, os.R_OK):
                assert run.machine.get("energy_j", 1.0) > 0  # absent where the counter began anew
            else:
                assert "energy_j" not in run.machine


# --- killed ----------------------------------------------------------------------------------------------------------


def measuring(project: Path, place: Place, folder: Path) -> list[str]:
    script = str(engine_bench.ROOT / "scripts/measure.py")
    job = ["--config-root", str(project), "--records", str(place.records), "--cache", str(place.cache)]
    what = ["--attempt", "attempt_1", "--engine", ENGINE, "--record", str(folder / "session.json")]
    return [sys.executable, script, *job, *what]


def wait_for(condition: Any, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 300
    while not condition():
        assert process.poll() is None, "the measurement ended by itself"
        assert time.monotonic() < deadline
        time.sleep(0.05)


def alive(pids: Sequence[int]) -> list[int]:
    found = []
    for pid in pids:
        try:
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.fixture(scope="module")
def killed(tiny: Configuration, project: Path, place: Place, tmp_path_factory: pytest.TempPathFactory) -> Session:
    """Attempt 1 by its tool, killed while an engine of the second block runs, then started again."""
    folder = tmp_path_factory.mktemp("attempt_1")
    log = folder / "log.txt"
    with log.open("wb") as stream:
        process = subprocess.Popen(measuring(project, place, folder), stderr=stream, cwd=folder)
        watched = psutil.Process(process.pid)
        wait_for((folder / "run-001/block-001.json").exists, process)
        wait_for(lambda: watched.children(recursive=True), process)
        engines = [child.pid for child in watched.children(recursive=True)]
        process.send_signal(signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + 30
    while alive(engines) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(engines) == []
    assert not (folder / "session.json").exists()
    assert not list(folder.rglob("block-002.json"))
    again = subprocess.run(measuring(project, place, folder), capture_output=True, text=True, cwd=folder, check=False)
    assert again.returncode == 0, again.stderr
    job = Job(tiny, place.records, place.cache, place.records)
    return Session(job, read_record(folder / "session.json"), folder, again.stderr.splitlines())


def test_a_killed_measurement_leaves_no_engine_and_goes_on(killed: Session) -> None:
    assert any(line.endswith("continuing run-001: 1 blocks are there already") for line in killed.said)
    assert killed.record.outcome is Outcome.OK
    assert killed.record.detail["run"] == "run-001"
    assert len(killed.blocks) == killed.record.detail["blocks"] == 2
    assert not list(killed.folder.rglob("*.part*"))


def test_a_drafter_that_does_not_engage_is_no_slowdown(killed: Session) -> None:
    arms = killed.record.detail["arms"]
    assert (arms["draft"]["outcome"], arms["draft"]["engagement"]) == ("ok", "not_engaged")
    assert re.search("vocab", arms["draft"]["reason"])
    assert killed.record.detail["stop_reason"] == "no candidate arm drafts here, so there is no speed to compare"
    for block in killed.blocks:
        states = {name: run.engagement for name, run in block.arms.items()}
        assert states["baseline"] is states["null"] is Engagement.OFF
        assert states["draft"] is Engagement.NOT_ENGAGED
        assert states["list"] is Engagement.WITH_DRAFTS
        assert all(r.draft_n is None for r in block.arms["draft"].requests)
        assert all(str(d) == "nan" for d in arm_effects([block], "draft"))


def test_the_verdict_of_a_drafter_that_does_not_engage_says_so(killed: Session) -> None:
    session = f"measure/attempt_1/{ENGINE}"
    run = str(killed.record.detail["run"])
    records = {f"{session}/session.json": killed.record}
    for path in sorted((killed.folder / run).glob("block-*.json")):
        records[f"{session}/{run}/{path.name}"] = read_record(path)
    finding = killed.job.configuration.findings["attempt_1_does_not_pay"]
    (judged,) = judge_speed(killed.job.configuration, finding, HostRecords("test-host", records))
    assert judged.verdict is Verdict.NOT_TESTABLE
    assert "not engaged" in judged.reason
    assert judged.failed_gates == ("drafter_engaged",)


def test_a_finished_session_asked_for_again_begins_a_new_run(killed: Session) -> None:
    runs = sorted(path.name for path in killed.folder.glob("run-*"))
    assert runs == ["run-001"]
    before = (killed.folder / "run-001/complete.json").read_bytes()
    plan = measure.session_plan(killed.job, "attempt_1", ENGINE, measure.prepare_bench(killed.job, "attempt_1", ENGINE))
    assert plan.key == killed.record.detail["key"]
    assert open_run(killed.folder, plan).name == "run-002"
    assert (killed.folder / "run-001/complete.json").read_bytes() == before
