"""Figures: the same bytes twice, the right lines, a reason where there is nothing, and no mixture of evidence."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from findings.comparisons import block_interval, effect_panels
from findings.figures import FIGURES, Drawn, draw_all, fixed_style, percent_label, percent_ticks, spread
from findings.looks import ARM_KINDS, BACKENDS, EVIDENCE, OUTCOMES, VERDICTS
from findings.story import frames
from sample_tables import HOST, rows

NOTHING = pd.DataFrame()
POINTS = pd.DataFrame(
    [
        ("the converter", 9002, "2026-05", "refused"),
        ("the converter", 9538, "2026-06-07", "refused"),
        ("the converter", 9538, "2026-06-07", "ok"),
        ("the runtime", 11549, "2026-10-10", "ok"),
    ],
    columns=["label", "build", "date", "outcome"],
)
CURVES = pd.DataFrame(
    [
        {
            "evidence": "measured", "host": HOST, "attempt": "attempt_2", "engine": "llama.cpp-b11549", "arm": arm,
            "acceptance": step / 10, "ratio": 0.4 + step / 20, "observed_acceptance": 0.9, "observed_ratio": 0.55,
            "needed_acceptance": needed, "predicted_ratio": 0.5,
        }
        for arm, needed in (("draft", math.inf), ("draft_16", 0.8))
        for step in range(11)
    ]
)  # fmt: skip


@pytest.fixture(scope="module")
def drawn() -> Drawn:
    data = frames(rows())
    return Drawn(
        data["measurements"], data["effects"], data["verdicts"], data["precheck_scores"], POINTS, CURVES, margin=0.05
    )


def empty() -> Drawn:
    data = frames({})
    return Drawn(
        data["measurements"], data["effects"], data["verdicts"], data["precheck_scores"], POINTS.iloc[:0], NOTHING
    )


def texts(drawn: Drawn, name: str) -> list[str]:
    """All texts of a figure, as matplotlib holds them."""
    with fixed_style():
        figure = FIGURES[name](drawn)
    figure.draw_without_rendering()
    found = [text.get_text() for text in figure.findobj(match=lambda artist: hasattr(artist, "get_text"))]
    return [text for text in found if text.strip()]


def test_break_even_says_how_far_the_prediction_is_off(drawn: Drawn) -> None:
    assert any(
        "predicted -50 %, measured -45 %\n(speed predicted -9 % off)" in text for text in texts(drawn, "breakeven")
    )
    unknown = replace(drawn, breakeven=drawn.breakeven.assign(predicted_ratio=math.nan))
    assert not any("predicted -" in text for text in texts(unknown, "breakeven"))


def test_the_same_tables_give_the_same_bytes(drawn: Drawn, tmp_path: Path) -> None:
    first = draw_all(drawn, tmp_path / "one")
    shuffled = replace(
        drawn,
        measurements=drawn.measurements.sample(frac=1, random_state=3),
        effects=drawn.effects.sample(frac=1, random_state=4),
        verdicts=drawn.verdicts.sample(frac=1, random_state=5),
        scores=drawn.scores.sample(frac=1, random_state=6),
        timeline=drawn.timeline.sample(frac=1, random_state=7),
        breakeven=drawn.breakeven.sample(frac=1, random_state=8),
    )
    second = draw_all(shuffled, tmp_path / "two")
    assert [path.name for path in first] == [f"{name}.{kind}" for name in FIGURES for kind in ("svg", "png")]
    for left, right in zip(first, second, strict=True):
        assert left.read_bytes() == right.read_bytes(), left.name
        assert left.stat().st_size > 5000, left.name


def test_no_date_and_no_version_in_a_file(drawn: Drawn, tmp_path: Path) -> None:
    svg, png = draw_all(drawn, tmp_path, ["precheck"])
    assert not re.search(r"<dc:date>|202\d-\d\d-\d\dT|matplotlib v", svg.read_text(encoding="utf-8"))
    assert b"Software" not in png.read_bytes()


@pytest.mark.parametrize("name", list(FIGURES))
def test_nothing_to_draw_gives_a_reason(name: str, tmp_path: Path) -> None:
    svg, _ = draw_all(empty(), tmp_path, [name])
    assert svg.stat().st_size > 3000
    words = " ".join(texts(empty(), name))
    assert re.search(r"\b(No|Nothing|no)\b", words)
    assert "Evidence: " in words


@pytest.mark.parametrize(
    ("name", "evidence"),
    [(n, "imported" if n == "imported" else "published" if n == "published" else "measured") for n in FIGURES],
)
def test_every_figure_names_its_one_kind_of_evidence(drawn: Drawn, name: str, evidence: str) -> None:
    said = [text for text in texts(drawn, name) if text.startswith("Evidence: ")]
    assert len(said) == 1
    assert EVIDENCE[evidence] in said[0]


def test_published_and_imported_rows_never_enter_measured_figures(drawn: Drawn) -> None:
    everything = " ".join(text for name in ("speed", "drafts") for text in texts(drawn, name))
    assert "gtx-1080-ti" not in everything
    assert "predator" not in everything
    assert "gtx-1080-ti" in " ".join(texts(drawn, "imported"))
    assert HOST not in " ".join(texts(drawn, "imported"))


def test_an_arm_that_did_not_draft_has_no_speed(drawn: Drawn) -> None:
    lines = {r.label: r for r in effect_panels(drawn.effects, drawn.verdicts)[(HOST, "attempt_1", "llama.cpp-b11549")]}
    assert lines["draft"].silent == "not engaged"
    assert lines["draft"].blocks == ()
    assert math.isnan(lines["draft"].mean)
    assert "not engaged" in texts(drawn, "speed")


def test_engaged_speed_without_drafts_is_not_shown_even_where_a_ratio_slipped_in(drawn: Drawn) -> None:
    wrong = drawn.effects.copy()
    wrong.loc[wrong["engagement"] == "not_engaged", "ln_ratio"] = 0.3
    lines = {r.label: r for r in effect_panels(wrong, drawn.verdicts)[(HOST, "attempt_1", "llama.cpp-b11549")]}
    assert lines["draft"].blocks == ()


def test_the_interval_of_a_judged_arm_is_the_verdicts(drawn: Drawn) -> None:
    lines = {r.label: r for r in effect_panels(drawn.effects, drawn.verdicts)[(HOST, "attempt_2", "llama.cpp-b11549")]}
    assert (lines["draft"].mean, lines["draft"].low, lines["draft"].high) == (-0.6, -0.66, -0.54)
    assert lines["draft"].judged
    assert not lines["null"].judged
    assert len(lines["draft"].blocks) == 6


def test_all_of_one_class_is_shown_once(drawn: Drawn) -> None:
    labels = [r.label for r in effect_panels(drawn.effects, drawn.verdicts)[(HOST, "attempt_4", "llama.cpp-b11549")]]
    assert labels == ["null", "mtp_centroids · templated"]


def test_block_interval_is_the_t_interval() -> None:
    mean, low, high = block_interval([0.1, 0.2, 0.3])
    # t(0.975, 2) = 4.3027, standard error 0.1 / sqrt(3)
    assert mean == pytest.approx(0.2)
    assert high - mean == pytest.approx(4.30265 * 0.1 / math.sqrt(3), rel=1e-4)
    assert mean - low == pytest.approx(high - mean)
    assert block_interval([0.1]) == (0.1, -math.inf, math.inf)


def test_one_block_draws_without_an_interval(drawn: Drawn, tmp_path: Path) -> None:
    one = replace(drawn, effects=drawn.effects[drawn.effects["block"] == 1], verdicts=drawn.verdicts.iloc[:0])
    assert draw_all(one, tmp_path, ["speed"])[0].stat().st_size > 5000


@pytest.mark.parametrize(
    ("ratio", "text"), [(0.87, "−13 %"), (1.47, "+47 %"), (1.0, "±0 %"), (0.9999, "±0 %"), (3, "+200 %")]
)
def test_percent_label(ratio: float, text: str) -> None:
    assert percent_label(ratio) == text


@given(st.floats(-2.5, -0.01), st.floats(0.01, 2.5))
def test_ticks_lie_inside_and_hold_zero(low: float, high: float) -> None:
    ticks = percent_ticks(low, high)
    assert 1.0 in ticks
    assert all(low <= math.log(tick) <= high for tick in ticks)
    assert len(ticks) <= 13
    gaps = [math.log(b / a) for a, b in pairwise(ticks)]
    assert all(gap > (high - low) / 13 for gap in gaps)


@pytest.mark.parametrize("family", [VERDICTS, OUTCOMES, BACKENDS, ARM_KINDS])
def test_looks_differ_without_colour(family: dict[str, object]) -> None:
    markers = [look.marker for look in family.values()]  # type: ignore[attr-defined]
    assert len(set(markers)) == len(markers)


def test_several_outcomes_of_one_build_are_all_drawn(drawn: Drawn) -> None:
    with fixed_style():
        figure = FIGURES["timeline"](drawn)
    marks = [line.get_ydata()[0] for line in figure.axes[0].get_lines() if line.get_marker() not in ("None", None, "")]
    assert len(marks) == len(POINTS)
    assert len(set(marks)) == 4


@given(st.lists(st.floats(0, 200), min_size=1, max_size=15).map(sorted))
def test_labels_are_set_apart_and_stay_in_order(places: list[float]) -> None:
    moved = spread(places, 5, 205)
    assert all(b - a >= 5 - 1e-9 for a, b in pairwise(moved))
    assert max(moved) <= 205
    if all(b - a >= 5 for a, b in pairwise(places)):
        assert moved == pytest.approx(places)
