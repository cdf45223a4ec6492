"""A copy of a GGUF whose steps cost more and whose text stays the same: the positive control of multi-token prediction.

Speculation pays where a step of the target is dear. Training a dear target takes long; adding feed-forward columns that
are computed in full and contribute nothing takes a second, so a machine that can show MTP paying can be had anywhere.
Artificial on purpose: what it shows is that engine and machine can make MTP pay, nothing about a natural model.
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from findings.cache import exclusive, is_verified, land
from findings.records import sha256_file, sha256_text, write_text

SEED = 20260506
_WIDENED = re.compile(r"\.ffn_(gate|up|down)\.weight$")


class PaddingError(ValueError):
    """A file that cannot be padded; the message says why."""


def padded(source: Path, source_sha256: str, name: str, cache: Path, columns: int) -> tuple[Path, str]:
    """(path, sha256) of the padded copy in the cache, made once. Raises PaddingError, CacheError, OSError."""
    key = sha256_text(f"padded {columns} {SEED} {source_sha256}")[:32]
    target = cache / "converted" / key / name
    noted = target.parent / "sha256.txt"
    with exclusive(cache, f"padded-{key}", f"pad {name}"):
        known = noted.read_text(encoding="utf-8").partition(" ")[0].strip() if noted.is_file() else ""
        if known and is_verified(target, known):
            return target, known
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, part = tempfile.mkstemp(dir=target.parent, prefix=f".{name}.", suffix=".part")
        os.close(handle)
        try:
            pad(source, Path(part), columns)
            Path(part).chmod(0o644)
            digest = sha256_file(Path(part))
            land(Path(part), target, digest)
        finally:
            Path(part).unlink(missing_ok=True)
        write_text(noted, f"{digest}  {name}\n")
    return target, digest


def pad(source: Path, made: Path, columns: int) -> None:
    """Write `source` with `columns` more feed-forward columns a layer to `made`.

    The new rows of gate and up are random, the new columns of down are zero, so the layer's result is the same up to
    the order of its sums. Raises PaddingError for a file that is not GGUF, has other than 16- or 32-bit feed-forward
    weights, or has none.
    """
    try:
        reader = gguf.GGUFReader(source)
    except (ValueError, OSError, IndexError) as error:
        raise PaddingError(f"{source.name}: not a GGUF that can be read ({error})") from error
    architecture = str(reader.fields["general.architecture"].contents())
    length_key = f"{architecture}.feed_forward_length"
    if columns <= 0 or length_key not in reader.fields:
        raise PaddingError(f"{source.name}: padding takes a model with {length_key}, and more than 0 columns")
    writer = gguf.GGUFWriter(made, architecture)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        value = field.contents()
        if name == length_key:
            value = [item + columns for item in value] if isinstance(value, list) else value + columns
        writer.add_key_value(name, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    # The legacy generator: its stream of numbers is the same in every version of numpy.
    source_of_weights = np.random.RandomState(SEED)
    widened = 0
    for tensor in reader.tensors:
        data, changed = _widened(source.name, tensor, columns, source_of_weights)
        widened += changed
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    if not widened:
        raise PaddingError(f"{source.name}: has no feed-forward weights of the names ffn_gate, ffn_up, ffn_down")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _widened(file: str, tensor: Any, columns: int, numbers: np.random.RandomState) -> tuple[Any, bool]:
    """(the tensor's data, whether it was widened); rows of `data` are outputs."""
    found = _WIDENED.search(tensor.name)
    if found is None:
        return np.ascontiguousarray(tensor.data), False
    if tensor.tensor_type not in (gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.F32):
        raise PaddingError(f"{file}: {tensor.name} is {tensor.tensor_type.name}; padding takes F16 or F32")
    rows, width = tensor.data.shape
    if found[1] == "down":
        return np.concatenate([tensor.data, np.zeros((rows, columns), tensor.data.dtype)], axis=1), True
    more = numbers.uniform(-0.035, 0.035, (columns, width)).astype(tensor.data.dtype)
    return np.concatenate([tensor.data, more], axis=0), True
