"""A disk that fills up while the study is measured, tabled and drawn: told plainly, nothing half written, nothing lost.

A short study (benchmarks/kill_test.py) with a real engine runs with results/ on a small disk of its own. Which file
finds no space is decided by filling the disk before, or by giving one folder a disk of its own that is full, or roomy.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import engine_bench
from findings.records import Outcome, read_record
from surroundings import ROOT, mounted, unmounted

sys.path.append(str(ROOT / "benchmarks"))
from kill_test import PLANNED_BLOCKS, STUDY, Bench, prepare

pytestmark = [pytest.mark.engine, pytest.mark.slow]

ENGINE = "llama.cpp-b11549"
SESSION = f"results/records/here/measure/attempt_2/{ENGINE}/session.json"
TABLE = "results/attempts/attempt_2/effects.parquet"
AGAIN = "Free some space there, then type the same command again: what is finished stays."


class Disk:
    """A project with results/ on a disk of `size`, which can be filled but for some bytes, and emptied again."""

    def __init__(self, bench: Bench, size: str) -> None:
        self.project, self.cache, self.results = bench.project, bench.folder / "cache", bench.results
        mounted(self.results, size)
        self.ballast = self.results / ".ballast"

    def fill(self, but: int = 0) -> None:
        self.ballast.unlink(missing_ok=True)
        free = shutil.disk_usage(self.results).free - but
        with self.ballast.open("wb") as stream:
            stream.write(bytes(max(free, 0)))

    def empty(self) -> None:
        self.ballast.unlink()

    def run(self, *targets: str) -> subprocess.CompletedProcess[str]:
        """A user's command."""
        snakemake = str(Path(sys.executable).with_name("snakemake"))
        return subprocess.run(
            [snakemake, "--cores", "1", *targets, "--config", "host=here", f"study={STUDY}"],
            cwd=self.project,
            env=os.environ | {"FINDINGS_CACHE": str(self.cache)},
            capture_output=True,
            encoding="utf-8",
            timeout=900,
            check=False,
        )

    def refuses(self, name: str, *targets: str) -> str:
        """Everything said by a command that must end because `name` (a part of a path) cannot be written."""
        done = self.run(*targets)
        said = done.stdout + done.stderr
        assert done.returncode != 0, said
        lines = [line for line in said.splitlines() if "cannot be written" in line]
        assert len(lines) == 1, said
        assert name in lines[0]
        assert "the disk is full (" in lines[0] and lines[0].endswith(AGAIN)
        assert "Traceback" not in said
        assert not list(self.results.rglob("*.part"))
        return said

    def completes(self, *targets: str) -> str:
        done = self.run(*targets)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr


def blocks(disk: Disk) -> dict[str, bytes]:
    folder = (disk.project / SESSION).parent
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("block-*.json")}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    engine_bench.program(ENGINE)  # in the cache before
    disk = Disk(prepare(tmp_path / "bench", engine_bench.cache()), "64m")
    yield disk
    unmounted(disk.results)


def test_a_disk_that_fills_up_at_any_stage_loses_nothing(disk: Disk) -> None:
    disk.completes(SESSION, "--omit-from", "measure")

    # A block: the first ones find room (24 KiB each and more), a later one does not.
    disk.fill(but=100 * 1024)
    said = disk.refuses("/run-001/block-", SESSION)
    assert not (disk.project / SESSION).exists()
    kept = blocks(disk)
    assert kept, said

    # The session's record: its run gets a disk of its own, with room.
    run = (disk.project / SESSION).parent / "run-001"
    with own_disk(run, "16m"):
        disk.fill()
        disk.refuses(SESSION, SESSION)
        assert not (disk.project / SESSION).exists()
        measured = blocks(disk)
        disk.empty()
    assert len(measured) >= PLANNED_BLOCKS
    assert kept.items() <= measured.items()
    said = disk.completes(SESSION)
    assert f"continuing run-001: {len(measured)} blocks are there already" in said
    assert blocks(disk) == measured
    assert read_record(disk.project / SESSION).outcome is Outcome.OK

    # A table, and a figure.
    disk.completes(TABLE, "--omit-from", "attempt_tables")
    disk.fill()
    disk.refuses(".parquet", TABLE)
    disk.empty()
    disk.completes("results/tables/verdicts.parquet")
    disk.fill()
    disk.refuses("results/figures/", "report")
    disk.refuses("results/figures/", "report")
    disk.empty()
    disk.completes("report")
    assert (disk.results / "report/index.html").read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert blocks(disk) == measured
    assert not list(disk.results.rglob("*.part"))


def test_a_log_that_finds_no_room_is_told_and_costs_no_measurement(disk: Disk) -> None:
    logs = disk.results / "logs"
    logs.mkdir()
    mounted(logs, "4k")
    try:
        (logs / "ballast").write_bytes(bytes(4096))
        said = disk.completes(SESSION)
        assert "is not whole; no result rests on a log" in said
        assert len(blocks(disk)) >= PLANNED_BLOCKS
        assert "Nothing to be done" in disk.completes(SESSION)
    finally:
        unmounted(logs)


class own_disk:  # noqa: N801 - read as a statement
    """Within it a folder is a disk of its own with the same files; afterwards they are in the folder again."""

    def __init__(self, folder: Path, size: str) -> None:
        self.folder, self.size, self.aside = folder, size, folder.parents[7] / "aside"

    def __enter__(self) -> None:
        shutil.copytree(self.folder, self.aside)
        mounted(self.folder, self.size)
        shutil.copytree(self.aside, self.folder, dirs_exist_ok=True)

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self.aside)
        shutil.copytree(self.folder, self.aside)
        unmounted(self.folder)
        shutil.copytree(self.aside, self.folder, dirs_exist_ok=True)
        shutil.rmtree(self.aside)
