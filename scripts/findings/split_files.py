"""Models that lie in several files (`name-00001-of-00003.gguf`), as the engine looks for them.

Source: llama_model_loader and llama_split_path of llama.cpp: the first file is the one to be given; the others are
found by its name; each carries `split.no`, `split.count` and `split.tensors.count`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from findings.gguf_header import GgufError, Header, Tensor, read_header

MAX_PARTS = 999
_NAME = re.compile(r"^(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf$")


@dataclass(frozen=True)
class Parts:
    """All files of a model. `problems` say what an engine refuses or what cannot be right, with what to do."""

    headers: tuple[Header, ...]
    problems: tuple[str, ...] = ()

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """The tensors of all files that are there."""
        return tuple(tensor for header in self.headers for tensor in header.tensors)

    @property
    def file_bytes(self) -> int:
        """Bytes of all files that are there."""
        return sum(header.file_bytes for header in self.headers)


def find_parts(first: Header) -> Parts:
    """The files that belong to `first`, with what is wrong about them; a model in one file is its own only part."""
    named = _NAME.match(first.path.name)
    count = first.integer("split.count") or 0
    number = first.integer("split.no") or 0
    if count <= 1:
        if named and int(named["count"]) > 1:
            problem = (
                f"the name says part {int(named['number'])} of {int(named['count'])}, but the file has no split.count;"
                " merge parts with llama-gguf-split --merge, not with cat"
            )
            return Parts((first,), (problem,) if not first.tensors else ())
        return Parts((first,))
    if number != 0:
        return Parts((first,), (f"this is part {number + 1} of {count}; give the engine the first part",))
    if count > MAX_PARTS:
        return Parts((first,), (f"split.count is {count}; at most {MAX_PARTS} parts are looked for",))
    if named is None or int(named["number"]) != 1 or int(named["count"]) != count:
        expected = f"…-00001-of-{count:05d}.gguf"
        return Parts(
            (first,),
            (
                f"split.count is {count} but the file is not named {expected}: the engine finds the other parts by "
                "name. Rename the parts; if they were joined with cat, download them again and use "
                "llama-gguf-split --merge",
            ),
        )
    return _others(first, named["stem"], count)


def _others(first: Header, stem: str, count: int) -> Parts:
    headers, problems, missing = [first], [], []
    for number in range(1, count):
        path: Path = first.path.with_name(f"{stem}-{number + 1:05d}-of-{count:05d}.gguf")
        if not path.exists():
            missing.append(path.name)
            continue
        try:
            header = read_header(path)
        except GgufError as error:
            problems.append(f"part {number + 1}: {error}")
            continue
        if header.integer("split.no") != number:
            problems.append(f"{path.name}: split.no is {header.integer('split.no')}, the engine expects {number}")
        headers.append(header)
    if missing:
        shown = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
        problems.append(f"{len(missing)} of {count} parts missing beside it: {shown}")
    expected = first.integer("split.tensors.count")
    found = sum(len(header.tensors) for header in headers)
    if not missing and not problems and expected is not None and expected != found:
        problems.append(f"split.tensors.count is {expected}, the parts hold {found} tensors")
    return Parts(tuple(headers), tuple(problems))
