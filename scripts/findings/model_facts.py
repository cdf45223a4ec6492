"""What a model's header says about its shape, as plain numbers: for the memory plan and for the `facts` record.

Keys are those of llama.cpp's converter (`<architecture>.block_count` ...); values that a file may give per layer
(heads, feed-forward length, sliding windows) come as one number per layer.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from findings import vocabulary
from findings.gguf_header import Header, Tensor, Value

# Every n-th layer attends to everything, the others to a window, where the file does not list the layers itself
# (`set_swa_pattern` or its default in src/models/*.cpp of llama.cpp 11434).
_WINDOW_PERIOD = {"gemma2": 2, "gemma3": 6, "gemma3n": 5, "gemma-embedding": 6, "cohere2": 4, "gpt-oss": 2, "olmo2": 4}
_WINDOW_PERIOD |= {"exaone4": 4, "llama4": 4}
_KV_FROM_START = {"gemma3n": 20}
MAX_LAYERS = 4096
MTP_ARCHITECTURES = ("gemma4-assistant",)
DRAFTER_TYPES = {"gemma4-assistant": "draft_mtp", "eagle3": "draft_eagle3", "dflash": "draft_dflash"}


@dataclass(frozen=True)
class Shape:
    """A model's shape. Per-layer tuples have `layers` entries; sizes in elements, `context` and `window` in tokens.

    `kv_layers` is the number of layers that keep keys and values of their own (the others share); `windowed` says for
    each layer whether it attends to a sliding window only.
    """

    architecture: str
    name: str
    layers: int
    width: int
    width_out: int
    context: int
    heads: tuple[int, ...]
    kv_heads: tuple[int, ...]
    key_length: tuple[int, ...]
    value_length: tuple[int, ...]
    feed_forward: tuple[int, ...]
    window: int
    windowed: tuple[bool, ...]
    kv_layers: int
    nextn_layers: int
    experts: int
    experts_used: int
    per_layer_width: int


def _small_value(header: Header, key: str) -> Value | None:
    """A value, None where it is absent or an array longer than any model has layers (hostile files claim millions)."""
    return header.value(key) if (header.items(key) or 0) <= MAX_LAYERS else None


def _per_layer(header: Header, key: str, layers: int, default: int) -> tuple[int, ...]:
    """A value that a file gives once or per layer, as one per layer; `default` where it is absent."""
    found = _small_value(header, key)
    if isinstance(found, list):
        numbers = [int(n) for n in found if isinstance(n, int | bool)]
        return tuple((numbers + [default] * layers)[:layers])
    return (found if isinstance(found, int) else default,) * layers


def shape(header: Header) -> Shape:
    """The shape of a model; a missing number is 0 (whether an engine then loads it is asked elsewhere)."""
    architecture = header.text("general.architecture")

    def number(key: str, default: int = 0) -> int:
        found = header.integer(f"{architecture}.{key}")
        return default if found is None else found

    layers = max(0, min(number("block_count"), MAX_LAYERS))
    width = number("embedding_length")
    heads = _per_layer(header, f"{architecture}.attention.head_count", layers, 0)
    kv_heads = tuple(
        kv or own
        for kv, own in zip(_per_layer(header, f"{architecture}.attention.head_count_kv", layers, 0), heads, strict=True)
    )
    natural = width // heads[0] if heads and heads[0] else 0
    window = number("attention.sliding_window")
    windowed = _windowed(header, architecture, layers, window)
    keys, values = (number(f"attention.{kind}_length", natural) for kind in ("key", "value"))
    window_keys, window_values = number("attention.key_length_swa", keys), number("attention.value_length_swa", values)
    shared = number("attention.shared_kv_layers")
    own = layers - shared if shared else min(layers, _KV_FROM_START.get(architecture, layers))
    return Shape(
        architecture=architecture,
        name=header.text("general.name"),
        layers=layers,
        width=width,
        width_out=number("embedding_length_out", width),
        context=number("context_length"),
        heads=heads,
        kv_heads=kv_heads,
        key_length=tuple(window_keys if narrow else keys for narrow in windowed),
        value_length=tuple(window_values if narrow else values for narrow in windowed),
        feed_forward=_per_layer(header, f"{architecture}.feed_forward_length", layers, 0),
        window=window,
        windowed=windowed,
        kv_layers=0 if architecture in MTP_ARCHITECTURES else max(0, own),
        nextn_layers=number("nextn_predict_layers"),
        experts=number("expert_count"),
        experts_used=number("expert_used_count"),
        per_layer_width=number("embedding_length_per_layer_input"),
    )


def _windowed(header: Header, architecture: str, layers: int, window: int) -> tuple[bool, ...]:
    if not window:
        return (False,) * layers
    pattern = _small_value(header, f"{architecture}.attention.sliding_window_pattern")
    if isinstance(pattern, list):
        return tuple(([bool(entry) for entry in pattern] + [False] * layers)[:layers])
    period = (
        pattern if isinstance(pattern, int) and not isinstance(pattern, bool) else _WINDOW_PERIOD.get(architecture, 0)
    )
    if period <= 0:
        return (False,) * layers
    return tuple(layer % period < period - 1 for layer in range(layers))


def tensor_bytes(tensors: tuple[Tensor, ...]) -> int:
    """Bytes of all tensors whose type is known."""
    return sum(tensor.size_bytes or 0 for tensor in tensors)


def facts(header: Header) -> dict[str, Any]:
    """The facts of a model as JSON for a record: shape, vocabulary, sizes in bytes, types of the tensors."""
    found = shape(header)
    mix: Counter[str] = Counter()
    for tensor in header.tensors:
        mix[tensor.type_name] += tensor.size_bytes or 0
    return {
        "file": header.path.name,
        "gguf_version": header.version,
        "big_endian": header.big_endian,
        "architecture": found.architecture,
        "name": found.name,
        "file_bytes": header.file_bytes,
        "header_bytes": header.size_bytes,
        "data_offset": header.data_offset,
        "keys": len(header.fields),
        "tensors": len(header.tensors),
        "tensor_bytes": tensor_bytes(header.tensors),
        "parameters": sum(tensor.elements for tensor in header.tensors),
        "quantization_mix_bytes": dict(sorted(mix.items(), key=lambda item: -item[1])),
        "file_type": header.integer("general.file_type"),
        "context_length": found.context,
        "layers": found.layers,
        "width": found.width,
        "width_out": found.width_out,
        "heads": sorted(set(found.heads)),
        "kv_heads": sorted(set(found.kv_heads)),
        "key_lengths": sorted(set(found.key_length)),
        "value_lengths": sorted(set(found.value_length)),
        "feed_forward_lengths": sorted(set(found.feed_forward)),
        "sliding_window": found.window,
        "windowed_layers": sum(found.windowed),
        "kv_layers": found.kv_layers,
        "nextn_layers": found.nextn_layers,
        "experts": found.experts,
        "experts_used": found.experts_used,
        "drafter_for": DRAFTER_TYPES.get(found.architecture, ""),
        "tokenizer": vocabulary.facts(header),
        "license": header.text("general.license"),
    }
