"""How long and how much memory it takes to collect many measurement rows from records into the tables.

`python benchmarks/collect_scale.py --rows 1000000` makes records of real shape in a temporary folder, collects them in
a process of its own, and prints seconds, rows per second, and the largest resident memory. Goal: 1,000,000 rows within
60 s and 1 GiB. Run it on an idle machine; records of a million rows take about 2.5 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "scripts"))

from findings.blocks import ArmRun, Block, RequestResult, block_to_json
from findings.records import Engagement, Kind, Outcome, Record

ARMS = (
    ("baseline", "baseline", "none"),
    ("null", "null", "none"),
    ("control", "positive_control", "ngram_simple"),
    ("draft", "candidate", "draft_simple"),
)
CLASSES = ("prose", "code", "structured")
PROMPTS = 2
TOKENS = 64
BLOCKS_PER_RUN = 12


def _requests(chance: random.Random, speculates: bool) -> tuple[RequestResult, ...]:
    answers = []
    for number, name in enumerate(("warm-up", *(f"{c}-{i}" for c in CLASSES for i in range(PROMPTS)))):
        drafted = chance.randrange(20, 60) if speculates else None
        answers.append(
            RequestResult(
                name,
                name.split("-")[0],
                number > 0,
                Outcome.OK,
                prompt_n=60,
                prompt_ms=chance.uniform(100, 200),
                predicted_n=TOKENS,
                predicted_ms=chance.uniform(1500, 2500),
                draft_n=drafted,
                draft_n_accepted=drafted // 2 if drafted else None,
                text_sha256=f"{chance.getrandbits(256):064x}",
                tokens=tuple(chance.randrange(262_144) for _ in range(TOKENS)),
                degenerate=False,
            )
        )
    return tuple(answers)


def _block(chance: random.Random, number: int) -> Block:
    arms = {}
    for position, (name, kind, speculation) in enumerate(ARMS, start=1):
        arms[name] = ArmRun(
            name,
            kind,
            speculation,
            Outcome.OK,
            Engagement.OFF if speculation == "none" else Engagement.WITH_DRAFTS,
            position=position,
            started="2026-12-02T06:30:00Z",
            startup_s=0.9,
            engine_cpu_s=30.0,
            engine_wall_s=15.0,
            rss_bytes=500_000_000,
            settings={"n_ctx": 2048, "model": "model.gguf"},
            log_tail=tuple(f"log line {i} of the engine, as long as such lines are" for i in range(40)),
            requests=_requests(chance, speculation != "none"),
        )
    return Block(number, tuple(arms), 20260506, "0123456789abcdef", arms)


def make_records(folder: Path, rows: int) -> int:
    """Write complete runs below `folder` until they hold at least `rows` requests; returns the number of requests."""
    chance = random.Random(1)  # noqa: S311 - data, not secrets
    per_block = len(ARMS) * (1 + len(CLASSES) * PROMPTS)
    made = session = 0
    while made < rows:
        engine = f"engine-{session}"
        run = folder / "scale-host" / "measure" / "attempt_1" / engine / "run-001"
        run.mkdir(parents=True)
        for number in range(1, BLOCKS_PER_RUN + 1):
            record = Record(
                Kind.BLOCK,
                f"attempt_1/{engine}/{number}",
                Outcome.OK,
                host="scale-host",
                study="scale",
                attempt="attempt_1",
                engine=engine,
                detail=block_to_json(_block(chance, number)),
            )
            # As to_json does it, without its search for secrets, of which there are none here.
            text = json.dumps(asdict(record), indent=1, ensure_ascii=False, sort_keys=True) + "\n"
            (run / f"block-{number:03d}.json").write_text(text, encoding="utf-8")
            made += per_block
        (run / "complete.json").write_text('{"key": "x", "finished": "2026-12-02T06:40:00Z"}\n', encoding="utf-8")
        session += 1
    return made


def _collect(records: Path, out: Path) -> int:
    """Collect in this process; print seconds, rows and peak memory as JSON."""
    from findings.evidence import collect, gather  # noqa: PLC0415 - the parent needs none of it

    nothing = SimpleNamespace(measurements={}, claims={}, hosts={})
    configuration = SimpleNamespace(
        settings=SimpleNamespace(imports=()), engines={}, converters={}, models={}, published=nothing, root=Path()
    )
    began, cpu = time.monotonic(), time.process_time()
    done = collect(configuration, gather(configuration, records), out)  # type: ignore[arg-type] # no file of config/ needed
    seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    counts = {"rows": done.rows["measurements"], "files": done.files}
    print(json.dumps(counts | {"seconds": seconds, "cpu_seconds": cpu, "peak_bytes": peak}))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Print what collecting took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the temporary records go (default: the system's)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--collect", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.collect is not None:
        return _collect(arguments.collect, arguments.out)
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        records = Path(folder) / "records"
        made = make_records(records, arguments.rows)
        size = sum(path.stat().st_size for path in records.rglob("*.json"))
        print(f"{made} requests in {size / 2**20:.0f} MiB of records", file=sys.stderr, flush=True)
        command = [sys.executable, __file__, "--collect", str(records), "--out", str(Path(folder) / "tables")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    result = json.loads(done.stdout)
    if arguments.json:
        print(done.stdout, end="")
        return 0
    print(
        f"{result['rows']} rows from {result['files']} files in {result['seconds']:.1f} s "
        f"({result['rows'] / result['seconds']:.0f} rows/s; {result['cpu_seconds']:.1f} s of processor time), "
        f"peak {result['peak_bytes'] / 2**20:.0f} MiB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
