"""What a block holds: one run of every arm, each in a fresh engine process, and the requests it answered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from findings.records import Engagement, Outcome


@dataclass(frozen=True)
class RequestResult:
    """One answered (or failed) request. Times in milliseconds as the engine reports them, counts in tokens.

    `draft_n` is None where the engine reported no drafting at all, which differs from 0.
    `first_difference` is the index of the first token that differs from the baseline's of the same block and prompt,
    None where all are equal or nothing can be compared.
    """

    prompt_id: str
    prompt_class: str
    counted: bool
    outcome: Outcome
    reason: str = ""
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
    draft_n: int | None = None
    draft_n_accepted: int | None = None
    text_sha256: str = ""
    tokens: tuple[int, ...] = ()
    degenerate: bool | None = None
    first_difference: int | None = None

    @property
    def measured(self) -> bool:
        """Whether this request may enter an estimate: counted, answered, with time spent on it."""
        return self.counted and self.outcome is Outcome.OK and self.predicted_n > 0 and self.predicted_ms > 0


@dataclass(frozen=True)
class ArmRun:
    """One arm in one block: a fresh process from start to stop.

    `engine_cpu_s` and `engine_wall_s` cover the counted requests; `other_cpu_share` is the share of the machine's
    processor time that everything but the engine and this process used meanwhile (0..1, stolen time included).
    """

    arm: str
    kind: str
    speculation: str
    outcome: Outcome
    engagement: Engagement
    reason: str = ""
    position: int = 0
    started: str = ""
    startup_s: float = 0.0
    engine_cpu_s: float = 0.0
    engine_wall_s: float = 0.0
    other_cpu_share: float = 0.0
    rss_bytes: int = 0
    swap_bytes: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    machine: Mapping[str, Any] = field(default_factory=dict)
    engine_sha256: str = ""
    model_sha256: str = ""
    drafter_sha256: str | None = None
    log_sha256: str = ""
    log_tail: tuple[str, ...] = ()
    requests: tuple[RequestResult, ...] = ()


@dataclass(frozen=True)
class Block:
    """One round in which every arm ran once, in `order`; `costs` holds the cost curve where one was measured."""

    block: int
    order: tuple[str, ...]
    seed: int
    session: str
    arms: Mapping[str, ArmRun]
    costs: Mapping[str, Any] = field(default_factory=dict)


def block_to_json(block: Block) -> dict[str, Any]:
    """The block as the `detail` of its record."""
    return asdict(block)


def block_from_json(detail: Mapping[str, Any]) -> Block:
    """A block from the `detail` of its record (KeyError or TypeError where a field is missing or unknown)."""
    arms = {name: arm_from_json(raw) for name, raw in detail["arms"].items()}
    return Block(
        int(detail["block"]),
        tuple(detail["order"]),
        int(detail["seed"]),
        str(detail["session"]),
        arms,
        dict(detail.get("costs", {})),
    )


def arm_from_json(raw: Mapping[str, Any]) -> ArmRun:
    """One arm's run from JSON."""
    values = dict(raw)
    values["outcome"] = Outcome(values["outcome"])
    values["engagement"] = Engagement(values["engagement"])
    values["log_tail"] = tuple(values.get("log_tail", ()))
    values["requests"] = tuple(_request_from_json(item) for item in values.get("requests", ()))
    return ArmRun(**values)


def _request_from_json(raw: Mapping[str, Any]) -> RequestResult:
    values = dict(raw)
    values["outcome"] = Outcome(values["outcome"])
    values["tokens"] = tuple(values.get("tokens", ()))
    return RequestResult(**values)
