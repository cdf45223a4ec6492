"""Files that appear whole or not at all, and plain words where a disk refuses one.

Every tool of scripts/ has its `main` wrapped by `command`: a full, read-only or foreign disk ends it with two sentences
(which file, how much is free, what to do) and exit code 1 instead of a traceback, wherever in the tool it was met.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

FULL = (errno.ENOSPC, errno.EDQUOT)
CLOSED = (errno.EROFS, errno.EACCES, errno.EPERM)
AGAIN = "then type the same command again: what is finished stays"


class WriteError(OSError):
    """A file that a disk refused; as text it says what to do.

    `errno` is the system's, `filename` the file, `free` the bytes that were free then (None: nobody can tell).
    """

    free: int | None = None

    def __str__(self) -> str:
        name = os.fspath(self.filename) if self.filename else "a file"
        if self.errno in FULL:
            free = "" if self.free is None else f" ({size(self.free)} free)"
            return f"{name} cannot be written: the disk is full{free}. Free some space there, {AGAIN}."
        if self.errno == errno.EROFS:
            return f"{name} cannot be written: its disk is mounted read-only. Mount it writable, {AGAIN}."
        return f"{name} cannot be written: {self.strerror}. Give yourself the right to write there, {AGAIN}."


def refused(error: OSError) -> WriteError | None:
    """The WriteError of a full disk or of a place that must not be written; None for any other error.

    A file that is there and may not be read is another error.
    """
    if isinstance(error, WriteError):
        return error
    name = error.filename
    if error.errno in CLOSED and (not name or (Path(name).is_file() and not os.access(name, os.R_OK))):
        return None
    return _refused_for(error, name)


def _refused_for(error: OSError, name: str | os.PathLike[str] | None) -> WriteError | None:
    """The same, where what was written is known."""
    if isinstance(error, WriteError):
        return error
    if error.errno is None or error.errno not in (*FULL, *CLOSED):
        return None
    found = WriteError(error.errno, os.strerror(error.errno), os.fspath(name) if name else None)
    found.free = free_bytes(Path(name)) if name else None
    return found


def free_bytes(place: Path) -> int | None:
    """Bytes that are free where `place` is or would be; None where nobody can tell."""
    with contextlib.suppress(OSError):
        while not place.exists() and place != place.parent:
            place = place.parent
        return shutil.disk_usage(place).free
    return None


def size(count: int, *, up: bool = False) -> str:
    """A number of bytes for people, rounded down (or `up`) to a tenth of a unit: `0 bytes`, `47.9 KiB`, `3.2 MiB`."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if count >= unit:
            tenths = 10 * count / unit
            return f"{(math.ceil(tenths) if up else math.floor(tenths)) / 10:.1f} {name}"
    return "1 byte" if count == 1 else f"{count} bytes"


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary file in the folder of `path`, which takes its name when the block ends without an error.

    The folder is made where it is missing; the content is on the disk before the name is. Whatever is raised inside,
    no temporary file is left and `path` is as it was. Raises WriteError (an OSError) where the disk refuses, naming
    `path` and not the temporary name.
    """
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
        os.close(handle)
        part = Path(name)
        yield part
        with part.open("rb") as stream:
            os.fsync(stream.fileno())
        part.chmod(0o666 & ~_umask())  # mkstemp makes private files
        part.replace(path)
    except OSError as error:
        raise (_refused_for(error, path) if _is_about(error, path) else None) or error from error
    finally:
        if part is not None:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def _is_about(error: OSError, path: Path) -> bool:
    """Whether an error met while `path` was written is about it, its temporary file or a folder above it."""
    if not error.filename or isinstance(error.filename, int):
        return True
    named = Path(os.fsdecode(error.filename))
    return named.parent == path.parent or path.is_relative_to(named)


def _umask() -> int:
    """The process's umask."""
    value = os.umask(0)
    os.umask(value)
    return value


def require_writable(folder: Path) -> None:
    """Raises WriteError where nothing can be written into `folder`, which is made where it is missing."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise _refused_for(error, folder) or error from error


def command(main: Callable[[Sequence[str] | None], int]) -> Callable[..., int]:
    """Wrap a tool's `main`: an error about a file ends it with a message on stderr and 1 instead of a traceback.

    Where a disk refused, the message is WriteError's; every other error of the system that names a file is told as it
    is. What names none is a fault of ours, and keeps its traceback.
    """

    @functools.wraps(main)
    def wrapped(argv: Sequence[str] | None = None) -> int:
        try:
            return main(argv)
        except OSError as error:
            found = refused(error)
            if found is None and not error.filename:
                raise
            tool = Path(sys.modules[main.__module__].__file__ or main.__module__).stem
            print(f"{tool}: {found or error}", file=sys.stderr, flush=True)
            return 1

    return wrapped
