"""The error rates of docs/method.md: again with fewer sessions, and the document against the stored numbers."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import simulate as script
from findings import simulation
from findings.inference import PAYS, SequentialPlan, Verdict, analyse, control_gate, holm, null_gate
from findings.simulation import (
    CANDIDATE,
    COVERED,
    DEFAULT_PLAN,
    HOLDS,
    LONG_PLAN,
    NO_LONGER,
    OPEN,
    SDS,
    Noise,
    error_rates,
    fixed_blocks,
    holm_many,
    judge,
    sessions,
)
from findings.simulation_tables import PARTS, write_into

DOCS = Path(__file__).resolve().parents[2] / "docs"
STORED: dict[str, Any] = json.loads((DOCS / "method-simulation.json").read_text(encoding="utf-8"))
FEW = 4000
NUMBERS = {Verdict.INCONCLUSIVE: OPEN, Verdict.HOLDS: HOLDS, Verdict.NO_LONGER_HOLDS: NO_LONGER}


def most(rate: float, trials: int) -> float:
    """The largest share that chance gives to `rate` (one in ten thousand is larger)."""
    return float(stats.binom.ppf(0.9999, trials, rate)) / trials


# --- the simulated rule is the real one --------------------------------------------------------------------------


@pytest.mark.parametrize("family", [1, 6])
@pytest.mark.parametrize("noise", list(Noise))
def test_the_fast_rule_is_the_rule(noise: Noise, family: int) -> None:
    plan = SequentialPlan(family=family)
    rng = np.random.default_rng(11)
    d = sessions(rng, 60, plan.max_blocks, 0.1, noise)[:, :, CANDIDATE]
    d = d + rng.choice([-0.4, -0.1, 0.0, plan.upper_margin, 0.2, 0.4], size=(60, 1))
    fast = judge(d, plan)
    for row, verdict, blocks, p_holds, p_no_longer in zip(
        d, fast.verdict, fast.blocks, fast.p_holds, fast.p_no_longer, strict=True
    ):
        for count in plan.looks:
            slow = analyse(list(row[:count]), plan)
            if slow.stop:
                break
        assert (NUMBERS[slow.decision], slow.blocks) == (verdict, blocks)
        assert (slow.p_holds, slow.p_no_longer_holds) == pytest.approx((p_holds, p_no_longer))


def test_the_fast_gates_are_the_gates() -> None:
    rng = np.random.default_rng(12)
    d = sessions(rng, 200, 12, 0.05)[:, :, simulation.NULL] + rng.choice([0.0, 0.06], size=(200, 1))
    fails = simulation._null_fails(d, np.full(200, 12), DEFAULT_PLAN)
    assert [not null_gate(list(row), DEFAULT_PLAN).passed for row in d] == list(fails)
    seen = judge(d + 0.1, DEFAULT_PLAN).verdict == NO_LONGER
    for row, found in zip(d + 0.1, seen, strict=True):
        if found:
            assert control_gate(list(row), DEFAULT_PLAN).passed
            assert analyse(list(row), DEFAULT_PLAN, PAYS).decision is Verdict.HOLDS


def test_the_fast_holm_is_holm() -> None:
    p = np.random.default_rng(13).beta(0.3, 3, size=(300, 6))
    fast = holm_many(p, 0.05)
    for row, accepted in zip(p, fast, strict=True):
        assert list(holm({str(i): float(v) for i, v in enumerate(row)}, 0.05).values()) == list(accepted)


def test_sessions_have_the_noise_they_say() -> None:
    rng = np.random.default_rng(14)
    for noise in (Noise.NORMAL, Noise.CORRELATED):
        d = sessions(rng, 20_000, 4, 0.1, noise)
        assert np.all(d[:, :, 0] == 0)
        assert d[:, :, CANDIDATE].std() == pytest.approx(0.1, rel=0.02)
    neighbours = sessions(rng, 20_000, 2, 0.1, Noise.CORRELATED)[:, :, CANDIDATE]
    assert np.corrcoef(neighbours.T)[0, 1] == pytest.approx(0.5, abs=0.03)
    # Over a cycle of four blocks the positions cancel: what is left of the drift is a fifth of one block's spread.
    quiet = sessions(rng, 2000, 4, 1e-6, Noise.DRIFT)[:, :, CANDIDATE]
    assert quiet.std() > 0.05
    assert abs(quiet.mean()) < 0.005
    assert np.abs(quiet.mean(axis=1)).max() < 0.05


def test_fixed_designs_agree_with_the_noncentral_t() -> None:
    for effect, sd in ((-0.13, 0.1), (0.27, 0.1), (0.15, 0.05)):
        gap = -math.log1p(effect) if effect < 0 else math.log1p(effect) - DEFAULT_PLAN.upper_margin
        found = fixed_blocks(np.random.default_rng(15), 20_000, effect, sd, 0.9)

        def power(n: int, gap: float = gap, sd: float = sd) -> float:
            return float(stats.nct.sf(stats.t.ppf(0.975, n - 1), n - 1, gap / sd * math.sqrt(n)))

        assert power(found) > 0.89
        assert power(found - 1) < 0.91
    with pytest.raises(ValueError, match="not enough"):
        fixed_blocks(np.random.default_rng(15), 500, 0.0, 0.5, 0.9, most=10)


# --- the claims, again with fewer sessions -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def rates() -> list[dict[str, Any]]:
    return error_rates(FEW)


def test_errors_under_peeking(rates: list[dict[str, Any]]) -> None:
    for row in rates:
        if row["noise"] in COVERED:
            assert row["no_longer_at_margin"] <= most(0.025, FEW), row
            assert row["no_longer_at_0"] <= most(0.025, FEW), row
            assert row["holds_at_margin"] <= most(0.05, FEW), row
            assert row["interval_misses"] <= most(0.05, FEW), row


@pytest.mark.parametrize(
    "plan", [LONG_PLAN, SequentialPlan(looks=(3, 5, 7, 10)), SequentialPlan(looks=tuple(range(2, 13)))]
)
def test_errors_under_peeking_with_other_plans(plan: SequentialPlan) -> None:
    for row in error_rates(2000, plan):
        if row["noise"] in COVERED:
            assert row["no_longer_at_margin"] <= most(0.025, 2000), row
            assert row["holds_at_margin"] <= most(0.05, 2000), row


def test_uncorrected_peeking_is_caught_by_the_same_check(rates: list[dict[str, Any]]) -> None:
    rows = [row for row in rates if row["noise"] == Noise.NORMAL]
    assert all(row["naive_no_longer_at_margin"] > most(0.025, FEW) for row in rows)
    assert any(row["naive_holds_at_margin"] > most(0.05, FEW) for row in rows)


def test_large_effects_take_a_third_of_the_blocks_or_fewer() -> None:
    for row in simulation.costs(FEW):
        if row["effect"] != 0.0:
            assert row["long_blocks"] <= row["fixed_for_any"] / 3
            assert row["long_true"] >= 0.9
        else:
            assert row["long_true"] >= 0.85


def test_six_findings_together() -> None:
    for row in simulation.families(FEW):
        for family in ("one", "six"):
            assert row[f"{family}_false_no_longer"] <= most(0.05, FEW), row
            assert row[f"{family}_false_holds"] <= most(0.05, FEW), row
        assert row["six_lost_by_holm"] == 0, row


def test_gates_of_arms() -> None:
    for row in simulation.gate_rates(FEW):
        assert row["null_false_alarm_none"] <= most(0.05, FEW)
        assert row["null_false_alarm_loss"] <= most(0.05, FEW)
        assert row["control_without_gain"] <= most(0.025, FEW)
        assert row["control_seen"] >= 0.99


# --- the stored numbers and the document -------------------------------------------------------------------------


def test_the_document_says_what_is_stored() -> None:
    text = (DOCS / "method.md").read_text(encoding="utf-8")
    assert write_into(text, STORED) == text
    for name, part in PARTS.items():
        assert f"<!-- simulation: {name} -->\n{part(STORED)}\n<!-- end of simulation -->" in text


def test_what_is_stored_are_enough_sessions_of_these_plans_and_keeps_the_claims() -> None:
    assert STORED["trials"] >= 20_000
    assert tuple(STORED["plan"]) == DEFAULT_PLAN.looks
    assert tuple(STORED["long_plan"]) == LONG_PLAN.looks
    rows = [row for row in STORED["errors"] if row["noise"] in COVERED]
    assert {(row["noise"], row["sd"]) for row in rows} == {(str(noise), sd) for noise in COVERED for sd in SDS}
    for row in rows:
        assert max(row["no_longer_at_0"], row["no_longer_at_margin"], row["holds_at_margin"]) <= 0.05
    for row in STORED["families"]:
        assert max(row["six_false_no_longer"], row["six_false_holds"]) <= 0.05


@pytest.mark.parametrize("table", ["order", "plans", "gates"])
def test_what_is_stored_comes_from_the_script(table: str) -> None:
    again = simulation.TABLES[table](STORED["trials"])
    assert len(again) == len(STORED[table])
    for new, old in zip(again, STORED[table], strict=True):
        assert new == pytest.approx(old, abs=0.002)


def test_the_script_writes_both_files_and_checks_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document, stored = tmp_path / "method.md", tmp_path / "numbers.json"
    empty = "".join(f"# {name}\n<!-- simulation: {name} -->\n<!-- end of simulation -->\nmine\n" for name in PARTS)
    document.write_text(empty, encoding="utf-8")
    files = ["--document", str(document), "--stored", str(stored)]
    assert script.main(["--trials", "300", *files]) == 0
    text = document.read_text(encoding="utf-8")
    assert text.count("mine") == len(PARTS)
    assert "| heavy tails | 0.20 |" in text
    assert json.loads(stored.read_text(encoding="utf-8"))["trials"] == 300
    assert script.main(["--trials", "300", "--check", *files]) == 0
    document.write_text(text.replace("heavy tails | 0.20", "heavy tails | 0.21"), encoding="utf-8")
    assert script.main(["--from-stored", "--check", *files]) == 1
    assert script.main(["--from-stored", *files]) == 0
    assert document.read_text(encoding="utf-8") == text
    assert "| heavy tails | 0.20 |" in capsys.readouterr().out


def test_a_missing_marker_or_file_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = tmp_path / "method.md"
    document.write_text("<!-- simulation: errors -->\n<!-- end of simulation -->\n", encoding="utf-8")
    files = ["--document", str(document), "--stored", str(DOCS / "method-simulation.json")]
    assert script.main(["--from-stored", *files]) == 2
    assert "do not match: costs, families" in capsys.readouterr().err
    assert script.main(["--from-stored", "--stored", str(tmp_path / "none.json")]) == 2
    with pytest.raises(SystemExit) as stop:
        script.main(["--trials", "0"])
    assert stop.value.code == 2
