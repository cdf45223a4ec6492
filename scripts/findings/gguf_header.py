"""Reading a GGUF header without reading the model.

The header is walked once, in windows; arrays stay byte ranges of the file and are decoded when somebody asks for them.
A header of 262,144 tokens thus costs a tenth of a second and a few megabytes. The `gguf` package stays the authority:
the tests hold every key and tensor of this reader against its `GGUFReader`.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; limits that an engine has are not applied here (see
`findings.loadability`), only those that keep a hostile file from taking time or memory.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

MAGIC = b"GGUF"
SUPPORTED_VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32

# Bounds of this reader. The largest public headers have some 800,000 strings, 100 keys and 2,000 tensors.
MAX_ITEMS = 8_000_000
MAX_KEYS = 65_536
MAX_TENSORS = 65_536
MAX_NAME_BYTES = 65_535
MAX_NAMES_BYTES = 32 << 20
MAX_STRING_BYTES = 64 << 20
MAX_KEPT_BYTES = 16 << 20
MAX_NESTING = 8
MAX_DIMENSIONS = 8

_PAGE = 4096
_WINDOW = 1 << 18
_SMALLEST_KEY = 8 + 4 + 1
_SMALLEST_TENSOR = 8 + 4 + 4 + 8

Scalar = int | float | bool | str
Value = Scalar | list["Value"]


class Fault(StrEnum):
    """Why a file cannot be read as GGUF."""

    UNREADABLE = "unreadable"
    EMPTY = "empty"
    HTML = "html_page"
    LFS_POINTER = "lfs_pointer"
    OTHER_FORMAT = "other_format"
    NOT_GGUF = "not_gguf"
    VERSION = "version"
    TRUNCATED = "truncated_header"
    MALFORMED = "malformed"
    LIMIT = "beyond_limits"


class GgufError(ValueError):
    """A file that cannot be read as GGUF; `fault` says of what kind, the message names file, place, value and mend."""

    def __init__(self, path: Path, fault: Fault, reason: str) -> None:
        super().__init__(f"{path.name}: {reason}")
        self.path = path
        self.fault = fault
        self.reason = reason


class ValueType(IntEnum):
    """Types of metadata values, by their number in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_CODES = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}
_SIZES = {value_type: struct.calcsize("<" + code) for value_type, code in _CODES.items()}

# ggml tensor types: number -> (name, elements in a block, bytes of a block). Source: ggml.c `type_traits`; removed
# numbers (4, 5, 31..33, 36..38) are left out. The tests compare it with the `gguf` package.
TENSOR_TYPES: dict[int, tuple[str, int, int]] = {
    0: ("F32", 1, 4),
    1: ("F16", 1, 2),
    2: ("Q4_0", 32, 18),
    3: ("Q4_1", 32, 20),
    6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24),
    8: ("Q8_0", 32, 34),
    9: ("Q8_1", 32, 40),
    10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110),
    12: ("Q4_K", 256, 144),
    13: ("Q5_K", 256, 176),
    14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292),
    16: ("IQ2_XXS", 256, 66),
    17: ("IQ2_XS", 256, 74),
    18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50),
    20: ("IQ4_NL", 32, 18),
    21: ("IQ3_S", 256, 110),
    22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136),
    24: ("I8", 1, 1),
    25: ("I16", 1, 2),
    26: ("I32", 1, 4),
    27: ("I64", 1, 8),
    28: ("F64", 1, 8),
    29: ("IQ1_M", 256, 56),
    30: ("BF16", 1, 2),
    34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66),
    39: ("MXFP4", 32, 17),
    40: ("NVFP4", 64, 36),
    41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}


@dataclass(frozen=True)
class Field:
    """One metadata entry. `start` and `end` are the byte range of the value in the file (an array: of its elements).

    `items` is the number of elements of an array (of the outermost one, where arrays are nested), else 1.
    """

    name: str
    type: ValueType
    start: int
    end: int
    element_type: ValueType | None = None
    items: int = 1


@dataclass(frozen=True)
class Tensor:
    """One tensor: `shape` as in the file (the fastest dimension first), `offset` in bytes from the data's start."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def type_name(self) -> str:
        """Name of the type, or `type <n>` where this reader does not know it."""
        return TENSOR_TYPES[self.type_id][0] if self.type_id in TENSOR_TYPES else f"type {self.type_id}"

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        total = 1
        for length in self.shape:
            total *= length
        return total

    @property
    def size_bytes(self) -> int | None:
        """Bytes of the data; None where the type is unknown."""
        if self.type_id not in TENSOR_TYPES:
            return None
        _, block, block_bytes = TENSOR_TYPES[self.type_id]
        return self.elements * block_bytes // block


@dataclass(frozen=True)
class Header:
    """A walked header: what is where. Values are read from the file again when asked for.

    `size_bytes` is where the header ends, `data_offset` where the tensor data start (the next multiple of `alignment`),
    `bytes_read` what the walk read from the file. `duplicates` holds keys that came again (the first one counts here).
    """

    path: Path
    version: int
    big_endian: bool
    file_bytes: int
    size_bytes: int
    data_offset: int
    alignment: int
    fields: dict[str, Field]
    tensors: tuple[Tensor, ...]
    duplicates: tuple[Field, ...] = ()
    bytes_read: int = 0
    scalars: dict[str, Scalar] = field(default_factory=dict)

    def value(self, name: str) -> Value | None:
        """The whole decoded value of a key, None where the key is absent. Strings keep odd bytes as surrogates."""
        if name in self.scalars:
            return self.scalars[name]
        entry = self.fields.get(name)
        if entry is None:
            return None
        return self.decode(entry)

    def decode(self, entry: Field) -> Value:
        """The value of a field of this header (of a duplicate, too)."""
        with _Source(self.path) as source:
            if entry.element_type is None:
                return _decode_scalar(source, entry.type, entry.start, entry.end, self._order)
            return _decode_array(source, entry.element_type, entry.items, entry.start, self._order)[0]

    def text(self, name: str, default: str = "") -> str:
        """A string value; `default` where the key is absent or no string."""
        found = self.scalars.get(name)
        return found if isinstance(found, str) else default

    def integer(self, name: str) -> int | None:
        """An integer value; None where the key is absent or no integer."""
        found = self.scalars.get(name)
        return found if isinstance(found, int) and not isinstance(found, bool) else None

    def boolean(self, name: str) -> bool | None:
        """A bool value; None where the key is absent or of another type."""
        found = self.scalars.get(name)
        return found if isinstance(found, bool) else None

    def number(self, name: str) -> float | None:
        """A float or integer value; None where the key is absent or something else."""
        found = self.scalars.get(name)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None

    def items(self, name: str) -> int | None:
        """Elements of an array; None where the key is absent or no array."""
        entry = self.fields.get(name)
        return entry.items if entry is not None and entry.element_type is not None else None

    def strings(self, name: str) -> Iterator[bytes]:
        """The elements of an array of strings as bytes, in file order, read in windows.

        Raises KeyError for an absent key, TypeError where it is no array of strings.
        """
        entry = self.fields[name]
        if entry.element_type is not ValueType.STRING:
            raise TypeError(f"{name} is no array of strings")
        with _Source(self.path) as source:
            at = entry.start
            for _ in range(entry.items):
                text, at = _read_string(source, at, self._order, MAX_STRING_BYTES, entry.end - at)
                yield text

    def string_around(self, name: str, offset: int) -> tuple[int, int]:
        """(index, place in the file) of the element of an array of strings that holds the byte `offset` of the array.

        `offset` counts from the start of the elements; the lengths are walked, nothing is decoded.
        """
        entry = self.fields[name]
        length_at = struct.Struct(self._order + "Q").unpack_from
        wanted = entry.start + offset
        with _Source(self.path) as source:
            at, index = entry.start, 0
            while True:
                inside = source.fill(at, 8, entry.end - at)
                window, base, last = source.window, source.base, len(source.window) - 8
                start = inside
                while inside <= last and base + inside <= wanted:
                    start = inside
                    inside += 8 + length_at(window, inside)[0]
                    index += 1
                at = base + inside
                if at > wanted:
                    return index - 1, base + start

    def strings_from(self, name: str, index: int, at: int) -> Iterator[bytes]:
        """The elements of an array of strings from element `index`, whose place in the file is `at`."""
        entry = self.fields[name]
        with _Source(self.path) as source:
            for _ in range(index, entry.items):
                text, at = _read_string(source, at, self._order, MAX_STRING_BYTES, entry.end - at)
                yield text

    @property
    def _order(self) -> str:
        return ">" if self.big_endian else "<"


def read_header(path: Path) -> Header:
    """Walk the header of one GGUF file.

    Reads at most one page (4 KiB) behind the header's end, never the weights. Raises GgufError for everything that
    is no whole GGUF header of version 2 or 3, with the reason; takes a few megabytes beyond the metadata at most.
    """
    try:
        with _Source(path) as source:
            return _Walk(source, path).run()
    except OSError as error:
        raise GgufError(path, Fault.UNREADABLE, f"cannot be opened ({error.strerror or error})") from error


class _ShortError(Exception):
    """A read beyond the end of the file."""

    def __init__(self, at: int, wanted: int) -> None:
        super().__init__(at, wanted)
        self.at = at
        self.wanted = wanted


class _Source:
    """A file read through one window; counts what it reads."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self.bytes_read = 0
        self.window = b""
        self.base = 0
        self._file: BinaryIO | None = None

    def __enter__(self) -> _Source:
        self._file = self.path.open("rb", buffering=0)
        self.size = os.fstat(self._file.fileno()).st_size
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def fill(self, at: int, wanted: int, promised: int = 0) -> int:
        """Make `wanted` bytes from `at` lie in the window and return their place in it.

        `promised` bytes from `at` on certainly belong to the header, so that many may be read ahead.
        """
        inside = at - self.base
        if inside >= 0 and inside + wanted <= len(self.window):
            return inside
        if at < 0 or at + wanted > self.size:
            raise _ShortError(at, wanted)
        length = max(wanted, min(_WINDOW, max(promised, _PAGE)))
        self.window = self._read(at, min(length, self.size - at))
        self.base = at
        if len(self.window) < wanted:
            raise _ShortError(at, wanted)
        return 0

    def take(self, at: int, wanted: int, promised: int = 0) -> bytes:
        """`wanted` bytes from `at`."""
        inside = self.fill(at, wanted, promised)
        return self.window[inside : inside + wanted]

    def _read(self, at: int, length: int) -> bytes:
        assert self._file is not None
        self._file.seek(at)
        pieces = []
        while length > 0:
            piece = self._file.read(length)
            if not piece:
                break
            pieces.append(piece)
            length -= len(piece)
            self.bytes_read += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _Walk:
    """One walk over one header."""

    def __init__(self, source: _Source, path: Path) -> None:
        self.source = source
        self.path = path
        self.at = 0
        self.order = "<"
        self.budget = MAX_ITEMS
        self.names_budget = MAX_NAMES_BYTES
        self.kept_budget = MAX_KEPT_BYTES
        self.keys_left = 0
        self.tensors_left = 0

    def run(self) -> Header:
        """The whole walk."""
        try:
            version = self._start()
            fields, duplicates, scalars = self._fields()
            tensors = self._tensors()
        except _ShortError as short:
            raise GgufError(
                self.path,
                Fault.TRUNCATED,
                f"the header is cut off: at byte {short.at} it needs {short.wanted} more bytes, the file has "
                f"{self.source.size} bytes in all; download it again and compare its size and sha256",
            ) from short
        alignment = scalars.get("general.alignment", DEFAULT_ALIGNMENT)
        step = alignment if isinstance(alignment, int) and alignment > 0 else DEFAULT_ALIGNMENT
        return Header(
            path=self.path,
            version=version,
            big_endian=self.order == ">",
            file_bytes=self.source.size,
            size_bytes=self.at,
            data_offset=-(-self.at // step) * step,
            alignment=alignment if isinstance(alignment, int) else -1,
            fields=fields,
            tensors=tensors,
            duplicates=duplicates,
            bytes_read=self.source.bytes_read,
            scalars=scalars,
        )

    def _fail(self, fault: Fault, reason: str) -> GgufError:
        return GgufError(self.path, fault, reason)

    def _number(self, code: str) -> int:
        size = struct.calcsize("<" + code)
        inside = self.source.fill(self.at, size, self._promised())
        self.at += size
        (number,) = struct.unpack_from(self.order + code, self.source.window, inside)
        return int(number)

    def _promised(self) -> int:
        return self.keys_left * _SMALLEST_KEY + self.tensors_left * _SMALLEST_TENSOR

    def _start(self) -> int:
        head = self.source.take(0, min(self.source.size, 512))
        if head[:4] != MAGIC:
            raise self._fail(*_what_is_it(head))
        self.at = 4
        version = self._number("I")
        # A version whose low half is empty was written in the other byte order (the rule of gguf.cpp and GGUFReader).
        if version & 0xFFFF == 0:
            self.order = ">"
            self.at = 4
            version = self._number("I")
        if version not in SUPPORTED_VERSIONS:
            raise self._fail(
                Fault.VERSION,
                f"GGUF version {version}; this reader and the engines know 2 and 3: convert the model again",
            )
        self.tensors_left = self._count("tensors", MAX_TENSORS, _SMALLEST_TENSOR)
        self.keys_left = self._count("keys", MAX_KEYS, _SMALLEST_KEY)
        return version

    def _count(self, what: str, limit: int, smallest: int) -> int:
        count = self._number("Q")
        if count * smallest > self.source.size:
            raise self._fail(Fault.TRUNCATED, f"claims {count} {what}, more than {self.source.size} bytes can hold")
        if count > limit:
            raise self._fail(Fault.LIMIT, f"claims {count} {what}; this reader takes at most {limit}")
        return count

    def _name(self, what: str) -> str:
        length = self._number("Q")
        if length > MAX_NAME_BYTES:
            if self.at + length > self.source.size:
                raise _ShortError(self.at, length)
            raise self._fail(Fault.LIMIT, f"{what} at byte {self.at - 8} has {length} bytes; at most {MAX_NAME_BYTES}")
        self.names_budget -= length
        if self.names_budget < 0:
            raise self._fail(Fault.LIMIT, f"names of more than {MAX_NAMES_BYTES} bytes in one header")
        raw = self.source.take(self.at, length, length + self._promised())
        self.at += length
        return raw.decode("utf-8", "surrogateescape")

    def _type(self, name: str) -> ValueType:
        number = self._number("I")
        try:
            return ValueType(number)
        except ValueError as error:
            raise self._fail(Fault.MALFORMED, f"key {name!r}: {number} is no type of a value") from error

    def _fields(self) -> tuple[dict[str, Field], tuple[Field, ...], dict[str, Scalar]]:
        fields: dict[str, Field] = {}
        scalars: dict[str, Scalar] = {}
        duplicates = []
        for _ in range(self.keys_left):
            self.keys_left -= 1
            name = self._name("key")
            entry = self._field(name)
            if name in fields:
                duplicates.append(entry)
                continue
            fields[name] = entry
            size = entry.end - entry.start
            if entry.element_type is None and size <= self.kept_budget:
                # Texts beyond the budget (nobody has so many) stay in the file until they are asked for.
                self.kept_budget -= size
                scalars[name] = _decode_scalar(self.source, entry.type, entry.start, entry.end, self.order)
        return fields, tuple(duplicates), scalars

    def _field(self, name: str) -> Field:
        value_type = self._type(name)
        if value_type is ValueType.ARRAY:
            element = self._type(name)
            items = self._number("Q")
            start = self.at
            self._skip_array(name, element, items, 1)
            return Field(name, value_type, start, self.at, element, items)
        start = self.at
        if value_type is ValueType.STRING:
            length = self._number("Q")
            start = self.at
            if start + length > self.source.size:
                raise _ShortError(start, length)
            if length > MAX_STRING_BYTES:
                raise self._fail(Fault.LIMIT, f"key {name!r}: a text of {length} bytes; at most {MAX_STRING_BYTES}")
            self.at += length
        else:
            self.at += _SIZES[value_type]
            if self.at > self.source.size:
                raise _ShortError(start, _SIZES[value_type])
        return Field(name, value_type, start, self.at)

    def _skip_array(self, name: str, element: ValueType, items: int, depth: int) -> None:
        smallest = _SIZES.get(element, 8 if element is ValueType.STRING else 12)
        if self.at + items * smallest > self.source.size:
            raise _ShortError(self.at, items * smallest)
        if element in _SIZES:
            self.at += items * smallest
            return
        self.budget -= items
        if self.budget < 0:
            raise self._fail(Fault.LIMIT, f"key {name!r}: more than {MAX_ITEMS} texts in one header")
        if element is ValueType.STRING:
            self._skip_strings(items)
            return
        if depth >= MAX_NESTING:
            raise self._fail(Fault.LIMIT, f"key {name!r}: arrays nested deeper than {MAX_NESTING}")
        for _ in range(items):
            self.budget -= 1
            if self.budget < 0:
                raise self._fail(Fault.LIMIT, f"key {name!r}: more than {MAX_ITEMS} arrays in one header")
            inner = self._type(name)
            self._skip_array(name, inner, self._number("Q"), depth + 1)

    def _skip_strings(self, items: int) -> None:
        """The hot loop: from length to length. The window is refilled where the next length lies outside it."""
        source = self.source
        length_at = struct.Struct(self.order + "Q").unpack_from
        tail = self._promised()
        done = 0
        while done < items:
            inside = source.fill(self.at, 8, 8 * (items - done) + tail)
            window, base, last = source.window, source.base, len(source.window) - 8
            while inside <= last and done < items:
                inside += 8 + length_at(window, inside)[0]
                done += 1
            self.at = base + inside
        if self.at > source.size:
            raise _ShortError(source.size, self.at - source.size)

    def _tensors(self) -> tuple[Tensor, ...]:
        tensors = []
        for _ in range(self.tensors_left):
            self.tensors_left -= 1
            name = self._name("tensor name")
            dimensions = self._number("I")
            if dimensions > MAX_DIMENSIONS:
                raise self._fail(Fault.MALFORMED, f"tensor {name!r} claims {dimensions} dimensions")
            shape = tuple(self._number("Q") for _ in range(dimensions))
            type_id = self._number("I")
            tensors.append(Tensor(name, shape, type_id, self._number("Q")))
        return tuple(tensors)


def _read_string(source: _Source, at: int, order: str, limit: int, promised: int) -> tuple[bytes, int]:
    inside = source.fill(at, 8, promised)
    (length,) = struct.unpack_from(order + "Q", source.window, inside)
    if length > limit:
        raise GgufError(source.path, Fault.LIMIT, f"a text of {length} bytes at byte {at}; at most {limit}")
    return source.take(at + 8, length, promised), at + 8 + length


def _decode_scalar(source: _Source, value_type: ValueType, start: int, end: int, order: str) -> Scalar:
    raw = source.take(start, end - start)
    if value_type is ValueType.STRING:
        return raw.decode("utf-8", "surrogateescape")
    if value_type is ValueType.BOOL:
        return raw != b"\0"
    (value,) = struct.unpack(order + _CODES[value_type], raw)
    return value  # type: ignore[no-any-return]


def _decode_array(source: _Source, element: ValueType, items: int, at: int, order: str) -> tuple[list[Value], int]:
    values: list[Value] = []
    if element is ValueType.STRING:
        for _ in range(items):
            text, at = _read_string(source, at, order, MAX_STRING_BYTES, 8 * items)
            values.append(text.decode("utf-8", "surrogateescape"))
        return values, at
    if element is ValueType.ARRAY:
        for _ in range(items):
            inner, count = struct.unpack(order + "IQ", source.take(at, 12))
            value, at = _decode_array(source, ValueType(inner), count, at + 12, order)
            values.append(value)
        return values, at
    size = items * _SIZES[element]
    raw = source.take(at, size)
    if element is ValueType.BOOL:
        return [byte != 0 for byte in raw], at + size
    return list(struct.unpack(f"{order}{items}{_CODES[element]}", raw)), at + size


def _what_is_it(head: bytes) -> tuple[Fault, str]:
    """What a file that does not begin with `GGUF` is, as far as its first bytes tell, and what to do."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if not head:
        return Fault.EMPTY, "the file is empty; the download did not begin or the disk is full"
    if head.startswith(b"version https://git-lfs"):
        return Fault.LFS_POINTER, "a Git LFS pointer, not the model; run `git lfs pull` or download the file itself"
    if start.startswith((b"<!doctype", b"<html", b"<?xml")):
        return Fault.HTML, "a web page, not a model; use the file's download address (…/resolve/…, not …/blob/…)"
    if start.startswith(b"{") or head[8:9] == b"{":
        return Fault.OTHER_FORMAT, "JSON or safetensors, not GGUF; convert it with convert_hf_to_gguf.py"
    if head.startswith((b"PK\x03\x04", b"\x1f\x8b", b"BZh", b"\xfd7zXZ", b"7z\xbc\xaf", b"\x28\xb5\x2f\xfd")):
        return Fault.OTHER_FORMAT, "an archive, not a model; unpack it first"
    if head[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg", b"FUGG"):
        return Fault.OTHER_FORMAT, "an old GGML file or one in the wrong byte order; convert the model again"
    if not any(head[:64]):
        return Fault.NOT_GGUF, "begins with zeros: a placeholder of an unfinished download; download it again"
    return Fault.NOT_GGUF, (
        f"begins with {head[:4]!r} instead of b'GGUF'; a later piece of a file that was cut up begins like this, too"
    )
