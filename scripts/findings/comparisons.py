"""Arms against their baseline, as lines for a figure or a table: block effects, interval, or why there is no speed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from findings.inference import t_interval

DRAFTED = "engaged_with_drafts"
ARM_ORDER = ("null", "positive_control", "candidate")


def block_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Mean and t interval of block effects (ln ratios); infinite where one block says nothing about their spread."""
    if len(values) < 2:
        return math.fsum(values) / len(values), -math.inf, math.inf
    interval = t_interval(values, (1.0 - level) / 2)
    return interval.mean, interval.low, interval.high


@dataclass(frozen=True)
class EffectRow:
    """One line of the figure: an arm on a class of prompts, its block effects (ln ratios) and its interval."""

    label: str
    arm_kind: str
    blocks: tuple[float, ...]
    mean: float
    low: float
    high: float
    judged: bool
    silent: str


def effect_panels(effects: pd.DataFrame, verdicts: pd.DataFrame) -> dict[tuple[str, str, str], list[EffectRow]]:
    """Lines of the figure by (host, attempt, engine), measured evidence only.

    An arm on a class of prompts that never drafted gets no speed: its line says what it did instead.
    """
    ours = of_evidence(effects, "measured")
    panels: dict[tuple[str, str, str], list[EffectRow]] = {}
    if len(ours):
        for key, here in ours.groupby(["host", "attempt", "engine"], sort=True):
            host, attempt, engine = (str(k) for k in key)
            judged = where(verdicts, host=host, attempt=attempt, engine=engine, evidence="measured")
            panels[(host, attempt, engine)] = _panel_rows(here, judged)
    return panels


def _panel_rows(here: pd.DataFrame, judged: pd.DataFrame) -> list[EffectRow]:
    """The lines of one panel, controls first, then the candidates; the mean over all classes leads."""
    found = {
        (str(kind), str(arm), str(group)): rows.sort_values(["session", "block"])
        for (kind, arm, group), rows in here.groupby(["arm_kind", "arm", "prompt_class"], sort=True)
    }
    whole = {(kind, arm) for (kind, arm, group), rows in found.items() if group == "all" and _silent(rows)}
    classes = Counter((kind, arm) for kind, arm, group in found if group != "all")
    lines = []
    for kind, arm, group in sorted(found, key=lambda k: (_rank(k[0]), k[1], k[2] != "all", k[2])):
        # One line says it all for the null arm and for an arm that drafted nowhere; `all` of one class is that class.
        if kind == "baseline" or (group != "all" and (kind == "null" or (kind, arm) in whole)):
            continue
        if group == "all" and kind != "null" and (kind, arm) not in whole and classes[(kind, arm)] == 1:
            continue
        rows = found[(kind, arm, group)]
        label = arm if group in ("all", arm) else f"{arm} · {group}"
        silent = "" if kind == "null" else _silent(rows)
        blocks = () if silent else tuple(float(v) for v in rows["ln_ratio"].dropna())
        if silent:
            lines.append(EffectRow(label, kind, (), math.nan, math.nan, math.nan, False, silent))
        elif blocks:
            mine = where(judged, arm=arm, prompt_class=group)
            if not len(mine) and classes[(kind, arm)] == 1:
                mine = where(judged, arm=arm, prompt_class="all")
            interval, rests = _interval(blocks, mine)
            lines.append(EffectRow(label, kind, blocks, *interval, rests, ""))
    return lines


def _interval(blocks: Sequence[float], verdicts: pd.DataFrame) -> tuple[tuple[float, float, float], bool]:
    """Mean, low and high as the verdict has them, and True; where none rests on these blocks, a plain t interval."""
    if len(verdicts):
        known = verdicts[verdicts[["ln_ratio", "ln_ratio_low", "ln_ratio_high"]].notna().all(axis=1)]
        for row in known.sort_values("finding").itertuples():
            return (float(str(row.ln_ratio)), float(str(row.ln_ratio_low)), float(str(row.ln_ratio_high))), True
    return block_interval(blocks), False


def _rank(kind: str) -> int:
    """Place of a kind of arm in a panel."""
    return ARM_ORDER.index(kind) if kind in ARM_ORDER else len(ARM_ORDER)


def _silent(rows: pd.DataFrame) -> str:
    """What an arm did that never drafted in these blocks; empty for one that drafted, or of which nothing is known."""
    words = {"not_engaged": "not engaged", "engaged_without_drafts": "engaged, drafted nothing", "off": "not engaged"}
    states = sorted({str(s) for s in rows["engagement"].dropna()} - {""})
    if not states or DRAFTED in states:
        return ""
    return words.get(states[0], states[0].replace("_", " "))


def of_evidence(frame: pd.DataFrame, evidence: str) -> pd.DataFrame:
    """The rows of one kind of evidence."""
    return where(frame, evidence=evidence)


def where(frame: pd.DataFrame, **wanted: object) -> pd.DataFrame:
    """The rows in which every named column has the given value; an empty frame has none."""
    if not len(frame):
        return frame
    keep = pd.Series(True, index=frame.index)
    for column, value in wanted.items():
        keep &= frame[column] == value
    return frame[keep]
