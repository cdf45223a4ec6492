"""Reading YAML that nobody has checked yet: plain data only, bounded, every mistake a line with file and mend.

Refused: tags, anchors and aliases (an alias bomb needs them), duplicate keys, files above MAX_FILE_BYTES, deep nesting.
Dates stay strings.
"""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml

MAX_FILE_BYTES = 4_000_000
MAX_DEPTH = 30
_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class ReadError(ValueError):
    """A file that is no acceptable YAML; the message has no file name, the caller adds it."""


class _PlainLoader(_Base):  # type: ignore[misc] # the base is C or Python, whichever this machine has
    """SafeLoader without dates and with duplicate keys refused."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - the name and form that PyYAML asks for
        first: [(tag, pattern) for tag, pattern in rules if tag != "tag:yaml.org,2002:timestamp"]
        for first, rules in _Base.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """A mapping whose keys are different strings."""
        seen: dict[Hashable, int] = {}
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str):
                raise ReadError(f"line {line}: key {_short(key)} is not text; write it in quotes")
            if key in seen:
                raise ReadError(
                    f"line {line}: key {_short(key)} is there twice, first in line {seen[key]}; remove one of them"
                )
            seen[key] = line
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return mapping


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def read_yaml(path: Path) -> Any:
    """The plain data in a file. Raises ReadError for whatever is refused (see the module) and for a missing file."""
    try:
        size = path.stat().st_size
        if size > MAX_FILE_BYTES:
            raise ReadError(f"{size} bytes are too many; a configuration file may have {MAX_FILE_BYTES}")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ReadError(f"byte {error.start} is not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise ReadError(f"cannot be read ({error.strerror}); it must exist") from error
    return parse_yaml(text)


def parse_yaml(text: str) -> Any:
    """The plain data in a text. Raises ReadError."""
    try:
        _refuse_tricks(text)
        return yaml.load(text, Loader=_PlainLoader)  # noqa: S506 - a SafeLoader, and stricter
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        raise ReadError(
            f"{place}{getattr(error, 'problem', None) or error}; mend the YAML (indentation, quotes, brackets)"
        ) from error
    except RecursionError as error:
        raise ReadError(f"is nested more than {MAX_DEPTH} deep; flatten it") from error
    except ValueError as error:
        if isinstance(error, ReadError):
            raise
        raise ReadError(f"has a number that cannot be read ({_short(str(error))})") from error


def _refuse_tricks(text: str) -> None:
    """Look at the events only, before anything is built from them."""
    depth = 0
    for event in yaml.parse(text, Loader=_Base):
        line = event.start_mark.line + 1 if event.start_mark else 0
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            raise ReadError(f"line {line}: anchors and aliases (& and *) are refused; write the value out")
        tag = getattr(event, "tag", None)
        if tag not in (None, "!"):
            raise ReadError(f"line {line}: tag {_short(tag)} is refused; write plain values")
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_DEPTH:
                raise ReadError(f"line {line}: is nested more than {MAX_DEPTH} deep; flatten it")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1
