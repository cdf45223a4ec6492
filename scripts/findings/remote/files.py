"""Brings models to another machine, once: <folder>/models/<sha256>/<name>, verified there before it gets that name."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import IO

from findings.remote.connection import Answer, Connection, RemoteFailure

HASH_TIMEOUT_S = 1800.0
# A copy takes as long as it takes: a connection that was cut ends by ssh's own signs of life.
COPY_TIMEOUT_S = 24 * 3600.0
PIECE = 2**20
SAY_EVERY_S = 5.0
MIB = 2**20
RESERVE_BYTES = 64 * MIB


def ensure_model_there(connection: Connection, file: Path, sha256: str, say: Callable[[str], None]) -> PurePosixPath:
    """The absolute path there of a model that lies at `file` here; copied unless it is there already.

    An interrupted copy goes on where it stopped. Raises RemoteFailure (disk full, other bytes, connection).
    """
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"{sha256!r} is not a sha256")
    directory = f"models/{sha256}"
    place = PurePosixPath(connection.folder) / directory / file.name
    values = {"directory": directory, "name": file.name, "sha256": sha256}
    for attempt in range(2):
        state, part, free = _look(connection, values)
        if state == "whole":
            return place
        if state == "damaged":
            say(f"the copy of {file.name} on host {connection.label} is damaged; it is made again")
        size = file.stat().st_size
        offset = part if 0 < part < size else 0
        if free < size - offset + RESERVE_BYTES:
            raise _full(connection, file.name, size - offset, free)
        answer = _copy(connection, file, {**values, "offset": offset, "size": size}, say)
        if answer.exit_code != 0:
            if "No space left" in answer.stderr or "quota" in answer.stderr.lower():
                raise _full(connection, file.name, size - offset, None)
            raise RemoteFailure(
                "write", f"host {connection.label}: {file.name} cannot be written below models/ of its folder"
            )
        told = answer.stdout.strip()
        if told == b"whole":
            return place
        if told == b"short":
            raise RemoteFailure("lost", f"host {connection.label}: {file.name} became shorter while it was copied")
        if offset == 0 or attempt:
            break
        say(f"the unfinished copy of {file.name} on host {connection.label} was damaged; it is made again")
    raise RemoteFailure(
        "other_bytes",
        f"host {connection.label}: the copy of {file.name} has another sha256 than its record; the file in the cache "
        "here is damaged (delete it and run again), or the disk there is",
    )


def _full(connection: Connection, name: str, needed: int, free: int | None) -> RemoteFailure:
    said = f", {free / MIB:.0f} MiB are free" if free is not None else ""
    return RemoteFailure(
        "disk_full",
        f"host {connection.label}: the disk of its folder is full: {needed / MIB:.0f} MiB are needed for {name}{said}",
    )


def _look(connection: Connection, values: dict[str, str]) -> tuple[str, int, int]:
    """(state, bytes of an unfinished copy, free bytes)."""
    answer = connection.run("look_at_model", values, timeout_s=HASH_TIMEOUT_S)
    words = answer.stdout.decode("utf-8", "replace").split()
    if answer.exit_code != 0 or len(words) != 3 or not (words[1].isdecimal() and words[2].isdecimal()):
        raise RemoteFailure("write", f"host {connection.label}: what lies below models/ there cannot be read")
    return words[0], int(words[1]), int(words[2]) * 1024


def _copy(connection: Connection, file: Path, values: dict[str, str | int], say: Callable[[str], None]) -> Answer:
    total = file.stat().st_size

    def feed(stream: IO[bytes]) -> None:
        told = time.monotonic()
        with file.open("rb") as source:
            source.seek(int(values["offset"]))
            while piece := source.read(PIECE):
                stream.write(piece)
                if time.monotonic() - told > SAY_EVERY_S:
                    told = time.monotonic()
                    say(f"{file.name} to host {connection.label}: {source.tell() / MIB:.0f} of {total / MIB:.0f} MiB")

    say(f"{file.name} to host {connection.label}: {(total - int(values['offset'])) / MIB:.0f} MiB")
    return connection.run("take_model", values, feed=feed, timeout_s=COPY_TIMEOUT_S)
