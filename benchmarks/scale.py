"""How the workflow's own time grows with a study: dry run and nothing-to-do run of generated studies.

`python benchmarks/scale.py` copies the project into a temporary folder for 10, 100 and 1,000 attempts on four engines
each, runs Snakemake there, and the same number of jobs of a trivial workflow beside it. It prints seconds and the
largest resident memory. Goals: a dry run within twice the trivial one's time and 1 GiB; nothing to do within twice the
trivial one's time plus 3 s. Collecting rows into tables is timed by collect_scale.py. Run both on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from findings import plan
from findings.config import load_configuration
from findings.records import Kind, Outcome, Record, write_record

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("Snakefile", "workflow", "scripts", "config", "envs", "docs/records")
MODEL_ATTEMPT = "attempt_2"
ENGINES = ("llama.cpp-b8929", "llama.cpp-b9093", "llama.cpp-b9713", "llama.cpp-b11549")
HOST = "scale"
KINDS = {
    "sources": Kind.DOWNLOAD,
    "environments": Kind.ENVIRONMENT,
    "probes": Kind.PROBE,
    "precheck": Kind.PRECHECK,
    "measure": Kind.SESSION,
}
GIB = 2**30
TRIVIAL = """rule all:
    input:
        expand("out/{{n}}.txt", n=range({jobs})),


rule one:
    output:
        "out/{{n}}.txt",
    shell:
        "touch {{output:q}}"
"""


@dataclass(frozen=True)
class Run:
    """One run of Snakemake: seconds, largest resident memory in bytes, jobs that it announced (0: nothing to do)."""

    seconds: float
    rss_bytes: int
    jobs: int


class _Plain(yaml.SafeDumper):
    """Writes equal values out; the configuration refuses aliases."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 - the name that the base gives
        return True


def written(path: Path, document: Any) -> None:
    """Write a document of the configuration."""
    path.write_text(yaml.dump(document, Dumper=_Plain, sort_keys=False), encoding="utf-8")


def snakemake(folder: Path, *arguments: str) -> Run:
    """Run Snakemake in a folder. Raises RuntimeError with its last lines where it fails."""
    with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "snakemake", "--cores", "1", *arguments],
            cwd=folder,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "FINDINGS_CACHE": str(folder / "cache")},
        )
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - begun
        output.seek(0)
        text = output.read()
    if process.returncode:
        raise RuntimeError("snakemake failed:\n" + "\n".join(text.splitlines()[-20:]))
    total = re.findall(r"^total +(\d+)", text, re.MULTILINE)
    return Run(seconds, used.ru_maxrss * 1024, int(total[0]) if total else 0)


def project(folder: Path, attempts: int) -> None:
    """A copy of the project whose study has that many attempts, each measured on four engines."""
    for part in PARTS:
        source = ROOT / part
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / part)
    path = folder / "config/attempts.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    model = next(item for item in document["attempts"] if item["id"] == MODEL_ATTEMPT)
    names = [f"scale_{number:04d}" for number in range(attempts)]
    document["attempts"] += [{**model, "id": name, "findings": []} for name in names]
    written(path, document)
    study: dict[str, Any] = yaml.safe_load((folder / "config/studies/mini.yaml").read_text(encoding="utf-8"))
    chosen = {**study["attempts"][MODEL_ATTEMPT], "measure": list(ENGINES)}
    study |= {"id": "scale", "attempts": dict.fromkeys(names, chosen)}
    written(folder / "config/studies/scale.yaml", study)
    written(folder / "config/config.yaml", {"study": "scale", "host": HOST})


def finished(folder: Path) -> None:
    """Every record and table of the project's study, as small files: what a finished run leaves."""
    configuration = load_configuration(folder)
    records = folder / "results/records" / HOST
    for attempt in configuration.study.attempts:
        for name in plan.attempt_records(configuration, attempt):
            if not (records / name).exists():
                kind = KINDS.get(name.partition("/")[0], Kind.HOST)
                write_record(records / name, Record(kind, name, Outcome.NOT_RUN, "made for a benchmark", host=HOST))
    for engine in ENGINES:
        environment = configuration.engines[engine].environment
        write_record(
            records / "environments" / f"{environment}.json",
            Record(Kind.ENVIRONMENT, environment, Outcome.NOT_RUN, "made for a benchmark", host=HOST),
        )
    tables = folder / "results/tables"
    tables.mkdir(parents=True, exist_ok=True)
    for name in ("measurements", "outcomes", "effects", "hosts", "verdicts", "precheck_scores"):
        (tables / f"{name}.parquet").touch()


def measured(attempts: int, where: Path) -> dict[str, Any]:
    """Times of a study of that size and of a trivial workflow with as many jobs."""
    ours = where / f"study-{attempts}"
    ours.mkdir()
    project(ours, attempts)
    dry = snakemake(ours, "-n", "verdicts")
    trivial = where / f"trivial-{attempts}"
    trivial.mkdir()
    (trivial / "Snakefile").write_text(TRIVIAL.format(jobs=dry.jobs - 1), encoding="utf-8")
    trivial_dry = snakemake(trivial, "-n")
    finished(ours)
    snakemake(ours, "--touch", "verdicts")
    nothing = snakemake(ours, "verdicts")
    (trivial / "out").mkdir()
    for number in range(dry.jobs - 1):
        (trivial / "out" / f"{number}.txt").touch()
    snakemake(trivial, "--touch")
    trivial_nothing = snakemake(trivial)
    if nothing.jobs or trivial_nothing.jobs:
        raise RuntimeError(f"something was left to do: {nothing.jobs} and {trivial_nothing.jobs} jobs")
    return {
        "attempts": attempts,
        "engines": len(ENGINES),
        "jobs": dry.jobs,
        "dry_s": round(dry.seconds, 1),
        "trivial_dry_s": round(trivial_dry.seconds, 1),
        "dry_goal_met": dry.seconds <= 2 * trivial_dry.seconds and dry.rss_bytes <= GIB,
        "dry_rss_mib": dry.rss_bytes // 2**20,
        "nothing_s": round(nothing.seconds, 1),
        "trivial_nothing_s": round(trivial_nothing.seconds, 1),
        "nothing_goal_met": nothing.seconds <= 2 * trivial_nothing.seconds + 3,
        "nothing_rss_mib": nothing.rss_bytes // 2**20,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Print one line of JSON per size, as soon as it is known; 0 where all goals are met, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, nargs="+", default=[10, 100, 1000], help="sizes of studies")
    given = parser.parse_args(argv)
    met = True
    with tempfile.TemporaryDirectory(prefix="findings-scale-") as folder:
        for attempts in given.attempts:
            row = measured(attempts, Path(folder))
            print(json.dumps(row), flush=True)
            met = met and row["dry_goal_met"] and row["nothing_goal_met"]
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
