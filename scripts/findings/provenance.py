"""From a number back to the bytes it rests on: verdict, effects, requests, record files, and the hashes in them.

Every table row names its record, every record the hashes of what ran. Where a link is missing, the trace says so
instead of leaving it out.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from findings.bundles import BundleError, read_bundle
from findings.code_version import code_sha256
from findings.records import Kind, Outcome
from findings.tables import EFFECTS, MEASUREMENTS, OUTCOMES, TABLES, VERDICTS, TableSchema, read_table

NOT_RECORDED = "not recorded"
Row = dict[str, Any]
_HASH_KEYS = ("sha256", "lock_sha256", "engine_sha256", "model_sha256", "drafter_sha256", "log_sha256", "text_sha256")


class TraceError(ValueError):
    """A row or number that is not there; the message says what is."""


@dataclass(frozen=True)
class Source:
    """One record file: its label, the sha256 of its bytes (or why there is none), the hashes and versions it names."""

    label: str
    sha256: str
    hashes: Mapping[str, str]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class Trace:
    """The chain for one table row; each list is empty where the chain does not pass there."""

    start: str
    row: Row
    effects: Sequence[Row] = ()
    outcomes: Sequence[Row] = ()
    measurements: Sequence[Row] = ()
    sources: Sequence[Source] = ()
    configuration: Mapping[str, str] = field(default_factory=dict)
    code_sha256: str = ""


class Tables:
    """The tables of a folder, read when they are asked for, and the records they name, below `root`."""

    def __init__(self, folder: Path, root: Path) -> None:
        self.folder, self.root = folder, root
        self._read: dict[str, list[Row]] = {}
        self._bundles: dict[str, Any] = {}

    def rows(self, table: TableSchema) -> list[Row]:
        """All rows of a table. Raises TableError."""
        if table.name not in self._read:
            self._read[table.name] = read_table(self.folder / table.filename, table).to_pylist()
        return self._read[table.name]

    def content(self, label: str) -> bytes | None:
        """Bytes of the file that a `record` column names: a file of the project, or a member of a bundle."""
        name = label.split("#", 1)[0]
        try:
            if "!" in name:
                bundle, member = name.split("!", 1)
                if bundle not in self._bundles:
                    self._bundles[bundle] = {f.label: f.read for f in read_bundle(self.root / bundle, bundle).files}
                read = self._bundles[bundle].get(f"{bundle}!{member}")
                return read() if read else None
            return (self.root / name).read_bytes()
        except (OSError, BundleError):
            return None


def start_row(tables: Tables, table: str, number: int) -> tuple[str, Row]:
    """Row `number` (from 0) of a table. Raises TraceError where there is no such table or row."""
    if table not in TABLES:
        raise TraceError(f"there is no table {table!r}; the tables are {', '.join(TABLES)}")
    rows = tables.rows(TABLES[table])
    if not 0 <= number < len(rows):
        raise TraceError(f"{table} has {len(rows)} rows, numbered from 0; there is no row {number}")
    return f"{table}, row {number}", rows[number]


def verdict_rows(
    tables: Tables, finding: str, scope: str = "", host: str = "", engine: str = ""
) -> list[tuple[str, Row]]:
    """The verdicts of a finding. Raises TraceError, listing the findings, where there is none."""
    wanted = {"scope": scope, "host": host, "engine": engine}
    found = [
        (f"verdicts, row {number}", row)
        for number, row in enumerate(tables.rows(VERDICTS))
        if row["finding"] == finding and all(not value or row[key] == value for key, value in wanted.items())
    ]
    if not found:
        known = sorted({row["finding"] for row in tables.rows(VERDICTS)})
        raise TraceError(f"no verdict on {finding!r} with these choices; findings: {', '.join(known) or 'none yet'}")
    return found


def rows_with_number(tables: Tables, text: str) -> list[tuple[str, Row]]:
    """Rows that hold a number as it is printed: equal after rounding to the digits of `text` (signs and % may differ).

    Verdicts, published and imported rows come first; rows of single requests and blocks only where none of those has
    it, because a document prints few of them. Raises TraceError for a text that is no number, or that no table holds.
    """
    plain = re.sub(r"[%,\s\u202f\u00a0+]", "", text.replace("\u2212", "-"))
    try:
        value = abs(float(plain))
    except ValueError as error:
        raise TraceError(f"{text!r} is no number") from error
    decimals = len(plain.partition(".")[2])
    found = []
    for table in TABLES.values():
        if not (tables.folder / table.filename).exists():
            continue
        numeric = [c.name for c in table.columns if str(c.type) in ("double", "int64")]
        for number, row in enumerate(tables.rows(table)):
            columns = [name for name in numeric if _prints_as(row[name], value, decimals, name)]
            if columns:
                found.append((f"{table.name}, row {number}, {', '.join(columns)}", row))
    if not found:
        raise TraceError(f"no table holds a number that prints as {text}")
    stated = [
        (name, row) for name, row in found if "verdict" in row or row.get("evidence") in ("published", "imported")
    ]
    return stated or found


def short(row: Row) -> str:
    """A row in a few words, to choose by."""
    keys = ("finding", "scope", "evidence", "host", "attempt", "engine", "session", "block", "arm", "prompt_class")
    return ", ".join(str(row[key]) for key in keys if row.get(key) not in (None, ""))


def _prints_as(cell: Any, value: float, decimals: int, name: str) -> bool:
    if not isinstance(cell, int | float) or isinstance(cell, bool) or not math.isfinite(cell):
        return False
    if name == "ln_ratio":  # printed as a change in percent
        return round(abs(math.expm1(cell) * 100), decimals) == value
    if name == "acceptance":
        return value in (round(cell, decimals), round(cell * 100, decimals))
    return round(abs(cell), decimals) == value and (decimals > 0 or isinstance(cell, int))


def trace(tables: Tables, start: str, row: Row) -> Trace:
    """Follow one row back to its records."""
    effects = _effects_of(tables, row)
    outcomes = [] if effects else _outcomes_of(tables, row)
    measurements = _measurements_of(tables, row, effects)
    labels = [r["record"] for r in (row, *effects, *outcomes, *measurements) if r.get("record")]
    companions = [f"{label.rpartition('/')[0]}/plan.json" for label in labels if "/run-" in label]
    sources = [_source(tables, label) for label in dict.fromkeys([*labels, *companions])]
    sources += [_source(tables, label) for label in _origins(tables, sources) if label not in labels]
    return Trace(
        start,
        row,
        effects,
        outcomes,
        measurements,
        sources,
        configuration_hashes(tables.root),
        code_sha256(tables.root),
    )


def _origins(tables: Tables, sources: Sequence[Source]) -> list[str]:
    """Records of the downloads and conversions that the models in these records came from, and of what those were
    copied from: a padded or retyped model leads to its original.
    """
    made: dict[str, list[tuple[str, str]]] = {}
    for row in tables.rows(OUTCOMES):
        if row["kind"] in (Kind.DOWNLOAD, Kind.CONVERSION) and row["outcome"] == Outcome.OK:
            detail = json.loads(row["detail_json"] or "{}")
            original = detail.get("original", {}).get("sha256", "")
            made.setdefault(str(detail.get("sha256", "")), []).append((row["record"], str(original)))
    wanted = [
        value
        for source in sources
        for place, value in source.hashes.items()
        if place.rpartition(".")[2] in ("model_sha256", "drafter_sha256")
    ]
    found: dict[str, None] = {}
    while wanted:
        for label, original in made.pop(wanted.pop(), ()):
            found[label] = None
            wanted.append(original)
    return sorted(found)


def _matches(row: Mapping[str, Any], other: Mapping[str, Any], keys: Iterable[str]) -> bool:
    return all(row.get(key) == other.get(key) for key in keys)


def _effects_of(tables: Tables, row: Row) -> list[Row]:
    """The block effects that a verdict was made of."""
    if "verdict" not in row or not row.get("arm"):
        return []
    keys = ("host", "attempt", "engine", "arm", "prompt_class", "evidence")
    return [effect for effect in tables.rows(EFFECTS) if _matches(row, effect, keys)]


def _outcomes_of(tables: Tables, row: Row) -> list[Row]:
    """The executed things that a verdict without a speed rests on: those of its attempt and engine (or converter)."""
    if "verdict" not in row:
        return []
    named = row["engine"]
    return [
        outcome
        for outcome in tables.rows(OUTCOMES)
        if _matches(row, outcome, ("host",))
        and (outcome["attempt"] in ("", row["attempt"]))
        and named
        and named in (outcome["engine"], outcome["converter"], outcome["subject"])
        and (not row["arm"] or outcome["arm"] in ("", row["arm"]))
    ]


def _measurements_of(tables: Tables, row: Row, effects: Sequence[Row]) -> list[Row]:
    """The counted requests behind effects: those of the arm and of the baseline in the same records."""
    sources = list(effects) if effects else [row] if "ln_ratio" in row and "verdict" not in row else []
    wanted = {(e["record"], e["arm"], e["prompt_class"]) for e in sources}
    records = {record for record, _, _ in wanted}
    return [
        m
        for m in tables.rows(MEASUREMENTS)
        if m["record"] in records and m["counted"] and any(_belongs(m, *want) for want in wanted)
    ]


def _belongs(m: Row, record: str, arm: str, prompt_class: str) -> bool:
    return bool(
        m["record"] == record
        and (m["arm"] == arm or m["arm_kind"] == "baseline")
        and prompt_class in ("all", m["prompt_class"])
    )


def _source(tables: Tables, label: str) -> Source:
    """What a record file says about the bytes behind it."""
    content = tables.content(label)
    if content is None:
        return Source(label, "the file is not here", {}, {})
    digest = hashlib.sha256(content).hexdigest()
    try:
        raw = json.loads(content)
    except ValueError:
        return Source(label, digest, _entry_of_yaml(content, label), {})
    if not isinstance(raw, dict):
        return Source(label, digest, {}, {})
    versions = {str(k): str(v) for k, v in (raw.get("versions") or {}).items()}
    return Source(label, digest, dict(sorted(set(_hashes(raw)))), versions)


def _entry_of_yaml(content: bytes, label: str) -> dict[str, str]:
    """For a published figure (`config/published.yaml#M1`): the entry itself."""
    entry = label.partition("#")[2]
    try:
        document = yaml.safe_load(content) if entry else None
    except yaml.YAMLError:
        return {}
    for listed in (document or {}).values():
        if isinstance(listed, list):
            for item in listed:
                if isinstance(item, dict) and item.get("id") == entry:
                    return {str(key): str(value) for key, value in item.items()}
    return {}


def _hashes(value: Any, place: str = "") -> Iterable[tuple[str, str]]:
    """(place, hash) of everything in a record that is one; answers' texts are left to the measurements."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            where = f"{place}.{key}" if place else str(key)
            if key in _HASH_KEYS and isinstance(inner, str) and inner and key != "text_sha256":
                yield where.removeprefix("detail."), inner
            elif key == "prompts" and isinstance(inner, Mapping):
                yield from ((f"prompt {name}", str(sha)) for name, sha in inner.items())
            elif key != "requests":
                yield from _hashes(inner, where)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _hashes(inner, f"{place}[{index}]")


def configuration_hashes(root: Path) -> dict[str, str]:
    """sha256 of every file of config/ as it is now."""
    files = sorted(path for path in (root / "config").rglob("*") if path.is_file() and path.suffix in (".yaml", ".txt"))
    return {path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def as_text(found: Trace, *, most: int = 12) -> str:
    """The chain for people, at most `most` lines of each kind."""
    lines = [found.start, *(f"  {key}: {value}" for key, value in found.row.items() if value not in (None, "", []))]
    lines += _section(f"{len(found.effects)} effects, one per block", [_effect_line(e) for e in found.effects], most)
    lines += _section(f"{len(found.outcomes)} executed things", [_outcome_line(o) for o in found.outcomes], most)
    lines += _section(f"{len(found.measurements)} requests", [_request_line(m) for m in found.measurements], most)
    records = []
    for source in found.sources:
        records.append(f"{source.label}  sha256 {source.sha256}")
        records += [f"    {place}: {value}" for place, value in source.hashes.items()]
        records += [f"    version of {name}: {value}" for name, value in source.versions.items()]
        if not source.versions and "#" not in source.label and not source.label.endswith("plan.json"):
            records.append(f"    versions: {NOT_RECORDED}")
    lines += _section("records and the hashes they name", records, most * 8)
    lines += _section(
        "configuration as it is now", [f"{k}  sha256 {v}" for k, v in found.configuration.items()], most * 4
    )
    lines.append(f"code as it is now: sha256 {found.code_sha256}")
    return "\n".join(lines) + "\n"


def _section(title: str, items: Sequence[str], most: int) -> list[str]:
    if not items:
        return []
    more = [f"  ... and {len(items) - most} more lines (--json shows all)"] if len(items) > most else []
    return [f"{title}:", *(f"  {item}" for item in items[:most]), *more]


def _effect_line(row: Row) -> str:
    value = f"ln ratio {row['ln_ratio']:.4f}" if row["ln_ratio"] is not None else f"no ratio: {row['reason']}"
    where = f"block {row['block']}, {row['arm']}, {row['prompt_class']}"
    return f"{where}: {value}, {row['prompts']} prompts ({row['record']})"


def _outcome_line(row: Row) -> str:
    return f"{row['kind']} {row['subject']}: {row['outcome']} {row['reason']}".rstrip() + f" ({row['record']})"


def _request_line(row: Row) -> str:
    speed = f"{row['tg_tokens_per_s']:.2f} tokens/s" if row["tg_tokens_per_s"] is not None else row["outcome"]
    return f"block {row['block']}, {row['arm']}, {row['prompt_id']}: {row['predicted_tokens']} tokens, {speed}"
