"""Going on after an interruption, with real processes and the kernel's own locks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from snakemake.persistence.file import FilePersistence

from findings.interrupted import WORKFLOW_VARIABLE, birth, hold_folder, whole_sessions
from findings.records import Kind, Outcome, Record, write_record, write_text

SCRIPTS = Path(__file__).parents[2] / "scripts"
HOLDER = """
import sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from findings.interrupted import hold_folder
print(hold_folder(Path(sys.argv[2])), flush=True)
time.sleep(60)
"""
# A workflow that starts a job, which starts an engine through `with_us`; each prints its process id.
WORKFLOW = """
import subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from findings.interrupted import export_this_run
export_this_run()
subprocess.Popen(["bash", "-c", '"$0" -c "$1" "$2" | cat', sys.executable, sys.argv[2], sys.argv[1]])
time.sleep(60)
"""
JOB = """
import os, subprocess, sys, time
sys.path.insert(0, sys.argv[1])
from findings.interrupted import end_with_workflow, with_us
end_with_workflow()
child = subprocess.Popen(with_us(["/bin/sleep", "60"]), start_new_session=True)
print(os.getpid(), child.pid, flush=True)
try:
    time.sleep(60)
finally:
    print("tidied", flush=True)
"""


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def holder(state: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(SCRIPTS), str(state)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_the_lock_of_a_killed_run_is_removed_and_that_of_a_living_one_stays(tmp_path: Path) -> None:
    state = tmp_path / ".snakemake"
    first, answer = holder(state)
    assert answer == "True"
    write_text(state / "locks" / "0.output.lock", "results/x\n")
    second, answer = holder(state)
    try:
        assert answer == "False"
        assert (state / "locks" / "0.output.lock").exists()
    finally:
        second.kill()
        second.wait()
        first.kill()
        first.wait()
    assert hold_folder(state)
    assert not (state / "locks").exists()


def session(folder: Path, *, closed: bool, run: str = "run-001") -> Path:
    path = folder / "session.json"
    write_record(path, Record(Kind.SESSION, "a/e", Outcome.OK, detail={"run": run}))
    if closed:
        write_text(folder / run / "complete.json", "{}\n")
    return path


@pytest.mark.parametrize("long", [False, True])
def test_only_markers_on_whole_sessions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long: bool) -> None:
    """The markers are Snakemake's own, so a change of their form is noticed here."""
    monkeypatch.chdir(tmp_path)
    records = Path("results/records/host")
    name = "x" * 200 + "/" + "y" * 90 if long else "e"
    whole = session(records / "measure/a" / name, closed=True)
    unclosed = session(records / "measure/b" / name, closed=False)
    half = records / "measure/c" / name / "session.json"
    write_text(half, "{")
    table = Path("results/tables/x.parquet")
    write_text(table, "")
    state = Path(".snakemake")
    persistence = FilePersistence(path=state)
    for path in (whole, unclosed, half, table):
        persistence._mark_incomplete(str(path), None)
    found = whole_sessions(state, records)
    assert len(found) == 1
    found[0].unlink()
    assert not FilePersistence(path=state)._filter_incomplete_keys([str(whole)])
    assert FilePersistence(path=state)._filter_incomplete_keys([str(unclosed), str(half)])


def test_strange_files_among_the_markers_are_left_alone(tmp_path: Path) -> None:
    write_text(tmp_path / "incomplete" / "no base64 ü", "")
    write_text(tmp_path / "incomplete" / "migration_underway", "")
    assert whole_sessions(tmp_path, tmp_path / "records") == []
    assert whole_sessions(tmp_path / "nothing", tmp_path) == []


def test_a_job_and_its_engine_end_with_a_workflow_that_was_killed(tmp_path: Path) -> None:
    workflow = subprocess.Popen([sys.executable, "-c", WORKFLOW, str(SCRIPTS), JOB], stdout=subprocess.PIPE, text=True)
    assert workflow.stdout is not None
    job, engine = (int(word) for word in workflow.stdout.readline().split())
    assert not gone(job) and not gone(engine)
    workflow.send_signal(signal.SIGKILL)
    workflow.wait()
    assert workflow.stdout.readline() == "tidied\n"
    wait_until(lambda: gone(job) and gone(engine))


def test_a_child_ends_with_a_job_that_was_killed(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != WORKFLOW_VARIABLE}
    job = subprocess.Popen(
        [sys.executable, "-c", JOB, str(SCRIPTS)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert job.stdout is not None
    _, engine = (int(word) for word in job.stdout.readline().split())
    job.kill()
    job.wait()
    wait_until(lambda: gone(engine))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere psutil's time of creation is all there is")
def test_a_process_keeps_its_birth_when_the_clock_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """psutil's time of creation moves with the clock; by it, jobs that begin after a jump ended at once."""
    before = (birth(os.getpid()), psutil.Process().create_time())
    boot = psutil.boot_time()
    monkeypatch.setattr("psutil._pslinux.boot_time", lambda: boot + 3600)
    assert psutil.Process().create_time() != before[1]
    assert birth(os.getpid()) == before[0] != ""


def test_two_processes_have_two_births_and_a_dead_one_has_none() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    assert birth(child.pid) not in ("", birth(os.getpid()))
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert birth(child.pid) == ""  # a zombie
    child.communicate()
    assert birth(child.pid) == ""
