"""Records of real shape for the tests of tables, bundles and traces."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

from findings.blocks import ArmRun, Block, RequestResult, block_to_json
from findings.records import Engagement, Kind, Outcome, Record, write_record, write_text

MODEL_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
ENGINE = "llama.cpp-b11549"


def request(prompt_id: str, milliseconds: float, *, draft_n: int | None = None, **more: Any) -> RequestResult:
    """A counted answer of 64 tokens; an id like prose-1 gives its class."""
    values: dict[str, Any] = {
        "prompt_id": prompt_id,
        "prompt_class": prompt_id.rsplit("-", 1)[0],
        "counted": True,
        "outcome": Outcome.OK,
        "prompt_n": 10,
        "prompt_ms": 50.0,
        "predicted_n": 64,
        "predicted_ms": milliseconds,
        "draft_n": draft_n,
        "draft_n_accepted": None if draft_n is None else draft_n // 2,
        "text_sha256": hashlib.sha256(prompt_id.encode()).hexdigest(),
        "tokens": tuple(range(64)),
        "degenerate": False,
    }
    return RequestResult(**(values | more))


def arm(name: str, kind: str, speculation: str, requests: tuple[RequestResult, ...], **more: Any) -> ArmRun:
    """One arm that ended well; a warm-up goes before the given requests."""
    warm_up = request("prose-0", 500.0, counted=False)
    drafted = any(r.draft_n for r in requests)
    engagement = Engagement.OFF if speculation == "none" else Engagement.WITHOUT_DRAFTS
    values: dict[str, Any] = {
        "outcome": Outcome.OK,
        "engagement": Engagement.WITH_DRAFTS if drafted else engagement,
        "started": "2026-12-02T06:30:00Z",
        "startup_s": 1.0,
        "engine_cpu_s": 4.0,
        "engine_wall_s": 2.0,
        "rss_bytes": 5 * 10**8,
        "settings": {"model_file": "gemma.gguf", "n_ctx": 2048},
        "engine_sha256": "e" * 64,
        "model_sha256": MODEL_SHA256,
        "log_sha256": "f" * 64,
        "log_tail": ("the last line",),
        "requests": (warm_up, *requests),
    }
    return ArmRun(name, kind, speculation, **(values | more))


def block(number: int, *arms: ArmRun) -> Block:
    """A block in which the arms ran in the given order."""
    placed = {a.arm: dataclasses.replace(a, position=i) for i, a in enumerate(arms, start=1)}
    return Block(number, tuple(placed), 20260506, "0123456789abcdef", placed)


def usual_block(number: int, ratio: float = 0.5) -> Block:
    """Baseline, null and two candidates: one drafts with speed `ratio`, the n-gram arm finds something in code only."""
    base = (request("prose-1", 1000.0), request("code-1", 800.0))
    drafting = (request("prose-1", 1000.0 / ratio, draft_n=40), request("code-1", 800.0 / ratio, draft_n=40))
    silent = (request("prose-1", 990.0), request("code-1", 400.0, draft_n=30))
    return block(
        number,
        arm("draft", "candidate", "draft_simple", drafting),
        arm("baseline", "baseline", "none", base),
        arm("ngram", "candidate", "ngram_simple", silent),
        arm("null", "null", "none", base),
    )


def write_run(
    records: Path, host: str, blocks: list[Block], *, run: int = 1, attempt: str = "attempt_1", finished: str = ""
) -> Path:
    """A run of a session below `records`; with `finished` (a UTC time) it is complete."""
    session = records / host / "measure" / attempt / ENGINE
    folder = session / f"run-{run:03d}"
    write_text(folder / "plan.json", '{"key": "0123456789abcdef", "identity": {}}\n')
    shared: dict[str, Any] = {"host": host, "study": "mini", "attempt": attempt, "engine": ENGINE}
    for one in blocks:
        subject = f"{attempt}/{ENGINE}/{one.block}"
        record = Record(Kind.BLOCK, subject, Outcome.OK, detail=block_to_json(one), **shared)
        write_record(folder / f"block-{one.block:03d}.json", record)
    if finished:
        write_text(folder / "complete.json", f'{{"key": "0123456789abcdef", "finished": "{finished}"}}\n')
        detail = {"run": folder.name, "blocks": len(blocks)}
        done = Record(Kind.SESSION, f"{attempt}/{ENGINE}", Outcome.OK, started=finished, detail=detail, **shared)
        write_record(session / "session.json", done)
    return folder


def write_host(records: Path, host: str, started: str = "2026-12-02T06:00:00Z") -> None:
    """The facts of a machine."""
    gpu = {
        "name": "NVIDIA GeForce GTX 1060 6GB",
        "compute_capability": "6.1",
        "memory_bytes": 6 * 2**30,
        "driver": "580",
    }
    detail = {
        "os": "Debian 12",
        "python": "3.11.7",
        "cpu": "A CPU",
        "cores": 2,
        "memory_bytes": 8 * 2**30,
        "gpus": [gpu],
    }
    record = Record(Kind.HOST, host, Outcome.OK, host=host, started=started, detail=detail)
    write_record(records / host / "host.json", record)
