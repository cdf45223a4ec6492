"""Vocabularies as an engine sees them after loading, and whether it takes two of them for the same.

The rules are those of `common_speculative_are_compatible` (common/speculative.cpp) and of `llama_vocab::impl::load`
(src/llama-vocab.cpp) of llama.cpp, read for builds 8992 to 11434 and tried with 8929 to 11549. In their order: the type
of the vocabulary; add_bos and, where it is on, the BOS id; the same for EOS; a difference in size of at most 128; the
texts of the tokens from id 5 on. Types of tokens, merges, scores and the pre-tokenizer are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from findings import engine_rules
from findings.engine_rules import Behaviour
from findings.gguf_header import Header, ValueType

MAX_SIZE_DIFFERENCE = 128
FIRST_COMPARED_TOKEN = 5
MAX_TOKENS = 2_000_000
TYPE_NAMES = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo2", 7: "test"}

_TOKENS = "tokenizer.ggml.tokens"
_PIECE = 1 << 17
# Default ids of the loader per type: (BOS, EOS); -1 is "none".
_DEFAULT_IDS = {0: (-1, -1), 1: (1, 2), 2: (11, 11), 3: (101, -1), 4: (-1, 1), 5: (-1, -1), 6: (1, 2), 7: (-1, -1)}
_FORCED_BOS_PRE = ("gemma4", "granite-embed-multi-311m")


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary with the *effective* values: what the loader makes of absent, bad and overridden keys.

    `type_id` is the engine's number of the type, None for an unknown tokenizer. Ids are -1 where there is none.
    `notes` say where an effective value differs from the file's key, or stands in for an absent one.
    """

    tokenizer: str
    pre: str
    type_id: int | None
    size: int
    bos: int
    eos: int
    add_bos: bool
    add_eos: bool
    notes: tuple[str, ...] = ()

    @property
    def type_name(self) -> str:
        """The type as the engine's log prints it."""
        return TYPE_NAMES.get(-1 if self.type_id is None else self.type_id, f"unknown ({self.tokenizer!r})")


@dataclass(frozen=True)
class Check:
    """One comparison of the engine, in its order: what, whether it passed, and the two values in words."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class Comparison:
    """Whether an engine takes two vocabularies for the same. `checks` ends with the one that failed.

    `information` is what differs and what no engine compares.
    """

    compatible: bool
    checks: tuple[Check, ...]
    information: tuple[str, ...]
    type_difference_missed: bool = False
    smaller_size: int = 0
    larger_size: int = 0

    @property
    def failed(self) -> Check | None:
        """The check that failed, None where all passed."""
        return next((check for check in self.checks if not check.passed), None)


def shown(text: bytes, limit: int = 60) -> str:
    """A token's text for people: quoted, control characters and bytes that are not UTF-8 as escapes, long ones cut."""
    safe = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode() for c in text.decode("utf-8", "replace")
    )
    if b"\xef\xbf\xbd" not in text and "\ufffd" in safe:
        safe = repr(text)[2:-1]
    return f"'{safe if len(safe) <= limit else safe[:limit] + '…'}'"


def read_vocabulary(header: Header) -> Vocabulary:
    """The vocabulary of a model as the engine sees it once loaded."""
    tokenizer = header.text("tokenizer.ggml.model")
    type_id = engine_rules.vocabulary_type(tokenizer)
    pre = header.text("tokenizer.ggml.pre")
    notes: list[str] = []
    if tokenizer == "gemma4":
        pre = "gemma4"
    size = header.items(_TOKENS) or 0
    if type_id == 0:
        size = header.integer(f"{header.text('general.architecture')}.vocab_size") or 0
    bos, eos = _DEFAULT_IDS.get(-1 if type_id is None else type_id, (-1, -1))
    if tokenizer == "gemma4":
        bos, eos = -1, -1
    elif type_id == 2 and engine_rules.pre_tokenizer_has_no_bos(pre):
        bos = -1
    bos = _special(header, "bos", bos, size, notes)
    eos = _special(header, "eos", eos, size, notes)
    add_bos, add_eos = type_id in (1, 3), type_id == 4
    if type_id == 2:
        add_bos = engine_rules.pre_tokenizer_adds_bos(pre)
    add_bos = _switch(header, "bos", add_bos, notes)
    add_eos = _switch(header, "eos", add_eos, notes)
    if type_id == 2 and pre in _FORCED_BOS_PRE and not add_bos:
        add_bos = True
        notes.append("add_bos: the loader overrides it to true for Gemma 4")
    return Vocabulary(tokenizer, pre, type_id, size, bos, eos, add_bos, add_eos, tuple(notes))


def _special(header: Header, name: str, default: int, size: int, notes: list[str]) -> int:
    """The effective id of a special token: the key, or the default where it is absent or not inside the vocabulary."""
    key = f"tokenizer.ggml.{name}_token_id"
    found = header.integer(key)
    if found is None:
        if default >= 0:
            notes.append(f"{name}: no {key}, the loader takes {default}")
        return default
    if found >= size:
        notes.append(f"{name}: {key} is {found}, outside {size} tokens; the loader takes {default}")
        return default
    return found


def _switch(header: Header, name: str, default: bool, notes: list[str]) -> bool:
    key = f"tokenizer.ggml.add_{name}_token"
    found = header.boolean(key)
    if found is None:
        notes.append(f"add_{name}: no {key}, the loader takes {str(default).lower()}")
        return default
    return found


def compare(target: Header, drafter: Header, rules: Behaviour) -> Comparison:
    """The engine's comparison of two vocabularies, check by check, ending at the first that fails."""
    ours, theirs = read_vocabulary(target), read_vocabulary(drafter)
    checks: list[Check] = []
    missed = False

    def done(compatible: bool) -> Comparison:
        sizes = sorted((ours.size, theirs.size))
        return Comparison(compatible, tuple(checks), _information(target, drafter), missed, sizes[0], sizes[1])

    same = ours.type_id == theirs.type_id
    if not same and rules.type_compared_as == "bool":
        same = bool(ours.type_id) == bool(theirs.type_id)
        missed = same
    words = f"target {ours.type_name} ({ours.tokenizer}), drafter {theirs.type_name} ({theirs.tokenizer})"
    if missed:
        words += "; builds of this age compare types as true or false and take these for equal"
    checks.append(Check("vocabulary type", same, words))
    if not same:
        return done(False)
    for name, switches, ids in (
        ("BOS", (ours.add_bos, theirs.add_bos), (ours.bos, theirs.bos)),
        ("EOS", (ours.add_eos, theirs.add_eos), (ours.eos, theirs.eos)),
    ):
        counts = switches[0] or rules.special_ids_compared == "always"
        passed = switches[0] == switches[1] and (not counts or ids[0] == ids[1])
        text = f"add_{name.lower()} {_yes(switches[0])} and {_yes(switches[1])}, id {ids[0]} and {ids[1]}"
        if passed and ids[0] != ids[1]:
            text += " (the ids do not count while it is off)"
        checks.append(Check(name, passed, text))
        if not passed:
            return done(False)
    difference = abs(ours.size - theirs.size)
    text = f"{ours.size} and {theirs.size} tokens, difference {difference}, at most {MAX_SIZE_DIFFERENCE} allowed"
    checks.append(Check("size", difference <= MAX_SIZE_DIFFERENCE, text))
    if difference > MAX_SIZE_DIFFERENCE:
        return done(False)
    found = first_text_difference(target, drafter)
    if found is None:
        text = f"the same from id {FIRST_COMPARED_TOKEN} on"
    else:
        text = f"token {found[0]} is {shown(found[1])} in the target and {shown(found[2])} in the drafter"
    checks.append(Check("token texts", found is None, text))
    return done(found is None)


def _yes(value: bool) -> str:
    return "on" if value else "off"


def first_text_difference(target: Header, drafter: Header) -> tuple[int, bytes, bytes] | None:
    """The first token (id, text in the target, text in the drafter) that the engine finds different, or None.

    Compares from id 5 to the end of the smaller vocabulary. A text ends at its first zero byte (the loader takes it as
    a C string), and an empty one counts as `[EMPTY_<id>]`.
    """
    if min(target.items(_TOKENS) or 0, drafter.items(_TOKENS) or 0) <= FIRST_COMPARED_TOKEN:
        return None
    first, second = _compared_range(target), _compared_range(drafter)
    length = min(first[1] - first[0], second[1] - second[0])
    offset: int | None = 0
    if target.big_endian == drafter.big_endian:
        offset = _difference(target.path, first[0], drafter.path, second[0], length)
    if offset is None:
        return None
    return _first_pair(target, first[0], drafter, second[0], offset)


def _first_pair(
    target: Header, target_start: int, drafter: Header, drafter_start: int, offset: int
) -> tuple[int, bytes, bytes] | None:
    """The first pair of texts that the engine finds different, from the one that holds the differing byte on."""
    places = []
    for header, start in ((target, target_start), (drafter, drafter_start)):
        entry = header.fields[_TOKENS]
        # Up to the difference the bytes are equal, so the texts begin at the same tokens in both.
        places.append(header.string_around(_TOKENS, start - entry.start + offset))
    texts = (header.strings_from(_TOKENS, *place) for header, place in zip((target, drafter), places, strict=True))
    for token, (left, right) in enumerate(zip(*texts, strict=False), start=places[0][0]):
        if left != right and _effective(left, token) != _effective(right, token):
            return token, left, right
    return None


def _effective(text: bytes, token: int) -> bytes:
    """The text that the loader keeps: it ends at a zero byte, and an empty one gets a stand-in."""
    return text.partition(b"\0")[0] or f"[EMPTY_{token}]".encode()


def _difference(left: Path, left_at: int, right: Path, right_at: int, length: int) -> int | None:
    """Offset of the first differing byte of two ranges of `length` bytes in two files; None where they are equal."""
    buffers = bytearray(_PIECE), bytearray(_PIECE)
    with left.open("rb", buffering=0) as first, right.open("rb", buffering=0) as second:
        first.seek(left_at)
        second.seek(right_at)
        done = 0
        while done < length:
            size = min(_PIECE, length - done)
            got = [
                stream.readinto(memoryview(buffer)[:size])
                for stream, buffer in zip((first, second), buffers, strict=True)
            ]
            whole = min(got)
            if buffers[0] != buffers[1] and buffers[0][:whole] != buffers[1][:whole]:
                return done + _first_unequal(buffers[0][:whole], buffers[1][:whole])
            if got[0] != got[1] or whole == 0:
                return done + whole
            done += whole
    return None


def _first_unequal(left: bytearray, right: bytearray) -> int:
    """Index of the first differing byte of two different buffers of equal length, by halving."""
    low, high = 0, len(left)
    while high - low > 1:
        middle = (low + high) // 2
        if left[low:middle] != right[low:middle]:
            high = middle
        else:
            low = middle
    return low


def _compared_range(header: Header) -> tuple[int, int]:
    """Byte range of the texts from the first compared token on."""
    entry = header.fields[_TOKENS]
    skipped = islice(header.strings(_TOKENS), FIRST_COMPARED_TOKEN)
    return entry.start + sum(8 + len(text) for text in skipped), entry.end


def _information(target: Header, drafter: Header) -> tuple[str, ...]:
    """What differs although no engine compares it."""
    found = []
    for key, what in (
        ("tokenizer.ggml.token_type", "token types"),
        ("tokenizer.ggml.scores", "scores"),
        ("tokenizer.ggml.merges", "merges"),
    ):
        if not _same_array(target, drafter, key):
            found.append(f"{what} differ; engines do not compare them")
    if target.text("tokenizer.ggml.pre") != drafter.text("tokenizer.ggml.pre"):
        pre = f"{target.text('tokenizer.ggml.pre')!r} and {drafter.text('tokenizer.ggml.pre')!r}"
        found.append(f"pre-tokenizers differ ({pre}); engines do not compare them")
    return tuple(found)


def _same_array(target: Header, drafter: Header, key: str) -> bool:
    first, second = target.fields.get(key), drafter.fields.get(key)
    if first is None or second is None:
        return first is second
    if (first.element_type, first.items, first.end - first.start) != (
        second.element_type,
        second.items,
        second.end - second.start,
    ):
        return False
    return _difference(target.path, first.start, drafter.path, second.start, first.end - first.start) is None


def duplicate_text(header: Header) -> bytes | None:
    """A token's text that comes twice, or None. The loader aborts on one (`GGML_ASSERT` on the two maps' sizes).

    Costs about as much as reading the header again and some 20 MB for 262,144 tokens, so it is asked for separately;
    above 2,000,000 tokens nothing is looked for.
    """
    entry = header.fields.get(_TOKENS)
    if entry is None or entry.element_type is not ValueType.STRING or entry.items > MAX_TOKENS:
        return None
    seen: set[bytes] = set()
    for token, text in enumerate(header.strings(_TOKENS)):
        effective = _effective(text, token)
        if effective in seen:
            return effective
        seen.add(effective)
    return None


def facts(header: Header) -> dict[str, Any]:
    """The vocabulary as JSON for a record."""
    vocabulary = read_vocabulary(header)
    return {
        "model": vocabulary.tokenizer,
        "pre": header.text("tokenizer.ggml.pre"),
        "type": vocabulary.type_name,
        "size": vocabulary.size,
        "bos": vocabulary.bos,
        "eos": vocabulary.eos,
        "add_bos": vocabulary.add_bos,
        "add_eos": vocabulary.add_eos,
        "merges": header.items("tokenizer.ggml.merges"),
        "scores": header.items("tokenizer.ggml.scores"),
        "token_types": header.items("tokenizer.ggml.token_type"),
        "chat_template": "tokenizer.chat_template" in header.fields,
        "notes": list(vocabulary.notes),
    }
