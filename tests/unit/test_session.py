"""The loop of blocks: when it stops, what it never repeats, and how it goes on after an interruption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from builders import arm_run, block
from findings.blocks import ArmRun, Block
from findings.inference import Claim, SequentialPlan
from findings.records import Engagement, Kind, Outcome, Record, read_record, write_text
from findings.session import (
    ArmSpec,
    Judged,
    SessionPlan,
    assess,
    close_run,
    compare_texts,
    load_blocks,
    open_run,
    run_session,
)

NOISE = (0.0, 0.01, -0.008, 0.004, -0.003, 0.006, -0.005, 0.002, 0.001, -0.002)


def plan(**changes: object) -> SessionPlan:
    values: dict[str, object] = {
        "study": "mini",
        "attempt": "attempt_1",
        "engine": "e",
        "host": "h",
        "arms": (
            ArmSpec("baseline", "baseline", "none"),
            ArmSpec("null", "null", "none"),
            ArmSpec("list", "positive_control", "ngram_simple"),
            ArmSpec("draft", "candidate", "draft_simple"),
        ),
        "judged": (Judged("f", "draft", "all", Claim.DOES_NOT_PAY),),
        "sequential": SequentialPlan(looks=(3, 5, 7)),
        "seed": 1,
        "control_class": "list",
        "extra_blocks": 2,
        "identity": {"model": "m"},
    }
    return SessionPlan(**(values | changes))  # type: ignore[arg-type]


def runner(factor: float, log: list[str], **more: object):
    """An arm runner whose candidate is `factor` times as fast as the baseline."""

    def run(spec: ArmSpec, number: int, position: int) -> ArmRun:
        log.append(f"{number}:{spec.name}")
        noise = 1.0 + NOISE[(number + position) % len(NOISE)]
        if spec.kind in ("baseline", "null"):
            return arm_run(spec.name, spec.kind, 50.0 * noise)
        if spec.kind == "positive_control":
            return arm_run(spec.name, spec.kind, 100.0 * noise, drafted=30)
        return replace(arm_run(spec.name, spec.kind, 50.0 * factor * noise, drafted=20), **more)

    return run


def test_a_large_effect_stops_at_the_first_look(tmp_path: Path) -> None:
    log: list[str] = []
    record = run_session(plan(), tmp_path, runner(0.6, log), None, lambda _: None)
    assert record.outcome is Outcome.OK
    assert record.detail["blocks"] == 3
    assert "settled" in record.detail["stop_reason"]
    assert len(log) == 3 * 4


def test_an_effect_at_the_margin_runs_to_the_last_look(tmp_path: Path) -> None:
    record = run_session(plan(), tmp_path, runner(1.05, []), None, lambda _: None)
    assert record.detail["blocks"] == 7
    assert "last planned look" in record.detail["stop_reason"]


def test_costs_are_timed_in_the_first_blocks_alone(tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    def meter(active: Sequence[str]) -> dict[str, object]:
        asked.append(tuple(active))
        return {"target_ms": {"1": [float(len(asked))]}}

    record = run_session(plan(), tmp_path, runner(1.05, []), meter, lambda _: None)
    blocks = load_blocks(tmp_path / record.detail["run"])
    assert [bool(one.costs) for one in blocks] == [True] * 3 + [False] * 4
    assert len(asked) == 3


def test_without_a_control_that_pays_nothing_settles(tmp_path: Path) -> None:
    def weak(spec: ArmSpec, number: int, position: int) -> ArmRun:
        run = runner(0.6, [])(spec, number, position)
        return arm_run(spec.name, spec.kind, 50.0 * (1 + NOISE[number]), drafted=30) if spec.name == "list" else run

    record = run_session(plan(), tmp_path, weak, None, lambda _: None)
    assert record.detail["blocks"] == 7


def test_an_arm_that_does_not_engage_twice_is_not_started_again(tmp_path: Path) -> None:
    log: list[str] = []
    refused = {"engagement": Engagement.NOT_ENGAGED, "reason": "vocabs are not compatible"}
    record = run_session(plan(), tmp_path, runner(1.0, log, **refused), None, lambda _: None)
    assert [entry for entry in log if entry.endswith("draft")] == ["1:draft", "2:draft"]
    assert "no candidate arm drafts" in record.detail["stop_reason"]
    assert record.detail["arms"]["draft"]["engagement"] == "not_engaged"


def test_a_baseline_that_cannot_start_ends_the_session_with_its_outcome(tmp_path: Path) -> None:
    def broken(spec: ArmSpec, number: int, position: int) -> ArmRun:
        return replace(arm_run(spec.name, spec.kind), outcome=Outcome.OUT_OF_MEMORY, reason="no memory", requests=())

    record = run_session(plan(), tmp_path, broken, None, lambda _: None)
    assert record.outcome is Outcome.OUT_OF_MEMORY
    assert record.detail["blocks"] == 2


def test_an_interrupted_session_measures_no_block_twice(tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    log: list[str] = []
    healthy = runner(0.6, log)

    def dies(spec: ArmSpec, number: int, position: int) -> ArmRun:
        if number == 3 and position == 2:
            raise StopError
        return healthy(spec, number, position)

    with pytest.raises(StopError):
        run_session(plan(), tmp_path, dies, None, lambda _: None)
    kept = {path.name: path.read_bytes() for path in tmp_path.rglob("block-*.json")}
    assert sorted(kept) == ["block-001.json", "block-002.json"]
    log.clear()
    record = run_session(plan(), tmp_path, healthy, None, lambda _: None)
    assert record.detail["run"] == "run-001"
    assert {entry.split(":")[0] for entry in log} == {"3"}
    for path in tmp_path.rglob("block-*.json"):
        assert path.name not in kept or path.read_bytes() == kept[path.name]


def test_a_finished_session_that_is_asked_for_again_is_measured_anew(tmp_path: Path) -> None:
    first = run_session(plan(), tmp_path, runner(0.6, []), None, lambda _: None)
    close_run(tmp_path, first)
    again = run_session(plan(), tmp_path, runner(0.6, []), None, lambda _: None)
    assert (first.detail["run"], again.detail["run"]) == ("run-001", "run-002")
    assert len(load_blocks(tmp_path / "run-001")) == 3


def test_a_session_killed_before_its_record_was_closed_measures_nothing_again(tmp_path: Path) -> None:
    first = run_session(plan(), tmp_path, runner(0.6, []), None, lambda _: None)
    log: list[str] = []
    again = run_session(plan(), tmp_path, runner(0.6, log), None, lambda _: None)
    assert log == []
    assert again.detail == first.detail


def test_a_session_that_could_not_run_has_no_run_to_close(tmp_path: Path) -> None:
    close_run(tmp_path, Record(Kind.SESSION, "a/b", Outcome.NOT_RUN, detail={"run": ""}))
    assert list(tmp_path.iterdir()) == []


def test_another_identity_never_continues_a_run(tmp_path: Path) -> None:
    run = open_run(tmp_path, plan())
    assert open_run(tmp_path, plan()) == run
    other = open_run(tmp_path, plan(identity={"model": "another"}))
    assert other.name == "run-002"


def test_noisy_blocks_are_replaced_up_to_the_limit() -> None:
    arms = [
        arm_run("baseline", "baseline"),
        arm_run("list", "positive_control", 100.0, drafted=9),
        arm_run("draft", speed=20.0, drafted=9),
    ]
    noisy = [replace(run, other_cpu_share=0.5) for run in arms]
    blocks: list[Block] = [block(number, noisy) for number in range(1, 9)]
    assert not assess(plan(), blocks).stop
    blocks.append(block(9, noisy))
    state = assess(plan(), blocks)
    assert state.stop and "9 of them noisy" in state.reason


def test_the_first_differing_token_is_found() -> None:
    base = arm_run("baseline", "baseline")
    other = arm_run("draft", drafted=3)
    changed = replace(other, requests=(replace(other.requests[0], tokens=(0, 1, 9)), other.requests[1]))
    compared = compare_texts({"baseline": base, "draft": changed}, "baseline")
    assert [r.first_difference for r in compared["draft"].requests] == [2, None]
    unread = replace(base, requests=(replace(base.requests[0], tokens=()), base.requests[1]))
    assert [
        r.first_difference for r in compare_texts({"baseline": unread, "draft": other}, "baseline")["draft"].requests
    ] == [None, None]


def test_blocks_on_disk_are_whole_records(tmp_path: Path) -> None:
    run_session(plan(), tmp_path, runner(0.6, []), None, lambda _: None)
    path = tmp_path / "run-001" / "block-001.json"
    record = read_record(path)
    assert record.detail["session"] == json.loads((tmp_path / "run-001" / "plan.json").read_text())["key"]
    write_text(path, "{")
    with pytest.raises(ValueError, match=r"block-001\.json"):
        load_blocks(tmp_path / "run-001")
