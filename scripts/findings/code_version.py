"""Which code of ours made a record: a hash of the files, the commit, and whether they were modified since.

The hash says it whatever became of the repository; the commit is there for people and only where git is.
It describes a record and decides nothing: an edit does not make Snakemake or a session measure anew.
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDERS = ("scripts", "workflow", "Snakefile", "config", "envs")


def code_sha256(root: Path) -> str:
    """One hash over our own code below `root` (scripts, workflow, Snakefile): names and bytes, in order of names."""
    digest = hashlib.sha256()
    patterns = ("scripts/**/*.py", "scripts/**/*.sh", "workflow/**/*.smk", "workflow/Snakefile", "Snakefile")
    for path in sorted({path for pattern in patterns for path in root.glob(pattern)}):
        digest.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


@functools.cache
def code_version(root: Path = ROOT) -> dict[str, str]:
    """`code_sha256`, and where the project is a git checkout `code_commit` and `code_modified` (yes or no).

    Modified means: code, configuration or locks differ from the commit, or there are files that it does not hold.
    """
    found = {"code_sha256": code_sha256(root)}
    commit = _git(root, "rev-parse", "HEAD")
    top = _git(root, "rev-parse", "--show-toplevel")
    if commit and top and Path(top).resolve() == root.resolve():
        changes = _git(root, "status", "--porcelain", "--", *FOLDERS)
        found["code_commit"] = commit
        found["code_modified"] = "unknown" if changes is None else "yes" if changes else "no"
    return found


def _git(root: Path, *arguments: str) -> str | None:
    """The answer of a git command, None where there is no git, no repository, or no answer."""
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
