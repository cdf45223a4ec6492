"""Bundles: the records of one host as one file, and the merging of records that come from several places.

A bundle is a zip without compression and with fixed dates: the same records give the same bytes on every machine, and
its text can be searched as it lies. It holds `manifest.json` and `records/<host>/...`. A bundle comes from somebody
else, so nothing in it is trusted: names, sizes, kinds of entries and hashes are checked before any record is read, and
nothing is ever unpacked to disk.
"""

from __future__ import annotations

import hashlib
import json
import re
import stat
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findings.records import SCHEMA_VERSION, Kind, Outcome
from findings.writing import whole_file

BUNDLE_VERSION = 1
MANIFEST = "manifest.json"
PREFIX = "records"
MAX_MEMBERS = 200_000
MAX_MEMBER_BYTES = 64 * 2**20
MAX_TOTAL_BYTES = 4 * 2**30
MAX_RATIO = 200
# Dates of a zip begin with 1980; a fixed one keeps the bytes apart from the clock.
_FIXED_DATE = (1980, 1, 1, 0, 0, 0)
_NAME = re.compile(
    r"^records/(?P<host>[a-z0-9][a-z0-9.-]{0,39})/(?P<rest>[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+){0,8}\.json)$"
)
_RUN = re.compile(r"^measure/(?P<session>[^/]+/[^/]+)/(?P<run>run-\d+)/")
# Files beside the records that say what a run was and that it is whole; they are no records themselves.
COMPLETE = "complete.json"
COMPANIONS = frozenset({COMPLETE, "plan.json"})


class BundleError(ValueError):
    """A bundle that is refused; the message names the file, what is wrong, and what to do."""


@dataclass(frozen=True)
class RecordFile:
    """One file of a host's records, wherever it lies.

    `label` is how a table row names it, `relative` its path below the host's folder, `read` gives its bytes, `origin`
    the bundle it came in ("" for this machine's own records).
    """

    label: str
    host: str
    relative: str
    read: Callable[[], bytes]
    origin: str = ""

    @property
    def is_record(self) -> bool:
        """Whether it is a record, not a companion file of a run."""
        return Path(self.relative).name not in COMPANIONS

    @property
    def run(self) -> tuple[str, str] | None:
        """(attempt/engine, run folder) for a file inside a run, else None."""
        found = _RUN.match(self.relative)
        return (found["session"], found["run"]) if found else None

    @property
    def unit(self) -> str:
        """What is taken or left as a whole when two sources hold the same host: a session, or one record."""
        parts = self.relative.split("/")
        return "/".join(parts[:3]) if parts[0] == "measure" and len(parts) > 3 else self.relative

    def json(self) -> dict[str, Any]:
        """The decoded content. Raises BundleError (bundle) or ValueError with the label where it is no JSON object."""
        try:
            value = json.loads(self.read())
        except (OSError, ValueError) as error:
            raise BundleError(f"{self.label}: not readable ({error}); delete it and run its target again") from error
        if not isinstance(value, dict):
            raise BundleError(f"{self.label}: holds a {type(value).__name__}, not a record; delete it and run again")
        return value


@dataclass(frozen=True)
class Merged:
    """Record files of all sources, ordered by label; `notes` says in sentences what was kept out and why."""

    files: tuple[RecordFile, ...]
    notes: tuple[str, ...]


def folder_records(root: Path, shown_as: str = "results/records") -> list[RecordFile]:
    """All files of all hosts below `root` (results/records), ordered; temporary files and links are passed over."""
    found = []
    for path in sorted(root.rglob("*.json")):
        relative = path.relative_to(root)
        if path.name.startswith(".") or path.is_symlink() or len(relative.parts) < 2:
            continue
        label = f"{shown_as}/{relative.as_posix()}"
        found.append(RecordFile(label, relative.parts[0], "/".join(relative.parts[1:]), path.read_bytes))
    return found


def newest_runs(files: Iterable[RecordFile], *, every_run: bool = False) -> Merged:
    """The files without runs that do not count: interrupted ones, and those that a newer complete run replaced.

    A run is complete when it has complete.json. Of several complete ones of a session that which session.json names
    counts (the verdict rests on it), else the highest number. With `every_run` all complete runs stay.
    """
    listed = list(files)
    complete: dict[tuple[str, str], set[str]] = {}
    every: dict[tuple[str, str], set[str]] = {}
    named: dict[tuple[str, str], str] = {}
    for file in listed:
        if file.relative == f"{file.unit}/session.json":
            named[(file.host, file.unit.removeprefix("measure/"))] = _named_run(file)
        if file.run is not None:
            session, run = file.run
            every.setdefault((file.host, session), set()).add(run)
            if Path(file.relative).name == COMPLETE:
                complete.setdefault((file.host, session), set()).add(run)
    kept_runs: dict[tuple[str, str], set[str]] = {}
    notes = []
    for key, runs in sorted(every.items()):
        done = complete.get(key, set())
        newest = named[key] if named.get(key) in done else max(done, key=_run_number, default="")
        kept_runs[key] = done if every_run or not done else {newest}
        interrupted, replaced = sorted(runs - done), sorted(done - kept_runs[key])
        if interrupted:
            notes.append(f"{key[0]}/{key[1]}: {', '.join(interrupted)} not complete, its blocks are not counted")
        if replaced:
            notes.append(f"{key[0]}/{key[1]}: {', '.join(replaced)} replaced by {', '.join(kept_runs[key])}")
    kept = [f for f in listed if f.run is None or f.run[1] in kept_runs[(f.host, f.run[0])]]
    return Merged(tuple(sorted(kept, key=lambda f: f.label)), tuple(notes))


def _named_run(file: RecordFile) -> str:
    """The run that a session's record names; "" where it cannot be read (whoever reads the record will say so)."""
    try:
        return str(file.json()["detail"]["run"])
    except (BundleError, KeyError, TypeError):
        return ""


def _run_number(run: str) -> int:
    return int(run.removeprefix("run-"))


def merge(sources: Sequence[Sequence[RecordFile]]) -> Merged:
    """Records of several sources as one set.

    Where two sources hold the same unit of the same host (a session, or a record outside sessions), the newer one is
    taken whole and the older one left out; at equal times the first source wins. Identical files are no conflict.
    """
    units: dict[tuple[str, str], list[list[RecordFile]]] = {}
    for source in sources:
        mine: dict[tuple[str, str], list[RecordFile]] = {}
        for file in source:
            mine.setdefault((file.host, file.unit), []).append(file)
        for key, files in mine.items():
            units.setdefault(key, []).append(files)
    kept: list[RecordFile] = []
    notes: list[str] = []
    for (host, unit), candidates in sorted(units.items()):
        chosen = candidates[0]
        for other in candidates[1:]:
            if _same(chosen, other):
                continue
            newer = unit_time(other) > unit_time(chosen)
            winner, loser = (other, chosen) if newer else (chosen, other)
            notes.append(
                f"{host}/{unit}: {_origin(winner)} ({unit_time(winner) or 'no date'}) taken, "
                f"{_origin(loser)} ({unit_time(loser) or 'no date'}) left out"
            )
            chosen = winner
        kept += chosen
    return Merged(tuple(sorted(kept, key=lambda f: f.label)), tuple(notes))


def _origin(files: Sequence[RecordFile]) -> str:
    return files[0].origin or "this machine's record"


def _same(left: Sequence[RecordFile], right: Sequence[RecordFile]) -> bool:
    if sorted(f.relative for f in left) != sorted(f.relative for f in right):
        return False
    others = {f.relative: f for f in right}
    return all(f.read() == others[f.relative].read() for f in left)


def unit_time(files: Sequence[RecordFile]) -> str:
    """When a unit was made (UTC, ISO 8601): its last complete run, else its newest start; "" where none is stated."""
    finished = [f.json().get("finished", "") for f in files if Path(f.relative).name == COMPLETE]
    if finished:
        return str(max(finished))
    return max((str(f.json().get("started", "")) for f in files if f.is_record), default="")


def write_bundle(path: Path, host: str, files: Sequence[RecordFile], code: str, check: Callable[[Path], None]) -> int:
    """Write `files` of `host` as a bundle and return their number.

    `check` looks at the finished file under its temporary name and raises to stop it (the leak scan); the bundle gets
    its name only afterwards. Raises BundleError where there is nothing to export or a file belongs to another host.
    """
    if not files:
        raise BundleError(f"{path}: host {host!r} has no records to export; run `snakemake --cores 1 report` first")
    strangers = sorted({file.host for file in files} - {host})
    if strangers:
        raise BundleError(f"{path}: records of {strangers[0]!r} do not belong into the bundle of {host!r}")
    contents = {f"{PREFIX}/{file.host}/{file.relative}": file.read() for file in files}
    manifest = {
        "bundle": BUNDLE_VERSION,
        "schema": SCHEMA_VERSION,
        "host": host,
        "code_sha256": code,
        "records": {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())},
    }
    with whole_file(path) as part:
        with zipfile.ZipFile(part, "w", zipfile.ZIP_STORED) as archive:
            _add(archive, MANIFEST, (json.dumps(manifest, indent=1, sort_keys=True) + "\n").encode())
            for member, content in sorted(contents.items()):
                _add(archive, member, content)
        check(part)
    return len(contents)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _FIXED_DATE)
    info.create_system = 3  # the same on every system
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    archive.writestr(info, content)


@dataclass(frozen=True)
class Bundle:
    """A bundle that passed every check: its host, record files, and what was left out of it."""

    path: Path
    host: str
    code_sha256: str
    files: tuple[RecordFile, ...]
    notes: tuple[str, ...]


def read_bundle(path: Path, shown_as: str = "") -> Bundle:
    """Check a bundle whole and give its records (they are read from the file again when asked for).

    Raises BundleError for a file that is no bundle, is damaged, was changed, is of another schema version, has names
    that leave its folder, links, duplicates or absurd sizes. Records of a kind that this version does not know are
    left out, with a note.
    """
    label = shown_as or path.as_posix()
    try:
        with zipfile.ZipFile(path) as archive:
            _check_entries(label, archive)
            manifest = _manifest(label, archive)
            contents = _checked_contents(label, archive, manifest)
    except FileNotFoundError as error:
        raise BundleError(f"{label}: there is no such file; mend `imports:` in config/config.yaml") from error
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise BundleError(f"{label}: damaged or no bundle ({error}); ask for it again or export it anew") from error
    files, notes = [], []
    unknown: Counter[str] = Counter()
    reopened = zipfile.ZipFile(path)  # stays open while one of its records is referred to
    for name, kind in contents:
        found = _NAME.match(name)
        assert found is not None  # _check_entries saw to it
        file = RecordFile(f"{label}!{name}", found["host"], found["rest"], _reader(reopened, name), label)
        if file.is_record and kind not in set(Kind):
            unknown[kind] += 1
        else:
            files.append(file)
    for kind, count in sorted(unknown.items()):
        notes.append(
            f"{label}: {count} records of unknown kind {kind!r} left out; a newer version of this project made them"
        )
    return Bundle(path, str(manifest["host"]), str(manifest.get("code_sha256", "")), tuple(files), tuple(notes))


def _reader(archive: zipfile.ZipFile, name: str) -> Callable[[], bytes]:
    return lambda: archive.read(name)


def _check_entries(label: str, archive: zipfile.ZipFile) -> None:
    """Refuse names, kinds and sizes that no bundle of ours has, before anything is decompressed."""
    entries = archive.infolist()
    if len(entries) > MAX_MEMBERS:
        raise BundleError(f"{label}: {len(entries)} files, at most {MAX_MEMBERS} are accepted")
    if sum(entry.file_size for entry in entries) > MAX_TOTAL_BYTES:
        raise BundleError(f"{label}: unpacks to more than {MAX_TOTAL_BYTES} bytes")
    seen: set[str] = set()
    for entry in entries:
        shown = entry.filename[:120]
        mode = stat.S_IFMT(entry.external_attr >> 16)
        if mode not in (0, stat.S_IFREG):
            raise BundleError(f"{label}: {shown!r} is a link, folder or device; a bundle holds plain files only")
        if entry.filename != MANIFEST and (not _NAME.match(entry.filename) or ".." in entry.filename):
            raise BundleError(f"{label}: {shown!r} is no name of a record (records/<host>/...json); refused")
        if entry.filename in seen:
            raise BundleError(f"{label}: {shown!r} occurs twice; refused")
        seen.add(entry.filename)
        if entry.file_size > MAX_MEMBER_BYTES or entry.file_size > MAX_RATIO * max(entry.compress_size, 1):
            raise BundleError(f"{label}: {shown!r} has an absurd size ({entry.file_size} bytes); refused")


def _manifest(label: str, archive: zipfile.ZipFile) -> dict[str, Any]:
    """The manifest of a bundle that this version reads."""
    try:
        manifest = json.loads(archive.read(MANIFEST))
    except KeyError as error:
        raise BundleError(f"{label}: no {MANIFEST}, so it is no bundle of this project") from error
    except ValueError as error:
        raise BundleError(f"{label}: {MANIFEST} is no JSON ({error}); ask for the bundle again") from error
    if not isinstance(manifest, dict) or not isinstance(manifest.get("records"), dict):
        raise BundleError(f"{label}: {MANIFEST} has no list of records; ask for the bundle again")
    for key, known in (("bundle", BUNDLE_VERSION), ("schema", SCHEMA_VERSION)):
        if manifest.get(key) != known:
            raise BundleError(
                f"{label}: {key} version {manifest.get(key)!r}, this version of the project reads {known}; "
                "export it with the same version on both machines"
            )
    return manifest


def _checked_contents(label: str, archive: zipfile.ZipFile, manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(name, kind) of every record once its hash was checked."""
    listed: Mapping[str, Any] = manifest["records"]
    names = sorted(entry.filename for entry in archive.infolist() if entry.filename != MANIFEST)
    if names != sorted(listed):
        different = sorted(set(names) ^ set(listed))[0]
        raise BundleError(f"{label}: {different!r} is in the manifest or in the file, not in both; ask for it again")
    checked = []
    for name in names:
        found = _NAME.match(name)
        if found is None or found["host"] != manifest.get("host"):
            raise BundleError(f"{label}: {name!r} does not belong to host {manifest.get('host')!r}; refused")
        content = archive.read(name)
        if hashlib.sha256(content).hexdigest() != listed[name]:
            raise BundleError(f"{label}: {name!r} was changed after the export (its sha256 differs); refused")
        checked.append((name, _kind(label, name, content)))
    return checked


def _kind(label: str, name: str, content: bytes) -> str:
    """The kind that a record states ("" for the companions of a run)."""
    if Path(name).name in COMPANIONS:
        return ""
    try:
        raw = json.loads(content)
        version, kind, outcome = raw["schema"], str(raw["kind"]), str(raw["outcome"])
    except (ValueError, KeyError, TypeError) as error:
        raise BundleError(f"{label}: {name!r} is no record ({error}); export it anew") from error
    if version != SCHEMA_VERSION:
        raise BundleError(f"{label}: {name!r} has record schema {version!r}, this version reads {SCHEMA_VERSION}")
    if kind in set(Kind) and outcome not in set(Outcome):
        raise BundleError(f"{label}: {name!r} has the unknown outcome {outcome!r}; refused")
    return kind
