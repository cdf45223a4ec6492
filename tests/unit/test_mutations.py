"""The analysis broken on purpose: a battery of checks must accept the real one and reject every broken one.

The checks go the whole way that data take, from blocks as they are recorded to the verdict of `judge_speed`, and each
mutant replaces one function on that way with a wrong one that somebody might write. A mutant that passes the battery
would be a hole in the tests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from scipy.special import ndtr

from builders import arm_run, block, request
from findings import design, effects, gates, inference, session, simulation, verdicts
from findings.blocks import ArmRun, Block, block_to_json
from findings.config import Configuration, load_configuration
from findings.gates import Gate
from findings.inference import GateResult, Request, SequentialPlan, Verdict
from findings.records import Engagement, Kind, Outcome, Record
from findings.verdicts import HostRecords, Judgement

Patch = pytest.MonkeyPatch
JITTER = (0.004, -0.006, 0.002, 0.005, -0.003, -0.004, 0.006, -0.001)
MACHINE = (1.0, 0.9, 1.1, 0.95, 1.05, 0.97, 1.02, 0.93)
CONTROL_GAIN = math.log(2.3)


# --- data with a known truth ---------------------------------------------------------------------------------------


def jitter(number: int, shift: int) -> float:
    return JITTER[(number + shift) % len(JITTER)]


def speeds_to_run(name: str, kind: str, speeds: Mapping[str, float], drafted: int | None) -> ArmRun:
    """One run with a request per prompt; a prompt id is `class-number`."""
    asked = tuple(request(p, p.rpartition("-")[0], speed, drafted) for p, speed in speeds.items())
    return replace(arm_run(name, kind, drafted=drafted), requests=asked)


def make_blocks(
    d: Sequence[float],
    *,
    null: float = 0.0,
    control: float = CONTROL_GAIN,
    baseline: Mapping[str, float] = {"prose-1": 50.0, "list-1": 50.0},
    candidate: Mapping[str, float] | None = None,
) -> list[Block]:
    """Blocks of four arms. `d`: ln ratio of the candidate per block, on top of `candidate` (else of the baseline)."""
    blocks = []
    for number, ratio in enumerate(d):
        machine = MACHINE[number % len(MACHINE)]

        def scaled(speeds: Mapping[str, float], ln: float, machine: float = machine) -> dict[str, float]:
            return {prompt: speed * machine * math.exp(ln) for prompt, speed in speeds.items()}

        runs = [
            speeds_to_run("baseline", "baseline", scaled(baseline, 0.0), None),
            speeds_to_run("null", "null", scaled(baseline, null + jitter(number, 2)), None),
            speeds_to_run("list", "positive_control", scaled(baseline, control + jitter(number, 5)), 40),
            speeds_to_run("draft", "candidate", scaled(candidate or baseline, ratio), 20),
        ]
        blocks.append(block(number + 1, runs))
    return blocks


def around(effect: float, blocks: int = 4) -> list[float]:
    """`blocks` ln ratios close to ln(1 + effect)."""
    return [math.log1p(effect) + jitter(number, 0) for number in range(blocks)]


ATTEMPT, FINDING = "attempt_2", "attempt_2_does_not_pay"
REPOSITORY = load_configuration(Path(__file__).resolve().parents[2])


def configuration(looks: tuple[int, ...], prompt_class: str) -> Configuration:
    """The repository's own, with these looks and one finding alone."""
    protocol = replace(REPOSITORY.study.protocol, looks=looks, max_blocks=looks[-1], predict_tokens=64)
    finding = replace(REPOSITORY.findings[FINDING], prompt_class=prompt_class)
    return replace(REPOSITORY, study=replace(REPOSITORY.study, protocol=protocol), findings={FINDING: finding})


def judged(blocks: Sequence[Block], looks: tuple[int, ...] = (4, 8), prompt_class: str = "all") -> Judgement:
    """The verdict of these blocks, by the way that recorded ones take."""
    settings = configuration(looks, prompt_class)
    (engine,) = settings.study.attempts[ATTEMPT].measure
    arms = {arm.id: {"outcome": "ok", "reason": ""} for arm in settings.arms_of(ATTEMPT)}
    folder = f"measure/{ATTEMPT}/{engine}"
    session_record = Record(Kind.SESSION, "", Outcome.OK, detail={"run": "run-001", "arms": arms})
    records = {f"{folder}/session.json": session_record}
    for item in blocks:
        path = f"{folder}/run-001/block-{item.block:03d}.json"
        records[path] = Record(Kind.BLOCK, path, Outcome.OK, detail=block_to_json(item))
    (found,) = verdicts.judge_speed(settings, settings.findings[FINDING], HostRecords("h", records))
    return found


# --- the battery ---------------------------------------------------------------------------------------------------


def check_slower() -> None:
    found = judged(make_blocks(around(-0.33)))
    assert found.verdict is Verdict.HOLDS
    assert found.decision is not None
    assert found.decision.interval is not None
    assert found.decision.interval.mean == pytest.approx(math.log1p(-0.33), abs=0.01)


def check_faster() -> None:
    assert judged(make_blocks(around(0.47))).verdict is Verdict.NO_LONGER_HOLDS


def check_gain_below_the_margin() -> None:
    assert judged(make_blocks(around(0.03))).verdict is Verdict.HOLDS


def check_one_bad_block_stays() -> None:
    found = judged(make_blocks([0.30, 0.28, -0.40, 0.31, 0.29]), looks=(4,))
    assert found.verdict is Verdict.INCONCLUSIVE
    assert found.decision is not None
    assert found.decision.blocks == 5


def check_one_good_block_stays() -> None:
    assert judged(make_blocks([-0.30, -0.28, 0.40, -0.31, -0.29]), looks=(4,)).verdict is Verdict.INCONCLUSIVE


def check_seconds_count_within_a_class() -> None:
    # 128 tokens in 7.0 s against 8.5 s: slower, although the mean of the two rates rises from 55 to 74.
    slow_and_fast = {"prose-1": 10.0, "prose-2": 100.0}
    found = judged(make_blocks(around(0.0), baseline=slow_and_fast, candidate={"prose-1": 8.0, "prose-2": 140.0}))
    assert found.verdict is Verdict.HOLDS
    assert found.decision is not None
    assert found.decision.interval is not None
    assert found.decision.interval.mean == pytest.approx(math.log(7.04 / (8 + 64 / 140)), abs=0.01)


def check_classes_weigh_the_same() -> None:
    # A fifth slower in a slow class, half as fast again in a fast one: +9.5 %; all tokens in one pot say -16 %.
    found = judged(
        make_blocks(
            around(0.0), baseline={"prose-1": 10.0, "list-1": 100.0}, candidate={"prose-1": 8.0, "list-1": 150.0}
        )
    )
    assert found.verdict is Verdict.NO_LONGER_HOLDS


def check_twice_and_half_is_nothing() -> None:
    both = {"prose-1": 50.0, "list-1": 50.0}
    found = judged(make_blocks(around(0.0), baseline=both, candidate={"prose-1": 100.0, "list-1": 25.0}))
    assert found.verdict is Verdict.HOLDS
    assert "no change" in found.reason


def check_the_class_asked_for() -> None:
    both = {"prose-1": 50.0, "list-1": 50.0}
    data = make_blocks(around(0.0), baseline=both, candidate={"prose-1": 30.0, "list-1": 100.0})
    assert judged(data, prompt_class="prose").verdict is Verdict.HOLDS
    assert judged(data, prompt_class="list").verdict is Verdict.NO_LONGER_HOLDS


def check_blocks_are_the_unit() -> None:
    # Within a process the requests agree to a few per mille; between blocks the ratio wanders by a quarter.
    prompts = {f"prose-{i}": 50.0 * (1 + jitter(i, 0)) for i in range(6)}
    assert judged(make_blocks([0.45, 0.15, 0.5, 0.0], baseline=prompts)).verdict is Verdict.INCONCLUSIVE


def check_noise_is_no_evidence() -> None:
    assert judged(make_blocks([0.3, -0.25, 0.2, -0.28])).verdict is Verdict.INCONCLUSIVE


def check_four_blocks_have_three_degrees_of_freedom() -> None:
    d = [0.049 + 0.12 + deviation for deviation in (0.08, -0.08, 0.06, -0.06)]
    assert 2.5 < stats.ttest_1samp(d, math.log(1.05)).statistic < 4.0
    assert judged(make_blocks(d)).verdict is Verdict.INCONCLUSIVE


def check_error_rate_under_peeking() -> None:
    rng = np.random.default_rng(21)
    plan = SequentialPlan()
    d = simulation.sessions(rng, 3000, plan.max_blocks, 0.05)[:, :, simulation.CANDIDATE] + math.log(1.05)
    found = simulation.judge(d, plan).verdict
    assert (found == simulation.NO_LONGER).mean() <= stats.binom.ppf(0.9999, 3000, 0.025) / 3000
    assert (found == simulation.HOLDS).mean() <= stats.binom.ppf(0.9999, 3000, 0.05) / 3000


def check_most_blocks_must_have_a_result() -> None:
    data = make_blocks(around(0.47, 8))
    dead = [replace(b, arms=b.arms | {"draft": replace(b.arms["draft"], outcome=Outcome.CRASHED)}) for b in data[:4]]
    assert judged(dead[:4] + data[4:]).verdict is Verdict.INCONCLUSIVE


def check_warm_up_is_not_counted() -> None:
    data = []
    for item in make_blocks(around(0.47)):
        arms = {
            name: replace(run, requests=(request("warm-up", "prose", 1.0, counted=False), *run.requests))
            for name, run in item.arms.items()
        }
        data.append(replace(item, arms=arms))
    assert judged(data, prompt_class="prose").verdict is Verdict.NO_LONGER_HOLDS


def check_the_order_is_balanced() -> None:
    arms = ["baseline", "null", "list", "draft"]
    orders = [session.order_for_block(arms, number, 20260506) for number in range(1, 5)]
    assert all({order[place] for order in orders} == set(arms) for place in range(4))


def check_six_findings_are_corrected_for() -> None:
    rows = []
    for number in range(6):
        # Each settled on its own (p about 0.03), together far from enough.
        decision = replace(inference.analyse(around(-0.33), SequentialPlan()), p_holds=0.03)
        finding: Any = SimpleNamespace(id=f"f{number}")
        rows.append((finding, Judgement(Verdict.HOLDS, "", engine="e", decision=decision)))
    assert {j.verdict for _, j in verdicts.settle_family(rows, 0.05)} == {Verdict.INCONCLUSIVE}


def in_arm(data: Sequence[Block], arm: str, **changes: Any) -> list[Block]:
    """The blocks with fields of one arm's runs replaced."""
    return [replace(item, arms=item.arms | {arm: replace(item.arms[arm], **changes)}) for item in data]


def in_requests(data: Sequence[Block], arm: str, **changes: Any) -> list[Block]:
    """The blocks with fields of one arm's requests replaced."""
    return [
        replace(
            item,
            arms=item.arms
            | {arm: replace(item.arms[arm], requests=tuple(replace(r, **changes) for r in item.arms[arm].requests))},
        )
        for item in data
    ]


def spoiled() -> dict[str, list[Block]]:
    """Sessions that would give a clear verdict, each spoiled so that one gate must fire: {gate: blocks}."""
    good = make_blocks(around(-0.33, 5))
    idle = in_arm(good[4:], "draft", engagement=Engagement.WITHOUT_DRAFTS)
    throttled = {"memory_available_share": 0.8, "gpu": {"throttle_reasons": ["hw_thermal_slowdown"]}}
    twice = [
        replace(item, arms={n: replace(run, requests=run.requests + run.requests[:1]) for n, run in item.arms.items()})
        for item in good
    ]
    return {
        "null_equal": make_blocks(around(-0.33), null=0.2),
        "control_pays": make_blocks(around(-0.33), control=0.0),
        "drafter_engaged": [*good[:4], *idle],
        "machine_quiet": in_arm(good, "draft", other_cpu_share=0.5),
        "token_count": in_requests(good, "draft", predicted_n=32),
        "text_not_degenerate": in_requests(good, "baseline", degenerate=True),
        "same_bytes": in_arm(good, "draft", model_sha256="b" * 64),
        "same_settings": in_arm(good, "draft", settings={"n_ctx": 4096}),
        "prompts_fresh": twice,
        "memory_headroom": in_arm(good, "draft", swap_bytes=1 << 20),
        "clocks_steady": in_arm(good, "draft", machine=throttled),
        "backend_as_asked": in_arm(good, "draft", settings={"n_ctx": 2048, "backend_used": "vulkan"}),
    }


def check_gate(name: str) -> Callable[[], None]:
    def check() -> None:
        found = judged(spoiled()[name])
        assert found.verdict is Verdict.INCONCLUSIVE
        assert name in found.failed_gates

    return check


BATTERY: dict[str, Callable[[], None]] = {
    "slower": check_slower,
    "faster": check_faster,
    "gain below the margin": check_gain_below_the_margin,
    "one bad block stays": check_one_bad_block_stays,
    "one good block stays": check_one_good_block_stays,
    "seconds count within a class": check_seconds_count_within_a_class,
    "classes weigh the same": check_classes_weigh_the_same,
    "twice and half is nothing": check_twice_and_half_is_nothing,
    "the class asked for": check_the_class_asked_for,
    "blocks are the unit": check_blocks_are_the_unit,
    "noise is no evidence": check_noise_is_no_evidence,
    "three degrees of freedom": check_four_blocks_have_three_degrees_of_freedom,
    "error rate under peeking": check_error_rate_under_peeking,
    "most blocks must have a result": check_most_blocks_must_have_a_result,
    "warm-up is not counted": check_warm_up_is_not_counted,
    "the order is balanced": check_the_order_is_balanced,
    "six findings are corrected for": check_six_findings_are_corrected_for,
    **{f"gate {name}": check_gate(name) for name in spoiled()},
}


# --- the mutants ---------------------------------------------------------------------------------------------------

REAL_BLOCK_EFFECTS = inference.block_effects
REAL_ARM_EFFECTS = effects.arm_effects
REAL_STANDARD_ERROR = inference._standard_error
REAL_ANALYSE = inference.analyse


def swap_arms(patch: Patch) -> None:
    patch.setattr(inference, "block_effects", lambda arm, baseline: REAL_BLOCK_EFFECTS(baseline, arm))


def candidate_is_the_null_arm(patch: Patch) -> None:
    patch.setattr(
        verdicts, "arm_effects", lambda b, arm, c="all", *m: REAL_ARM_EFFECTS(b, "null" if arm == "draft" else arm, c)
    )


def drop_worst_block(patch: Patch) -> None:
    def without_worst(b: Sequence[Block], arm: str, c: str = "all", *m: Any) -> list[float]:
        values = REAL_ARM_EFFECTS(b, arm, c)
        return [value for value in values if value != min(values)]

    patch.setattr(verdicts, "arm_effects", without_worst)


def drop_best_block(patch: Patch) -> None:
    def without_best(b: Sequence[Block], arm: str, c: str = "all", *m: Any) -> list[float]:
        values = REAL_ARM_EFFECTS(b, arm, c)
        return [value for value in values if value != max(values)]

    patch.setattr(verdicts, "arm_effects", without_best)


def drop_outliers(patch: Patch) -> None:
    def without_outliers(d: Sequence[float], *rest: Any) -> inference.Decision:
        far = inference._outliers(d)
        return REAL_ANALYSE([value for i, value in enumerate(d, 1) if i not in far], *rest)

    patch.setattr(verdicts, "analyse", without_outliers)


def mean_of_rates(patch: Patch) -> None:
    def mean(requests: Sequence[Request]) -> float:
        return sum(r.tokens / r.seconds for r in requests) / len(requests)

    patch.setattr(inference, "class_speed", mean)


def one_pot(patch: Patch) -> None:
    def pooled(arm: Sequence[Request], baseline: Sequence[Request]) -> dict[str, float]:
        found = REAL_BLOCK_EFFECTS(arm, baseline)
        return found | {"all": math.log(inference.class_speed(arm) / inference.class_speed(baseline))}

    patch.setattr(inference, "block_effects", pooled)


def mean_of_ratios(patch: Patch) -> None:
    def ratios(arm: Sequence[Request], baseline: Sequence[Request]) -> dict[str, float]:
        found = REAL_BLOCK_EFFECTS(arm, baseline)
        classes = [math.exp(value) for name, value in found.items() if name != "all"]
        return found | {"all": math.log(sum(classes) / len(classes))}

    patch.setattr(inference, "block_effects", ratios)


def all_instead_of_the_class(patch: Patch) -> None:
    patch.setattr(verdicts, "arm_effects", lambda b, arm, c="all", *m: REAL_ARM_EFFECTS(b, arm, "all"))


def requests_as_blocks(patch: Patch) -> None:
    """The within-process variance: every request counts as if it were a block of its own."""

    def per_request(b: Sequence[Block], arm: str, c: str = "all", *m: Any) -> list[float]:
        values = []
        for item in b:
            plain = {r.prompt_id: r for r in item.arms["baseline"].requests}
            for r in item.arms[arm].requests:
                values.append(math.log(plain[r.prompt_id].predicted_ms / r.predicted_ms))
        return values

    patch.setattr(verdicts, "arm_effects", per_request)


def error_of_the_requests(patch: Patch) -> None:
    """The standard error divided by the root of the number of requests instead of blocks."""
    patch.setattr(inference, "_standard_error", lambda values: REAL_STANDARD_ERROR(values) / math.sqrt(6))


def no_difference_seen_is_no_difference(patch: Patch) -> None:
    real = inference._verdict

    def lazy(evidence: Any, plan: SequentialPlan, look: int) -> Verdict:
        found = real(evidence, plan, look)
        return Verdict.HOLDS if found is Verdict.INCONCLUSIVE else found

    patch.setattr(inference, "_verdict", lazy)


def one_sided_equivalence(patch: Patch) -> None:
    """Anything whose upper bound is below the margin holds, even where the lower one is far away."""
    real = inference._verdict

    def one_side(evidence: Any, plan: SequentialPlan, look: int) -> Verdict:
        found = real(evidence, plan, look)
        return Verdict.HOLDS if found is Verdict.INCONCLUSIVE and evidence.loses < 0.6 else found

    patch.setattr(inference, "_verdict", one_side)


def normal_instead_of_t(patch: Patch) -> None:
    patch.setattr(inference, "stdtr", lambda _, t: ndtr(t))


def no_margin(patch: Patch) -> None:
    patch.setattr(SequentialPlan, "upper_margin", 0.0)


def peek_without_paying(patch: Patch) -> None:
    patch.setattr(SequentialPlan, "shares", lambda plan: tuple(1.0 for _ in plan.looks))


def forget_missing_blocks(patch: Patch) -> None:
    patch.setattr(inference, "LARGEST_MISSING_SHARE", 1.0)


def count_the_warm_up(patch: Patch) -> None:
    real = inference.requests_of_arm
    patch.setattr(
        inference,
        "requests_of_arm",
        lambda arm, *more: real({"requests": [dict(raw, counted=True) for raw in arm.get("requests", ())]}, *more),
    )


def fixed_order(patch: Patch) -> None:
    patch.setattr(session, "order_for_block", lambda arms, block, seed: list(arms))


def rotate_by_a_clock(patch: Patch) -> None:
    """The second half of the blocks repeats the first one's order."""
    patch.setattr(
        session, "order_for_block", lambda arms, block, seed: design.order_for_block(arms, block // 2 + 1, seed)
    )


def no_holm(patch: Patch) -> None:
    patch.setattr(verdicts, "holm", lambda p, alpha: dict.fromkeys(p, True))


def no_gates(patch: Patch) -> None:
    patch.setattr(verdicts, "session_gates", lambda *_: [])


def ignore_gate(name: str) -> Callable[[Patch], None]:
    def mutate(patch: Patch) -> None:
        if name == "null_equal":
            patch.setattr(verdicts, "null_gate", lambda *_: GateResult("null_arm", True, "", None))
        elif name == "control_pays":
            patch.setattr(verdicts, "control_gate", lambda *_: GateResult("positive_control", True, "", None))
        else:
            home = verdicts if name == "drafter_engaged" else gates
            assert hasattr(home, name)
            patch.setattr(home, name, lambda *_: Gate(name, True, ""))

    return mutate


MUTANTS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "swap the arms": (swap_arms, "slower"),
    "swap the arms, seen from a gain": (swap_arms, "faster"),
    "judge the null arm": (candidate_is_the_null_arm, "slower"),
    "drop the worst block": (drop_worst_block, "one bad block stays"),
    "drop the best block": (drop_best_block, "one good block stays"),
    "drop outliers": (drop_outliers, "one bad block stays"),
    "mean of the rates": (mean_of_rates, "seconds count within a class"),
    "all tokens in one pot": (one_pot, "classes weigh the same"),
    "mean of the ratios": (mean_of_ratios, "twice and half is nothing"),
    "all classes instead of one": (all_instead_of_the_class, "the class asked for"),
    "within-process variance": (requests_as_blocks, "blocks are the unit"),
    "root of the requests": (error_of_the_requests, "blocks are the unit"),
    "no difference seen is no difference": (no_difference_seen_is_no_difference, "noise is no evidence"),
    "one-sided equivalence": (one_sided_equivalence, "noise is no evidence"),
    "normal instead of t": (normal_instead_of_t, "three degrees of freedom"),
    "no margin": (no_margin, "gain below the margin"),
    "peek without paying": (peek_without_paying, "error rate under peeking"),
    "forget missing blocks": (forget_missing_blocks, "most blocks must have a result"),
    "count the warm-up": (count_the_warm_up, "warm-up is not counted"),
    "fixed order": (fixed_order, "the order is balanced"),
    "an order twice": (rotate_by_a_clock, "the order is balanced"),
    "no Holm": (no_holm, "six findings are corrected for"),
    "no gates": (no_gates, "gate null_equal"),
    **{f"ignore gate {name}": (ignore_gate(name), f"gate {name}") for name in spoiled()},
}


def test_the_real_analysis_passes_every_check() -> None:
    for check in BATTERY.values():
        check()


@pytest.mark.parametrize("name", list(MUTANTS))
def test_a_broken_analysis_is_rejected(name: str, monkeypatch: Patch) -> None:
    mutate, by = MUTANTS[name]
    mutate(monkeypatch)
    # By an assertion: a mutant that merely crashes would prove nothing.
    with pytest.raises(AssertionError):
        BATTERY[by]()


def test_every_check_has_a_mutant_that_it_rejects() -> None:
    assert {by for _, by in MUTANTS.values()} == set(BATTERY)
