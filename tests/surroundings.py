"""A copy of the project in a place of a test's own."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

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
