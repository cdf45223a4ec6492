"""Our header reader against the `gguf` package, and against files that nobody should have made."""

from __future__ import annotations

import math
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFEndian, GGUFReader, GGUFValueType, GGUFWriter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from findings.gguf_header import (
    MAX_ITEMS,
    TENSOR_TYPES,
    Fault,
    GgufError,
    Header,
    ValueType,
    read_header,
)

GENERATED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def string(text: str | bytes, order: str = "<") -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack(order + "Q", len(raw)) + raw


def raw_file(
    path: Path, keys: list[bytes], tensors: list[bytes] | None = None, tail: bytes = b"", version: int = 3
) -> Path:
    tensors = tensors or []
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(keys))
    path.write_bytes(head + b"".join(keys) + b"".join(tensors) + tail)
    return path


def key(name: str | bytes, value_type: int, raw: bytes) -> bytes:
    return string(name) + struct.pack("<I", value_type) + raw


def array(element: int, count: int, raw: bytes) -> bytes:
    return struct.pack("<IQ", element, count) + raw


def tensor(name: str, shape: tuple[int, ...], type_id: int = 0, offset: int = 0) -> bytes:
    return string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, type_id, offset)


def reference_value(field: Any) -> Any:
    """What GGUFReader says a field holds, as Python values; strings as bytes."""

    def one(part: Any, is_text: bool) -> Any:
        return bytes(part) if is_text else part[0].item()

    is_text = field.types[-1] == GGUFValueType.STRING
    if field.types[0] != GGUFValueType.ARRAY:
        return one(field.parts[field.data[0]], is_text)
    return [one(field.parts[index], is_text) for index in field.data]


def flat(value: Any) -> Any:
    if isinstance(value, list):
        return [item for part in value for item in (flat(part) if isinstance(part, list) else [flat(part)])]
    return value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value


def same(left: Any, right: Any) -> bool:
    if isinstance(left, list):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(left, float) and math.isnan(left):
        return isinstance(right, float) and math.isnan(right)
    return type(left) is type(right) and left == right


def assert_equals_reference(path: Path) -> Header:
    header = read_header(path)
    reference = GGUFReader(path)
    fields = {name: f for name, f in reference.fields.items() if not name.startswith("GGUF.")}
    assert list(header.fields) == list(fields)
    for name, field in fields.items():
        assert same(flat(header.value(name)), flat(reference_value(field))), name
        assert header.fields[name].type == field.types[0]
    assert header.version == reference.fields["GGUF.version"].parts[0][0]
    assert header.big_endian == (reference.endianess == GGUFEndian.BIG)
    assert header.data_offset == reference.data_offset
    assert len(header.tensors) == len(reference.tensors)
    for ours, theirs in zip(header.tensors, reference.tensors, strict=True):
        assert ours.name == theirs.name
        assert ours.shape == tuple(int(n) for n in theirs.shape)
        assert ours.type_id == theirs.tensor_type
        assert ours.size_bytes == theirs.n_bytes
        assert header.data_offset + ours.offset == theirs.data_offset
    return header


texts = st.text(max_size=12)
floats = st.floats(width=32, allow_nan=True)
SCALARS: dict[str, st.SearchStrategy[Any]] = {
    "uint8": st.integers(0, 2**8 - 1),
    "int8": st.integers(-(2**7), 2**7 - 1),
    "uint16": st.integers(0, 2**16 - 1),
    "int16": st.integers(-(2**15), 2**15 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "uint64": st.integers(0, 2**64 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "float32": floats,
    "float64": st.floats(),
    "bool": st.booleans(),
    "string": texts,
}
scalar_entries = st.one_of(*(st.tuples(st.just(kind), values) for kind, values in SCALARS.items()))
array_entries = st.tuples(
    st.just("array"),
    st.one_of(
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=6),
        st.lists(floats, min_size=1, max_size=6),
        st.lists(st.booleans(), min_size=1, max_size=6),
        st.lists(st.one_of(texts, st.binary(max_size=8)), min_size=1, max_size=6),
        st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=3), min_size=1, max_size=3),
    ),
)
names = st.text(min_size=1, max_size=12).filter(
    lambda name: not name.startswith("GGUF.") and name != "general.alignment"
)
entries = st.dictionaries(names, st.one_of(scalar_entries, array_entries), max_size=8)
shapes = st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), max_size=4)


def write(
    path: Path, values: dict[str, Any], tensors: list[list[int]], endian: GGUFEndian, alignment: int | None
) -> None:
    writer = GGUFWriter(path, "llama", endianess=endian)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    for name, (kind, value) in values.items():
        if name == "general.architecture":
            continue
        if kind == "array":
            writer.add_array(name, value)
        elif kind == "string":
            # `add_string` leaves an empty text out; the file may hold one all the same.
            writer.add_key_value(name, value, GGUFValueType.STRING)
        else:
            getattr(writer, f"add_{kind}")(name, value)
    for number, shape in enumerate(tensors):
        dtype = (np.float32, np.float16, np.int8)[number % 3]
        writer.add_tensor(f"tensor.{number}", np.zeros(shape, dtype=dtype))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@GENERATED
@given(
    values=entries,
    tensors=shapes,
    endian=st.sampled_from([GGUFEndian.LITTLE, GGUFEndian.BIG]),
    alignment=st.sampled_from([None, 8, 32, 64, 4096]),
    version=st.sampled_from([2, 3]),
)
def test_equals_the_reference_on_what_its_writer_makes(
    tmp_path: Path,
    values: dict[str, Any],
    tensors: list[list[int]],
    endian: GGUFEndian,
    alignment: int | None,
    version: int,
) -> None:
    path = tmp_path / "model.gguf"
    write(path, values, tensors, endian, alignment)
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack("<I" if endian is GGUFEndian.LITTLE else ">I", version)
    path.write_bytes(content)
    header = assert_equals_reference(path)
    assert header.version == version
    assert header.bytes_read <= header.size_bytes + 4096


@GENERATED
@given(values=entries, cut=st.floats(0, 1))
def test_every_cut_of_a_header_is_named_as_truncated(tmp_path: Path, values: dict[str, Any], cut: float) -> None:
    path = tmp_path / "model.gguf"
    write(path, values, [[2, 3]], GGUFEndian.LITTLE, None)
    whole = read_header(path)
    length = int(cut * (whole.size_bytes - 1))
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(GgufError) as caught:
        read_header(path)
    expected = {Fault.EMPTY} if length == 0 else {Fault.NOT_GGUF} if length < 4 else {Fault.TRUNCATED}
    assert caught.value.fault in expected


def test_tensor_types_equal_the_reference() -> None:
    known = {int(t): (t.name, *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType}
    assert {number: TENSOR_TYPES[number] for number in known} == known


def test_values_of_arrays_that_cross_the_reading_window(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    writer = GGUFWriter(path, "llama")
    tokens = [("t" * (i % 97)).encode() + bytes([i % 256]) for i in range(60_000)]
    writer.add_token_list(tokens)
    writer.add_array("long", ["x" * 3_000_000, "y"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    header = read_header(path)
    assert list(header.strings("tokenizer.ggml.tokens")) == tokens
    assert header.value("long") == ["x" * 3_000_000, "y"]
    assert header.size_bytes == path.stat().st_size


def test_reads_the_header_and_never_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write(path, {}, [[64, 1024]], GGUFEndian.LITTLE, None)
    header = read_header(path)
    assert header.file_bytes > 200_000
    assert header.bytes_read <= header.size_bytes + 4096


def test_long_fixed_arrays_are_stepped_over_without_reading(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "a.gguf", [key("scores", 9, array(6, 1_000_000, b"\0" * 4_000_000))])
    header = read_header(path)
    assert header.items("scores") == 1_000_000
    assert header.bytes_read < 10_000


def test_duplicate_keys_are_kept_beside_the_first(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "a.gguf", [key("a", 4, b"\1\0\0\0"), key("a", 8, string("later"))])
    header = read_header(path)
    assert header.value("a") == 1
    assert [header.decode(entry) for entry in header.duplicates] == ["later"]
    with pytest.raises(KeyError):
        GGUFReader(path)


def test_texts_that_are_not_utf8_survive(tmp_path: Path) -> None:
    path = raw_file(tmp_path / "a.gguf", [key("a", 8, string(b"\xff\xfe")), key(b"\xc3", 8, string("b"))])
    header = read_header(path)
    assert header.text("a").encode("utf-8", "surrogateescape") == b"\xff\xfe"
    assert list(header.fields) == ["a", "\udcc3"]


@pytest.mark.parametrize(
    ("content", "fault", "words"),
    [
        (b"", Fault.EMPTY, "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", Fault.LFS_POINTER, "git lfs pull"),
        (b"<!DOCTYPE html>\n<html>", Fault.HTML, "web page"),
        (b"  <html lang='en'>", Fault.HTML, "web page"),
        (b'{"error": "Entry not found"}', Fault.OTHER_FORMAT, "JSON"),
        (struct.pack("<Q", 20) + b'{"a":{}}            ', Fault.OTHER_FORMAT, "safetensors"),
        (b"PK\x03\x04" + b"\0" * 40, Fault.OTHER_FORMAT, "archive"),
        (b"FUGG" + b"\0" * 40, Fault.OTHER_FORMAT, "byte order"),
        (b"\0" * 100, Fault.NOT_GGUF, "unfinished download"),
        (b"\x17" * 100, Fault.NOT_GGUF, "instead of b'GGUF'"),
        (b"GGU", Fault.NOT_GGUF, "instead of b'GGUF'"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), Fault.VERSION, "version 1"),
        (b"GGUF" + struct.pack("<IQQ", 4, 0, 0), Fault.VERSION, "version 4"),
        (b"GGUF" + struct.pack("<I", 3), Fault.TRUNCATED, "cut off"),
    ],
)
def test_what_is_not_gguf_is_named(tmp_path: Path, content: bytes, fault: Fault, words: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    with pytest.raises(GgufError, match=r"model\.gguf") as caught:
        read_header(path)
    assert caught.value.fault is fault
    assert words in caught.value.reason


def test_absent_files_and_folders_are_named(tmp_path: Path) -> None:
    for path in (tmp_path / "nothing.gguf", tmp_path):
        with pytest.raises(GgufError) as caught:
            read_header(path)
        assert caught.value.fault is Fault.UNREADABLE


HOSTILE = {
    "2^63 tensors": b"GGUF" + struct.pack("<IQQ", 3, 2**63, 0),
    "2^64-1 keys": b"GGUF" + struct.pack("<IQQ", 3, 0, 2**64 - 1),
    "a name of 2^63 bytes": b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + b"a" * 64,
    "a text of 2^64-1 bytes": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("a", 8, struct.pack("<Q", 2**64 - 1)),
    "2^63 numbers": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("a", 9, array(4, 2**63, b"\0" * 64)),
    "2^61 texts": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("a", 9, array(8, 2**61, b"\0" * 64)),
    "a long text in an array": b"GGUF"
    + struct.pack("<IQQ", 3, 0, 1)
    + key("a", 9, array(8, 2, struct.pack("<Q", 2**63) + b"\0" * 64)),
    "nesting without end": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("a", 9, array(9, 1, b"") * 1000),
    "an unknown type": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("a", 13, b"\0" * 64),
    "an unknown type in an array": b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("a", 9, array(13, 1, b"\0" * 64)),
    "many dimensions": b"GGUF" + struct.pack("<IQQ", 3, 1, 0) + string("t") + struct.pack("<I", 2**31) + b"\0" * 64,
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_claims_cost_nothing(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(GgufError) as caught:
        read_header(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert caught.value.fault in {Fault.TRUNCATED, Fault.LIMIT, Fault.MALFORMED}
    assert peak < 1_000_000


def test_counts_beyond_the_limits_are_refused_before_walking(tmp_path: Path) -> None:
    many = raw_file(tmp_path / "keys.gguf", [], tail=b"\0" * 2_000_000)
    content = bytearray(many.read_bytes())
    content[16:24] = struct.pack("<Q", 100_000)
    many.write_bytes(content)
    with pytest.raises(GgufError) as caught:
        read_header(many)
    assert caught.value.fault is Fault.LIMIT

    texts_path = tmp_path / "texts.gguf"
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key("a", 9, array(8, MAX_ITEMS + 1, b""))
    with texts_path.open("wb") as stream:
        stream.write(head)
        stream.truncate(len(head) + 8 * (MAX_ITEMS + 1))
    with pytest.raises(GgufError) as caught:
        read_header(texts_path)
    assert caught.value.fault is Fault.LIMIT


@pytest.mark.parametrize("raw", [struct.pack("<I", 0), struct.pack("<I", 7), struct.pack("<I", 2**32 - 1)])
def test_odd_alignments_are_kept_for_the_verdict(tmp_path: Path, raw: bytes) -> None:
    header = read_header(raw_file(tmp_path / "a.gguf", [key("general.alignment", 4, raw)]))
    assert header.alignment == struct.unpack("<I", raw)[0]
    assert header.data_offset >= header.size_bytes


def test_typed_access_does_not_mix_types(tmp_path: Path) -> None:
    keys = [
        key("flag", 7, b"\1"),
        key("n", 4, struct.pack("<I", 7)),
        key("x", 6, struct.pack("<f", 0.5)),
        key("s", 8, string("t")),
    ]
    header = read_header(raw_file(tmp_path / "a.gguf", keys, [tensor("t", (256, 2), 12)]))
    assert header.integer("flag") is None
    assert header.integer("n") == 7
    assert header.boolean("flag") is True
    assert header.boolean("n") is None
    assert header.number("x") == 0.5
    assert header.number("s") is None
    assert header.text("n", "none") == "none"
    assert header.items("s") is None
    assert header.value("absent") is None
    with pytest.raises(TypeError):
        list(header.strings("s"))
    assert header.tensors[0].type_name == "Q4_K"
    assert header.tensors[0].size_bytes == 288
    assert header.fields["n"].type is ValueType.UINT32


def test_names_and_texts_cannot_fill_the_memory(tmp_path: Path) -> None:
    long_name = tmp_path / "names.gguf"
    raw_file(long_name, [key(f"{n:05d}" + "x" * 65_000, 0, b"\1") for n in range(600)])
    with pytest.raises(GgufError) as caught:
        read_header(long_name)
    assert caught.value.fault is Fault.LIMIT

    texts_path = tmp_path / "texts.gguf"
    raw_file(texts_path, [key(f"text.{n}", 8, string(b"x" * 6_000_000)) for n in range(5)])
    tracemalloc.start()
    header = read_header(texts_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40_000_000
    assert sorted(header.scalars) == ["text.0", "text.1"]
    assert header.value("text.4") == "x" * 6_000_000
