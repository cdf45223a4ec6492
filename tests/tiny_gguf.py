"""Tiny models that real engines load: llama-like GGUF files of some 200 KB with random weights, made with `gguf`.

The weights of a token depend on the seed and the token's id alone, so two files of the same seed agree on every token
that both have: a drafter of the target's own seed is accepted, whatever the vocabularies say about texts. Only the
tokens of `live` are ever produced (words, so the text stays UTF-8: older servers answer HTTP 500 to other texts).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFEndian, GGUFValueType, GGUFWriter, TokenType

WIDTH, LAYERS, HEADS, FEED_FORWARD, CONTEXT = 32, 2, 4, 64, 512
LIVE = (515, 640)


def byte_level_characters() -> list[str]:
    """The 256 characters that byte-level BPE uses for bytes (GPT-2's table)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    extra = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(extra)) for byte in range(256)]


def token_texts(count: int = 640) -> tuple[str, ...]:
    """`count` texts that an SPM and a BPE tokenizer both can use: specials, byte tokens, byte characters, words."""
    texts = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *byte_level_characters()]
    texts += [f"word{number}" for number in range(max(0, count - len(texts)))]
    return tuple(texts[:count])


def token_types(texts: Sequence[str]) -> list[int]:
    """Types that fit these texts."""
    kinds = []
    for text in texts:
        if text in ("<s>", "</s>"):
            kinds.append(int(TokenType.CONTROL))
        elif text == "<unk>":
            kinds.append(int(TokenType.UNKNOWN))
        elif text.startswith("<0x"):
            kinds.append(int(TokenType.BYTE))
        else:
            kinds.append(int(TokenType.NORMAL))
    return kinds


@dataclass(frozen=True)
class Tiny:
    """One model to be written. None leaves a key out; `extra` are keys (name -> (type, value)) written as they are."""

    architecture: str = "llama"
    tokenizer: str = "llama"
    tokens: tuple[str | bytes, ...] = field(default_factory=token_texts)
    pre: str | None = "default"
    bos: int | None = 1
    eos: int | None = 2
    add_bos: bool | None = True
    add_eos: bool | None = False
    types: tuple[int, ...] | None = None
    scores: tuple[float, ...] | None = None
    merges: tuple[str, ...] | None = None
    seed: int = 7
    width: int = WIDTH
    rows: int | None = None
    live: tuple[int, int] = LIVE
    endian: GGUFEndian = GGUFEndian.LITTLE
    without_keys: tuple[str, ...] = ()
    without_tensors: tuple[str, ...] = ()
    extra: dict[str, tuple[GGUFValueType, Any]] = field(default_factory=dict)

    def changed(self, **values: Any) -> Tiny:
        """The same model with other values."""
        return replace(self, **values)

    def with_text(self, token: int, text: str | bytes) -> Tiny:
        """The same model, one token's text replaced."""
        return replace(self, tokens=(*self.tokens[:token], text, *self.tokens[token + 1 :]))


class _Writer(GGUFWriter):
    """GGUFWriter that can be told to leave keys out."""

    left_out: tuple[str, ...] = ()

    def add_key_value(self, key: str, val: Any, vtype: GGUFValueType, sub_type: GGUFValueType | None = None) -> None:
        if key not in self.left_out:
            super().add_key_value(key, val, vtype, sub_type)


def _rows(seed: int, count: int, width: int, scale: float) -> np.ndarray[Any, Any]:
    """A matrix whose row n is the same for every `count` above n."""
    return np.random.default_rng(seed).standard_normal((count, width)).astype(np.float32) * scale


def write(path: Path, model: Tiny) -> Path:
    """Write one model and return its path."""
    writer = _Writer(path, model.architecture, endianess=model.endian)
    writer.left_out = model.without_keys
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(model.width)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FEED_FORWARD)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(model.width // HEADS)
    _vocabulary(writer, model)
    for name, (value_type, value) in model.extra.items():
        writer.add_key_value(name, value, value_type)
    _tensors(writer, model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _vocabulary(writer: GGUFWriter, model: Tiny) -> None:
    writer.add_tokenizer_model(model.tokenizer)
    if model.pre is not None:
        writer.add_tokenizer_pre(model.pre)
    if model.tokenizer in ("none", "no_vocab"):
        writer.add_vocab_size(len(model.tokens))
        return
    texts = [text if isinstance(text, str) else "" for text in model.tokens]
    writer.add_token_list(list(model.tokens))
    writer.add_token_types(list(model.types or token_types(texts)))
    if model.tokenizer == "llama" or model.scores is not None:
        writer.add_token_scores(list(model.scores or (-float(n) for n in range(len(texts)))))
    if model.tokenizer in ("gpt2", "gemma4") or model.merges is not None:
        writer.add_token_merges(list(model.merges or ("w o", "r d")))
    for value, add in ((model.bos, writer.add_bos_token_id), (model.eos, writer.add_eos_token_id)):
        if value is not None:
            add(value)
    if model.add_bos is not None:
        writer.add_add_bos_token(model.add_bos)
    if model.add_eos is not None:
        writer.add_add_eos_token(model.add_eos)


def _tensors(writer: GGUFWriter, model: Tiny) -> None:
    rows = len(model.tokens) if model.rows is None else model.rows
    width = model.width
    tensors = {
        "token_embd.weight": _rows(model.seed, rows, width, 1.0),
        "output_norm.weight": np.ones(width, dtype=np.float32),
        "output.weight": _rows(model.seed + 1, rows, width, 1.0),
    }
    produced = np.arange(rows)
    dead = (produced < model.live[0]) | (produced >= model.live[1])
    tensors["output.weight"][dead] = 0.0
    for layer in range(LAYERS):
        shapes = {
            "attn_q": (width, width),
            "attn_k": (width, width),
            "attn_v": (width, width),
            "attn_output": (width, width),
            "ffn_gate": (FEED_FORWARD, width),
            "ffn_up": (FEED_FORWARD, width),
            "ffn_down": (width, FEED_FORWARD),
        }
        for number, (name, shape) in enumerate(shapes.items()):
            tensors[f"blk.{layer}.{name}.weight"] = _rows(model.seed + 10 * layer + number + 2, *shape, 0.2)
        for name in ("attn_norm", "ffn_norm"):
            tensors[f"blk.{layer}.{name}.weight"] = np.ones(width, dtype=np.float32)
    for name, data in tensors.items():
        if name not in model.without_tensors:
            writer.add_tensor(name, data)


@dataclass(frozen=True)
class TinyMtp:
    """A Gemma 4 target, or (`assistant`) a drafter for one of width `target_width`; the shapes are the converter's."""

    assistant: bool = False
    width: int = 64
    target_width: int = 64
    tokens: tuple[str, ...] = field(default_factory=lambda: ("<pad>", "<eos>", "<bos>", *token_texts()[3:]))
    without_tensors: tuple[str, ...] = ()
    more_tensors: tuple[str, ...] = ()
    seed: int = 3

    def changed(self, **values: Any) -> TinyMtp:
        """The same model with other values."""
        return replace(self, **values)


def write_mtp(path: Path, model: TinyMtp) -> Path:
    """Write one Gemma 4 model and return its path."""
    architecture = "gemma4-assistant" if model.assistant else "gemma4"
    writer = GGUFWriter(path, architecture)
    pattern = [True, False]
    heads, wide, narrow, inner = 2, 64, 32, 96
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(model.width)
    writer.add_block_count(len(pattern))
    writer.add_feed_forward_length(inner)
    writer.add_head_count(heads)
    writer.add_head_count_kv(1)
    writer.add_rope_freq_base(1e6)
    writer.add_float32(f"{architecture}.rope.freq_base_swa", 1e4)
    writer.add_layer_norm_rms_eps(1e-6)
    for name, length in (("", wide), ("_swa", narrow)):
        writer.add_uint32(f"{architecture}.attention.key_length{name}", length)
        writer.add_uint32(f"{architecture}.attention.value_length{name}", length)
        writer.add_uint32(f"{architecture}.rope.dimension_count{name}", length)
    writer.add_sliding_window(512)
    writer.add_uint32(f"{architecture}.attention.shared_kv_layers", len(pattern) if model.assistant else 0)
    writer.add_uint32(f"{architecture}.embedding_length_per_layer_input", 0)
    writer.add_array(f"{architecture}.attention.sliding_window_pattern", pattern)
    if model.assistant:
        writer.add_uint32(f"{architecture}.embedding_length_out", model.target_width)
        writer.add_uint32(f"{architecture}.nextn_predict_layers", len(pattern))
    _vocabulary(writer, Tiny(tokenizer="gemma4", tokens=model.tokens, pre=None, bos=2, eos=1, scores=None))
    tensors: dict[str, np.ndarray[Any, Any]] = {
        "rope_freqs.weight": np.ones(wide // 2, dtype=np.float32),
        "token_embd.weight": _rows(model.seed, len(model.tokens), model.width, 0.05),
        "output_norm.weight": np.ones(model.width, dtype=np.float32),
    }
    # The output shares the token embeddings: only words may win, see `LIVE`.
    produced = np.arange(len(model.tokens))
    tensors["token_embd.weight"][(produced < LIVE[0]) | (produced >= LIVE[1])] *= 0.01
    if model.assistant:
        tensors["nextn.pre_projection.weight"] = _rows(model.seed + 1, model.width, 2 * model.target_width, 0.1)
        tensors["nextn.post_projection.weight"] = _rows(model.seed + 2, model.target_width, model.width, 0.1)
    for layer, windowed in enumerate(pattern):
        head = narrow if windowed else wide
        block = f"blk.{layer}."
        shapes = {"attn_q": (heads * head, model.width), "attn_output": (model.width, heads * head)}
        shapes |= {"ffn_gate": (inner, model.width), "ffn_up": (inner, model.width), "ffn_down": (model.width, inner)}
        if not model.assistant:
            shapes |= {"attn_k": (head, model.width), "attn_v": (head, model.width)}
            tensors[f"{block}attn_k_norm.weight"] = np.ones(head, dtype=np.float32)
        for number, (name, shape) in enumerate(shapes.items()):
            tensors[f"{block}{name}.weight"] = _rows(model.seed + 10 * layer + number, *shape, 0.2)
        for name in ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"):
            tensors[f"{block}{name}.weight"] = np.ones(model.width, dtype=np.float32)
        tensors[f"{block}attn_q_norm.weight"] = np.ones(head, dtype=np.float32)
        tensors[f"{block}layer_output_scale.weight"] = np.ones(1, dtype=np.float32)
    for name in model.more_tensors:
        tensors[name] = np.ones((8, model.width), dtype=np.float32)
    for name, data in tensors.items():
        if name not in model.without_tensors:
            writer.add_tensor(name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
