"""The figures: seaborn and matplotlib, each as SVG and PNG, the same tables giving the same bytes.

Every function takes tidy tables (findings/tables.py) and returns a Figure. None of them mixes kinds of evidence, and
each names its kind in the line below its title. A table with nothing to draw gives a figure that says why.
"""

from __future__ import annotations

import io
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

import numpy as np
import pandas as pd
import seaborn as sns
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from findings.comparisons import EffectRow, effect_panels, of_evidence, where
from findings.looks import ARM_KINDS, BACKENDS, EVIDENCE, GREY, OUTCOMES, Look, look
from findings.writing import whole_file

WIDTH_IN = 8.0
EPOCH = pd.Timestamp("2020-01-01")
QUESTIONS = {"loads": "will it load?", "engages": "will it engage?", "fits": "will it fit?", "pays": "will it pay?"}
STYLE: Mapping[str, object] = {
    # Glyphs as outlines: the picture looks the same wherever it is opened, and needs no font there.
    "svg.fonttype": "path",
    "svg.hashsalt": "negative-findings",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.labelsize": 9.0,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "legend.fontsize": 8.5,
    "figure.dpi": 100.0,
    "savefig.dpi": 150.0,
    "hatch.linewidth": 0.7,
    "axes.axisbelow": True,
    "path.simplify": False,
}


@dataclass(frozen=True)
class Drawn:
    """What the figures are drawn from; a table that is not there is an empty frame."""

    measurements: pd.DataFrame
    effects: pd.DataFrame
    verdicts: pd.DataFrame
    scores: pd.DataFrame
    timeline: pd.DataFrame
    breakeven: pd.DataFrame
    margin: float = 0.05
    remarks: Mapping[str, str] = field(default_factory=dict)


@contextmanager
def fixed_style() -> Iterator[None]:
    """Matplotlib's settings as these figures need them, whatever a user's matplotlibrc says."""
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.use("Agg")
        sns.set_theme(context="paper", style="whitegrid", rc=dict(STYLE))
        yield


def save(figure: Figure, stem: Path) -> tuple[Path, Path]:
    """Write `stem`.svg and `stem`.png, without a date or a program's version inside, each by rename."""
    svg, png = io.BytesIO(), io.BytesIO()
    with fixed_style():
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", metadata={"Software": None})
    targets = (stem.with_suffix(".svg"), stem.with_suffix(".png"))
    for target, content in zip(targets, (svg, png), strict=True):
        with whole_file(target) as part:
            part.write_bytes(content.getvalue())
    return targets


def empty(title: str, evidence: str, why: str) -> Figure:
    """A figure for nothing to draw: the title, and the reason in the middle."""
    figure = Figure(figsize=(WIDTH_IN, 2.2), layout="constrained")
    axes = figure.subplots()
    _headline(figure, title, evidence)
    axes.set_axis_off()
    axes.text(0.5, 0.5, textwrap.fill(why, 80), ha="center", va="center", color="#333333", transform=axes.transAxes)
    return figure


def _headline(figure: Figure, title: str, evidence: str, note: str = "") -> None:
    """Title, and below it the kind of evidence, so that a copied picture still says what it is."""
    line = f"Evidence: {EVIDENCE.get(evidence, evidence)}." + (f" {note}" if note else "")
    figure.suptitle(f"{title}\n", x=0.01, ha="left", fontsize=11.5, fontweight="bold", linespacing=1.5)
    figure.text(0.01, 1 - 0.33 / figure.get_figheight(), line, ha="left", va="top", fontsize=8.5, color="#444444")


def percent_label(ratio: float) -> str:
    """A ratio of speeds as the change in percent: 0.87 -> `−13 %`."""
    value = round((ratio - 1) * 100)
    sign = "+" if value > 0 else ("−" if value < 0 else "±")
    return f"{sign}{abs(value)} %"


def percent_ticks(low: float, high: float) -> list[float]:
    """Ratios for the ticks of a logarithmic axis of speed changes, about five to nine between two ln ratios."""
    steps = (
        -95,
        -90,
        -80,
        -70,
        -60,
        -50,
        -40,
        -30,
        -20,
        -10,
        -5,
        0,
        5,
        10,
        20,
        30,
        50,
        75,
        100,
        150,
        200,
        300,
        500,
        900,
    )
    inside = [step for step in steps if low <= math.log1p(step / 100) <= high]
    apart = (high - low) / 12
    kept: list[float] = []
    for step in sorted(inside, key=lambda s: (s != 0, abs(s) % 50 != 0, abs(s) % 10 != 0, abs(s))):
        if all(abs(math.log1p(step / 100) - math.log(ratio)) >= apart for ratio in kept):
            kept.append(1 + step / 100)
    return sorted(kept)


# --- (a) speed against the baseline -------------------------------------------------------------------------------


def speed_against_baseline(
    effects: pd.DataFrame, verdicts: pd.DataFrame, margin: float = 0.05, remarks: Mapping[str, str] | None = None
) -> Figure:
    """Change of generation speed against the same session's baseline, a panel per host, attempt and engine.

    `remarks`: what a panel's title must say about an attempt besides its name.
    """
    title = "Generation speed against the baseline, by attempt"
    panels = {k: v for k, v in effect_panels(effects, verdicts).items() if v}
    if not panels:
        return empty(title, "measured", "Nothing was measured yet: no block of arms is in the tables.")
    heights = [len(rows) for rows in panels.values()]
    figure = Figure(figsize=(WIDTH_IN, 1.9 + sum(0.27 * h + 0.62 for h in heights)), layout="constrained")
    grid = figure.subplots(len(panels), 1, squeeze=False, sharex=True, height_ratios=[h + 0.6 for h in heights])
    low, high = _span([row for rows in panels.values() for row in rows], margin)
    for axes, ((host, attempt, engine), rows) in zip(grid[:, 0], panels.items(), strict=True):
        _draw_effects(axes, rows, (low, high), margin)
        remark = f" ({said})" if (said := (remarks or {}).get(attempt)) else ""
        name = f"{attempt.replace('_', ' ')}{remark}: {engine} on {host}"
        axes.set_title(name, loc="left", fontweight="bold", fontsize=9)
    last = grid[-1, 0]
    last.set_xlim(low, high)
    ticks = percent_ticks(low, high)
    last.set_xticks([math.log(t) for t in ticks], [percent_label(t) for t in ticks])
    last.set_xlabel("change of generation speed (tokens/s) against the baseline, logarithmic scale")
    shapes: list[Artist] = [
        Line2D([], [], marker=s.marker, color=s.colour, linestyle="", markersize=7, label=s.label)
        for s in ARM_KINDS.values()
    ]
    shapes += [
        Line2D([], [], marker="o", color=GREY, mfc="none", linestyle="", markersize=4, label="one block"),
        Line2D([], [], marker="o", color="#333333", linestyle="-", markersize=0, label="95 % interval"),
        Line2D([], [], marker="x", color="#333333", linestyle="", markersize=7, label="did not draft: no speed"),
        Patch(facecolor="#DDDDDD", edgecolor="none", label=f"within ±{margin * 100:.0f} % (margin)"),
    ]
    figure.legend(handles=shapes, loc="outside lower center", ncol=4, frameon=False)
    _headline(figure, title, "measured", "Filled: a verdict rests on it; hollow: shown for comparison.")
    return figure


def _span(rows: Sequence[EffectRow], margin: float) -> tuple[float, float]:
    """Limits of the axis: all dots and finite interval ends, never narrower than four margins."""
    values = [0.0, -4 * margin, 4 * margin]
    for row in rows:
        values += [v for v in (*row.blocks, row.low, row.high) if math.isfinite(v) and abs(v) < 3]
    pad = 0.06 * (max(values) - min(values))
    return min(values) - pad, max(values) + pad


def _draw_effects(axes: Axes, rows: Sequence[EffectRow], limits: tuple[float, float], margin: float) -> None:
    """One panel: margin, zero, and a line per arm and class."""
    axes.axvspan(math.log1p(-margin), math.log1p(margin), color="#DDDDDD", zorder=0)
    axes.axvline(0, color="#333333", linewidth=1, zorder=1)
    for place, row in enumerate(rows):
        style = look(ARM_KINDS, row.arm_kind)
        if row.silent:
            axes.plot([0], [place], marker="x", color="#333333", markersize=7, mew=1.6, zorder=4)
            axes.annotate(
                row.silent,
                (0, place),
                xytext=(9, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
                zorder=4,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85},
            )
            continue
        offsets = np.linspace(-0.14, 0.14, len(row.blocks)) if len(row.blocks) > 1 else np.zeros(len(row.blocks))
        axes.scatter(
            row.blocks, place + 0.16 + offsets * 0.6, s=11, facecolors="none", edgecolors=GREY, linewidths=0.8, zorder=3
        )
        ends = [max(row.low, limits[0]), min(row.high, limits[1])]
        axes.plot(ends, [place - 0.12] * 2, color=style.colour, linewidth=2, solid_capstyle="butt", zorder=4)
        axes.plot(
            [row.mean],
            [place - 0.12],
            marker=style.marker,
            markersize=7,
            color=style.colour,
            mfc=style.colour if row.judged else "white",
            mew=1.4,
            zorder=5,
        )
    axes.set_yticks(range(len(rows)), [row.label for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


# --- (b) published speeds -----------------------------------------------------------------------------------------


def published_speeds(measurements: pd.DataFrame) -> Figure:
    """The study's generation speeds: backends by host and model, and the arms of its attempts."""
    title = "Generation speeds that the study published"
    rows = of_evidence(measurements, "published")
    rows = rows[rows["tg_tokens_per_s"].notna()] if len(rows) else rows
    if not len(rows):
        return empty(title, "published", "The tables hold no published generation speed.")
    rows = rows.assign(backend=rows["backend"].fillna("").astype(str), attempt=rows["attempt"].fillna("").astype(str))
    rows = rows.sort_values(["host", "model", "backend", "arm", "tg_tokens_per_s"], kind="stable")
    arms = rows["attempt"].str.fullmatch(r"attempt_\d+")
    parts = [
        (name, part)
        for name, part in (
            ("By host, model and backend, without speculation", rows[~arms]),
            ("Attempts: baseline and arms", rows[arms].sort_values("tg_tokens_per_s")[::-1]),
        )
        if len(part)
    ]
    heights = [len(part) for _, part in parts]
    figure = Figure(figsize=(WIDTH_IN, 1.6 + sum(0.34 * h + 0.5 for h in heights)), layout="constrained")
    grid = figure.subplots(len(parts), 1, squeeze=False, sharex=True, height_ratios=[h + 0.5 for h in heights])
    for axes, (name, part) in zip(grid[:, 0], parts, strict=True):
        _draw_bars(axes, part, name.startswith("Attempts"))
        axes.set_title(name, loc="left", fontweight="bold", fontsize=9)
    grid[-1, 0].set_xlabel("generation speed (tokens/s)")
    grid[-1, 0].set_xlim(0, float(rows["tg_tokens_per_s"].max()) * 1.12)
    used = [b for b in BACKENDS if b in set(rows["backend"])]
    handles = [
        Patch(facecolor=s.colour, edgecolor="black", hatch=s.hatch, label=s.label) for s in map(BACKENDS.get, used) if s
    ]
    figure.legend(handles=handles, loc="outside lower center", ncol=len(handles), frameon=False)
    _headline(figure, title, "published", "No spread was published.")
    return figure


def _draw_bars(axes: Axes, part: pd.DataFrame, with_arms: bool) -> None:
    """Horizontal bars with their values; the backend in colour and hatch."""
    labels = []
    for place, row in enumerate(part.itertuples()):
        style = look(BACKENDS, str(row.backend))
        speed = float(str(row.tg_tokens_per_s))
        axes.barh(place, speed, height=0.68, color=style.colour, edgecolor="black", hatch=style.hatch, linewidth=0.7)
        axes.annotate(
            f"{speed:g}", (speed, place), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8.5
        )
        arm = f"\n{str(row.attempt).replace('_', ' ')}: {row.arm}" if with_arms else ""
        labels.append(f"{row.host}, {row.model}{arm}")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.grid(axis="y", visible=False)


# --- (c) drafted against accepted ---------------------------------------------------------------------------------


def drafted_and_accepted(measurements: pd.DataFrame) -> Figure:
    """Drafted tokens, split into accepted and rejected, by attempt, engine, arm and class of prompts."""
    title = "Drafted tokens: accepted and rejected"
    rows = of_evidence(measurements, "measured")
    rows = rows[rows["counted"].astype(bool) & rows["draft_tokens"].notna()] if len(rows) else rows
    rows = rows[rows["draft_tokens"] > 0] if len(rows) else rows
    if not len(rows):
        return empty(title, "measured", "No measured arm drafted a token (or nothing was measured yet).")
    sums = (
        rows.groupby(["host", "attempt", "engine", "arm", "prompt_class"], sort=True)[
            ["draft_tokens", "accepted_tokens"]
        ]
        .sum()
        .astype(float)
        .reset_index()
    )
    many = sums["host"].nunique() > 1
    figure = Figure(figsize=(WIDTH_IN, 1.7 + 0.3 * len(sums)), layout="constrained")
    axes = figure.subplots()
    labels = []
    most = float(sums["draft_tokens"].max())
    for place, row in enumerate(sums.itertuples()):
        drafted, accepted = float(str(row.draft_tokens)), float(str(row.accepted_tokens))
        axes.barh(place, accepted, height=0.7, color="#0072B2", edgecolor="black", linewidth=0.7)
        axes.barh(
            place,
            drafted - accepted,
            left=accepted,
            height=0.7,
            color="white",
            edgecolor="black",
            hatch="///",
            linewidth=0.7,
        )
        axes.annotate(
            f"{accepted:.0f} of {drafted:.0f} ({accepted / drafted * 100:.0f} %)",
            (drafted, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
        where = f"{row.host}, " if many else ""
        labels.append(f"{where}{str(row.attempt).replace('_', ' ')}, {row.engine}: {row.arm} · {row.prompt_class}")
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlim(0, most * 1.42)
    axes.set_xlabel("tokens, summed over the counted requests of all blocks")
    axes.grid(axis="y", visible=False)
    figure.legend(
        handles=[
            Patch(facecolor="#0072B2", edgecolor="black", label="accepted"),
            Patch(facecolor="white", edgecolor="black", hatch="///", label="drafted and rejected"),
        ],
        loc="outside lower center",
        ncol=2,
        frameon=False,
    )
    _headline(figure, title, "measured", "Arms that drafted nothing are not shown.")
    return figure


# --- (d) timeline -------------------------------------------------------------------------------------------------


def timeline(points: pd.DataFrame) -> Figure:
    """Outcome of each finding's cheap test by the date of the build that was tried.

    Columns: label (finding and what was tried), build, date (ISO), outcome; one row per finding and build.
    """
    title = "Findings against builds: what each build answered"
    rows = points[points["date"].notna() & (points["date"].astype(str) != "")] if len(points) else points
    if not len(rows):
        return empty(title, "measured", "No build was tried yet, or no date of a build is known.")
    rows = rows.assign(day=(pd.to_datetime(rows["date"], format="ISO8601") - EPOCH).dt.days).sort_values(
        ["label", "day", "outcome"], kind="stable"
    )
    labels = sorted(set(rows["label"]))
    figure = Figure(figsize=(WIDTH_IN, 2.3 + 0.42 * len(labels)), layout="constrained")
    axes = figure.subplots()
    for place, label in enumerate(labels):
        part = rows[rows["label"] == label]
        axes.plot(part["day"], [place] * len(part), color="#BBBBBB", linewidth=1.2, zorder=1)
        part = part.drop_duplicates(["day", "outcome"])
        for row in part.itertuples():
            style = look(OUTCOMES, str(row.outcome))
            among = list(part.loc[part["day"] == row.day, "outcome"])
            # Several outcomes at one build stand above each other.
            shift = 0.3 * (among.index(row.outcome) - (len(among) - 1) / 2)
            axes.plot(
                [row.day],
                [place + shift],
                marker=style.marker,
                color=style.colour,
                mec="black",
                mew=0.6,
                markersize=9,
                zorder=3,
            )
    axes.set_yticks(range(len(labels)), [textwrap.fill(label, 44) for label in labels])
    axes.set_ylim(len(labels) - 0.4, -0.6)
    _build_axis(axes, rows)
    used = [word for word in OUTCOMES if word in set(rows["outcome"])]
    handles = [_marker(look(OUTCOMES, word)) for word in [*used, *sorted(set(rows["outcome"]) - set(used))]]
    figure.legend(handles=handles, loc="outside lower center", ncol=min(4, len(handles)), frameon=False)
    _headline(figure, title, "measured")
    return figure


def _build_axis(axes: Axes, rows: pd.DataFrame) -> None:
    """Months along the bottom, the builds' numbers along the top, slanted so that neighbours stay readable."""
    first, last = int(rows["day"].min()), int(rows["day"].max())
    pad = max(round((last - first) * 0.05), 5)
    axes.set_xlim(first - pad, last + pad)
    months = pd.date_range(EPOCH + pd.Timedelta(days=first - pad), EPOCH + pd.Timedelta(days=last + pad), freq="MS")
    months = months[:: max(1, math.ceil(len(months) / 10))]
    axes.set_xticks([(month - EPOCH).days for month in months], [month.strftime("%Y-%m") for month in months])
    axes.set_xlabel("date of the build (marks at the first of a month)")
    axes.grid(axis="y", visible=False)
    days: dict[int, int] = {}
    for row in rows.sort_values("day").itertuples():
        days.setdefault(int(str(row.build)), int(str(row.day)))
    low, high = axes.get_xlim()
    places = spread(list(days.values()), (high - low) * 0.038, high)
    for (build, day), place in zip(days.items(), places, strict=True):
        axes.annotate(
            f"b{build}",
            (day, 1),
            xytext=(place, 1.05),
            xycoords=("data", "axes fraction"),
            textcoords=("data", "axes fraction"),
            rotation=50,
            ha="left",
            va="bottom",
            fontsize=8,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": "#999999", "linewidth": 0.7, "shrinkA": 0, "shrinkB": 0},
        )


def spread(places: Sequence[float], gap: float, end: float) -> list[float]:
    """Ascending places moved so that neighbours are at least `gap` apart and none lies beyond `end`, little else."""
    moved = list(places)
    for index in range(1, len(moved)):
        moved[index] = max(moved[index], moved[index - 1] + gap)
    for index in reversed(range(len(moved))):
        moved[index] = min(moved[index], end - gap * (len(moved) - 1 - index))
    return moved


def _marker(style: Look) -> Line2D:
    """A legend's handle of a look."""
    return Line2D(
        [],
        [],
        marker=style.marker,
        color=style.colour,
        mec="black",
        mew=0.6,
        linestyle="",
        markersize=8,
        label=style.label,
    )


# --- (e) break-even -----------------------------------------------------------------------------------------------


def break_even(curves: pd.DataFrame) -> Figure:
    """Predicted speed by acceptance, from measured costs, with the observed point and the acceptance needed.

    Columns: host, attempt, engine, arm, acceptance (0 to 1), ratio (predicted speed / baseline), observed_acceptance,
    observed_ratio, needed_acceptance (above 1: cannot pay), predicted_ratio (at what was drafted and accepted; all four
    repeat in each row of a curve, NaN if unknown).
    """
    title = "Break-even: what acceptance would be needed here"
    rows = of_evidence(curves, "measured") if "evidence" in curves.columns else curves
    if not len(rows):
        return empty(title, "measured", "No cost curve was measured yet.")
    groups = list(rows.groupby(["host", "attempt", "engine", "arm"], sort=True))
    columns = min(2, len(groups))
    lines = math.ceil(len(groups) / columns)
    figure = Figure(figsize=(WIDTH_IN, 1.5 + 2.7 * lines), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False, sharex=True)
    for axes in grid.flat[len(groups) :]:
        axes.set_axis_off()
    for axes, (key, part) in zip(grid.flat, groups, strict=False):
        _draw_break_even(axes, tuple(str(k) for k in key), part.sort_values("acceptance"))
    for axes in grid[-1, :]:
        axes.set_xlabel("share of drafted tokens accepted")
    for axes in grid[:, 0]:
        axes.set_ylabel("speed / baseline")
    figure.legend(
        handles=[
            Line2D([], [], color="#0072B2", linewidth=2, label="predicted from measured costs"),
            Line2D([], [], marker="o", color="#D55E00", mec="black", linestyle="", markersize=8, label="observed"),
            Line2D([], [], color="#333333", linestyle="--", label="acceptance needed to break even"),
        ],
        loc="outside lower center",
        ncol=3,
        frameon=False,
    )
    _headline(figure, title, "measured")
    return figure


def _draw_break_even(axes: Axes, key: tuple[str, ...], part: pd.DataFrame) -> None:
    """One curve with its observed point."""
    first = part.iloc[0]
    axes.axhline(1, color="#333333", linewidth=1)
    axes.plot(part["acceptance"], part["ratio"], color="#0072B2", linewidth=2)
    needed = float(first["needed_acceptance"]) if pd.notna(first["needed_acceptance"]) else math.nan
    if needed <= 1:
        axes.axvline(needed, color="#333333", linestyle="--", linewidth=1.2)
        words = f"needs {needed * 100:.0f} %"
    else:
        words = "no break-even known" if math.isnan(needed) else "cannot pay at any acceptance"
    words += _beside(first.get("predicted_ratio"), first["observed_ratio"])
    # On white, since the line of equal speed may pass behind it.
    ground = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
    axes.annotate(words, (0.03, 0.95), xycoords="axes fraction", va="top", fontsize=8.5, bbox=ground)
    if pd.notna(first["observed_acceptance"]) and pd.notna(first["observed_ratio"]):
        axes.plot(
            [first["observed_acceptance"]],
            [first["observed_ratio"]],
            marker="o",
            color="#D55E00",
            mec="black",
            markersize=8,
        )
    axes.set_xlim(0, 1)
    top = max(
        1.15,
        float(part["ratio"].max()) * 1.08,
        float(first["observed_ratio"]) * 1.1 if pd.notna(first["observed_ratio"]) else 0,
    )
    axes.set_ylim(0, top)
    host, attempt, engine, arm = key
    axes.set_title(
        f"{attempt.replace('_', ' ')}: {arm}\n{engine} on {host}", loc="left", fontsize=8.5, fontweight="bold"
    )


def _beside(predicted: float | None, measured: float) -> str:
    """The predicted change beside the measured one, with the error of the prediction; empty where one is unknown."""
    if predicted is None or pd.isna(predicted) or pd.isna(measured):
        return ""
    change, found = 100 * (float(predicted) - 1), 100 * (float(measured) - 1)
    error = 100 * (float(predicted) / float(measured) - 1)
    return f"\npredicted {change:+.0f} %, measured {found:+.0f} %\n(speed predicted {error:+.0f} % off)"


# --- (f) imported evidence ----------------------------------------------------------------------------------------


def imported_speeds(measurements: pd.DataFrame) -> Figure:
    """Others' measurements: generation speed by method and backend, one dot per prompt."""
    title = "Related evidence: speculation on other people's machines"
    rows = of_evidence(measurements, "imported")
    rows = rows[rows["tg_tokens_per_s"].notna()] if len(rows) else rows
    if not len(rows):
        return empty(title, "imported", "No measurements of others are listed under `imports:` in the configuration.")
    rows = rows.assign(backend=rows["backend"].fillna("").astype(str))
    groups = sorted(set(zip(rows["host"], rows["model"], strict=True)))
    methods = {g: _methods(where(rows, host=g[0], model=g[1])) for g in groups}
    heights = [sum(len(v) for v in methods[g].values()) for g in groups]
    figure = Figure(figsize=(WIDTH_IN, 1.9 + sum(0.38 * h + 0.55 for h in heights)), layout="constrained")
    grid = figure.subplots(len(groups), 1, squeeze=False, height_ratios=[h + 0.5 for h in heights])
    for axes, group in zip(grid[:, 0], groups, strict=True):
        _draw_imported(axes, where(rows, host=group[0], model=group[1]), methods[group])
        axes.set_title(f"{group[1]} on {group[0]}", loc="left", fontweight="bold", fontsize=9)
    grid[-1, 0].set_xlabel("generation speed (tokens/s)")
    used = [b for b in BACKENDS if b in set(rows["backend"])]
    handles = [_marker(look(BACKENDS, b)) for b in used]
    handles.append(
        Line2D([], [], color="black", linestyle="", marker="|", markersize=13, mew=2, label="mean over prompts")
    )
    figure.legend(handles=handles, loc="outside lower center", ncol=len(handles), frameon=False)
    once = where(rows, counted=True).groupby(["host", "backend", "arm", "prompt_id"]).size().max() == 1
    _headline(figure, title, "imported", "One run per prompt, no repeats." if once else "")
    return figure


def _methods(rows: pd.DataFrame) -> dict[str, list[str]]:
    """Backend -> its methods, the baseline first."""
    out: dict[str, list[str]] = {}
    for backend in sorted(set(rows["backend"])):
        part = rows[rows["backend"] == backend]
        kinds = part.drop_duplicates("arm").set_index("arm")["arm_kind"]
        out[backend] = sorted(kinds.index, key=lambda a: (kinds[a] != "baseline", str(a)))
    return out


def _draw_imported(axes: Axes, rows: pd.DataFrame, methods: Mapping[str, Sequence[str]]) -> None:
    """Dots per prompt and a bar at the mean; arms that drafted nothing say so."""
    labels: list[str] = []
    for backend, arms in methods.items():
        style = look(BACKENDS, backend)
        for arm in arms:
            part = where(rows, backend=backend, arm=arm).sort_values(["prompt_id", "tg_tokens_per_s"], kind="stable")
            place = len(labels)
            offsets = np.linspace(-0.22, 0.22, len(part)) if len(part) > 1 else np.zeros(len(part))
            axes.scatter(
                part["tg_tokens_per_s"],
                place + offsets,
                s=22,
                marker=style.marker,
                facecolors=style.colour,
                edgecolors="black",
                linewidths=0.5,
                alpha=0.85,
            )
            axes.plot([part["tg_tokens_per_s"].mean()], [place], marker="|", color="black", markersize=19, mew=2.2)
            labels.append(f"{arm}, {style.label}{_drafting(part)}")
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.45, -0.55)
    axes.set_xlim(left=0)
    axes.grid(axis="y", visible=False)


def _drafting(part: pd.DataFrame) -> str:
    """A line for the label: accepted of drafted, or that nothing was drafted."""
    if (part["arm_kind"] == "baseline").all():
        return ""
    drafted = float(part["draft_tokens"].fillna(0).sum())
    if drafted <= 0:
        return "\n(drafted nothing)"
    accepted = float(part["accepted_tokens"].fillna(0).sum())
    return f"\n({accepted:.0f} of {drafted:.0f} drafts accepted)"


# --- (g) pre-check ------------------------------------------------------------------------------------------------


def precheck_matrix(scores: pd.DataFrame) -> Figure:
    """What the pre-check said before the load against what the engine then did: a matrix of counts per question."""
    title = "Pre-check: prediction against outcome"
    if not len(scores):
        return empty(title, "measured", "No pair was loaded after a prediction yet.")
    questions = [q for q in QUESTIONS if q in set(scores["question"])]
    figure = Figure(figsize=(WIDTH_IN, 3.1), layout="constrained")
    grid = figure.subplots(1, len(QUESTIONS), squeeze=False, sharey=True)
    for axes, question in zip(grid[0], QUESTIONS, strict=True):
        _draw_matrix(
            axes, question, scores[scores["question"] == question] if question in questions else scores.iloc[:0]
        )
    grid[0, 0].set_ylabel("predicted before the load")
    known = scores[scores["predicted"].notna() & scores["observed"].notna()]
    right = int((known["predicted"] == known["observed"]).sum())
    _headline(figure, title, "measured", f"{right} of {len(known)} right (framed), where both are known.")
    return figure


def _draw_matrix(axes: Axes, question: str, rows: pd.DataFrame) -> None:
    """Counts of one question; `?` is no prediction, or an engine that did not tell."""
    words = ["yes", "no", "?"]
    counts = pd.crosstab(rows["predicted"].fillna("?"), rows["observed"].fillna("?")) if len(rows) else pd.DataFrame()
    counts = counts.reindex(index=words, columns=words, fill_value=0).fillna(0).astype(int)
    sns.heatmap(
        counts,
        ax=axes,
        annot=True,
        fmt="d",
        cmap="Blues",
        cbar=False,
        linewidths=1,
        linecolor="#888888",
        square=True,
        vmin=0,
        vmax=max(2, int(counts.to_numpy().max()) * 3),
        annot_kws={"fontsize": 10, "color": "black"},
    )
    for place in (0, 1):
        axes.add_patch(Rectangle((place, place), 1, 1, fill=False, edgecolor="black", linewidth=2.2, zorder=5))
    axes.set_title(QUESTIONS[question], fontsize=9, fontweight="bold")
    axes.set_xlabel("observed (pairs)")
    axes.set_ylabel("")
    axes.tick_params(axis="y", rotation=0)


# --- all of them --------------------------------------------------------------------------------------------------

FIGURES: Mapping[str, Callable[[Drawn], Figure]] = {
    "speed": lambda t: speed_against_baseline(t.effects, t.verdicts, t.margin, t.remarks),
    "published": lambda t: published_speeds(t.measurements),
    "drafts": lambda t: drafted_and_accepted(t.measurements),
    "timeline": lambda t: timeline(t.timeline),
    "breakeven": lambda t: break_even(t.breakeven),
    "imported": lambda t: imported_speeds(t.measurements),
    "precheck": lambda t: precheck_matrix(t.scores),
}


def draw_all(tables: Drawn, out: Path, names: Sequence[str] = tuple(FIGURES)) -> list[Path]:
    """Draw the named figures into `out` and give the files' paths."""
    paths: list[Path] = []
    for name in names:
        with fixed_style():
            figure = FIGURES[name](tables)
        paths += save(figure, out / name)
    return paths
