"""Promises about all our code: no unquoted value in a shell, no pickle, no unfiltered archive, no wall clock."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = sorted([*(ROOT / "workflow").rglob("*.smk"), ROOT / "workflow/Snakefile", ROOT / "Snakefile"])
SOURCES = sorted([*(ROOT / "scripts").rglob("*.py"), *(ROOT / "benchmarks").glob("*.py")])
# Whatever can run code that lies in a data file.
UNSAFE_MODULES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
UNSAFE_CALLS = {
    "torch.load",
    "numpy.load",
    "np.load",
    "pd.read_pickle",
    "pandas.read_pickle",
    "yaml.unsafe_load",
    "yaml.full_load",
    "eval",
    "exec",
    "os.system",
    "os.popen",
    "tempfile.mktemp",
    # Durations come from time.monotonic: a clock that jumps must not make a speed.
    "time.time",
}
# The one place each where a thing may be done, with its checks around it.
ONLY_IN = {"extractall": "archives.py", "extract": "archives.py", "unpack_archive": "archives.py"}


def shells(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every line of a shell command in a rule file."""
    inside = -1
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        indent = len(line) - len(line.lstrip())
        if re.match(r"\s*shell:", line):
            inside = indent
        elif line.strip() and indent <= inside:
            inside = -1
        if inside >= 0:
            yield number, line


def unquoted(line: str) -> list[str]:
    """Values that a line of a shell command takes without quoting them."""
    plain = line.replace("{{", "").replace("}}", "")
    return [value for value in re.findall(r"\{([^{}]*)\}", plain) if not value.endswith(":q")]


def test_the_check_of_shells_finds_what_it_is_for(tmp_path: Path) -> None:
    path = tmp_path / "x.smk"
    path.write_text(
        'rule a:\n    shell:\n        "{{ x {a:q} {b} ; }}"\n        " {c}"\n    x: "{d}"\n', encoding="utf-8"
    )
    assert [value for _, line in shells(path) for value in unquoted(line)] == ["b", "c"]


def test_no_shell_sees_an_unquoted_value() -> None:
    commands = [(path, number, line) for path in RULES for number, line in shells(path)]
    assert len(commands) > 30
    assert [(path.name, number, unquoted(line)) for path, number, line in commands if unquoted(line)] == []


def test_no_rule_hides_a_failure_or_runs_code_in_another_way() -> None:
    for path in RULES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\|\|\s*true|set \+e|ignore_errors|^\s+(run|script|notebook|wrapper):\s*$", text, re.M), (
            path
        )


def called(tree: ast.AST) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


def faults(path: Path, tree: ast.AST) -> Iterator[str]:
    """What a source does that none of ours may do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (f"import {a.name}" for a in node.names if a.name.split(".")[0] in UNSAFE_MODULES)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in UNSAFE_MODULES:
            yield f"from {node.module} import"
        elif isinstance(node, ast.Constant) and node.value in ("0.0.0.0", "::"):
            yield f"listens everywhere: {node.value}"
    for node, name in called(tree):
        given = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
        if name in UNSAFE_CALLS:
            yield name
        if name == "yaml.load" and given.get("Loader") != "_PlainLoader":
            yield "yaml.load"
        if given.get("shell", "False") != "False" or given.get("trust_remote_code", "False") != "False":
            yield f"{name} with {given}"
        if given.get("allow_pickle", "False") != "False":
            yield f"{name} with {given}"
        method = name.rpartition(".")[2]
        if method in ONLY_IN and path.name != ONLY_IN[method] and not name.startswith(("re.", "str.")):
            yield f"{name} outside {ONLY_IN[method]}"
        if method == "extract" and path.name == "archives.py" and given.get("filter") != "'data'":
            yield "tar extract without a filter"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_source_does_what_none_may(path: Path) -> None:
    assert list(faults(path, ast.parse(path.read_text(encoding="utf-8")))) == []


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from joblib import load",
        "torch.load(x)",
        "yaml.load(x, Loader=yaml.Loader)",
        "subprocess.run(x, shell=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "tar.extractall(x)",
        "start = time.time()",
        "host = '0.0.0.0'",
    ],
)
def test_the_check_of_sources_finds_what_it_is_for(code: str) -> None:
    assert list(faults(Path("x.py"), ast.parse(code)))


def test_files_are_opened_with_an_encoding_or_as_bytes() -> None:
    """Else the locale decides, and a study with an umlaut reads differently on another machine."""
    found = []
    for path in SOURCES:
        for node, name in called(ast.parse(path.read_text(encoding="utf-8"))):
            method = name.rpartition(".")[2]
            named = {keyword.arg for keyword in node.keywords}
            first = node.args[0].value if node.args and isinstance(node.args[0], ast.Constant) else ""
            if (
                method in ("read_text", "write_text")
                and "encoding" not in named
                and isinstance(node.func, ast.Attribute)
            ):
                found.append((path.name, node.lineno, name))
            if name.endswith(".open") and first in ("r", "w", "a") and "encoding" not in named:
                found.append((path.name, node.lineno, name))
    assert found == []
