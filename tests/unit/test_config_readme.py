"""config/README.md and the schemas are in step, both ways; every key says what it means."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from findings.config_read import ReadError, read_yaml
from findings.config_schema import (
    BEGIN,
    END,
    SCHEMA_FOLDER,
    SCHEMA_NAMES,
    keys,
    load_schema,
    reference,
    resolved,
    with_reference,
)

ROOT = Path(__file__).parents[2]
README = ROOT / "config/README.md"
# Keywords of JSON Schema that the schemas use, and our annotations. A comma in an unquoted text of a flow mapping would
# make a "keyword" of the rest of a sentence; this is what notices it.
KEYWORDS = {
    "$schema", "$defs", "$ref", "title", "description", "type", "enum", "pattern", "default", "required", "properties",
    "additionalProperties", "propertyNames", "maxProperties", "items", "minItems", "maxItems", "uniqueItems", "anyOf",
    "minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "unit", "mend", "file",
}  # fmt: skip


def nodes(node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Every part of a schema that is itself a schema."""
    yield node
    for keyword in ("items", "additionalProperties", "propertyNames"):
        if isinstance(node.get(keyword), Mapping):
            yield from nodes(node[keyword])
    for keyword in ("properties", "$defs"):
        for part in node.get(keyword, {}).values():
            yield from nodes(part)
    for part in node.get("anyOf", ()):
        yield from nodes(part)


def rows_of_readme() -> dict[str, dict[str, list[str]]]:
    """Cells by key by section of the table in the README, read without our own writer's help."""
    found: dict[str, dict[str, list[str]]] = {}
    section = ""
    for line in README.read_text(encoding="utf-8").splitlines():
        if line.startswith("### config/"):
            section = line.removeprefix("### ")
            found[section] = {}
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)]
        if section and len(cells) == 8 and cells[1].startswith("`"):
            found[section][cells[1].strip("`")] = cells[2:7]
    return found


@pytest.mark.parametrize("name", [*SCHEMA_NAMES, "common"])
def test_schemas_are_schemas_and_closed(name: str) -> None:
    schema = read_yaml(SCHEMA_FOLDER / f"{name}.schema.yaml")
    jsonschema.Draft202012Validator.check_schema(schema)
    for node in nodes(schema):
        assert set(node) <= KEYWORDS, set(node) - KEYWORDS
        if "properties" in node:
            assert node["additionalProperties"] is False, node
        assert isinstance(node.get("description", ""), str)


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_no_schema_is_forgotten(name: str) -> None:
    assert {path.name.split(".")[0] for path in SCHEMA_FOLDER.glob("*.schema.yaml")} == {*SCHEMA_NAMES, "common"}


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_every_key_has_meaning_unit_and_default(name: str) -> None:
    for key in keys(load_schema(name)):
        assert len(key.meaning) >= 5, key
        assert key.type, key
        if "number" in key.type:
            assert key.unit, key
        if not key.path.endswith("<name>"):
            assert key.default, key


@pytest.mark.parametrize("name", SCHEMA_NAMES)
def test_optional_keys_have_a_default_that_fits(name: str) -> None:
    schema = load_schema(name)
    for node in nodes(schema):
        for key, raw in node.get("properties", {}).items():
            part = resolved(schema, raw)
            if key in node.get("required", ()):
                assert "default" not in raw, key
            else:
                assert "default" in part, key
                jsonschema.Draft202012Validator({**part, "$defs": schema["$defs"]}).validate(part["default"])


def test_readme_has_every_key_of_the_schemas_and_no_other() -> None:
    written = rows_of_readme()
    assert list(written) == [load_schema(name)["file"] for name in SCHEMA_NAMES]
    for name in SCHEMA_NAMES:
        schema = load_schema(name)
        assert list(written[schema["file"]]) == [key.path for key in keys(schema)]


def test_readme_says_of_each_key_what_the_schema_says() -> None:
    written = rows_of_readme()
    for name in SCHEMA_NAMES:
        schema = load_schema(name)
        for key in keys(schema):
            kind, unit, default, allowed, meaning = written[schema["file"]][key.path]
            assert (kind, unit, default) == (key.type, key.unit, key.default)
            assert " ".join(key.allowed.split()) == allowed
            assert " ".join(key.meaning.split()) == meaning


def test_readme_is_what_the_program_writes() -> None:
    text = README.read_text(encoding="utf-8")
    assert with_reference(text, reference()) == text


def test_some_keys_as_a_reader_finds_them() -> None:
    written = rows_of_readme()
    study = written["config/studies/<study>.yaml"]
    assert study["protocol.predict_tokens"][:4] == ["whole number", "tokens", "required", "8 to 4096"]
    assert study["attempts.<name>.requires.gpu"][:3] == ["true/false", "", "false"]
    attempts = written["config/attempts.yaml"]
    assert attempts["attempts[].arms[].engine"][2:4] == ["same", "`same`, `alternative`"]
    assert attempts["attempts[].arms[].speculation.n_max"][:3] == ["whole number or null", "tokens", "null"]
    engines = written["config/engines.yaml"]
    assert "converters[].source.mirrors[].parts[].package" in engines
    assert "engines[].archive.sha256" in engines


def test_names_of_readme_point_to_files() -> None:
    for name in re.findall(r"python (scripts/\w+\.py)", README.read_text(encoding="utf-8")):
        assert (ROOT / name).exists()


def test_text_around_the_table_is_kept_and_markers_are_needed() -> None:
    assert with_reference(f"a {BEGIN} old {END} b", "new") == f"a {BEGIN}\nnew\n{END} b"
    for broken in ("nothing", BEGIN, END):
        with pytest.raises(ReadError, match="markers are missing"):
            with_reference(broken, "new")


def test_command_rewrites_or_checks(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    copy = tmp_path / "config/README.md"
    shutil.copy(README, copy)
    command = [sys.executable, str(ROOT / "scripts/config_reference.py"), "--root", str(tmp_path)]
    assert subprocess.run([*command, "--check"], check=False).returncode == 0
    copy.write_text(copy.read_text().replace("| tokens |", "| words |", 1))
    bad = subprocess.run([*command, "--check"], check=False, capture_output=True, text=True)
    assert bad.returncode == 1
    assert "not in step" in bad.stderr
    assert subprocess.run(command, check=False).returncode == 0
    assert copy.read_bytes() == README.read_bytes()
