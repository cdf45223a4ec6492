"""Reading wheels, sdists and release archives without trusting them.

A single member is read as a stream and never extracted by its own path. A folder is extracted below a target of ours,
with the rules of tarfile's `data` filter (nothing outside, no links that lead out, no devices) for zip files, too,
and with bounds on size and number. The extracted folder appears under its name only when it is whole.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import IO

from findings.cache import MIB, CacheError, relative_parts, require_space

MAX_BYTES = 4096 * MIB
MAX_MEMBERS = 100_000
PIECE_BYTES = 256 * 1024
_UNREADABLE = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError)


class ArchiveError(Exception):
    """An archive that cannot be read or must not be unpacked; the message names the member and the reason."""


@contextlib.contextmanager
def open_member(archive: Path, member: str) -> Iterator[IO[bytes]]:
    """A stream of one regular file in a zip (wheel) or tar archive.

    `member` is its whole path in the archive, or its file name where only one member is called so; an sdist's first
    folder (name-version/) may be left out. Raises ArchiveError.
    """
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as opened:
                files = [info.filename for info in opened.infolist() if not info.is_dir()]
                with opened.open(_pick(files, member, archive)) as stream:
                    yield stream
            return
        with tarfile.open(archive) as tar:
            found = _pick([info.name for info in tar if info.isreg()], member, archive)
            tar_stream = tar.extractfile(found)
            if tar_stream is None:
                raise ArchiveError(f"{archive.name}: {found} is not a regular file")
            with tar_stream:
                yield tar_stream
    except _UNREADABLE as error:
        raise ArchiveError(f"{archive.name}: cannot be read ({type(error).__name__}); it is damaged") from error


def _pick(names: list[str], member: str, archive: Path) -> str:
    exact = [name for name in names if member in (name, name.partition("/")[2])]
    loose = exact or [name for name in names if PurePosixPath(name).name == member]
    if len(loose) != 1:
        found = "no member" if not loose else f"{len(loose)} members"
        raise ArchiveError(f"{archive.name}: {found} called {member!r}")
    return loose[0]


def copy_bounded(source: IO[bytes], target: IO[bytes], limit: int, name: str) -> int:
    """Copy a stream of at most `limit` bytes; the number copied. Raises ArchiveError for more, or damaged data."""
    copied = 0
    try:
        while piece := source.read(PIECE_BYTES):
            copied += len(piece)
            if copied > limit:
                raise ArchiveError(f"{name} is larger than the {limit} bytes that are allowed")
            target.write(piece)
    except _UNREADABLE as error:
        raise ArchiveError(f"{name} cannot be read ({type(error).__name__}); the archive is damaged") from error
    return copied


def unpack(archive: Path, inside: str, target: Path, max_bytes: int = MAX_BYTES) -> int:
    """Extract the folder `inside` ("" for everything) of `archive` as the new folder `target`; bytes written.

    `target` must not exist; it appears whole or not at all. Links and special files inside are left out when they
    would be unsafe, and refused when they lead out. Raises ArchiveError, CacheError, OSError.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part"))
    try:
        if zipfile.is_zipfile(archive):
            size = _unzip(archive, inside, work, max_bytes)
        else:
            size = _untar(archive, inside, work, max_bytes)
        work.chmod(0o777 & ~_umask())
        work.rename(target)
    except _UNREADABLE as error:
        raise ArchiveError(f"{archive.name}: cannot be read ({type(error).__name__}); it is damaged") from error
    finally:
        if work.exists():
            shutil.rmtree(work, ignore_errors=True)
    return size


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value


def _below(name: str, inside: str) -> PurePosixPath | None:
    """The path of a member relative to the folder `inside`; None where it lies elsewhere. ArchiveError if unsafe."""
    path = PurePosixPath(name)
    if inside:
        try:
            path = path.relative_to(PurePosixPath(inside))
        except ValueError:
            return None
    if not path.parts:
        return None
    try:
        return relative_parts(str(path))
    except CacheError as error:
        raise ArchiveError(str(error)) from error


def _bound(count: int, size: int, max_bytes: int, archive: Path) -> None:
    if count == 0:
        raise ArchiveError(f"{archive.name}: nothing to unpack; the folder is not in the archive")
    if count > MAX_MEMBERS or size > max_bytes:
        raise ArchiveError(f"{archive.name}: {count} members with {size} bytes are more than is allowed")


def _unzip(archive: Path, inside: str, work: Path, max_bytes: int) -> int:
    with zipfile.ZipFile(archive) as opened:
        chosen = [(info, path) for info in opened.infolist() if (path := _below(info.filename, inside)) is not None]
        _bound(len(chosen), sum(info.file_size for info, _ in chosen), max_bytes, archive)
        require_space(work, sum(info.file_size for info, _ in chosen))
        size = 0
        for info, path in chosen:
            mode = info.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ArchiveError(f"{archive.name}: {info.filename} is a link or a special file")
            place = work / path
            if info.is_dir():
                place.mkdir(parents=True, exist_ok=True)
                continue
            place.parent.mkdir(parents=True, exist_ok=True)
            with opened.open(info) as source, place.open("wb") as out:
                size += copy_bounded(source, out, max_bytes - size, info.filename)
            if mode & 0o100:
                place.chmod(place.stat().st_mode | 0o111)
    return size


def _untar(archive: Path, inside: str, work: Path, max_bytes: int) -> int:
    with tarfile.open(archive) as tar:
        chosen = []
        size = 0
        for info in tar:
            path = _below(info.name, inside)
            if path is None:
                continue
            size += info.size
            chosen.append(info.replace(name=str(path), deep=False))
            _bound(len(chosen), size, max_bytes, archive)
        _bound(len(chosen), size, max_bytes, archive)
        require_space(work, size)
        for info in chosen:
            # Hard links name another member by its path in the archive: nothing here needs one.
            if info.islnk():
                raise ArchiveError(f"{archive.name}: {info.name} is a hard link")
            tar.extract(info, work, set_attrs=True, filter="data")
    return size
