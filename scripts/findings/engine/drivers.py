"""Starts an engine's HTTP server in a process of its own, watches it, and always ends it.

All drivers (the binding's server inside a Python process, a llama-server binary, and our host process for
transformers) listen on 127.0.0.1 at a port that nobody chose beforehand, with a random API key. The process is the
leader of a session of its own and dies with us, also after `kill -9` (launcher.py): **start engines from a thread that
lives as long as they should**, since Linux binds the parent-death signal to the thread that started the child.
"""

from __future__ import annotations

import contextlib
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
from collections.abc import Mapping, Sequence
from pathlib import Path, PureWindowsPath

import psutil

from findings.config import Engine
from findings.engine.arms import Launch
from findings.engine.client import Endpoint
from findings.engine.failure import EngineFailure, oom_kills
from findings.engine.limited_log import LOG_NAME, LimitedLog
from findings.engine.probe import HOST_SCRIPTS, engine_environment
from findings.engine.serving import ServingEngine, Usage
from findings.machine import LoadWatch, LocalLoad
from findings.records import Outcome, write_text

LAUNCHER = Path(__file__).with_name("launcher.py")
# Builds up to 9713 never end when they are asked to, and what they had to say was read before: little is waited for.
STOP_WAIT_S = 1.0
REAP_WAIT_S = 5.0
# How long the last lines of a dead engine may take: on a busy machine they come late, and they hold the reason.
LAST_WORDS_S = 10.0
PORT_ATTEMPTS = 3
STATUS_NAME = "status.json"


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
    windows = PureWindowsPath(name)
    if windows.drive and os.name != "nt":
        here = f"/mnt/{windows.drive[0].lower()}/{'/'.join(windows.parts[1:])}"
        raise EngineFailure(
            Outcome.UNAVAILABLE,
            f"{engine.id}: {name} is a path of Windows, and this is not Windows; under WSL write {here}",
        )
    raise EngineFailure(
        Outcome.UNAVAILABLE, f"{engine.id}: {direct.name} is neither an executable file nor a name on PATH"
    )


class RunningEngine(ServingEngine):
    """An engine's server on this machine. Use it as a context manager, or call `stop()`."""

    def __init__(self, process: subprocess.Popen[bytes], log: LimitedLog, launch: Launch, workdir: Path) -> None:
        super().__init__(log, launch)
        self._process, self._workdir = process, workdir
        self._oom_before = oom_kills()
        self._pump = threading.Thread(target=self._copy_log, daemon=True)
        self._pump.start()

    @property
    def pid(self) -> int:
        """Process id of the engine (also its process group)."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Exit code, negative for a signal; None while it runs."""
        return self._process.poll()

    def _port_is_taken(self) -> bool:
        port = self.endpoint.url.rpartition(":")[2]
        if not port.isdecimal():
            return False
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            return probe.connect_ex(("127.0.0.1", int(port))) == 0

    def _copy_log(self) -> None:
        stream = self._process.stdout
        if stream is None:
            return
        with contextlib.suppress(OSError, ValueError):
            while data := os.read(stream.fileno(), 65536):
                self._log.write(data)

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

    def watch_load(self) -> LoadWatch:
        """A context manager that watches this machine; its `report` is there once it has closed."""
        return LoadWatch(LocalLoad(self.pid))

    def _wait_for_end(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=seconds)

    def _wait_for_last_words(self) -> None:
        self._pump.join(timeout=LAST_WORDS_S)

    def _oom_killed(self) -> bool:
        return oom_kills() > self._oom_before

    def _look_for_address(self) -> None:
        """The address that the binding's host process reports, once it does (its errors are in the log)."""
        if self.endpoint.url:
            return
        with contextlib.suppress(OSError, ValueError):
            told = json.loads((self._workdir / STATUS_NAME).read_text(encoding="utf-8"))
            self.endpoint = Endpoint(str(told.get("address", "")), self.endpoint.key)

    def _is_ours(self) -> bool:
        port = int(self.endpoint.url.rpartition(":")[2])
        try:
            process = psutil.Process(self.pid)
            found = [one for member in (process, *process.children()) for one in member.net_connections("tcp")]
        except psutil.AccessDenied:
            return True
        except psutil.Error:
            return False
        return any(one.status == psutil.CONN_LISTEN and one.laddr.port == port for one in found)

    def stop(self) -> Usage:
        """End the engine (terminate, wait, kill its whole group) and return what it used; may be called twice."""
        usage = self.usage()
        if self._process.poll() is None:
            self._asked_to_stop = True
            with contextlib.suppress(OSError):
                self._process.terminate()
            self._wait_for_end(STOP_WAIT_S)
        self._kill()
        self._wait_for_end(REAP_WAIT_S)
        if not self._stopped.is_set():
            self._stopped.set()
            self._pump.join(timeout=2.0)
            if self._process.stdout is not None:
                self._process.stdout.close()
            self._finish_log()
        return usage

    def _kill(self) -> None:
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
    status = workdir / STATUS_NAME
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
        running.wait_healthy(begun + timeout_s, timeout_s)
    except BaseException as error:
        running.stop()
        if isinstance(error, EngineFailure):
            error.log_sha256 = running.log_sha256()
        raise
    running.startup_s = time.monotonic() - begun
    return running
