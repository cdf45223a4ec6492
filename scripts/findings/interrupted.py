"""Going on after an interruption: a lock that nobody holds, a marker on a session that is whole, a job left alone.

Snakemake leaves its lock behind when it is killed, and takes every output that it saw begin and not end for half a
file. Here neither has to trouble the user: the kernel knows whether another run is alive, and records appear by rename.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import fcntl
import os
import platform
import select
import shutil
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import IO

import psutil

from findings.records import Kind, RecordError, read_record

WORKFLOW_VARIABLE = "FINDINGS_WORKFLOW"
COMPLETE = "complete.json"
LAUNCHER = Path(__file__).parent / "engine" / "launcher.py"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
END_WAIT_S = 15.0
POLL_S = 1.0
_HELD: list[IO[str]] = []


def hold_folder(state: Path) -> bool:
    """Become the one run that works in a folder, and remove the lock of a run that was killed; whether that worked.

    `state` is the folder `.snakemake`. The lock is the kernel's (released however its holder ends, and no job inherits
    it), so whoever gets it knows that no other run lives and that Snakemake's own lock files are left over. Where
    another process holds it, Snakemake itself decides, and this process takes it over when that one ends: the other
    may only have been listing things. Held until this process ends.
    """
    state.mkdir(parents=True, exist_ok=True)
    stream = (state / "findings.lock").open("a", encoding="utf-8")
    _HELD.append(stream)
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        threading.Thread(target=fcntl.flock, args=(stream, fcntl.LOCK_EX), daemon=True).start()
        return False
    shutil.rmtree(state / "locks", ignore_errors=True)
    return True


def whole_sessions(state: Path, records: Path) -> list[Path]:
    """Snakemake's markers (below .snakemake/incomplete) on sessions of `records` that are whole all the same.

    A session's record is written by rename, and its run is closed (complete.json) after it. Where both are there, the
    run was killed before Snakemake took note: measuring it again would throw the blocks away.
    """
    found = []
    folder = state / "incomplete"
    for marker in sorted(path for path in folder.rglob("*") if path.is_file()):
        path = _marked(marker, folder)
        if path is not None and path.is_relative_to(records) and _is_whole(path):
            found.append(marker)
    return found


def _marked(marker: Path, folder: Path) -> Path | None:
    """The output that a marker is about: its name in base64, long ones in pieces that begin with @."""
    name = "".join(part.removeprefix("@") for part in marker.relative_to(folder).parts)
    try:
        return Path(base64.b64decode(name.encode("ascii"), altchars=b"-_", validate=True).decode("utf-8"))
    except (binascii.Error, UnicodeError, ValueError):
        return None


def _is_whole(path: Path) -> bool:
    try:
        record = read_record(path)
    except RecordError:
        return False
    run = str(record.detail.get("run", ""))
    return record.kind is Kind.SESSION and bool(run) and (path.parent / run / COMPLETE).exists()


def this_machine() -> str:
    """What tells this machine from others that see the same folder: the kernel's id of its start, else its name."""
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return platform.node()


def export_this_run() -> None:
    """Tell the jobs which process they belong to: its id, its birth (ids are used again), and its machine."""
    os.environ[WORKFLOW_VARIABLE] = f"{os.getpid()}:{birth(os.getpid())}:{this_machine()}"


def with_us(argv: Sequence[str]) -> list[str]:
    """The command that runs `argv` so that it ends with this process, also after `kill -9` (engine/launcher.py).

    Start it from the main thread: Linux binds this to the thread that starts the child.
    """
    program, *rest = argv
    starter = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), "0"]
    return [*starter, str(Path(program).absolute()), *rest]


def end_with_workflow() -> None:
    """End this job when the run that started it is gone, also after `kill -9`: nobody waits for it any more.

    The next run goes on with what is on disk; a job left alone would measure beside it. SIGTERM becomes SystemExit, so
    that engines are stopped and temporary files removed. A tool that was started by hand is left as it is, and so is
    a job on another machine, where that process cannot be seen: its scheduler ends it (see cluster.end_left_jobs).
    """
    pid, _, rest = os.environ.get(WORKFLOW_VARIABLE, "").partition(":")
    created, _, machine = rest.partition(":")
    if not pid.isdecimal() or not created or machine != this_machine():
        return
    signal.signal(signal.SIGTERM, _leave)
    threading.Thread(target=_watch, args=(int(pid), created), daemon=True).start()


def _leave(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def _watch(pid: int, created: str) -> None:
    _wait_for_end(pid, created)
    # To the main thread, which may wait for an engine: a signal that another thread takes would not wake it.
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)
    time.sleep(END_WAIT_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _wait_for_end(pid: int, created: str) -> None:
    """Return when the process is gone: at once where the system can tell, else within a second."""
    handle = -1
    with contextlib.suppress(AttributeError, OSError):
        handle = os.pidfd_open(pid)
    try:
        while birth(pid) == created:
            if handle >= 0:
                select.select([handle], [], [])
            else:
                time.sleep(POLL_S)
    finally:
        if handle >= 0:
            os.close(handle)


def birth(pid: int) -> str:
    """What tells a living process from a later one with its id; "" where it has ended.

    On Linux the clock ticks from the start of the machine to its own. As a time of day it would move whenever somebody
    sets the clock, and every job that begins after that would take its workflow for dead.
    """
    if sys.platform.startswith("linux"):
        try:
            state, *fields = (
                Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            )
        except (OSError, ValueError):
            return ""
        return "" if state in "ZX" else fields[18]
    try:
        process = psutil.Process(pid)
        return "" if process.status() == psutil.STATUS_ZOMBIE else repr(process.create_time())
    except psutil.Error:
        return ""
