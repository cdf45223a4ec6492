"""Points over time: which records count for which finding, and what a silent load is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from findings.buildline import COLUMNS, build_points
from findings.config import Configuration, load_configuration
from sample_tables import outcomes

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    return load_configuration(ROOT)


def points(configuration: Configuration, rows: list[dict[str, Any]], finding: str) -> list[tuple[int, str]]:
    found = build_points(configuration, rows)
    return [(int(row.build), str(row.outcome)) for row in found[found["finding"] == finding].itertuples()]


def test_conversions_of_drafters_count_for_converting(configuration: Configuration) -> None:
    rows = outcomes()
    found = points(configuration, rows, "attempt_4_cannot_convert")
    assert found == [(9002, "refused"), (9538, "refused"), (11434, "ok")]
    target = next(row for row in rows if row["kind"] == "conversion")
    target = target | {"subject": "tiny-gemma4-target/converter-b9002", "outcome": "crashed"}
    assert points(configuration, [*rows, target], "attempt_4_cannot_convert") == found


def test_loads_of_the_findings_arms_count_for_loading(configuration: Configuration) -> None:
    rows = outcomes()
    assert points(configuration, rows, "attempt_4_cannot_load") == [
        (8929, "refused"), (9538, "refused"), (9713, "ok"), (11549, "ok"),
    ]  # fmt: skip
    assert points(configuration, rows, "attempt_1_does_not_engage") == [(8929, "ok"), (11549, "not_engaged")]
    other = [row | {"arm": "list"} for row in rows if row["kind"] == "load"]
    assert points(configuration, other, "attempt_4_cannot_load") == []


def test_a_load_without_a_drafted_token_is_not_ok(configuration: Configuration) -> None:
    rows = [row | {"engagement": "engaged_without_drafts"} for row in outcomes() if row["outcome"] == "ok"]
    assert points(configuration, rows, "attempt_4_cannot_load") == [(9713, "no_drafts"), (11549, "no_drafts")]


def test_a_probe_without_ngram_kinds_is_unsupported(configuration: Configuration) -> None:
    found = dict(points(configuration, outcomes(), "attempt_6_not_shipped"))
    assert found[8929] == "unsupported"
    assert found[11549] == "ok"


def test_others_records_and_what_did_not_run_are_left_out(configuration: Configuration) -> None:
    rows = [row | {"evidence": "imported"} for row in outcomes()] + [row | {"outcome": "not_run"} for row in outcomes()]
    found = build_points(configuration, rows)
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns) == list(COLUMNS)
    assert len(found) == 0
