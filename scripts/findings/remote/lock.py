"""The lock of measurements on another machine: two pipelines never measure there at the same time.

It is flock's, on <folder>/measuring.lock, held by a process there that lives as long as this one and the connection.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

from findings.remote.connection import (
    Connection,
    RemoteFailure,
    close_input,
    compose,
    kill_group,
    send,
)
from findings.remote.engine import HEARTBEAT_S, PATIENCE_S


class RemoteLock:
    """Context manager: waits, and says so, while another pipeline measures there; raises RemoteFailure."""

    def __init__(self, connection: Connection, label: str, patience_s: int = PATIENCE_S) -> None:
        self._connection, self._label, self._patience = connection, label, patience_s
        self._stop = threading.Event()
        self._place = tempfile.TemporaryDirectory(prefix="findings-lock-")

    def __enter__(self) -> Self:
        log = Path(self._place.name) / "ssh.log"
        values: dict[str, str | int] = {"folder": self._connection.folder, "patience": self._patience}
        script = compose(["begin", "lifeline", "hold_lock"], values)
        try:
            self._process = self._connection.start(script, log)
            threading.Thread(target=self._beat, daemon=True).start()
            self._wait_for_it(log)
        except BaseException:
            self._release()
            raise
        # Nobody reads its standard error, where nothing is expected; its end tells all.
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()

    def is_held(self) -> bool:
        """Whether the connection that holds the lock still lives."""
        return self._process.poll() is None

    def _beat(self) -> None:
        while not self._stop.wait(HEARTBEAT_S):
            if not send(self._process, b"."):
                return

    def _wait_for_it(self, log: Path) -> None:
        begun = False
        for raw in self._process.stdout or ():
            line = raw.decode("utf-8", "replace").strip()
            begun = begun or line == "@begin"
            if line == "@waiting":
                said = f"another measurement runs on host {self._connection.label}; waiting for it"
                print(f"[{self._label}] {said}", file=sys.stderr, flush=True)
            elif line == "@locked":
                return
            elif line == "@nolock":
                raise RemoteFailure(
                    "read_only", f"host {self._connection.label}: measuring.lock in its folder cannot be written"
                )
            elif begun:
                self._connection.raise_for(line.encode())
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        if not begun:
            raise self._connection.failed(self._process.poll() or 0, log)
        raise RemoteFailure("lost", f"host {self._connection.label}: the connection was lost; run it again")

    def _release(self) -> None:
        self._stop.set()
        process: subprocess.Popen[bytes] | None = getattr(self, "_process", None)
        if process is not None:
            send(process, b"q")
            close_input(process)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=5)
            kill_group(process)
        self._place.cleanup()
