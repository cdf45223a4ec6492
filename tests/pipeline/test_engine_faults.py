"""Engines that hang, lie, crash, flood or are killed: an outcome with a reason each, in bounded time and memory.

A stand-in server does what a real engine cannot be made to do; kills and limits are tried on the real ones.
"""

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import engine_bench as bench
from findings.arm_runner import Ready, run_arm
from findings.config import Backend, Driver, Engine, Speculation, SpeculationType
from findings.engine import client, drivers
from findings.engine.arms import Launch
from findings.engine.client import Endpoint
from findings.engine.drivers import RunningEngine, start_engine
from findings.engine.failure import EngineFailure
from findings.engine.limited_log import LOG_HEAD_BYTES, LOG_NAME, LOG_TAIL_BYTES
from findings.records import Outcome
from findings.site import Here

FAKE = Engine("fake", 1, "2026-01", Driver.LLAMA_SERVER, Backend.CPU)
NONE = Speculation(SpeculationType.NONE)
BOTH = (bench.BINDING, bench.SERVER)
TESTS = Path(__file__).parents[1]


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    script = tmp_path / "fake llama-server"  # a path with a space, as people have them
    script.write_text(f"#!{sys.executable}\n" + (TESTS / "fake_llama_server.py").read_text())
    script.chmod(0o755)
    return script


def launch(mode: str, port: int | None = None) -> Launch:
    return Launch(Driver.LLAMA_SERVER, SpeculationType.NONE, flags=("--mode", mode), fixed_port=port)


def start(fake: Path, mode: str, timeout_s: float = 30.0, **limits: int) -> RunningEngine:
    return start_engine(FAKE, fake, launch(mode), fake.parent / "work", timeout_s, **limits)


def gone(pid: int, within_s: float = 10.0) -> bool:
    """Whether a process ends within a while; a zombie that somebody else has to collect counts as ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def processes_of(fake: Path) -> list[int]:
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if str(fake) in (process.info["cmdline"] or []):
            found.append(process.pid)
    return found


@pytest.mark.parametrize("mode", ["hang-health", "loading", "no-listen"])
def test_an_engine_that_never_gets_healthy_is_ended_in_time(fake: Path, mode: str) -> None:
    with pytest.raises(EngineFailure) as caught:
        start(fake, mode, timeout_s=2.0)
    assert caught.value.outcome is Outcome.TIMED_OUT
    assert "not healthy within 2 s" in caught.value.reason
    assert processes_of(fake) == []


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("exit", Outcome.REFUSED, "unknown model architecture: 'made-up'"),
        ("crash", Outcome.CRASHED, "illegal instruction: this CPU lacks"),
    ],
)
def test_an_engine_that_ends_at_the_start(fake: Path, mode: str, outcome: Outcome, words: str) -> None:
    with pytest.raises(EngineFailure) as caught:
        start(fake, mode)
    assert caught.value.outcome is outcome
    assert words in caught.value.reason


@pytest.mark.parametrize(
    ("mode", "outcome", "words"),
    [
        ("hang", Outcome.TIMED_OUT, "no answer within 1 s"),
        ("dribble", Outcome.TIMED_OUT, "did not end within 1 s"),
        ("garbage", Outcome.CRASHED, "the answer is not JSON"),
        ("not-http", Outcome.CRASHED, "POST /completion"),
        ("error-500", Outcome.REFUSED, "HTTP 500: context size exceeded"),
        ("close", Outcome.CRASHED, "closed without an answer"),
        ("half", Outcome.CRASHED, "in the middle of the answer"),
        ("endless", Outcome.CRASHED, "longer than"),
        ("nonsense-numbers", Outcome.CRASHED, "predicted_n is -2"),
    ],
)
def test_a_bad_answer_is_an_outcome(fake: Path, mode: str, outcome: Outcome, words: str) -> None:
    timeout_s = 1.0 if outcome is Outcome.TIMED_OUT else 60.0
    with start(fake, mode) as running:
        pid = running.pid
        with pytest.raises(EngineFailure) as caught:
            running.complete("x", 2, timeout_s)
    assert caught.value.outcome is outcome, caught.value.reason
    assert words in caught.value.reason
    assert gone(pid)


def test_the_stand_in_can_also_behave(fake: Path) -> None:
    with start(fake, "fine") as running:
        assert running.complete("x", 2, 30).tokens == (1, 2)


def test_megabytes_of_log_are_kept_to_a_limit_with_head_and_tail(fake: Path) -> None:
    with start(fake, "log") as running:
        text = running.log_text()
        digest = running.log_sha256()
    limit = LOG_HEAD_BYTES + LOG_TAIL_BYTES + 200
    assert text.startswith("FIRST LINE\n")
    assert text.endswith("LAST LINE\n")
    assert "bytes left out" in text
    assert len(text) <= limit
    assert (fake.parent / "work" / LOG_NAME).stat().st_size <= limit
    assert len(digest) == 64


@pytest.mark.parametrize(("mode", "outcome"), [("log", Outcome.OK), ("log-exit", Outcome.REFUSED)])
def test_the_hash_of_an_arms_log_is_that_of_the_whole_stream(fake: Path, mode: str, outcome: Outcome) -> None:
    """Also of the megabytes that no record keeps."""
    arm = bench.configuration().attempts["attempt_2"].arm("baseline")
    ready = Ready(arm, FAKE, Here(fake.parent, fake.parent), fake, launch(mode), "", None, "", False, fake, None)
    run = run_arm(ready, [], 1, warmup_tokens=1, start_timeout_s=60, request_timeout_s=60)
    assert run.outcome is outcome, run.reason
    line = b"a log line that says nothing at all, over and over again\n"
    words = b"error: unknown model architecture: 'made-up'\n" if mode == "log-exit" else b""
    whole = b"FIRST LINE\n" + line * 600_000 + b"LAST LINE\n" + words
    assert run.log_sha256 == hashlib.sha256(whole).hexdigest()
    assert sum(map(len, run.log_tail)) < 20_000


def test_an_engine_that_grows_beyond_its_memory_is_ended(fake: Path) -> None:
    with pytest.raises(EngineFailure) as caught:
        start(fake, "grow", memory_limit_bytes=150 * 2**20)
    assert caught.value.outcome is Outcome.OUT_OF_MEMORY
    assert "150 MiB" in caught.value.reason


def test_an_engine_that_meets_its_limit_of_addresses_says_so(fake: Path) -> None:
    with pytest.raises(EngineFailure) as caught:
        start(fake, "grow", address_space_bytes=400 * 2**20)
    assert caught.value.outcome is Outcome.OUT_OF_MEMORY
    assert "MemoryError" in caught.value.reason


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield listener.getsockname()[1]


def test_a_taken_port_is_named_and_the_next_one_tried(fake: Path, taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EngineFailure) as caught:
        start_engine(FAKE, fake, launch("fine", taken), fake.parent / "work", 30)
    assert caught.value.outcome is Outcome.UNAVAILABLE
    assert "couldn't bind" in caught.value.reason
    ports = iter([taken, drivers.free_port()])
    monkeypatch.setattr(drivers, "free_port", lambda: next(ports))
    with start(fake, "fine") as running:
        assert not running.base_url.endswith(f":{taken}")


def test_somebody_elses_healthy_server_on_the_port_is_not_taken_for_ours(fake: Path) -> None:
    with start(fake, "fine") as other:
        port = int(other.base_url.rpartition(":")[2])
        with pytest.raises(EngineFailure) as caught:
            start_engine(FAKE, fake, launch("fine", port), fake.parent / "second", 30)
    assert caught.value.outcome is Outcome.UNAVAILABLE


@pytest.mark.parametrize("mode", ["stubborn", "child"])
def test_stop_ends_what_will_not_end_and_all_of_its_children(
    fake: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drivers, "STOP_WAIT_S", 1.0)
    running = start(fake, mode)
    family = [running.pid, *(child.pid for child in psutil.Process(running.pid).children(recursive=True))]
    assert len(family) == (2 if mode == "child" else 1)
    usage = running.stop()
    assert usage.rss_bytes > 0
    assert all(gone(pid) for pid in family)
    assert running.stop() == usage  # twice does no harm
    assert running.failure() is None


def test_a_program_that_cannot_be_started_is_an_outcome(tmp_path: Path) -> None:
    plain = tmp_path / "not-executable"
    plain.write_text("x")
    with pytest.raises(EngineFailure) as caught:
        start_engine(FAKE, plain, launch("fine"), tmp_path / "work", 10)
    assert caught.value.outcome is Outcome.CRASHED
    assert "cannot start not-executable" in caught.value.reason


def test_no_server_at_all_and_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    port = drivers.free_port()
    with pytest.raises(EngineFailure) as caught:
        client.complete(Endpoint(f"http://127.0.0.1:{port}"), "x", 1, 5)
    assert caught.value.reason == "POST /completion: connection refused (no server there)"


def test_the_engine_sees_no_token_of_ours(fake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_markedtokenmarkedtoken")
    monkeypatch.setenv("MY_SECRET", "marked")
    with start(fake, "fine") as running:
        environment = psutil.Process(running.pid).environ()
    assert "HF_TOKEN" not in environment
    assert "MY_SECRET" not in environment


# --- real engines ----------------------------------------------------------------------------------------------------


def real(engine_id: str, folder: Path, **limits: int) -> RunningEngine:
    arm = bench.launch(engine_id, NONE, bench.settings(bench.model(bench.TARGET)))
    return start_engine(bench.engine(engine_id), bench.program(engine_id), arm, folder, 120, **limits)


def failure_of(call: Callable[[], object]) -> EngineFailure:
    with pytest.raises(EngineFailure) as caught:
        call()
    return caught.value


@pytest.mark.engine
@pytest.mark.parametrize("engine_id", BOTH)
@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "segmentation fault")])
def test_an_engine_killed_during_a_request_is_a_crash_with_the_signals_name(
    engine_id: str, number: signal.Signals, words: str, tmp_path: Path
) -> None:
    with real(engine_id, tmp_path) as running:
        threading.Timer(0.5, os.kill, (running.pid, number)).start()
        failure = failure_of(lambda: running.complete(bench.PROSE, 900, 120))
    assert failure.outcome is Outcome.CRASHED
    assert words in failure.reason
    assert "during a request" in failure.reason
    assert failure.exit_code == -number


@pytest.mark.engine
@pytest.mark.parametrize("engine_id", BOTH)
def test_a_request_that_takes_too_long_is_given_up_and_the_engine_stops(engine_id: str, tmp_path: Path) -> None:
    with real(engine_id, tmp_path) as running:
        failure = failure_of(lambda: running.complete(bench.PROSE, 900, 0.3))
        pid = running.pid
    assert failure.outcome is Outcome.TIMED_OUT
    assert gone(pid)


@pytest.mark.engine
@pytest.mark.parametrize("engine_id", BOTH)
def test_a_real_engine_beyond_its_memory_limit(engine_id: str, tmp_path: Path) -> None:
    failure = failure_of(lambda: real(engine_id, tmp_path, memory_limit_bytes=60 * 2**20))
    assert failure.outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.engine
def test_the_real_server_on_a_taken_port(taken: int, tmp_path: Path) -> None:
    arm = replace(bench.launch(bench.SERVER, NONE, bench.settings(bench.model(bench.TARGET))), fixed_port=taken)
    failure = failure_of(
        lambda: start_engine(bench.engine(bench.SERVER), bench.program(bench.SERVER), arm, tmp_path, 240)
    )
    assert failure.outcome is Outcome.UNAVAILABLE
    assert "bind" in failure.reason


PARENT = """
import sys, time
from pathlib import Path
sys.path[:0] = [{scripts!r}, {tests!r}]
import engine_bench as bench
from findings.arm_runner import Ready, run_arm
from findings.config import Speculation, SpeculationType
from findings.engine.drivers import start_engine
arm = bench.launch({engine!r}, Speculation(SpeculationType.NONE), bench.settings(bench.model(bench.TARGET)))
running = start_engine(bench.engine({engine!r}), bench.program({engine!r}), arm, Path({folder!r}), 120)
print(running.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.engine
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death signal is Linux's")
@pytest.mark.parametrize("engine_id", BOTH)
def test_no_engine_outlives_a_parent_that_was_killed(engine_id: str, tmp_path: Path) -> None:
    bench.program(engine_id), bench.model(bench.TARGET)  # in the cache before the clock of the parent starts
    code = PARENT.format(
        scripts=str(bench.ROOT / "scripts"), tests=str(TESTS), engine=engine_id, folder=str(tmp_path / "work")
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=bench.ROOT)
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert psutil.pid_exists(pid)
    finally:
        parent.kill()
        parent.wait()
        with contextlib.suppress(ValueError, AttributeError):
            parent.stdout.close()
    assert gone(pid)
