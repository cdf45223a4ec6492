"""How much memory a pair takes: weights, KV cache, compute buffers, by model, against what there is.

Formulas follow llama.cpp: weights are the tensors' bytes; the KV cache is built per layer (llama-kv-cache.cpp),
windowed layers hold window + micro-batch cells (llama-kv-cache-iswa.cpp), both rounded up to 256; layers that share
keep nothing.
The compute buffer is an estimate, fitted to what builds 8929, 9538 and 11549 print for two models (docs/precheck.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from findings.engine_rules import Behaviour
from findings.gguf_header import TENSOR_TYPES, Header, Tensor
from findings.model_facts import Shape, shape

CELL_STEP = 256
DEFAULT_CTX, DEFAULT_UBATCH = 4096, 512
CACHE_TYPES = {name.lower(): (block, size) for name, block, size in TENSOR_TYPES.values()}
_MIB = 1 << 20


class MemoryPlanError(ValueError):
    """Settings that no plan can be made for; the message names the value."""


@dataclass(frozen=True)
class Settings:
    """What a plan is made for: context and micro-batch in tokens, slots, cache types by ggml's names in lower case.

    `draft_max` is the longest draft in tokens (the target computes that many logits more).
    """

    ctx: int = DEFAULT_CTX
    ubatch: int = DEFAULT_UBATCH
    slots: int = 1
    cache_k: str = "f16"
    cache_v: str = "f16"
    swa_full: bool = False
    draft_max: int = 16


@dataclass(frozen=True)
class ModelMemory:
    """Bytes of one model.

    `per_layer_embeddings` is the part of the weights that stays in main memory and is read row by row;
    `token_embeddings` likewise, where the output has weights of its own.
    """

    weights: int
    kv_cache: int
    compute: int
    output: int
    token_embeddings: int
    per_layer_embeddings: int
    full_layers: int
    windowed_layers: int
    sharing_layers: int
    notes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """Weights, caches and buffers."""
        return self.weights + self.kv_cache + self.compute + self.output

    def as_json(self) -> dict[str, Any]:
        """For a record; sizes in bytes."""
        return {
            "weights_bytes": self.weights,
            "kv_cache_bytes": self.kv_cache,
            "compute_bytes": self.compute,
            "output_bytes": self.output,
            "token_embeddings_bytes": self.token_embeddings,
            "per_layer_embeddings_bytes": self.per_layer_embeddings,
            "full_layers": self.full_layers,
            "windowed_layers": self.windowed_layers,
            "sharing_layers": self.sharing_layers,
            "total_bytes": self.total,
            "notes": list(self.notes),
        }


@dataclass(frozen=True)
class MemoryPlan:
    """A pair against a memory of `budget` bytes (None: not stated). `fits` is None where that was not asked."""

    target: ModelMemory
    drafter: ModelMemory | None
    budget: int | None
    settings: Settings

    @property
    def total(self) -> int:
        """Bytes of both models."""
        return self.target.total + (self.drafter.total if self.drafter else 0)

    @property
    def fits(self) -> bool | None:
        """Whether both fit together; None without a budget."""
        return None if self.budget is None else self.total <= self.budget

    @property
    def spills(self) -> int:
        """Bytes that do not fit (0 where they do or nobody asked)."""
        return 0 if self.budget is None else max(0, self.total - self.budget)

    def sentence(self) -> str:
        """The plan in one line."""
        models = [("target", self.target)] + ([("drafter", self.drafter)] if self.drafter else [])
        told = " + ".join(
            f"{name} {mib(m.total)} (weights {mib(m.weights)}, cache {mib(m.kv_cache)},"
            f" buffers {mib(m.compute + m.output)})"
            for name, m in models
        )
        if self.budget is None:
            return f"{told} = {mib(self.total)}"
        if self.fits:
            return f"{told} = {mib(self.total)} of {mib(self.budget)}"
        return f"{told} = {mib(self.total)}, {mib(self.spills)} more than the {mib(self.budget)} there are"

    def as_json(self) -> dict[str, Any]:
        """For a record; sizes in bytes."""
        return {
            "fits": self.fits,
            "total_bytes": self.total,
            "budget_bytes": self.budget,
            "spills_bytes": self.spills,
            "ctx": self.settings.ctx,
            "ubatch": self.settings.ubatch,
            "slots": self.settings.slots,
            "cache_types": [self.settings.cache_k, self.settings.cache_v],
            "target": self.target.as_json(),
            "drafter": self.drafter.as_json() if self.drafter else None,
        }


def mib(size: int) -> str:
    """Bytes in MiB or GiB, as people read them."""
    return f"{size / (1 << 30):.2f} GiB" if size >= 1 << 30 else f"{size / _MIB:.1f} MiB"


def _padded(cells: int) -> int:
    return -(-cells // CELL_STEP) * CELL_STEP


def row_bytes(elements: int, cache_type: str) -> int:
    """Bytes of one row of a cache of that type. Raises MemoryPlanError for an unknown type or an odd row."""
    if cache_type not in CACHE_TYPES:
        raise MemoryPlanError(f"cache type {cache_type!r} is unknown; use for example f16, q8_0 or q4_0")
    block, size = CACHE_TYPES[cache_type]
    if elements % block:
        raise MemoryPlanError(f"cache type {cache_type} needs rows of a multiple of {block}, these have {elements}")
    return elements // block * size


def cache_bytes(found: Shape, settings: Settings) -> int:
    """Bytes of the KV cache, layer by layer."""
    ctx = _padded(settings.ctx)
    window = _padded(min(ctx, found.window * settings.slots + settings.ubatch)) if found.window else ctx
    total = 0
    for layer in range(found.kv_layers):
        cells = window if found.windowed[layer] and not settings.swa_full else ctx
        keys = row_bytes(found.key_length[layer] * found.kv_heads[layer], settings.cache_k)
        values = row_bytes(found.value_length[layer] * found.kv_heads[layer], settings.cache_v)
        total += cells * (keys + values)
    return total


def compute_bytes(found: Shape, vocabulary: int, settings: Settings, rules: Behaviour, outputs: int) -> int:
    """Estimated bytes of the compute buffer: activations of a micro-batch, masks, and logits.

    Fitted: 2 feed-forward rows, 6.5 residual rows, one of queries and half a float per cell and token come
    within 7 % of what three builds print for Gemma 3 270M and SmolLM2 135M. Builds up to 9105 add logits for the
    whole micro-batch.
    """
    tokens = min(settings.ubatch, settings.ctx)
    ctx = _padded(settings.ctx)
    window = _padded(min(ctx, found.window * settings.slots + settings.ubatch)) if found.window else 0
    widest = max(found.feed_forward, default=0)
    queries = max((h * k for h, k in zip(found.heads, found.key_length, strict=True)), default=0)
    per_token = 2 * widest + 6.5 * found.width + queries + 0.5 * (ctx + window)
    logits = (tokens if rules.logits_for_whole_batch else min(tokens, outputs)) * vocabulary
    return int(4 * (tokens * per_token + logits))


def plan_model(
    header: Header,
    tensors: Sequence[Tensor],
    vocabulary: int,
    settings: Settings,
    rules: Behaviour,
    cache_types: tuple[str, str] | None = None,
) -> ModelMemory:
    """The memory of one model whose tensors may lie in several files; `vocabulary` in tokens."""
    found = shape(header)
    if cache_types is not None:
        settings = Settings(**{**vars(settings), "cache_k": cache_types[0], "cache_v": cache_types[1]})
    notes: list[str] = []
    try:
        cache = cache_bytes(found, settings)
    except MemoryPlanError as error:
        notes.append(str(error))
        cache = cache_bytes(found, Settings(**{**vars(settings), "cache_k": "f16", "cache_v": "f16"}))
    unknown = [tensor.name for tensor in tensors if tensor.size_bytes is None]
    if unknown:
        notes.append(f"{len(unknown)} tensors of unknown type are not counted")
    if found.experts:
        notes.append(
            f"{found.experts_used} of {found.experts} experts are read per token; all of them are kept in memory"
        )
    windowed = sum(found.windowed[: found.kv_layers])
    tied = not any(tensor.name == "output.weight" for tensor in tensors)
    return ModelMemory(
        weights=sum(tensor.size_bytes or 0 for tensor in tensors),
        kv_cache=cache,
        compute=compute_bytes(found, vocabulary, settings, rules, settings.draft_max + 1),
        output=4 * vocabulary * settings.slots,
        token_embeddings=0 if tied else _bytes_of(tensors, "token_embd.weight"),
        per_layer_embeddings=_bytes_of(tensors, "per_layer_token_embd.weight"),
        full_layers=found.kv_layers - windowed,
        windowed_layers=windowed,
        sharing_layers=found.layers - found.kv_layers,
        notes=tuple(notes),
    )


def _bytes_of(tensors: Sequence[Tensor], name: str) -> int:
    return sum(tensor.size_bytes or 0 for tensor in tensors if tensor.name == name)


def parse_size(text: str) -> int:
    """Bytes of `6GiB`, `512 MB`, `6G` or `1000000`. Raises MemoryPlanError naming what is accepted."""
    units = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}
    units |= {"kb": 10**3, "mb": 10**6, "gb": 10**9}
    number = text.strip().lower().rstrip("abcdefghijklmnopqrstuvwxyz ")
    unit = text.strip().lower()[len(number) :].strip()
    try:
        size = float(number) * units[unit]
    except (ValueError, KeyError):
        raise MemoryPlanError(f"memory {text!r} is no size; write 6GiB, 800MiB or bytes") from None
    if not 0 < size < 1 << 60:
        raise MemoryPlanError(f"memory {text!r} is out of range")
    return int(size)
