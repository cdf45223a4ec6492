"""Bundles as a user meets them: listed under `imports:`, read by the workflow and its commands, good and wrong ones.

The records are those that are committed with the project; a second host is made from them under another label, by the
export command itself. Nothing is measured or fetched.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from surroundings import ROOT, copy_project, run_snakemake

OURS, THEIRS = "amd-epyc-2core", "old-builds"
COMMITTED = ROOT / "docs" / "records" / f"{OURS}.zip"
PAGE = "results/publish/report/index.html"
TABLES = "results/publish/tables"
NEW_BUILD = 9538
CHANGED = "retyped/gemma-3-270m-other-token-types.json"


def unpacked(place: Path, label: str, keep: Callable[[str], bool] = lambda _: True) -> Path:
    """The committed records below `place`, under another label and only those that `keep` wants."""
    with zipfile.ZipFile(COMMITTED) as archive:
        for name in archive.namelist():
            relative = name.removeprefix(f"records/{OURS}/")
            if relative == name or not keep(relative):
                continue
            record = json.loads(archive.read(name))
            if "host" in record:
                record["host"] = label
            path = place / label / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    return place


def old_builds_alone(relative: str) -> bool:
    """What a machine has whose owner never updated: no engine and no converter after NEW_BUILD."""
    return all(int(build) <= NEW_BUILD for build in re.findall(r"-b(\d+)", relative))


def exported(records: Path, label: str, out: Path) -> Path:
    """A bundle of one host, by the command that users type."""
    done = command("export", "--records", records, "--host", label, "--out", out, "--config-root", ROOT)
    assert done.returncode == 0, done.stderr
    return out


def command(tool: str, *arguments: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    script = str(ROOT / "scripts" / f"{tool}.py")
    return subprocess.run(
        [sys.executable, script, *map(str, arguments)], cwd=cwd, capture_output=True, encoding="utf-8", check=False
    )


def with_imports(project: Path, bundles: Sequence[Path]) -> Path:
    """A project that imports exactly these bundles."""
    (project / "bundles").mkdir(exist_ok=True)
    entries = []
    for number, bundle in enumerate(bundles, start=1):
        shutil.copy(bundle, project / "bundles" / f"{number}-{bundle.name}")
        entries.append({"path": f"bundles/{number}-{bundle.name}", "format": "bundle", "note": "For a test."})
    settings = project / "config" / "config.yaml"
    document = yaml.safe_load(settings.read_text(encoding="utf-8")) | {"host": "here", "imports": entries}
    settings.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return project


def snakemake(project: Path, *targets: str) -> subprocess.CompletedProcess[str]:
    return run_snakemake(project, os.environ | {"FINDINGS_CACHE": str(project / "cache")}, *targets)


def collected(project: Path, out: str = "tables") -> subprocess.CompletedProcess[str]:
    """The tables of a project's imports, by the command that the workflow runs."""
    return command("evidence", "--records", "none", "--out", out, cwd=project)


def rows(project: Path, table: str, folder: str = "tables") -> list[dict[str, Any]]:
    return list(pq.read_table(project / folder / f"{table}.parquet").to_pylist())


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a second host: real records, its own label, old builds alone."""
    folder = tmp_path_factory.mktemp("theirs")
    return exported(unpacked(folder / "records", THEIRS, old_builds_alone), THEIRS, folder / f"{THEIRS}.zip")


@pytest.fixture(scope="module")
def merged(theirs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project in which the workflow has made the report of two bundles."""
    project = with_imports(copy_project(tmp_path_factory.mktemp("merged") / "project"), [COMMITTED, theirs])
    done = snakemake(project, "imports_report")
    assert done.returncode == 0, done.stderr
    return project


def test_two_bundles_give_one_report_with_both_hosts_and_nothing_is_measured(merged: Path) -> None:
    hosts = {row["host"] for row in rows(merged, "hosts", TABLES) if row["evidence"] == "measured"}
    assert hosts == {OURS, THEIRS}
    assert not (merged / "results" / "records").exists()
    assert not (merged / "cache").exists()
    measured = rows(merged, "measurements", TABLES)
    assert {row["host"] for row in measured if row["evidence"] == "measured"} == {OURS}  # sessions need a new build
    page = (merged / PAGE).read_text(encoding="utf-8")
    assert OURS in page
    assert THEIRS in page


def test_the_report_shows_where_the_hosts_disagree(merged: Path) -> None:
    verdicts = {
        (row["finding"], row["host"]): row["verdict"]
        for row in rows(merged, "verdicts", TABLES)
        if row["scope"] == "mechanism"
    }
    assert verdicts[("attempt_4_cannot_convert", OURS)] == "no_longer_holds"
    assert verdicts[("attempt_4_cannot_convert", THEIRS)] == "holds"
    page = (merged / PAGE).read_text(encoding="utf-8")
    section = page.partition('id="disagreements"')[2].partition("</table>")[0]
    line = next(part for part in section.split("<tr>") if "The converter does not know the official drafter" in part)
    assert line.index(THEIRS) < line.index(OURS)  # the columns: holds on, no longer holds on


def test_a_second_run_has_nothing_to_do(merged: Path) -> None:
    done = snakemake(merged, "imports_report")
    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in done.stdout + done.stderr


def test_the_same_bundle_twice_counts_once(theirs: Path, tmp_path: Path) -> None:
    once = with_imports(copy_project(tmp_path / "once"), [theirs])
    twice = with_imports(copy_project(tmp_path / "twice"), [theirs, theirs])
    for project in (once, twice):
        done = collected(project)
        assert done.returncode == 0, done.stderr
        assert "left out" not in done.stderr
    for name in ("measurements", "outcomes", "effects", "hosts"):
        assert rows(once, name) == rows(twice, name)
    assert rows(once, "outcomes")


def test_of_two_exports_of_one_host_the_newer_record_counts_whatever_the_order(theirs: Path, tmp_path: Path) -> None:
    records = unpacked(tmp_path / "records", THEIRS, old_builds_alone)
    path = records / THEIRS / CHANGED
    record = json.loads(path.read_text(encoding="utf-8")) | {"started": "2027-01-01T00:00:00Z", "seconds": 987.0}
    path.write_text(json.dumps(record), encoding="utf-8")
    newer = exported(records, THEIRS, tmp_path / "newer.zip")
    for name, order in (("ab", [theirs, newer]), ("ba", [newer, theirs])):
        project = with_imports(copy_project(tmp_path / name), order)
        done = collected(project)
        assert done.returncode == 0, done.stderr
        (found,) = [row for row in rows(project, "outcomes") if row["record"].endswith(CHANGED)]
        assert found["seconds"] == 987.0
        assert "newer.zip" in found["record"]
        (told,) = [line for line in done.stderr.splitlines() if "left out" in line]
        assert re.search(
            rf"{CHANGED}: \S*newer\.zip \(2027-01-01T00:00:00Z\) taken, \S*{THEIRS}\.zip .* left out", told
        )


# --- bundles that cannot be used --------------------------------------------------------------------------------------


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def changed(data: bytes) -> bytes:
    """Two bytes of one record, as a bad disk leaves them: the zip's own sum tells."""
    place = data.index(b'"outcome": "ok"')
    return data[: place + 12] + b"OK" + data[place + 14 :]


def repacked(change: Callable[[dict[str, bytes]], None]) -> Callable[[bytes], bytes]:
    def damage(data: bytes) -> bytes:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        change(members)
        result = io.BytesIO()
        with zipfile.ZipFile(result, "w") as archive:
            for name, content in members.items():
                archive.writestr(zipfile.ZipInfo(name), content)
        return result.getvalue()

    return damage


def without_host(members: dict[str, bytes]) -> None:
    del members[f"records/{THEIRS}/host.json"]


def edited(members: dict[str, bytes]) -> None:
    members[f"records/{THEIRS}/host.json"] = members[f"records/{THEIRS}/host.json"].replace(
        b'"cores": 2', b'"cores": 8'
    )


def next_schema(members: dict[str, bytes]) -> None:
    members["manifest.json"] = members["manifest.json"].replace(b'"schema": 1', b'"schema": 2')


WRONG = {
    "truncated": (truncated, "damaged or no bundle", "ask for it again or export it anew"),
    "byte": (changed, "damaged or no bundle", "ask for it again or export it anew"),
    "edited": (repacked(edited), "was changed after the export", "refused"),
    "member": (repacked(without_host), "in the manifest or in the file, not in both", "ask for it again"),
    "schema": (repacked(next_schema), "schema version 2", "export it with the same version on both machines"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_bundle_ends_the_command_with_its_name_and_what_to_do(kind: str, theirs: Path, tmp_path: Path) -> None:
    damage, problem, mend = WRONG[kind]
    wrong = tmp_path / "wrong.zip"
    wrong.write_bytes(damage(theirs.read_bytes()))
    project = with_imports(copy_project(tmp_path / "project"), [COMMITTED, wrong])
    told = {"evidence": collected(project), "verdicts": command("verdicts", "--out", "v.parquet", cwd=project)}
    for tool, done in told.items():
        assert done.returncode == 2, done.stderr
        (line,) = done.stderr.strip().splitlines()
        assert line.startswith(f"{tool}: bundles/2-wrong.zip: ")
        assert problem in line
        assert mend in line
    assert not list((project / "tables").glob("*.parquet"))
    assert not (project / "v.parquet").exists()


def test_the_workflow_fails_with_the_same_words_and_leaves_no_table(theirs: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.zip"
    wrong.write_bytes(truncated(theirs.read_bytes()))
    project = with_imports(copy_project(tmp_path / "project"), [wrong])
    done = snakemake(project, "imports_report")
    assert done.returncode == 1
    told = done.stdout + done.stderr
    assert "bundles/1-wrong.zip: damaged or no bundle" in told
    assert "Traceback" not in told
    assert not list((project / "results" / "publish").rglob("*.parquet"))


def test_a_bundle_that_is_not_there_is_named(theirs: Path, tmp_path: Path) -> None:
    project = with_imports(copy_project(tmp_path / "project"), [theirs])
    (project / "bundles" / f"1-{theirs.name}").unlink()
    done = snakemake(project, "imports_report")
    assert done.returncode == 1
    assert f"bundles/1-{theirs.name}" in done.stderr
