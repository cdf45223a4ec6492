"""Measurements that others published, as rows with evidence `imported`, their source and their licence.

Read here: per-prompt records by method and backend (the form of InventiveHQ's speculative-decoding experiment), and
what llama-bench prints as JSON, JSONL, CSV or SQL. Bundles of our own records are evidence of another kind (they are
`measured`, on another host) and are read by bundles.py; `detect` tells them apart.

llama-bench's fields, as its source lists them: in 2025 use_mmap; b8992 (May 2026) use_mmap and use_direct_io; later in
2026 load_mode instead of both. Older forks print flags (`cuda`, `vulkan`, `metal` ...) in the place of `backends`. None
of these states a speed, so only the fields that every build prints are required. llama-bench knows no speculation: its
rows are baselines.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path, PureWindowsPath
from typing import Any

from findings.config import ArmKind
from findings.host import slug
from findings.records import Engagement, Kind, Outcome, redact
from findings.tables import Evidence

MAX_FILE_BYTES = 256 * 2**20
SYNTHETIC = "synthetic"
# What every llama-bench since 2024 prints; all else is optional.
REQUIRED = ("build_number", "model_filename", "n_prompt", "n_gen", "avg_ns")
_BACKEND_FLAGS = ("cuda", "vulkan", "metal", "sycl", "kompute", "opencl")
_QUANTIZATION = re.compile(
    r"(?<![A-Za-z0-9])((?:I?Q|TQ)\d[A-Za-z0-9_]*|BF16|F16|F32|MXFP4(?:_MOE)?)(?![A-Za-z0-9])", re.I
)
_CSV_HEAD = re.compile(r'^(?=.*\bbuild_number\b)(?=.*\bavg_ns\b)[a-z0-9_,"]+$')
_SQL_INSERT = re.compile(r"^INSERT INTO llama_bench \((?P<names>[^)]*)\) VALUES \('(?P<values>.*)'\);\s*$")

ONE_RUN = (
    "one run per prompt and no repeats: no variance between runs is known, so there is no interval, and no difference "
    "can be told from the noise of a single start"
)
ONE_PROCESS = (
    "repeats within one process: what differs between starts is not in their spread, so an interval would be too narrow"
)


class Format(StrEnum):
    """What an import is."""

    BUNDLE = "bundle"
    SPECULATION_RECORDS = "speculation_records"
    LLAMA_BENCH_JSON = "llama_bench_json"
    LLAMA_BENCH_JSONL = "llama_bench_jsonl"
    LLAMA_BENCH_CSV = "llama_bench_csv"
    LLAMA_BENCH_SQL = "llama_bench_sql"


def stated_as(form: Format) -> str:
    """The word that config/config.yaml uses for a form."""
    return "llama_bench" if form.value.startswith("llama_bench") else form.value


class ImportedFileError(ValueError):
    """Somebody's file that cannot be used; the message names file, key and what to do."""


@dataclass(frozen=True)
class Origin:
    """Who published a file: `path` as shown in the tables, source and licence as they shall be named, the host's label
    ("" to make one from what the file states), and the study that the rows stand beside."""

    path: str
    source: str
    licence: str
    host: str = ""
    study: str = ""
    date: str = ""


@dataclass(frozen=True)
class Imported:
    """Rows of one file for the tables of the same names (columns that a source lacks are left to the defaults), and
    what limits every verdict that rests on them."""

    format: Format
    measurements: tuple[dict[str, Any], ...]
    outcomes: tuple[dict[str, Any], ...]
    hosts: tuple[dict[str, Any], ...]
    limits: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def detect(path: Path) -> Format:
    """What kind of file it is, by its content. Raises ImportedFileError for anything unknown."""
    try:
        if path.stat().st_size > MAX_FILE_BYTES:
            raise ImportedFileError(f"{path}: larger than {MAX_FILE_BYTES} bytes; import a smaller part of it")
        with path.open("rb") as stream:
            head = stream.read(65_536)
    except OSError as error:
        raise ImportedFileError(
            f"{path}: not readable ({error.strerror}); mend `imports:` in config/config.yaml"
        ) from error
    if head.startswith(b"PK\x03\x04"):
        return Format.BUNDLE
    text = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    lines = text.splitlines()
    if any(line.startswith(("CREATE TABLE IF NOT EXISTS llama_bench", "INSERT INTO llama_bench")) for line in lines):
        return Format.LLAMA_BENCH_SQL
    if any(_CSV_HEAD.match(line) for line in lines):
        return Format.LLAMA_BENCH_CSV
    if any(line.startswith("{") and '"build_number"' in line for line in lines):
        return Format.LLAMA_BENCH_JSONL
    if '"build_number"' in text:
        return Format.LLAMA_BENCH_JSON
    if text.startswith("{") and '"runs"' in text:
        return Format.SPECULATION_RECORDS
    raise ImportedFileError(
        f"{path}: not a form that this project reads (a bundle, per-prompt records with `meta` and `runs`, or "
        "llama-bench's output as json, jsonl, csv or sql; its markdown has rounded figures only, run it with -o json)"
    )


def read_import(path: Path, origin: Origin) -> Imported:
    """The rows of one file of somebody else's (not a bundle). Raises ImportedFileError."""
    form = detect(path)
    if form is Format.BUNDLE:
        raise ImportedFileError(f"{path}: a bundle of this project, which is read as records")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ImportedFileError(
            f"{path}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        ) from error
    if form is Format.SPECULATION_RECORDS:
        return _per_prompt(path, text, origin)
    return _llama_bench(path, form, text, origin)


def _decode(path: Path, text: str, what: str = "") -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        where = f" {what}" if what else ""
        raise ImportedFileError(f"{path}:{where} damaged or cut off ({error}); fetch it again") from error


def _wanted(path: Path, where: str, entry: Mapping[str, Any], key: str, kinds: tuple[type, ...]) -> Any:
    """`entry[key]`, of one of `kinds`; the error names the file, the place and the key."""
    if key not in entry:
        raise ImportedFileError(f"{path}: {where}.{key} is missing; complete the file or take it out of `imports:`")
    value = entry[key]
    if not isinstance(value, kinds) or isinstance(value, bool):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ImportedFileError(f"{path}: {where}.{key} is {str(value)[:60]!r}, expected {names}; mend that value")
    if isinstance(value, float) and not math.isfinite(value):
        raise ImportedFileError(f"{path}: {where}.{key} is {value}, expected a finite number; mend that value")
    return value


# --- per-prompt records ------------------------------------------------------------------------------------------

_STATUS = (
    (re.compile(r"oom|memory", re.I), Outcome.OUT_OF_MEMORY),
    (re.compile(r"time.?out", re.I), Outcome.TIMED_OUT),
    (re.compile(r"skip|not.?run", re.I), Outcome.NOT_RUN),
    (re.compile(r"unsupported|not.?supported", re.I), Outcome.UNSUPPORTED),
)


def _outcome(status: str) -> Outcome:
    if status == "ok":
        return Outcome.OK
    return next((outcome for pattern, outcome in _STATUS if pattern.search(status)), Outcome.CRASHED)


def speculation_of(method: str) -> str:
    """The project's word for a method's name; `ngram` where the source does not say which n-gram method."""
    plain = method.lower().replace("-", "_")
    if plain in ("baseline", "none", "off"):
        return "none"
    if "mtp" in plain:
        return "draft_mtp"
    return "draft_simple" if "draft" in plain else "ngram" if "ngram" in plain or "lookup" in plain else plain


def engagement_of(speculation: str, draft_tokens: int | None) -> Engagement:
    """What speculation did in a request: without drafted tokens its speed is not the speed of speculation."""
    if speculation == "none":
        return Engagement.OFF
    return Engagement.WITH_DRAFTS if draft_tokens else Engagement.WITHOUT_DRAFTS


def _per_prompt(path: Path, text: str, origin: Origin) -> Imported:
    raw = _decode(path, text)
    meta = _wanted(path, "file", raw, "meta", (dict,))
    target = Path(str(_wanted(path, "meta", meta, "target", (str,)))).name
    gpu = str(meta.get("gpu", ""))
    host = origin.host or slug(re.sub(r"\(.*", "", gpu))
    measurements: list[dict[str, Any]] = []
    outcomes: list[dict[str, Any]] = []
    for index, run in enumerate(_wanted(path, "file", raw, "runs", (list,))):
        where = f"runs[{index}]"
        if not isinstance(run, dict):
            raise ImportedFileError(f"{path}: {where} is no object; mend that entry")
        arm = redact(str(_wanted(path, where, run, "method", (str,))))
        backend = redact(str(_wanted(path, where, run, "backend", (str,)))).lower()
        status = str(run.get("status", "ok"))
        common = {
            "evidence": Evidence.IMPORTED,
            "study": origin.study,
            "host": host,
            "attempt": "",
            "engine": "llama.cpp",
            "build": None,
            "session": f"{Path(origin.path).stem}/{backend}",
            "arm": arm,
            "record": origin.path,
            "started": "",
        }
        speculation = speculation_of(arm)
        rows = [
            _prompt_row(path, f"{where}.records[{number}]", record, number + 1)
            for number, record in enumerate(run.get("records", []))
        ]
        kind = ArmKind.BASELINE if speculation == "none" else ArmKind.CANDIDATE
        of_run = common | {
            "backend": backend,
            "arm_kind": kind,
            "speculation": speculation,
            "model": redact(target),
            "quantization": quantization(target),
            "source": origin.source,
            "licence": origin.licence,
        }
        measurements += [row | of_run | {"engagement": engagement_of(speculation, row["draft_tokens"])} for row in rows]
        drafted = sum(row["draft_tokens"] or 0 for row in rows)
        ended = _outcome(status)
        outcomes.append(
            common
            | {
                "kind": Kind.SESSION,
                "subject": f"{host}/{backend}/{arm}",
                "outcome": ended,
                "reason": ONE_RUN if ended is Outcome.OK else redact(status),
                "engagement": engagement_of(speculation, drafted),
                "detail_json": json.dumps(
                    {"draft": str(meta.get("draft", "")), "label": str(run.get("label", "")), "prompts": len(rows)},
                    sort_keys=True,
                ),
            }
        )
    hosts = {"evidence": Evidence.IMPORTED, "host": host, "gpu": redact(re.sub(r"\s*\(.*", "", gpu))}
    capability = re.search(r"sm_(\d)(\d)", gpu)
    hosts |= {"compute_capability": f"{capability[1]}.{capability[2]}" if capability else "", "record": origin.path}
    hosts |= {"source": origin.source, "licence": origin.licence}
    return Imported(Format.SPECULATION_RECORDS, tuple(measurements), tuple(outcomes), (hosts,), (ONE_RUN,))


def _prompt_row(path: Path, where: str, record: Any, number: int) -> dict[str, Any]:
    if not isinstance(record, dict):
        raise ImportedFileError(f"{path}: {where} is no object; mend that entry")
    tokens = int(_wanted(path, where, record, "predicted_n", (int,)))
    milliseconds = float(_wanted(path, where, record, "predicted_ms", (int, float)))
    if tokens < 0 or milliseconds < 0:
        raise ImportedFileError(f"{path}: {where}.predicted_n or predicted_ms is below 0; mend that value")
    drafted = record.get("draft_n")
    accepted = record.get("draft_n_accepted")
    for key, value in (("draft_n", drafted), ("draft_n_accepted", accepted)):
        if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
            raise ImportedFileError(f"{path}: {where}.{key} is {value!r}, expected a count or null; mend that value")
    return {
        "prompt_class": redact(str(_wanted(path, where, record, "category", (str,)))),
        "prompt_id": redact(str(_wanted(path, where, record, "id", (str,)))),
        "repetition": number,
        "counted": True,
        "outcome": Outcome.OK if tokens and milliseconds else Outcome.CRASHED,
        "predicted_tokens": tokens,
        "predicted_ms": milliseconds,
        "tg_tokens_per_s": tokens / milliseconds * 1000 if tokens and milliseconds else None,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance": accepted / drafted if drafted and accepted is not None else None,
        "text_sha256": redact(str(record["out_hash"])) if record.get("out_hash") else None,
    }


# --- llama-bench -------------------------------------------------------------------------------------------------


def quantization(name: str) -> str:
    """The quantization in a file name or model type (`Q4_K_S`, `IQ2_M`, `BF16`), "" where there is none."""
    found = _QUANTIZATION.search(name.removesuffix(".gguf").replace(".", " ").replace("-", " "))
    return found[1].upper() if found else ""


def _llama_bench(path: Path, form: Format, text: str, origin: Origin) -> Imported:
    measurements: list[dict[str, Any]] = []
    outcomes: list[dict[str, Any]] = []
    hosts: dict[str, dict[str, Any]] = {}
    mixed = 0
    for number, entry in enumerate(_entries(path, form, text)):
        where = f"test {number + 1}"
        prompt, generated = (_count(path, where, entry, key) for key in ("n_prompt", "n_gen"))
        if prompt and generated:
            mixed += 1  # one time for both parts: neither speed can be told
            continue
        host = origin.host or slug(str(entry.get("gpu_info") or entry.get("cpu_info") or "machine"))
        base = _bench_base(path, where, entry, origin, host)
        depth = _count(path, where, entry, "n_depth") if "n_depth" in entry else 0
        test = (f"pp{prompt}" if prompt else f"tg{generated}") + (f" @ d{depth}" if depth else "")
        samples = _samples(path, where, entry)
        for repetition, nanoseconds in enumerate(samples, start=1):
            measurements.append(base | _bench_row(test, prompt, generated, nanoseconds / 1e6, repetition))
        outcomes.append(
            {key: base[key] for key in ("evidence", "study", "host", "attempt", "engine", "build", "session", "arm")}
            | {"record": base["record"], "started": base["started"]}
            | {
                "kind": Kind.SESSION,
                "subject": f"{host}/{base['backend']}/{test}/{number + 1}",
                "outcome": Outcome.OK,
                "reason": ONE_PROCESS if len(samples) > 1 else ONE_RUN,
                "engagement": Engagement.OFF,
                "detail_json": redact(json.dumps({k: v for k, v in entry.items() if k in _SETTINGS}, sort_keys=True)),
            }
        )
        hosts[host] = {
            "evidence": Evidence.IMPORTED,
            "host": host,
            "cpu": redact(str(entry.get("cpu_info", ""))),
            "gpu": redact(str(entry.get("gpu_info", ""))),
            "record": origin.path,
            "source": origin.source,
            "licence": origin.licence,
        }
    if not measurements and not mixed:
        raise ImportedFileError(f"{path}: no test in it; llama-bench was stopped before its first result")
    notes = (
        (f"{origin.path}: {mixed} tests of prompt and generation together left out (one time for both)",)
        if mixed
        else ()
    )
    return Imported(form, tuple(measurements), tuple(outcomes), tuple(hosts.values()), (ONE_PROCESS,), notes)


# What a reader needs to compare two llama-bench results; all else of an entry is either a figure or a path.
_SETTINGS = frozenset(
    """n_batch n_ubatch n_threads type_k type_v n_gpu_layers n_cpu_moe split_mode main_gpu no_kv_offload flash_attn
    use_mmap use_direct_io load_mode embeddings no_op_offload no_host fit_target fit_min_ctx repack n_depth build_commit
    model_type model_size model_n_params avg_ts stddev_ts""".split()  # noqa: SIM905 - as the source lists them
)


def _bench_base(path: Path, where: str, entry: Mapping[str, Any], origin: Origin, host: str) -> dict[str, Any]:
    build = _count(path, where, entry, "build_number")
    # PureWindowsPath splits at both kinds of slash; a folder may name a person.
    model = PureWindowsPath(str(_wanted(path, where, entry, "model_filename", (str,)))).name
    started = str(entry.get("test_time", ""))
    return {
        "evidence": Evidence.IMPORTED,
        "study": origin.study,
        "host": host,
        "attempt": "",
        "engine": f"llama.cpp-b{build}" if build else "llama.cpp",
        "build": build or None,
        "backend": _backend(entry),
        "session": Path(origin.path).stem,
        "arm": ArmKind.BASELINE,
        "arm_kind": ArmKind.BASELINE,
        "speculation": "none",
        "engagement": Engagement.OFF,
        "model": redact(model),
        "quantization": quantization(model) or quantization(str(entry.get("model_type", ""))),
        "started": started if re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", started) else "",
        "record": origin.path,
        "source": origin.source,
        "licence": origin.licence,
    }


def _bench_row(test: str, prompt: int, generated: int, milliseconds: float, repetition: int) -> dict[str, Any]:
    speed = (prompt or generated) / milliseconds * 1000
    return {
        "prompt_class": SYNTHETIC,
        "prompt_id": test,
        "repetition": repetition,
        "counted": True,
        "outcome": Outcome.OK,
        "prompt_tokens": prompt or None,
        "prompt_ms": milliseconds if prompt else None,
        "pp_tokens_per_s": speed if prompt else None,
        "predicted_tokens": generated or None,
        "predicted_ms": milliseconds if generated else None,
        "tg_tokens_per_s": speed if generated else None,
    }


def _backend(entry: Mapping[str, Any]) -> str:
    """`backends` in lower case; for older forks the flag that is set, else cpu."""
    if entry.get("backends"):
        return redact(str(entry["backends"])).lower()
    return next((flag for flag in _BACKEND_FLAGS if str(entry.get(flag, "0")).lower() in ("1", "true")), "cpu")


def _count(path: Path, where: str, entry: Mapping[str, Any], key: str) -> int:
    """A whole number, which CSV and SQL print as text."""
    value = entry.get(key)
    if key not in entry:
        _wanted(path, where, entry, key, (int,))
    if isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ImportedFileError(f"{path}: {where}.{key} is {str(value)[:60]!r}, expected a count; mend that value")
    return value


def _samples(path: Path, where: str, entry: Mapping[str, Any]) -> list[int]:
    """Times of the repetitions in nanoseconds: samples_ns, or their mean where the form has no more than that."""
    samples = entry.get("samples_ns")
    if samples is None:
        samples = [_count(path, where, entry, "avg_ns")]
    if not isinstance(samples, list) or not all(
        isinstance(s, int) and not isinstance(s, bool) and s > 0 for s in samples
    ):
        raise ImportedFileError(f"{path}: {where}.samples_ns holds something else than times above 0; mend that value")
    return samples


def _entries(path: Path, form: Format, text: str) -> Iterator[Mapping[str, Any]]:
    """The tests of a file, each with llama-bench's own field names; checked for the fields that are needed."""
    readers = {
        Format.LLAMA_BENCH_JSON: _json_entries,
        Format.LLAMA_BENCH_JSONL: _jsonl_entries,
        Format.LLAMA_BENCH_CSV: _csv_entries,
        Format.LLAMA_BENCH_SQL: _sql_entries,
    }
    for number, entry in enumerate(readers[form](path, text)):
        if not isinstance(entry, Mapping):
            raise ImportedFileError(f"{path}: test {number + 1} is no object; mend that entry")
        missing = [key for key in REQUIRED if key not in entry]
        if missing:
            raise ImportedFileError(
                f"{path}: test {number + 1}.{missing[0]} is missing, which every llama-bench since 2024 prints; "
                "is the file cut or edited? Run llama-bench again"
            )
        yield entry


def _json_entries(path: Path, text: str) -> Sequence[Any]:
    start = re.search(r"^\[", text, re.M)  # lines of a log may stand before it
    value = _decode(path, text[start.start() :] if start else text)
    if not isinstance(value, list):
        raise ImportedFileError(f"{path}: holds a {type(value).__name__}, llama-bench prints a list; fetch it again")
    return value


def _jsonl_entries(path: Path, text: str) -> Iterator[Any]:
    for number, line in enumerate(text.splitlines(), start=1):
        if line.startswith("{"):
            yield _decode(path, line, f"line {number}:")


def _csv_entries(path: Path, text: str) -> Iterator[Any]:
    lines = text.splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if _CSV_HEAD.match(line))
    reader = csv.DictReader(io.StringIO("".join(lines[start:])), strict=True)
    try:
        for row in reader:
            if None in row or None in row.values():
                raise ImportedFileError(f"{path}: line {start + reader.line_num} is cut or too long; fetch it again")
            yield row
    except csv.Error as error:
        raise ImportedFileError(f"{path}: line {start + reader.line_num}: {error}; fetch it again") from error


def _sql_entries(path: Path, text: str) -> Iterator[Any]:
    """The INSERT lines, read as text and never executed. llama-bench does not escape quotes in values, so values are
    split at `', '`, and their number must be that of the names."""
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.startswith("INSERT"):
            continue
        found = _SQL_INSERT.match(line)
        names = [name.strip() for name in found["names"].split(",")] if found else []
        values = found["values"].split("', '") if found else []
        if not found or len(names) != len(values):
            raise ImportedFileError(f"{path}: line {number} is no INSERT of llama-bench, or it is cut; fetch it again")
        yield dict(zip(names, values, strict=True))
