"""The workflow where machines differ: paths, locale, time zone, umask, hash seed, file systems, and disks that refuse.

Every test types a command of a user in a copy of the project; the targets are cheap ones that need no engine.
"""

from __future__ import annotations

import base64
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from findings.records import Kind, Outcome, Record, read_record, write_record
from surroundings import copy_project, mounted, run_snakemake, unmounted

TABLES = "results/publish/tables"
VERDICTS = f"{TABLES}/verdicts.parquet"
CHECKPOINT = "results/records/here/sources/tiny-gemma4-target.json"
PACKAGED = "gemma-3-270m-q4-k-m"
ODD_NAME = 'it\'s a "test" of $HOME; `id` & ü ж'


def snakemake(project: Path, *targets: str, umask: int = 0o022, **variables: str) -> subprocess.CompletedProcess[str]:
    """A user's command, with the host's label given so that no record depends on this machine."""
    environment = os.environ | {"FINDINGS_CACHE": str(project / "the cache")} | variables
    return run_snakemake(project, environment, *targets, "--config", "host=here", timeout_s=300, umask=umask)


def tables(project: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((project / TABLES).glob("*.parquet"))}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in a plain place, with its tables."""
    project = copy_project(tmp_path_factory.mktemp("plain") / "project")
    done = snakemake(project, VERDICTS, LC_ALL="C.UTF-8", TZ="UTC", PYTHONHASHSEED="1")
    assert done.returncode == 0, done.stderr
    return project


def test_an_odd_path_a_foreign_locale_a_time_zone_a_umask_and_a_hash_seed_change_nothing(
    plain: Path, tmp_path: Path
) -> None:
    project = copy_project(tmp_path / ODD_NAME / "project")
    done = snakemake(
        project, VERDICTS, CHECKPOINT, umask=0o077, LC_ALL="tr_TR.UTF-8", TZ="Asia/Kathmandu", PYTHONHASHSEED="77"
    )
    assert done.returncode == 0, done.stderr
    assert len(tables(project)) == 6
    assert tables(project) == tables(plain)
    record = read_record(project / CHECKPOINT)
    assert record.outcome is Outcome.OK, record.reason
    assert str(tmp_path) not in (project / CHECKPOINT).read_text(encoding="utf-8")
    assert (project / VERDICTS).stat().st_mode & 0o077 == 0


def test_a_locale_without_utf_8_changes_nothing(plain: Path, tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    done = snakemake(project, VERDICTS, LC_ALL="C", LANG="C", PYTHONCOERCECLOCALE="0", PYTHONUTF8="0")
    assert done.returncode == 0, done.stderr
    assert tables(project) == tables(plain)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A project whose results/ is a disk of 48 KiB."""
    project = copy_project(tmp_path / "project")
    results = project / "results"
    mounted(results, "48k")
    yield project
    unmounted(results)


def test_a_full_disk_is_told_leaves_no_half_table_and_the_same_command_goes_on(plain: Path, small: Path) -> None:
    done = snakemake(small, VERDICTS)
    assert done.returncode != 0
    assert "cannot be written: the disk is full (" in done.stdout
    assert "Free some space there, then type the same command again" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr
    assert not (small / VERDICTS).exists()
    subprocess.run(["mount", "-o", "remount,size=64m", str(small / "results")], check=True)
    done = snakemake(small, VERDICTS)
    assert done.returncode == 0, done.stderr
    assert tables(small) == tables(plain)
    assert not list((small / "results").rglob("*.part"))


def test_read_only_results_are_named(small: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small / "results")], check=True)
    done = snakemake(small, VERDICTS)
    assert done.returncode != 0
    assert "results cannot be written: its disk is mounted read-only" in done.stderr
    assert "type the same command again" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cache_on_another_file_system_takes_and_serves(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    mounted(project / "the cache", "256m")
    try:
        done = snakemake(project, CHECKPOINT)
        assert done.returncode == 0, done.stderr
        record = read_record(project / CHECKPOINT)
        assert record.outcome is Outcome.OK, record.reason
        assert (project / "the cache" / str(record.detail["cache_path"])).exists()
    finally:
        unmounted(project / "the cache")


def test_a_killed_snakemake_needs_no_unlock(tmp_path: Path) -> None:
    """What is left after kill -9 (lock and marker) is made here as Snakemake makes it; the same command goes on."""
    project = copy_project(tmp_path / "project")
    locks = project / ".snakemake" / "locks"
    locks.mkdir(parents=True)
    (locks / "0.output.lock").write_text(f"{project / CHECKPOINT}\n", encoding="utf-8")
    marker = project / ".snakemake" / "incomplete" / base64.urlsafe_b64encode(CHECKPOINT.encode()).decode()
    marker.parent.mkdir()
    marker.write_text('{"external_jobid": null}', encoding="utf-8")
    (project / CHECKPOINT).parent.mkdir(parents=True)
    (project / CHECKPOINT).write_text("{", encoding="utf-8")
    done = snakemake(project, CHECKPOINT)
    assert done.returncode == 0, done.stderr
    assert read_record(project / CHECKPOINT).outcome is Outcome.OK


def test_a_configuration_by_an_enemy_is_refused_with_every_line_and_runs_nothing(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    models = project / "config/models.yaml"
    text = models.read_text(encoding="utf-8")
    text = text.replace(f"id: {PACKAGED}\n", "id: ../../evil\n", 1)
    text = text.replace(
        "file: gemma-3-270m-q4_k_m.gguf\n", 'file: "x; touch evil $(touch evil) `touch evil`.gguf"\n', 1
    )
    models.write_text(text, encoding="utf-8")
    before = sorted(
        path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if "__pycache__" not in str(path)
    )
    for target in ("report", "publish", "--lint"):
        done = snakemake(project, target)
        assert done.returncode != 0
        assert "config/models.yaml: models[../../evil].id: '../../evil'" in done.stderr
        assert "models[../../evil].file: 'x; touch evil" in done.stderr
        assert "Traceback" not in done.stderr
    after = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if "__pycache__" not in str(path)}
    assert not [name for name in after.difference(before) if not name.startswith("project/.snakemake")]


def test_a_fetch_that_failed_for_a_while_is_tried_again_by_the_same_command(tmp_path: Path) -> None:
    """Also where all that rests on it is there already: Snakemake alone would say that nothing is to be done."""
    project = copy_project(tmp_path / "project")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        index = f"http://127.0.0.1:{closed.getsockname()[1]}/simple"
    facts = f"results/records/here/facts/{PACKAGED}.json"
    for _ in range(2):
        done = snakemake(project, facts, PIP_INDEX_URL=index, PIP_CONFIG_FILE=os.devnull)
        assert done.returncode == 0, done.stderr
        assert f"[fetch {PACKAGED}] unavailable" in done.stdout
        assert f"[facts {PACKAGED}] not_run" in done.stdout
    source = project / f"results/records/here/sources/{PACKAGED}.json"
    assert read_record(source).detail["retryable"] is True
    before = source.read_bytes()
    done = snakemake(project, facts, "-n")
    assert "fetch_model" in done.stdout + done.stderr
    assert source.read_bytes() == before


LOOKS = (
    ("-n",),
    ("--summary",),
    ("--detailed-summary",),
    ("--lint",),
    ("--list-rules",),
    ("--dag",),
    ("--rulegraph",),
    ("--touch",),
)


def test_only_a_real_run_removes_what_no_longer_holds(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    stale = project / CHECKPOINT
    other = project / "results/records/here/sources/gemma-3-270m-q4-k-m.json"
    gone = {"sha256": "0" * 64, "cache_path": "models/nowhere"}
    write_record(stale, Record(Kind.DOWNLOAD, "tiny-gemma4-target", Outcome.OK, host="here", detail=gone))
    write_record(other, Record(Kind.DOWNLOAD, "x", Outcome.UNAVAILABLE, host="here", detail={"retryable": True}))
    lock = project / ".snakemake" / "locks" / "0.output.lock"
    lock.parent.mkdir(parents=True)
    lock.write_text(f"{stale}\n", encoding="utf-8")
    before = (stale.read_bytes(), other.read_bytes(), lock.read_bytes())
    for look in LOOKS:
        targets = () if look[0] in ("--lint", "--list-rules") else (CHECKPOINT,)
        if look == ("--touch",):
            lock.unlink()
        done = snakemake(project, *targets, *look)
        assert "Traceback" not in done.stderr, (look, done.stderr)
        assert (stale.read_bytes(), other.read_bytes()) == before[:2], look
        assert look == ("--touch",) or lock.read_bytes() == before[2], look
    done = snakemake(project, CHECKPOINT)
    assert done.returncode == 0, done.stderr
    assert read_record(stale).detail["sha256"] != "0" * 64
    assert other.exists()  # nobody asked for it
