"""From records to tables: what was measured here, what bundles and other people's files add, and what was published.

Rows are made file by file in the order of the record's names and written in batches, so a million requests need no
more memory than a few thousand. What is in a table depends on the records and the configuration alone.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from findings.blocks import ArmRun, Block, RequestResult, block_from_json
from findings.bundles import BundleError, Merged, RecordFile, folder_records, merge, newest_runs, read_bundle
from findings.config import ArmKind, Configuration, DerivedClaim, Published, PublishedMeasurement
from findings.effects import class_engagement, speculates
from findings.gates import quiet
from findings.imports import Format, Imported, ImportedFileError, Origin, detect, read_import, stated_as
from findings.inference import ALL_CLASSES, Request, block_effects, class_speed, effects_of_block
from findings.records import Engagement, Kind, Outcome, Record, RecordError, parse_record
from findings.tables import (
    EFFECTS,
    HOSTS,
    MEASUREMENTS,
    OUTCOMES,
    Evidence,
    TableWriter,
    to_table,
    write_table,
)

BATCH_ROWS = 16_384
# Rows are turned into columns in smaller pieces, while they are still in the processor's cache: a seventh less time.
PIECE_ROWS = 1_024
PUBLISHED = "published"
PUBLISHED_FILE = "config/published.yaml"
Row = dict[str, Any]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Lookup:
    """What rows take from elsewhere: engine id -> (build, backend), converter id -> build, sha256 of a model -> (id,
    quantization), and the pre-check's words by (host, attempt, engine, arm)."""

    engines: Mapping[str, tuple[int | None, str]]
    converters: Mapping[str, int]
    models: Mapping[str, tuple[str, str]]
    predictions: Mapping[tuple[str, str, str, str], str]


@dataclass(frozen=True)
class Gathered:
    """Every record that counts, of this machine and of bundles, and others' files; `notes`: what was left out."""

    files: tuple[RecordFile, ...]
    imported: tuple[Imported, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Collected:
    """Rows written by table, number of record files read, and notes for people."""

    rows: Mapping[str, int]
    files: int
    notes: tuple[str, ...]


def gather(configuration: Configuration, records: Path, *, attempt: str = "", every_run: bool = False) -> Gathered:
    """All evidence that the configuration names.

    `records` is results/records; `attempt` restricts records to one attempt (and those that belong to none), and leaves
    out others' files. Raises BundleError and ImportedFileError with the file's name.
    """
    sources: list[Sequence[RecordFile]] = [folder_records(records)]
    imported: list[Imported] = []
    notes: list[str] = []
    for item in configuration.settings.imports:
        path = configuration.root / item.path
        form = detect(path)
        if stated_as(form) != item.format:
            raise ImportedFileError(
                f"config/config.yaml: imports: {item.path}: format {item.format!r} is stated, but the file is "
                f"{stated_as(form)!r}; write that"
            )
        if form is Format.BUNDLE:
            bundle = read_bundle(path, item.path)
            sources.append(bundle.files)
            notes += bundle.notes
        elif not attempt:
            origin = Origin(item.path, item.source, item.license, item.host, item.study, item.date)
            imported.append(read_import(path, origin))
            notes += imported[-1].notes
    runs = [newest_runs(source, every_run=every_run) for source in sources]
    merged: Merged = merge([run.files for run in runs])
    files = tuple(file for file in merged.files if not attempt or attempt_of(file) in ("", attempt))
    return Gathered(files, tuple(imported), (*notes, *(note for run in runs for note in run.notes), *merged.notes))


def attempt_of(file: RecordFile) -> str:
    """The attempt that a record's path names, "" for records that belong to none."""
    parts = file.relative.split("/")
    return parts[1] if parts[0] in ("measure", "loads", "precheck") and len(parts) > 2 else ""


def lookup(configuration: Configuration, files: Iterable[RecordFile]) -> Lookup:
    """Facts that rows need about engines, models and predictions.

    Engines that this configuration does not know (a bundle may come from another study) are taken from their probe.
    """
    engines: dict[str, tuple[int | None, str]] = {}
    predictions: dict[tuple[str, str, str, str], str] = {}
    models = {m.sha256: (m.id, m.quantization) for m in configuration.models.values() if m.sha256}
    for file in files:
        if file.relative.startswith("probes/"):
            record = record_of(file)
            engines[record.engine or record.subject] = (
                record.detail.get("build"),
                str(record.detail.get("backend", "")),
            )
        elif file.relative.startswith("sources/"):
            # A checkpoint is several files; the key of all of them stands in the record of its download alone.
            record = record_of(file)
            if record.subject in configuration.models and record.detail.get("sha256"):
                known = configuration.models[record.subject]
                models.setdefault(str(record.detail["sha256"]), (known.id, known.quantization))
        elif file.relative.startswith("precheck/"):
            record = record_of(file)
            predictions[(file.host, record.attempt, record.engine, record.arm)] = prediction_text(record)
    engines |= {engine.id: (engine.build or None, str(engine.backend)) for engine in configuration.engines.values()}
    converters = {converter.id: converter.build for converter in configuration.converters.values()}
    return Lookup(engines, converters, models, predictions)


def prediction_text(record: Record) -> str:
    """The pre-check's answer in one line: its own summary, else the outcome it expects."""
    for key in ("summary", "headline", "verdict"):
        if isinstance(record.detail.get(key), str):
            return str(record.detail[key])
    return record.reason or record.outcome.value


def record_of(file: RecordFile) -> Record:
    """The record in a file. Raises RecordError naming it."""
    try:
        return parse_record(file.json(), file.label)
    except BundleError as error:
        raise RecordError(str(error)) from error


# --- measured rows ----------------------------------------------------------------------------------------------


def request_engagement(run: ArmRun, request: RequestResult) -> Engagement:
    """What speculation did in one request: by its own drafted tokens where the arm drafted at all."""
    if run.engagement is not Engagement.WITH_DRAFTS:
        return run.engagement
    return Engagement.WITH_DRAFTS if request.draft_n else Engagement.WITHOUT_DRAFTS


def _of_block(file: RecordFile, record: Record, block: Block, known: Lookup) -> Row:
    """The columns that every row of a block shares."""
    build, backend = known.engines.get(record.engine, (None, ""))
    return {
        "evidence": Evidence.MEASURED.value,
        "study": record.study,
        "host": record.host or file.host,
        "attempt": record.attempt,
        "engine": record.engine,
        "build": build,
        "backend": backend,
        "session": f"{block.session}/{file.run[1]}" if file.run else block.session,
        "block": block.block,
        "record": file.label,
        "source": file.origin,
    }


def _model(run: ArmRun, known: Lookup) -> tuple[str, str]:
    """(id, quantization) of the model that generated, by its bytes; the server's name for it where they are unknown."""
    reported = str(run.settings.get("model_file", "") or "")
    return known.models.get(run.model_sha256, (Path(reported).name or run.model_sha256[:12], ""))


def measurement_rows(common: Row, block: Block, known: Lookup) -> Iterator[Row]:
    """One row per request of a block, in the order in which the arms ran."""
    shared = common | {"licence": ""}
    for run in sorted(block.arms.values(), key=lambda r: (r.position, r.arm)):
        model, quantized = _model(run, known)
        arm = shared | {
            "position": run.position,
            "arm": run.arm,
            "arm_kind": run.kind,
            "speculation": run.speculation,
            "engine_cpu_s": run.engine_cpu_s,
            "engine_wall_s": run.engine_wall_s,
            "other_cpu_share": run.other_cpu_share,
            "rss_bytes": run.rss_bytes,
            "model": model,
            "quantization": quantized,
            "started": run.started,
        }
        for number, request in enumerate(run.requests, start=1):
            answered = request.outcome is Outcome.OK
            drafted, accepted = request.draft_n, request.draft_n_accepted
            yield {
                **arm,
                "prompt_class": request.prompt_class,
                "prompt_id": request.prompt_id,
                "repetition": number,
                "counted": request.counted,
                "outcome": request.outcome.value,
                "engagement": request_engagement(run, request).value,
                "prompt_tokens": request.prompt_n if answered else None,
                "prompt_ms": request.prompt_ms if answered else None,
                "predicted_tokens": request.predicted_n if answered else None,
                "predicted_ms": request.predicted_ms if answered else None,
                "tg_tokens_per_s": _speed(request.predicted_n, request.predicted_ms) if answered else None,
                "pp_tokens_per_s": _speed(request.prompt_n, request.prompt_ms) if answered else None,
                "draft_tokens": drafted,
                "accepted_tokens": accepted,
                "acceptance": accepted / drafted if drafted and accepted is not None else None,
                "first_difference_token": request.first_difference,
                "degenerate": request.degenerate,
                "text_sha256": request.text_sha256 or None,
            }


def _speed(tokens: int, milliseconds: float) -> float | None:
    """Tokens per second; None where nothing was done or no time was measured."""
    return tokens / milliseconds * 1000 if tokens > 0 and milliseconds > 0 else None


def effect_rows(common: Row, block: Block, detail: Mapping[str, Any]) -> Iterator[Row]:
    """One row per arm and prompt class of a block, the baseline left out (rule: inference.block_effects)."""
    reference = next((run for run in block.arms.values() if run.kind == ArmKind.BASELINE), None)
    found = effects_of_block(detail, reference.arm if reference else "baseline")
    noise = _noise(block)
    for name in sorted(found):
        run = block.arms[name]
        for prompt_class in sorted({*found[name], ALL_CLASSES}):
            ratio = found[name].get(prompt_class, math.nan)
            engagement = class_engagement(run, prompt_class)
            reason = _why_no_ratio(run, reference, engagement, ratio) or noise
            ours = _asked(run, prompt_class)
            ids = {request.prompt_id for request in ours}
            theirs = [r for r in _asked(reference, prompt_class) if r.prompt_id in ids] if reference else []
            drafted = [request for request in ours if request.draft_n is not None]
            draft_tokens = sum(request.draft_n or 0 for request in drafted) if drafted else None
            accepted_tokens = sum(request.draft_n_accepted or 0 for request in drafted) if drafted else None
            yield {
                **common,
                "arm": name,
                "arm_kind": run.kind,
                "speculation": run.speculation,
                "prompt_class": prompt_class,
                "engagement": engagement.value,
                "ln_ratio": None if reason else ratio,
                "arm_tg_tokens_per_s": None if reason else _class_tg(ours),
                "baseline_tg_tokens_per_s": _class_tg(theirs),
                "prompts": len(ours),
                "draft_tokens": draft_tokens,
                "accepted_tokens": accepted_tokens,
                "acceptance": accepted_tokens / draft_tokens if draft_tokens and accepted_tokens is not None else None,
                "reason": reason,
            }


def _noise(block: Block) -> str:
    """Why no verdict uses this block although its arms ran: others were computing; empty where it was quiet."""
    if quiet(block):
        return ""
    worst = max(run.other_cpu_share for run in block.arms.values())
    return f"others used {worst:.0%} of the machine during this block"


def _asked(run: ArmRun, prompt_class: str) -> list[RequestResult]:
    return [r for r in run.requests if r.counted and prompt_class in (ALL_CLASSES, r.prompt_class)]


def _class_tg(requests: Sequence[RequestResult]) -> float | None:
    """Tokens per second over these requests (inference.class_speed); None where one of them failed."""
    speed = class_speed(
        [Request(r.prompt_id, "", r.predicted_n, r.predicted_ms / 1000.0, r.measured) for r in requests]
    )
    return None if math.isnan(speed) else speed


def _why_no_ratio(run: ArmRun, reference: ArmRun | None, engagement: Engagement, ratio: float) -> str:
    """Why an arm has no ratio, "" where it has one. A speed without drafted tokens is never one of speculation."""
    if run.outcome is not Outcome.OK:
        return f"{run.outcome.value}: {run.reason}"
    if reference is None or reference.outcome is not Outcome.OK:
        return "no baseline in this block" if reference is None else f"baseline {reference.outcome.value}"
    if speculates(run) and engagement is not Engagement.WITH_DRAFTS:
        return engagement.value
    return "a request failed, or the prompts differ from the baseline's" if math.isnan(ratio) else ""


def arm_outcome_rows(common: Row, block: Block, known: Lookup) -> Iterator[Row]:
    """One row per arm of a block: how its process ended."""
    left_out = ("source", "backend")
    shared = {key: value for key, value in common.items() if key not in left_out}
    for name in sorted(block.arms):
        run = block.arms[name]
        detail = {key: value for key, value in vars(run).items() if key not in ("requests", "log_tail")}
        yield {
            **shared,
            "kind": Kind.BLOCK.value,
            "subject": f"{common['attempt']}/{common['engine']}/{name}",
            "converter": "",
            "arm": name,
            "outcome": run.outcome.value,
            "reason": run.reason,
            "engagement": run.engagement.value,
            "seconds": run.startup_s + run.engine_wall_s,
            "command": "",
            "log_tail": "\n".join(run.log_tail),
            "log_sha256": run.log_sha256,
            "started": run.started,
            "prediction": known.predictions.get((common["host"], common["attempt"], common["engine"], name)),
            "detail_json": compact(detail),
        }


def outcome_row(file: RecordFile, record: Record, known: Lookup) -> Row:
    """The row of any record but a block."""
    # conversions/<checkpoint>/<converter>.json; a model that is derived without a converter is recorded elsewhere.
    converter = Path(file.relative).stem if file.relative.startswith("conversions/") else ""
    build = known.engines.get(record.engine, (None, ""))[0]
    if converter:
        build = known.converters.get(converter, record.detail.get("build"))
    engagement = str(record.detail.get("engagement") or "")
    return {
        "evidence": Evidence.MEASURED.value,
        "study": record.study,
        "host": record.host or file.host,
        "attempt": record.attempt,
        "kind": record.kind.value,
        "subject": record.subject,
        "engine": record.engine,
        "build": build,
        "converter": converter,
        "arm": record.arm,
        "session": str(record.detail.get("run", "")) if record.kind is Kind.SESSION else "",
        "block": None,
        "outcome": record.outcome.value,
        "reason": record.reason,
        "engagement": engagement if engagement in set(Engagement) else "",
        "exit_code": record.exit_code,
        "seconds": record.seconds,
        "command": shlex.join(record.argv),
        "log_tail": "\n".join((*record.log_head, *record.log_tail)),
        "log_sha256": record.log_sha256,
        "started": record.started,
        "record": file.label,
        "prediction": known.predictions.get((file.host, record.attempt, record.engine, record.arm)),
        "detail_json": compact(record.detail),
    }


def host_row(file: RecordFile, record: Record) -> Row:
    """The row of a machine that ran this pipeline."""
    gpus = list(record.detail.get("gpus", ()))
    first = gpus[0] if gpus else {}
    return {
        "evidence": Evidence.MEASURED.value,
        "host": record.host or file.host,
        **{key: str(record.detail.get(key, "")) for key in ("os", "python", "cpu")},
        "cores": record.detail.get("cores"),
        "memory_bytes": record.detail.get("memory_bytes"),
        "gpu": " + ".join(str(gpu.get("name", "")) for gpu in gpus),
        "gpu_memory_bytes": first.get("memory_bytes"),
        "compute_capability": str(first.get("compute_capability", "")),
        "driver": str(first.get("driver", "")),
        "versions_json": compact(record.versions),
        "record": file.label,
        "source": file.origin,
        "licence": "",
    }


def compact(value: Any) -> str:
    """JSON with sorted keys on one line."""
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"), default=str)


# --- published and imported rows -----------------------------------------------------------------------------------


def _published_host(published: Published, host: str) -> str:
    return published.hosts[host].label if host in published.hosts else host


def published_measurements(published: Published) -> list[Row]:
    """The study's own speeds, one row each; nothing that it does not state."""
    rows = []
    for figure in published.measurements.values():
        if figure.tg_tokens_per_s is None:
            continue
        speculation, engagement = _published_speculation(figure)
        rows.append(
            _published_common(published, figure)
            | {
                "block": None,
                "session": figure.id,
                "prompt_class": "",
                "prompt_id": "",
                "repetition": 1,
                "counted": True,
                "speculation": speculation,
                "engagement": engagement,
                "outcome": Outcome.OK,
                "tg_tokens_per_s": figure.tg_tokens_per_s,
                "acceptance": figure.acceptance,
                "model": figure.model,
                "quantization": figure.quantization,
                "started": "",
                "licence": "",
            }
        )
    return rows


def _published_common(published: Published, figure: PublishedMeasurement) -> Row:
    return {
        "evidence": Evidence.PUBLISHED,
        "study": PUBLISHED,
        "host": _published_host(published, figure.host),
        "attempt": figure.attempt,
        "engine": "",
        "build": None,
        "backend": figure.backend,
        "arm": figure.arm,
        "arm_kind": figure.arm_kind,
        "record": f"{PUBLISHED_FILE}#{figure.id}",
        "source": figure.place,
    }


def _published_speculation(figure: PublishedMeasurement) -> tuple[str, str]:
    """(speculation, engagement) as far as the study states them."""
    if not figure.drafter:
        return "none", Engagement.OFF
    return "draft_simple", Engagement.WITH_DRAFTS if figure.acceptance is not None else ""


def published_effects(published: Published) -> list[Row]:
    """The study's comparisons: one row per derived claim whose two speeds are stated."""
    return [row for claim in published.claims.values() if (row := _claim_row(published, claim)) is not None]


def _claim_row(published: Published, claim: DerivedClaim) -> Row | None:
    figure, baseline = (published.measurements.get(key) for key in (claim.figure, claim.baseline))
    if figure is None or baseline is None or not figure.tg_tokens_per_s or not baseline.tg_tokens_per_s:
        return None
    speculation, engagement = _published_speculation(figure)
    return _published_common(published, figure) | {
        "session": claim.id,
        "block": None,
        "speculation": speculation,
        "engagement": engagement,
        "prompt_class": ALL_CLASSES,
        "ln_ratio": math.log(figure.tg_tokens_per_s / baseline.tg_tokens_per_s),
        "arm_tg_tokens_per_s": figure.tg_tokens_per_s,
        "baseline_tg_tokens_per_s": baseline.tg_tokens_per_s,
        "prompts": 0,
        "acceptance": figure.acceptance,
        "reason": "",
        "record": f"{PUBLISHED_FILE}#{claim.id}",
        "source": claim.place,
    }


def published_outcomes(published: Published) -> list[Row]:
    """The study's figures that are no speed (a change of prompt speed), so that they stand in a table, too."""
    return [
        _full_outcome(
            {
                "evidence": Evidence.PUBLISHED,
                "study": PUBLISHED,
                "host": _published_host(published, figure.host),
                "attempt": figure.attempt,
                "kind": "figure",
                "subject": figure.id,
                "arm": figure.arm,
                "outcome": Outcome.OK,
                "record": f"{PUBLISHED_FILE}#{figure.id}",
                "detail_json": compact({"pp_change_percent": figure.pp_change_percent, "place": figure.place}),
            }
        )
        for figure in published.measurements.values()
        if figure.tg_tokens_per_s is None
    ]


def _full_outcome(row: Row) -> Row:
    """An outcome row with empty text where a source states nothing."""
    return {c.name: "" for c in OUTCOMES.columns if not c.nullable} | row


def _full_host(row: Row) -> Row:
    return {c.name: "" for c in HOSTS.columns if not c.nullable} | row


def published_hosts(published: Published) -> list[Row]:
    """The study's machines."""
    return [
        _full_host(
            {
                "evidence": Evidence.PUBLISHED,
                "host": host.label,
                "os": host.os,
                "cpu": host.cpu,
                "gpu": " + ".join(name for name in (host.gpu, host.second_gpu) if name),
                "gpu_memory_bytes": host.vram_gib * 2**30,
                "compute_capability": host.compute_capability,
                "record": f"{PUBLISHED_FILE}#{host.id}",
            }
        )
        for host in published.hosts.values()
    ]


def imported_effects(rows: Sequence[Row]) -> list[Row]:
    """Arms against the baseline of the same file, host, backend and model, by the rule for one block.

    `block` is null: such a file holds one run, and nothing is known about the variance between runs.
    """
    keys = ("study", "host", "engine", "build", "backend", "session", "model", "record", "source")
    groups: dict[tuple[Any, ...], dict[str, list[Row]]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), {}).setdefault(row["arm"], []).append(row)
    effects = []
    for key, arms in groups.items():
        baseline = next((arm for arm in arms.values() if arm[0]["arm_kind"] == ArmKind.BASELINE), None)
        shared = {k: v for k, v in zip(keys, key, strict=True) if k != "model"}
        for name, ours in arms.items():
            if baseline is None or ours is baseline:
                continue
            found = block_effects([_request(row) for row in ours], [_request(row) for row in baseline])
            for prompt_class, ratio in found.items():
                effects.append(shared | _imported_effect(name, prompt_class, ratio, ours, baseline))
    return effects


def _request(row: Row) -> Request:
    tokens, milliseconds = row["predicted_tokens"] or 0, row["predicted_ms"] or 0.0
    ok = row["outcome"] == Outcome.OK and tokens > 0 and milliseconds > 0
    return Request(row["prompt_id"], row["prompt_class"], tokens, milliseconds / 1000.0, ok)


def _imported_effect(arm: str, prompt_class: str, ratio: float, ours: Sequence[Row], baseline: Sequence[Row]) -> Row:
    mine = [row for row in ours if prompt_class in (ALL_CLASSES, row["prompt_class"])]
    theirs = [row for row in baseline if prompt_class in (ALL_CLASSES, row["prompt_class"])]
    drafts = [row["draft_tokens"] for row in mine if row["draft_tokens"] is not None]
    accepted = [row["accepted_tokens"] for row in mine if row["accepted_tokens"] is not None]
    engagement = mine[0]["engagement"] if mine[0]["speculation"] == "none" else Engagement.WITHOUT_DRAFTS
    engagement = Engagement.WITH_DRAFTS if sum(drafts) > 0 else engagement
    reason = "a prompt is missing on one side, or failed" if math.isnan(ratio) else ""
    drafting = sum(bool(row["draft_tokens"]) for row in mine)
    if mine[0]["speculation"] != "none" and 2 * drafting <= len(mine):
        # One answer with a few drafted tokens among many without any is no speed of speculation either.
        reason = f"drafted in {drafting} of {len(mine)} prompts only" if drafting else str(engagement)
    speeds = [class_speed([_request(row) for row in rows]) for rows in (mine, theirs)]
    return {
        "evidence": Evidence.IMPORTED,
        "attempt": "",
        "block": None,
        "arm": arm,
        "arm_kind": mine[0]["arm_kind"],
        "speculation": mine[0]["speculation"],
        "prompt_class": prompt_class,
        "engagement": engagement,
        "ln_ratio": None if reason else ratio,
        "arm_tg_tokens_per_s": None if reason or math.isnan(speeds[0]) else speeds[0],
        "baseline_tg_tokens_per_s": None if math.isnan(speeds[1]) else speeds[1],
        "prompts": len(mine),
        "draft_tokens": sum(drafts) if drafts else None,
        "accepted_tokens": sum(accepted) if accepted else None,
        "acceptance": sum(accepted) / sum(drafts) if sum(drafts) and accepted else None,
        "reason": reason,
    }


# --- writing -----------------------------------------------------------------------------------------------------


class _Batches:
    """Rows of one table, written whenever a batch is full."""

    def __init__(self, writer: TableWriter) -> None:
        self._writer = writer
        self._rows: list[Row] = []
        self._pieces: list[Any] = []
        self._waiting = 0

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows in the table's order."""
        self._rows.extend(rows)
        if len(self._rows) >= PIECE_ROWS:
            self._take_piece()
        if self._waiting >= BATCH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        self._take_piece()
        self._writer.write(pa.concat_tables(self._pieces).combine_chunks())
        self._pieces, self._waiting = [], 0

    def _take_piece(self) -> None:
        self._pieces.append(to_table(self._rows, self._writer.table))
        self._waiting += len(self._rows)
        self._rows = []


def collect(
    configuration: Configuration, gathered: Gathered, out: Path, say: Say | None = None, *, published: bool = True
) -> Collected:
    """Write measurements, outcomes, effects and hosts below `out`.

    Evidence comes in the order imported, measured, published, each in the order of its records: the order of the
    tables' keys. Raises RecordError (with the file's name) for a record that cannot be used, TableError, OSError.
    """
    known = lookup(configuration, gathered.files)
    hosts: list[Row] = [_full_host(row) for item in gathered.imported for row in item.hosts]
    with ExitStack() as stack:
        writers = {
            table.name: stack.enter_context(TableWriter(out / table.filename, table))
            for table in (MEASUREMENTS, OUTCOMES, EFFECTS)
        }
        measurements, outcomes, effects = (_Batches(writers[t.name]) for t in (MEASUREMENTS, OUTCOMES, EFFECTS))
        for item in sorted(gathered.imported, key=lambda i: i.measurements[0]["record"] if i.measurements else ""):
            measurements.extend(_in_order(item.measurements, MEASUREMENTS.key))
            outcomes.extend(_in_order([_full_outcome(row) for row in item.outcomes], OUTCOMES.key))
            effects.extend(_in_order(imported_effects(item.measurements), EFFECTS.key))
        for done, file in enumerate(gathered.files, start=1):
            if file.is_record:
                _add(file, known, measurements, outcomes, effects, hosts)
            if say is not None:
                say(f"{done} of {len(gathered.files)} record files, {writers[MEASUREMENTS.name].rows} requests written")
        if published:
            measurements.extend(_in_order(published_measurements(configuration.published), MEASUREMENTS.key))
            outcomes.extend(_in_order(published_outcomes(configuration.published), OUTCOMES.key))
            effects.extend(_in_order(published_effects(configuration.published), EFFECTS.key))
            hosts += published_hosts(configuration.published)
        for batches in (measurements, outcomes, effects):
            batches.flush()
    rows = {name: writer.rows for name, writer in writers.items()}
    rows[HOSTS.name] = write_table(out / HOSTS.filename, hosts, HOSTS)
    return Collected(rows, len(gathered.files), gathered.notes)


def _in_order(rows: Iterable[Row], key: Sequence[str]) -> list[Row]:
    """Rows sorted by a table's key, nulls first."""
    return sorted(rows, key=lambda row: [(row.get(name) is not None, _sortable(row.get(name))) for name in key])


def _sortable(value: Any) -> Any:
    return str(value) if isinstance(value, str) else value if value is not None else 0


def _add(
    file: RecordFile, known: Lookup, measurements: _Batches, outcomes: _Batches, effects: _Batches, hosts: list[Row]
) -> None:
    """The rows of one record file."""
    record = record_of(file)
    if record.kind is not Kind.BLOCK:
        outcomes.extend([outcome_row(file, record, known)])
        if record.kind is Kind.HOST:
            hosts.append(host_row(file, record))
        return
    try:
        block = block_from_json(record.detail)
        common = _of_block(file, record, block, known)
        found = list(effect_rows(common, block, record.detail))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordError(f"{file.label}: not a whole block ({error!r}); delete it and run its target again") from error
    measurements.extend(measurement_rows(common, block, known))
    outcomes.extend(arm_outcome_rows(common, block, known))
    effects.extend(found)
