"""Cost curves for the break-even figure: from the records of blocks to predicted and observed speed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from findings.bundles import RecordFile
from findings.config import Configuration, load_configuration
from findings.cost_curves import block_costs, curve_rows
from findings.records import Kind, Outcome, Record, to_json
from sample_tables import HOST, effects

ROOT = Path(__file__).parents[2]
ENGINE = "llama.cpp-b11549"
KEY = (HOST, "attempt_2", ENGINE)


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    return load_configuration(ROOT)


def costs(target: dict[str, list[float]], draft: dict[str, list[float]]) -> dict[str, Any]:
    return {"target_ms": target, "draft_ms": draft, "reasons": {}}


def file(label: str, detail: dict[str, Any]) -> RecordFile:
    text = to_json(Record(Kind.BLOCK, "x", Outcome.OK, detail=detail))
    json.loads(text)
    return RecordFile(label, HOST, label, text.encode)


def test_only_blocks_that_the_tables_name_count() -> None:
    rows = effects()
    named = next(row["record"] for row in rows if row["attempt"] == "attempt_2")
    one = costs({"1": [10.0]}, {"draft": [5.0]})
    files = [file(named, {"costs": one}), file("results/records/other/block-001.json", {"costs": one})]
    assert block_costs(files, rows) == {KEY: [one]}
    assert block_costs([file(named, {})], rows) == {}


def test_the_curve_is_the_published_formula(configuration: Configuration) -> None:
    length = configuration.attempts["attempt_2"].arm("draft").speculation.n_max
    assert length == 3
    # A token of the target costs 10 ms, verifying four 20 ms, a drafted token 5 ms: a round costs 3 * 0.5 + 2 tokens.
    measured = costs({"1": [10.0, 10.0], "4": [20.0]}, {"draft": [5.0]})
    found = curve_rows(configuration, effects(), {KEY: [measured]})
    assert set(found["arm"]) == {"draft"}
    assert found["acceptance"].iloc[0] == 0
    assert found["ratio"].iloc[0] == pytest.approx(1 / 3.5)
    assert found["acceptance"].iloc[-1] == 1
    assert found["ratio"].iloc[-1] == pytest.approx(4 / 3.5)
    needed = found["needed_acceptance"].iloc[0]
    assert needed == pytest.approx((3.5 - 1) / 3)
    assert found["observed_acceptance"].iloc[0] == pytest.approx(58 / 60)
    logs = [
        row["ln_ratio"]
        for row in effects()
        if (row["attempt"], row["arm"], row["prompt_class"]) == ("attempt_2", "draft", "all")
    ]
    assert found["observed_ratio"].iloc[0] == pytest.approx(math.exp(sum(logs) / len(logs)))


def test_a_drafter_as_dear_as_the_target_never_pays(configuration: Configuration) -> None:
    found = curve_rows(configuration, [], {KEY: [costs({"1": [10.0], "4": [20.0]}, {"draft": [10.0]})]})
    assert found["needed_acceptance"].iloc[0] == math.inf
    assert found["ratio"].max() < 1
    assert found["observed_acceptance"].isna().all()


@pytest.mark.parametrize(
    "measured",
    [
        costs({}, {"draft": [5.0]}),
        costs({"1": [10.0], "4": [20.0]}, {}),
        costs({"1": [10.0], "2": [12.0]}, {"draft": [5.0]}),
        costs({"1": [10.0], "4": [20.0]}, {"unknown-arm": [5.0]}),
    ],
)
def test_what_was_not_measured_gives_no_curve(configuration: Configuration, measured: dict[str, Any]) -> None:
    assert len(curve_rows(configuration, effects(), {KEY: [measured]})) == 0


def counted(drafted: int | None, accepted: int | None, **more: Any) -> dict[str, Any]:
    return {
        "counted": True,
        "outcome": "ok",
        "predicted_n": 41,
        "draft_n": drafted,
        "draft_n_accepted": accepted,
    } | more


def test_the_prediction_stands_on_what_was_drafted_and_accepted(configuration: Configuration) -> None:
    rows = effects()
    named = next(row["record"] for row in rows if row["attempt"] == "attempt_2")
    one = costs({"1": [10.0], "4": [20.0]}, {"draft": [5.0]})
    warm_up = counted(9, 9, counted=False)
    arms = {"draft": {"requests": [warm_up, counted(60, 20)]}, "baseline": {"requests": [counted(None, None)]}}
    found = block_costs([file(named, {"costs": one, "arms": arms})], rows)
    assert found[KEY][0]["counters"] == {"draft": (40, 60, 20)}
    drawn = curve_rows(configuration, rows, found)
    # 40 tokens took time, 20 of them were accepted: 20 rounds of 3 drafted tokens, 2 tokens each, at 3.5 tokens' cost.
    assert drawn["predicted_ratio"].iloc[0] == pytest.approx(2 / 3.5)
    assert curve_rows(configuration, rows, {KEY: [one]})["predicted_ratio"].isna().all()
