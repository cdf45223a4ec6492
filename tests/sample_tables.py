"""Small tables for tests, in the project's schemas: invented, seeded, with every case that the publication must show.

Nothing here was measured. `rows()` gives the rows by table, `write(folder)` the Parquet files.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from findings.tables import TABLES, write_table

Row = dict[str, Any]
HOST = "sample-cpu-2core"
BLOCKS = 6
DRAFTS, SILENT, OFF = "engaged_with_drafts", "not_engaged", "off"
CLASSES = ("prose", "code", "structured")
# attempt, engine, build, arm, kind, speculation, true ln ratio by class (None: never drafts), acceptance
ARMS: tuple[tuple[str, str, int, str, str, str, Mapping[str, float | None], float], ...] = (
    ("attempt_1", "llama.cpp-b11549", 11549, "null", "null", "none", dict.fromkeys(CLASSES, 0.0), 0.0),
    ("attempt_1", "llama.cpp-b11549", 11549, "list", "positive_control", "ngram_simple", {"list": 0.8}, 0.95),
    ("attempt_1", "llama.cpp-b11549", 11549, "draft", "candidate", "draft_simple", dict.fromkeys(CLASSES), 0.0),
    ("attempt_1", "llama.cpp-b8929", 8929, "null", "null", "none", dict.fromkeys(CLASSES, 0.01), 0.0),
    ("attempt_1", "llama.cpp-b8929", 8929, "draft", "candidate", "draft_simple", dict.fromkeys(CLASSES, -0.5), 0.4),
    ("attempt_2", "llama.cpp-b11549", 11549, "null", "null", "none", dict.fromkeys(CLASSES, -0.01), 0.0),
    ("attempt_2", "llama.cpp-b11549", 11549, "draft", "candidate", "draft_simple", dict.fromkeys(CLASSES, -0.6), 0.97),
    ("attempt_4", "llama.cpp-b11549", 11549, "null", "null", "none", {"templated": 0.0}, 0.0),
    ("attempt_4", "llama.cpp-b11549", 11549, "mtp_centroids", "candidate", "draft_mtp", {"templated": 0.2}, 0.66),
    ("attempt_6", "llama.cpp-b11549", 11549, "null", "null", "none", dict.fromkeys(CLASSES, 0.0), 0.0),
    ("attempt_6", "llama.cpp-b11549", 11549, "list", "positive_control", "ngram_simple", {"list": 0.82}, 0.96),
    *(
        ("attempt_6", "llama.cpp-b11549", 11549, name, "candidate", name, effects, accepted)
        for name, effects, accepted in (
            ("ngram_simple", {"prose": -0.05, "code": 0.02, "structured": 0.12}, 0.2),
            ("ngram_map_k", {"prose": None, "code": -0.01, "structured": 0.05}, 0.3),
            ("ngram_mod", {"prose": -0.02, "code": 0.0, "structured": 0.3}, 0.5),
        )
    ),
)
PUBLISHED = (
    ("M1", "predator", "gemma-4-e4b", "cuda", "backend_switch", "baseline", "baseline", 25.34, None),
    ("M2", "predator", "gemma-4-e4b", "vulkan", "backend_switch", "vulkan", "candidate", 32.15, None),
    ("M3", "predator", "gemma-4-e2b", "vulkan", "backend_switch", "vulkan", "candidate", 56.9, None),
    ("M4", "pavilion", "gemma-4-e2b", "cuda", "backend_switch", "baseline", "baseline", 23.44, None),
    ("M5", "pavilion", "gemma-4-e2b", "vulkan", "backend_switch", "vulkan", "candidate", 34.46, None),
    ("M6", "predator", "gemma-4-e4b", "", "attempt_1", "baseline", "baseline", 26.0, None),
    ("M7", "predator", "gemma-4-e4b", "", "attempt_1", "draft", "candidate", 22.6, 0.0),
    ("M8", "predator", "gemma-4-e4b", "", "attempt_2", "draft", "candidate", 17.0, None),
    ("M9", "predator", "gemma-4-e4b", "", "attempt_3", "draft_cpu", "candidate", 7.0, None),
)
# finding, attempt, arm, class of prompts, verdict of the mechanism
Judged = tuple[str, str, str, str, str]
FINDINGS: tuple[Judged, ...] = (
    ("attempt_1_does_not_engage", "attempt_1", "draft", "", "holds"),
    ("attempt_2_does_not_pay", "attempt_2", "draft", "all", "holds"),
    ("attempt_3_does_not_pay", "attempt_3", "draft_cpu", "", "not_testable"),
    ("attempt_4_cannot_convert", "attempt_4", "", "", "no_longer_holds"),
    ("attempt_4_cannot_load", "attempt_4", "mtp_centroids", "", "no_longer_holds"),
    ("attempt_6_prose_does_not_pay", "attempt_6", "ngram_simple", "prose", "inconclusive"),
    ("backend_vulkan_pays", "backend_switch", "vulkan", "", "not_testable"),
)


def _record(*parts: str) -> str:
    return "/".join(("results/records", HOST, *parts)) + ".json"


def measurements() -> list[Row]:
    """Requests of every arm and block, the published figures, and an imported run."""
    draw = random.Random(6)
    rows: list[Row] = []
    for attempt, engine, build, arm, kind, speculation, effects, acceptance in ARMS:
        for block in range(1, BLOCKS + 1):
            for number, (group, effect) in enumerate(effects.items(), start=1):
                speed = 35 * math.exp((effect or 0.0) + draw.gauss(0, 0.05))
                drafts = effect is not None and speculation != "none"
                rows.append(_request(attempt, engine, build, arm, kind, speculation, block, number, group, speed))
                rows[-1] |= {
                    "engagement": DRAFTS if drafts else (OFF if speculation == "none" else SILENT),
                    "draft_tokens": 60 if drafts else None,
                    "accepted_tokens": round(60 * acceptance) if drafts else None,
                    "acceptance": round(60 * acceptance) / 60 if drafts else None,
                }
    return rows + published() + imported()


def _request(
    attempt: str,
    engine: str,
    build: int,
    arm: str,
    kind: str,
    speculation: str,
    block: int,
    number: int,
    group: str,
    speed: float,
) -> Row:
    return {
        "evidence": "measured",
        "study": "mini",
        "host": HOST,
        "attempt": attempt,
        "engine": engine,
        "build": build,
        "backend": "cpu",
        "session": "5e55104",
        "block": block,
        "position": 1,
        "arm": arm,
        "arm_kind": kind,
        "speculation": speculation,
        "prompt_class": group,
        "prompt_id": f"{group}-1",
        "repetition": number + 1,
        "counted": True,
        "outcome": "ok",
        "engagement": OFF,
        "prompt_tokens": 60,
        "prompt_ms": 300.0,
        "predicted_tokens": 64,
        "predicted_ms": 64 / speed * 1000,
        "tg_tokens_per_s": speed,
        "pp_tokens_per_s": 200.0,
        "model": "gemma-3-270m-q4-k-m",
        "quantization": "Q4_K_M",
        "started": "2026-12-02T08:00:00Z",
        "record": _record("measure", attempt, engine, "run-001", f"block-{block:03d}"),
        "source": "",
        "licence": "",
    }


def published() -> list[Row]:
    """The study's figures as rows."""
    return [
        {
            "evidence": "published",
            "study": "published",
            "host": host,
            "attempt": attempt,
            "engine": "",
            "build": None,
            "backend": backend,
            "session": "",
            "arm": arm,
            "arm_kind": kind,
            "prompt_class": "",
            "prompt_id": "",
            "speculation": "none" if attempt == "backend_switch" or arm == "baseline" else "draft_simple",
            "repetition": 1,
            "counted": True,
            "outcome": "ok",
            "engagement": "",
            "tg_tokens_per_s": speed,
            "acceptance": acceptance,
            "model": model,
            "quantization": "Q4_K_M",
            "started": "",
            "licence": "",
            "record": f"config/published.yaml#{key}",
            "source": "the study of 2026-05-06",
        }
        for key, host, model, backend, attempt, arm, kind, speed, acceptance in PUBLISHED
    ]


def imported() -> list[Row]:
    """Somebody else's run: two backends, three methods, one run per prompt."""
    draw = random.Random(7)
    rows: list[Row] = []
    for backend, speed in (("cuda", 50.0), ("vulkan", 57.0)):
        for arm, kind, factor, drafted in (
            ("baseline", "baseline", 1.0, None),
            ("draft", "candidate", 0.8, 300),
            ("ngram", "candidate", 0.98, 0),
        ):
            for prompt in range(1, 9):
                row = _request(
                    "", "", 0, arm, kind, "none", 1, 1, "code", speed * factor * math.exp(draw.gauss(0, 0.08))
                )
                rows.append(
                    row
                    | {
                        "evidence": "imported",
                        "study": "others",
                        "host": "gtx-1080-ti",
                        "backend": backend,
                        "build": None,
                        "speculation": {"baseline": "none", "draft": "draft_simple"}.get(arm, "ngram_simple"),
                        "block": None,
                        "position": None,
                        "prompt_id": f"prompt-{prompt}",
                        "session": "",
                        "engagement": OFF if drafted is None else (DRAFTS if drafted else "engaged_without_drafts"),
                        "draft_tokens": drafted,
                        "accepted_tokens": None if drafted is None else drafted // 2,
                        "acceptance": 0.5 if drafted else None,
                        "model": "qwen2.5-coder-7b",
                        "quantization": "Q4_K_S",
                        "record": "imports/sample.json",
                        "source": "github.com/example/benchmarks",
                        "licence": "CC BY 4.0",
                        "started": "",
                    }
                )
    return rows


def effects() -> list[Row]:
    """Block effects of every arm, with the class `all`."""
    draw = random.Random(8)
    rows: list[Row] = []
    for attempt, engine, build, arm, kind, speculation, by_class, acceptance in ARMS:
        for block in range(1, BLOCKS + 1):
            known = {g: e + draw.gauss(0, 0.06) for g, e in by_class.items() if e is not None}
            both: dict[str, float | None] = {g: known.get(g) for g in by_class}
            both["all"] = sum(known.values()) / len(known) if known else None
            for group, value in both.items():
                drafts = value is not None and speculation != "none"
                rows.append(
                    {
                        "evidence": "measured",
                        "study": "mini",
                        "host": HOST,
                        "attempt": attempt,
                        "engine": engine,
                        "build": build,
                        "backend": "cpu",
                        "session": "5e55104",
                        "block": block,
                        "arm": arm,
                        "arm_kind": kind,
                        "speculation": speculation,
                        "prompt_class": group,
                        "ln_ratio": value,
                        "engagement": DRAFTS if drafts else (OFF if speculation == "none" else SILENT),
                        "arm_tg_tokens_per_s": None if value is None else 35 * math.exp(value),
                        "baseline_tg_tokens_per_s": 35.0,
                        "prompts": len(by_class),
                        "draft_tokens": 60 if drafts else None,
                        "accepted_tokens": round(60 * acceptance) if drafts else None,
                        "acceptance": round(60 * acceptance) / 60 if drafts else None,
                        "source": "",
                        "reason": "" if value is not None else "the drafter did not engage",
                        "record": _record("measure", attempt, engine, "run-001", f"block-{block:03d}"),
                    }
                )
    return rows


def outcomes() -> list[Row]:
    """Conversions and loads by build, a crash, a download that no mirror had, a session with a break-even."""
    refused = "ERROR:hf-to-gguf:Model Gemma4AssistantForCausalLM is not supported"
    rows = [
        _outcome(
            "conversion",
            f"tiny-gemma4-assistant-centroids/{name}",
            outcome,
            converter=name,
            build=build,
            attempt="attempt_4",
            reason=reason,
            exit_code=code,
            log_tail=reason,
        )
        for name, build, outcome, reason, code in (
            ("converter-b9002", 9002, "refused", refused, 1),
            ("converter-b9538", 9538, "refused", refused, 1),
            ("converter-b11434", 11434, "ok", "", 0),
        )
    ]
    for engine, build, outcome, reason in (
        ("llama.cpp-b8929", 8929, "refused", "unknown model architecture: 'gemma4-assistant'"),
        ("llama.cpp-b9538", 9538, "refused", "unknown model architecture: 'gemma4-assistant'"),
        ("llama.cpp-b9713", 9713, "ok", ""),
        ("llama.cpp-b11549", 11549, "ok", ""),
    ):
        rows.append(
            _outcome(
                "load",
                f"attempt_4/{engine}/mtp_centroids",
                outcome,
                engine=engine,
                build=build,
                attempt="attempt_4",
                arm="mtp_centroids",
                reason=reason,
                log_tail=f"loading model\n{reason}\nexiting" if reason else "",
                prediction=outcome,
                engagement=DRAFTS if outcome == "ok" else "",
                exit_code=None if outcome == "ok" else 1,
            )
        )
    for engine, build, outcome, reason in (
        ("llama.cpp-b8929", 8929, "ok", "tokens were translated between the two vocabularies"),
        ("llama.cpp-b11549", 11549, "not_engaged", "the target and draft vocabs are not compatible"),
    ):
        rows.append(
            _outcome(
                "load",
                f"attempt_1/{engine}/draft",
                outcome,
                engine=engine,
                build=build,
                attempt="attempt_1",
                arm="draft",
                reason=reason,
                log_tail=reason,
                engagement=DRAFTS if outcome == "ok" else SILENT,
                prediction=outcome,
            )
        )
    rows.append(
        _outcome(
            "probe",
            "skulk-b10434",
            "crashed",
            reason="illegal instruction",
            exit_code=-4,
            engine="skulk-b10434",
            build=10434,
            log_tail="<script>alert('from a log')</script> & illegal instruction",
        )
    )
    for build, offered in ((8929, ["none"]), (11549, ["none", "draft-mtp", "ngram-simple"])):
        rows.append(
            _outcome(
                "probe",
                f"llama.cpp-b{build}",
                "ok",
                engine=f"llama.cpp-b{build}",
                build=build,
                detail={"build": build, "spec_types": offered},
            )
        )
    rows.append(_outcome("download", "gemma-4-e4b-it-q4-k-m", "unavailable", reason="no mirror answered"))
    rows.append(_outcome("environment", "engine-b11549", "ok", detail={"packages": {"xllamacpp": "2026.10.11549"}}))
    return rows


def _outcome(kind: str, subject: str, outcome: str, *, detail: Mapping[str, Any] | None = None, **more: Any) -> Row:
    base: Row = {
        "evidence": "measured",
        "study": "mini",
        "host": HOST,
        "attempt": "",
        "kind": kind,
        "subject": subject,
        "engine": "",
        "build": None,
        "converter": "",
        "arm": "",
        "session": "",
        "block": None,
        "outcome": outcome,
        "reason": "",
        "engagement": "",
        "exit_code": None,
        "seconds": 1.5,
        "command": f"tool {kind}",
        "log_tail": "",
        "log_sha256": "",
        "started": "2026-12-02T08:00:00Z",
        "record": _record(f"{kind}s", subject),
        "prediction": None,
        "detail_json": json.dumps(detail or {}, sort_keys=True),
    }
    return base | more


def verdicts(findings: Sequence[Judged] = FINDINGS) -> list[Row]:
    """Both scopes of every finding; those that were measured have an interval."""
    rows: list[Row] = []
    for finding, attempt, arm, group, word in findings:
        base: Row = {
            "finding": finding,
            "attempt": attempt,
            "study": "mini",
            "host": HOST,
            "engine": "llama.cpp-b11549",
            "build": 11549,
            "evidence": "measured",
            "arm": arm,
            "prompt_class": group,
            "failed_gates": [],
            "would_make_testable": "",
            "advice": "Compare the vocabularies first.",
            "command": f"snakemake --cores 1 {attempt}",
        }
        published = {"published_percent": -13.0} if attempt == "attempt_1" else {}
        rows.append(
            base
            | published
            | {
                "scope": "as_published",
                "verdict": "not_testable",
                "reason": "no GPU of compute capability 6.1 here",
                "would_make_testable": "a Pascal GPU and the study pascal",
                "engine": "",
                "build": None,
            }
        )
        rows.append(
            base | {"scope": "mechanism", "verdict": word, "reason": f"sample reason for {word}"} | _how(word, group)
        )
        if word == "no_longer_holds":
            older = {"engine": "llama.cpp-b9538", "build": 9538, "verdict": "holds", "reason": "the tool refuses it"}
            rows.append(rows[-1] | older)
    return rows


def _how(word: str, group: str) -> Row:
    """What a verdict carries beside its reason."""
    if word == "inconclusive":
        return {
            "ln_ratio": -0.05, "ln_ratio_low": -0.12, "ln_ratio_high": 0.02, "change_percent": -4.9,
            "change_low_percent": -11.3, "change_high_percent": 2.0, "blocks": BLOCKS, "blocks_needed": 14,
            "failed_gates": ["machine_quiet"], "p_value": 0.11,
        }  # fmt: skip
    if word == "holds" and group:
        return {
            "ln_ratio": -0.6, "ln_ratio_low": -0.66, "ln_ratio_high": -0.54, "change_percent": -45.1,
            "change_low_percent": -48.3, "change_high_percent": -41.7, "blocks": BLOCKS, "p_value": 0.0001,
        }  # fmt: skip
    if word == "no_longer_holds":
        return {"holds_until_build": 9538, "fails_since_build": 9713}
    if word == "not_testable":
        return {"would_make_testable": "a GPU", "reason": "this machine has no GPU"}
    return {}


def hosts() -> list[Row]:
    """This machine and the imported one."""
    base: Row = {
        "os": "",
        "python": "",
        "cpu": "",
        "gpu": "",
        "compute_capability": "",
        "driver": "",
        "versions_json": "{}",
        "source": "",
        "licence": "",
    }
    return [
        base
        | {
            "evidence": "measured",
            "host": HOST,
            "os": "Debian GNU/Linux 12",
            "python": "3.11.7",
            "cpu": "Sample CPU",
            "cores": 2,
            "memory_bytes": 24 * 2**30,
            "record": _record("host"),
            "versions_json": json.dumps({"kernel": "6.1.0", "machine": "x86_64"}),
        },
        base
        | {
            "evidence": "imported",
            "host": "gtx-1080-ti",
            "gpu": "GTX 1080 Ti",
            "compute_capability": "6.1",
            "record": "imports/sample.json",
            "source": "github.com/example/benchmarks",
            "licence": "CC BY 4.0",
        },
    ]


def scores() -> list[Row]:
    """Questions of the pre-check with answers: right, wrong, and not told."""
    rows: list[Row] = []
    for attempt, arm, build, answers in (
        ("attempt_1", "draft", 11549, {"loads": "yy", "engages": "nn", "fits": "yy", "pays": "n?"}),
        ("attempt_1", "draft", 8929, {"loads": "yy", "engages": "yy", "fits": "yy", "pays": "nn"}),
        ("attempt_2", "draft", 11549, {"loads": "yy", "engages": "yy", "fits": "yy", "pays": "yn"}),
        ("attempt_4", "mtp_centroids", 9538, {"loads": "nn", "engages": "n?", "fits": "?y", "pays": "??"}),
        ("attempt_4", "mtp_centroids", 11549, {"loads": "yy", "engages": "yy", "fits": "yy", "pays": "?n"}),
    ):
        engine = f"llama.cpp-b{build}"
        for question, pair in answers.items():
            told = [{"y": "yes", "n": "no", "?": None}[letter] for letter in pair]
            rows.append(
                {
                    "study": "mini",
                    "host": HOST,
                    "attempt": attempt,
                    "engine": engine,
                    "build": build,
                    "arm": arm,
                    "question": question,
                    "predicted": told[0],
                    "observed": told[1],
                    "right": None if None in told else told[0] == told[1],
                    "reason": "sample reason of the pre-check",
                    "observed_reason": "sample reason of the engine",
                    "record": _record("precheck", attempt, engine, arm),
                    "observed_record": _record("loads", attempt, engine, arm),
                }
            )
    return rows


def rows(findings: Sequence[Judged] = FINDINGS) -> dict[str, list[Row]]:
    """All rows by table."""
    return {
        "measurements": measurements(),
        "outcomes": outcomes(),
        "effects": effects(),
        "verdicts": verdicts(findings),
        "hosts": hosts(),
        "precheck_scores": scores(),
    }


def write(folder: Path, content: Mapping[str, Iterable[Row]] | None = None) -> Path:
    """Write the tables as Parquet below `folder` and return it."""
    chosen = rows() if content is None else content
    for name, table in TABLES.items():
        write_table(folder / table.filename, list(chosen.get(name, ())), table)
    return folder
