"""Drafters made for one target: multi-token prediction (MTP) and its relatives, and how they must be started.

Source: src/models/gemma4-assistant.cpp, common/speculative.cpp of llama.cpp 11434, and builds 9713 and 11549 as tried.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from findings.engine_rules import Behaviour
from findings.gguf_header import Header
from findings.model_facts import DRAFTER_TYPES, Shape, shape

_ASSISTANT_NEEDS = ("nextn.pre_projection.weight", "nextn.post_projection.weight")


@dataclass(frozen=True)
class MtpCheck:
    """Whether a drafter is made for a target. `problems` keep it from working; `notes` do not.

    `spec_type` is our word for what it must be started with; `target_width` the width (elements) that it expects.
    """

    is_mtp: bool
    spec_type: str
    target_width: int
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For a record."""
        return {
            "is_mtp": self.is_mtp,
            "spec_type": self.spec_type,
            "target_width": self.target_width,
            "problems": list(self.problems),
            "notes": list(self.notes),
        }


def needed_type(drafter: Header) -> str:
    """Our word for the speculation that a drafter is made for: draft_simple, or that of its architecture."""
    return DRAFTER_TYPES.get(drafter.text("general.architecture"), "draft_simple")


def check_mtp(target: Header, drafter: Header, rules: Behaviour) -> MtpCheck:
    """The questions that a drafter of its own architecture raises; empty for an ordinary model."""
    spec_type = needed_type(drafter)
    theirs = shape(drafter)
    if spec_type == "draft_simple":
        nextn = [tensor.name for tensor in drafter.tensors if ".nextn." in tensor.name]
        notes = (f"it carries {len(nextn)} tensors for predicting further tokens (nextn); draft_simple ignores them",)
        return MtpCheck(False, spec_type, 0, notes=notes if nextn else ())
    problems, notes_ = [], []
    ours = shape(target)
    if theirs.width_out != ours.width_out:
        problems.append(
            f"it is made for a target of width {theirs.width_out}, this target has {ours.width_out}; the engine aborts"
        )
    if not rules.mtp and spec_type == "draft_mtp":
        problems.append(f"build {rules.build} has no draft-mtp")
    problems += _incomplete(drafter, theirs)
    notes_ += _ordering(drafter)
    return MtpCheck(True, spec_type, theirs.width_out, tuple(problems), tuple(notes_))


def _incomplete(drafter: Header, found: Shape) -> list[str]:
    if found.architecture != "gemma4-assistant":
        return []
    names = {tensor.name for tensor in drafter.tensors}
    problems = [f"missing tensor {name!r}" for name in _ASSISTANT_NEEDS if name not in names]
    if found.width_out == found.width:
        problems.append("embedding_length_out is missing or equals embedding_length: the target's width is not stated")
    return problems


def _ordering(drafter: Header) -> list[str]:
    """The E2B and E4B drafters choose tokens by centroids; what of that the file holds."""
    names = {tensor.name.removesuffix(".weight") for tensor in drafter.tensors}
    centroids, ordering = "masked_embd_centroids" in names, "masked_embd_ordering" in names
    if centroids and ordering:
        return [
            "it holds centroids and token ordering (E2B, E4B); builds up to 11434 load them and compute without them"
        ]
    if centroids or ordering:
        lacking = "token ordering" if centroids else "centroids"
        return [
            f"it holds only one half of the ordered embeddings: the {lacking} are missing; the other half is of no use"
        ]
    return []
