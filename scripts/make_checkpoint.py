"""Train the tiny Gemma 4 checkpoints (a target, two drafters) and write them with manifest and card.

Needs an environment of its own with `pip install torch==2.13.0 transformers==5.24.0`; about five minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from findings.checkpoint import (
    CARD_NAME,
    CENTROIDS,
    CENTROIDS_ID,
    DENSE,
    DENSE_ID,
    MANIFEST_NAME,
    TARGET_ID,
    AssistantSpec,
    CheckpointError,
    TargetSpec,
    TrainingPlan,
    checkpoint_architecture,
    describe_files,
    document,
    documents,
    render_card,
)
from findings.records import write_text
from findings.writing import command

COMMITTED = Path("config/checkpoints")
STANDS_FOR = {
    TARGET_ID: "the target, as google/gemma-4-*-it",
    DENSE_ID: "drafter with a dense head, as those of 12B, 26B and 31B",
    CENTROIDS_ID: "drafter with ordered embeddings and centroids, as those of E2B and E4B",
}


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=COMMITTED, help="folder for the checkpoints")
    parser.add_argument(
        "--threads", type=int, default=1, help="threads for training (more wait for each other on a busy machine)"
    )
    parser.add_argument("--target-steps", type=int, default=TrainingPlan.target_steps)
    parser.add_argument("--assistant-steps", type=int, default=TrainingPlan.assistant_steps)
    return parser


def make_tiny(out: Path, plan: TrainingPlan, threads: int) -> None:
    """Train the three checkpoints and write them with manifest and card; folders are replaced whole, at the end."""
    import torch  # noqa: PLC0415

    from findings import checkpoint_training as training  # noqa: PLC0415

    torch.set_num_threads(threads)
    shape = TargetSpec()
    tokenizer = training.build_tokenizer(list(documents(plan.documents, plan.seed)), shape.vocab_size)
    rows = training.encode(tokenizer, plan)
    target = training.train_target(shape, plan, rows)
    made: list[tuple[str, TargetSpec | AssistantSpec, Any]] = [(TARGET_ID, shape, target)]
    for name, drafter in ((DENSE_ID, DENSE), (CENTROIDS_ID, CENTROIDS)):
        made.append((name, drafter, training.train_assistant(drafter, plan, target, shape, rows)))
    entries: dict[str, Any] = {}
    for name, spec, trained in made:
        with tempfile.TemporaryDirectory(dir=_parent(out), prefix=f".{name}.") as scratch:
            folder = Path(scratch) / name
            training.save_model(trained.model, tokenizer, folder)
            _replace(folder, out / name)
        entries[name] = {
            "architecture": checkpoint_architecture(out / name),
            "parameters": training.parameters_of(trained.model),
            "stands_for": STANDS_FOR[name],
            "shape": training.shape_of(spec),
            "loss": trained.loss,
            "seconds": trained.seconds,
            "agreement": list(trained.agreement),
            "files": describe_files(out / name),
        }
    prompt = document((3, 1, 4, 2), 1)
    manifest = {
        "command": "python scripts/make_checkpoint.py",
        "versions": training.versions(),
        "threads": threads,
        "plan": asdict(plan),
        "checkpoints": entries,
        "sample": {"prompt": prompt, "greedy": training.greedy_text(target.model, tokenizer, prompt, 48)},
    }
    write_text(out / MANIFEST_NAME, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")
    write_text(out / CARD_NAME, render_card(manifest))


def _parent(out: Path) -> Path:
    out.mkdir(parents=True, exist_ok=True)
    return out


def _replace(made: Path, final: Path) -> None:
    """Put a finished folder in the place of an older one."""
    if final.exists():
        os.replace(final, made.parent / "old")  # noqa: PTH105 - both are folders, which Path.replace cannot promise
    os.replace(made, final)  # noqa: PTH105


@command
def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 for a wrong argument or a missing package."""
    given = arguments().parse_args(argv)
    plan = TrainingPlan(target_steps=given.target_steps, assistant_steps=given.assistant_steps)
    try:
        make_tiny(given.out, plan, given.threads)
    except ImportError as error:
        print(f"make_checkpoint.py: {error}; it needs torch and transformers 5.24 (see --help)", file=sys.stderr)
        return 2
    except (CheckpointError, ValueError) as error:
        print(f"make_checkpoint.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
