"""Models and archives: fetched from a list of mirrors in order, pinned by sha256, kept in the cache.

Layout of the cache: models/<sha256>/<file name>, for checkpoints models/<sha256 over the list of files>/<file names>,
archives/<sha256>/<file name>, sources/<sha256>-<folder>/ (unpacked). Nothing appears under these names unverified.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from findings import archives
from findings.cache import (
    MIB,
    CacheError,
    cache_root,
    exclusive,
    explain_os_error,
    is_verified,
    land,
    relative_parts,
    safe_name,
    say,
)
from findings.config import Mirror, MirrorKind, Model, ModelFormat, Source
from findings.download import TRANSIENT, FetchError, Patience
from findings.mirrors import Place, Wanted, fetch_from, where
from findings.records import Kind, Outcome, Record, sha256_file, utc_now

__all__ = ["cache_root", "ensure_archive", "ensure_model", "ensure_unpacked", "model_path", "source_path"]

NO_LOCK = "no commit and sha256 are known for it yet: run `snakemake --cores 1 lock`, then try again"


@dataclass(frozen=True)
class Tried:
    """One mirror that was asked: `outcome` ok or unavailable, `cause` a word (see download.FetchError)."""

    kind: str
    where: str
    outcome: str
    cause: str = ""
    reason: str = ""
    seconds: float = 0.0
    file: str = ""
    commit: str = ""


@dataclass
class _Job:
    """One source being fetched: what was tried so far, for its record."""

    subject: str
    place: Place
    started: str = field(default_factory=utc_now)
    clock: float = field(default_factory=time.monotonic)
    tried: list[Tried] = field(default_factory=list)

    def record(self, outcome: Outcome, reason: str = "", **detail: Any) -> Record:
        """The record of this source; `retryable` says that the same may succeed without any change here."""
        retryable = outcome is not Outcome.OK and any(tried.cause in TRANSIENT for tried in self.tried)
        return Record(
            kind=Kind.DOWNLOAD,
            subject=self.subject,
            outcome=outcome,
            reason=reason,
            seconds=round(time.monotonic() - self.clock, 3),
            started=self.started,
            detail={**detail, "mirrors": [asdict(tried) for tried in self.tried], "retryable": retryable},
        )


def ensure_model(model: Model, cache: Path, root: Path | None = None, patience: Patience | None = None) -> Record:
    """Have `model` in the cache: a record of kind download, outcome ok or unavailable.

    A mirror that fails is an entry of detail.mirrors with its reason; the next one is tried. detail for outcome ok:
    sha256, size_bytes, cache_path (relative to the cache: a file, or a folder for a checkpoint), reused (bool),
    and files [{name, sha256, size_bytes}] for a checkpoint. `root` is the project (for `path` mirrors).
    """
    job = _Job(model.id, Place(root or Path.cwd(), cache, patience or Patience()))
    if model.converted_from is not None or model.copied_from is not None:
        return job.record(Outcome.UNAVAILABLE, f"{model.id} is made from another model, it cannot be fetched")
    if model.format is ModelFormat.CHECKPOINT:
        return _guarded(job, lambda: _checkpoint(job, model))
    if model.sha256 is None:
        return job.record(Outcome.UNAVAILABLE, f"{model.title or model.id}: {NO_LOCK}")
    wanted = Wanted(model.file, model.sha256, model.size_bytes, f"fetch {model.id}")
    return _guarded(job, lambda: _single(job, wanted, model.mirrors, "models"))


def ensure_archive(
    source: Source, cache: Path, subject: str = "", root: Path | None = None, patience: Patience | None = None
) -> Record:
    """Have an archive (a converter's source, an engine's release) in the cache; record as for `ensure_model`."""
    job = _Job(subject or source.file, Place(root or Path.cwd(), cache, patience or Patience()))
    if source.sha256 is None:
        return job.record(
            Outcome.UNAVAILABLE, f"{job.subject}: no sha256 is known for {source.file}; add it in config/"
        )
    wanted = Wanted(source.file, source.sha256, source.size_bytes, f"fetch {job.subject}")
    return _guarded(job, lambda: _single(job, wanted, source.mirrors, "archives"))


def source_path(record: Record, cache: Path) -> Path:
    """The file (or folder of a checkpoint) that a download record speaks of. Raises ValueError if it is not there."""
    relative = str(record.detail.get("cache_path", ""))
    if record.outcome is not Outcome.OK or not relative:
        raise ValueError(f"{record.subject} is {record.outcome.value}: {record.reason}")
    return cache / relative


def model_path(record: Record, cache: Path) -> Path:
    """`source_path` for a model."""
    return source_path(record, cache)


def ensure_unpacked(record: Record, cache: Path, inside: str) -> Path:
    """The folder `inside` of a fetched archive, unpacked once into the cache.

    Raises ValueError for a record that is not ok, ArchiveError, CacheError.
    """
    archive = source_path(record, cache)
    digest = str(record.detail["sha256"])
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", inside).strip("-.") or "all"
    target = cache / "sources" / f"{digest[:16]}-{slug[:80]}"
    if target.is_dir():
        return target
    try:
        with exclusive(cache, target.name, f"unpack {record.subject}"):
            if not target.is_dir():
                for leftover in target.parent.glob(f".{target.name}.*.part"):
                    shutil.rmtree(leftover, ignore_errors=True)
                say(f"unpack {record.subject}", f"{archive.name}: {inside or 'everything'}")
                archives.unpack(archive, inside, target)
    except OSError as error:
        raise explain_os_error(error, "the cache folder") or error from error
    return target


def _guarded(job: _Job, work: Callable[[], Record]) -> Record:
    """Run `work`; what is wrong with the cache itself becomes a record, too."""
    try:
        return work()
    except CacheError as error:
        job.tried.append(Tried("cache", "the cache folder", Outcome.UNAVAILABLE.value, error.cause, str(error)))
        return job.record(Outcome.UNAVAILABLE, str(error))
    except OSError as error:
        mapped = explain_os_error(error, "the cache folder")
        if mapped is None:
            raise
        job.tried.append(Tried("cache", "the cache folder", Outcome.UNAVAILABLE.value, mapped.cause, str(mapped)))
        return job.record(Outcome.UNAVAILABLE, str(mapped))


def _single(job: _Job, wanted: Wanted, mirrors: Sequence[Mirror], folder: str) -> Record:
    """One file into <folder>/<sha256>/<name>."""
    digest = wanted.sha256 or ""
    relative = Path(folder) / digest / safe_name(relative_parts(wanted.name).name)
    target = job.place.cache / relative
    reused = is_verified(target, digest)
    if not reused:
        with exclusive(job.place.cache, digest, wanted.label):
            reused = is_verified(target, digest)
            if not reused and not _from_any(job, wanted, mirrors, target):
                return job.record(Outcome.UNAVAILABLE, _why(wanted.name, job.tried))
    return job.record(
        Outcome.OK, sha256=digest, size_bytes=target.stat().st_size, cache_path=relative.as_posix(), reused=reused
    )


def _from_any(job: _Job, wanted: Wanted, mirrors: Sequence[Mirror], target: Path) -> bool:
    """Try the mirrors in order until the file has landed at `target`."""
    target.unlink(missing_ok=True)
    part = job.place.cache / "partial" / f"{wanted.sha256}.part"
    part.parent.mkdir(parents=True, exist_ok=True)
    for mirror in mirrors:
        clock = time.monotonic()
        tried = Tried(mirror.kind.value, where(mirror, wanted.name), Outcome.OK.value, file=wanted.name)
        size = f", {wanted.size_bytes / MIB:.1f} MiB" if wanted.size_bytes else ""
        say(wanted.label, f"from {mirror.kind.value}: {tried.where}{size}")
        try:
            fetched = fetch_from(mirror, wanted, part, job.place)
        except FetchError as error:
            say(wanted.label, str(error))
            seconds = round(time.monotonic() - clock, 3)
            job.tried.append(
                replace(tried, outcome=Outcome.UNAVAILABLE.value, cause=error.cause, reason=str(error), seconds=seconds)
            )
            continue
        land(part, target, fetched.sha256)
        seconds = round(time.monotonic() - clock, 3)
        job.tried.append(replace(tried, seconds=seconds, commit=fetched.commit))
        return True
    return False


def _why(name: str, tried: Sequence[Tried]) -> str:
    if not tried:
        return f"{name}: no mirror is configured; add one in config/models.yaml"
    last = {entry.where: entry for entry in tried if entry.outcome != Outcome.OK.value}
    return f"{name}: no mirror had it. " + "; ".join(
        f"{entry.kind} {entry.where}: {entry.reason}" for entry in last.values()
    )


def checkpoint_key(files: Sequence[tuple[str, str]]) -> str:
    """sha256 over the lines `<sha256>  <name>` of a checkpoint, sorted by name: the name of its folder."""
    lines = "".join(f"{digest}  {name}\n" for name, digest in sorted(files))
    return hashlib.sha256(lines.encode("utf-8")).hexdigest()


def _pinned_by_project(model: Model, root: Path) -> Model:
    """`model` with the sha256 and sizes that its unpinned files have in the project itself.

    A checkpoint that is committed with the project needs no second pin: the commit is one. Others stay unpinned.
    """
    for mirror in model.mirrors:
        if mirror.kind is MirrorKind.PATH:
            folder = root / relative_parts(mirror.path)
            if all((folder / relative_parts(file.name)).is_file() for file in model.files):
                files = [(file, folder / file.name) for file in model.files]
                return replace(
                    model,
                    files=tuple(
                        replace(
                            file,
                            sha256=file.sha256 or sha256_file(path),
                            size_bytes=file.size_bytes or path.stat().st_size,
                        )
                        for file, path in files
                    ),
                )
    return model


def _checkpoint(job: _Job, model: Model) -> Record:
    """All files of a checkpoint into one folder, each verified."""
    if any(file.sha256 is None for file in model.files):
        model = _pinned_by_project(model, job.place.root)
    if not model.files or any(file.sha256 is None for file in model.files):
        own = [mirror.path for mirror in model.mirrors if mirror.kind is MirrorKind.PATH]
        reason = f"the project lacks files of it in {', '.join(own)}" if own and model.locked else NO_LOCK
        return job.record(Outcome.UNAVAILABLE, f"{model.title or model.id}: {reason}")
    pins = [(str(relative_parts(file.name)), file.sha256 or "") for file in model.files]
    relative = Path("models") / checkpoint_key(pins)
    folder = job.place.cache / relative
    reused = all(is_verified(folder / name, digest) for name, digest in pins)
    if not reused:
        with exclusive(job.place.cache, folder.name, f"fetch {model.id}"):
            for file in model.files:
                target = folder / file.name
                wanted = Wanted(file.name, file.sha256, file.size_bytes, f"fetch {model.id} {file.name}")
                if is_verified(target, wanted.sha256 or ""):
                    continue
                if not _from_any(job, wanted, [_for_file(mirror, file.name) for mirror in model.mirrors], target):
                    failed = [entry for entry in job.tried if entry.file == file.name]
                    return job.record(Outcome.UNAVAILABLE, _why(file.name, failed))
    sizes = {name: (folder / name).stat().st_size for name, _ in pins}
    return job.record(
        Outcome.OK,
        sha256=folder.name,
        size_bytes=sum(sizes.values()),
        cache_path=relative.as_posix(),
        reused=reused,
        files=[{"name": name, "sha256": digest, "size_bytes": sizes[name]} for name, digest in pins],
    )


def _for_file(mirror: Mirror, name: str) -> Mirror:
    """A checkpoint's mirror for one of its files: `file`, where given, is the folder inside the repository."""
    if mirror.kind is MirrorKind.PATH:
        return replace(mirror, path=f"{mirror.path.rstrip('/')}/{name}")
    return replace(mirror, file=f"{mirror.file.rstrip('/')}/{name}" if mirror.file else name)
