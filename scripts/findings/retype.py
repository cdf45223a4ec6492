"""A copy of a GGUF whose first tokens have other types, and nothing else changed: does an engine compare them?

The study names differing token types as the cause of rejected drafts. A model drafts for itself perfectly; if its copy
with other types still does, the types are not what decides.
"""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from findings.cache import exclusive, is_verified, land
from findings.gguf_header import GgufError, ValueType, read_header
from findings.records import sha256_file, sha256_text

TYPES_KEY = "tokenizer.ggml.token_type"
FIRST_IDS = 6
# llama_token_type in llama.h: 1 normal, 3 control, 4 user defined.
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


class RetypeError(ValueError):
    """A file whose token types cannot be changed; the message says why."""


def other_type(token_type: int) -> int:
    """Another type for a token: user defined becomes normal, everything else user defined.

    Control tokens become user defined, which the target's sampler never sees: the copy only drafts.
    """
    return NORMAL if token_type == USER_DEFINED else USER_DEFINED


def retyped(source: Path, source_sha256: str, name: str, cache: Path) -> tuple[Path, str]:
    """(path, sha256) of the copy in the cache, made once. Raises RetypeError, CacheError, OSError."""
    key = sha256_text(f"retyped {FIRST_IDS} {source_sha256}")[:32]
    target = cache / "converted" / key / name
    noted = target.parent / "sha256.txt"
    with exclusive(cache, f"retyped-{key}", f"retype {name}"):
        known = noted.read_text(encoding="utf-8").strip() if noted.is_file() else ""
        if known and is_verified(target, known):
            return target, known
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f".{name}.part")
        shutil.copyfile(source, part)
        change_types(part)
        digest = sha256_file(part)
        land(part, target, digest)
        noted.write_text(digest + "\n", encoding="utf-8")
    return target, digest


def change_types(path: Path) -> None:
    """Change the token types of the first ids in place. Raises RetypeError where the file has none to change."""
    try:
        header = read_header(path)
    except GgufError as error:
        raise RetypeError(f"{path.name}: {error.reason}") from error
    entry = header.fields.get(TYPES_KEY)
    if entry is None or entry.element_type is not ValueType.INT32 or entry.items < FIRST_IDS:
        raise RetypeError(f"{path.name}: has no {TYPES_KEY} of {FIRST_IDS} or more 32-bit integers")
    order = ">" if header.big_endian else "<"
    layout = f"{order}{FIRST_IDS}i"
    with path.open("r+b") as stream:
        stream.seek(entry.start)
        types = struct.unpack(layout, stream.read(struct.calcsize(layout)))
        stream.seek(entry.start)
        stream.write(struct.pack(layout, *map(other_type, types)))
