"""Schemas of the configuration: loading them, checking a document, filling in defaults, listing the keys.

The schemas (workflow/schemas) are the only place where types, limits, defaults and meanings of keys stand.
"""

from __future__ import annotations

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema

from findings.config_read import ReadError, read_yaml
from findings.marked import with_marked

# Schemas belong to the program, wherever the configuration lies that is checked with them.
SCHEMA_FOLDER = Path(__file__).parents[2] / "workflow/schemas"
SCHEMA_NAMES = (
    "config",
    "study",
    "attempts",
    "findings",
    "models",
    "engines",
    "prompts",
    "published",
    "lock",
)


@functools.cache
def load_schema(name: str) -> dict[str, Any]:
    """A schema with the shared definitions merged in. Raises ReadError when a file of the program itself is broken."""
    schema: dict[str, Any] = read_yaml(SCHEMA_FOLDER / f"{name}.schema.yaml")
    common = read_yaml(SCHEMA_FOLDER / "common.schema.yaml")
    return {**schema, "$defs": {**common["$defs"], **schema.get("$defs", {})}}


def resolved(schema: Mapping[str, Any], node: Mapping[str, Any]) -> dict[str, Any]:
    """A part of the schema with its `$ref` replaced; keywords beside the reference win."""
    reference = node.get("$ref")
    if reference is None:
        return dict(node)
    target = schema["$defs"][str(reference).removeprefix("#/$defs/")]
    return {**resolved(schema, target), **{key: value for key, value in node.items() if key != "$ref"}}


def shorten(value: object) -> str:
    """A value for a message, on one line and not long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` where something close is known, else the known ones (a few), else nothing."""
    options = [str(option) for option in known]
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.6)
    if close:
        return f"; did you mean {close[0]!r}?"
    if not options:
        return "; none is configured"
    shown = ", ".join(options[:8]) + (", ..." if len(options) > 8 else "")
    return f"; known: {shown}"


def key_path(document: Any, path: Sequence[str | int]) -> str:
    """A path for people: entries of a list are named by their id, as `attempts[attempt_1].arms[draft].kind`."""
    text, value = "", document
    for step in path:
        inner = value[step] if _reachable(value, step) else None
        if isinstance(step, int):
            named = inner.get("id") if isinstance(inner, Mapping) else None
            text += f"[{named if isinstance(named, str) and len(named) <= 64 else step}]"
        else:
            text += f".{step}" if text else str(step)
        value = inner
    return text or "(whole file)"


def _reachable(value: Any, step: str | int) -> bool:
    if isinstance(step, int):
        return isinstance(value, list) and step < len(value)
    return isinstance(value, Mapping) and step in value


def schema_errors(schema: Mapping[str, Any], document: Any, file: str) -> list[str]:
    """One line per violation of the schema: file, key, value, mend."""
    validator = jsonschema.Draft202012Validator(schema)
    lines: list[str] = []
    for error in sorted(validator.iter_errors(document), key=lambda item: [str(step) for step in item.absolute_path]):
        lines += [f"{file}: {line}" for line in _explain(schema, document, error)]
    return lines


def _explain(schema: Mapping[str, Any], document: Any, error: Any) -> Iterator[str]:
    path = list(error.absolute_path)
    where, value, rule = key_path(document, path), error.instance, error.validator_value
    mend = error.schema.get("mend")
    match error.validator:
        case "additionalProperties":
            known = list(error.schema.get("properties", {}))
            for key in (key for key in value if key not in known):
                yield f"{key_path(document, [*path, key])}: unknown key {shorten(key)}{did_you_mean(str(key), known)}"
        case "required":
            for key in (key for key in rule if key not in value):
                about = resolved(schema, error.schema["properties"][key]).get("description", "")
                yield f"{where}: key {key!r} is missing; add it ({_first_sentence(about)})"
        case "enum":
            hint = did_you_mean(value, [str(item) for item in rule if item != ""]) if isinstance(value, str) else ""
            words = ", ".join(str(item) if item != "" else '""' for item in rule)
            yield f"{where}: {shorten(value)} is not one of {words}{hint or _or(mend)}"
        case "type":
            yield f"{where}: {shorten(value)} is {_type_name(value)}; write {_wanted(rule)}{_or(mend)}"
        case "pattern":
            yield f"{where}: {shorten(value)} is not allowed; write {mend or 'a text of the form ' + str(rule)}"
        case "minimum" | "exclusiveMinimum":
            yield f"{where}: {shorten(value)} is too small; write {_more(error.validator)} {rule}"
        case "maximum" | "exclusiveMaximum":
            yield f"{where}: {shorten(value)} is too large; write {_less(error.validator)} {rule}"
        case "minItems" | "minLength":
            yield f"{where}: {shorten(value)} is too short; write {rule} or more"
        case "maxItems" | "maxLength" | "maxProperties":
            yield f"{where}: {shorten(value)} is too long; write {rule} at most"
        case "uniqueItems":
            yield f"{where}: {shorten(value)} has an entry twice; remove one"
        case "anyOf":
            for inner in error.context:
                if inner.validator == "type" and inner.validator_value == "null":
                    continue
                yield from _explain(schema, document, inner)
        case _:
            yield f"{where}: {shorten(value)}: {error.message}; see config/README.md"


def _first_sentence(text: str) -> str:
    return text.split(". ", maxsplit=1)[0].strip().rstrip(".") or "see config/README.md"


def _or(mend: str | None) -> str:
    return f"; {mend}" if mend else ""


def _more(keyword: str) -> str:
    return "at least" if keyword == "minimum" else "more than"


def _less(keyword: str) -> str:
    return "at most" if keyword == "maximum" else "less than"


def _type_name(value: object) -> str:
    names = {bool: "true/false", int: "a number", float: "a number", str: "a text", list: "a list", dict: "a mapping"}
    return "empty" if value is None else names.get(type(value), type(value).__name__)


def _wanted(rule: str | list[str]) -> str:
    names = {
        "string": "a text (in quotes where it looks like a number)",
        "integer": "a whole number",
        "number": "a number",
        "boolean": "true or false",
        "array": "a list",
        "object": "a mapping (key: value)",
        "null": "null",
    }
    return " or ".join(names[item] for item in ([rule] if isinstance(rule, str) else rule))


def with_defaults(schema: Mapping[str, Any], node: Mapping[str, Any], value: Any) -> Any:
    """The document with the schema's defaults filled in, recursively; the document must have passed the schema."""
    node = resolved(schema, node)
    for option in node.get("anyOf", ()):
        if value is not None and resolved(schema, option).get("type") != "null":
            return with_defaults(schema, option, value)
    if isinstance(value, Mapping):
        properties = node.get("properties", {})
        complete = dict(value)
        for key, raw in properties.items():
            part = resolved(schema, raw)
            if key in value:
                complete[key] = with_defaults(schema, part, value[key])
            elif "default" in part:
                complete[key] = with_defaults(schema, part, part["default"])
        other = node.get("additionalProperties")
        if isinstance(other, Mapping):
            for key in (key for key in value if key not in properties):
                complete[key] = with_defaults(schema, other, value[key])
        return complete
    if isinstance(value, list) and "items" in node:
        return [with_defaults(schema, node["items"], item) for item in value]
    return value


@dataclass(frozen=True)
class Key:
    """One key of the configuration, as the table in config/README.md shows it."""

    path: str
    type: str
    unit: str
    default: str
    allowed: str
    meaning: str


def keys(schema: Mapping[str, Any]) -> list[Key]:
    """Every key that the schema knows, in its order; `[]` stands for entries of a list, `<name>` for free names."""
    return list(_keys(schema, schema, ""))


def _keys(schema: Mapping[str, Any], node: Mapping[str, Any], path: str) -> Iterator[Key]:
    required = set(node.get("required", ()))
    parts: list[tuple[str, Mapping[str, Any], bool]] = [
        (name, part, name in required) for name, part in node.get("properties", {}).items()
    ]
    if isinstance(node.get("additionalProperties"), Mapping):
        parts.append(("<name>", node["additionalProperties"], False))
    for name, raw, needed in parts:
        part = _without_null(schema, resolved(schema, raw))
        where = f"{path}.{name}" if path else name
        item = resolved(schema, part["items"]) if "items" in part else {}
        default = "required" if needed else "" if name == "<name>" else _literal(part.get("default"))
        yield Key(
            where,
            _kind(part, item),
            str(part.get("unit") or item.get("unit") or ""),
            default,
            _allowed(part) or _allowed(item),
            str(part.get("description", "")),
        )
        yield from _keys(schema, part, where)
        if item:
            yield from _keys(schema, item, f"{where}[]")


def _without_null(schema: Mapping[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """Of `anyOf: [something, null]` the something, with the keywords that stand beside it."""
    options = [resolved(schema, option) for option in part.get("anyOf", ())]
    return next(({**option, **part} for option in options if option.get("type") != "null"), part)


def _literal(value: object) -> str:
    names = {"": "empty", "None": "null", "[]": "empty list", "{}": "empty", "True": "true", "False": "false"}
    return names.get(str(value), str(value))


_KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true/false",
    "object": "mapping",
    "array": "list",
    "null": "null",
}


def _kind(part: Mapping[str, Any], item: Mapping[str, Any]) -> str:
    kind = part.get("type", "")
    names = [_KINDS[name] for name in ([kind] if isinstance(kind, str) else kind) if name]
    text = " or ".join(names)
    return f"list of {_kind(item, {})}" if text == "list" and item else text


def _allowed(part: Mapping[str, Any]) -> str:
    if "enum" in part:
        return ", ".join(f"`{item}`" if item != "" else "empty" for item in part["enum"])
    if "mend" in part:
        return str(part["mend"])
    low = part.get("minimum", part.get("exclusiveMinimum"))
    high = part.get("maximum", part.get("exclusiveMaximum"))
    if low is None or high is None:
        return ""
    above = "above " if "exclusiveMinimum" in part else ""
    below = "below " if "exclusiveMaximum" in part else ""
    return f"{above}{low} to {below}{high}"


def reference() -> str:
    """The tables of config/README.md: for each file, every key with type, unit, default, allowed values and meaning."""
    lines: list[str] = []
    for name in SCHEMA_NAMES:
        schema = load_schema(name)
        lines += ["", f"### {schema['file']}", "", schema["description"].strip(), ""]
        lines += ["| key | type | unit | default | allowed | meaning |", "|---|---|---|---|---|---|"]
        for key in keys(schema):
            cells = (f"`{key.path}`", key.type, key.unit, key.default, key.allowed, key.meaning)
            lines.append("| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |")
    return "\n".join([*lines, ""])


BEGIN = "<!-- keys: begin; written by scripts/config_reference.py from workflow/schemas, do not edit -->"
END = "<!-- keys: end -->"


def with_reference(text: str, table: str) -> str:
    """A README with the part between the markers replaced. Raises ReadError when a marker is missing."""
    changed = with_marked(text, BEGIN, END, f"\n{table}\n")
    if changed is None:
        raise ReadError(f"the markers are missing; put back {BEGIN} and {END}")
    return changed
