"""What the proof on a real engine makes of blocks, and that the document shows what the committed result says."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from builders import SPEED, arm_run, block
from findings.blocks import Block
from findings.engine_proof import Pair, comparisons_of, most_by_chance, summary_of_nulls, summary_of_pairs
from findings.engine_proof_tables import NOT_RUN, nulls, own_figure, write_into

DOCS = Path(__file__).parents[2] / "docs"
NOISE = (0.01, -0.012, 0.004, -0.006)


def null_blocks(count: int, bias: float = 0.0, noisy: tuple[int, ...] = ()) -> list[Block]:
    found = []
    for number in range(1, count + 1):
        speed = SPEED * math.exp(bias + NOISE[number % len(NOISE)])
        others = 0.5 if number in noisy else 0.01
        runs = [arm_run("baseline", "baseline"), arm_run("null", "null", speed=speed, other_cpu_share=others)]
        found.append(block(number, runs))
    return found


def test_each_usable_block_belongs_to_one_comparison_and_the_rest_is_left_out() -> None:
    assert len(comparisons_of(null_blocks(8))) == 2
    assert len(comparisons_of(null_blocks(11))) == 2
    assert len(comparisons_of(null_blocks(9, noisy=(3,)))) == 2
    assert len(comparisons_of(null_blocks(8, noisy=(3,)))) == 1
    assert comparisons_of(null_blocks(3)) == []


def test_equal_arms_are_not_called_different() -> None:
    found = summary_of_nulls(null_blocks(8))
    assert (found["comparisons"], found["called_different"], found["interval_excludes_0"]) == (2, 0, 0)
    assert found["null_gate_failed"] == 0
    assert found["within_error_rate"]
    assert found["sd_of_blocks"] == pytest.approx(0.0098, abs=0.001)


@pytest.mark.parametrize("bias", [-0.10, 0.20])
def test_arms_that_differ_are_called_that_each_time(bias: float) -> None:
    found = summary_of_nulls(null_blocks(16, bias))
    assert (found["called_different"], found["interval_excludes_0"], found["null_gate_failed"]) == (4, 4, 4)
    assert not found["within_error_rate"]
    assert "within the error rate: NO" in nulls(found)


def test_a_difference_that_the_interval_sees_is_counted_without_being_a_verdict() -> None:
    found = summary_of_nulls(null_blocks(4, bias=0.03))
    assert (found["called_different"], found["interval_excludes_0"]) == (0, 1)


def test_nothing_usable_proves_nothing() -> None:
    found = summary_of_nulls(null_blocks(4, noisy=(1, 2, 3, 4)))
    assert (found["comparisons"], found["within_error_rate"]) == (0, False)
    assert "nothing measured" in nulls(found)


def test_the_number_of_false_alarms_that_chance_explains() -> None:
    assert [most_by_chance(count) for count in (1, 2, 20, 100)] == [0, 1, 3, 9]


def test_the_servers_figure_against_the_loops() -> None:
    found = summary_of_pairs([Pair(103.0, 101.0, 100.0), Pair(101.0, 99.0, 100.0)], 2)
    assert found["reported_percent"][0] == pytest.approx(100 * (math.sqrt(1.03 * 1.01) - 1), abs=0.01)
    assert found["per_decode_percent"][0] == pytest.approx(0.0, abs=0.01)
    assert found["within_3_percent"]
    assert not summary_of_pairs([Pair(104.0, 101.0, 100.0), Pair(103.0, 99.0, 100.0)], 2)["within_3_percent"]
    assert not summary_of_pairs([], 2)["within_3_percent"]
    assert "NO" in own_figure(summary_of_pairs([Pair(90.0, 89.0, 100.0)], 2))


def test_the_document_shows_the_committed_result() -> None:
    result = DOCS / "engine-proof.json"
    proof = json.loads(result.read_text(encoding="utf-8")) if result.exists() else None
    text = (DOCS / "method.md").read_text(encoding="utf-8")
    assert write_into(text, proof) == text
    assert (NOT_RUN in text) == (proof is None)


def test_a_document_without_the_place_is_refused() -> None:
    with pytest.raises(ValueError, match="exactly once"):
        write_into("# Method\n", None)
