"""Records: one JSON file per executed thing, and the words for how it ended.

A record is written once, whole, under a temporary name and then renamed, so a reader never meets half of one.
Anything that can carry the text of another program (reasons, log lines, argv) passes through `redact` first.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from findings.code_version import code_version
from findings.writing import whole_file

SCHEMA_VERSION = 1
LOG_HEAD_LINES = 20
LOG_TAIL_LINES = 40
LOG_LINE_LIMIT = 400


class Outcome(StrEnum):
    """How an executed thing ended. Everything but `OK` is an expected answer, not a fault of the pipeline."""

    OK = "ok"
    REFUSED = "refused"
    UNSUPPORTED = "unsupported"
    NOT_ENGAGED = "not_engaged"
    OUT_OF_MEMORY = "out_of_memory"
    TIMED_OUT = "timed_out"
    CRASHED = "crashed"
    UNAVAILABLE = "unavailable"
    NOT_RUN = "not_run"


class Engagement(StrEnum):
    """What speculation did in a run: four states that must never be mixed up."""

    OFF = "off"
    NOT_ENGAGED = "not_engaged"
    WITHOUT_DRAFTS = "engaged_without_drafts"
    WITH_DRAFTS = "engaged_with_drafts"


class Kind(StrEnum):
    """What kind of thing was executed."""

    HOST = "host"
    DOWNLOAD = "download"
    ENVIRONMENT = "environment"
    PROBE = "probe"
    FACTS = "facts"
    PRECHECK = "precheck"
    CONVERSION = "conversion"
    LOAD = "load"
    SESSION = "session"
    BLOCK = "block"
    TORCH = "torch"


@dataclass(frozen=True)
class Record:
    """One executed thing.

    `subject` names it (a model id, an engine id, `attempt/engine/arm` ...), `detail` holds what its kind needs
    (JSON values only), `seconds` is wall time, `started` is UTC in ISO 8601 with a trailing Z.
    """

    kind: Kind
    subject: str
    outcome: Outcome
    reason: str = ""
    host: str = ""
    study: str = ""
    attempt: str = ""
    engine: str = ""
    arm: str = ""
    argv: tuple[str, ...] = ()
    exit_code: int | None = None
    seconds: float = 0.0
    started: str = ""
    log_head: tuple[str, ...] = ()
    log_tail: tuple[str, ...] = ()
    log_sha256: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    detail: Mapping[str, Any] = field(default_factory=dict)
    schema: int = SCHEMA_VERSION


class RecordError(ValueError):
    """A record file that cannot be read; the message names the file and what to do."""


def utc_now() -> str:
    """Current time in UTC as `2026-12-02T06:30:00Z`."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_SECRETS = (
    (re.compile(r"hf_[A-Za-z0-9]{8,}"), "<token>"),
    (re.compile(r"gh[pousr]_[A-Za-z0-9]{16,}"), "<token>"),
    (re.compile(r"(?i)(authorization:?\s*)(bearer\s+)?\S+"), r"\1<token>"),
    (re.compile(r"(?i)([?&](?:token|signature|x-amz-[a-z-]+|key-pair-id|policy)=)[^&\s\"']+"), r"\1<removed>"),
    # A registry's address says where this machine shops, not what was fetched.
    (re.compile(r"(?i)https?://[^\s\"'<>]*/simple(?=[/\s\"'<>,;)]|$)[^\s\"'<>,;)]*"), "<package index>"),
    (re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+@"), "<login>@"),
)
_HOME = re.compile(r"(?:/root|/home/[^/\s\"':]+|/Users/[^/\s\"':]+|[A-Za-z]:\\Users\\[^\\\s\"':]+)(?=[/\\\s\"':]|$)")


def redact(text: str) -> str:
    """Remove what a published record must not hold: tokens, logins, home folders, absolute paths of this checkout."""
    token = os.environ.get("HF_TOKEN", "") or os.environ.get("HUGGING_FACE_HUB_TOKEN", "")
    if len(token) >= 6:
        text = text.replace(token, "<token>")
    for pattern, replacement in _SECRETS:
        text = pattern.sub(replacement, text)
    for place, name in _known_places():
        text = text.replace(place, name)
    return _HOME.sub("<home>", text)


def _known_places() -> list[tuple[str, str]]:
    """Absolute folders of this run with the words that replace them, longest first (one may hold the other)."""
    places = {str(Path.cwd()): "<project>", tempfile.gettempdir(): "<tmp>"}
    cache = os.environ.get("FINDINGS_CACHE", "")
    if cache:
        places[str(Path(cache).expanduser().resolve())] = "<cache>"
    return sorted(((p, n) for p, n in places.items() if len(p) > 3), key=lambda item: -len(item[0]))


def _clean(value: Any) -> Any:
    """`value` with every string redacted, as JSON types."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {str(k): _clean(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(v) for v in value]
    return value


def to_json(record: Record) -> str:
    """The text of a record: redacted, keys in a fixed order, one trailing newline."""
    return json.dumps(_clean(asdict(record)), indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write `text` so that `path` is either the old file or the whole new one.

    Raises WriteError, an OSError, where the folder cannot be written or the disk is full; no temporary file is left.
    """
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def write_record(path: Path, record: Record) -> None:
    """Write one record (see `write_text`), with the version of our code that made it.

    A host's record lists the versions of a machine's software, which is shown; our code is no part of that.
    """
    if record.kind is not Kind.HOST:
        record = replace(record, versions={**code_version(), **record.versions})
    write_text(path, to_json(record))


def read_record(path: Path) -> Record:
    """Read one record.

    Raises RecordError for a file that is not JSON, lacks a field, or has another schema version.
    """
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise RecordError(f"{path}: not a readable record ({error}); delete it and run the target again") from error
    return parse_record(raw, str(path))


def parse_record(raw: Any, where: str) -> Record:
    """A record from decoded JSON; `where` names its origin in errors (RecordError)."""
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA_VERSION:
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise RecordError(f"{where}: record schema is {found!r}, this version reads {SCHEMA_VERSION}")
    try:
        values = {name: raw[name] for name in Record.__dataclass_fields__ if name in raw}
        values["kind"] = Kind(values["kind"])
        values["outcome"] = Outcome(values["outcome"])
        for name in ("argv", "log_head", "log_tail"):
            values[name] = tuple(values.get(name, ()))
        return Record(**values)
    except (KeyError, ValueError, TypeError) as error:
        raise RecordError(f"{where}: not a whole record ({error})") from error


def iter_records(folder: Path) -> Iterator[tuple[Path, Record]]:
    """Every record below `folder`, in the order of the paths; temporary files are passed over."""
    for path in sorted(folder.rglob("*.json")):
        if not path.name.startswith("."):
            yield path, read_record(path)


def clip_log(text: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(head, tail) of a log, long lines cut, so that megabytes of log stay a page in a record."""
    lines = [line if len(line) <= LOG_LINE_LIMIT else line[:LOG_LINE_LIMIT] + " ..." for line in text.splitlines()]
    head = lines[:LOG_HEAD_LINES]
    return tuple(head), tuple(lines[len(head) :][-LOG_TAIL_LINES:])


def sha256_text(text: str) -> str:
    """sha256 of `text` in UTF-8, as hex."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def sha256_file(path: Path) -> str:
    """sha256 of a file, as hex, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
