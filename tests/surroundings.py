"""A copy of the project in a place of a test's own, and a user's command in it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
COPIED = ("config", "envs", "scripts", "workflow", "profiles", "Snakefile", "README.md")


def copy_project(place: Path) -> Path:
    """Everything that the workflow needs, without results, cache and repository."""
    place.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, place / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, place / name)
    # Without the committed bundle: these tests are about surroundings, and small tables fill small disks as planned.
    settings = place / "config" / "config.yaml"
    text = settings.read_text(encoding="utf-8")
    settings.write_text(re.sub(r"  - path: docs/records/.*?(?=  - path:)", "", text, flags=re.DOTALL), encoding="utf-8")
    return place


def mounted(place: Path, size: str) -> None:
    """Make a folder a disk of that size, in memory; without root the test is skipped."""
    place.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("mounting a small disk needs root; THIS FAULT IS NOT TESTED HERE")


def unmounted(place: Path) -> None:
    """Undo `mounted`."""
    subprocess.run(["umount", "--lazy", str(place)], check=False)


def run_snakemake(
    project: Path, environment: Mapping[str, str], *arguments: str, timeout_s: float | None = None, umask: int = -1
) -> subprocess.CompletedProcess[str]:
    """`snakemake --cores 1 <arguments>` in a project; whatever it ends with is the caller's to judge."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("snakemake")), "--cores", "1", *arguments],
        cwd=project,
        env=dict(environment),
        umask=umask,
        capture_output=True,
        encoding="utf-8",
        timeout=timeout_s,
        check=False,
    )
