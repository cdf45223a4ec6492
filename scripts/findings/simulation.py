"""Simulated sessions with a known truth: how often does the rule of `inference` err, and what does a verdict cost?

Each simulated session has four arms (baseline, null, control, candidate) in the orders that `design` really gives.
Noise acts on the ln speed of every slot (one arm in one block), as it does on a machine; what is judged is the
difference to the baseline of the same block. The rule is evaluated for all sessions at once; a test compares it with
`inference.analyse` session by session.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtr, stdtrit

from findings.design import order_for_block
from findings.inference import SequentialPlan

Array = NDArray[np.float64]
Whole = NDArray[np.int64]

ARMS: Final = ("baseline", "null", "control", "candidate")
BASELINE, NULL, CONTROL, CANDIDATE = range(4)
SEED: Final = 20260506
SEEDS_OF_ORDERS: Final = 200
OPEN, HOLDS, NO_LONGER = 0, 1, 2

SDS: Final = (0.02, 0.05, 0.10, 0.20)
STUDY_EFFECTS: Final = (-0.73, -0.33, -0.13, 0.27, 0.47)
POWER_EFFECTS: Final = (-0.73, -0.33, -0.13, -0.05, 0.0, 0.05, 0.10, 0.15, 0.20, 0.27, 0.47, 1.30)
PLAN_EFFECTS: Final = (-0.73, -0.45, -0.33, -0.13, 0.0, 0.27, 0.47, 1.30)
DEFAULT_PLAN: Final = SequentialPlan()
SHORT_LOOKS: Final = (4, 6)
LONG_PLAN: Final = SequentialPlan(looks=(4, 6, 8, 12, 16, 24, 36, 48, 64))

# Sizes of the disturbances, on the ln scale.
DRIFT_OVER_SESSION: Final = -0.36  # a machine that ends 30 % slower than it began
DRIFT_WITHIN_BLOCK: Final = -0.10  # and in each block the last arm is 10 % slower than the first
BURST_DEPTH: Final = -0.70  # something else takes half of the machine
BURST_STARTS: Final = 0.02  # chance per slot
BURST_ENDS: Final = 0.25  # chance per slot: four slots (a whole block) on average
CORRELATION: Final = 0.5


class Noise(StrEnum):
    """What disturbs the blocks. The last one breaks the assumption that blocks are independent, on purpose."""

    NORMAL = "normal"
    DRIFT = "drift"
    BURST = "burst"
    HEAVY_TAILS = "heavy tails"
    CORRELATED = "correlated blocks"


COVERED: Final = (Noise.NORMAL, Noise.DRIFT, Noise.BURST, Noise.HEAVY_TAILS)


@dataclass(frozen=True)
class Judged:
    """The rule's answers, one per session: `verdict` (0 open, 1 holds, 2 no longer holds), `blocks` spent, and the two
    p values at the stop.
    """

    verdict: Whole
    blocks: Whole
    p_holds: Array
    p_no_longer: Array


# --- sessions --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=8)
def _positions(blocks: int, counterbalanced: bool) -> Whole:
    """Position (0 ..) of each arm: shape (seeds, blocks, arms)."""
    if not counterbalanced:
        return np.tile(np.arange(len(ARMS)), (1, blocks, 1))
    table = [
        [[order.index(arm) for arm in ARMS] for order in (order_for_block(ARMS, b + 1, seed) for b in range(blocks))]
        for seed in range(SEEDS_OF_ORDERS)
    ]
    return np.asarray(table, dtype=np.int64)


def sessions(
    rng: np.random.Generator,
    trials: int,
    blocks: int,
    sd: float,
    noise: Noise = Noise.NORMAL,
    *,
    counterbalanced: bool = True,
) -> Array:
    """ln ratios to the baseline where no arm has an effect: shape (trials, blocks, arms), the baseline's are 0.

    `sd` is the standard deviation of the independent part of a ln ratio; drift and bursts come on top of it.
    """
    shape = (trials, blocks, len(ARMS))
    if noise is Noise.HEAVY_TAILS:
        # The ln ratio itself has the tails of t with three degrees of freedom (sd of that: sqrt(3)).
        ratios = rng.standard_t(3, size=shape) * (sd / math.sqrt(3.0))
        ratios[:, :, BASELINE] = 0.0
        return ratios
    if noise is Noise.CORRELATED:
        return _correlated(rng, shape, sd)
    speed = rng.standard_normal(shape) * (sd / math.sqrt(2.0))
    positions = _positions(blocks, counterbalanced)
    places = positions[rng.integers(len(positions), size=trials)]
    if noise is Noise.DRIFT:
        slots = np.arange(blocks)[None, :, None] * len(ARMS) + places
        speed += DRIFT_OVER_SESSION * slots / (blocks * len(ARMS)) + DRIFT_WITHIN_BLOCK * places / (len(ARMS) - 1)
    if noise is Noise.BURST:
        busy = _bursts(rng, trials, blocks * len(ARMS)).reshape(shape)
        speed += BURST_DEPTH * np.take_along_axis(busy, places, axis=2)
    return speed - speed[:, :, BASELINE : BASELINE + 1]


def _bursts(rng: np.random.Generator, trials: int, slots: int) -> NDArray[np.bool_]:
    """Which slots something else disturbs: runs of slots that begin and end at random."""
    draws = rng.random((trials, slots))
    busy = np.zeros((trials, slots), dtype=np.bool_)
    now = np.zeros(trials, dtype=np.bool_)
    for slot in range(slots):
        now = np.where(now, draws[:, slot] >= BURST_ENDS, draws[:, slot] < BURST_STARTS)
        busy[:, slot] = now
    return busy


def _correlated(rng: np.random.Generator, shape: tuple[int, int, int], sd: float) -> Array:
    """ln ratios in which each block resembles the one before (first-order autoregression)."""
    ratios = rng.standard_normal(shape) * sd
    for block in range(1, shape[1]):
        ratios[:, block] = CORRELATION * ratios[:, block - 1] + math.sqrt(1.0 - CORRELATION**2) * ratios[:, block]
    ratios[:, :, BASELINE] = 0.0
    return ratios


# --- the rule, for many sessions at once -----------------------------------------------------------------------------


def judge(d: Array, plan: SequentialPlan) -> Judged:
    """`inference.analyse` for "does not pay" on each row of `d`, stopping when settled.

    `d` has the shape (trials, at least plan.max_blocks), finite.
    """
    trials = len(d)
    verdict, blocks = np.zeros(trials, dtype=np.int64), np.full(trials, plan.max_blocks, dtype=np.int64)
    p_holds, p_no_longer = np.ones(trials), np.ones(trials)
    going = np.ones(trials, dtype=np.bool_)
    for index, (look, share) in enumerate(zip(plan.looks, plan.shares(), strict=True)):
        gains, loses, equal = _tests(d[:, :look], plan)
        p_no_longer = np.where(going, np.minimum(p_no_longer, 2.0 * gains / share), p_no_longer)
        equal_scaled = equal * plan.alpha / plan.equivalence_alpha
        p_holds = np.where(going, np.minimum(p_holds, np.minimum(2.0 * loses, equal_scaled) / share), p_holds)
        above = gains < plan.two_sided_level(index)
        inside = (loses < plan.two_sided_level(index)) | (equal < plan.equivalence_level(index))
        now = np.where(above, NO_LONGER, np.where(inside, HOLDS, OPEN))
        stops = going & (now != OPEN)
        verdict[stops], blocks[stops] = now[stops], look
        going &= ~stops
    return Judged(verdict, blocks, p_holds, p_no_longer)


def _tests(values: Array, plan: SequentialPlan) -> tuple[Array, Array, Array]:
    """One-sided p values per row: gain at most the margin, gain at least 0, not equivalent."""
    count = values.shape[1]
    mean, error = values.mean(axis=1), values.std(axis=1, ddof=1) / math.sqrt(count)
    below_upper = (mean - plan.upper_margin) / error
    above_lower = (plan.lower_margin - mean) / error
    gains, loses = stdtr(count - 1, -below_upper), stdtr(count - 1, mean / error)
    return gains, loses, np.maximum(stdtr(count - 1, below_upper), stdtr(count - 1, above_lower))


def naive(d: Array, plan: SequentialPlan) -> Whole:
    """What looking without correction gives: the plain intervals at every look. Verdicts only."""
    verdict = np.zeros(len(d), dtype=np.int64)
    for look in plan.looks:
        gains, loses, equal = _tests(d[:, :look], plan)
        inside = (loses < plan.alpha / 2.0) | (equal < plan.equivalence_alpha)
        now = np.where(gains < plan.alpha / 2.0, NO_LONGER, np.where(inside, HOLDS, OPEN))
        verdict = np.where(verdict == OPEN, now, verdict)
    return verdict


def ever_outside(d: Array, truth: float, plan: SequentialPlan) -> float:
    """How often the two-sided interval misses the truth at one look or more (sessions that never stop)."""
    missed = np.zeros(len(d), dtype=np.bool_)
    for index, look in enumerate(plan.looks):
        values = d[:, :look]
        half = -stdtrit(look - 1, plan.two_sided_level(index)) * values.std(axis=1, ddof=1) / math.sqrt(look)
        missed |= np.abs(values.mean(axis=1) - truth) > half
    return float(missed.mean())


def fixed_blocks(rng: np.random.Generator, trials: int, effect: float, sd: float, power: float, most: int = 80) -> int:
    """Smallest number of blocks, looked at once with the plain intervals, that gives a true verdict with `power`.

    True is "no longer holds" for an effect above the margin, else "holds". Raises ValueError where `most` is too few.
    """
    d = math.log1p(effect) + sessions(rng, trials, most, sd)[:, :, CANDIDATE]
    for blocks in range(2, most + 1):
        plan = SequentialPlan(looks=(blocks,))
        if float((judge(d, plan).verdict == _truth(effect, plan)).mean()) >= power:
            return blocks
    raise ValueError(f"{most} blocks are not enough for power {power} at effect {effect}")


def _truth(effect: float, plan: SequentialPlan) -> int:
    return NO_LONGER if effect > plan.margin else HOLDS


def holm_many(p: Array, alpha: float) -> NDArray[np.bool_]:
    """Holm's procedure on each row of `p` (sessions, findings)."""
    order = np.argsort(p, axis=1)
    lines = alpha / np.arange(p.shape[1], 0, -1)
    passed = np.logical_and.accumulate(np.take_along_axis(p, order, axis=1) <= lines, axis=1)
    accepted = np.zeros_like(passed)
    np.put_along_axis(accepted, order, passed, axis=1)
    return accepted


# --- the tables ------------------------------------------------------------------------------------------------------


Row = dict[str, Any]


def error_rates(trials: int, plan: SequentialPlan = DEFAULT_PLAN) -> list[Row]:
    """False verdicts under peeking, one row per noise and standard deviation; the truth is 0 or exactly the margin."""
    rows = []
    for number, (noise, sd) in enumerate((noise, sd) for noise in Noise for sd in SDS):
        rng = np.random.default_rng([SEED, 1, number])
        d = sessions(rng, trials, plan.max_blocks, sd, noise)[:, :, CANDIDATE]
        at_zero, at_margin = judge(d, plan), judge(d + plan.upper_margin, plan)
        rows.append(
            {
                "noise": str(noise),
                "sd": sd,
                "no_longer_at_0": _rate(at_zero.verdict == NO_LONGER),
                "no_longer_at_margin": _rate(at_margin.verdict == NO_LONGER),
                "holds_at_margin": _rate(at_margin.verdict == HOLDS),
                "naive_no_longer_at_margin": _rate(naive(d + plan.upper_margin, plan) == NO_LONGER),
                "naive_holds_at_margin": _rate(naive(d + plan.upper_margin, plan) == HOLDS),
                "interval_misses": round(ever_outside(d, 0.0, plan), 4),
            }
        )
    return rows


def fixed_order(trials: int, plan: SequentialPlan = DEFAULT_PLAN) -> list[Row]:
    """What the drift does to a candidate without any effect where the arms always run in the same order."""
    rows = []
    for number, sd in enumerate(SDS):
        row: Row = {"sd": sd}
        for name, balanced in (("fixed", False), ("counterbalanced", True)):
            rng = np.random.default_rng([SEED, 2, number])
            d = sessions(rng, trials, plan.max_blocks, sd, Noise.DRIFT, counterbalanced=balanced)[:, :, CANDIDATE]
            row[f"{name}_mean_percent"] = round(100.0 * math.expm1(float(d.mean())), 1)
            row[f"{name}_loss"] = _rate(_called_a_loss(d, plan))
        rows.append(row)
    return rows


def _called_a_loss(d: Array, plan: SequentialPlan) -> NDArray[np.bool_]:
    """Where the interval is seen to lie below 0 at some look: a loss although there is none."""
    found = np.zeros(len(d), dtype=np.bool_)
    for index, look in enumerate(plan.looks):
        found |= _tests(d[:, :look], plan)[1] < plan.two_sided_level(index)
    return found


def power_curve(trials: int, plan: SequentialPlan = DEFAULT_PLAN) -> list[Row]:
    """Share of verdicts and mean number of blocks, by true effect and noise."""
    rows = []
    for number, sd in enumerate(SDS):
        rng = np.random.default_rng([SEED, 3, number])
        d = sessions(rng, trials, plan.max_blocks, sd)[:, :, CANDIDATE]
        for effect in POWER_EFFECTS:
            judged = judge(d + math.log1p(effect), plan)
            rows.append(
                {
                    "sd": sd,
                    "effect": effect,
                    "holds": _rate(judged.verdict == HOLDS),
                    "no_longer": _rate(judged.verdict == NO_LONGER),
                    "open": _rate(judged.verdict == OPEN),
                    "mean_blocks": round(float(judged.blocks.mean()), 2),
                }
            )
    return rows


def plans(trials: int) -> list[Row]:
    """What shorter plans and larger families can settle: share of sessions with a verdict, by effect and noise."""
    rows = []
    for looks in (SHORT_LOOKS, DEFAULT_PLAN.looks):
        for family in (1, 6):
            plan = SequentialPlan(looks=looks, family=family)
            for number, sd in enumerate((0.05, 0.10)):
                d = sessions(np.random.default_rng([SEED, 7, number]), trials, plan.max_blocks, sd)[:, :, CANDIDATE]
                row: Row = {"looks": ", ".join(map(str, looks)), "family": family, "sd": sd}
                for effect in PLAN_EFFECTS:
                    row[f"{effect:+.2f}"] = _rate(judge(d + math.log1p(effect), plan).verdict != OPEN)
                rows.append(row)
    return rows


def costs(trials: int, sd: float = 0.10) -> list[Row]:
    """Blocks to a verdict: the sequential plans against designs of fixed size with the same error rate and power 0.9.

    `fixed_for_this`: sized for this very effect, as if it were known. `fixed_for_any`: sized before anything is known,
    so that every effect of the study and "no effect" gets its verdict with power 0.9; that is the largest of all.
    """
    rng = np.random.default_rng([SEED, 4])
    effects = (*STUDY_EFFECTS, 0.0)
    sized = {effect: fixed_blocks(rng, min(trials, 20_000), effect, sd, 0.9) for effect in effects}
    in_study = max(sized[effect] for effect in STUDY_EFFECTS)
    rows = []
    for effect in effects:
        row: Row = {
            "effect": effect,
            "fixed_for_this": sized[effect],
            "fixed_for_study": in_study,
            "fixed_for_any": max(sized.values()),
        }
        for name, plan in (("default", DEFAULT_PLAN), ("long", LONG_PLAN)):
            d = sessions(rng, trials, plan.max_blocks, sd)[:, :, CANDIDATE] + math.log1p(effect)
            judged = judge(d, plan)
            row[f"{name}_blocks"] = round(float(judged.blocks.mean()), 2)
            row[f"{name}_true"] = _rate(judged.verdict == _truth(effect, plan))
            row[f"{name}_first_look"] = _rate((judged.blocks == plan.looks[0]) & (judged.verdict != OPEN))
        rows.append(row)
    return rows


def families(trials: int, size: int = 6) -> list[Row]:
    """Six findings reported together: chance of at least one false verdict, with and without Holm, and the cost."""
    margin = DEFAULT_PLAN.margin
    half = size // 2
    truths: Sequence[tuple[str, float, Sequence[float]]] = (
        ("six without effect", 0.10, [0.0] * size),
        ("six at the margin", 0.10, [margin] * size),
        ("six at the margin, noise 0.02", 0.02, [margin] * size),
        ("three losses (-33 %), three at the margin", 0.10, [-0.33] * half + [margin] * half),
        ("three gains (+47 %), three at the margin", 0.10, [0.47] * half + [margin] * half),
        ("three losses (-33 %), three gains (+47 %)", 0.10, [-0.33] * half + [0.47] * half),
    )
    rows = []
    for number, (name, sd, effects) in enumerate(truths):
        rng = np.random.default_rng([SEED, 5, number])
        noise = [sessions(rng, trials, DEFAULT_PLAN.max_blocks, sd)[:, :, CANDIDATE] for _ in effects]
        row: Row = {"truth": name}
        for key, family in (("one", 1), ("six", size)):
            plan = SequentialPlan(family=family)
            judged = [judge(d + math.log1p(effect), plan) for d, effect in zip(noise, effects, strict=True)]
            settled = np.stack([j.verdict for j in judged], axis=1)
            p_holds, p_no_longer = (
                np.stack([getattr(j, side) for j in judged], axis=1) for side in ("p_holds", "p_no_longer")
            )
            accepted = holm_many(np.minimum(p_holds, p_no_longer), plan.alpha)
            reported = np.where(accepted, np.where(p_holds <= p_no_longer, HOLDS, NO_LONGER), OPEN)
            row[f"{key}_false_no_longer"] = _any_false(reported, effects, NO_LONGER)
            row[f"{key}_false_holds"] = _any_false(reported, effects, HOLDS)
            row[f"{key}_lost_by_holm"] = _rate((settled != OPEN) & (reported == OPEN))
            row[f"{key}_settled"] = _rate(reported != OPEN)
            row[f"{key}_blocks"] = round(float(np.mean([j.blocks.mean() for j in judged])), 2)
            if family == 1:
                row["unadjusted_false_no_longer"] = _any_false(settled, effects, NO_LONGER)
                row["unadjusted_false_holds"] = _any_false(settled, effects, HOLDS)
        rows.append(row)
    return rows


def _any_false(verdicts: Whole, effects: Sequence[float], kind: int) -> float:
    """Share of sessions in which at least one finding got the verdict `kind` although it is not true."""
    margin = DEFAULT_PLAN.margin
    untrue = np.asarray([effect <= margin if kind == NO_LONGER else effect >= margin for effect in effects])
    return _rate(((verdicts == kind) & untrue).any(axis=1))


def gate_rates(trials: int, plan: SequentialPlan = DEFAULT_PLAN) -> list[Row]:
    """How often the gates fire when they must not, and when they must.

    The null gate is judged where the candidate's session stops (a candidate with no effect: mostly all blocks; one
    with -33 %: early). The control gate is judged for a control without gain, and with one of +130 %.
    """
    rows = []
    for number, sd in enumerate(SDS):
        rng = np.random.default_rng([SEED, 6, number])
        d = sessions(rng, trials, plan.max_blocks, sd)
        row: Row = {"sd": sd}
        for name, effect in (("none", 0.0), ("loss", -0.33)):
            stop = judge(d[:, :, CANDIDATE] + math.log1p(effect), plan).blocks
            row[f"null_false_alarm_{name}"] = _rate(_null_fails(d[:, :, NULL], stop, plan))
        for bias in (0.05, 0.10, 0.20):
            every = np.full(trials, plan.max_blocks, dtype=np.int64)
            row[f"null_finds_{round(100 * bias)}"] = _rate(_null_fails(d[:, :, NULL] + math.log1p(bias), every, plan))
        row["control_without_gain"] = _rate(judge(d[:, :, CONTROL], plan).verdict == NO_LONGER)
        paying = judge(d[:, :, CONTROL] + math.log1p(1.3), plan)
        row["control_seen"] = _rate(paying.verdict == NO_LONGER)
        row["control_blocks"] = round(float(paying.blocks.mean()), 2)
        rows.append(row)
    return rows


def _null_fails(d: Array, stop: Whole, plan: SequentialPlan) -> NDArray[np.bool_]:
    """`inference.null_gate` on each row, with the blocks up to `stop`."""
    fails = np.zeros(len(d), dtype=np.bool_)
    for look in plan.looks:
        values = d[:, :look]
        mean = values.mean(axis=1)
        half = -stdtrit(look - 1, plan.alpha / 2.0) * values.std(axis=1, ddof=1) / math.sqrt(look)
        fails |= (stop == look) & (np.abs(mean) > half) & (np.abs(mean) > plan.upper_margin / 2.0)
    return fails


def _rate(hits: NDArray[np.bool_]) -> float:
    return round(float(hits.mean()), 4)


TABLES: Final[Mapping[str, Callable[[int], list[Row]]]] = {
    "errors": error_rates,
    "order": fixed_order,
    "power": power_curve,
    "plans": plans,
    "costs": costs,
    "families": families,
    "gates": gate_rates,
}


def simulate(trials: int) -> dict[str, Any]:
    """All tables, JSON-able: {"trials", "seed", "plan", "long_plan", and one list of rows per table}."""
    return {
        "trials": trials,
        "seed": SEED,
        "plan": list(DEFAULT_PLAN.looks),
        "long_plan": list(LONG_PLAN.looks),
        **{name: table(trials) for name, table in TABLES.items()},
    }
