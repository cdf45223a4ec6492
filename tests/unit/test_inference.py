"""Block effects, the sequential rule, its p values, Holm and the gates of arms, on numbers to check by hand."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from findings.inference import (
    DOES_NOT_PAY,
    PAYS,
    Claim,
    Decision,
    Metric,
    Request,
    SequentialPlan,
    Verdict,
    analyse,
    block_effects,
    blocks_needed,
    class_speed,
    control_gate,
    effects_of_block,
    holm,
    holm_verdicts,
    null_gate,
    requests_of_arm,
    t_interval,
)

PLAN = SequentialPlan()
NAN = math.nan
VALUES = st.lists(st.floats(-2, 2) | st.just(NAN), max_size=16)


def request(prompt: str, prompt_class: str, speed: float, tokens: int = 64, ok: bool = True) -> Request:
    return Request(prompt, prompt_class, tokens, tokens / speed, ok)


# --- one block ---------------------------------------------------------------------------------------------------


def test_speed_of_a_class_is_all_tokens_over_all_seconds() -> None:
    # 64 tokens at 10/s take 6.4 s, 64 at 40/s take 1.6 s: 128 tokens in 8 s. The mean of the rates would say 25.
    assert class_speed([request("a", "prose", 10.0), request("b", "prose", 40.0)]) == pytest.approx(16.0)


def test_all_is_the_geometric_mean_over_the_classes() -> None:
    baseline = [request("a", "prose", 20.0), request("b", "code", 20.0), request("c", "list", 20.0)]
    arm = [request("a", "prose", 40.0), request("b", "code", 10.0)]
    found = block_effects(arm, baseline)
    assert found["prose"] == pytest.approx(math.log(2))
    assert found["code"] == pytest.approx(-math.log(2))
    assert found["all"] == pytest.approx(0.0)
    assert "list" not in found


def test_a_failed_request_takes_its_class_and_all_with_it() -> None:
    baseline = [request("a", "prose", 20.0), request("b", "code", 20.0)]
    arm = [request("a", "prose", 40.0), request("b", "code", 10.0, ok=False)]
    found = block_effects(arm, baseline)
    assert found["prose"] == pytest.approx(math.log(2))
    assert math.isnan(found["code"])
    assert math.isnan(found["all"])


def test_other_prompts_are_no_comparison() -> None:
    found = block_effects([request("a", "prose", 40.0)], [request("b", "prose", 20.0)])
    assert math.isnan(found["prose"])
    assert math.isnan(block_effects([], [])["all"])


def test_a_repeated_prompt_is_no_measurement() -> None:
    twice = [request("a", "prose", 40.0), request("a", "prose", 41.0)]
    once = [request("a", "prose", 20.0)]
    assert math.isnan(block_effects(twice, once)["all"])
    assert math.isnan(block_effects(twice, twice)["all"])


def arm_of_record(speed: float, outcome: str = "ok") -> dict[str, Any]:
    def one(prompt: str, counted: bool) -> dict[str, Any]:
        milliseconds = 64_000 / speed if counted else 9e9
        return {"prompt_id": prompt, "prompt_class": "prose", "counted": counted, "outcome": "ok", "predicted_n": 64,
                "predicted_ms": milliseconds, "prompt_n": 100, "prompt_ms": 10 * speed}  # fmt: skip

    return {"outcome": outcome, "requests": [one("warm-up", False), one("prose-1", True)]}


def test_effects_come_from_the_block_record_and_warm_up_is_left_out() -> None:
    detail = {
        "arms": {"baseline": arm_of_record(20.0), "draft": arm_of_record(17.4), "dead": arm_of_record(9.0, "crashed")}
    }
    found = effects_of_block(detail)
    assert set(found) == {"draft", "dead"}
    assert found["draft"]["all"] == pytest.approx(math.log(0.87))
    assert math.isnan(found["dead"]["all"])
    assert [r.prompt_id for r in requests_of_arm(arm_of_record(20.0))] == ["prose-1"]


def test_the_speed_of_reading_the_prompt_is_another_metric() -> None:
    detail = {"arms": {"baseline": arm_of_record(20.0), "vulkan": arm_of_record(40.0)}}
    assert effects_of_block(detail)["vulkan"]["all"] == pytest.approx(math.log(2))
    assert effects_of_block(detail, metric=Metric.PROMPT)["vulkan"]["all"] == pytest.approx(-math.log(2))
    assert Metric("pp") is Metric.PROMPT


# --- the plan ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("looks", [(4, 6, 8, 12), (3,), (4, 6, 8, 12, 16, 24, 36, 48, 64)])
def test_the_shares_of_the_looks_add_up(looks: tuple[int, ...]) -> None:
    plan = SequentialPlan(looks=looks)
    assert sum(plan.shares()) == pytest.approx(1.0)
    assert min(plan.shares()) > 0
    levels = [plan.two_sided_level(i) for i in range(len(looks))]
    assert 2 * sum(levels) == pytest.approx(plan.alpha)


@pytest.mark.parametrize(
    ("changes", "word"),
    [({"looks": ()}, "looks"), ({"looks": (4, 4)}, "looks"), ({"looks": (1, 4)}, "looks"), ({"alpha": 0.0}, "alpha"),
     ({"equivalence_alpha": 0.5}, "equivalence_alpha"), ({"margin": 5.0}, "margin"), ({"family": 0}, "family")],
)  # fmt: skip
def test_senseless_plans_are_refused(changes: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        SequentialPlan(**changes)


# --- the rule ----------------------------------------------------------------------------------------------------


def test_interval_is_the_textbook_one() -> None:
    values = [0.1, 0.2, 0.15, 0.05, 0.3]
    expected = stats.t.interval(0.95, 4, loc=np.mean(values), scale=stats.sem(values))
    found = t_interval(values, 0.025)
    assert (found.low, found.high) == pytest.approx(expected)
    assert found.percent[0] == pytest.approx(100 * math.expm1(0.16))


NOISE = (0.01, -0.02, 0.015, -0.005)


def near(effect: float, scale: float = 1.0) -> list[float]:
    return [math.log1p(effect) + scale * noise for noise in NOISE]


@pytest.mark.parametrize(
    ("effect", "scale", "expected"),
    [(-0.73, 1, "holds"), (-0.33, 1, "holds"), (-0.13, 1, "holds"), (0.0, 1, "holds"), (0.04, 1, "inconclusive"),
     (0.0, 5, "inconclusive"), (0.055, 1, "inconclusive"), (0.27, 1, "no_longer_holds"), (0.47, 1, "no_longer_holds")],
)  # fmt: skip
def test_verdicts_at_the_first_look(effect: float, scale: float, expected: str) -> None:
    found = analyse(near(effect, scale), PLAN)
    assert found.decision == expected
    assert found.stop is (expected != "inconclusive")
    assert found.look == (4 if found.stop else 0)
    assert (found.p_value <= PLAN.alpha) is found.stop
    assert (found.blocks_needed is None) is found.stop


def test_the_reason_has_the_numbers() -> None:
    assert analyse(near(-0.33), PLAN).reason == "Settled after 4 blocks: -33.0 % (-35.3 to -30.7 %), all of it below 0."
    assert "all of it above +5.0 %" in analyse(near(0.47), PLAN).reason
    assert "within 5.0 % of no change" in analyse(near(0.0), PLAN).reason
    open_one = analyse(near(0.0, 5), PLAN)
    assert "next look after 6" in open_one.reason
    assert open_one.blocks_needed is not None
    assert f"about {open_one.blocks_needed - 4} more would settle it" in open_one.reason


def test_the_rule_by_hand_at_the_first_look() -> None:
    values = near(0.27, 3)
    error = stats.sem(values)
    bound = np.mean(values) - stats.t.ppf(1 - 0.025 * PLAN.shares()[0], 3) * error
    found = analyse(values, PLAN)
    assert found.interval is not None
    assert found.interval.low == pytest.approx(bound)
    assert (found.decision is Verdict.NO_LONGER_HOLDS) == (bound > math.log(1.05))


def test_pays_is_the_same_evidence_with_the_words_exchanged() -> None:
    for effect, expected in ((0.27, Verdict.HOLDS), (-0.13, Verdict.NO_LONGER_HOLDS), (0.0, Verdict.NO_LONGER_HOLDS)):
        one, other = analyse(near(effect), PLAN, PAYS), analyse(near(effect), PLAN, DOES_NOT_PAY)
        assert one.decision is expected
        assert (one.p_holds, one.p_no_longer_holds) == (other.p_no_longer_holds, other.p_holds)
        assert one.leaning is expected


@settings(deadline=None)
@given(VALUES, st.sampled_from(list(Claim)), st.integers(1, 6))
def test_any_data_give_a_whole_decision(d: list[float], claim: Claim, family: int) -> None:
    plan = SequentialPlan(family=family)
    found = analyse(d, plan, claim)
    assert found.blocks + found.missing == len(d)
    assert found.reason
    assert 0 <= found.p_value <= 1
    assert found.decision is not Verdict.NOT_TESTABLE
    assert found.decision is Verdict.INCONCLUSIVE or found.stop
    if found.look:
        assert found.decision is found.leaning
        assert found.p_value <= plan.alpha / family * (1 + 1e-9)
        assert found.blocks_needed is None
    if found.interval is not None and found.decision is not Verdict.INCONCLUSIVE:
        gains = (found.decision is Verdict.HOLDS) == (claim is PAYS)
        assert found.interval.low > plan.upper_margin if gains else found.interval.high < plan.upper_margin


@settings(deadline=None)
@given(VALUES)
def test_an_open_decision_has_a_p_value_above_the_line(d: list[float]) -> None:
    found = analyse(d, PLAN)
    if found.decision is Verdict.INCONCLUSIVE:
        assert found.p_value >= PLAN.alpha * (1 - 1e-9)


@pytest.mark.parametrize("d", [[], [0.1], [NAN] * 3, [-0.5] * 4, [math.inf, 0.1]])
def test_what_is_no_data_is_inconclusive(d: list[float]) -> None:
    found = analyse(d, PLAN)
    assert found.decision is Verdict.INCONCLUSIVE
    assert not found.stop
    assert found.p_value == 1.0


def test_identical_blocks_are_no_measurement() -> None:
    found = analyse([-0.5] * 12, PLAN)
    assert found.decision is Verdict.INCONCLUSIVE
    assert found.stop
    assert "same value to the last digit" in found.reason


def test_blocks_without_a_result_are_counted_and_too_many_of_them_forbid_a_verdict() -> None:
    found = analyse([*near(-0.33), NAN], PLAN)
    assert (found.decision, found.blocks, found.missing) == (Verdict.HOLDS, 4, 1)
    found = analyse([NAN, *near(-0.33), NAN], PLAN)
    assert found.decision is Verdict.INCONCLUSIVE
    assert "2 of 6 blocks have no result" in found.reason
    assert analyse([NAN] * 4, PLAN).stop


def test_one_outlier_stays_in_and_is_named() -> None:
    d = [*near(0.27), 0.25, -0.9]
    found = analyse(d, SequentialPlan(looks=(6,)))
    assert found.outliers == (6,)
    assert found.nominal is not None
    assert found.nominal.mean == pytest.approx(np.mean(d))
    assert found.decision is Verdict.INCONCLUSIVE


def test_the_first_look_that_settles_counts_and_later_noise_does_not_undo_it() -> None:
    found = analyse([*near(-0.33), 0.0, -0.9, 0.1], PLAN)
    assert (found.decision, found.look, found.blocks) == (Verdict.HOLDS, 4, 7)
    assert found.interval is not None
    assert found.interval.blocks == 4


def test_looks_that_contradict_each_other_settle_nothing() -> None:
    d = [*near(-0.2), *(0.6 + noise for noise in NOISE), *(0.6 + noise for noise in NOISE)]
    d = [*d, *[0.6 + 0.01 * i for i in range(28)]]
    found = analyse(d, SequentialPlan(looks=(4, 40)))
    assert found.decision is Verdict.INCONCLUSIVE
    assert "contradict" in found.reason
    assert found.p_value == 1.0


def test_between_looks_nothing_is_decided() -> None:
    assert analyse(near(-0.33)[:3], PLAN).decision is Verdict.INCONCLUSIVE
    five = [*near(0.0, 5), 0.01]
    assert "next look after 6" in analyse(five, PLAN).reason


def test_a_family_makes_it_harder() -> None:
    d = near(-0.13, 2)
    assert analyse(d, PLAN).decision is Verdict.HOLDS
    assert analyse(d, SequentialPlan(family=20)).decision is Verdict.INCONCLUSIVE
    assert analyse(d, SequentialPlan(family=20)).p_value == analyse(d, PLAN).p_value


# --- blocks needed -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("effect", "sd"), [(-0.05, 0.1), (0.0, 0.1), (0.0, 0.03), (0.15, 0.1), (0.10, 0.2)])
def test_so_many_blocks_do_settle_it_about_four_times_in_five(effect: float, sd: float) -> None:
    plan = SequentialPlan(looks=(12,))
    needed = blocks_needed(math.log1p(effect), sd, plan)
    assert needed is not None
    rng = np.random.default_rng(7)
    then = SequentialPlan(looks=(needed,))
    decided = np.mean([analyse(list(rng.normal(math.log1p(effect), sd, needed)), then).look > 0 for _ in range(400)])
    assert 0.72 <= decided <= 0.97


def test_blocks_needed_grow_with_the_noise_and_end_somewhere() -> None:
    needed = [blocks_needed(0.15, sd, PLAN) for sd in (0.02, 0.05, 0.1, 0.2)]
    assert None not in needed
    assert needed == sorted(needed, key=lambda n: n or 0)
    assert blocks_needed(PLAN.upper_margin, 0.1, PLAN) is None
    assert blocks_needed(0.2, 50.0, PLAN) is None
    assert blocks_needed(-0.3, 0.01, PLAN, at_least=12) == 13


# --- Holm --------------------------------------------------------------------------------------------------------


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005}) == {"a": True, "b": False, "c": False, "d": True}
    assert holm({"a": 0.04}) == {"a": True}
    assert holm({}) == {}
    # The first one that fails stops it, even where a later one would pass its own line.
    assert holm({"a": 0.03, "b": 0.04}) == {"a": False, "b": False}
    with pytest.raises(ValueError, match="x: nan"):
        holm({"x": NAN})


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.2))
def test_holm_lies_between_bonferroni_and_no_correction(p: list[float], alpha: float) -> None:
    values = {str(i): value for i, value in enumerate(p)}
    for name, accepted in holm(values, alpha).items():
        assert not (values[name] <= alpha / len(p) and not accepted)
        assert not (accepted and values[name] > alpha)


def test_a_plan_for_a_family_loses_nothing_to_holm() -> None:
    rng = np.random.default_rng(3)
    plan = SequentialPlan(family=6)
    for _ in range(60):
        decisions = {
            str(i): analyse(list(rng.normal(m, 0.1, 12)), plan) for i, m in enumerate((-0.4, 0.3, 0, 0.05, 0.2, 1))
        }
        reported = holm_verdicts(decisions, plan.alpha)
        for name, decision in decisions.items():
            if decision.decision is not Verdict.INCONCLUSIVE:
                assert reported[name] is decision.decision


# --- gates -------------------------------------------------------------------------------------------------------


def test_null_gate() -> None:
    assert null_gate(near(0.0), PLAN).passed
    differing = null_gate(near(0.06), PLAN)
    assert not differing.passed
    assert "differs from itself: +6.0 %" in differing.reason
    # Certain, but too small to make a verdict wrong.
    assert null_gate(near(0.015, 0.1), PLAN).passed
    # Large, but nothing that can be told from noise; it says how much it could have missed.
    noisy = null_gate(near(0.06, 8), PLAN)
    assert noisy.passed
    assert "would go unseen" in noisy.reason
    assert not null_gate([0.0, 0.01, NAN, NAN], PLAN).passed


def test_control_gate() -> None:
    assert control_gate(near(1.3, 5), PLAN).passed
    assert not control_gate(near(0.0), PLAN).passed
    assert not control_gate(near(-0.5), PLAN).passed
    assert not control_gate(near(1.3, 40), PLAN).passed
    assert not control_gate([0.8], PLAN).passed
    assert "was not seen to pay" in control_gate(near(0.03), PLAN).reason


def test_a_decision_can_be_compared_and_is_frozen() -> None:
    found = analyse(near(-0.33), PLAN)
    assert isinstance(found, Decision)
    assert found == analyse(near(-0.33), PLAN)
    with pytest.raises(AttributeError):
        found.look = 3  # type: ignore[misc]
