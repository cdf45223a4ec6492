"""Pairs of tiny models for every rule of the pre-check and its edges; tests predict them and engines load them."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gguf import GGUFEndian, GGUFValueType

from tiny_gguf import Tiny, TinyMtp, token_texts, token_types, write, write_mtp

Maker = Tiny | TinyMtp | Callable[[Path], Path]


@dataclass(frozen=True)
class Pair:
    """A pair to be made, and how it is started (our word for the speculation)."""

    target: Maker
    drafter: Maker
    spec_type: str = "draft_simple"

    def make(self, folder: Path) -> tuple[Path, Path]:
        """Write both files into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        return _make(self.target, folder / "target.gguf"), _make(self.drafter, folder / "drafter.gguf")


def _make(maker: Maker, path: Path) -> Path:
    if isinstance(maker, Tiny):
        return write(path, maker)
    if isinstance(maker, TinyMtp):
        return write_mtp(path, maker)
    return maker(path)


SPM = Tiny()
BPE = Tiny(tokenizer="gpt2", pre="gpt-2", add_bos=True)
WIDE = token_texts(768)
MTP_TARGET = TinyMtp()
MTP = TinyMtp(assistant=True, width=48)
MTP_OTHER = (*MTP.tokens[:300], "other", *MTP.tokens[301:])


def _changed_bytes(model: Tiny, change: Callable[[bytes], bytes]) -> Callable[[Path], Path]:
    def make(path: Path) -> Path:
        write(path, model)
        path.write_bytes(change(path.read_bytes()))
        return path

    return make


def _key(name: str, value_type: GGUFValueType, raw: bytes) -> bytes:
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", value_type) + raw


def _with_key(key: bytes) -> Callable[[bytes], bytes]:
    """Put one more raw key at the front (GGUFWriter would refuse to write these)."""

    def change(content: bytes) -> bytes:
        version, tensors, keys = struct.unpack_from("<IQQ", content, 4)
        added = content[:4] + struct.pack("<IQQ", version, tensors, keys + 1) + key + content[24:]
        # The data must begin at a multiple of the alignment again; make the key's length one instead.
        assert len(key) % 32 == 0, len(key)
        return added

    return change


def _padded_key(name: str, value_type: GGUFValueType, raw: bytes) -> bytes:
    """A key whose encoded length is a multiple of 32, by padding its name."""
    length = len(_key(name, value_type, raw))
    return _key(name + "x" * (-length % 32), value_type, raw)


def _filler(length: int) -> bytes:
    """A key of `length` bytes in all."""
    empty = _key("", GGUFValueType.STRING, struct.pack("<Q", 0))
    return _key("f" * (length - len(empty)), GGUFValueType.STRING, struct.pack("<Q", 0))


def _duplicate(content: bytes) -> bytes:
    """The file with general.name a second time, in front."""
    twice = _key("general.name", GGUFValueType.STRING, struct.pack("<Q", 4) + b"twin")
    filler = _filler(64 - len(twice) % 32)
    version, tensors, keys = struct.unpack_from("<IQQ", content, 4)
    return content[:4] + struct.pack("<IQQ", version, tensors, keys + 2) + twice + filler + content[24:]


_NESTED = _padded_key("nested.", GGUFValueType.ARRAY, struct.pack("<IQ", 9, 1) + struct.pack("<IQI", 4, 1, 7))
_ODD_ALIGNMENT = {"general.alignment": (GGUFValueType.UINT32, 24)}
_WRONG_TYPE = {"tokenizer.ggml.bos_token_id": (GGUFValueType.INT32, 1)}
_SPLIT = {
    "split.no": (GGUFValueType.UINT16, 0),
    "split.count": (GGUFValueType.UINT16, 2),
    "split.tensors.count": (GGUFValueType.INT32, 21),
}

PAIRS: dict[str, Pair] = {
    # The vocabularies are the same.
    "spm_equal": Pair(SPM, SPM),
    "bpe_equal": Pair(BPE, BPE),
    "other_weights": Pair(SPM, SPM.changed(seed=99)),
    "scores_differ": Pair(SPM, SPM.changed(scores=tuple(float(n) for n in range(640)))),
    "token_types_differ": Pair(SPM, SPM.changed(types=(*token_types(SPM.tokens)[:600], *(4 for _ in range(40))))),
    "merges_differ": Pair(BPE, BPE.changed(merges=("o r", "d w", "w o"))),
    "pre_differs": Pair(BPE, BPE.changed(pre="qwen2")),
    "texts_below_5_differ": Pair(SPM, SPM.with_text(4, "other")),
    "empty_text_and_its_stand_in": Pair(SPM.with_text(400, ""), SPM.with_text(400, "[EMPTY_400]")),
    "text_after_zero_byte": Pair(SPM.with_text(400, b"zero\0b"), SPM.with_text(400, b"zero\0c")),
    "empty_by_zero_byte": Pair(SPM.with_text(400, b"\0b"), SPM.with_text(400, "")),
    "not_utf8_same": Pair(SPM.with_text(400, b"\xff\xfe"), SPM.with_text(400, b"\xff\xfe")),
    # Token texts.
    "text_5": Pair(SPM, SPM.with_text(5, "other")),
    "text_300": Pair(SPM, SPM.with_text(300, "other")),
    "text_last": Pair(SPM, SPM.with_text(639, "other")),
    "not_utf8_differs": Pair(SPM.with_text(400, b"\xff\xfe"), SPM.with_text(400, b"\xff\xfd")),
    "bpe_text": Pair(BPE, BPE.with_text(300, "other")),
    # Sizes.
    "larger_by_128": Pair(SPM, SPM.changed(tokens=WIDE)),
    "larger_by_129": Pair(SPM, SPM.changed(tokens=token_texts(769))),
    "smaller_by_128": Pair(SPM.changed(tokens=WIDE), SPM),
    "smaller_by_129": Pair(SPM.changed(tokens=token_texts(769)), SPM),
    # Beginning and end of text.
    "bos_id": Pair(SPM, SPM.changed(bos=3)),
    "bos_id_without_add": Pair(SPM.changed(add_bos=False), SPM.changed(add_bos=False, bos=3)),
    "add_bos": Pair(SPM, SPM.changed(add_bos=False)),
    "add_bos_absent_spm": Pair(SPM, SPM.changed(add_bos=None)),
    "add_bos_absent_bpe": Pair(BPE, BPE.changed(add_bos=None)),
    "add_bos_absent_llama_bpe": Pair(BPE.changed(pre="llama-bpe"), BPE.changed(pre="llama-bpe", add_bos=None)),
    "bos_absent_is_the_default": Pair(SPM, SPM.changed(bos=None)),
    "bos_absent_bpe": Pair(BPE, BPE.changed(bos=None)),
    "bos_out_of_range": Pair(SPM, SPM.changed(bos=100_000)),
    "eos_id": Pair(SPM, SPM.changed(eos=3)),
    "eos_id_with_add": Pair(SPM.changed(add_eos=True), SPM.changed(add_eos=True, eos=3)),
    "add_eos": Pair(SPM, SPM.changed(add_eos=True)),
    "add_eos_absent": Pair(SPM, SPM.changed(add_eos=None)),
    # Types.
    "spm_and_bpe_same_texts": Pair(SPM, BPE),
    "bpe_and_spm_same_texts": Pair(BPE, SPM),
    "spm_and_bpe_other_size": Pair(SPM, BPE.changed(tokens=token_texts(900))),
    "drafter_without_vocabulary": Pair(SPM, SPM.changed(tokenizer="none")),
    # Multi-token prediction.
    "mtp": Pair(MTP_TARGET, MTP, "draft_mtp"),
    "mtp_as_draft_simple": Pair(MTP_TARGET, MTP),
    "mtp_wrong_width": Pair(MTP_TARGET, MTP.changed(target_width=96), "draft_mtp"),
    "mtp_other_texts": Pair(MTP_TARGET, MTP.changed(tokens=MTP_OTHER), "draft_mtp"),
    "mtp_incomplete": Pair(MTP_TARGET, MTP.changed(without_tensors=("nextn.post_projection.weight",)), "draft_mtp"),
    # Files that do not load.
    "truncated_data": Pair(SPM, _changed_bytes(SPM, lambda content: content[:-2000])),
    "truncated_by_one_byte": Pair(SPM, _changed_bytes(SPM, lambda content: content[:-1])),
    "truncated_header": Pair(SPM, _changed_bytes(SPM, lambda content: content[:5000])),
    "big_endian": Pair(SPM, SPM.changed(endian=GGUFEndian.BIG)),
    "version_2": Pair(SPM, _changed_bytes(SPM, lambda content: content[:4] + b"\2\0\0\0" + content[8:])),
    "version_4": Pair(SPM, _changed_bytes(SPM, lambda content: content[:4] + b"\4\0\0\0" + content[8:])),
    "html_page": Pair(SPM, _changed_bytes(SPM, lambda _: b"<!DOCTYPE html><html></html>")),
    "unknown_architecture": Pair(SPM, SPM.changed(architecture="no-such-model")),
    "unknown_tokenizer": Pair(SPM, SPM.changed(tokenizer="no-such-tokenizer")),
    "unknown_pre": Pair(BPE, BPE.changed(pre="no-such-pre")),
    "no_tokenizer": Pair(SPM, SPM.changed(without_keys=("tokenizer.ggml.model",))),
    "no_tokens": Pair(SPM, SPM.changed(without_keys=("tokenizer.ggml.tokens",))),
    "no_merges": Pair(BPE, BPE.changed(without_keys=("tokenizer.ggml.merges",))),
    "no_context_length": Pair(SPM, SPM.changed(without_keys=("llama.context_length",))),
    "bos_of_wrong_type": Pair(SPM, SPM.changed(bos=None, extra=_WRONG_TYPE)),
    "duplicate_key": Pair(SPM, _changed_bytes(SPM, _duplicate)),
    "nested_array": Pair(SPM, _changed_bytes(SPM, _with_key(_NESTED))),
    "token_text_twice": Pair(SPM.with_text(638, "word7"), SPM.with_text(638, "word7")),
    "token_text_twice_by_zero_byte": Pair(SPM, SPM.with_text(638, b"word7\0")),
    "rows_not_tokens": Pair(SPM, SPM.changed(rows=641)),
    "tensor_missing": Pair(SPM, SPM.changed(without_tensors=("blk.1.ffn_down.weight",))),
    "output_norm_missing": Pair(SPM, SPM.changed(without_tensors=("output_norm.weight",))),
    "part_of_a_split": Pair(SPM, SPM.changed(extra=_SPLIT)),
}
