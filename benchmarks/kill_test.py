"""Kill a running report at random moments, type the same command again, and compare with an undisturbed run.

`python benchmarks/kill_test.py --kills 50 --seed 7 --out docs/kill-test.json` clones this checkout into a temporary
folder with a short study of its own (real engines, real converter, real models), and kills Snakemake, one of its jobs,
an engine or converter, or the whole process group (Ctrl-C), with SIGINT, SIGTERM or SIGKILL. After every kill:

- nothing that the run started is alive;
- every block that was finished is still there with the same bytes, in the only run folder of its session;
- every record is whole JSON, every table a whole Parquet file.

When the command succeeds, its tables must equal those of the undisturbed run in what does not depend on time:

- of the planned blocks: the same requests with the same tokens, draft counts, outcome and engagement. How many blocks
  there are beyond those is decided by the noise of the machine, because noisy blocks are replaced;
- the same executed things with the same outcomes, and the same verdicts where these do not rest on speed. A verdict on
  speed is decided by noise, too: such rows are counted, and reported as `speed_verdicts_that_differ`.

An arm, load or conversion whose engine or converter was killed is recorded as crashed, which is the truth about it.
Rows of such an arm are left out, and only as many arms may have crashed as engines were killed; a load or conversion
is deleted and made again before the comparison. Then results/ is emptied for the next round. Needs a filled cache
(FINDINGS_CACHE). Exit code 1 when anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml

ROOT = Path(__file__).resolve().parent.parent
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
TARGETS = ("snakemake", "job", "engine", "group")
STUDY = "kill"
SHARED = ("archives", "environments", "models", "sources")
LONGEST_S = 900.0
END_S = 30.0
PLANNED_BLOCKS = 3
TABLES = ("measurements", "outcomes", "verdicts")
MADE = ("arms_killed", "records_made_again")
ENDED = ("crashed", "out_of_memory")
WAIT_FOR_TARGET_S = 20.0
LONGEST_MOMENT_S = 20.0


class KillTestError(AssertionError):
    """Something was lost, measured twice, half written, or left behind."""


@dataclass
class Bench:
    """The clone, and what was seen in it so far. `blocks` maps a block's path to its bytes."""

    folder: Path
    blocks: dict[str, bytes] = field(default_factory=dict)
    log: list[dict[str, Any]] = field(default_factory=list)
    leftovers: int = 0

    @property
    def project(self) -> Path:
        """The clone of the project."""
        return self.folder / "project"

    @property
    def results(self) -> Path:
        """Its results."""
        return self.project / "results"


def prepare(folder: Path, cache: Path) -> Bench:
    """A clone with the short study, and a cache that shares what is fetched but not what is converted."""
    bench = Bench(folder)
    copied = [*("config", "envs", "scripts", "workflow", "docs", "profiles"), "Snakefile", "README.md"]
    bench.project.mkdir(parents=True)
    for name in copied:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, bench.project / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, bench.project / name)
    settings = bench.project / "config/config.yaml"
    values = yaml.safe_load(settings.read_text(encoding="utf-8"))
    values["imports"] = []  # the tables hold what this run measured, and nothing else
    settings.write_text(yaml.safe_dump(values), encoding="utf-8")
    study = yaml.safe_load((ROOT / "config/studies/mini.yaml").read_text(encoding="utf-8"))
    study["id"] = STUDY
    study["protocol"] |= {
        "predict_tokens": 8,
        "warmup_tokens": 1,
        "load_predict_tokens": 8,
        "looks": [PLANNED_BLOCKS],
        "max_blocks": PLANNED_BLOCKS,
    }
    wanted = {name: study["attempts"][name] for name in ("attempt_2", "attempt_4")}
    # The tiny model answers in milliseconds: what is tested is where a kill may hit, and not how fast anything is.
    wanted["attempt_2"] |= {"roles": dict.fromkeys(("target", "drafter"), "tiny-gemma4-target-f16"), "ctx": 512}
    wanted["attempt_4"]["load"] = [study["default_engine"]]
    for item in wanted["attempt_4"]["convert"]:
        item["converters"] = item["converters"][-1:]
    study["attempts"] = wanted
    (bench.project / "config/studies" / f"{STUDY}.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
    (folder / "tmp").mkdir()
    (folder / "cache").mkdir()
    for name in SHARED:
        (cache / name).mkdir(exist_ok=True)
        (folder / "cache" / name).symlink_to(cache / name)
    return bench


def start(bench: Bench, *targets: str) -> subprocess.Popen[bytes]:
    """What the user types, in a process group of its own."""
    snakemake = str(Path(sys.executable).with_name("snakemake"))
    environment = os.environ | {"FINDINGS_CACHE": str(bench.folder / "cache"), "TMPDIR": str(bench.folder / "tmp")}
    with (bench.folder / "run.log").open("ab") as log:
        return subprocess.Popen(
            [snakemake, "--cores", "1", *targets, "report", "--config", f"study={STUDY}"],
            cwd=bench.project,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def ours(bench: Bench) -> list[psutil.Process]:
    """Every living process that belongs to the clone: by its folder, its command line or its environment."""
    mark = str(bench.folder)
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            words = [process.cwd(), *process.cmdline(), *process.environ().values()]
            if process.status() != psutil.STATUS_ZOMBIE and any(mark in word for word in words):
                found.append(process)
        except psutil.Error:
            continue
    return found


def role(process: psutil.Process) -> str:
    """snakemake, engine, job or other, by the command line; other where it has just ended."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return "other"
    if any(word.endswith(("xllamacpp_host.py", "convert_hf_to_gguf.py", "llama-server")) for word in words):
        return "engine"
    if len(words) > 1 and "/snakemake" in words[1]:
        return "snakemake"
    return "job" if len(words) > 1 and "/scripts/" in words[1] else "other"


def kill(bench: Bench, run: subprocess.Popen[bytes], chance: random.Random) -> dict[str, Any] | None:
    """Kill something; what was killed, None where all had ended by itself.

    Where an engine or a job is wanted and none lives at that moment, the kill waits for one: they live for a second.
    """
    number = chance.choice(SIGNALS)
    wanted = chance.choice(TARGETS)
    entry: dict[str, Any] = {"signal": number.name, "wanted": wanted}
    if wanted == "group":
        os.killpg(run.pid, number)
        return entry | {"killed": "group"}
    deadline = time.monotonic() + WAIT_FOR_TARGET_S
    while not (targets := [process for process in ours(bench) if role(process) == wanted]):
        if run.poll() is not None:
            return None
        if time.monotonic() > deadline:
            targets, wanted = [psutil.Process(run.pid)], "snakemake"
            break
    victim = chance.choice(targets)
    try:
        words = [Path(word).name for word in victim.cmdline()[1:] if word.endswith(".py") or "/snakemake" in word]
        time.sleep(chance.uniform(0.0, 0.3))
        victim.send_signal(number)
    except psutil.Error:  # it ended by itself
        return None
    return entry | {"killed": wanted, "program": words[-1] if words else ""}


def wait_for_end(bench: Bench, run: subprocess.Popen[bytes]) -> int:
    """The exit code of the run; everything that it started must be gone shortly afterwards."""
    code = run.wait(timeout=LONGEST_S)
    deadline = time.monotonic() + END_S
    while (left := ours(bench)) and time.monotonic() < deadline:
        time.sleep(0.2)
    if left:
        raise KillTestError(f"left behind: {[' '.join(process.cmdline())[:200] for process in left]}")
    return code


def check(bench: Bench) -> None:
    """No block lost, changed or measured twice; no half file under its name."""
    here = {path.relative_to(bench.results).as_posix(): path for path in bench.results.rglob("block-*.json")}
    for name, content in bench.blocks.items():
        if name not in here:
            raise KillTestError(f"lost: {name}")
        if here[name].read_bytes() != content:
            raise KillTestError(f"written twice: {name}")
    second = [name for name in here if "/run-001/" not in name]
    if second:
        raise KillTestError(f"measured in a second run: {second}")
    bench.blocks = {name: path.read_bytes() for name, path in here.items()}
    for path in bench.results.rglob("*.json"):
        if not path.name.startswith("."):
            json.loads(path.read_text(encoding="utf-8"))
    for path in bench.results.rglob("*.parquet"):
        if not path.name.startswith("."):
            pq.read_metadata(path)
    bench.leftovers = sum(1 for _ in bench.results.rglob("*.part"))


def crashed(path: Path) -> bool:
    """Whether a record says that what it ran was killed."""
    record = json.loads(path.read_text(encoding="utf-8"))
    return record.get("kind") in ("load", "conversion", "probe") and record.get("outcome") in ENDED


def speed_findings(project: Path) -> frozenset[str]:
    """Findings whose verdict rests on speed: how noisy the machine was decides it, too."""
    listed = yaml.safe_load((project / "config/findings.yaml").read_text(encoding="utf-8"))["findings"]
    return frozenset(item["id"] for item in listed if item["kind"] in ("does_not_pay", "pays"))


@dataclass(frozen=True)
class Contents:
    """What tables say without timings: requests by their arm and block, executed things, verdicts; and those on speed.

    `measurements` maps (attempt, engine, block, arm) to its requests.
    """

    measurements: dict[tuple[str, ...], Counter[str]]
    outcomes: Counter[str]
    verdicts: Counter[str]
    speed_verdicts: Counter[str]

    @property
    def rows(self) -> dict[str, int]:
        """How many rows are compared."""
        requests = sum(sum(rows.values()) for rows in self.measurements.values())
        return {"requests": requests, "outcomes": self.outcomes.total(), "verdicts": self.verdicts.total()}


def contents(bench: Bench) -> Contents:
    """What the tables of a finished run say."""
    tables, speed = bench.results / "tables", speed_findings(bench.project)
    read = {name: pq.read_table(tables / f"{name}.parquet").to_pylist() for name in TABLES}
    requests = ("prompt_id", "prompt_tokens", "predicted_tokens", "text_sha256", "outcome", "engagement")
    counted = (*requests, "draft_tokens", "accepted_tokens")
    measurements: dict[tuple[str, ...], Counter[str]] = {}
    for row in read["measurements"]:
        if row["evidence"] == "measured" and row["block"] <= PLANNED_BLOCKS:
            arm = tuple(str(row[key]) for key in ("attempt", "engine", "block", "arm"))
            measurements.setdefault(arm, Counter())[text_of(row, counted)] += 1
    things = ("kind", "subject", "outcome", "engine", "converter", "arm", "engagement")
    judged = ("finding", "scope", "host", "engine", "evidence", "verdict")
    on_speed = [row for row in read["verdicts"] if row["finding"] in speed]
    return Contents(
        measurements,
        Counter(text_of(row, things) for row in read["outcomes"] if row["kind"] != "block" and measured(row)),
        Counter(text_of(row, judged) for row in read["verdicts"] if row["finding"] not in speed)
        + Counter(text_of(row, judged[:-1]) for row in on_speed),
        Counter(text_of(row, judged) for row in on_speed),
    )


def measured(row: dict[str, Any]) -> bool:
    """Whether a row is of something that ran here."""
    return bool(row["evidence"] == "measured")


def text_of(row: dict[str, Any], keys: Sequence[str]) -> str:
    """A row's values under the keys."""
    return json.dumps([row[key] for key in keys])


def spoiled_arms(bench: Bench) -> set[tuple[str, ...]]:
    """(attempt, engine, block, arm) of every arm whose engine was killed."""
    found: set[tuple[str, ...]] = set()
    for path in bench.results.rglob("block-*.json"):
        record = json.loads(path.read_text(encoding="utf-8"))
        for name, run in record["detail"]["arms"].items():
            if run["outcome"] in ENDED:
                found.add((record["attempt"], record["engine"], str(record["detail"]["block"]), name))
    return found


def without_spoiled(arms: set[tuple[str, ...]], spoiled: set[tuple[str, ...]]) -> set[tuple[str, ...]]:
    """The arms that must be equal: not those that were killed, nor what an arm leaves out once it crashed twice."""
    twice = Counter((attempt, engine, arm) for attempt, engine, _, arm in spoiled)
    out = {key for key, count in twice.items() if count > 1}
    return {key for key in arms if key not in spoiled and (key[0], key[1], key[3]) not in out}


def compare(reference: Contents, now: Contents, spoiled: set[tuple[str, ...]], engines_killed: int) -> list[str]:
    """The rows that differ, empty where nothing does."""
    different = []
    if len(spoiled) > engines_killed:
        different.append(f"{len(spoiled)} arms crashed, {engines_killed} engines were killed: {sorted(spoiled)}")
    none: Counter[str] = Counter()
    for arm in sorted(without_spoiled(set(reference.measurements) | set(now.measurements), spoiled)):
        old, new = reference.measurements.get(arm, none), now.measurements.get(arm, none)
        different += changes(f"measurements {arm}", old, new)
    different += changes("outcomes", reference.outcomes, now.outcomes)
    return different + changes("verdicts", reference.verdicts, now.verdicts)


def changes(name: str, old: Counter[str], new: Counter[str]) -> list[str]:
    """A line for every row that only one side has."""
    return [f"{name}: missing {row}" for row in old - new] + [f"{name}: new {row}" for row in new - old]


def finish_round(bench: Bench, reference: Contents, engines_killed: int) -> dict[str, Any]:
    """Make what a killed engine spoiled again, compare, and empty the results for the next round."""
    spoiled = [path for path in bench.results.rglob("*.json") if "/run-" not in path.as_posix() and crashed(path)]
    if spoiled:
        for path in spoiled:
            path.unlink()
        # Named, because Snakemake makes a missing file again only where it is asked for, or a job that needs it runs.
        names = [path.relative_to(bench.project).as_posix() for path in spoiled]
        if wait_for_end(bench, start(bench, *names)) != 0:
            raise KillTestError("the command failed after a record was deleted")
        check(bench)
    now, arms = contents(bench), spoiled_arms(bench)
    different = compare(reference, now, arms, engines_killed)
    for line in different:
        say(line)
    found = {
        "different": different,
        "speed_verdicts_that_differ": len(changes("", reference.speed_verdicts, now.speed_verdicts)) // 2,
        "blocks": len(bench.blocks),
        "arms_killed": len(arms),
        "records_made_again": len(spoiled),
    }
    empty(bench)
    return found


def empty(bench: Bench) -> None:
    """Forget results and conversions."""
    for path in (bench.results, bench.folder / "cache" / "converted", bench.project / ".snakemake"):
        shutil.rmtree(path, ignore_errors=True)
    bench.blocks = {}


def test(bench: Bench, kills: int, minutes: float, chance: random.Random) -> dict[str, Any]:
    """The whole test; what happened, `different` empty when all is well. After `minutes` nothing more is killed."""
    began = time.monotonic()
    if wait_for_end(bench, start(bench)) != 0:
        raise KillTestError("the undisturbed run failed")
    whole_s = time.monotonic() - began
    check(bench)
    reference = contents(bench)
    blocks = len(bench.blocks)
    empty(bench)
    say(f"undisturbed: {whole_s:.0f} s, {blocks} blocks, compared rows {reference.rows}")
    rounds: list[dict[str, Any]] = []
    engines_killed = done = 0

    def wanted(done: int) -> bool:
        return done < kills and time.monotonic() - began < 60 * minutes

    while True:
        run = start(bench)
        if wanted(done):
            moment = chance.uniform(0.5, min(max(whole_s / 4, 8.0), LONGEST_MOMENT_S))
            entry = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                run.wait(timeout=moment)
            if run.poll() is None:
                entry = kill(bench, run, chance)
            if entry is not None:
                engines_killed += entry["killed"] == "engine"
                done += 1
                entry["exit_code"] = wait_for_end(bench, run)
                check(bench)
                bench.log.append(entry | {"after_s": round(moment, 2), "blocks": len(bench.blocks)})
                say(f"kill {done} of {kills}: {json.dumps(bench.log[-1])}")
                if entry["exit_code"] != 0:
                    continue
        code = wait_for_end(bench, run)
        check(bench)
        if code != 0:
            raise KillTestError(f"the command failed although nobody killed it; see {bench.folder / 'run.log'}")
        rounds.append(finish_round(bench, reference, engines_killed))
        engines_killed = 0
        say(f"round {len(rounds)} complete: {json.dumps(rounds[-1])}")
        if not wanted(done):
            break
    return {
        "kills": done,
        "undisturbed": {"seconds": round(whole_s, 1), "blocks": blocks, "rows": reference.rows},
        "rounds": rounds,
        "different": [line for one in rounds for line in one["different"]],
    }


def summary(result: dict[str, Any]) -> str:
    """The result as text for docs/security.md, between its markers."""
    log = result["log"]
    lines = [f"{len(log)} kills, seed {result['seed']}, {result['minutes']:.0f} minutes.", ""]
    lines += ["| killed | " + " | ".join(number.name for number in SIGNALS) + " |", "|---" * 4 + "|"]
    for target in TARGETS:
        counts = [sum(e["killed"] == target and e["signal"] == number.name for e in log) for number in SIGNALS]
        lines.append(f"| {target} | " + " | ".join(map(str, counts)) + " |")
    rounds = result.get("rounds", [])
    added = {key: sum(one[key] for one in rounds) for key in ("speed_verdicts_that_differ", *MADE)}
    rows = ", ".join(f"{count} {name}" for name, count in result.get("undisturbed", {}).get("rows", {}).items())
    lines += [
        "",
        f"The command was carried to its end {len(rounds)} times, once after every few kills, and its tables compared "
        f"with those of the undisturbed run ({rows}).",
        "",
        f"- Faults and differing rows: {len(result['different'])}",
        f"- Arms recorded as crashed because their engine was killed: {added['arms_killed']}; loads, conversions and "
        f"probes made again for that reason: {added['records_made_again']}",
        f"- Verdicts on speed that came out otherwise, which noise decides: {added['speed_verdicts_that_differ']}",
        f"- Temporary files left below results/ at the end: {result['leftover_temporary_files']}",
        *(f"- Fault: {line}" for line in result["different"]),
    ]
    return "\n".join(lines)


def say(text: str) -> None:
    """One line of progress."""
    print(f"[kill] {text}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """0 when nothing was lost and nothing differs, else 1; the folder is kept then."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="kill nothing more after that (no limit)")
    parser.add_argument("--seed", type=int, default=20260506)
    parser.add_argument("--cache", type=Path, default=Path(os.environ.get("FINDINGS_CACHE", ROOT / "resources/cache")))
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    parser.add_argument("--folder", type=Path, help="folder for the clone (default: a temporary one)")
    arguments = parser.parse_args(argv)
    folder = (arguments.folder or Path(tempfile.mkdtemp(prefix="findings-kill-"))).resolve()
    # Started in the background, this process ignores SIGINT and what it starts would, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    bench = prepare(folder, arguments.cache.resolve())
    began = time.monotonic()
    try:
        result = test(bench, arguments.kills, arguments.minutes, random.Random(arguments.seed))  # noqa: S311 - moments, no secrets
    except KillTestError as error:
        result = {"different": [str(error)]}
    finally:
        for process in ours(bench):
            process.kill()
    result |= {"seed": arguments.seed, "minutes": round((time.monotonic() - began) / 60, 1)}
    result |= {"leftover_temporary_files": bench.leftovers, "log": bench.log}
    text = json.dumps(result, indent=1)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")
    say(f"{len(bench.log)} kills, {len(result['different'])} differences")
    print(summary(result))
    if result["different"]:
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
