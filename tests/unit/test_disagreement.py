"""Machines that decided a finding differently are named; those that cannot say disagree with nobody."""

from dataclasses import dataclass

import pytest

from findings.disagreement import disagreements


@dataclass(frozen=True)
class Line:
    host: str
    verdict: str
    finding: str = "f"
    title: str = "F"
    scope: str = "mechanism"


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([Line("a", "holds"), Line("b", "no_longer_holds")], [("a",), ("b",), ()]),
        ([Line("a", "holds"), Line("b", "no_longer_holds"), Line("c", "inconclusive")], [("a",), ("b",), ("c",)]),
        ([Line("a", "holds"), Line("b", "holds")], None),
        ([Line("a", "holds"), Line("b", "not_testable")], None),
        ([Line("a", "holds"), Line("a", "no_longer_holds")], None),
        ([Line("a", "holds"), Line("b", "no_longer_holds", scope="as_published")], None),
        ([Line("a", "holds"), Line("b", "no_longer_holds", finding="g")], None),
    ],
)
def test_who_disagrees(lines: list[Line], expected: list[tuple[str, ...]] | None) -> None:
    found = disagreements(lines)
    assert [[d.holds, d.no_longer_holds, d.undecided] for d in found] == ([expected] if expected else [])
