"""Vocabularies as engines see them: effective values, and the comparison in the engine's order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from findings.engine_rules import Behaviour, behaviour, known_since, knows, tensor_name_is_known
from findings.gguf_header import Header, read_header
from findings.vocabulary import Comparison, compare, duplicate_text, first_text_difference, read_vocabulary, shown
from precheck_pairs import BPE, SPM
from tiny_gguf import Tiny, token_texts, write

NEW = behaviour(11549)
OLD = behaviour(9105)


def header(folder: Path, model: Tiny, name: str = "model.gguf") -> Header:
    return read_header(write(folder / name, model))


def compared(folder: Path, target: Tiny, drafter: Tiny, rules: Behaviour = NEW) -> Comparison:
    return compare(header(folder, target, "target.gguf"), header(folder, drafter, "drafter.gguf"), rules)


def failed(comparison: Comparison) -> str:
    return comparison.failed.name if comparison.failed else ""


@pytest.mark.parametrize(
    ("model", "bos", "eos", "add_bos", "add_eos"),
    [
        (SPM, 1, 2, True, False),
        (SPM.changed(bos=None, eos=None, add_bos=None, add_eos=None), 1, 2, True, False),
        (BPE.changed(bos=None, eos=None, add_bos=None, add_eos=None), 11, 11, False, False),
        (BPE.changed(pre="llama-bpe", add_bos=None), 1, 2, True, False),
        (BPE.changed(pre="glm4", bos=None), -1, 2, True, False),
        (BPE.changed(tokenizer="gemma4", bos=None, eos=None, add_bos=False), -1, -1, True, False),
        (SPM.changed(bos=640), 1, 2, True, False),
        (SPM.changed(bos=639), 639, 2, True, False),
        (SPM.changed(tokenizer="t5", bos=None, eos=None, add_bos=None, add_eos=None), -1, 1, False, True),
        (SPM.changed(tokenizer="bert", bos=None, eos=None, add_bos=None, add_eos=None), 101, -1, True, False),
    ],
)
def test_effective_values_are_the_loaders(
    tmp_path: Path, model: Tiny, bos: int, eos: int, add_bos: bool, add_eos: bool
) -> None:
    found = read_vocabulary(header(tmp_path, model))
    assert (found.bos, found.eos, found.add_bos, found.add_eos) == (bos, eos, add_bos, add_eos)
    assert found.size == 640


def test_what_was_filled_in_is_said(tmp_path: Path) -> None:
    notes = " / ".join(read_vocabulary(header(tmp_path, BPE.changed(tokenizer="gemma4", bos=700, add_bos=False))).notes)
    assert "outside 640 tokens" in notes
    assert "overrides it to true for Gemma 4" in notes


@pytest.mark.parametrize(
    ("drafter", "check"),
    [
        (SPM, ""),
        (BPE.changed(bos=3, add_eos=True), "vocabulary type"),
        (SPM.changed(bos=3, add_eos=True, tokens=token_texts(900)), "BOS"),
        (SPM.changed(add_eos=True, tokens=token_texts(900)), "EOS"),
        (SPM.changed(eos=3, tokens=token_texts(769)), "size"),
        (SPM.with_text(600, "other"), "token texts"),
    ],
)
def test_the_first_failing_check_in_the_engines_order_ends_it(tmp_path: Path, drafter: Tiny, check: str) -> None:
    assert failed(compared(tmp_path, SPM, drafter)) == check


def test_old_builds_take_spm_and_bpe_for_the_same(tmp_path: Path) -> None:
    old, new = compared(tmp_path, SPM, BPE, OLD), compared(tmp_path, SPM, BPE, NEW)
    assert old.compatible
    assert old.type_difference_missed
    assert failed(new) == "vocabulary type"


def test_build_8929_compares_ids_that_are_not_added(tmp_path: Path) -> None:
    assert failed(compared(tmp_path, SPM, SPM.changed(eos=3), behaviour(8929))) == "EOS"
    assert compared(tmp_path, SPM, SPM.changed(eos=3), behaviour(8992)).compatible


def test_a_difference_names_token_and_both_texts(tmp_path: Path) -> None:
    comparison = compared(tmp_path, SPM, SPM.with_text(300, b"\xff\n"))
    assert comparison.failed is not None
    assert "token 300" in comparison.failed.detail
    assert "\\xff\\n" in comparison.failed.detail


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"plain", "'plain'"),
        ("\u2581the".encode(), "'\u2581the'"),
        (b"\xff\xfe", "'\\xff\\xfe'"),
        (b"\x1b[31m", "'\\x1b[31m'"),
        ("\u202egpj".encode(), "'\\u202egpj'"),
        (b"a" * 100, "'" + "a" * 60 + "\u2026'"),
    ],
)
def test_texts_are_shown_safely(text: bytes, expected: str) -> None:
    assert shown(text) == expected


def test_what_engines_do_not_compare_is_information(tmp_path: Path) -> None:
    drafter = BPE.changed(pre="qwen2", merges=("o r",), types=(1,) * 640, scores=(0.0,) * 640)
    comparison = compared(tmp_path, BPE, drafter)
    assert comparison.compatible
    assert [words.split()[0] for words in comparison.information] == ["token", "scores", "merges", "pre-tokenizers"]


def naive(left: tuple[str | bytes, ...], right: tuple[str | bytes, ...]) -> int | None:
    """The engine's loop, word by word: C strings, stand-ins for empty ones, from id 5 on."""

    def loaded(token: int, text: str | bytes) -> bytes:
        raw = text.encode() if isinstance(text, str) else text
        return raw.split(b"\0")[0] or f"[EMPTY_{token}]".encode()

    for token in range(5, min(len(left), len(right))):
        if loaded(token, left[token]) != loaded(token, right[token]):
            return token
    return None


texts = st.one_of(st.binary(max_size=6), st.sampled_from(["", "[EMPTY_7]", "a\0b", "a\0c", "\u2581x" * 40]))
vocabularies = st.lists(texts, min_size=1, max_size=30).map(tuple)
changes = st.lists(st.tuples(st.integers(0, 40), texts), max_size=3)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(first=vocabularies, edits=changes, more=vocabularies, repeated=st.integers(1, 400))
def test_the_difference_found_is_the_engines_loop(
    tmp_path: Path,
    first: tuple[str | bytes, ...],
    edits: list[tuple[int, str | bytes]],
    more: tuple[str | bytes, ...],
    repeated: int,
) -> None:
    left = (*first, *(f"filler{n}" for n in range(repeated)))
    right = [*left, *more]
    for place, text in edits:
        right[place % len(right)] = text
    found = first_text_difference(
        header(tmp_path, Tiny(tokens=left, rows=1), "a.gguf"),
        header(tmp_path, Tiny(tokens=tuple(right), rows=1), "b.gguf"),
    )
    assert (found[0] if found else None) == naive(left, tuple(right))


def test_a_difference_far_behind_the_first_window_is_found(tmp_path: Path) -> None:
    tokens = tuple(f"token{n}" + "x" * (n % 50) for n in range(40_000))
    left = header(tmp_path, Tiny(tokens=tokens, rows=1), "a.gguf")
    for token in (5, 9_999, 25_000, 39_999):
        right = header(tmp_path, Tiny(tokens=(*tokens[:token], "other", *tokens[token + 1 :]), rows=1), "b.gguf")
        assert first_text_difference(left, right) == (token, tokens[token].encode(), b"other")


def test_a_text_that_comes_twice_is_found(tmp_path: Path) -> None:
    assert duplicate_text(header(tmp_path, SPM)) is None
    assert duplicate_text(header(tmp_path, SPM.with_text(638, "word7"))) == b"word7"
    assert duplicate_text(header(tmp_path, SPM.with_text(638, b"word7\0tail"))) == b"word7"


def test_builds_between_samples_take_the_nearest_and_say_so() -> None:
    assert behaviour(9538).certain
    assert behaviour(9000).certain
    between = behaviour(9700)
    assert (between.sample, between.type_compared_as, between.certain) == (9713, "number", False)
    assert "nearest known one, 9713" in between.note
    assert not behaviour(20_000).certain
    assert behaviour(1).sample == 8929


def test_what_builds_know() -> None:
    assert known_since("architectures", "gemma4-assistant") == 9713
    assert not knows("architectures", "gemma4-assistant", 9538).yes
    assert knows("architectures", "gemma4-assistant", 11549).yes
    assert knows("architectures", "llama", 11549).certain
    assert not knows("architectures", "model-of-next-year", 20_000).certain
    assert not knows("architectures", "gemma4-assistant", 9600).certain
    assert known_since("architectures", "no such") is None
    assert tensor_name_is_known("blk.17.attn_q.weight")
    assert tensor_name_is_known("nextn.pre_projection.weight")
    assert not tensor_name_is_known("blk.17.surprise.weight")
