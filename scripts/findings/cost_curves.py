"""Cost curves of measured sessions as rows for the break-even figure: predicted speed by acceptance, and what was seen.

The costs stand in the records of blocks (`costs`), which no table holds; they are read from the records and bundles
that the tables were made of.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from findings.breakeven import (
    Acceptance,
    CostCurve,
    acceptance_from_conditional,
    break_even,
    cost_curve,
    tokens_per_round,
)
from findings.bundles import RecordFile
from findings.config import Configuration
from findings.records import parse_record

COLUMNS = (
    "evidence", "host", "attempt", "engine", "arm", "drafted", "acceptance", "ratio", "observed_acceptance",
    "observed_ratio", "needed_acceptance", "predicted_ratio",
)  # fmt: skip
STEPS = 40
Row = Mapping[str, Any]
Costs = Mapping[str, Any]


def block_costs(files: Iterable[RecordFile], effects: Iterable[Row]) -> dict[tuple[str, str, str], list[Costs]]:
    """(host, attempt, engine) -> the costs of its blocks, in the order of the records.

    `files` are records of this disk and of bundles; those that no measured row of `effects` names are passed over.
    """
    wanted = {
        str(row["record"]): (str(row["host"]), str(row["attempt"]), str(row["engine"]))
        for row in effects
        if row["evidence"] == "measured"
    }
    found: dict[tuple[str, str, str], list[Costs]] = {}
    for file in sorted((file for file in files if file.label in wanted), key=lambda file: file.label):
        detail = parse_record(file.json(), file.label).detail
        costs = detail.get("costs")
        if costs:
            counted = _counters(detail)
            found.setdefault(wanted[file.label], []).append({**costs, "counters": counted} if counted else costs)
    return found


def _counters(detail: Row) -> dict[str, tuple[int, int, int]]:
    """By arm of a block that drafted: (tokens that took time, drafted, accepted), over the counted requests.

    The first token of an answer comes out of the prompt and takes no time, so it belongs to no round.
    """
    found: dict[str, tuple[int, int, int]] = {}
    for name, arm in detail.get("arms", {}).items():
        requests = [r for r in arm.get("requests", ()) if r["counted"] and r["outcome"] == "ok"]
        drafted = sum(r["draft_n"] or 0 for r in requests)
        if drafted:
            timed = sum(r["predicted_n"] - 1 for r in requests)
            found[name] = (timed, drafted, sum(r["draft_n_accepted"] or 0 for r in requests))
    return found


def predicted_ratio(curve: CostCurve, length: int, blocks: Sequence[Costs], arm: str) -> float:
    """The ratio of speeds that the curve gives for the drafts and acceptances that were counted in `blocks`.

    NaN where the arm drafted nothing. The drafts' own mean length counts, which is below `length` where the engine or
    the end of the answer cut them short.
    """
    counted = [costs["counters"][arm] for costs in blocks if arm in costs.get("counters", {})]
    timed, drafted, accepted = (sum(column) for column in zip(*counted, strict=True)) if counted else (0, 0, 0)
    if not drafted or accepted >= timed:
        return math.nan
    predicted = break_even(curve, length, Acceptance(timed, drafted, accepted)).predicted_speedup
    return math.nan if predicted is None else predicted


def curve_rows(
    configuration: Configuration, effects: Sequence[Row], costs: Mapping[tuple[str, str, str], Sequence[Costs]]
) -> pd.DataFrame:
    """Rows of figures.break_even for every arm whose drafter's cost was measured."""
    rows: list[dict[str, Any]] = []
    for (host, attempt, engine), blocks in sorted(costs.items()):
        configured = configuration.attempts.get(attempt)
        for arm in configured.arms if configured else ():
            curve = curve_of_blocks(blocks, arm.id)
            length = arm.speculation.n_max
            if curve is None or not length or length + 1 > max(curve.target_s):
                continue
            here = [
                row
                for row in effects
                if row["evidence"] == "measured"
                and (row["host"], row["attempt"], row["engine"], row["arm"]) == (host, attempt, engine, arm.id)
                and row["prompt_class"] == "all"
            ]
            shared = {"evidence": "measured", "host": host, "attempt": attempt, "engine": engine, "arm": arm.id}
            predicted = {"predicted_ratio": predicted_ratio(curve, length, blocks, arm.id)}
            rows += _points(curve, length, shared | {"drafted": length} | _observed(here) | predicted)
    return pd.DataFrame(rows, columns=list(COLUMNS))


def curve_of_blocks(blocks: Sequence[Costs], arm: str) -> CostCurve | None:
    """All blocks' timings of one arm as a curve in seconds; None where target or drafter was not timed."""
    target: dict[int, list[float]] = {}
    draft: list[float] = []
    for costs in blocks:
        for width, samples in costs.get("target_ms", {}).items():
            target.setdefault(int(width), []).extend(float(ms) / 1000 for ms in samples)
        draft += [float(ms) / 1000 for ms in costs.get("draft_ms", {}).get(arm, ())]
    target = {width: samples for width, samples in target.items() if samples}
    return cost_curve(target, draft) if 1 in target and draft else None


def _observed(rows: Sequence[Row]) -> dict[str, float]:
    """Acceptance over all blocks and the mean ratio of speeds; NaN where the arm did not draft."""
    drafted = sum(int(row["draft_tokens"] or 0) for row in rows)
    accepted = sum(int(row["accepted_tokens"] or 0) for row in rows)
    logs = [float(row["ln_ratio"]) for row in rows if row["ln_ratio"] is not None]
    return {
        "observed_acceptance": accepted / drafted if drafted else math.nan,
        "observed_ratio": math.exp(math.fsum(logs) / len(logs)) if logs and drafted else math.nan,
    }


def _points(curve: CostCurve, length: int, shared: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The predicted ratio of speeds along acceptance, for drafts of `length` tokens."""
    result = break_even(curve, length)
    needed = math.inf if result.needed_acceptance is None else result.needed_acceptance
    cost = curve.round_cost(length)
    return [
        {
            **shared,
            "acceptance": acceptance_from_conditional(step / STEPS, length),
            "ratio": tokens_per_round(step / STEPS, length) / cost,
            "needed_acceptance": needed,
        }
        for step in range(STEPS + 1)
    ]
