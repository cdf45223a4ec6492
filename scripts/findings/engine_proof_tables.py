"""The proof on a real engine as text: for the terminal, and between the markers of docs/method.md."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

_MARKED: Final = re.compile(r"(<!-- engine proof -->\n).*?(<!-- end of engine proof -->)", re.DOTALL)
NOT_RUN: Final = "Not run yet: `python benchmarks/engine_proof.py --write` makes this section.\n"
Proof = Mapping[str, Any]


def write_into(text: str, proof: Proof | None) -> str:
    """`text` with what stands between the markers made anew. Raises ValueError where the markers are missing."""
    body = NOT_RUN if proof is None else render(proof)
    changed, count = _MARKED.subn(lambda match: match.group(1) + body + match.group(2), text)
    if count != 1:
        raise ValueError("<!-- engine proof --> ... <!-- end of engine proof --> must stand there exactly once")
    return changed


def render(proof: Proof) -> str:
    """Every part that the proof holds, as Markdown, ending in a newline."""
    parts = [_machine(proof)]
    if "nulls" in proof:
        parts.append(nulls(proof["nulls"]))
    if "known" in proof:
        parts.append(known(proof["known"]))
    if "own_figure" in proof:
        parts.append(own_figure(proof["own_figure"]))
    return "\n".join(parts)


def _machine(proof: Proof) -> str:
    return (
        f"On {proof['host']} ({proof['cores']} cores, {proof['threads']} threads), {proof['engine']} "
        f"({proof['engine_version']}), {proof['target']}, {proof['date']}.\n"
    )


def _percent(values: Sequence[float] | None) -> str:
    """`-1.2 % (-3.4 to +1.0 %)`, without the interval where there is none."""
    if not values:
        return "nothing measured"
    if len(values) == 1:
        return f"{values[0]:+.1f} %"
    return f"{values[0]:+.1f} % ({values[1]:+.1f} to {values[2]:+.1f} %)"


def _yes(passed: bool) -> str:
    return "yes" if passed else "NO"


def nulls(found: Mapping[str, Any]) -> str:
    """The null comparisons: how many, and how many would have been called a difference."""
    count = found["comparisons"]
    spread = "unknown" if found["sd_of_blocks"] is None else f"{found['sd_of_blocks']:.3f}"
    return (
        f"*Baseline against itself*: {count} comparisons of {found['blocks_each']} blocks "
        f"({found['usable_blocks']} of {found['blocks']} blocks ran on a quiet machine).\n\n"
        "| what was said of two equal arms | times | of |\n| --- | ---: | ---: |\n"
        f"| a verdict of difference | {found['called_different']} | {count} |\n"
        f"| the plain 95 % interval excludes 0 | {found['interval_excludes_0']} | {count} |\n"
        f"| the null gate fails | {found['null_gate_failed']} | {count} |\n\n"
        f"At a true rate of 5 % up to {found['most_by_chance']} intervals may exclude 0 (19 times in 20): within the "
        f"error rate: {_yes(found['within_error_rate'])}. Standard deviation of d between blocks: {spread}. All blocks "
        f"together: {_percent(found['all_blocks_percent'])}.\n"
    )


def known(found: Mapping[str, Any]) -> str:
    """The effects that must be found."""
    slow, fast = found["self_drafting"], found["list_to_repeat"]
    failed = [name for name, gate in found["gates"].items() if not gate["passed"]]
    return (
        f"*Known effects*, after {found['usable_blocks']} of {found['blocks']} blocks (gates that failed: "
        f"{', '.join(failed) or 'none'}):\n\n"
        "| arm | detected | accepted / drafted / generated | what was found |\n| --- | --- | ---: | --- |\n"
        f"| target drafts for itself, 3 tokens | slower: {_yes(slow['detected_as_slower'])} | {_tokens(slow)} | "
        f"{slow['reason']} |\n"
        f"| n-grams on a list to repeat | faster: {_yes(fast['detected_as_faster'])} | {_tokens(fast)} | "
        f"{fast['reason']} |\n"
    )


def _tokens(arm: Mapping[str, Any]) -> str:
    return f"{arm['accepted']} / {arm['drafted']} / {arm['generated']}"


def own_figure(found: Mapping[str, Any]) -> str:
    """The server's speed beside that of llama-bench's loop."""
    return (
        f"*Speed through the server against llama-bench's loop* over the same library, {found['tokens']} tokens, "
        f"asked in turn {2 * found['rounds']} times each in {found['pairs']} pairs of processes: the server's figure "
        f"is off by {_percent(found['reported_percent'])}; within 3 % in the mean: {_yes(found['within_3_percent'])}. "
        f"Counted per decode: {_percent(found['per_decode_percent'])}; the first of n tokens comes out of the prompt "
        "and costs no time in the server's figure; sampling and answering are in the server's time alone.\n"
    )
