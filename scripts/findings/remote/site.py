"""Another machine as a site of engines (findings/site.py): models are copied there, servers started behind a tunnel."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from findings.config import Engine, RemoteHost
from findings.engine.arms import Launch
from findings.engine.probe import failed_probe, probe
from findings.engine.serving import ServingEngine
from findings.host import HostFacts, host_record
from findings.records import Outcome, Record
from findings.remote.connection import Connection, RemoteFailure, connection_to
from findings.remote.engine import start_remote_engine
from findings.remote.files import ensure_model_there
from findings.remote.lock import RemoteLock
from findings.remote.machine import facts_there
from findings.remote.programs import asker, program_sha256_there, program_there


@dataclass
class RemoteSite:
    """A machine over ssh; its executables by engine id. What was found once in this process is not asked again."""

    connection: Connection
    executables: dict[str, str]
    _hashes: dict[PurePosixPath, str] = field(default_factory=dict)
    _models: dict[str, Path] = field(default_factory=dict)
    _lock: RemoteLock | None = None

    @classmethod
    def of(cls, host: RemoteHost) -> RemoteSite:
        """The site of a configured machine. Raises ValueError for a destination or folder that cannot be used."""
        return cls(connection_to(host), dict(host.executables))

    def program(self, engine: Engine) -> Path:
        """The absolute path there of an engine's executable (whether it exists, its use tells)."""
        executable = self.executables.get(engine.id, "")
        if not executable:
            raise RemoteFailure(
                "program",
                f"host {self.connection.label}: no executable of {engine.id} is named; add it to `executables:` of "
                "this host in config/config.yaml",
            )
        return Path(program_there(self.connection, executable))

    def program_sha256(self, engine: Engine, program: Path) -> str:
        """sha256 of the executable and the libraries beside it, computed there."""
        del engine
        path = PurePosixPath(program)
        if path not in self._hashes:
            self._hashes[path] = program_sha256_there(self.connection, path)
        return self._hashes[path]

    def model(self, file: Path, sha256: str) -> Path:
        """Where the model is there; it is copied unless it is there already."""
        if sha256 not in self._models:
            self._models[sha256] = Path(ensure_model_there(self.connection, file, sha256, self._say))
        return self._models[sha256]

    def start(
        self,
        engine: Engine,
        program: Path,
        launch: Launch,
        workdir: Path,
        start_timeout_s: float,
        memory_limit_bytes: int = 0,
    ) -> ServingEngine:
        """A server there that answers on a port of 127.0.0.1 here."""
        del engine
        if self._lock is not None and not self._lock.is_held():
            raise RemoteFailure(
                "lost", f"host {self.connection.label}: the connection that holds its lock was lost; run it again"
            )
        path = PurePosixPath(program)
        return start_remote_engine(self.connection, path, launch, workdir, start_timeout_s, memory_limit_bytes)

    def probed(self, engine: Engine, host: str) -> Record:
        """The record of a probe there; never raises for an engine or the machine."""
        try:
            program = self.program(engine)
            return probe(engine, program, host, ask=asker(self.connection, PurePosixPath(program)))
        except RemoteFailure as failure:
            return failed_probe(engine, failure, host)

    @contextlib.contextmanager
    def alone(self, label: str) -> Iterator[None]:
        """Hold that machine's lock of measurements. Raises RemoteFailure."""
        with RemoteLock(self.connection, label) as lock:
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None

    def described(self) -> Record:
        """The host record of that machine; `unavailable`, with empty facts, where it cannot be reached."""
        try:
            return host_record(facts_there(self.connection))
        except RemoteFailure as failure:
            blank = host_record(HostFacts(self.connection.label, "", "", "", 0, 0))
            return replace(blank, outcome=Outcome.UNAVAILABLE, reason=failure.reason)

    def _say(self, text: str) -> None:
        print(f"[host {self.connection.label}] {text}", file=sys.stderr, flush=True)
