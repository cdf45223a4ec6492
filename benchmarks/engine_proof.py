"""Prove the measuring protocol on this machine with a real engine and the models of the study.

    python benchmarks/engine_proof.py --nulls-only     the null comparison alone
    python benchmarks/engine_proof.py --write          all of it, into docs/engine-proof.json and docs/method.md

An interrupted run is continued where its sessions stopped. Nothing else should use the machine meanwhile: blocks in
which something did are replaced, up to half as many as are wanted.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))

from findings.cache import cache_root  # noqa: E402
from findings.engine.failure import EngineFailure  # noqa: E402
from findings.engine_proof import (  # noqa: E402
    ATTEMPT,
    ProofError,
    compare_with_loop,
    groundwork,
    known_configuration,
    null_configuration,
    run_known,
    run_nulls,
    summary_of_known,
    summary_of_nulls,
)
from findings.engine_proof_tables import render, write_into  # noqa: E402
from findings.host import host_facts  # noqa: E402
from findings.job import Job, configured, progress  # noqa: E402
from findings.records import read_record, utc_now, write_text  # noqa: E402
from findings.site import measuring_alone  # noqa: E402

LABEL = "engine proof"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nulls", type=int, default=20, help="null comparisons of 4 blocks each (default 20)")
    parser.add_argument("--nulls-only", action="store_true", help="only the null comparisons")
    parser.add_argument("--pairs", type=int, default=10, help="pairs of server and loop (default 10)")
    parser.add_argument("--rounds", type=int, default=2, help="rounds of four requests in each pair (default 2)")
    parser.add_argument("--engine", default="", help="id of an engine (default: the study's)")
    parser.add_argument("--work", type=Path, default=ROOT / "results/engine-proof", help="folder for records")
    parser.add_argument("--cache", type=Path, default=None, help="folder with models and engines")
    parser.add_argument("--write", action="store_true", help="put the result into --docs")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs", help="folder of method.md and engine-proof.json")
    arguments = parser.parse_args(argv)
    if min(arguments.nulls, arguments.pairs, arguments.rounds) < 1:
        parser.error("--nulls, --pairs and --rounds are numbers of at least 1")
    return arguments


def prove(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run what was asked for. Raises ProofError or EngineFailure where it cannot be run here."""
    base = configured(ROOT, "{}")
    engine_id = arguments.engine or base.study.default_engine
    facts = host_facts(base.host)
    records = arguments.work / facts.label
    cache = (arguments.cache or cache_root(base.settings.cache)).resolve()
    say = functools.partial(progress, LABEL)
    job = Job(known_configuration(base), records, cache, records)
    groundwork(job.configuration, engine_id, records, cache, say)
    probe = read_record(records / f"probes/{engine_id}.json")
    target = base.models[base.study.roles_of(ATTEMPT)["target"]]
    proof: dict[str, Any] = {
        "host": facts.label,
        "cpu": facts.cpu,
        "cores": facts.cores,
        "threads": base.study.threads,
        "engine": engine_id,
        "engine_version": str(probe.detail.get("version", "")),
        "target": target.id,
        "date": utc_now()[:10],
        "seed": base.study.protocol.seed,
    }
    with measuring_alone(cache, LABEL):
        nulls = replace(job, configuration=null_configuration(base, arguments.nulls))
        _, blocks = run_nulls(nulls, engine_id, records / "nulls", say)
        proof["nulls"] = {"asked": arguments.nulls, **summary_of_nulls(blocks)}
        if not arguments.nulls_only:
            record, blocks = run_known(job, engine_id, records / "known", say)
            proof["known"] = summary_of_known(job.configuration, record, blocks)
            proof["own_figure"] = compare_with_loop(job, engine_id, arguments.pairs, arguments.rounds, say)
    return proof


def main(argv: Sequence[str] | None = None) -> int:
    """Print the result; 0 whatever it says, 1 where it cannot be had here."""
    arguments = parse(argv)
    try:
        proof = prove(arguments)
    except (ProofError, EngineFailure) as error:
        print(f"{LABEL}: {error}", file=sys.stderr)
        return 1
    print(render(proof), end="")
    if arguments.write:
        method = arguments.docs / "method.md"
        write_text(method, write_into(method.read_text(encoding="utf-8"), proof))
        write_text(arguments.docs / "engine-proof.json", json.dumps(proof, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
