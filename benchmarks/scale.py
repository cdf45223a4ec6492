"""How the workflow's own time and memory grow with a study, and whether the goals for large studies are met.

`python benchmarks/scale.py` copies the project into a temporary folder for 10, 100 and 1,000 attempts on four engines
each, runs Snakemake there, and a trivial workflow with as many jobs (one rule without inputs) right after it; then it
collects 1,000,000 rows with collect_scale.py. It ends with one line per goal, met or not:

- a dry run within twice the trivial workflow's time, and 1 GiB;
- a run with nothing to do within twice the trivial workflow's time plus 3 s;
- 1,000,000 rows from records to tables within 60 s and 1 GiB.

Goals are judged by the clock, so run it on an idle machine; the seconds of the processor beside them tell how idle it
was. `--out` keeps all figures as JSON, `--document` writes a table between the markers of docs/scale.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from findings import plan
from findings.config import load_configuration
from findings.host import host_facts
from findings.marked import with_marked
from findings.records import Kind, Outcome, Record, utc_now, write_record, write_text

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
ROWS = 1_000_000
COLLECT_S = 60.0
SLACK_S = 3.0
BEGIN = "<!-- scale:begin (made by python benchmarks/scale.py --document docs/scale.md) -->"
END = "<!-- scale:end -->"
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
    """One run of Snakemake: seconds of the clock and of the processor, largest resident memory in bytes, jobs that it
    announced (0: nothing to do)."""

    seconds: float
    cpu_s: float
    rss_bytes: int
    jobs: int


@dataclass(frozen=True)
class Size:
    """A study of that many attempts beside a trivial workflow with as many jobs."""

    attempts: int
    jobs: int
    dry: Run
    trivial_dry: Run
    nothing: Run
    trivial_nothing: Run


@dataclass(frozen=True)
class Goal:
    """One goal: what was to be reached, what was, and whether that is enough."""

    text: str
    met: bool


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
    jobs = int(total[0]) if total else 0
    return Run(round(seconds, 2), round(used.ru_utime + used.ru_stime, 2), used.ru_maxrss * 1024, jobs)


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


def measured(attempts: int, where: Path) -> Size:
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
    shutil.rmtree(ours)
    shutil.rmtree(trivial)
    return Size(attempts, dry.jobs, dry, trivial_dry, nothing, trivial_nothing)


def collected(rows: int, where: Path) -> dict[str, float]:
    """What collect_scale.py tells of that many rows: rows, files, seconds, cpu_seconds, peak_bytes."""
    command = [sys.executable, str(ROOT / "benchmarks" / "collect_scale.py"), "--json"]
    done = subprocess.run(
        [*command, "--rows", str(rows), "--folder", str(where)], check=True, stdout=subprocess.PIPE, encoding="utf-8"
    )
    return dict(json.loads(done.stdout))


def goals(sizes: Sequence[Size], rows: dict[str, float]) -> list[Goal]:
    """The goals at the largest size, and for the rows."""
    found = []
    if sizes:
        size = max(sizes, key=lambda each: each.attempts)
        name = f"{size.attempts} attempts x {len(ENGINES)} engines, {size.jobs} jobs"
        dry, trivial, nothing, still = size.dry, size.trivial_dry, size.nothing, size.trivial_nothing
        found += [
            Goal(
                f"dry run ({name}): {dry.seconds:.1f} s, goal 2 x {trivial.seconds:.1f} s; by the processor "
                f"{dry.cpu_s:.1f} s and {trivial.cpu_s:.1f} s, {dry.cpu_s / trivial.cpu_s:.2f} times",
                dry.seconds <= 2 * trivial.seconds,
            ),
            Goal(
                f"memory of the dry run: {dry.rss_bytes / 2**20:.0f} MiB, goal 1024 MiB",
                dry.rss_bytes <= GIB,
            ),
            Goal(
                f"nothing to do ({name}): {nothing.seconds:.1f} s, goal 2 x {still.seconds:.1f} + {SLACK_S:.0f} s; by "
                f"the processor {nothing.cpu_s:.1f} s and {still.cpu_s:.1f} s",
                nothing.seconds <= 2 * still.seconds + SLACK_S,
            ),
        ]
    if rows:
        found += [
            Goal(
                f"collecting {rows['rows']:.0f} rows from {rows['files']:.0f} files: {rows['seconds']:.1f} s, goal "
                f"{COLLECT_S:.0f} s; by the processor {rows['cpu_seconds']:.1f} s",
                rows["seconds"] <= COLLECT_S,
            ),
            Goal(
                f"memory of collecting: {rows['peak_bytes'] / 2**20:.0f} MiB, goal 1024 MiB",
                rows["peak_bytes"] <= GIB,
            ),
        ]
    return found


def growth(sizes: Sequence[Size]) -> list[str]:
    """How the dry run's processor time grows from one size to the next, beside the number of jobs."""
    ordered = sorted(sizes, key=lambda size: size.attempts)
    return [
        f"{low.attempts} to {high.attempts} attempts: {high.jobs / low.jobs:.1f} times the jobs, "
        f"{high.dry.cpu_s / low.dry.cpu_s:.1f} times the processor time (the trivial workflow "
        f"{high.trivial_dry.cpu_s / low.trivial_dry.cpu_s:.1f} times)"
        for low, high in itertools.pairwise(ordered)
    ]


def table(sizes: Sequence[Size], reached: Sequence[Goal], machine: str) -> str:
    """The Markdown that stands between the markers."""
    lines = [
        f"{machine}",
        "",
        "| attempts | jobs | dry run | trivial | nothing to do | trivial | memory |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for size in sizes:
        runs = (size.dry, size.trivial_dry, size.nothing, size.trivial_nothing)
        cells = [f"{run.seconds:.1f} s ({run.cpu_s:.1f} s)" for run in runs]
        memory = max(run.rss_bytes for run in runs) / 2**20
        lines.append(f"| {size.attempts} | {size.jobs} | {' | '.join(cells)} | {memory:.0f} MiB |")
    lines += ["", "Seconds of the clock, in brackets of the processor.", ""]
    lines += [f"- {line}" for line in growth(sizes)]
    lines += ["", "| goal | |", "|---|---|"]
    lines += [f"| {goal.text} | {'met' if goal.met else '**not met**'} |" for goal in reached]
    return "\n".join(lines)


def with_table(document: str, text: str) -> str:
    """The document with the table between its markers. Raises ValueError where a marker is missing."""
    changed = with_marked(document, BEGIN, END, f"\n\n{text}\n\n")
    if changed is None:
        raise ValueError(f"the markers {BEGIN} and {END} are needed around the table")
    return changed


def main(argv: Sequence[str] | None = None) -> int:
    """Print what each step took, then one line per goal; 0 where all goals are met, 1 otherwise."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attempts", type=int, nargs="*", default=[10, 100, 1000], help="sizes of studies")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows to collect (0: leave that out)")
    parser.add_argument("--folder", type=Path, help="where the temporary files go, about 3 GB (default: the system's)")
    parser.add_argument("--out", type=Path, help="JSON file for all figures")
    parser.add_argument("--document", type=Path, help="Markdown file whose table is written anew")
    given = parser.parse_args(argv)
    load = os.getloadavg()[0]
    facts = host_facts("scale")
    sizes: list[Size] = []
    with tempfile.TemporaryDirectory(prefix="findings-scale-", dir=given.folder) as folder:
        for attempts in given.attempts:
            sizes.append(measured(attempts, Path(folder)))
            print(json.dumps(asdict(sizes[-1])), flush=True)
        rows = collected(given.rows, Path(folder)) if given.rows else {}
    reached = goals(sizes, rows)
    machine = (
        f"{facts.cpu}, {facts.cores} cores, {facts.os}, Python {facts.python}, {utc_now()[:10]}; load average "
        f"{load:.1f} at the start and {os.getloadavg()[0]:.1f} at the end."
    )
    for line in (machine, *growth(sizes)):
        print(line)
    for goal in reached:
        print(f"{'met' if goal.met else 'NOT MET'}: {goal.text}")
    if given.out is not None:
        figures = {"machine": machine, "sizes": [asdict(size) for size in sizes], "rows": rows}
        write_text(given.out, json.dumps({**figures, "goals": [asdict(goal) for goal in reached]}, indent=1) + "\n")
    if given.document is not None:
        text = given.document.read_text(encoding="utf-8")
        write_text(given.document, with_table(text, table(sizes, reached, machine)))
    return 0 if all(goal.met for goal in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
