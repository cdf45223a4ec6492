"""What is the same for every engine whose server answers, wherever its process is: requests, its end, its health.

Subclasses own the process: drivers.RunningEngine one on this machine, remote.engine.RemoteEngine one behind ssh.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from findings.engine import client
from findings.engine.arms import Launch
from findings.engine.client import Completion, Endpoint
from findings.engine.failure import EngineFailure, classify_exit, decisive_line
from findings.engine.limited_log import LimitedLog
from findings.machine import LoadWatch
from findings.records import Outcome


@dataclass(frozen=True)
class Usage:
    """What an engine used so far: CPU seconds (user and system, children included), bytes, wall seconds."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    rss_bytes: int = 0
    peak_rss_bytes: int = 0
    swap_bytes: int = 0


class ServingEngine(ABC):
    """An engine's server that answers. Use it as a context manager, or call `stop()`."""

    poll_s = 0.05
    memory_poll_s = 0.2

    def __init__(self, log: LimitedLog, launch: Launch) -> None:
        self._log = log
        self._last = Usage()
        self._limit = 0
        self._over_limit = False
        self._asked_to_stop = False
        self._stopped = threading.Event()
        self._started = time.monotonic()
        self.launch = launch
        self.endpoint = Endpoint("")
        self.startup_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def base_url(self) -> str:
        """Where the server answers, `http://127.0.0.1:<port>`."""
        return self.endpoint.url

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""

    @abstractmethod
    def usage(self) -> Usage:
        """What the engine has used so far; after its end the last values that were read."""

    @abstractmethod
    def stop(self) -> Usage:
        """End the engine with everything that it started and return what it used; may be called twice."""

    @abstractmethod
    def watch_load(self) -> LoadWatch:
        """A context manager that watches the engine's machine; its `report` is there once it has closed."""

    @abstractmethod
    def _wait_for_end(self, seconds: float) -> None:
        """Return when the engine has ended, at the latest after `seconds`."""

    @abstractmethod
    def _wait_for_last_words(self) -> None:
        """Return when the log of an ended engine is whole; on a busy machine its last lines, the reason, come late."""

    @abstractmethod
    def _kill(self) -> None:
        """Kill the engine with its whole process group."""

    @abstractmethod
    def _oom_killed(self) -> bool:
        """Whether the kernel of the engine's machine has counted an out-of-memory kill since the start."""

    @abstractmethod
    def _is_ours(self) -> bool:
        """Whether the engine itself listens at its port: on a taken port somebody else's server is what answers.

        True where the system does not let us look (the engine's own exit tells then).
        """

    @abstractmethod
    def _port_is_taken(self) -> bool:
        """Whether another program listens at the port of an engine that has ended."""

    @abstractmethod
    def _look_for_address(self) -> None:
        """Fill in the endpoint where the engine chooses its port itself."""

    def log_text(self) -> str:
        """The log so far, head and tail."""
        return self._log.text()

    def log_sha256(self) -> str:
        """sha256 of the whole log so far, also of what was left out of the text."""
        return self._log.sha256()

    def watch_memory(self, limit_bytes: int) -> None:
        """Kill the engine as soon as its resident memory goes above `limit_bytes`."""
        self._limit = limit_bytes

        def watch() -> None:
            while not self._stopped.wait(self.memory_poll_s) and self.exit_code is None:
                if self._is_beyond_limit():
                    return

        threading.Thread(target=watch, daemon=True).start()

    def _is_beyond_limit(self) -> bool:
        """Whether the engine uses more memory than it may; it is killed then. One that starts faster than the watch
        looks must not count as started."""
        if not self._limit or self.usage().rss_bytes <= self._limit:
            return False
        self._over_limit = True
        self._kill()
        return True

    def failure(self) -> EngineFailure | None:
        """Why the engine has ended although nobody asked it to; None while it runs or after `stop()`."""
        code = self.exit_code
        if code is None or self._asked_to_stop:
            return None
        self._wait_for_last_words()
        log = self.log_text()
        if self._over_limit:
            reason = f"killed by the pipeline: resident memory above the limit of {self._limit / 2**20:.0f} MiB"
            return EngineFailure(Outcome.OUT_OF_MEMORY, reason, log, code)
        outcome, reason = classify_exit(code, log, self._oom_killed())
        # llama-server writes its log from a thread of its own and may end without having said why.
        if outcome is Outcome.CRASHED and code > 0 and not log.strip() and self._port_is_taken():
            outcome = Outcome.UNAVAILABLE
            reason = "it ended without a word; it could not bind to its port, which is taken"
        return EngineFailure(outcome, reason, log, code)

    def explain(self, failure: EngineFailure) -> EngineFailure:
        """The better of two reasons: that of the process's end, where it has ended, else the client's own."""
        if failure.outcome is not Outcome.TIMED_OUT:
            self._wait_for_end(1.0)  # a dying process first closes its connections
        found = self.failure()
        if found is None:
            return EngineFailure(failure.outcome, failure.reason, self.log_text(), failure.exit_code)
        return EngineFailure(found.outcome, f"{found.reason} (during a request)", found.log, found.exit_code)

    def complete(self, prompt: str, n_predict: int, timeout_s: float, seed: int = 1) -> Completion:
        """`client.complete` on this server; a crash of the engine during it is reported as that.

        Raises EngineFailure.
        """
        try:
            completion = client.complete(self.endpoint, prompt, n_predict, timeout_s, seed=seed)
        except EngineFailure as failure:
            raise self.explain(failure) from failure
        self.usage()
        return completion

    def wait_healthy(self, deadline: float, timeout_s: float) -> None:
        """Return when the server says it is healthy; raise EngineFailure when it ends, or does not within the time.

        `deadline` is of time.monotonic(); `timeout_s`, the time that was given, is only for the message.
        """
        while True:
            found = self.failure()
            if found is not None:
                raise found
            self._look_for_address()
            healthy = bool(self.endpoint.url) and client.healthy(self.endpoint, timeout_s=2.0)
            if healthy and self.failure() is None and self._is_ours() and not self._is_beyond_limit():
                return
            if time.monotonic() > deadline:
                log = self.log_text()
                last = decisive_line(log) or next((line for line in reversed(log.splitlines()) if line.strip()), "")
                raise EngineFailure(
                    Outcome.TIMED_OUT,
                    f"not healthy within {timeout_s:g} s; last words: {last.strip() or 'no log'}",
                    log,
                )
            self.usage()
            self._stopped.wait(self.poll_s)

    def _finish_log(self) -> None:
        """Close the log's file; nothing comes any more."""
        with contextlib.suppress(OSError, ValueError):
            self._log.close()
