"""From blocks to a verdict: the effect of each block, its interval, and when enough has been measured.

Words: d is the natural logarithm of (speed of the arm / speed of the baseline) in one block, so 0 is "no change" and
ln(1.05) is "5 % faster". A block is the unit that is repeated: requests inside a block share their server processes,
so how much they differ says nothing about how much the next process will differ.

The bounds are a weighted Bonferroni over the planned looks: look k may use the share w_k of the error rate, the
shares add up to 1, and each look is an ordinary t test with the degrees of freedom it really has. That holds whatever
the looks have to do with each other, and for four blocks as well as for forty (the usual group-sequential bounds come
from the normal distribution and are too generous there). docs/method.md has the error rates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np
from scipy.special import stdtr, stdtrit

ALL_CLASSES: Final = "all"
MOST_BLOCKS: Final = 1000
# Power at which `blocks_needed` is worked out: four times in five that many blocks settle it.
PLANNING_POWER: Final = 0.8
# A verdict on fewer than this share of the blocks that were started would be a verdict on the blocks that survived.
LARGEST_MISSING_SHARE: Final = 0.25
OUTLIER_LIMIT: Final = 5.0


class Claim(StrEnum):
    """What a published finding says about an arm."""

    DOES_NOT_PAY = "does_not_pay"
    PAYS = "pays"


class Verdict(StrEnum):
    """What the data say about a finding. `analyse` gives the first three; the last is for what was never measured."""

    HOLDS = "holds"
    NO_LONGER_HOLDS = "no_longer_holds"
    INCONCLUSIVE = "inconclusive"
    NOT_TESTABLE = "not_testable"


class Metric(StrEnum):
    """Which speed is compared: that of generated tokens, or that of reading the prompt."""

    GENERATION = "tg"
    PROMPT = "pp"


DOES_NOT_PAY: Final = Claim.DOES_NOT_PAY
PAYS: Final = Claim.PAYS


# --- one block -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Request:
    """One counted request: what was asked, and how many tokens took how many seconds (generated, or of the prompt).

    `ok` is false where the request failed; its prompt then still counts as asked.
    """

    prompt_id: str
    prompt_class: str
    tokens: int
    seconds: float
    ok: bool = True


def requests_of_arm(arm: Mapping[str, Any], metric: Metric = Metric.GENERATION) -> list[Request]:
    """The counted requests of one arm of a block record (warm-ups are left out, failed ones are kept as failed)."""
    part = "predicted" if metric is Metric.GENERATION else "prompt"
    requests = []
    for raw in arm.get("requests", ()):
        if not raw.get("counted", True):
            continue
        tokens, milliseconds = raw.get(f"{part}_n") or 0, raw.get(f"{part}_ms") or 0.0
        ok = raw.get("outcome", "ok") == "ok" and tokens > 0 and milliseconds > 0
        requests.append(Request(raw["prompt_id"], raw["prompt_class"], int(tokens), float(milliseconds) / 1000.0, ok))
    return requests


def class_speed(requests: Sequence[Request]) -> float:
    """Tokens per second over `requests`: all their tokens divided by all their seconds.

    That is the rate which a user who sends all of them waits for. The mean of the requests' own rates is a different
    number: it counts a second of a fast request more than a second of a slow one. NaN where a request failed.
    """
    if not requests or not all(request.ok for request in requests):
        return math.nan
    return sum(r.tokens for r in requests) / sum(r.seconds for r in requests)


def block_effects(arm: Sequence[Request], baseline: Sequence[Request]) -> dict[str, float]:
    """d of one arm in one block: {prompt class: ln ratio, ..., "all": ln ratio}.

    Within a class both speeds come from the same prompts (`class_speed`). "all" is the mean of the classes' ln ratios
    with equal weight, that is, the geometric mean of the classes' ratios: how many prompts of a class were sent, and
    how long they take, is a choice of ours and must not decide which class matters most. The classes are those that
    the arm was asked; the baseline may have been asked more. A class is NaN where one of its requests failed in
    either arm, the prompts differ, or one was sent twice to a server (n-gram caches remember it); then "all" is NaN,
    too: a block without its slowest prompt is not the same measurement. No requests give {"all": NaN}.
    """
    effects = {}
    for prompt_class in dict.fromkeys(request.prompt_class for request in arm):
        ours = [request for request in arm if request.prompt_class == prompt_class]
        theirs = [request for request in baseline if request.prompt_class == prompt_class]
        asked, reference = sorted(r.prompt_id for r in ours), sorted(r.prompt_id for r in theirs)
        comparable = asked == reference and len(set(asked)) == len(asked)
        effects[prompt_class] = math.log(class_speed(ours) / class_speed(theirs)) if comparable else math.nan
    effects[ALL_CLASSES] = sum(effects.values()) / len(effects) if effects else math.nan
    return effects


def effects_of_block(
    detail: Mapping[str, Any], baseline: str = "baseline", metric: Metric = Metric.GENERATION
) -> dict[str, dict[str, float]]:
    """d of every arm of one block record: {arm: {prompt class or "all": ln ratio}}; the baseline itself is left out.

    `detail` is the `detail` of a record of kind `block`. An arm that did not end well (outcome not `ok`), or whose
    baseline did not, has NaN everywhere.
    """
    arms: Mapping[str, Mapping[str, Any]] = detail.get("arms", {})
    reference = arms.get(baseline, {})
    effects = {}
    for name, arm in arms.items():
        if name == baseline:
            continue
        found = block_effects(requests_of_arm(arm, metric), requests_of_arm(reference, metric))
        usable = arm.get("outcome", "ok") == "ok" and reference.get("outcome", "ok") == "ok"
        effects[name] = found if usable else dict.fromkeys(found, math.nan)
    return effects


# --- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SequentialPlan:
    """When a session looks at its data, and what it may conclude from them.

    `looks`: numbers of usable blocks, rising; the last one is the maximum. `alpha`: error rate of the two-sided
    interval (0.05 is the 95 % interval). `margin`: the smallest gain that would be worth having, as a share (0.05 is
    5 %). `equivalence_alpha`: one-sided error rate of the equivalence test (0.05 is the 90 % interval). `family`: how
    many findings are judged together; every error rate is divided by it, so that what a session settles stays settled
    under Holm's procedure.

    Raises ValueError for values that make no plan.
    """

    looks: tuple[int, ...] = (4, 6, 8, 12)
    alpha: float = 0.05
    margin: float = 0.05
    equivalence_alpha: float = 0.05
    family: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "looks", tuple(int(look) for look in self.looks))
        if not self.looks or any(b <= a for a, b in zip((1, *self.looks), self.looks, strict=False)):
            raise ValueError(f"looks must be rising numbers of blocks from 2 on, not {list(self.looks)}")
        for name in ("alpha", "equivalence_alpha"):
            if not 0.0 < getattr(self, name) < 0.5:
                raise ValueError(f"{name} must lie between 0 and 0.5, not {getattr(self, name)}")
        if not 0.0 < self.margin < 1.0:
            raise ValueError(f"margin is a share between 0 and 1 (0.05 for 5 %), not {self.margin}")
        if self.family < 1:
            raise ValueError(f"family is a number of findings, at least 1, not {self.family}")

    @property
    def max_blocks(self) -> int:
        """The last look."""
        return self.looks[-1]

    @property
    def upper_margin(self) -> float:
        """ln(1 + margin)."""
        return math.log1p(self.margin)

    @property
    def lower_margin(self) -> float:
        """ln(1 - margin)."""
        return math.log1p(-self.margin)

    def shares(self) -> tuple[float, ...]:
        """Which share of every error rate each look may use; they add up to 1.

        The steps of ln(1 + (e - 1) n / n_max), the spending function of Lan and DeMets (1983) that resembles Pocock's
        bounds: it gives the first look much, because what is looked for are large effects.
        """
        spent = [math.log1p((math.e - 1.0) * look / self.max_blocks) for look in self.looks]
        return tuple(now - before for before, now in zip((0.0, *spent), spent, strict=False))

    def two_sided_level(self, look: int) -> float:
        """One-sided level of the interval's bounds at look number `look` (from 0)."""
        return self.alpha / 2.0 / self.family * self.shares()[look]

    def equivalence_level(self, look: int) -> float:
        """Level of each of the two one-sided equivalence tests at look number `look` (from 0)."""
        return self.equivalence_alpha / self.family * self.shares()[look]


# --- the verdict -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A t interval of the mean ln ratio: `confidence` is the share (0.95), `blocks` how many went in."""

    mean: float
    low: float
    high: float
    confidence: float
    blocks: int

    @property
    def percent(self) -> tuple[float, float, float]:
        """(mean, low, high) as change of the speed in percent."""
        return to_percent(self.mean), to_percent(self.low), to_percent(self.high)


@dataclass(frozen=True)
class Decision:
    """What `analyse` found.

    `interval` is the one the verdict rests on: at the level of the look that settled it (narrower where that was the
    equivalence test, whose error rate is one-sided), or of the last look that was
    reached (before the first look: of the first). `nominal` is the plain interval at 1 - alpha over all usable
    blocks, as if nobody had looked before; it is for reading, not for verdicts. Both are None with fewer than two
    usable blocks. `look` is the number of blocks at which the verdict was settled (0: not settled). `p_value` belongs
    to the verdict that the data lean to and includes the peeking; see `holm`. `blocks_needed` is an estimate of the
    total number of blocks for a verdict (None: settled, unknown, or above 1000). `outliers` are the numbers (from 1)
    of blocks far from the others; they stay in.
    """

    decision: Verdict
    claim: Claim
    stop: bool
    reason: str
    blocks: int
    missing: int
    look: int
    interval: Interval | None
    nominal: Interval | None
    sd: float | None
    p_holds: float
    p_no_longer_holds: float
    blocks_needed: int | None
    outliers: tuple[int, ...] = ()

    @property
    def p_value(self) -> float:
        """The smaller of the two p values."""
        return min(self.p_holds, self.p_no_longer_holds)

    @property
    def leaning(self) -> Verdict:
        """The verdict that `p_value` speaks for."""
        return Verdict.HOLDS if self.p_holds <= self.p_no_longer_holds else Verdict.NO_LONGER_HOLDS


@dataclass(frozen=True)
class _Evidence:
    """One-sided p values at one look: against "gain at most the margin", "gain at least 0", and "not equivalent"."""

    gains: float
    loses: float
    equal: float


def to_percent(ln_ratio: float) -> float:
    """A ln ratio as change in percent: ln(0.87) -> -13."""
    return 100.0 * math.expm1(ln_ratio)


def t_interval(d: Sequence[float], level: float) -> Interval:
    """t interval of the mean of `d` (at least two finite values), `level` in each tail. Raises ValueError for fewer."""
    values = np.asarray(d, dtype=float)
    if values.size < 2 or not np.all(np.isfinite(values)):
        raise ValueError("an interval needs at least two finite block values")
    mean, half = float(values.mean()), float(-stdtrit(values.size - 1, level)) * _standard_error(values)
    return Interval(mean, mean - half, mean + half, 1.0 - 2.0 * level, int(values.size))


def analyse(d: Sequence[float], plan: SequentialPlan, claim: Claim = DOES_NOT_PAY) -> Decision:
    """Judge `claim` from `d`, the ln ratios of an arm's blocks in the order in which they ran.

    "Does not pay": at each look, lower bound of the interval above ln(1 + margin) -> no longer holds; upper bound
    below 0, or the equivalence interval inside ln(1 - margin) .. ln(1 + margin) -> holds; else inconclusive. "Pays"
    is the same with the two verdicts exchanged: holds if the lower bound is above the margin. The first look that
    settles it counts; where a later one settles it the other way, the verdict is inconclusive.

    Values that are not finite are blocks without a result: they are left out, and when they are more than a quarter
    the verdict is inconclusive (`stop` is then set once a quarter of the maximum is missing). Blocks after the last
    planned look do not change a verdict. Blocks that are equal to the last
    digit are no measurements: inconclusive. Never raises for bad data.
    """
    usable = [float(value) for value in d if math.isfinite(value)]
    missing = len(d) - len(usable)
    reached = [index for index, look in enumerate(plan.looks) if look <= len(usable)]
    settled = [(plan.looks[i], i, _verdict(_evidence(usable[: plan.looks[i]], plan), plan, i)) for i in reached]
    final = len(usable) >= plan.max_blocks or missing > LARGEST_MISSING_SHARE * plan.max_blocks
    nominal = t_interval(usable, plan.alpha / 2.0) if len(usable) > 1 else None
    doubt = _doubt(usable, missing, [verdict for *_, verdict in settled])
    if doubt or nominal is None:
        return Decision(
            Verdict.INCONCLUSIVE, claim, final, doubt, len(usable), missing, 0, nominal, nominal,
            _deviation(usable), 1.0, 1.0, None, _outliers(d),
        )  # fmt: skip
    p_gains, p_not = _p_values(usable, plan, reached)
    look, index, verdict = next(
        (item for item in settled if item[2] is not Verdict.INCONCLUSIVE),
        (0, reached[-1] if reached else 0, Verdict.INCONCLUSIVE),
    )
    count = min(plan.looks[index], len(usable))
    interval = _deciding_interval(usable[:count], verdict, plan, index)
    decided = verdict is not Verdict.INCONCLUSIVE
    needed = None if decided else blocks_needed(nominal.mean, _deviation(usable) or 0.0, plan, len(usable))
    return Decision(
        decision=verdict if claim is DOES_NOT_PAY else _exchanged(verdict),
        claim=claim,
        stop=decided or final,
        reason=_settled_reason(verdict, interval, look, plan) if decided else _open_reason(nominal, needed, plan),
        blocks=len(usable),
        missing=missing,
        look=look,
        interval=interval,
        nominal=nominal,
        sd=_deviation(usable),
        p_holds=p_not if claim is DOES_NOT_PAY else p_gains,
        p_no_longer_holds=p_gains if claim is DOES_NOT_PAY else p_not,
        blocks_needed=needed,
        outliers=_outliers(d),
    )


def blocks_needed(mean: float, sd: float, plan: SequentialPlan, at_least: int = 0) -> int | None:
    """How many blocks in all would settle it, four times in five, if `mean` and `sd` (of ln ratios) are the truth.

    Worked out at the level of the plan's last look, as gap >= (t_level + t_power) sd / sqrt(n), where the gap is the
    way from `mean` to the bound it must clear; for equivalence each side gets half of the power. More than `at_least`
    and at least 2; None above 1000 (the effect lies at a bound, or the noise is too large).
    """
    last = len(plan.looks) - 1
    lost = 1.0 - PLANNING_POWER
    nearest = min(plan.upper_margin - mean, mean - plan.lower_margin)
    ways = (
        (mean - plan.upper_margin, plan.two_sided_level(last), lost),
        (-mean, plan.two_sided_level(last), lost),
        (nearest, plan.equivalence_level(last), lost / 2.0),
    )
    sizes = np.arange(max(2, at_least + 1), MOST_BLOCKS + 1)
    enough = np.zeros(sizes.size, dtype=np.bool_)
    for gap, level, unlucky in ways:
        reach = -(stdtrit(sizes - 1, level) + stdtrit(sizes - 1, unlucky)) * sd / np.sqrt(sizes)
        enough |= (gap > 0) & (gap >= reach)
    return int(sizes[np.argmax(enough)]) if enough.any() else None


def holm(p_values: Mapping[str, float], alpha: float = 0.05) -> dict[str, bool]:
    """Holm's step-down procedure: which p values stay below the line, so that the family's error rate is `alpha`.

    Equal p values are treated alike. Raises ValueError for a p value outside 0 .. 1 or NaN.
    """
    for name, p in p_values.items():
        if not 0.0 <= p <= 1.0:
            raise ValueError(f"{name}: {p} is not a p value")
    accepted = dict.fromkeys(p_values, False)
    ordered = sorted(p_values, key=lambda name: p_values[name])
    for place, name in enumerate(ordered):
        if p_values[name] > alpha / (len(ordered) - place):
            break
        accepted[name] = True
    return accepted


def holm_verdicts(decisions: Mapping[str, Decision], alpha: float = 0.05) -> dict[str, Verdict]:
    """The verdicts of findings that are reported together.

    A finding keeps the verdict its p value speaks for if Holm's procedure lets it pass, else it is inconclusive. With
    plans whose `family` is the number of findings, nothing that a session settled can be lost here.
    """
    accepted = holm({name: decision.p_value for name, decision in decisions.items()}, alpha)
    return {name: d.leaning if accepted[name] else Verdict.INCONCLUSIVE for name, d in decisions.items()}


# --- gates -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GateResult:
    """Whether a comparison arm behaved as it must, with the interval it was judged by."""

    gate: str
    passed: bool
    reason: str
    interval: Interval | None


def null_gate(d_null: Sequence[float], plan: SequentialPlan) -> GateResult:
    """The baseline run a second time under another name must not differ from the baseline.

    Fails if the plain 1 - alpha interval excludes 0 and the mean is off by more than half of the margin (a smaller
    difference cannot make a verdict wrong by itself), or with fewer usable blocks than the first look. It is judged
    once, with all blocks, when the session is over. A pass does not prove equality: the reason tells how large a
    difference would have gone unnoticed.
    """
    usable = [value for value in d_null if math.isfinite(value)]
    if len(usable) < plan.looks[0]:
        return GateResult(
            "null_arm", False, f"The null arm has {_blocks(len(usable))}, {plan.looks[0]} are needed.", None
        )
    interval = t_interval(usable, plan.alpha / 2.0)
    mean, low, high = interval.percent
    numbers = f"{mean:+.1f} % ({low:+.1f} to {high:+.1f} %, {len(usable)} blocks)"
    if (interval.low > 0 or interval.high < 0) and abs(interval.mean) > plan.upper_margin / 2.0:
        return GateResult("null_arm", False, f"The baseline differs from itself: {numbers}.", interval)
    unseen = max(abs(low), abs(high))
    return GateResult(
        "null_arm",
        True,
        f"The null arm agrees with the baseline: {numbers}; up to {unseen:.1f} % would go unseen.",
        interval,
    )


def control_gate(d_control: Sequence[float], plan: SequentialPlan) -> GateResult:
    """The positive control must be seen to pay: its interval lies above the margin at one of the looks.

    A session in which nothing can be seen to pay cannot say that something does not pay. The bounds are those of one
    verdict alone (a gate is no finding of the report, so it takes no part in the correction for their number): a
    control without any gain passes no more often than a single finding is wrongly overturned.
    """
    seen = analyse(d_control, replace(plan, family=1), PAYS)
    passed = seen.decision is Verdict.HOLDS
    if seen.interval is None:
        return GateResult("positive_control", False, f"The positive control has {_blocks(seen.blocks)}.", None)
    mean, low, _ = seen.interval.percent
    found = "pays" if passed else "was not seen to pay"
    numbers = (
        f"{mean:+.1f} %, lower bound {low:+.1f} %, margin {100 * plan.margin:+.1f} %, {_blocks(seen.interval.blocks)}"
    )
    return GateResult("positive_control", passed, f"The positive control {found}: {numbers}.", seen.interval)


# --- parts -----------------------------------------------------------------------------------------------------------


def _standard_error(values: np.ndarray[Any, Any]) -> float:
    return float(values.std(ddof=1)) / math.sqrt(values.size)


def _deviation(values: Sequence[float]) -> float | None:
    return float(np.std(np.asarray(values), ddof=1)) if len(values) > 1 else None


def _evidence(values: Sequence[float], plan: SequentialPlan) -> _Evidence:
    """The three one-sided t tests on `values`. Identical values prove nothing: all p values are 1."""
    array = np.asarray(values, dtype=float)
    error = _standard_error(array)
    if error <= 1e-12:
        return _Evidence(1.0, 1.0, 1.0)
    mean, freedom = float(array.mean()), array.size - 1

    def below(bound: float) -> float:
        return float(stdtr(freedom, (mean - bound) / error))

    def above(bound: float) -> float:
        return float(stdtr(freedom, (bound - mean) / error))

    return _Evidence(
        gains=above(plan.upper_margin),
        loses=below(0.0),
        equal=max(below(plan.upper_margin), above(plan.lower_margin)),
    )


def _verdict(evidence: _Evidence, plan: SequentialPlan, look: int) -> Verdict:
    """The rule for "does not pay" at one look."""
    if evidence.gains < plan.two_sided_level(look):
        return Verdict.NO_LONGER_HOLDS
    if evidence.loses < plan.two_sided_level(look) or evidence.equal < plan.equivalence_level(look):
        return Verdict.HOLDS
    return Verdict.INCONCLUSIVE


def _p_values(values: Sequence[float], plan: SequentialPlan, reached: Sequence[int]) -> tuple[float, float]:
    """(p of "gains more than the margin", p of "does not") over the looks so far, on the scale of alpha.

    A verdict is settled at family 1 exactly when its p value is below alpha: each look's p value is divided by the
    look's share (weighted Bonferroni), doubled for the two-sided interval, and scaled where the equivalence test has
    an error rate of its own.
    """
    shares = plan.shares()
    gains, does_not = 1.0, 1.0
    for index in reached:
        evidence = _evidence(values[: plan.looks[index]], plan)
        gains = min(gains, 2.0 * evidence.gains / shares[index])
        does_not = min(
            does_not,
            2.0 * evidence.loses / shares[index],
            evidence.equal * plan.alpha / plan.equivalence_alpha / shares[index],
        )
    return gains, does_not


def _doubt(usable: Sequence[float], missing: int, verdicts: Sequence[Verdict]) -> str:
    """Why no verdict may be given whatever the numbers are; empty where there is no such reason."""
    if len(usable) < 2:
        return f"Blocks with a result: {len(usable)}; an interval needs two."
    if missing > LARGEST_MISSING_SHARE * (len(usable) + missing):
        total = len(usable) + missing
        return f"{missing} of {total} blocks have no result; the others may be the ones that happened to go well."
    if max(usable) - min(usable) <= 1e-12:
        return f"All {len(usable)} blocks gave the same value to the last digit; real measurements differ."
    if Verdict.HOLDS in verdicts and Verdict.NO_LONGER_HOLDS in verdicts:
        return "The looks contradict each other: one settled it one way, a later one the other way."
    return ""


def _deciding_interval(values: Sequence[float], verdict: Verdict, plan: SequentialPlan, look: int) -> Interval:
    """The interval a verdict (in terms of "does not pay") rests on: two-sided, or that of the equivalence test."""
    interval = t_interval(values, plan.two_sided_level(look))
    if verdict is Verdict.HOLDS and interval.high >= 0:
        return t_interval(values, plan.equivalence_level(look))
    return interval


def _outliers(d: Sequence[float]) -> tuple[int, ...]:
    """Numbers (from 1) of the blocks more than five robust standard deviations from the median."""
    array = np.asarray(d, dtype=float)
    finite = array[np.isfinite(array)]
    if finite.size < 4:
        return ()
    median = float(np.median(finite))
    scale = 1.4826 * float(np.median(np.abs(finite - median)))
    far = np.isfinite(array) & (np.abs(array - median) > OUTLIER_LIMIT * scale)
    return tuple(int(i) + 1 for i in np.flatnonzero(far)) if scale > 0 else ()


def _exchanged(verdict: Verdict) -> Verdict:
    return {Verdict.HOLDS: Verdict.NO_LONGER_HOLDS, Verdict.NO_LONGER_HOLDS: Verdict.HOLDS}.get(verdict, verdict)


def _blocks(count: int) -> str:
    return f"{count} block" if count == 1 else f"{count} blocks"


def _settled_reason(verdict: Verdict, interval: Interval, look: int, plan: SequentialPlan) -> str:
    """The sentence for people about a settled verdict, given in terms of "does not pay"."""
    mean, low, high = interval.percent
    margin = 100.0 * plan.margin
    numbers = f"Settled after {look} blocks: {mean:+.1f} % ({low:+.1f} to {high:+.1f} %)"
    if verdict is Verdict.NO_LONGER_HOLDS:
        return f"{numbers}, all of it above {margin:+.1f} %."
    if interval.high < 0:
        return f"{numbers}, all of it below 0."
    return f"{numbers}, shown to lie within {margin:.1f} % of no change."


def _open_reason(nominal: Interval, needed: int | None, plan: SequentialPlan) -> str:
    """The sentence for people where nothing is settled yet: where it stands, and how much more it would take."""
    mean, low, high = nominal.percent
    blocks = nominal.blocks
    following = [look for look in plan.looks if look > blocks]
    state = f"next look after {following[0]}" if following else "the planned maximum is reached"
    more = f"about {needed - blocks} more would settle it" if needed else f"more than {MOST_BLOCKS} would be needed"
    return f"Open after {_blocks(blocks)} ({state}): {mean:+.1f} %, plain interval {low:+.1f} to {high:+.1f} %; {more}."
