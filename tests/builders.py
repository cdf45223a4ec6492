"""Makes blocks for tests of pure logic: constructed results, no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from findings.blocks import ArmRun, Block, RequestResult
from findings.records import Engagement, Outcome

SPEED = 50.0
TOKENS = 64


def request(
    prompt_id: str = "prose-1",
    prompt_class: str = "prose",
    speed: float = SPEED,
    drafted: int | None = None,
    **more: Any,
) -> RequestResult:
    """One counted request that generated 64 tokens at `speed` tokens per second."""
    values: dict[str, Any] = {
        "counted": True,
        "outcome": Outcome.OK,
        "prompt_n": 10,
        "prompt_ms": 50.0,
        "predicted_n": TOKENS,
        "predicted_ms": 1000.0 * TOKENS / speed,
        "draft_n": drafted,
        "draft_n_accepted": None if drafted is None else drafted // 2,
        "tokens": tuple(range(TOKENS)),
        "degenerate": False,
    }
    return RequestResult(prompt_id, prompt_class, **(values | more))


def arm_run(
    name: str, kind: str = "candidate", speed: float = SPEED, drafted: int | None = None, **more: Any
) -> ArmRun:
    """One arm with a prose and a list request; speculating where `drafted` is a number."""
    speculation = "none" if kind in ("baseline", "null") else "ngram_simple"
    engagement = Engagement.OFF if speculation == "none" else Engagement.NOT_ENGAGED
    if drafted is not None:
        engagement = Engagement.WITH_DRAFTS if drafted else Engagement.WITHOUT_DRAFTS
    values: dict[str, Any] = {
        "outcome": Outcome.OK,
        "engagement": engagement,
        "engine_sha256": "e" * 64,
        "model_sha256": "a" * 64,
        "settings": {"n_ctx": 2048},
        "machine": {"memory_available_share": 0.8},
        "other_cpu_share": 0.01,
        "requests": (
            request("prose-1", "prose", speed, drafted),
            request("list-1", "list", speed, drafted),
        ),
    }
    return ArmRun(name, kind, speculation, **(values | more))


def block(number: int, runs: Sequence[ArmRun], **more: Any) -> Block:
    """A block with these arms."""
    arms: Mapping[str, ArmRun] = {run.arm: run for run in runs}
    return Block(number, tuple(arms), 1, "s", arms, **more)


def with_request(run: ArmRun, index: int, **changes: Any) -> ArmRun:
    """The run with one request changed."""
    requests = list(run.requests)
    requests[index] = replace(requests[index], **changes)
    return replace(run, requests=tuple(requests))
