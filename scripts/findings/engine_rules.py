"""What a build of llama.cpp knows and how it compares vocabularies: the one table, and answers for builds in between.

engine_rules.json holds samples of builds, each with how it was learned. A build that was not sampled takes the nearest
sample; where the samples on both sides agree the answer counts as certain, else it says which build it was taken from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

RULES_FILE = Path(__file__).with_name("engine_rules.json")
NEWEST_TESTED = 11549


@dataclass(frozen=True)
class Known:
    """An answer; `certain` is False where a neighbouring build had to stand in (`source` names it)."""

    yes: bool
    certain: bool
    source: str


@dataclass(frozen=True)
class Behaviour:
    """How one build treats a pair.

    `type_compared_as`: "bool" (every type but `none` counts as the same) or "number". `on_mismatch`: "translated" or
    "not_engaged". `spec_type_needed`: a drafter's file alone does not start speculation. `logits_for_whole_batch`:
    the compute buffer holds logits for every token of a micro-batch. `mtp`: the server has draft-mtp.
    `special_ids_compared`: "always", or "when_added" (the BOS id only where add_bos is on, EOS likewise).
    `drafter_without_vocabulary` and `mtp_as_draft_simple` (an MTP drafter started as an ordinary one): how that ends.
    """

    build: int
    sample: int
    certain: bool
    how: str
    type_compared_as: str
    on_mismatch: str
    spec_type_needed: bool
    logits_for_whole_batch: bool
    drafter_without_vocabulary: str
    mtp: bool
    special_ids_compared: str
    mtp_as_draft_simple: str

    @property
    def note(self) -> str:
        """A sentence for a build that another one stands in for; empty where the build itself is known."""
        if self.certain:
            return ""
        return f"build {self.build} was never looked at; these are the rules of the nearest known one, {self.sample}"


@cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(RULES_FILE.read_text(encoding="utf-8"))
    return table


def _neighbours(samples: list[dict[str, Any]], build: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The samples at or below and at or above a build (twice the same outside the range)."""
    below = [sample for sample in samples if sample["build"] <= build]
    above = [sample for sample in samples if sample["build"] >= build]
    low = below[-1] if below else above[0]
    return low, above[0] if above else low


def _nearest(low: dict[str, Any], high: dict[str, Any], build: int) -> dict[str, Any]:
    return low if build - low["build"] <= high["build"] - build else high


@cache
def behaviour(build: int) -> Behaviour:
    """How this build treats a pair of models."""
    low, high = _neighbours(_table()["behaviour"], build)
    chosen = _nearest(low, high, build) if low["build"] <= build else high
    names = [name for name in Behaviour.__dataclass_fields__ if name not in ("build", "sample", "certain", "how")]
    inside = low["build"] <= build <= high["build"]
    agree = all(low[name] == high[name] for name in names)
    return Behaviour(build, chosen["build"], inside and agree, chosen["how"], **{name: chosen[name] for name in names})


@cache
def _names(series: str) -> Mapping[int, frozenset[str]]:
    """Sampled build -> every name it knows."""
    found: dict[int, frozenset[str]] = {}
    current: frozenset[str] = frozenset()
    for sample in _table()[series]:
        current = frozenset(sample["names"]) if "names" in sample else current | set(sample["added"])
        current -= set(sample.get("removed", ()))
        found[sample["build"]] = current
    return found


def knows(series: str, name: str, build: int) -> Known:
    """Whether a build knows a name of `series`: architectures, pre_tokenizers or tokenizers."""
    samples = _table()[series]
    low, high = _neighbours(samples, build)
    names = _names(series)
    chosen = _nearest(low, high, build)
    inside = samples[0]["build"] <= build <= samples[-1]["build"]
    in_low, in_high = name in names[low["build"]], name in names[high["build"]]
    # Names are added and hardly ever removed: one that an older build knows is known to a newer one, too.
    certain = in_low == in_high and (inside or (in_low and build > samples[-1]["build"]))
    return Known(name in names[chosen["build"]], certain, f"{chosen['build']} ({chosen['how']})")


def known_since(series: str, name: str) -> int | None:
    """The first sampled build that knows a name; None where none does."""
    return next((build for build, names in _names(series).items() if name in names), None)


def pre_tokenizer_adds_bos(pre: str) -> bool:
    """Whether the loader switches add_bos on for this pre-tokenizer of BPE (llama-vocab.cpp)."""
    return pre in _table()["pre_tokenizers_that_add_bos"]


def pre_tokenizer_has_no_bos(pre: str) -> bool:
    """Whether the loader takes the default BOS away for this pre-tokenizer."""
    return pre in _table()["pre_tokenizers_without_bos"]


def vocabulary_type(tokenizer: str) -> int | None:
    """The engine's number of the vocabulary type that a tokenizer.ggml.model becomes; None where it is unknown."""
    found: int | None = _table()["vocabulary_types"].get(tokenizer)
    return found


def first_unknown_tensor_type(build: int) -> int:
    """The smallest number of a tensor type that a build refuses."""
    low, high = _neighbours(_table()["tensor_types"], build)
    found: int = _nearest(low, high, build)["first_unknown"]
    return found


@cache
def _tensor_patterns() -> frozenset[str]:
    return frozenset(_table()["tensor_names"]["names"])


def tensor_name_is_known(name: str) -> bool:
    """Whether any architecture of the newest sampled build has a tensor of this name."""
    stem = name.removesuffix(".weight").removesuffix(".bias").removesuffix(".scale").removesuffix(".input_scale")
    parts = stem.split(".")
    return ".".join("%d" if part.isdigit() else part for part in parts) in _tensor_patterns()
