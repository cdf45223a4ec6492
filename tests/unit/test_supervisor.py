"""The supervisor that ends a server on another machine, run by a shell of this machine, without any connection."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from findings.remote.connection import compose
from findings.remote.engine import LOGGED

SHELLS = [name for name in ("dash", "bash", "busybox", "ksh", "mksh") if shutil.which(name)]
# Bounded, not measured: a busy machine may be slow.
SOON_S = 30.0
# A server with a child, and one that does not care about being asked to end.
PLAIN = "#!/bin/sh\nsleep 600 &\necho $$ $! > pids\necho started >&2\nwait\n"
DEAF = "#!/bin/sh\ntrap '' TERM\nsleep 600 &\necho $$ $! > pids\necho started >&2\nwhile :; do sleep 1; done\n"

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the supervisor is for Linux")


class Supervised:
    """A supervisor and its server; what it says is read line by line."""

    def __init__(self, shell: str, folder: Path, server: str, patience: int) -> None:
        program = folder / "a server's program"
        program.write_text(server)
        program.chmod(0o755)
        values: dict[str, str | int] = {
            "folder": str(folder), "program": str(program), "port": 1, "key": "k", "patience": patience, "grace": 1
        }  # fmt: skip
        script = compose(["begin", "lifeline", "serve"], values, ["--an argument", "it's"])
        command = [shell, "sh", "-c"] if shell == "busybox" else [shell, "-c"]
        self.process = subprocess.Popen(
            [*command, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        assert self.process.stderr.readline() == b"started\n"
        self.pids = [int(word) for word in (folder / "pids").read_text().split()]
        self.told: list[str] = []
        self.waited = False

    def wait_until_it_watches(self) -> None:
        while not (self.told and self.told[-1].startswith("@started ")):
            self.told.append(self.stdout.readline().decode().rstrip("\n"))

    def say(self, words: bytes) -> None:
        self.stdin.write(words)
        self.stdin.flush()

    def lines(self) -> list[str]:
        """What it says up to the server's end; then its log is taken, so that it may go."""
        said = []
        for line in self.stdout:
            said.append(line.decode().rstrip("\n"))
            if said[-1].startswith("@ended "):
                self.waited = self.process.poll() is None
                self.stdin.close()
        return said

    def log(self) -> bytes:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def is_gone(self) -> bool:
        """Whether the server, its child and every process of the supervisor have ended."""
        deadline = time.monotonic() + SOON_S
        while time.monotonic() < deadline:
            if not any(alive(pid) for pid in self.pids) and not session_of(self.process.pid):
                return True
            time.sleep(0.1)
        return False


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def session_of(leader: int) -> list[int]:
    found = []
    for pid in psutil.pids():
        with contextlib.suppress(OSError):
            if os.getsid(pid) == leader and alive(pid):
                found.append(pid)
    return found


@contextlib.contextmanager
def supervised(shell: str, folder: Path, server: str = PLAIN, patience: int = 60) -> Iterator[Supervised]:
    running = Supervised(shell, folder, server, patience)
    try:
        yield running
    finally:
        for pid in [*running.pids, *session_of(running.process.pid)]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        running.process.wait(timeout=SOON_S)
        for stream in (running.process.stdin, running.process.stdout, running.process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_server_that_is_told_to_end_ends_with_its_children_and_its_code_is_told(shell: str, tmp_path: Path) -> None:
    with supervised(shell, tmp_path) as running:
        running.say(b".s.q")
        lines = running.lines()
        assert running.is_gone()
    assert lines[1] == "@begin"
    assert lines[2].startswith("@started ")
    assert [line for line in lines if line in ("@sample", "@sampled")] == ["@sample", "@sampled"]
    assert any(line.startswith("cpu ") for line in lines)
    assert any(line.startswith(f"{running.pids[0]} (") for line in lines)
    assert any(line.startswith(f"{running.pids[1]} (") for line in lines)  # its child counts, too
    assert lines[-1].split()[:2] == ["@ended", "143"]
    assert "@silent" not in lines


@pytest.mark.parametrize("shell", SHELLS)
def test_the_log_ends_with_a_mark_behind_the_servers_last_words(shell: str, tmp_path: Path) -> None:
    last = '#!/bin/sh\necho 1 1 > pids\necho started >&2\nprintf "the reason" >&2\nexit 1\n'
    with supervised(shell, tmp_path, last) as running:
        running.pids = []
        assert running.lines()[-1].split()[:2] == ["@ended", "1"]
        assert running.log() == b"the reason" + LOGGED
        assert running.waited  # a log that is on its way would be lost with it


@pytest.mark.parametrize("shell", SHELLS)
def test_the_end_of_its_input_ends_a_server(shell: str, tmp_path: Path) -> None:
    with supervised(shell, tmp_path) as running:
        running.stdin.close()
        assert running.is_gone()


@pytest.mark.parametrize("shell", SHELLS)
def test_silence_ends_a_server_although_nothing_is_closed(shell: str, tmp_path: Path) -> None:
    with supervised(shell, tmp_path, patience=2) as running:
        assert running.is_gone()
        assert "@silent" in running.lines()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_server_that_does_not_care_is_killed(shell: str, tmp_path: Path) -> None:
    with supervised(shell, tmp_path, DEAF) as running:
        running.say(b"q")
        assert running.lines()[-1].split()[:2] == ["@ended", "137"]
        assert running.is_gone()


@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("shell", SHELLS)
def test_answers_that_nobody_takes_do_not_end_the_supervisor_before_the_server(
    shell: str, at_once: bool, tmp_path: Path
) -> None:
    with supervised(shell, tmp_path) as running:
        if not at_once:
            running.wait_until_it_watches()
        running.say(b"s" * 10)
        running.stdout.close()  # as when ssh dies while an answer is on its way
        time.sleep(0.5)
        running.stdin.close()
        assert running.is_gone()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="without setpriv only the end of its input ends a server")
@pytest.mark.parametrize("shell", SHELLS)
def test_a_supervisor_that_is_killed_takes_its_server_along(shell: str, tmp_path: Path) -> None:
    with supervised(shell, tmp_path) as running:
        running.wait_until_it_watches()
        running.process.kill()
        deadline = time.monotonic() + SOON_S
        while alive(running.pids[0]) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not alive(running.pids[0])
        running.stdin.close()
        assert running.is_gone()


@pytest.mark.parametrize("shell", SHELLS)
def test_a_server_gets_its_arguments_its_key_and_nothing_else_of_ours(
    shell: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LLAMA_ARG_CTX_SIZE", "GGML_CUDA_FORCE_MMQ", "HF_TOKEN", "SOME_SECRET", "https_proxy"):
        monkeypatch.setenv(name, "marked")
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", "0")
    show = '#!/bin/sh\nprintf "<%s>" "$@" > arguments\nenv > environment\necho 1 1 > pids\necho started >&2\n'
    with supervised(shell, tmp_path, show) as running:
        running.pids = []
        assert running.lines()[-1].split()[:2] == ["@ended", "0"]
    assert (tmp_path / "arguments").read_text() == "<--an argument><it's>"
    environment = (tmp_path / "environment").read_text().splitlines()
    assert "LLAMA_API_KEY=k" in environment
    assert "GGML_VK_VISIBLE_DEVICES=0" in environment
    assert [line for line in environment if line.endswith("=marked")] == []
