"""Whether one build of llama.cpp loads one file, from its header and its size alone.

The order is the engine's: the container (ggml/src/gguf.cpp), parts and data (llama-model-loader.cpp), architecture and
numbers (llama-model.cpp), vocabulary (llama-vocab.cpp), tensors. What only the weights can tell is not answered.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from findings import engine_rules
from findings.gguf_header import TENSOR_TYPES, Header, Tensor, ValueType
from findings.model_facts import Shape, shape
from findings.split_files import Parts, find_parts
from findings.vocabulary import duplicate_text, read_vocabulary, shown

MAX_TENSOR_NAME = 63
MAX_TENSOR_DIMENSIONS = 4

# Dense architectures whose blocks all hold the same tensors: a tensor that all blocks but some have is missing there.
_UNIFORM = ("llama", "gemma", "gemma2", "gemma3", "qwen2", "qwen3", "smollm3", "phi3", "stablelm", "granite", "olmo2")
_WITH_OUTPUT_NORM = (*_UNIFORM, "gemma3n", "gemma4", "gemma4-assistant")
_BLOCK_TENSORS = ("attn_norm.weight", "attn_output.weight", "ffn_down.weight", "ffn_up.weight")
_NO_TEXT_MODEL = ("clip", "bert", "nomic-bert", "jina-bert-v2", "t5encoder", "wavtokenizer-dec", "pockettts")


@dataclass(frozen=True)
class Loadability:
    """Whether a build loads a file; the first of `reasons` is what the engine meets first.

    `certain` is False where the answer rests on a build beside the asked one. `notes` do not keep it from loading.
    """

    loads: bool
    reasons: tuple[str, ...] = ()
    certain: bool = True
    notes: tuple[str, ...] = ()
    parts: Parts = field(default_factory=lambda: Parts(()))


def check_file(header: Header, build: int, deep: bool = False) -> Loadability:
    """The answer for one file and build. `deep` also looks for a token text that comes twice, which costs more time."""
    parts = find_parts(header)
    reasons = [reason for part in parts.headers for reason in _container(part, build)]
    reasons += parts.problems
    if not reasons:
        reasons += [reason for part in parts.headers for reason in _data(part)]
    notes: list[str] = []
    architecture = header.text("general.architecture")
    known = engine_rules.knows("architectures", architecture, build)
    certain = known.certain
    if not reasons:
        if not architecture:
            reasons.append("no general.architecture: the engine cannot know what to build")
        elif not known.yes:
            reasons.append(_unknown_architecture(architecture, build, known))
        else:
            reasons += _numbers(header, architecture)
            vocabulary, sure = _vocabulary(header, build, deep)
            reasons += vocabulary
            certain = certain and sure
            reasons += _tensors(parts, shape(header), read_vocabulary(header).size, architecture)
    if not certain:
        notes.append(f"what build {build} knows is taken from build {known.source}")
    return Loadability(not reasons, tuple(dict.fromkeys(reasons)), certain, tuple(notes), parts)


def _unknown_architecture(architecture: str, build: int, known: engine_rules.Known) -> str:
    since = engine_rules.known_since("architectures", architecture)
    text = f"unknown model architecture {architecture!r} for build {build}"
    if since is not None and since > build:
        return f"{text}; build {since} knows it"
    return text if known.certain else f"{text}, as far as the newest known build ({known.source}) tells"


def _container(header: Header, build: int) -> list[str]:
    """What ggml's reader refuses, in its order."""
    name = header.path.name
    if header.big_endian:
        return [
            f"{name} is big-endian and this machine's engines are little-endian; convert it again without --bigendian"
        ]
    found = []
    if header.duplicates:
        found.append(f"{name}: the key {header.duplicates[0].name!r} comes twice")
    for entry in header.fields.values():
        if entry.element_type is ValueType.ARRAY:
            found.append(f"{name}: {entry.name!r} is an array of arrays, which engines refuse")
        if not entry.name:
            found.append(f"{name}: a key without a name")
    alignment = header.fields.get("general.alignment")
    if alignment is not None and alignment.type is not ValueType.UINT32:
        found.append(f"{name}: general.alignment is of type {alignment.type.name}, it must be UINT32")
    elif header.alignment <= 0 or header.alignment & (header.alignment - 1):
        found.append(f"{name}: general.alignment is {header.alignment}, no power of two")
    names = Counter(tensor.name for tensor in header.tensors)
    found += [f"{name}: the tensor {tensor!r} comes {count} times" for tensor, count in names.items() if count > 1]
    first_unknown = engine_rules.first_unknown_tensor_type(build)
    expected = 0
    for tensor in header.tensors:
        problem = _tensor(tensor, first_unknown)
        if not problem and tensor.offset != expected:
            problem = f"has offset {tensor.offset}, the engine expects {expected}"
        if problem:
            found.append(f"{name}: tensor {tensor.name!r} {problem}")
            break
        size = tensor.size_bytes or 0
        step = max(1, header.alignment)
        expected += -(-size // step) * step
    return found


def _tensor(tensor: Tensor, first_unknown: int) -> str:
    if len(tensor.name.encode("utf-8", "surrogateescape")) > MAX_TENSOR_NAME:
        return f"has a name of more than {MAX_TENSOR_NAME} bytes"
    if len(tensor.shape) > MAX_TENSOR_DIMENSIONS:
        return f"has {len(tensor.shape)} dimensions, at most {MAX_TENSOR_DIMENSIONS} are allowed"
    if any(length >= 1 << 63 for length in tensor.shape) or tensor.elements >= 1 << 63:
        return "has a shape whose size overflows"
    if tensor.type_id not in TENSOR_TYPES or tensor.type_id >= first_unknown:
        return f"is of {tensor.type_name}, which this build does not know"
    block = TENSOR_TYPES[tensor.type_id][1]
    row = tensor.shape[0] if tensor.shape else 1
    if row % block:
        return f"has rows of {row} elements, no multiple of {block} as {tensor.type_name} needs"
    return ""


def _data(header: Header) -> list[str]:
    """Whether the tensors' bytes are all inside the file."""
    end = header.data_offset + max((t.offset + (t.size_bytes or 0) for t in header.tensors), default=0)
    if not header.tensors or end <= header.file_bytes:
        return []
    missing = end - header.file_bytes
    return [
        f"{header.path.name} is truncated: the tensors end at byte {end:,}, the file has {header.file_bytes:,} "
        f"({missing:,} bytes missing); download it again"
    ]


_TYPED = (
    ("tokenizer.ggml.bos_token_id", ValueType.UINT32),
    ("tokenizer.ggml.eos_token_id", ValueType.UINT32),
    ("tokenizer.ggml.unknown_token_id", ValueType.UINT32),
    ("tokenizer.ggml.padding_token_id", ValueType.UINT32),
    ("tokenizer.ggml.add_bos_token", ValueType.BOOL),
    ("tokenizer.ggml.add_eos_token", ValueType.BOOL),
    ("tokenizer.ggml.model", ValueType.STRING),
    ("tokenizer.ggml.pre", ValueType.STRING),
)


def _numbers(header: Header, architecture: str) -> list[str]:
    """Keys that every text model needs, and keys whose type the loader insists on."""
    found = []
    for key, wanted in _TYPED:
        entry = header.fields.get(key)
        if entry is not None and entry.type is not wanted:
            found.append(f"{key} is of type {entry.type.name}, the engine insists on {wanted.name}")
    if architecture in _NO_TEXT_MODEL:
        return found
    for key in ("context_length", "embedding_length", "block_count"):
        if header.integer(f"{architecture}.{key}") is None:
            found.append(f"key {architecture}.{key} is missing")
    return found


def _vocabulary(header: Header, build: int, deep: bool) -> tuple[list[str], bool]:
    """What the loader of vocabularies refuses; whether the answer is certain."""
    tokenizer = header.text("tokenizer.ggml.model")
    if not tokenizer:
        return ["key tokenizer.ggml.model is missing"], True
    known = engine_rules.knows("tokenizers", tokenizer, build)
    if not known.yes:
        return [f"unknown tokenizer {tokenizer!r} for build {build}"], known.certain
    if tokenizer in ("none", "no_vocab"):
        return [], known.certain
    sure = known.certain
    found = []
    if tokenizer in ("gpt2", "hybriddna", "whitespace", "gemma4"):
        merges = header.fields.get("tokenizer.ggml.merges")
        pre = header.text("tokenizer.ggml.pre")
        if merges is None and pre != "kimi-k2":
            found.append("no tokenizer.ggml.merges, which a BPE tokenizer needs")
        if tokenizer != "gemma4" and pre:
            known_pre = engine_rules.knows("pre_tokenizers", pre, build)
            sure = sure and known_pre.certain
            if not known_pre.yes:
                found.append(f"unknown pre-tokenizer type {pre!r} for build {build}")
    tokens = header.fields.get("tokenizer.ggml.tokens")
    if tokens is None:
        found.append("no tokenizer.ggml.tokens")
        return found, sure
    if tokens.element_type is not ValueType.STRING:
        found.append("tokenizer.ggml.tokens is no array of texts")
        return found, sure
    for key, what in (("tokenizer.ggml.scores", "scores"), ("tokenizer.ggml.token_type", "token types")):
        count = header.items(key)
        if count is not None and count < tokens.items:
            found.append(f"{count} {what} for {tokens.items} tokens")
    twice = duplicate_text(header) if deep and not found else None
    if twice is not None:
        found.append(f"the token text {shown(twice)} comes twice; the loader aborts on that")
    return found, sure


def _tensors(parts: Parts, found: Shape, tokens: int, architecture: str) -> list[str]:
    """Tensors that are missing, of the wrong shape, or unknown."""
    if architecture in _NO_TEXT_MODEL:
        return []
    problems = []
    tensors = {tensor.name: tensor for tensor in parts.tensors}
    needed = ("token_embd.weight", *(("output_norm.weight",) if architecture in _WITH_OUTPUT_NORM else ()))
    problems += [f"missing tensor {name!r}" for name in needed if name not in tensors]
    for name in ("token_embd.weight", "output.weight"):
        tensor = tensors.get(name)
        wanted = (found.width, tokens)
        if tensor is not None and tokens and tensor.shape != wanted:
            problems.append(f"tensor {name!r} has the shape {list(tensor.shape)}, the engine expects {list(wanted)}")
    unknown = [name for name in tensors if not engine_rules.tensor_name_is_known(name)]
    if unknown:
        problems.append(f"the tensor {unknown[0]!r} belongs to no architecture; the engine counts it as one too many")
    problems += _blocks(tensors, found, architecture)
    return problems


def _blocks(tensors: dict[str, Tensor], found: Shape, architecture: str) -> list[str]:
    if architecture not in _UNIFORM:
        return []
    problems = []
    kinds: Counter[str] = Counter()
    for name in tensors:
        if name.startswith("blk."):
            kinds[name.split(".", 2)[2]] += 1
    needed = [kind for kind in {*_BLOCK_TENSORS, *kinds} if kind != "rope_freqs.weight"]
    for kind in sorted(needed):
        lacking = [layer for layer in range(found.layers) if f"blk.{layer}.{kind}" not in tensors]
        if lacking and (len(lacking) < found.layers or kind in ("attn_norm.weight", "ffn_down.weight")):
            problems.append(f"missing tensor 'blk.{lacking[0]}.{kind}'")
    surplus = {int(name.split(".")[1]) for name in tensors if name.startswith("blk.") and name.split(".")[1].isdigit()}
    beyond = sorted(layer for layer in surplus if layer >= found.layers + found.nextn_layers)
    if beyond:
        problems.append(
            f"block {beyond[0]} is beyond block_count {found.layers}; the engine counts its tensors as too many"
        )
    return problems
