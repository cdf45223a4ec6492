"""The published claims, computed again: right values, right baselines, rounding as said."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

from findings.config import DerivedClaim, Published, PublishedMeasurement, load_configuration
from findings.published import (
    ClaimCheck,
    Follows,
    check_claim,
    check_claims,
    conclusion,
    derive,
    printed,
    shown,
    source_baseline,
    table_rows,
)

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def published() -> Published:
    return load_configuration(ROOT).published


@pytest.fixture(scope="module")
def checks(published: Published) -> list[ClaimCheck]:
    return check_claims(published)


# Worked out by hand: 32.15/25.34 = 1.26874..., 34.46/23.44 = 1.47013..., 56.90/25.34 = 2.24546..., 22.6/26 = 0.86923...
@pytest.mark.parametrize(
    ("claim", "baseline", "computed", "follows"),
    [
        ("vulkan_e4b_gain", "M1", 26.87, Follows.YES),
        ("vulkan_e2b_gain", "M4", 47.01, Follows.YES),
        ("e2b_vulkan_factor", "M1", 2.245, Follows.YES),
        ("attempt_1_change", "M6", -13.08, Follows.YES),
        ("attempt_1_change", "M1", -10.81, Follows.NO),
        ("attempt_2_change", "M1", -32.91, Follows.YES),
        ("attempt_2_change", "M6", -34.62, Follows.WITHIN_ROUNDING),
        ("attempt_3_change", "M6", -73.08, Follows.YES),
        ("attempt_3_change", "M1", -72.38, Follows.WITHIN_ROUNDING),
    ],
)
def test_claims_of_the_study(
    checks: list[ClaimCheck], claim: str, baseline: str, computed: float, follows: Follows
) -> None:
    (found,) = [check for check in checks if (check.claim, check.baseline) == (claim, baseline)]
    assert found.computed == pytest.approx(computed, abs=0.006)
    assert found.follows is follows
    assert found.low < found.computed < found.high


def test_every_claim_of_the_study_is_checked(checks: list[ClaimCheck], published: Published) -> None:
    assert {check.claim for check in checks} == set(published.claims)
    assert {claim.value for claim in published.claims.values()} == {27, 47, 2.2, -13, -33, -73}


def test_the_third_goes_with_the_first_baseline_and_not_with_the_attempts_own(checks: list[ClaimCheck]) -> None:
    own = [check for check in checks if check.claim == "attempt_2_change"]
    assert source_baseline(own) == "M1"
    text = conclusion(own)
    assert "-33 % does not follow from M8 against M6, which gives -34.6 %" in text
    assert "follows against M1, which gives -32.9 %" in text
    assert "M6 remains possible" in text


def test_a_claim_that_follows_says_so_plainly(checks: list[ClaimCheck]) -> None:
    own = [check for check in checks if check.claim == "attempt_1_change"]
    assert conclusion(own) == "-13 % follows from M7 against M6."
    assert source_baseline(own) == "M6"


def figure(name: str, speed: float | None, decimals: int = 0) -> PublishedMeasurement:
    return PublishedMeasurement(id=name, place="x", tg_tokens_per_s=speed, decimals=decimals)


def claim(value: float, kind: str = "percent_change", decimals: int = 0) -> DerivedClaim:
    return DerivedClaim(
        id="c", place="x", kind=kind, value=value, decimals=decimals, figure="A", baseline="B", shown_as=""
    )


def test_a_number_that_follows_from_nothing() -> None:
    check = check_claim(claim(50), figure("A", 10.0, 2), figure("B", 10.0, 2))
    assert check.follows is Follows.NO
    assert source_baseline([check]) is None
    assert conclusion([check]) == "+50 % does not follow from A against B, which gives +0.0 %."


def test_ties_go_away_from_zero_and_binary_fractions_do_not_decide() -> None:
    assert printed(0.125, 2) == Decimal("0.13")
    assert printed(-12.5, 0) == Decimal("-13")
    assert printed(2.675, 2) == Decimal("2.68")  # round() gives 2.67
    tie = check_claim(claim(13), figure("A", 112.5, 1), figure("B", 100.0, 1))
    assert tie.follows is Follows.YES


def test_the_last_printed_digit_bounds_what_is_possible() -> None:
    check = check_claim(claim(0), figure("A", 17), figure("B", 26.0, 1))
    assert check.low == pytest.approx(100 * (16.5 / 26.05 - 1))
    assert check.high == pytest.approx(100 * (17.5 / 25.95 - 1))


def test_factor_and_its_words() -> None:
    assert derive("factor", Decimal(9), Decimal(4)) == Decimal("2.25")
    assert shown(2.25, "factor", 2) == "2.25 times"
    assert shown(-34.615, "percent_change", 1) == "-34.6 %"


def test_what_cannot_be_computed_is_an_error() -> None:
    with pytest.raises(ValueError, match="no speeds"):
        check_claim(claim(1), figure("A", None), figure("B", 1.0))
    with pytest.raises(ValueError, match="unknown kind"):
        derive("difference", Decimal(1), Decimal(1))
    with pytest.raises(ValueError, match="without a check"):
        conclusion([])


def test_rows_for_tables_have_units_and_keep_the_order(published: Published) -> None:
    rows = table_rows(published)
    assert [row["claim"] for row in rows][:2] == ["vulkan_e4b_gain", "vulkan_e2b_gain"]
    assert {row["unit"] for row in rows} == {"percent", "factor"}
    assert all(row["published_value"] == published.claims[row["claim"]].value for row in rows)


def test_a_changed_figure_is_noticed(published: Published) -> None:
    wrong = {**published.measurements, "M7": replace(published.measurements["M7"], tg_tokens_per_s=20.6)}
    found = [
        check for check in check_claims(replace(published, measurements=wrong)) if check.claim == "attempt_1_change"
    ]
    assert {check.follows for check in found} == {Follows.NO}
