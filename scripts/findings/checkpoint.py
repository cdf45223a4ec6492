"""What the tiny Gemma 4 checkpoints are: shapes, training text, files, checksums and the card beside them.

The study could not use the official drafter because no converter knew `Gemma4AssistantForCausalLM`. To test that claim
with every build, without a licence and within seconds, the repository holds a target and two drafters of exactly that
architecture, small enough to be committed. `findings.checkpoint_training` trains them; this module needs no torch.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findings.records import sha256_file

TARGET_ID = "tiny-gemma4-target"
DENSE_ID = "tiny-gemma4-assistant-dense"
CENTROIDS_ID = "tiny-gemma4-assistant-centroids"
CHECKPOINT_IDS = (TARGET_ID, DENSE_ID, CENTROIDS_ID)
MANIFEST_NAME = "manifest.json"
CARD_NAME = "README.md"

SPECIAL_TOKENS = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
PAD_ID, EOS_ID, BOS_ID = 0, 1, 2
"""Places of the special tokens, the same as in the official vocabulary."""


class CheckpointError(ValueError):
    """A checkpoint folder, or a specification of one, that cannot work; the message names the file or key."""


@dataclass(frozen=True)
class TargetSpec:
    """Shape of the target, in elements. `head_dim` is that of sliding layers, `global_head_dim` that of full layers."""

    vocab_size: int = 448
    hidden_size: int = 64
    intermediate_size: int = 128
    layers: int = 6
    heads: int = 2
    head_dim: int = 32
    global_head_dim: int = 64
    sliding_window: int = 512
    max_positions: int = 2048

    def __post_init__(self) -> None:
        """Refuse a shape which transformers would change silently."""
        if self.layers % 6:
            raise CheckpointError(
                f"layers: {self.layers} is not a multiple of 6 (five sliding layers, then a full one)"
            )


@dataclass(frozen=True)
class AssistantSpec:
    """Shape of a drafter; `centroids` 0 means the dense head of the 12B, 26B and 31B drafters.

    A number above 0 makes the ordered embeddings of the E2B and E4B drafters: the vocabulary in that many clusters of
    the same size, of which the `top_k` nearest are looked at for each token.
    """

    hidden_size: int = 48
    intermediate_size: int = 96
    centroids: int = 0
    top_k: int = 0

    def check_against(self, target: TargetSpec) -> None:
        """Raise CheckpointError where drafter and target cannot belong together."""
        if self.hidden_size == target.hidden_size:
            # The engine takes an equal width for a missing one ("requires embedding_length_out to carry ...").
            raise CheckpointError(
                f"hidden_size: {self.hidden_size} equals the target's; the engine refuses such a drafter"
            )
        if self.centroids and target.vocab_size % self.centroids:
            raise CheckpointError(f"centroids: {self.centroids} does not divide the vocabulary of {target.vocab_size}")
        if self.centroids and not 0 < self.top_k <= self.centroids:
            raise CheckpointError(f"top_k: {self.top_k} is outside 1..{self.centroids}")


@dataclass(frozen=True)
class TrainingPlan:
    """How long to train: optimizer steps, sequences a step, tokens a sequence, drafted tokens a drafter is unrolled."""

    target_steps: int = 320
    assistant_steps: int = 240
    batch: int = 12
    length: int = 192
    positions: int = 24
    unroll: int = 4
    target_rate: float = 4e-3
    assistant_rate: float = 5e-3
    documents: int = 600
    seed: int = 20260506


DENSE = AssistantSpec()
CENTROIDS = AssistantSpec(centroids=32, top_k=8)

PARAGRAPHS = 10
NAMES = ("Anna", "Boris", "Clara", "David", "Emma", "Felix", "Greta")
PLACES = ("garden", "kitchen", "library", "market", "station")
THINGS = ("apple", "book", "clock", "drum", "engine", "flute", "globe", "hammer")
VERBS = ("carry", "find", "paint", "repair", "sell", "watch")


def paragraph(name: str, place: str, thing: str, verb: str) -> str:
    """One line of the only text that the tiny models know."""
    return (
        f"{name} goes to the {place} to {verb} the {thing}. The {thing} is old, but {name} likes it. "
        f"Then {name} leaves the {place} and takes the {thing} home.\n"
    )


def document(start: Sequence[int], paragraphs: int) -> str:
    """Text in which each paragraph follows from the one before; `start` are places in the four lists.

    Name, place, thing and verb each go round a list of their own length, so the text never repeats within 840
    paragraphs and yet a small model can know every next word: high acceptance without degenerate output.
    """
    lists = (NAMES, PLACES, THINGS, VERBS)
    return "".join(
        paragraph(*(words[(at + step) % len(words)] for words, at in zip(lists, start, strict=True)))
        for step in range(paragraphs)
    )


def documents(count: int, seed: int) -> Iterator[str]:
    """`count` training documents in a fixed pseudo-random order; the same seed gives the same text everywhere."""
    source = random.Random(seed)  # noqa: S311 - training text, not a secret
    for _ in range(count):
        yield document([source.randrange(840) for _ in range(4)], PARAGRAPHS)


def checkpoint_files(folder: Path) -> tuple[Path, ...]:
    """The files of one checkpoint in the order of their names.

    Raises CheckpointError where config.json or safetensors are missing, or a file can run code when it is read.
    """
    files = tuple(sorted(path for path in folder.glob("*") if path.is_file() and not path.name.startswith(".")))
    if not any(path.name == "config.json" for path in files):
        raise CheckpointError(
            f"{folder.name}: no config.json; give the folder of a checkpoint as transformers saves it"
        )
    if not any(path.suffix == ".safetensors" for path in files):
        raise CheckpointError(f"{folder.name}: no *.safetensors; other formats of weights are not read here")
    unsafe = [path.name for path in files if path.suffix in {".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt"}]
    if unsafe:
        raise CheckpointError(f"{folder.name}: {', '.join(unsafe)} can run code when read; keep the safetensors only")
    return files


def checkpoint_architecture(folder: Path) -> str:
    """The first entry of `architectures` in config.json (CheckpointError without one)."""
    path = folder / "config.json"
    try:
        named = json.loads(path.read_text(encoding="utf-8")).get("architectures") or []
    except (OSError, json.JSONDecodeError, AttributeError) as error:
        raise CheckpointError(f"{folder.name}/config.json: not readable as JSON ({error})") from error
    if not named:
        raise CheckpointError(f"{folder.name}/config.json: architectures is missing")
    return str(named[0])


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """`{file name: {sha256, size_bytes}}` of a checkpoint."""
    return {p.name: {"sha256": sha256_file(p), "size_bytes": p.stat().st_size} for p in checkpoint_files(folder)}


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest beside the committed checkpoints (CheckpointError when it cannot be read)."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST_NAME).read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{folder / MANIFEST_NAME}: not readable ({error}); run scripts/make_checkpoint.py"
        ) from error
    return manifest


_CARD = """\
# Tiny Gemma 4 checkpoints for multi-token prediction

Generated by `scripts/make_checkpoint.py` together with the files; `manifest.json` holds the same facts for programs.

| folder | architecture | parameters | what it stands for |
|---|---|---|---|
{rows}

## What they are for

They show whether a converter and an engine of some build **can** convert, load and draft with the official drafter's
architecture. They prove function, not profit: at this size a token costs next to nothing, so no speed follows from
them. They were trained on templated text made by this repository; they know nothing else, and they hold no weight
of anybody's model. The weights are under the licence of this repository.

The two drafters share the target and differ in the head. The dense one has a head over the whole vocabulary, as the
12B, 26B and 31B drafters have. The other has `use_ordered_embeddings` with {n_centroids} centroids (the best {top_k}
are looked at), as the E2B and E4B drafters have. llama.cpp's converters from b9581 to b11434 leave the centroids out
and its runtime then takes the whole head, so both forms run there in the same way. What the official ones have and
these lack: per-layer input embeddings and shared KV layers in the target, and size.

## How they were made

```
pip install torch==2.13.0 transformers==5.24.0
{command}
```

Seed {seed}; {versions}; threads: {threads}.
Training on another processor or another version gives weights of the same shape that are not bit for bit the same.

| what | loss at the end (nats a token) | seconds | agreement with the target's greedy choice, drafted token 1, 2, ... |
|---|---|---|---|
{training}

The drafters are distilled: a state of the target and the embedding of the newest token go in, the target's own
distribution over the next tokens is the goal, for as many drafted tokens as the last column has. Keys and values come
from the target's last sliding and last full layer, and the position stays that of the last verified token, as the
engine does it.

## A target whose steps cost something

`scripts/pad.py` needs no training: it adds feed-forward columns to the converted target that are computed in full and
contribute nothing (zero weights after them), so the text stays the same while a step costs about as much as one of a
model of 18 million parameters. With the dense drafter it is the positive control: it shows that an engine and a machine
can make multi-token prediction pay. It is artificial on purpose.

## Files

| file | bytes | sha256 |
|---|---|---|
{files}
"""


def render_card(manifest: Mapping[str, Any]) -> str:
    """README.md of the checkpoints, from the manifest alone (so that the two cannot differ)."""
    made = manifest["checkpoints"]
    rows = [f"| `{n}` | `{c['architecture']}` | {c['parameters']:,} | {c['stands_for']} |" for n, c in made.items()]
    training = [
        f"| `{n}` | {c['loss']:.3f} | {c['seconds']:.0f} | {', '.join(f'{a:.2f}' for a in c['agreement']) or '-'} |"
        for n, c in made.items()
    ]
    files = [
        f"| `{n}/{name}` | {f['size_bytes']:,} | `{f['sha256']}` |"
        for n, c in made.items()
        for name, f in c["files"].items()
    ]
    return _CARD.format(
        rows="\n".join(rows),
        training="\n".join(training),
        files="\n".join(files),
        n_centroids=made[CENTROIDS_ID]["shape"]["centroids"],
        top_k=made[CENTROIDS_ID]["shape"]["top_k"],
        command=manifest["command"],
        seed=manifest["plan"]["seed"],
        versions=", ".join(f"{name} {version}" for name, version in manifest["versions"].items()),
        threads=manifest["threads"],
    )
