"""A clock that jumps by years while a session is measured: no duration, no order and no verdict rests on it.

The session is real (tool, engine, tiny model). The tool's time of day moves when the test says so, and its monotonic
clock does not, as when somebody sets a machine's clock. (libfaketime would move the engine's, too, but breaks Python's
sleep on the monotonic clock.)
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine_bench
from findings.records import Outcome, read_record
from surroundings import ROOT

sys.path.append(str(ROOT / "benchmarks"))
from kill_test import PLANNED_BLOCKS, STUDY, Bench, prepare

ENGINE = "llama.cpp-b11549"
SESSION = f"results/records/here/measure/attempt_2/{ENGINE}/session.json"
JUMPS_IN_DAYS = (-2000, 3000, -1000, 1)
pytestmark = [pytest.mark.engine, pytest.mark.slow]
# The tool, with its sources of the time of day moved by the days that a file says (test_guards.py: there is no other).
JUMPING = """
import datetime, runpy, sys, time
from pathlib import Path
clock, script = Path(sys.argv[1]), sys.argv[2]
sys.argv = sys.argv[2:]
sys.path.insert(0, str(Path(script).parent))
import findings.records
real = time.time
def days():
    return float(clock.read_text(encoding="utf-8") or 0)
class Jumping(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return super().now(tz) + datetime.timedelta(days=days())
findings.records.datetime = Jumping
time.time = lambda: real() + 86400 * days()
runpy.run_path(script, run_name="__main__")
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """A short study, with everything there that its session needs."""
    engine_bench.program(ENGINE)
    bench = prepare(tmp_path_factory.mktemp("clock") / "bench", engine_bench.cache())
    snakemake = [str(Path(sys.executable).with_name("snakemake")), "--cores", "1", SESSION, "--omit-from", "measure"]
    done = run(bench, [*snakemake, "--config", "host=here", f"study={STUDY}"])
    assert done.returncode == 0, done.stdout + done.stderr
    yield bench


def environment(bench: Bench) -> dict[str, str]:
    return os.environ | {"FINDINGS_CACHE": str(bench.folder / "cache"), "FINDINGS_OVERRIDES": f'{{"study": "{STUDY}"}}'}


def run(bench: Bench, argv: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=bench.project,
        env=environment(bench) | more,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )


def measured(bench: Bench) -> float:
    """Measure while the clock jumps after every block; the seconds that it really took."""
    clock = bench.folder / "clock"
    clock.write_text("0", encoding="utf-8")
    argv = [sys.executable, "-c", JUMPING, str(clock), "scripts/measure.py"]
    argv += ["--records", "results/records/here", "--attempt", "attempt_2", "--engine", ENGINE, "--record", SESSION]
    began = time.monotonic()
    process = subprocess.Popen(argv, cwd=bench.project, env=environment(bench), stderr=subprocess.PIPE)
    jumps = itertools.cycle(JUMPS_IN_DAYS)
    seen = len(list((bench.project / SESSION).parent.rglob("block-*.json")))
    while process.poll() is None:
        blocks = len(list((bench.project / SESSION).parent.rglob("block-*.json")))
        if blocks > seen:
            seen = blocks
            clock.write_text(str(next(jumps)), encoding="utf-8")
        time.sleep(0.02)
    assert process.stderr is not None
    assert process.returncode == 0, process.stderr.read().decode()
    process.stderr.close()
    return time.monotonic() - began


def test_a_clock_that_jumps_changes_neither_durations_nor_the_order_of_blocks(bench: Bench) -> None:
    took = measured(bench)
    record = read_record(bench.project / SESSION)
    assert record.outcome is Outcome.OK, record.reason
    assert 0 < record.seconds <= took
    paths = sorted((bench.project / SESSION).parent.glob("run-001/block-*.json"))
    blocks = [read_record(path) for path in paths]
    assert len(blocks) >= PLANNED_BLOCKS
    times = [block.started for block in blocks]
    assert times != sorted(times), "the clock was to jump backwards"
    for number, block in enumerate(blocks, start=1):
        assert block.detail["block"] == number
        assert 0 < block.seconds <= took
        for run_of_arm in block.detail["arms"].values():
            assert run_of_arm["outcome"] == "ok", run_of_arm["reason"]
            assert 0 < run_of_arm["startup_s"] <= took
            assert 0 <= run_of_arm["engine_wall_s"] <= took
            assert all(0 < r["predicted_ms"] <= 1000 * took for r in run_of_arm["requests"])


def test_tables_provenance_and_the_next_run_take_such_records_as_they_are(bench: Bench) -> None:
    if not (bench.project / SESSION).exists():
        measured(bench)
    python = sys.executable
    made = [python, "scripts/evidence.py", "--attempt", "attempt_2", "--out", "t"]
    done = run(bench, made)
    assert done.returncode == 0, done.stderr
    verdicts = [python, "scripts/verdicts.py", "--attempt", "attempt_2", "--out", "t/verdicts.parquet"]
    assert run(bench, verdicts).returncode == 0
    traced = run(
        bench, [python, "scripts/provenance.py", "--tables", "t", "--table", "measurements", "--row", "0", "--json"]
    )
    assert traced.returncode == 0, traced.stderr
    (trace,) = json.loads(traced.stdout)
    assert trace["row"]["block"] == 1
    assert "/run-001/" in trace["row"]["record"]
    # Asked for again with the clock far back: a new run, and the newest is the newest by its number.
    (bench.project / SESSION).unlink()
    measured(bench)
    assert read_record(bench.project / SESSION).detail["run"] == "run-002"
    (bench.project / SESSION).unlink()
    for name, year in (("run-001", 2031), ("run-002", 2019)):
        complete = (bench.project / SESSION).parent / name / "complete.json"
        complete.write_text(
            json.dumps(json.loads(complete.read_text(encoding="utf-8")) | {"finished": f"{year}-01-01T00:00:00Z"}),
            encoding="utf-8",
        )
    done = run(bench, made)
    assert done.returncode == 0, done.stderr
    assert "run-001 replaced by run-002" in done.stderr
