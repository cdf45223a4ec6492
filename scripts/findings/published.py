"""Published evidence: every derived claim of the study computed again from its raw figures.

A claim says for example "13 % slower". It *follows* from a baseline when the value computed from the figures as
printed, rounded as the claim is printed (half away from zero), is the published number. Printed figures are rounded
themselves: 17 t/s stands for anything from 16.5 to 17.5. Where only such an unrounded figure could give the published
number, the claim is *within rounding* of that baseline. Decimal arithmetic, so that no binary fraction decides a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from enum import StrEnum
from typing import Any

from findings.config import DerivedClaim, Published, PublishedMeasurement

RULE = (
    "computed from the figures as printed and rounded like the published number (half away from zero); "
    "within rounding: only figures that differ from the printed ones by less than half of their last digit give it"
)


class Follows(StrEnum):
    """Whether a published number follows from a figure and a baseline."""

    YES = "yes"
    WITHIN_ROUNDING = "within_rounding"
    NO = "no"


@dataclass(frozen=True)
class ClaimCheck:
    """One claim against one baseline.

    `computed`, `low`, `high` and `published` are percent for the kind percent_change and factors for the kind factor;
    low and high are what the rounding of the printed figures allows. `stated`: the study's words point to it.
    """

    claim: str
    place: str
    kind: str
    figure: str
    baseline: str
    stated: bool
    figure_tokens_per_s: float
    baseline_tokens_per_s: float
    published: float
    decimals: int
    computed: float
    low: float
    high: float
    follows: Follows


def printed(value: float, decimals: int) -> Decimal:
    """A number as it stands in print, with that many digits after the point, half away from zero."""
    return Decimal(repr(value)).quantize(Decimal(1).scaleb(-decimals), rounding=ROUND_HALF_UP)


def derive(kind: str, figure: Decimal, baseline: Decimal) -> Decimal:
    """A change in percent (`percent_change`) or a factor (`factor`) of two speeds in tokens per second.

    Raises ValueError for another kind and ZeroDivisionError for a baseline of 0.
    """
    if kind == "percent_change":
        return 100 * (figure / baseline - 1)
    if kind == "factor":
        return figure / baseline
    raise ValueError(f"unknown kind of claim {kind!r}; use percent_change or factor")


def check_claim(claim: DerivedClaim, figure: PublishedMeasurement, baseline: PublishedMeasurement) -> ClaimCheck:
    """One claim against one baseline. Raises ValueError when one of the figures is no speed."""
    if figure.tg_tokens_per_s is None or baseline.tg_tokens_per_s is None:
        raise ValueError(f"config/published.yaml: claims[{claim.id}]: compares figures that are no speeds; mend it")
    above, below = (
        printed(figure.tg_tokens_per_s, figure.decimals),
        printed(baseline.tg_tokens_per_s, baseline.decimals),
    )
    half_above, half_below = (Decimal(5).scaleb(-item.decimals - 1) for item in (figure, baseline))
    computed = derive(claim.kind, above, below)
    low = derive(claim.kind, above - half_above, below + half_below)
    high = derive(claim.kind, above + half_above, below - half_below)
    value, half = printed(claim.value, claim.decimals), Decimal(5).scaleb(-claim.decimals - 1)
    step = Decimal(1).scaleb(-claim.decimals)
    if computed.quantize(step, rounding=ROUND_HALF_UP) == value:
        follows = Follows.YES
    elif low < value + half and value - half < high:
        follows = Follows.WITHIN_ROUNDING
    else:
        follows = Follows.NO
    return ClaimCheck(
        claim=claim.id,
        place=claim.place,
        kind=claim.kind,
        figure=figure.id,
        baseline=baseline.id,
        stated=baseline.id == claim.baseline,
        figure_tokens_per_s=float(above),
        baseline_tokens_per_s=float(below),
        published=float(value),
        decimals=claim.decimals,
        computed=float(computed),
        low=float(low),
        high=float(high),
        follows=follows,
    )


def check_claims(published: Published) -> list[ClaimCheck]:
    """Every claim against the baseline that the study points to, then against each alternative."""
    checks = []
    for claim in published.claims.values():
        for baseline in dict.fromkeys((claim.baseline, *claim.alternatives)):
            figures = published.measurements
            checks.append(check_claim(claim, figures[claim.figure], figures[baseline]))
    return checks


def source_baseline(checks: Sequence[ClaimCheck]) -> str | None:
    """The baseline that a published number was taken from: of the checks of one claim the first that follows, the
    stated one first; None where none follows."""
    ranked = sorted(checks, key=lambda check: (check.follows is not Follows.YES, not check.stated))
    return ranked[0].baseline if ranked and ranked[0].follows is Follows.YES else None


def shown(value: float, kind: str, decimals: int) -> str:
    """A change as `-34.6 %` or a factor as `2.25 times`, with a true minus left as a hyphen for plain text."""
    number = printed(value, decimals)
    return f"{number:+} %" if kind == "percent_change" else f"{number} times"


def conclusion(checks: Sequence[ClaimCheck]) -> str:
    """One sentence on one claim: does it follow, and from which baseline. Raises ValueError for no checks."""
    if not checks:
        raise ValueError("a claim without a check; pass the checks of one claim")
    stated = next((check for check in checks if check.stated), checks[0])
    number = shown(stated.published, stated.kind, stated.decimals)
    if stated.follows is Follows.YES:
        return f"{number} follows from {stated.figure} against {stated.baseline}."
    own = (
        f"{number} does not follow from {stated.figure} against {stated.baseline}, which gives "
        f"{shown(stated.computed, stated.kind, stated.decimals + 1)}"
    )
    other = source_baseline(checks)
    if other is not None:
        match = next(check for check in checks if check.baseline == other)
        own += f"; it follows against {other}, which gives {shown(match.computed, match.kind, match.decimals + 1)}"
    if stated.follows is Follows.WITHIN_ROUNDING:
        own += f"; {stated.figure} is printed so coarsely that {stated.baseline} remains possible"
    return own + "."


def table_rows(published: Published) -> list[dict[str, Any]]:
    """Plain rows, one per claim and baseline, units in the names; the order of config/published.yaml."""
    return [
        {
            "claim": check.claim,
            "place": check.place,
            "kind": check.kind,
            "figure": check.figure,
            "baseline": check.baseline,
            "baseline_is_stated": check.stated,
            "figure_tokens_per_s": check.figure_tokens_per_s,
            "baseline_tokens_per_s": check.baseline_tokens_per_s,
            "published_value": check.published,
            "computed_value": check.computed,
            "computed_low": check.low,
            "computed_high": check.high,
            "unit": "percent" if check.kind == "percent_change" else "factor",
            "follows": check.follows.value,
        }
        for check in check_claims(published)
    ]
