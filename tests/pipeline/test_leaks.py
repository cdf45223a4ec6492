"""A marked token through the ways that fail, and the gate before everything that leaves: publish, report, export.

The workflow runs in a copy of the project with nothing in its cache, a package index that refuses and needs a login,
and a hub that refuses the token; afterwards the mark is looked for in everything written and printed.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

import export as export_command
import publish as publish_command
import report as report_command
from findings.records import Outcome, read_record
from hubserver import Fault, HubServer
from sample_tables import rows, write
from surroundings import ROOT, copy_project, run_snakemake

TOKEN = "hf_MARKEDTOKENabcdefghijklmnopqrstuvw"
MARK = b"MARKED"


def marked_files(folder: Path) -> list[str]:
    """Files below a folder that hold the mark, also packed, or where it is only in their name."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and ("MARKED" in path.name or any(MARK in c for c in inside(path))):
            found.append(path.relative_to(folder).as_posix())
    return found


def inside(path: Path) -> Iterator[bytes]:
    """A file's bytes, and what is packed in it: members of a zip, rows of a table, data URIs of a page."""
    content = path.read_bytes()
    yield content
    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            yield from (archive.read(name) for name in archive.namelist())
    elif path.suffix == ".parquet":
        yield repr(pq.read_table(path).to_pylist()).encode()
    elif path.suffix == ".html":
        yield from (base64.b64decode(found) for found in re.findall(rb"base64,([A-Za-z0-9+/=]+)", content))


def test_the_search_looks_into_what_is_packed(tmp_path: Path) -> None:
    write(tmp_path / "tables", {**rows(), "hosts": [rows()["hosts"][0] | {"gpu": "MARKED gpu"}]})
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", MARK * 9)
    (tmp_path / "x.html").write_bytes(b'<img src="data:image/svg+xml;base64,' + base64.b64encode(MARK) + b'">')
    assert marked_files(tmp_path) == ["tables/hosts.parquet", "x.html", "x.zip"]


@pytest.fixture(scope="module")
def failed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A project where nothing could be fetched, and everything that the commands printed."""
    project = copy_project(tmp_path_factory.mktemp("leaks") / "project")
    said = ""
    with HubServer({}, frozenset()) as hub:
        hub.fault = Fault("status", at="api", status=401)
        environment = os.environ | {
            "FINDINGS_CACHE": str(project / "cache"),
            "HF_TOKEN": TOKEN,
            "HF_ENDPOINT": hub.url,
            "PIP_INDEX_URL": f"http://someone:MARKEDpassword@127.0.0.1:{hub.port}/nothing/simple",
        }
        for arguments in (
            ["attempt_2", "--config", "host=here"],
            ["lock", "--configfile", "config/pascal.yaml", "--config", "host=here"],
            ["attempt_2", "--config", "host=here", f"nonsense={TOKEN}"],
            ["export", "--config", "host=here"],
        ):
            done = run_snakemake(project, environment, *arguments, timeout_s=300)
            said += f"$ {arguments[0]}: {done.returncode}\n{done.stdout}{done.stderr}\n"
    return project, said


def test_what_cannot_be_fetched_ends_as_records_and_a_verdict(failed: tuple[Path, str]) -> None:
    project, said = failed
    records = project / "results" / "records" / "here"
    (session,) = records.glob("measure/attempt_2/*/session.json")
    assert read_record(session).outcome is not Outcome.OK
    assert read_record(records / "sources/gemma-3-270m-q4-k-m.json").outcome is Outcome.UNAVAILABLE
    assert "$ attempt_2: 0" in said
    assert "not testable" in said


def test_the_token_and_the_login_stand_nowhere(failed: tuple[Path, str]) -> None:
    project, said = failed
    assert "$ lock: 0" in said
    assert marked_files(project / "results") == []
    assert marked_files(project / "config") == []
    assert marked_files(project / "cache") == []
    # A token that the user types as a configuration's value is the user's; it is refused, and not kept in results.
    printed = said.replace(f"nonsense={TOKEN}", "")
    assert [line for line in printed.splitlines() if "MARKED" in line] == []


def tables_with(tmp_path: Path, secret: str) -> Path:
    sample = rows()
    sample["verdicts"][0]["reason"] = f"refused with {secret}"
    return write(tmp_path / "tables", sample)


SECRETS = {
    "hub_token": TOKEN,
    "private_address": "192.168.7.13",
    "home_path": "/home/somebody-here/models",
    "email": "somebody@mail.company.dev",
    "private_key": "-----BEGIN RSA PRIVATE KEY-----",
}


@pytest.mark.parametrize("kind", SECRETS)
@pytest.mark.parametrize("tool", ["publish", "report"])
def test_a_hit_stops_the_command_and_keeps_the_old_file(
    tool: str, kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    secret = SECRETS[kind]
    out = tmp_path / "out" / "old"
    out.parent.mkdir()
    out.write_text("the old one\n", encoding="utf-8")
    figures = tmp_path / "figures"
    figures.mkdir()
    command = {"publish": publish_command, "report": report_command}[tool]
    arguments = ["--tables", str(tables_with(tmp_path, secret)), "--figures", str(figures), "--out", str(out)]
    arguments += ["--config-root", str(ROOT)]
    assert command.main(arguments) == 1
    said = "".join(capfd.readouterr())
    assert "verdicts.parquet" in said
    assert secret not in said
    assert out.read_text(encoding="utf-8") == "the old one\n"
    assert list(out.parent.iterdir()) == [out]


def test_an_export_with_a_token_is_stopped_and_the_old_bundle_stays(
    failed: tuple[Path, str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    project, _ = failed
    out = tmp_path / "here.zip"
    arguments = ["--records", str(project / "results/records"), "--host", "here", "--out", str(out)]
    arguments += ["--config-root", str(ROOT)]
    assert export_command.main(arguments) == 0
    old = out.read_bytes()
    assert export_command.main(arguments) == 0
    assert out.read_bytes() == old
    path = project / "results/records/here/host.json"
    kept = path.read_text(encoding="utf-8")
    path.write_text(json.dumps(json.loads(kept) | {"reason": f"see {TOKEN}"}), encoding="utf-8")
    try:
        assert export_command.main(arguments) == 1
    finally:
        path.write_text(kept, encoding="utf-8")
    said = "".join(capfd.readouterr())
    assert "host.json" in said and "token" in said
    assert "MARKED" not in said
    assert out.read_bytes() == old


# --- a whole report in which everything fails ------------------------------------------------------------------------

LEAKY = "llama-server-leaky"
MODEL = b"GGUF, as far as the first word goes"


def edited(path: Path, change: Any) -> None:
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(values)
    path.write_text(yaml.safe_dump(values, sort_keys=False), encoding="utf-8")


def leaky_project(place: Path) -> Path:
    """A project whose one engine crashes with its environment as its last words, and whose other models are gated."""
    project = copy_project(place)
    server = project / "leaky-server"
    server.write_text(f"#!{sys.executable}\n" + (ROOT / "tests/leaky_llama_server.py").read_text(encoding="utf-8"))
    server.chmod(0o755)
    (project / "local.gguf").write_bytes(MODEL)
    digest = hashlib.sha256(MODEL).hexdigest()

    def model(name: str, **mirror: str) -> dict[str, Any]:
        pinned = {"sha256": digest, "size_bytes": len(MODEL), "quantization": "F16", "license": "MIT"}
        return {"id": name, "title": name, "format": "gguf", "file": f"{name}.gguf", **pinned, "mirrors": [mirror]}

    hub = {"kind": "huggingface", "file": "x.gguf", "revision": "1f" * 20}
    models = [model("local", kind="path", path="local.gguf")]
    models += [model(f"hub-{n}", **hub, repo=f"somebody/gated-{n}") for n in range(3)]
    engine = {"id": LEAKY, "build": 10068, "date": "2026-07-19", "driver": "llama-server", "backend": "cpu"}
    engine |= {"binary": "leaky-server", "shipped_by": "a test"}
    edited(project / "config/models.yaml", lambda values: values["models"].extend(models))
    edited(project / "config/engines.yaml", lambda values: values["engines"].append(engine))

    def study(values: dict[str, Any]) -> None:
        values |= {"id": "leaky", "default_engine": LEAKY, "roles": {"target": "local"}}
        used = {"measure": [LEAKY], "load": [LEAKY], "prompt_classes": ["prose"]}
        roles = {
            "attempt_1": {"drafter": "hub-0", "retyped": "hub-1"},
            "attempt_2": {"drafter": "local"},
            "attempt_6": {"target": "hub-2"},
        }
        values["attempts"] = {name: copy.deepcopy(used) | {"roles": chosen} for name, chosen in roles.items()}

    (project / "config/studies/leaky.yaml").write_bytes((project / "config/studies/mini.yaml").read_bytes())
    edited(project / "config/studies/leaky.yaml", study)
    edited(project / "config/config.yaml", lambda values: values.update(study="leaky", imports=[]))
    return project


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A report, a document and a bundle of a project where hub and engine fail, and everything that was printed."""
    project = leaky_project(tmp_path_factory.mktemp("crashed") / "project")
    said = ""
    with HubServer({}, frozenset()) as hub:
        hub.fault = Fault("status", "meta", times=1, status=401)
        hub.fault.then = Fault("status", "meta", times=1, status=403, then=Fault("status", "meta", status=500))
        environment = os.environ | {
            "FINDINGS_CACHE": str(project / "cache"),
            "HF_TOKEN": TOKEN,
            "HF_ENDPOINT": hub.url,
            "BACKUP_OF_IT": TOKEN,
            "AWS_SECRET_ACCESS_KEY": "MARKEDsecret",
            "REGISTRY": "https://someone:MARKEDpassword@127.0.0.1/simple",
            "PIP_INDEX_URL": f"http://someone:MARKEDpassword@127.0.0.1:{hub.port}/nothing/simple",
        }
        for target in ("report", "publish", "export"):
            done = run_snakemake(project, environment, target, "--config", "host=here", timeout_s=300)
            said += f"$ {target}: {done.returncode}\n{done.stdout}{done.stderr}\n"
    return project, said


def test_a_report_in_which_everything_fails_is_whole(crashed: tuple[Path, str]) -> None:
    project, said = crashed
    records = project / "results/records/here"
    causes = {read_record(path).detail["mirrors"][0]["cause"] for path in records.glob("sources/hub-*.json")}
    assert causes == {"unauthorized", "server_error"}, said
    load = read_record(records / f"loads/attempt_2/{LEAKY}/draft.json")
    assert load.outcome is Outcome.CRASHED, load.reason
    # The engine's last words are kept: they hold its environment, with what is no secret.
    assert any("LC_ALL=C.UTF-8" in line for line in (*load.log_head, *load.log_tail)), load
    assert list((records / "measure/attempt_2").rglob("block-*.json"))
    assert "$ report: 0" in said, said
    assert (project / "results/report/index.html").exists()


def test_a_crashed_engines_last_words_hold_no_secret_anywhere(crashed: tuple[Path, str]) -> None:
    project, said = crashed
    places = ("results", "docs", "config", "cache", ".snakemake")
    assert {place: marked_files(project / place) for place in places} == {place: [] for place in places}
    assert [line for line in said.splitlines() if "MARKED" in line] == []
