"""Break-even against numbers worked out by hand and against speeds that were seen with a faked acceptance."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from findings.breakeven import (
    Acceptance,
    CostCurve,
    acceptance_from_conditional,
    break_even,
    conditional_by_position,
    conditional_from_acceptance,
    conditional_from_tokens,
    cost_curve,
    predicted_speedup,
    round_cost_from_speed,
    tokens_per_round,
)

# T_target(1) = 20 ms, 4 tokens at once 30 ms, drafting one 2 ms: a round of 3 costs 3 * 0.1 + 1.5 = 1.8 plain tokens.
CURVE = CostCurve({1: 0.020, 2: 0.022, 4: 0.030, 8: 0.050}, 0.002)
CHANCES = st.floats(0, 1)
DRAFTS = st.integers(1, 16)


def test_cost_of_a_round_by_hand() -> None:
    assert CURVE.c == pytest.approx(0.1)
    assert CURVE.v(4) == pytest.approx(1.5)
    assert CURVE.v(3) == pytest.approx(1.3)
    assert CURVE.round_cost(3) == pytest.approx(1.8)
    # All four tokens out of each round: 4 / 1.8.
    assert break_even(CURVE, 3).ceiling == pytest.approx(2.2222, abs=1e-4)


def test_needed_acceptance_by_hand() -> None:
    # 1 + p + p^2 + p^3 = 1.8: p = 0.5 gives 1.875, p = 0.47 gives 1.795.
    found = break_even(CURVE, 3)
    assert found.reachable
    assert found.needed_conditional == pytest.approx(0.4721, abs=1e-4)
    assert found.needed_acceptance == pytest.approx(0.8 / 3)
    assert "above an acceptance of 27 %" in found.reason


def test_one_drafted_token_by_hand() -> None:
    # L = 1 + p, a round costs 0.1 + 1.1: it pays above p = 0.2.
    found = break_even(CURVE, 1)
    assert found.needed_conditional == pytest.approx(0.2)
    assert found.needed_acceptance == pytest.approx(0.2)


def test_a_slow_drafter_never_pays() -> None:
    # A drafter as dear as the target: 3 + 1.5 = 4.5 plain tokens a round, of which at most 4 come out.
    found = break_even(CostCurve(CURVE.target_s, 0.020), 3)
    assert not found.reachable
    assert found.needed_acceptance is None
    assert found.ceiling == pytest.approx(4 / 4.5)
    assert "no drafter of this cost can pay" in found.reason


def test_a_free_drafter_pays_at_any_acceptance() -> None:
    found = break_even(CostCurve({1: 0.02, 4: 0.02}, 0.0), 3)
    assert found.needed_acceptance == 0.0
    assert "at any acceptance" in found.reason


def test_predicted_speedup_at_the_observed_acceptance() -> None:
    # 32 rounds, 94 drafted, 62 accepted: 2.94 tokens per round from drafts of 2.94 tokens.
    seen = Acceptance(generated=94, drafted=94, accepted=62)
    assert seen.rounds == 32
    assert seen.tokens_per_round == pytest.approx(2.9375)
    found = break_even(CURVE, 3, seen)
    cost = 2.9375 * 0.1 + (1.3 + 0.9375 * 0.2)
    assert found.predicted_speedup == pytest.approx(2.9375 / cost)
    assert found.observed_acceptance == pytest.approx(62 / 94)
    assert predicted_speedup(CURVE, 3, 4) == pytest.approx(found.ceiling)


# Seen on two cores, drafting with the target itself, three tokens a draft, acceptance faked, against 35 t/s without.
FAKED = [(1, 5.3), (2, 11.7), (3, 17.3), (4, 22.2)]


def test_faked_acceptance_gives_one_cost_per_round() -> None:
    costs = [round_cost_from_speed(per_round, speed, 35.0) for per_round, speed in FAKED]
    assert costs == pytest.approx([6.60, 5.98, 6.07, 6.31], abs=0.01)
    # The model says that the cost of a round does not depend on what is accepted: within 6 % of their mean it does not.
    mean = sum(costs) / len(costs)
    assert costs == pytest.approx([mean] * 4, rel=0.06)


def test_with_that_cost_no_acceptance_pays() -> None:
    # c = 1 (the drafter is the target), three drafted: 3 + v(4) = 6.2 gives v(4) = 3.2.
    curve = CostCurve({1: 1 / 35, 4: 3.24 / 35}, 1 / 35)
    found = break_even(curve, 3)
    assert found.needed_tokens_per_round == pytest.approx(6.24)
    assert not found.reachable
    for per_round, speed in FAKED:
        assert 35 * predicted_speedup(curve, 3, per_round) == pytest.approx(speed, rel=0.06)


@settings(deadline=None)
@given(CHANCES, DRAFTS)
def test_conditional_and_tokens_are_inverse(p: float, drafted: int) -> None:
    per_round = tokens_per_round(p, drafted)
    found = conditional_from_tokens(per_round, drafted)
    assert found is not None
    assert found == pytest.approx(p, abs=1e-6)
    assert 1 <= per_round <= drafted + 1


@settings(deadline=None)
@given(CHANCES, DRAFTS)
def test_acceptance_is_never_above_the_conditional_one(p: float, drafted: int) -> None:
    found = acceptance_from_conditional(p, drafted)
    assert found <= p + 1e-12
    assert conditional_from_acceptance(found, drafted) == pytest.approx(p, abs=1e-6)


@settings(deadline=None)
@given(st.floats(0.001, 1), st.floats(0, 1), st.floats(1, 8), DRAFTS)
def test_at_the_needed_acceptance_the_speedup_is_one(plain: float, c: float, v: float, drafted: int) -> None:
    curve = CostCurve({1: plain, drafted + 1: plain * v}, plain * c)
    found = break_even(curve, drafted)
    assert found.reachable == (found.ceiling >= 1 - 1e-12)
    if found.needed_conditional is not None and found.needed_tokens_per_round >= 1:
        per_round = tokens_per_round(found.needed_conditional, drafted)
        assert predicted_speedup(curve, drafted, per_round) == pytest.approx(1.0, abs=1e-6)


def test_the_definitions_beside_each_other() -> None:
    # Ten rounds of three drafted tokens; 8, 5 and 2 times position 1, 2, 3 was accepted.
    assert conditional_by_position([8, 5, 2], 10) == pytest.approx([0.8, 0.625, 0.4])
    seen = Acceptance(generated=25, drafted=30, accepted=15)
    assert seen.acceptance == pytest.approx(0.5)
    assert seen.accepted_per_round == pytest.approx(1.5)
    assert seen.tokens_per_round == pytest.approx(2.5)
    assert seen.share_of_output == pytest.approx(0.6)
    assert seen.drafted_per_round == pytest.approx(3.0)
    assert conditional_by_position([0, 0], 4) == [0.0, None]


def test_nothing_drafted_is_not_nothing_accepted() -> None:
    assert Acceptance(64, 0, 0).acceptance is None
    assert Acceptance(64, 20, 0).acceptance == 0.0
    assert Acceptance(64, 0, 0).tokens_per_round == 1.0
    assert Acceptance(0, 0, 0).share_of_output is None
    assert break_even(CURVE, 3, Acceptance(0, 0, 0)).predicted_speedup is None
    assert break_even(CURVE, 3, Acceptance(64, 0, 0)).predicted_speedup == pytest.approx(1.0)


def test_curve_from_timings_takes_medians() -> None:
    curve = cost_curve({1: [0.02, 0.5, 0.021], 4: [0.03]}, [0.001, 0.002, 0.9])
    assert curve.target_s == {1: 0.021, 4: 0.03}
    assert curve.draft_s == 0.002
    with pytest.raises(ValueError, match="no timing for 4, the draft"):
        cost_curve({1: [0.02], 4: []}, [])


def test_bad_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="w = 1"):
        CostCurve({2: 0.1}, 0.1)
    with pytest.raises(ValueError, match="above 0"):
        CostCurve({1: 0.0}, 0.1)
    with pytest.raises(ValueError, match="at least 0"):
        CostCurve({1: 0.1}, -1)
    with pytest.raises(ValueError, match="was not measured"):
        CURVE.v(9)
    with pytest.raises(ValueError, match="at least one token"):
        break_even(CURVE, 0)
    with pytest.raises(ValueError, match="contradict"):
        Acceptance(64, 3, 4)
    with pytest.raises(ValueError, match="more often"):
        conditional_by_position([3, 4], 10)
    with pytest.raises(ValueError, match="not a chance"):
        tokens_per_round(1.1, 3)
    with pytest.raises(ValueError, match="no acceptance"):
        acceptance_from_conditional(0.5, 0)
