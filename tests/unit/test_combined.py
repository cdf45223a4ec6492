"""A claim about several kinds: one that pays ends it, silence is no evidence, the best one speaks for all."""

from __future__ import annotations

import pytest

from findings.inference import Verdict
from findings.verdicts import Judgement, combined

SILENT = Judgement(Verdict.NOT_TESTABLE, "proposed nothing", arm="quiet", failed_gates=("drafter_engaged",))
HOLDS = Judgement(Verdict.HOLDS, "too small", arm="slow")
PAYS = Judgement(Verdict.NO_LONGER_HOLDS, "all above 5 %", arm="fast")
OPEN = Judgement(Verdict.INCONCLUSIVE, "open after 6 blocks", arm="open")


@pytest.mark.parametrize(
    ("judged", "verdict", "words"),
    [
        ([HOLDS, PAYS, OPEN], Verdict.NO_LONGER_HOLDS, "fast: all above"),
        ([HOLDS, OPEN, SILENT], Verdict.INCONCLUSIVE, "open: open after"),
        ([HOLDS, SILENT], Verdict.HOLDS, "Proposed nothing here: quiet"),
        ([SILENT, SILENT], Verdict.NOT_TESTABLE, "none of the 2 kinds proposed anything"),
    ],
)
def test_the_kinds_are_joined_without_hiding_any(judged: list[Judgement], verdict: Verdict, words: str) -> None:
    found = combined(judged)
    assert found.verdict is verdict
    assert words in found.reason
