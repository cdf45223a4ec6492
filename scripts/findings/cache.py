"""The cache folder: where fetched files lie, who may write, and how a file is known to be whole.

A file counts as whole only when its sha256 was checked. The check leaves a stamp (size and modification time) beside
the file, so that gigabytes are not hashed again at every start; a stamp that does not fit makes it hash anew.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from findings.records import redact, sha256_file, write_text
from findings.writing import free_bytes, size

MIB = 1024 * 1024
LOCK_WAIT_S = 4 * 3600.0
DISK_RESERVE_BYTES = 64 * MIB


class CacheError(Exception):
    """The cache cannot be used; `cause` is disk_full, read_only, busy or unsafe_name; the message says what to do."""

    def __init__(self, cause: str, message: str) -> None:
        self.cause = cause
        super().__init__(message)


def cache_root(configured: str = "") -> Path:
    """The cache folder: FINDINGS_CACHE, else the configured folder, else resources/cache below the current folder."""
    chosen = os.environ.get("FINDINGS_CACHE", "") or configured or "resources/cache"
    return Path(chosen).expanduser().resolve()


def safe_name(name: str) -> str:
    """`name` if it is one plain file name. Raises CacheError (unsafe_name) for paths, empty and hidden names."""
    unsafe = not name or name.startswith(".") or name != PurePosixPath(name).name or "\\" in name or "\0" in name
    if unsafe or len(name.encode("utf-8", "replace")) > 200:
        raise CacheError("unsafe_name", f"{name!r} is not a plain file name; a name without folders is needed")
    return name


def relative_parts(name: str) -> PurePosixPath:
    """`name` as a relative path that stays below its folder. Raises CacheError (unsafe_name) for any other."""
    path = PurePosixPath(name)
    if not name or path.is_absolute() or "\\" in name or "\0" in name or {"..", "."} & set(name.split("/")):
        raise CacheError("unsafe_name", f"{name!r} leads out of its folder; a relative path without .. is needed")
    return path


def explain_os_error(error: OSError, place: str) -> CacheError | None:
    """The CacheError for a full disk or a folder that cannot be written, None for any other error."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CacheError("disk_full", f"the disk of {place} is full; free space there, or set FINDINGS_CACHE")
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return CacheError("read_only", f"{place} cannot be written; make it writable, or set FINDINGS_CACHE")
    return None


def require_space(folder: Path, needed_bytes: int) -> None:
    """Raises CacheError (disk_full) when `folder`'s disk has less than `needed_bytes` and a small reserve free."""
    free = free_bytes(folder)
    missing = needed_bytes + DISK_RESERVE_BYTES - (free or 0)
    if free is not None and missing > 0:
        raise CacheError(
            "disk_full",
            f"{size(needed_bytes, up=True)} are needed in the cache folder with a reserve of "
            f"{size(DISK_RESERVE_BYTES)}, and {size(free)} are free; "
            f"free {size(missing, up=True)} more there, or set FINDINGS_CACHE to a folder on a larger disk",
        )


@contextlib.contextmanager
def exclusive(cache: Path, key: str, label: str) -> Iterator[None]:
    """Hold the cache's lock `key`; says on stderr when it waits for another process.

    The operating system frees the lock of a process that dies. Raises CacheError (read_only, busy, disk_full).
    """
    try:
        (cache / "locks").mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / "locks" / f"{key}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(label, "waiting for another run that uses the same cache folder")
            lock.acquire(timeout=LOCK_WAIT_S)
    except Timeout as error:
        raise CacheError(
            "busy", f"another run held {key} for {LOCK_WAIT_S / 3600:.0f} h; end it, then try again"
        ) from error
    except OSError as error:
        raise explain_os_error(error, "the cache folder") or error from error
    try:
        yield
    finally:
        lock.release()


def _stamp_path(path: Path) -> Path:
    return path.with_name(f".{path.name}.verified")


def _stamp_of(path: Path, sha256: str) -> dict[str, object]:
    state = path.stat()
    return {"sha256": sha256, "size_bytes": state.st_size, "mtime_ns": state.st_mtime_ns}


def is_verified(path: Path, sha256: str) -> bool:
    """Whether the file at `path` has that sha256: by its stamp, else by hashing it (and stamping it where possible)."""
    if not path.is_file():
        return False
    with contextlib.suppress(OSError, ValueError):
        if json.loads(_stamp_path(path).read_text(encoding="utf-8")) == _stamp_of(path, sha256):
            return True
    if sha256_file(path) != sha256:
        return False
    # A cache that cannot be written still serves: it is hashed at every start then.
    with contextlib.suppress(OSError):
        write_stamp(path, sha256)
    return True


def write_stamp(path: Path, sha256: str) -> None:
    """Note beside `path` that it was found to have that sha256."""
    write_text(_stamp_path(path), json.dumps(_stamp_of(path, sha256)) + "\n")


def land(part: Path, target: Path, sha256: str) -> None:
    """Move a verified file to its place and stamp it. Raises OSError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part.replace(target)
    write_stamp(target, sha256)


def say(label: str, text: str) -> None:
    """One line of progress on stderr, at once."""
    print(f"[{label}] {redact(text)}", file=sys.stderr, flush=True)
