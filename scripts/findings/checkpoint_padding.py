"""Pad a Gemma 4 target so that a step costs something while the text stays the same.

Speculation pays where a step of the target is dear. Training a dear target takes long; adding feed-forward columns that
are computed in full and contribute nothing takes seconds, so a positive control can be made anywhere. Needs torch
and safetensors only, which every converter's environment has.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from findings.checkpoint import CheckpointError, checkpoint_files

Tensor = Any
_WIDENED = re.compile(r"\.mlp\.(gate_proj|up_proj|down_proj)\.weight$")


def pad_checkpoint(source: Path, made: Path, columns: int, seed: int) -> None:
    """Write `source` with `columns` more feed-forward columns in every layer to the new folder `made`.

    The new rows of gate and up are random (scale 0.02, from `seed`), the new columns of down are zero. Raises
    CheckpointError for a checkpoint of another kind, or with weights in several files.
    """
    weights = [path for path in checkpoint_files(source) if path.suffix == ".safetensors"]
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    text = config.get("text_config", config)
    if text.get("model_type") != "gemma4_text" or len(weights) != 1 or columns <= 0:
        raise CheckpointError(f"{source.name}: padding takes a Gemma 4 target in one file, and columns above 0")
    torch.manual_seed(seed)
    tensors = {name: _widened(name, value, columns) for name, value in load_file(weights[0]).items()}
    text["intermediate_size"] += columns
    made.mkdir(parents=True)
    save_file(tensors, made / weights[0].name, metadata={"format": "pt"})
    (made / weights[0].name).chmod(0o644)
    (made / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, made / name)


def _widened(name: str, value: Tensor, columns: int) -> Tensor:
    """The tensor with `columns` more feed-forward columns, where it belongs to a feed-forward layer."""
    found = _WIDENED.search(name)
    if found is None:
        return value
    if found[1] == "down_proj":
        return torch.cat([value, torch.zeros(value.shape[0], columns, dtype=value.dtype)], dim=1).contiguous()
    more = torch.randn(columns, value.shape[1]) * 0.02
    return torch.cat([value, more.to(value.dtype)]).contiguous()
