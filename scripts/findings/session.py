"""A session: blocks of arms, written one by one, until the verdict is settled or the maximum of blocks is reached.

Crash-safe: a block is a record written by rename, and a session that was interrupted goes on with the next block.
A run folder belongs to one identity (arms, prompts, bytes of engine and models, protocol); when any of these changed,
or when a finished session is asked for again, a new run folder is begun and the old one stays.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from findings.blocks import ArmRun, Block, block_from_json, block_to_json
from findings.design import order_for_block
from findings.effects import arm_effects
from findings.engine.client import first_difference
from findings.gates import usable_blocks
from findings.inference import Claim, Decision, Metric, SequentialPlan, analyse, control_gate
from findings.records import Engagement, Kind, Outcome, Record, read_record, utc_now, write_record, write_text

# An arm that ended the same way without drafting in this many blocks is not started again: its outcome is known.
BLOCKS_TO_SETTLE_AN_OUTCOME = 2
# Costs are timed several times in each of the first blocks; they settle no verdict, so later blocks need none.
BLOCKS_WITH_COSTS = 3


@dataclass(frozen=True)
class ArmSpec:
    """An arm as the session sees it: its kind and the speculation in our words; how it is started is the runner's."""

    name: str
    kind: str
    speculation: str


@dataclass(frozen=True)
class Judged:
    """A claim that this session has to settle: one arm, one prompt class (or `all`)."""

    finding: str
    arm: str
    prompt_class: str
    claim: Claim
    metric: Metric = Metric.GENERATION


@dataclass(frozen=True)
class SessionPlan:
    """All that a session needs to know. `identity` decides whether an interrupted run may be continued.

    `control_class` is the prompt class in which the positive control is judged, `extra_blocks` how many noisy blocks
    may be replaced.
    """

    study: str
    attempt: str
    engine: str
    host: str
    arms: tuple[ArmSpec, ...]
    judged: tuple[Judged, ...]
    sequential: SequentialPlan
    seed: int
    control_class: str
    extra_blocks: int
    identity: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Short hash of the identity."""
        text = json.dumps(self.identity, sort_keys=True, ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def most_blocks(self) -> int:
        """The maximum of blocks, those that replace noisy ones included."""
        return self.sequential.looks[-1] + self.extra_blocks


@dataclass(frozen=True)
class State:
    """Where a session stands: whether it is over, why, and which arms still run."""

    stop: bool
    reason: str
    active: tuple[str, ...]
    decisions: Mapping[str, Decision]


ArmRunner = Callable[[ArmSpec, int, int], ArmRun]
CostMeter = Callable[[Sequence[str]], Mapping[str, Any]]
Say = Callable[[str], None]


def settled_outcome(blocks: Sequence[Block], arm: str) -> ArmRun | None:
    """The run that settles an arm's outcome without a speed, None while it is open or where it works.

    An arm is settled when it ended the same way, not drafting or not running, in the last blocks it took part in.
    """
    runs = [block.arms[arm] for block in blocks if arm in block.arms][-BLOCKS_TO_SETTLE_AN_OUTCOME:]
    if len(runs) < BLOCKS_TO_SETTLE_AN_OUTCOME:
        return None
    ends = {(run.outcome, run.engagement) for run in runs}
    outcome, engagement = next(iter(ends))
    works = outcome is Outcome.OK and engagement in (Engagement.OFF, Engagement.WITH_DRAFTS)
    return None if len(ends) > 1 or works else runs[-1]


def assess(plan: SessionPlan, blocks: Sequence[Block]) -> State:
    """Decide from the blocks alone whether the session goes on (pure: the same blocks give the same answer)."""
    names = [arm.name for arm in plan.arms]
    settled = {name for name in names if settled_outcome(blocks, name) is not None}
    active = tuple(name for name in names if name not in settled)
    baseline = next(arm.name for arm in plan.arms if arm.kind == "baseline")
    if baseline in settled:
        run = blocks[-1].arms[baseline]
        return State(True, f"the baseline ended as {run.outcome.value} twice: {run.reason}", active, {})
    open_claims = [judged for judged in plan.judged if judged.arm in active]
    if not open_claims and len(blocks) >= BLOCKS_TO_SETTLE_AN_OUTCOME:
        return State(True, "no candidate arm drafts here, so there is no speed to compare", active, {})
    usable = usable_blocks(blocks)
    decisions: dict[str, Decision] = {}
    if len(usable) >= plan.sequential.looks[0]:
        for judged in open_claims:
            effects = arm_effects(usable, judged.arm, judged.prompt_class, judged.metric)
            if effects:
                decisions[_claim_key(judged)] = analyse(effects, plan.sequential, judged.claim)
    if len(blocks) >= plan.most_blocks:
        noisy = len(blocks) - len(usable)
        why = f"the maximum of {plan.most_blocks} blocks was reached" + (f" ({noisy} of them noisy)" if noisy else "")
        return State(True, why, active, decisions)
    if len(usable) in plan.sequential.looks and len(decisions) == len(open_claims):
        if len(usable) == plan.sequential.looks[-1]:
            return State(True, f"the last planned look, after {len(usable)} blocks", active, decisions)
        if all(decision.stop for decision in decisions.values()) and _control_seen(plan, usable):
            return State(True, f"every claim was settled at the look after {len(usable)} blocks", active, decisions)
    return State(False, "", active, decisions)


def _claim_key(judged: Judged) -> str:
    return f"{judged.finding}:{judged.arm}:{judged.prompt_class}"


def _control_seen(plan: SessionPlan, usable: Sequence[Block]) -> bool:
    """Whether the positive control was seen to pay (true where the attempt has none)."""
    controls = [arm.name for arm in plan.arms if arm.kind == "positive_control"]
    return all(control_gate(arm_effects(usable, name, plan.control_class), plan.sequential).passed for name in controls)


def run_session(
    plan: SessionPlan, folder: Path, run_arm: ArmRunner, measure_costs: CostMeter | None, say: Say
) -> Record:
    """Run blocks until `assess` says stop; return the session's record.

    `folder` holds the run folders. Every finished block is on disk before the next begins. The caller writes the record
    and then calls `close_run`: interrupted before that, the same call finds all blocks and measures nothing.
    """
    began = time.monotonic()
    started = utc_now()
    run = open_run(folder, plan)
    blocks = load_blocks(run)
    if blocks:
        say(f"continuing {run.name}: {len(blocks)} blocks are there already")
    while not (state := assess(plan, blocks)).stop:
        number = len(blocks) + 1
        block = run_block(plan, number, state.active, run_arm, measure_costs, say)
        blocks.append(block)
        write_record(run / f"block-{number:03d}.json", _block_record(plan, block))
        say(_progress(plan, number, time.monotonic() - began, len(usable_blocks(blocks))))
    say(f"stopped after {len(blocks)} blocks: {state.reason}")
    return _session_record(plan, run, blocks, state, started, time.monotonic() - began)


def close_run(folder: Path, record: Record) -> None:
    """Mark the run of a session's record as complete: asked for again, the session begins a new run.

    Only after the record is written. A session that could not run has no run, and nothing happens.
    """
    if record.detail.get("run"):
        content = {"key": record.detail["key"], "finished": utc_now()}
        write_text(folder / str(record.detail["run"]) / "complete.json", json.dumps(content) + "\n")


def _progress(plan: SessionPlan, done: int, seconds: float, usable: int) -> str:
    looks = [look for look in plan.sequential.looks if look > usable]
    each = seconds / done
    most = max(plan.most_blocks - done, 0)
    at_least = max((looks[0] - usable) if looks else 0, 0)
    return (
        f"block {done} of at most {plan.most_blocks} done ({usable} on a quiet machine), {each:.0f} s a block; "
        f"next look in {at_least} blocks, {each * at_least:.0f} s; {each * most:.0f} s left at most"
    )


def run_block(
    plan: SessionPlan,
    number: int,
    active: Sequence[str],
    run_arm: ArmRunner,
    measure_costs: CostMeter | None,
    say: Say,
) -> Block:
    """Run every active arm once, in this block's order, then compare the texts with the baseline's."""
    specs = {arm.name: arm for arm in plan.arms}
    order = order_for_block(list(active), number, plan.seed)
    arms: dict[str, ArmRun] = {}
    for position, name in enumerate(order, start=1):
        say(f"block {number}, arm {position} of {len(order)}: {name}")
        arms[name] = run_arm(specs[name], number, position)
    costs = measure_costs(order) if measure_costs is not None and number <= BLOCKS_WITH_COSTS else {}
    baseline = next((arm.name for arm in plan.arms if arm.kind == "baseline"), "")
    return Block(number, tuple(order), plan.seed, plan.key, compare_texts(arms, baseline), costs)


def compare_texts(arms: Mapping[str, ArmRun], baseline: str) -> dict[str, ArmRun]:
    """The arms with the index of the first token that differs from the baseline's answer to the same prompt."""
    texts = {r.prompt_id: r.tokens for r in arms[baseline].requests} if baseline in arms else {}
    compared: dict[str, ArmRun] = {}
    for name, run in arms.items():
        requests = tuple(
            replace(r, first_difference=_difference(texts.get(r.prompt_id, ()), r.tokens)) for r in run.requests
        )
        compared[name] = replace(run, requests=requests)
    return compared


def _difference(baseline: Sequence[int], other: Sequence[int]) -> int | None:
    """`first_difference`, None also where one of the texts was not recorded."""
    return first_difference(baseline, other) if baseline and other else None


def open_run(folder: Path, plan: SessionPlan) -> Path:
    """The unfinished run of this plan's identity, or a new run folder numbered after the last one."""
    folder.mkdir(parents=True, exist_ok=True)
    runs = sorted(path for path in folder.glob("run-*") if path.is_dir())
    for run in reversed(runs):
        if (run / "complete.json").exists() or not (run / "plan.json").exists():
            continue
        if json.loads((run / "plan.json").read_text(encoding="utf-8")).get("key") == plan.key:
            return run
    last = max((int(run.name.removeprefix("run-")) for run in runs), default=0)
    run = folder / f"run-{last + 1:03d}"
    write_text(run / "plan.json", json.dumps({"key": plan.key, "identity": dict(plan.identity)}, indent=1) + "\n")
    return run


def load_blocks(run: Path) -> list[Block]:
    """The finished blocks of a run in their order."""
    return [block_from_json(read_record(path).detail) for path in sorted(run.glob("block-*.json"))]


def _block_record(plan: SessionPlan, block: Block) -> Record:
    return Record(
        Kind.BLOCK,
        f"{plan.attempt}/{plan.engine}/{block.block}",
        Outcome.OK,
        host=plan.host,
        study=plan.study,
        attempt=plan.attempt,
        engine=plan.engine,
        started=min((run.started for run in block.arms.values() if run.started), default=utc_now()),
        seconds=sum(run.startup_s + run.engine_wall_s for run in block.arms.values()),
        detail=block_to_json(block),
    )


def _session_record(
    plan: SessionPlan, run: Path, blocks: Sequence[Block], state: State, started: str, seconds: float
) -> Record:
    baseline = next(arm.name for arm in plan.arms if arm.kind == "baseline")
    failed = settled_outcome(blocks, baseline)
    arms: dict[str, Any] = {}
    for spec in plan.arms:
        runs = [block.arms[spec.name] for block in blocks if spec.name in block.arms]
        last = runs[-1] if runs else None
        arms[spec.name] = {
            "kind": spec.kind,
            "speculation": spec.speculation,
            "outcome": last.outcome.value if last else Outcome.NOT_RUN.value,
            "engagement": last.engagement.value if last else "",
            "reason": last.reason if last else "",
            "blocks": len(runs),
        }
    return Record(
        Kind.SESSION,
        f"{plan.attempt}/{plan.engine}",
        failed.outcome if failed else Outcome.OK,
        reason=state.reason,
        host=plan.host,
        study=plan.study,
        attempt=plan.attempt,
        engine=plan.engine,
        started=started,
        seconds=seconds,
        detail={
            "run": run.name,
            "key": plan.key,
            "identity": dict(plan.identity),
            "blocks": len(blocks),
            "usable_blocks": len(usable_blocks(blocks)),
            "stop_reason": state.reason,
            "looks": list(plan.sequential.looks),
            "arms": arms,
        },
    )
