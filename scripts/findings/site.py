"""Where the engines of a job run: on this machine, or on another one over ssh. What measures asks only this."""

from __future__ import annotations

import contextlib
import fcntl
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from findings.cluster import node_of_job
from findings.config import Engine, RemoteHost
from findings.engine.arms import Launch
from findings.engine.drivers import start_engine
from findings.engine.failure import EngineFailure
from findings.engine.probe import failed_probe, probe
from findings.engine.serving import ServingEngine
from findings.interrupted import this_machine
from findings.programs import engine_program, program_sha256
from findings.records import Record
from findings.remote.site import RemoteSite


class Site(Protocol):
    """A machine that engines can run on. Paths are those of that machine; everything may raise EngineFailure."""

    def program(self, engine: Engine) -> Path:
        """The executable, or the Python, of an engine."""

    def program_sha256(self, engine: Engine, program: Path) -> str:
        """sha256 of the bytes that compute."""

    def model(self, file: Path, sha256: str) -> Path:
        """Where a model is that lies at `file` on this machine; brought there if need be."""

    def start(
        self,
        engine: Engine,
        program: Path,
        launch: Launch,
        workdir: Path,
        start_timeout_s: float,
        memory_limit_bytes: int = 0,
    ) -> ServingEngine:
        """A server that is healthy. `workdir` is here."""

    def probed(self, engine: Engine, host: str) -> Record:
        """The record of a probe; never raises for an engine."""

    def alone(self, label: str) -> AbstractContextManager[object]:
        """Hold the one lock of measurements on that machine; waits, and says so, while another one runs."""


@dataclass(frozen=True)
class Here:
    """This machine: records of what was fetched (`shared`) and the cache."""

    shared: Path
    cache: Path

    def program(self, engine: Engine) -> Path:
        """The executable, or the Python of an engine's environment. Raises EngineFailure(unavailable)."""
        return engine_program(engine, self.shared, self.cache)

    def program_sha256(self, engine: Engine, program: Path) -> str:
        """sha256 of the bytes that compute."""
        return program_sha256(engine, program)

    def model(self, file: Path, sha256: str) -> Path:
        """The file itself."""
        del sha256
        return file

    def start(
        self,
        engine: Engine,
        program: Path,
        launch: Launch,
        workdir: Path,
        start_timeout_s: float,
        memory_limit_bytes: int = 0,
    ) -> ServingEngine:
        """A server on this machine."""
        return start_engine(engine, program, launch, workdir, start_timeout_s, memory_limit_bytes)

    def probed(self, engine: Engine, host: str) -> Record:
        """The record of a probe; never raises for an engine."""
        try:
            return probe(engine, self.program(engine), host)
        except EngineFailure as failure:
            return failed_probe(engine, failure, host)

    def alone(self, label: str) -> AbstractContextManager[None]:
        """Hold this machine's lock of measurements."""
        return measuring_alone(self.cache, label)


def site_of(host: RemoteHost | None, shared: Path, cache: Path) -> Site:
    """Where the engines of a host run; a node of a cluster runs the job itself, so that is `here` for it."""
    return RemoteSite.of(host) if host is not None and host.ssh else Here(shared, cache)


@contextlib.contextmanager
def measuring_alone(cache: Path, label: str) -> Iterator[None]:
    """Hold the one lock that measurements of this machine share; waits, and says so, while another one runs.

    The lock is the kernel's: it is gone with the process that holds it, however that ends. Machines that share a
    cache have a lock each.
    """
    node = node_of_job()
    if node:
        print(f"[{label}] on node {node}", file=sys.stderr, flush=True)
    (cache / "locks").mkdir(parents=True, exist_ok=True)
    with (cache / "locks" / f"measuring-{this_machine()}.lock").open("a", encoding="utf-8") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"[{label}] another measurement runs on this machine; waiting for it", file=sys.stderr, flush=True)
            fcntl.flock(stream, fcntl.LOCK_EX)
        yield
