"""The copy with other token types differs in exactly those, by the gguf package's own reading."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf import GGUFReader, GGUFWriter

from findings.records import sha256_file
from findings.retype import FIRST_IDS, RetypeError, change_types, other_type, retyped

TYPES = [3, 3, 3, 2, 1, 4, 1, 1, 6, 1]


def write_model(path: Path, types: list[int] | None = TYPES) -> None:
    writer = GGUFWriter(str(path), "llama")
    writer.add_token_list([f"t{i}" for i in range(len(TYPES))])
    if types is not None:
        writer.add_token_types(types)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def types_of(path: Path) -> list[int]:
    field = GGUFReader(str(path)).fields["tokenizer.ggml.token_type"]
    return [int(value) for value in field.contents()]


def test_only_the_first_types_change(tmp_path: Path) -> None:
    source = tmp_path / "model.gguf"
    write_model(source)
    before = source.read_bytes()
    path, digest = retyped(source, sha256_file(source), "copy.gguf", tmp_path / "cache")
    assert source.read_bytes() == before
    assert digest == sha256_file(path)
    changed = types_of(path)
    assert changed[FIRST_IDS:] == TYPES[FIRST_IDS:]
    assert all(a != b for a, b in zip(changed[:FIRST_IDS], TYPES[:FIRST_IDS], strict=True))
    differing = [i for i, (a, b) in enumerate(zip(path.read_bytes(), before, strict=True)) if a != b]
    assert len(differing) == FIRST_IDS
    again, same = retyped(source, sha256_file(source), "copy.gguf", tmp_path / "cache")
    assert (again, same) == (path, digest)


def test_every_type_becomes_another_one() -> None:
    assert all(other_type(value) != value for value in range(7))


def test_a_file_without_types_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plain.gguf"
    write_model(path, None)
    with pytest.raises(RetypeError, match=r"plain\.gguf"):
        change_types(path)
    (tmp_path / "page.gguf").write_text("<html>")
    with pytest.raises(RetypeError, match=r"page\.gguf"):
        change_types(tmp_path / "page.gguf")
