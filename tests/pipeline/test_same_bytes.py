"""The committed records twice, in two folders and two surroundings: every byte of what comes out is the same."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from surroundings import ROOT

COPIED = ("config", "docs", "envs", "scripts", "workflow", "profiles", "Snakefile", "README.md")
SURROUNDINGS = {
    "one": {"LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONHASHSEED": "1", "umask": "022"},
    "zwei ü 'x'": {"LC_ALL": "tr_TR.UTF-8", "TZ": "Pacific/Auckland", "PYTHONHASHSEED": "4711", "umask": "077"},
}
DOCUMENT = "docs/gemma-4-mtp-on-pascal.md"
PAGE = "results/page.html"


def run(project: Path, argv: list[str], variables: dict[str, str]) -> None:
    given = {name: value for name, value in variables.items() if name != "umask"}
    done = subprocess.run(
        argv,
        cwd=project,
        env=os.environ | given | {"FINDINGS_CACHE": str(project / "cache")},
        umask=int(variables["umask"], 8),
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def made(project: Path) -> dict[str, bytes]:
    """Everything that is made of the records, by its path."""
    folders = [project / "results/publish/tables", project / "docs/figures"]
    files = [path for folder in folders for path in sorted(folder.iterdir())]
    files += [project / DOCUMENT, project / "README.md", project / PAGE]
    return {path.relative_to(project).as_posix(): path.read_bytes() for path in files}


@pytest.mark.slow
def test_the_same_records_give_the_same_bytes_of_everything(tmp_path: Path) -> None:
    for name in SURROUNDINGS:
        project = tmp_path / name
        project.mkdir()
        for part in COPIED:
            source = ROOT / part
            if source.is_dir():
                shutil.copytree(source, project / part, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy2(source, project / part)
        (project / DOCUMENT).unlink()
        shutil.rmtree(project / "docs/figures")
    found = []
    for name, variables in SURROUNDINGS.items():
        project = tmp_path / name
        run(project, [str(Path(sys.executable).with_name("snakemake")), "--cores", "1", "publish"], variables)
        tables = ["--tables", "results/publish/tables", "--figures", "docs/figures"]
        run(project, [sys.executable, "scripts/report.py", *tables, "--out", PAGE], variables)
        found.append(made(project))
    first, second = found
    assert list(first) == list(second)
    assert len([name for name in first if name.endswith(".parquet")]) >= 6
    assert len([name for name in first if name.endswith(".svg")]) >= 7
    assert [name for name in first if first[name] != second[name]] == []
