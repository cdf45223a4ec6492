"""What speculation must achieve on a machine before it pays, from what a token costs there.

A round drafts g tokens, one after the other, and verifies them together with one more: the target runs once over
g + 1 tokens. Of those, L come out (the accepted ones and the one that the target adds). Against plain decoding, one
token per run of the target, the speed-up is

    S = L / (g c + v(g + 1)),   c = T_draft(1) / T_target(1),   v(w) = T_target(w) / T_target(1)

so L must exceed the cost of a round, g c + v(g + 1), in units of a plain token. L cannot exceed g + 1: where the cost
does, no drafter pays on this machine, however good it is. The formula is that of Leviathan, Kalman and Matias
(2023, "Fast inference from transformers via speculative decoding"), with a measured v instead of v = 1.

Words: *conditional acceptance* p is the chance that a drafted token is accepted given that those before it in its
round were; *acceptance* is accepted tokens / drafted tokens, which is lower, because everything after the first
rejected token is thrown away too; *tokens per round* L is accepted tokens / rounds + 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from scipy.optimize import brentq


@dataclass(frozen=True)
class CostCurve:
    """Seconds: `target_s[w]` to run the target over w tokens at once, `draft_s` to draft one token.

    Raises ValueError without a cost for w = 1 or with one that is not above 0.
    """

    target_s: Mapping[int, float]
    draft_s: float

    def __post_init__(self) -> None:
        if 1 not in self.target_s:
            raise ValueError("the cost of one token of the target (w = 1) is missing")
        if not all(math.isfinite(s) and s > 0 for s in self.target_s.values()):
            raise ValueError("the target's costs must be seconds above 0")
        if not (math.isfinite(self.draft_s) and self.draft_s >= 0):
            raise ValueError("the cost of a drafted token must be seconds, at least 0")

    @property
    def c(self) -> float:
        """Cost of one drafted token in tokens of the target."""
        return self.draft_s / self.target_s[1]

    def v(self, width: float) -> float:
        """Cost of verifying `width` tokens at once in tokens of the target; straight lines between measured widths.

        Raises ValueError outside what was measured: a cost curve has steps, and going on past its end would invent.
        """
        known = sorted(self.target_s)
        if not known[0] <= width <= known[-1]:
            raise ValueError(f"the cost of {width:g} tokens was not measured (only {known[0]} to {known[-1]})")
        above = next(w for w in known if w >= width)
        below = max(w for w in known if w <= width)
        share = 0.0 if above == below else (width - below) / (above - below)
        return (self.target_s[below] + share * (self.target_s[above] - self.target_s[below])) / self.target_s[1]

    def round_cost(self, drafted: float) -> float:
        """Cost of a round with `drafted` tokens in tokens of the target: the tokens per round that break even."""
        return drafted * self.c + self.v(drafted + 1)


def cost_curve(target_s: Mapping[int, Sequence[float]], draft_s: Sequence[float]) -> CostCurve:
    """A curve from repeated timings in seconds: the median of each (a late page fault must not set the price).

    Raises ValueError where a list is empty, and like `CostCurve`.
    """
    empty = [str(width) for width, samples in target_s.items() if not samples] + ([] if draft_s else ["the draft"])
    if empty:
        raise ValueError(f"no timing for {', '.join(empty)}")
    return CostCurve({width: median(samples) for width, samples in target_s.items()}, median(draft_s))


# --- the definitions of acceptance -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Acceptance:
    """What a run's counters say. `rounds` counts every run of the target, also one without a draft."""

    generated: int
    drafted: int
    accepted: int

    def __post_init__(self) -> None:
        if not 0 <= self.accepted <= self.drafted or self.accepted > self.generated:
            raise ValueError(
                f"counters contradict each other: {self.accepted} accepted of {self.drafted} drafted, "
                f"{self.generated} generated"
            )

    @property
    def rounds(self) -> int:
        """Runs of the target: each gives one token of its own beside the accepted ones."""
        return self.generated - self.accepted

    @property
    def acceptance(self) -> float | None:
        """Accepted / drafted tokens; None where nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else None

    @property
    def drafted_per_round(self) -> float:
        """Mean length of a draft (0 where there was no round)."""
        return self.drafted / self.rounds if self.rounds else 0.0

    @property
    def accepted_per_round(self) -> float:
        """Mean number of accepted tokens per round (0 where there was no round)."""
        return self.accepted / self.rounds if self.rounds else 0.0

    @property
    def tokens_per_round(self) -> float:
        """L: the accepted tokens of a round and the target's own."""
        return self.accepted_per_round + 1.0

    @property
    def share_of_output(self) -> float | None:
        """Accepted / generated tokens, which some tools print as acceptance; None where nothing was generated."""
        return self.accepted / self.generated if self.generated else None


def tokens_per_round(conditional: float, drafted: int) -> float:
    """L for a conditional acceptance that is the same at every position: 1 + p + p^2 + ... + p^g.

    Raises ValueError for a chance outside 0 .. 1 or a negative draft.
    """
    if not 0.0 <= conditional <= 1.0 or drafted < 0:
        raise ValueError(f"{conditional} is not a chance or {drafted} not a number of drafted tokens")
    return math.fsum(conditional**position for position in range(drafted + 1))


def acceptance_from_conditional(conditional: float, drafted: int) -> float:
    """Accepted / drafted for a conditional acceptance p and a draft of g >= 1 tokens: (L - 1) / g."""
    if drafted < 1:
        raise ValueError("without drafted tokens there is no acceptance")
    return (tokens_per_round(conditional, drafted) - 1.0) / drafted


def conditional_from_tokens(per_round: float, drafted: int) -> float | None:
    """The conditional acceptance that gives `per_round` tokens per round; None above g + 1 (out of reach).

    0 for one token per round or fewer. Raises ValueError for a negative draft.
    """
    if per_round > drafted + 1:
        return None
    if per_round <= 1.0:
        return 0.0
    if math.isclose(per_round, drafted + 1):
        return 1.0
    return float(brentq(lambda p: tokens_per_round(p, drafted) - per_round, 0.0, 1.0, xtol=1e-12))


def conditional_from_acceptance(acceptance: float, drafted: int) -> float | None:
    """The conditional acceptance behind accepted / drafted where every draft has g >= 1 tokens."""
    return conditional_from_tokens(1.0 + acceptance * drafted, drafted)


def conditional_by_position(accepted_at: Sequence[int], rounds: int) -> list[float | None]:
    """Conditional acceptance at each position from how often each position was accepted.

    `accepted_at[i]` counts the rounds in which position i was accepted, which takes all positions before it; so the
    counts never rise. None where nothing reached the position. Valid where every draft is as long as the list.

    Raises ValueError for counts that rise or exceed the rounds.
    """
    reached = [rounds, *accepted_at]
    if any(b > a for a, b in pairwise(reached)) or min(reached) < 0:
        raise ValueError(f"a position cannot be accepted more often than the one before it: {list(accepted_at)}")
    return [b / a if a else None for a, b in pairwise(reached)]


# --- break-even ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BreakEven:
    """What drafts of `drafted` tokens need on this machine, and what was seen.

    `needed_tokens_per_round` is the cost of a round; `needed_conditional` and `needed_acceptance` are None where that
    is out of reach (then `ceiling`, the speed-up with everything accepted, is below 1). The observed values and
    `predicted_speedup` are None where nothing was observed.
    """

    drafted: int
    c: float
    v: float
    needed_tokens_per_round: float
    needed_conditional: float | None
    needed_acceptance: float | None
    ceiling: float
    observed_tokens_per_round: float | None
    observed_acceptance: float | None
    predicted_speedup: float | None
    reason: str

    @property
    def reachable(self) -> bool:
        """Whether a perfect drafter of this cost would break even."""
        return self.needed_conditional is not None


def break_even(curve: CostCurve, drafted: int, observed: Acceptance | None = None) -> BreakEven:
    """Break-even for drafts of `drafted` tokens, with the speed-up that the observed counters should have given.

    The prediction uses the observed mean length of a draft, which is shorter than `drafted` where the engine cuts
    drafts short. Raises ValueError for fewer than one drafted token or a width that was not measured.
    """
    if drafted < 1:
        raise ValueError("a draft has at least one token")
    cost = curve.round_cost(drafted)
    conditional = conditional_from_tokens(cost, drafted)
    acceptance = None if conditional is None else acceptance_from_conditional(conditional, drafted)
    predicted = None
    if observed is not None and observed.rounds > 0:
        predicted = predicted_speedup(curve, observed.drafted_per_round, observed.tokens_per_round)
    return BreakEven(
        drafted=drafted,
        c=curve.c,
        v=curve.v(drafted + 1),
        needed_tokens_per_round=cost,
        needed_conditional=conditional,
        needed_acceptance=acceptance,
        ceiling=(drafted + 1) / cost,
        observed_tokens_per_round=observed.tokens_per_round if observed else None,
        observed_acceptance=observed.acceptance if observed else None,
        predicted_speedup=predicted,
        reason=_reason(cost, drafted, acceptance, observed),
    )


def predicted_speedup(curve: CostCurve, drafted_per_round: float, per_round: float) -> float:
    """S = L / (g c + v(g + 1)) for a mean draft of `drafted_per_round` and `per_round` tokens out of each round."""
    return per_round / curve.round_cost(drafted_per_round)


def round_cost_from_speed(per_round: float, speed: float, plain_speed: float) -> float:
    """The cost of a round in plain tokens that two measured speeds imply: L / S. Both speeds in the same unit."""
    return per_round * plain_speed / speed


def _reason(cost: float, drafted: int, acceptance: float | None, observed: Acceptance | None) -> str:
    """The sentence for people."""
    start = f"A round with {drafted} drafted tokens costs as much as {cost:.2f} plain tokens"
    if acceptance is None:
        return f"{start} and gives at most {drafted + 1}: no drafter of this cost can pay here."
    seen = ""
    if observed is not None and observed.acceptance is not None:
        seen = f" Seen: {100 * observed.acceptance:.0f} %, {observed.tokens_per_round:.2f} tokens per round."
    if acceptance <= 0.0:
        return f"{start}: it pays at any acceptance.{seen}"
    return f"{start}: it pays above an acceptance of {100 * acceptance:.0f} % (accepted / drafted).{seen}"
