"""An engine's server on another machine: started there, reached through a tunnel, ended when we are gone.

One ssh process carries everything: the supervisor's script (serve.sh) and the lifeline on standard input, the
supervisor's answers on standard output, the engine's log on standard error, and the tunnel from 127.0.0.1 here to
127.0.0.1 there. ssh dies with this process, however that ends; the supervisor then reads the end of its input and kills
the engine with its whole group. Of a connection that was cut it hears nothing, so it also ends without a sign of life.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import threading
import time
from pathlib import Path, PurePosixPath

from findings.engine.arms import Launch
from findings.engine.client import Endpoint
from findings.engine.drivers import LAST_WORDS_S, PORT_ATTEMPTS, STOP_WAIT_S, free_port
from findings.engine.failure import EngineFailure
from findings.engine.limited_log import LOG_NAME, LimitedLog
from findings.engine.serving import ServingEngine, Usage
from findings.machine import LoadWatch, Sample, Snapshot
from findings.records import Outcome
from findings.remote.connection import Connection, RemoteFailure, close_input, compose, kill_group, send
from findings.remote.counters import Counters, Units, parse_counters

HEARTBEAT_S = 5.0
PATIENCE_S = 45
ANSWER_S = 15.0
CONNECT_S = 60.0
WATCH_PERIOD_S = 2.0
# What the supervisor writes after the last word of the engine's log.
LOGGED = b"\n@logged\n"
# Below the ports that systems give to outgoing connections.
FIRST_PORT, PORTS = 20000, 12000


class RemoteEngine(ServingEngine):
    """An engine's server behind ssh. Use it as a context manager, or call `stop()`."""

    poll_s = 0.2
    memory_poll_s = 1.0

    def __init__(
        self, connection: Connection, process: subprocess.Popen[bytes], log: LimitedLog, launch: Launch, ssh_log: Path
    ) -> None:
        super().__init__(log, launch)
        self._connection, self._process, self._ssh_log = connection, process, ssh_log
        self._news = threading.Condition()
        self._write = threading.Lock()
        self._begun = self._running = False
        self._refusal: RemoteFailure | None = None
        self._code: int | None = None
        self._units = Units()
        self._looks = 0
        self._counters: Counters | None = None
        self._first: Counters | None = None
        self._owner: bool | None = None
        self._silent = False
        self._oom_kills = 0
        self._taken = False
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._pump = threading.Thread(target=self._copy_log, daemon=True)
        self._heart = threading.Thread(target=self._beat, daemon=True)
        for thread in (self._listener, self._pump, self._heart):
            thread.start()

    @property
    def exit_code(self) -> int | None:
        """The engine's exit code as the supervisor tells it, negative for a signal; None while it runs."""
        return self._code

    @property
    def ssh_pid(self) -> int:
        """Process id of ssh on this machine."""
        return self._process.pid

    def log_text(self) -> str:
        """The log so far, head and tail, without the folder there."""
        return self._log.text().replace(self._connection.folder, "<folder>")

    def _copy_log(self) -> None:
        """Copy the engine's log until the supervisor says that it is whole; then let the supervisor go."""
        stream = self._process.stderr
        held = b""
        with contextlib.suppress(OSError, ValueError):
            while stream is not None and (data := stream.read1(65536)):  # type: ignore[attr-defined]
                data = held + data
                if data.endswith(LOGGED):
                    self._log.write(data.removesuffix(LOGGED))
                    close_input(self._process)
                    return
                held = data[len(data) - _begun(LOGGED, data) :]
                self._log.write(data[: len(data) - len(held)])
        self._log.write(held)

    def _beat(self) -> None:
        while not self._stopped.wait(HEARTBEAT_S) and self._code is None:
            if not self._say(b"."):
                return

    def _say(self, word: bytes) -> bool:
        with self._write:
            return send(self._process, word)

    def _listen(self) -> None:
        """Take the supervisor's lines until it, or the connection, has ended."""
        stream = self._process.stdout
        kept: list[str] | None = None
        gpu = ""
        with contextlib.suppress(OSError, ValueError):
            for raw in stream or ():
                line = raw.decode("utf-8", "replace").rstrip("\n")
                if not line.startswith("@"):
                    if kept is not None:
                        kept.append(line)
                    continue
                word, _, rest = line.partition(" ")
                if word == "@sample":
                    kept, gpu = [], ""
                elif word == "@gpu":
                    gpu = rest
                elif word == "@sampled":
                    self._look_taken("\n".join(kept or []), gpu)
                    kept = None
                else:
                    self._told(word, rest)
        with self._news:
            self._news.notify_all()

    def _look_taken(self, text: str, gpu: str) -> None:
        with contextlib.suppress(ValueError, IndexError):
            found = parse_counters(text, self._units, gpu)
            with self._news:
                self._looks += 1
                self._counters = found
                self._first = self._first or found
                self._news.notify_all()

    def _told(self, word: str, rest: str) -> None:
        with self._news:
            if word == "@begin":
                self._begun = True
            elif word == "@started":
                numbers = [int(part) if part.isdecimal() else 0 for part in rest.split()]
                if len(numbers) == 3 and all(numbers):
                    self._units = Units(*numbers)
                self._running = True
            elif word == "@silent":
                self._silent = True
            elif word == "@owner":
                self._owner = rest == "yes"
            elif word == "@ended":
                said, kills, taken = (*rest.split(" "), "", "")[:3]
                code = int(said) if said.isdecimal() else 0
                self._oom_kills = int(kills) if kills.isdecimal() else 0
                self._taken = taken == "taken"
                # The shell's 128 + n is a signal.
                self._code = 128 - code if 128 < code < 160 else code
            elif word in ("@absent", "@notexecutable"):
                self._refusal = self._connection.no_program(word)
            else:
                try:
                    self._connection.raise_for(f"{word} {rest}".strip().encode())
                except RemoteFailure as failure:
                    self._refusal = failure
            self._news.notify_all()

    def _lost(self) -> bool:
        """Whether the connection has ended without the supervisor having told how the engine did."""
        return self._process.poll() is not None and not self._listener.is_alive() and self._code is None

    def _ask(self, word: bytes) -> None:
        """Send a word and wait until an answer has come, at most ANSWER_S."""
        with self._news:
            looks, self._owner = self._looks, None
            if self._code is None and self._say(word):
                self._news.wait_for(
                    lambda: (
                        self._looks > looks
                        or self._owner is not None
                        or self._code is not None
                        or not self._listener.is_alive()
                    ),
                    ANSWER_S,
                )
            if word == b"s" and self._looks == looks:
                self._counters = None

    def look(self) -> Counters | None:
        """The counters of the engine's machine now; None where it does not answer or the engine is gone."""
        self._ask(b"s")
        return self._counters

    def usage(self) -> Usage:
        """What the engine has used so far; after its end the last values that were read."""
        found = self.look() if self._code is None else None
        if found is not None:
            self._last = Usage(
                cpu_s=found.engine_cpu_s,
                wall_s=time.monotonic() - self._started,
                rss_bytes=found.rss_bytes,
                peak_rss_bytes=max(found.peak_rss_bytes, self._last.peak_rss_bytes),
                swap_bytes=found.engine_swap_bytes,
            )
        return self._last

    def watch_load(self) -> LoadWatch:
        """A context manager that watches the other machine; its `report` is there once it has closed."""
        return LoadWatch(_RemoteLoad(self))

    @property
    def cores(self) -> int:
        """Cores that the engine may use there."""
        return self._units.cores

    def failure(self) -> EngineFailure | None:
        """Why the engine has ended, or cannot be reached any more; None while it runs or after `stop()`."""
        if self._refusal is not None:
            return self._refusal
        if (self._lost() or self._silent) and not self._asked_to_stop:
            if not self._begun:
                return self._connection.failed(self._process.poll() or 0, self._ssh_log)
            found = RemoteFailure(
                "lost",
                f"host {self._connection.label}: the connection was lost while the engine ran; it ends by itself there",
            )
            found.log = self.log_text()
            return found
        return super().failure()

    def wait_running(self, deadline: float) -> None:
        """Return when the supervisor has started the engine; raises EngineFailure where it cannot."""
        while True:
            with self._news:
                self._news.wait_for(
                    lambda: self._running or self._refusal is not None or not self._listener.is_alive(), 0.5
                )
            if self._running:
                return
            if not self._listener.is_alive():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(timeout=5)
            found = self.failure()
            if found is not None:
                raise found
            if time.monotonic() > deadline:
                raise RemoteFailure("timed_out", f"host {self._connection.label}: no start within {CONNECT_S:g} s")

    def _wait_for_end(self, seconds: float) -> None:
        with self._news:
            self._news.wait_for(lambda: self._code is not None or not self._listener.is_alive(), seconds)

    def _wait_for_last_words(self) -> None:
        self._pump.join(timeout=LAST_WORDS_S)

    def _oom_killed(self) -> bool:
        return self._first is not None and self._oom_kills > self._first.oom_kills

    def _port_is_taken(self) -> bool:
        return self._taken

    def _look_for_address(self) -> None:
        """Nothing to look for: the port was chosen here."""

    def _is_ours(self) -> bool:
        self._ask(b"o")
        return self._owner is True

    def stop(self) -> Usage:
        """End the engine there (terminate, wait, kill its whole group) and the connection; may be called twice."""
        if self._stopped.is_set():
            return self._last
        usage = self.usage()
        if self._code is None:
            self._asked_to_stop = True
            self._kill()
            self._wait_for_end(STOP_WAIT_S + ANSWER_S)
        self._stopped.set()
        close_input(self._process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_WAIT_S)
        self._pump.join(timeout=2.0)
        kill_group(self._process)
        self._finish_log()
        return usage

    def _kill(self) -> None:
        self._say(b"q")


class _RemoteLoad:
    """The machine of a RemoteEngine as a source for LoadWatch."""

    period_s = WATCH_PERIOD_S

    def __init__(self, engine: RemoteEngine) -> None:
        self._engine = engine

    def cores(self) -> int:
        """Cores that the engine may use there."""
        return self._engine.cores

    def snapshot(self) -> Snapshot | None:
        """The counters now."""
        found = self._engine.look()
        return found.snapshot() if found is not None else None

    def sample(self) -> Sample | None:
        """A look now."""
        found = self._engine.look()
        return found.sample() if found is not None else None


def _begun(mark: bytes, data: bytes) -> int:
    """How many of the last bytes of `data` may be the beginning of `mark`."""
    return next((count for count in range(len(mark) - 1, 0, -1) if data.endswith(mark[:count])), 0)


def start_remote_engine(
    connection: Connection,
    program: PurePosixPath,
    launch: Launch,
    workdir: Path,
    start_timeout_s: float,
    memory_limit_bytes: int = 0,
    patience_s: int = PATIENCE_S,
) -> RemoteEngine:
    """Start a llama-server there and wait until it is healthy.

    `program` is absolute or relative to the connection's folder, `launch` holds paths of the other machine, `workdir`
    (here) gets the log. `patience_s`: how long the other side waits for a sign of life. Raises EngineFailure as
    drivers.start_engine does, and RemoteFailure (unavailable) for the machine.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    for attempt in range(PORT_ATTEMPTS):
        try:
            return _start_once(connection, program, launch, workdir, start_timeout_s, memory_limit_bytes, patience_s)
        except EngineFailure as found:
            taken = found.cause == "local_port" if isinstance(found, RemoteFailure) else True
            # Only a taken port is worth another try; the next one gets other ports.
            last = attempt == PORT_ATTEMPTS - 1 or launch.fixed_port is not None
            if found.outcome is not Outcome.UNAVAILABLE or not taken or last:
                raise
    raise EngineFailure(Outcome.UNAVAILABLE, "no port")


def _start_once(
    connection: Connection,
    program: PurePosixPath,
    launch: Launch,
    workdir: Path,
    timeout_s: float,
    memory_limit: int,
    patience_s: int,
) -> RemoteEngine:
    """One attempt of `start_remote_engine`."""
    begun = time.monotonic()
    key = secrets.token_hex(16)
    here = free_port()
    there = launch.fixed_port or FIRST_PORT + secrets.randbelow(PORTS)
    values: dict[str, str | int] = {
        "folder": connection.folder,
        "program": str(program),
        "port": there,
        "key": key,
        "patience": patience_s,
        "grace": int(STOP_WAIT_S),
    }
    arguments = [*launch.flags, "--host", "127.0.0.1", "--port", str(there)]
    script = compose(["begin", "lifeline", "serve"], values, arguments)
    ssh_log = workdir / "ssh.log"
    ssh_log.unlink(missing_ok=True)
    log = LimitedLog(workdir / LOG_NAME)
    try:
        process = connection.start(script, ssh_log, (here, there))
    except BaseException:
        log.close()
        raise
    running = RemoteEngine(connection, process, log, launch, ssh_log)
    running.endpoint = Endpoint(f"http://127.0.0.1:{here}", key)
    try:
        running.wait_running(time.monotonic() + CONNECT_S)
        if memory_limit:
            running.watch_memory(memory_limit)
        running.wait_healthy(time.monotonic() + timeout_s, timeout_s)
    except BaseException:
        running.stop()
        raise
    running.startup_s = time.monotonic() - begun
    return running
