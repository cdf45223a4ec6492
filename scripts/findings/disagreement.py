"""Where machines disagree: a finding that holds on one of them and no longer holds on another."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

DECIDED = ("holds", "no_longer_holds")


class Judged(Protocol):
    """What is read of a line of the table of verdicts."""

    @property
    def finding(self) -> str: ...  # noqa: D102
    @property
    def title(self) -> str: ...  # noqa: D102
    @property
    def scope(self) -> str: ...  # noqa: D102
    @property
    def host(self) -> str: ...  # noqa: D102
    @property
    def verdict(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Disagreement:
    """One finding in one scope: machines where it holds, where it no longer does, and those that cannot say."""

    title: str
    scope: str
    holds: tuple[str, ...]
    no_longer_holds: tuple[str, ...]
    undecided: tuple[str, ...]


def disagreements(lines: Iterable[Judged]) -> list[Disagreement]:
    """Findings on which at least two machines decided differently, in the order of the lines.

    An inconclusive or untestable verdict disagrees with nobody. A machine that has both verdicts (two arms, two
    engines) stands on both sides, and disagrees only if another machine is there.
    """
    seen: dict[tuple[str, str], dict[str, dict[str, None]]] = {}
    titles: dict[str, str] = {}
    for line in lines:
        titles[line.finding] = line.title
        by_verdict = seen.setdefault((line.finding, line.scope), {})
        verdict = line.verdict if line.verdict in DECIDED else ""
        by_verdict.setdefault(verdict, {})[line.host] = None
    found = []
    for (finding, scope), hosts in seen.items():
        holds, gone = tuple(sorted(hosts.get("holds", ()))), tuple(sorted(hosts.get("no_longer_holds", ())))
        if holds and gone and len({*holds, *gone}) > 1:
            undecided = tuple(sorted(set(hosts.get("", ())) - {*holds, *gone}))
            found.append(Disagreement(titles[finding], scope, holds, gone, undecided))
    return found
