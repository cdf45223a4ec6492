"""The lock of a study: every hub model that waits for one, resolved to a commit, file sizes and sha256.

The hub's API gives the commit and, for large files, sha256 and size. Small files (configuration, tokenizer) have no
sha256 there: they are fetched at that commit, checked against the hub's git hash, and hashed. What cannot be resolved
(gated, no network) keeps the entry that it had, and the record says what to do.
"""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx2
import yaml
from huggingface_hub import HfApi, hf_hub_url

from findings.cache import MIB, say
from findings.config import Configuration, Mirror, MirrorKind, Model, ModelFormat
from findings.download import TRANSIENT, FetchError, Patience, Request, fetch_file
from findings.mirrors import hub_endpoint, hub_file, with_retries
from findings.records import Kind, Outcome, Record, utc_now, write_text

SMALL_FILE_BYTES = 64 * MIB
LABEL = "lock"


@dataclass(frozen=True)
class LockedFile:
    """One file at a commit; size in bytes."""

    name: str
    sha256: str
    size_bytes: int


@dataclass(frozen=True)
class LockedModel:
    """One resolved model: the repository, the commit that its revision named, and its files there."""

    id: str
    repo: str
    revision: str
    files: tuple[LockedFile, ...]


def lock_path(root: Path, study: str) -> Path:
    """Where a study's lock lies."""
    return root / "config" / f"{study}.lock.yaml"


def waiting_models(configuration: Configuration) -> list[Model]:
    """Models of the study that wait for a lock (`locked: false`), in the order of models.yaml.

    `configuration` must be read without the lock (load_configuration(..., use_lock=False)).
    """
    study = configuration.study
    used = set(study.roles.values())
    for attempt in study.attempts.values():
        used |= set(attempt.roles.values()) | {plan.checkpoint for plan in attempt.convert}
    models = configuration.models
    used |= {source.checkpoint for name in used & set(models) if (source := models[name].converted_from) is not None}
    return [model for model in models.values() if model.id in used and not model.locked]


def update_lock(
    models: Sequence[Model], path: Path, study: str, patience: Patience | None = None, host: str = ""
) -> Record:
    """Resolve `models` on the hub and write the lock at `path`; a record of kind download, outcome ok or unavailable.

    The file is written whole or not at all, and not touched where nothing changed. detail: models [{id, outcome,
    cause, reason, revision}], lock (file name), written (bool).
    """
    clock, started = time.monotonic(), utc_now()
    kept = read_lock(path)
    entries: dict[str, LockedModel] = {}
    told: list[dict[str, str]] = []
    for model in models:
        try:
            entries[model.id] = _resolve(model, patience or Patience())
            revision = entries[model.id].revision
            told.append({"id": model.id, "outcome": Outcome.OK.value, "cause": "", "reason": "", "revision": revision})
            say(LABEL, f"{model.id}: {revision}")
        except FetchError as error:
            old = kept.get(model.id)
            reason = f"{error}" + (f"; the lock keeps commit {old.revision}" if old else "")
            if old:
                entries[model.id] = old
            told.append(
                {
                    "id": model.id,
                    "outcome": Outcome.UNAVAILABLE.value,
                    "cause": error.cause,
                    "reason": reason,
                    "revision": "",
                }
            )
            say(LABEL, f"{model.id}: {reason}")
    written = bool(entries) and entries != kept
    if written:
        write_text(path, lock_text(list(entries.values()), started))
        say(LABEL, f"wrote {path.name} with {len(entries)} models")
    failed = [entry for entry in told if entry["outcome"] != Outcome.OK.value]
    return Record(
        kind=Kind.DOWNLOAD,
        subject=f"lock-{study}",
        outcome=Outcome.UNAVAILABLE if failed else Outcome.OK,
        reason="; ".join(f"{entry['id']}: {entry['reason']}" for entry in failed),
        host=host,
        study=study,
        seconds=round(time.monotonic() - clock, 3),
        started=started,
        detail={
            "models": told,
            "lock": path.name,
            "written": written,
            "retryable": any(entry["cause"] in TRANSIENT for entry in failed),
        },
    )


def read_lock(path: Path) -> dict[str, LockedModel]:
    """Entries of an existing lock by model id; empty where there is none or it cannot be read (it is written anew)."""
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
        return {entry["id"]: _entry(entry) for entry in document["models"]}
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return {}


def _entry(entry: Mapping[str, Any]) -> LockedModel:
    files = tuple(LockedFile(str(f["name"]), str(f["sha256"]), int(f["size_bytes"])) for f in entry["files"])
    return LockedModel(str(entry["id"]), str(entry["repo"]), str(entry["revision"]), files)


def lock_text(models: Sequence[LockedModel], made: str) -> str:
    """The text of a lock (workflow/schemas/lock.schema.yaml)."""
    entries = [{**asdict(model), "files": [asdict(file) for file in model.files]} for model in models]
    body = yaml.safe_dump({"made": made, "models": entries}, sort_keys=False, allow_unicode=True, width=120)
    return (
        f"# Written by `snakemake --cores 1 lock`: what the hub's repositories hold. Not for editing by hand.\n{body}"
    )


def _hub_mirror(model: Model) -> Mirror:
    for mirror in model.mirrors:
        if mirror.kind is MirrorKind.HUGGINGFACE:
            return mirror
    raise FetchError("refused", "it has no huggingface mirror; add one to config/models.yaml, or its sha256")


def _names(model: Model, mirror: Mirror) -> list[str]:
    if model.format is ModelFormat.GGUF:
        return [mirror.file or model.file]
    if not model.files:
        raise FetchError("refused", "it lists no files; add the needed ones in config/models.yaml")
    return [file.name for file in model.files]


def _resolve(model: Model, patience: Patience) -> LockedModel:
    """Ask the hub for one model. Raises FetchError."""
    mirror = _hub_mirror(model)
    api = HfApi(endpoint=hub_endpoint())
    info = with_retries(
        lambda: api.model_info(
            mirror.repo, revision=mirror.revision or None, files_metadata=True, timeout=patience.read_s
        ),
        mirror.repo,
        patience,
        LABEL,
    )
    commit = str(info.sha or "")
    if len(commit) != 40:
        raise FetchError("not_the_file", "the answer is not the hub's (a login page of the network, perhaps)")
    offered = {sibling.rfilename: sibling for sibling in info.siblings or []}
    files = []
    for name in _names(model, mirror):
        sibling = offered.get(name)
        if sibling is None:
            raise FetchError("not_found", f"{mirror.repo} has no file {name} at {commit[:12]}: mend config/models.yaml")
        lfs = sibling.lfs
        if lfs is not None:
            files.append(LockedFile(name, str(lfs.sha256), int(lfs.size)))
        else:
            files.append(_small_file(mirror.repo, commit, name, sibling.blob_id or "", patience))
    return LockedModel(model.id, mirror.repo, commit, tuple(files))


def _small_file(repo: str, commit: str, name: str, blob_id: str, patience: Patience) -> LockedFile:
    """Fetch a file that is kept in git itself, check git's hash, and hash it."""
    url = hf_hub_url(repo, name, revision=commit, endpoint=hub_endpoint())
    place, headers = hub_file(url, repo, patience, LABEL)
    size = place.size or 0
    if size > SMALL_FILE_BYTES:
        raise FetchError("wrong_size", f"{name} has {size} bytes and no sha256 on the hub; too large to hash here")
    with tempfile.TemporaryDirectory() as folder, httpx2.Client(max_redirects=10) as client:
        part = Path(folder) / "file"
        digest = fetch_file(
            client, Request(place.location, f"{LABEL} {name}", None, size or None, headers), part, patience
        )
        data = part.read_bytes()
    # git's own name of a blob (SHA-1 is what git uses; it is no protection here, only a check against mix-ups).
    git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    if blob_id and git != blob_id:
        raise FetchError("wrong_hash", f"{name} has not the git hash that the hub tells; try again")
    return LockedFile(name, digest, len(data))
