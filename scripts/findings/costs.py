"""What tokens cost on this machine: verifying w tokens at once, and drafting one; the input of the break-even.

The target's cost of w tokens is the time that the server reports for a prompt of which all but the last w tokens are
cached; that works in every build. For a model with a sliding window it needs the full cache (`swa_full`): without it
the server keeps checkpoints instead, goes back to one a few tokens before the end of what is cached, and computes the
last four tokens in a run of their own, so that no time belongs to w tokens.

The drafter's cost of one token is its own speed, run alone as a target.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from findings.arm_runner import WARMUP_PROMPT, Ready
from findings.config import Driver, Protocol
from findings.engine.arms import Launch
from findings.engine.client import complete, tokenize
from findings.engine.failure import EngineFailure

PREFIX_TOKENS = 48
REPEATS = 3
DRAFT_TOKENS = 16
# Widths between the smallest and the largest that an arm drafts; straight lines are drawn between them.
WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 25, 33, 49, 65)
PREFIX_TEXT = (
    "The lighthouse stood at the end of a long stone pier, and every evening the keeper walked its whole length with "
    "a lantern in one hand and a small notebook in the other, writing down the wind, the tide, the ships that passed, "
    "and whatever else seemed worth keeping for the people who would come after him."
)


def widths_up_to(most: int) -> tuple[int, ...]:
    """The widths to measure so that `most` lies inside the curve."""
    inside = [width for width in WIDTHS if width < most]
    return (*inside, max(most, 1))


def measure_costs(
    baseline: Ready, drafters: Mapping[str, Ready], most_drafted: int, protocol: Protocol
) -> dict[str, Any]:
    """`{"target_ms": {width: [ms ...]}, "draft_ms": {arm: [ms a token ...]}, "reasons": {...}}`.

    Each from a fresh process. What cannot be measured is left out, with its reason; nothing is raised for an engine.
    """
    costs: dict[str, Any] = {"target_ms": {}, "draft_ms": {}, "reasons": {}}
    try:
        costs["target_ms"] = _target_costs(baseline, widths_up_to(most_drafted + 1), protocol)
    except EngineFailure as failure:
        costs["reasons"]["target"] = failure.reason
    for arm, ready in drafters.items():
        try:
            costs["draft_ms"][arm] = _draft_costs(baseline, ready, protocol)
        except EngineFailure as failure:
            costs["reasons"][arm] = failure.reason
    return costs


def _target_costs(ready: Ready, widths: Sequence[int], protocol: Protocol) -> dict[str, list[float]]:
    """Milliseconds for each width, REPEATS times; a width whose prompt was not cached as wanted is left out."""
    limit = protocol.request_timeout_s
    found: dict[str, list[float]] = {}
    launch = with_full_cache(ready.launch)
    with (
        tempfile.TemporaryDirectory(prefix="findings-costs-") as folder,
        ready.site.start(ready.engine, ready.program, launch, Path(folder), protocol.start_timeout_s) as engine,
    ):
        words = tokenize(engine.endpoint, PREFIX_TEXT, limit)
        prefix, pool = words[:PREFIX_TOKENS], words[5:]
        complete(engine.endpoint, prefix, 1, limit, cache_prompt=True)
        for repeat in range(REPEATS + 1):
            for width in widths:
                # Another suffix each time, so that only the prefix is ever found in the cache.
                start = (repeat * len(widths) + width) % len(pool)
                suffix = [pool[(start + step * 7) % len(pool)] for step in range(width)]
                answer = complete(engine.endpoint, [*prefix, *suffix], 1, limit, cache_prompt=True)
                if repeat > 0 and answer.prompt_n == width:
                    found.setdefault(str(width), []).append(answer.prompt_ms)
    return found


def with_full_cache(launch: Launch) -> Launch:
    """The launch with a cache that keeps every token, also of layers with a sliding window."""
    if launch.driver is Driver.LLAMA_SERVER:
        return replace(launch, flags=(*launch.flags, "--swa-full"))
    return replace(launch, settings={**launch.settings, "swa_full": True})


def _draft_costs(baseline: Ready, ready: Ready, protocol: Protocol) -> list[float]:
    """Milliseconds per generated token of the drafter alone, on the same engine without speculation."""
    launch = _as_target(baseline, ready)
    limit = protocol.request_timeout_s
    with (
        tempfile.TemporaryDirectory(prefix="findings-costs-") as folder,
        ready.site.start(ready.engine, ready.program, launch, Path(folder), protocol.start_timeout_s) as engine,
    ):
        complete(engine.endpoint, WARMUP_PROMPT, 4, limit)
        answers = [complete(engine.endpoint, PREFIX_TEXT, DRAFT_TOKENS, limit) for _ in range(REPEATS)]
    return [answer.predicted_ms / answer.predicted_n for answer in answers if answer.predicted_n]


def _as_target(baseline: Ready, ready: Ready) -> Launch:
    """The baseline's launch with the drafter's file in the place of the target's."""
    mine, theirs = str(baseline.model_path), str(ready.drafter_path)
    settings = {name: theirs if value == mine else value for name, value in baseline.launch.settings.items()}
    flags = tuple(theirs if flag == mine else flag for flag in baseline.launch.flags)
    return replace(baseline.launch, settings=settings, flags=flags)
