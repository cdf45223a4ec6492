"""A marked token through the ways that fail, and the gate before everything that leaves: publish, report, export.

The workflow runs in a copy of the project with nothing in its cache, a package index that refuses and needs a login,
and a hub that refuses the token; afterwards the mark is looked for in everything written and printed.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import export as export_command
import publish as publish_command
import report as report_command
from findings.records import Outcome, read_record
from hubserver import Fault, HubServer
from sample_tables import rows, write
from surroundings import ROOT, copy_project

TOKEN = "hf_MARKEDTOKENabcdefghijklmnopqrstuvw"
MARK = b"MARKED"


def marked_files(folder: Path) -> list[str]:
    """Files below a folder that hold the mark, also where it is only in their name."""
    found = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and (MARK in path.read_bytes() or "MARKED" in path.name):
            found.append(path.relative_to(folder).as_posix())
    return found


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
        snakemake = [str(Path(sys.executable).with_name("snakemake")), "--cores", "1"]
        for arguments in (
            ["attempt_2", "--config", "host=here"],
            ["lock", "--configfile", "config/pascal.yaml", "--config", "host=here"],
            ["attempt_2", "--config", "host=here", f"nonsense={TOKEN}"],
            ["export", "--config", "host=here"],
        ):
            done = subprocess.run(
                [*snakemake, *arguments],
                cwd=project,
                env=environment,
                capture_output=True,
                encoding="utf-8",
                timeout=300,
                check=False,
            )
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
