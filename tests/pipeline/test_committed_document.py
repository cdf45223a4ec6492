"""The committed document, its figures and the README's verdicts are what the committed inputs give, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(script: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, f"scripts/{script}.py", *arguments, "--overrides", "{}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_publishing_again_changes_nothing(tmp_path: Path) -> None:
    tables, figures, none = str(tmp_path / "tables"), tmp_path / "docs" / "figures", str(tmp_path / "none")
    document, readme = tmp_path / "docs" / "gemma-4-mtp-on-pascal.md", tmp_path / "README.md"
    readme.write_text((ROOT / "README.md").read_text(encoding="utf-8"), encoding="utf-8")
    run("evidence", "--records", none, "--out", tables)
    scores = f"{tables}/precheck_scores.parquet"
    run("verdicts", "--records", none, "--out", f"{tables}/verdicts.parquet", "--scores", scores)
    run("figures", "--tables", tables, "--records", none, "--out", str(figures))
    run("publish", "--tables", tables, "--figures", str(figures), "--readme", str(readme), "--out", str(document))
    committed = ROOT / "docs" / "gemma-4-mtp-on-pascal.md"
    mend = "run `snakemake --cores 1 publish --forcerun published_tables` and commit what it writes"
    assert document.read_text(encoding="utf-8") == committed.read_text(encoding="utf-8"), mend
    assert readme.read_bytes() == (ROOT / "README.md").read_bytes(), mend
    for made in sorted(figures.glob("*.svg")):
        assert made.read_bytes() == (ROOT / "docs" / "figures" / made.name).read_bytes(), f"{made.name}: {mend}"
