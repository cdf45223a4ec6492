"""Starts an engine's HTTP server in a process of its own, watches it, and always ends it.

All drivers (the binding's server inside a Python process, a llama-server binary, and our host process for
transformers) listen on 127.0.0.1 at a port that nobody chose beforehand, with a random API key. The process is the
leader of a session of its own and dies with us, also after `kill -9` (launcher.py): **start engines from a thread that
lives as long as they should**, since Linux binds the parent-death signal to the thread that started the child.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from findings.config import Engine
from findings.engine import client
from findings.engine.arms import Launch
from findings.engine.client import Completion, Endpoint
from findings.engine.failure import EngineFailure, classify_exit, decisive_line, oom_kills
from findings.engine.probe import HOST_SCRIPTS, engine_environment
from findings.records import Outcome, write_text

LAUNCHER = Path(__file__).with_name("launcher.py")
LOG_HEAD_BYTES = 512 * 1024
LOG_TAIL_BYTES = 512 * 1024
STOP_WAIT_S = 5.0
# How long the last lines of a dead engine may take: on a busy machine they come late, and they hold the reason.
LAST_WORDS_S = 10.0
POLL_S = 0.05
PORT_ATTEMPTS = 3
LOG_NAME = "engine.log"


class LimitedLog:
    """The first and the last bytes of a stream, the sha256 and length of all of it; memory stays bounded.

    The head is written to the file as it comes; the tail when the stream ends.
    """

    def __init__(self, path: Path, head: int = LOG_HEAD_BYTES, tail: int = LOG_TAIL_BYTES) -> None:
        self._file = path.open("wb")
        self._head_limit, self._tail_limit = head, tail
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._hash = hashlib.sha256()
        self._lock = threading.Lock()
        self.total_bytes = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        with self._lock:
            self._hash.update(data)
            self.total_bytes += len(data)
            room = self._head_limit - len(self._head)
            if room > 0:
                self._head += data[:room]
                with contextlib.suppress(OSError, ValueError):  # a full disk must not stop the engine's pipe
                    self._file.write(data[:room])
                    self._file.flush()
                data = data[room:]
            if data:
                self._tail.append(data)
                self._tail_bytes += len(data)
                while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
                    self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> str:
        """Head and tail as text, with a line that says how much is left out between them."""
        with self._lock:
            head, tail = bytes(self._head), b"".join(self._tail)[-self._tail_limit :]
            left_out = self.total_bytes - len(head) - len(tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return (head + middle + tail).decode("utf-8", "replace")

    def sha256(self) -> str:
        """sha256 of the whole stream so far, as hex."""
        with self._lock:
            return self._hash.hexdigest()

    def close(self) -> None:
        """Write the tail to the file and close it."""
        text = self.text()
        with contextlib.suppress(OSError, ValueError):
            self._file.seek(0)
            self._file.truncate()
            self._file.write(text.encode("utf-8", "replace"))
            self._file.close()


@dataclass(frozen=True)
class Usage:
    """What an engine used so far: CPU seconds (user and system, children included), bytes, wall seconds."""

    cpu_s: float = 0.0
    wall_s: float = 0.0
    rss_bytes: int = 0
    peak_rss_bytes: int = 0
    swap_bytes: int = 0


def _status_bytes(pid: int, key: str) -> int:
    """A value of /proc/<pid>/status in bytes (VmHWM, VmSwap), 0 where it cannot be read."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            name, _, value = line.partition(":")
            if name == key:
                return int(value.split()[0]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return 0


def free_port() -> int:
    """A port of 127.0.0.1 that was free a moment ago, chosen by the kernel."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def locate_binary(engine: Engine, environment_python: Path | None = None, configured: str = "") -> Path:
    """The llama-server executable of an engine.

    In order: `configured` (the user's path), the engine's `binary` as a path or as a name on PATH, and, with an
    environment, the path inside its site-packages or the executable of that name anywhere below it.
    Raises EngineFailure(unavailable) with what was tried.
    """
    name = configured or engine.binary or "llama-server"
    if environment_python is not None and not configured:
        root = environment_python.parent.parent
        leaf = Path(name).name
        inside = [path for path in root.rglob(leaf) if path.is_file() and os.access(path, os.X_OK)]
        # bin/ holds a Python starter of that name where the wheel declares one; the real one is deeper.
        inside.sort(key=lambda path: (path.parent == environment_python.parent, len(path.parts), str(path)))
        matching = [path for path in inside if path.as_posix().endswith(name)]
        if matching or inside:
            return (matching or inside)[0]
        raise EngineFailure(Outcome.UNAVAILABLE, f"no executable {leaf} in the environment {engine.environment}")
    direct = Path(name).expanduser()
    if direct.is_file() and os.access(direct, os.X_OK):
        return direct.resolve()
    found = shutil.which(name)
    if found:
        return Path(found).resolve()
    raise EngineFailure(
        Outcome.UNAVAILABLE, f"{engine.id}: {direct.name} is neither an executable file nor a name on PATH"
    )


class RunningEngine:
    """An engine's server that answers. Use it as a context manager, or call `stop()`."""

    def __init__(self, process: subprocess.Popen[bytes], log: LimitedLog, launch: Launch, workdir: Path) -> None:
        self._process, self._log, self._workdir = process, log, workdir
        self._started = time.monotonic()
        self._oom_before = oom_kills()
        self._last = Usage()
        self._limit = 0
        self._over_limit = False
        self._asked_to_stop = False
        self._stopped = threading.Event()
        self.launch = launch
        self.endpoint = Endpoint("")
        self.startup_s = 0.0
        self._pump = threading.Thread(target=self._copy_log, daemon=True)
        self._pump.start()

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
    def pid(self) -> int:
        """Process id of the engine (also its process group)."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def log_text(self) -> str:
        """The log so far, head and tail."""
        return self._log.text()

    def log_sha256(self) -> str:
        """sha256 of the whole log so far, also of what was left out of the text."""
        return self._log.sha256()

    def _copy_log(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(stream.fileno(), 65536):
                self._log.write(data)

    def watch_memory(self, limit_bytes: int) -> None:
        """Kill the engine as soon as its resident memory goes above `limit_bytes` (looked at five times a second)."""
        self._limit = limit_bytes

        def watch() -> None:
            while not self._stopped.wait(0.2) and self._process.poll() is None:
                if self.usage().rss_bytes > limit_bytes:
                    self._over_limit = True
                    self._kill_group()
                    return

        threading.Thread(target=watch, daemon=True).start()

    def usage(self) -> Usage:
        """What the engine has used so far; after its end the last values that were read."""
        try:
            process = psutil.Process(self.pid)
            cpu = 0.0
            rss = 0
            for one in [process, *process.children(recursive=True)]:
                times = one.cpu_times()
                cpu += times.user + times.system
                rss += int(one.memory_info().rss)
        except psutil.Error:
            return self._last
        if cpu <= 0.0 and rss == 0:  # a zombie
            return self._last
        self._last = Usage(
            cpu_s=cpu,
            wall_s=time.monotonic() - self._started,
            rss_bytes=rss,
            peak_rss_bytes=max(_status_bytes(self.pid, "VmHWM"), rss, self._last.peak_rss_bytes),
            swap_bytes=_status_bytes(self.pid, "VmSwap"),
        )
        return self._last

    def failure(self) -> EngineFailure | None:
        """Why the engine has ended although nobody asked it to; None while it runs or after `stop()`."""
        code = self._process.poll()
        if code is None or self._asked_to_stop:
            return None
        self._pump.join(timeout=LAST_WORDS_S)
        log = self.log_text()
        if self._over_limit:
            reason = f"killed by the pipeline: resident memory above the limit of {self._limit / 2**20:.0f} MiB"
            return EngineFailure(Outcome.OUT_OF_MEMORY, reason, log, code)
        outcome, reason = classify_exit(code, log, oom_kills() > self._oom_before)
        return EngineFailure(outcome, reason, log, code)

    def explain(self, failure: EngineFailure) -> EngineFailure:
        """The better of two reasons: that of the process's end, where it has ended, else the client's own."""
        if failure.outcome is not Outcome.TIMED_OUT:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=1.0)  # a dying process first closes its connections
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

    def stop(self) -> Usage:
        """End the engine (terminate, wait, kill its whole group) and return what it used; may be called twice."""
        usage = self.usage()
        if self._process.poll() is None:
            self._asked_to_stop = True
            with contextlib.suppress(OSError):
                self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=STOP_WAIT_S)
        self._kill_group()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=STOP_WAIT_S)
        if not self._stopped.is_set():
            self._stopped.set()
            self._pump.join(timeout=2.0)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._log.close()
        return usage

    def _kill_group(self) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)


def _spawn(argv: Sequence[str], env: Mapping[str, str], workdir: Path, address_space: int) -> subprocess.Popen[bytes]:
    """Start `argv` through the launcher: own session, dies with us, stdout and stderr into one pipe."""
    starter = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid()), str(address_space), *argv]
    return subprocess.Popen(
        starter,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=workdir,
        env=dict(env),
        start_new_session=True,
    )


def start_engine(
    engine: Engine,
    python_or_binary: Path,
    launch: Launch,
    workdir: Path,
    start_timeout_s: float,
    memory_limit_bytes: int = 0,
    address_space_bytes: int = 0,
) -> RunningEngine:
    """Start an engine's server and wait until it is healthy.

    `python_or_binary`: the environment's Python, or the executable of a llama-server. `workdir` gets the log and the
    driver's files. `memory_limit_bytes` bounds the resident memory, `address_space_bytes` the virtual one (0: none).
    Raises EngineFailure (refused, crashed, timed_out, out_of_memory, unavailable) with the engine's own words; no
    process is left then.
    """
    workdir.mkdir(parents=True, exist_ok=True)
    failure: EngineFailure | None = None
    for _ in range(PORT_ATTEMPTS):
        try:
            return _start_once(
                engine,
                python_or_binary.absolute(),
                launch,
                workdir,
                start_timeout_s,
                memory_limit_bytes,
                address_space_bytes,
            )
        except EngineFailure as found:
            failure = found
            # Only a taken port is worth another try; the next one gets another port.
            if found.outcome is not Outcome.UNAVAILABLE or launch.fixed_port is not None:
                raise
    raise failure if failure else EngineFailure(Outcome.UNAVAILABLE, "no port")


def _start_once(
    engine: Engine,
    program: Path,
    launch: Launch,
    workdir: Path,
    timeout_s: float,
    memory_limit: int,
    address_space: int,
) -> RunningEngine:
    """One attempt of `start_engine`."""
    begun = time.monotonic()
    key = secrets.token_hex(16)
    status = workdir / "status.json"
    status.unlink(missing_ok=True)
    if engine.driver.in_python:
        settings = workdir / "settings.json"
        values = dict(launch.settings)
        if launch.fixed_port is not None:
            values["port"] = launch.fixed_port
        write_text(settings, json.dumps(values, indent=1) + "\n")
        script = str(HOST_SCRIPTS[engine.driver])
        argv = [str(program), "-I", script, "serve", str(settings.absolute()), str(status.absolute())]
        env = engine_environment({"FINDINGS_ENGINE_KEY": key})
        endpoint = Endpoint("", key)
    else:
        port = launch.fixed_port or free_port()
        argv = [str(program), *launch.flags, "--host", "127.0.0.1", "--port", str(port)]
        env = engine_environment({"LLAMA_API_KEY": key})
        endpoint = Endpoint(f"http://127.0.0.1:{port}", key)
    log = LimitedLog(workdir / LOG_NAME)
    try:
        process = _spawn(argv, env, workdir, address_space)
    except OSError as error:
        log.close()
        raise EngineFailure(Outcome.UNAVAILABLE, f"cannot start {program.name}: {error.strerror}") from error
    running = RunningEngine(process, log, launch, workdir)
    running.endpoint = endpoint
    if memory_limit:
        running.watch_memory(memory_limit)
    try:
        _wait_healthy(running, status, begun + timeout_s, timeout_s)
    except BaseException as error:
        running.stop()
        if isinstance(error, EngineFailure):
            error.log_sha256 = running.log_sha256()
        raise
    running.startup_s = time.monotonic() - begun
    return running


def _wait_healthy(running: RunningEngine, status: Path, deadline: float, timeout_s: float) -> None:
    """Return when the server says it is healthy; raise EngineFailure when it ends, or does not within the time."""
    while True:
        found = running.failure()
        if found is not None:
            raise found
        if not running.endpoint.url:
            address = _address(status)
            if address:
                running.endpoint = Endpoint(address, running.endpoint.key)
        healthy = bool(running.endpoint.url) and client.healthy(running.endpoint, timeout_s=2.0)
        if healthy and running.failure() is None and _is_ours(running):
            return
        if time.monotonic() > deadline:
            log = running.log_text()
            last = decisive_line(log) or next((line for line in reversed(log.splitlines()) if line.strip()), "no log")
            raise EngineFailure(
                Outcome.TIMED_OUT, f"not healthy within {timeout_s:g} s; last words: {last.strip()}", log
            )
        running.usage()
        time.sleep(POLL_S)


def _is_ours(running: RunningEngine) -> bool:
    """Whether the engine itself listens at its address: on a taken port somebody else's server is the one that answers.

    True where the system does not let us look (the engine's own exit tells then).
    """
    port = int(running.endpoint.url.rpartition(":")[2])
    try:
        process = psutil.Process(running.pid)
        found = [one for member in (process, *process.children()) for one in member.net_connections("tcp")]
    except psutil.AccessDenied:
        return True
    except psutil.Error:
        return False
    return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found)


def _address(status: Path) -> str:
    """The address that a host process reports, "" while there is none (its errors are in the log)."""
    try:
        return str(json.loads(status.read_text(encoding="utf-8")).get("address", ""))
    except (OSError, ValueError):
        return ""
