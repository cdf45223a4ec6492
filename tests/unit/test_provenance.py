"""From a number back to records and hashes."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from record_factory import ENGINE, MODEL_SHA256, usual_block, write_host, write_run

import provenance as command
from findings.bundles import folder_records, write_bundle
from findings.config import Import, load_configuration
from findings.evidence import collect, gather
from findings.provenance import Tables, TraceError, as_text, rows_with_number, start_row, trace, verdict_rows
from findings.records import Kind, Outcome, Record, write_record
from findings.tables import VERDICTS, write_table

HOST = "some-host"


def verdict(**changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = {column.name: "" for column in VERDICTS.columns if not column.nullable}
    row |= {"failed_gates": [], "finding": "attempt_1_does_not_pay", "scope": "mechanism", "evidence": "measured"}
    row |= {"host": HOST, "study": "mini", "attempt": "attempt_1", "engine": ENGINE, "verdict": "holds", "arm": "draft"}
    return row | {"prompt_class": "all", "change_percent": -45.25, "blocks": 2} | changes


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project's folder with records, a bundle of another host, tables and two verdicts."""
    root = tmp_path_factory.mktemp("project")
    shutil.copytree("config", root / "config")
    records = root / "results" / "records"
    write_host(records, HOST)
    write_run(records, HOST, [usual_block(1, 0.5), usual_block(2, 0.6)], finished="2026-12-02T07:00:00Z")
    (records / HOST / "measure" / "attempt_1" / ENGINE / "run-001" / "plan.json").write_text(
        json.dumps({"key": "k", "identity": {"arms": {"draft": {"prompts": {"prose-1": "9" * 64}}}}})
    )
    refused = Record(
        Kind.CONVERSION,
        "tiny-target",
        Outcome.REFUSED,
        reason="not supported",
        host=HOST,
        versions={"torch": "2.13.0"},
        detail={"source": {"sha256": "b" * 64}},
    )
    write_record(records / HOST / "conversions" / "tiny-target" / "converter-b9002.json", refused)
    for place, sha256, original in (("padded/p", MODEL_SHA256, "c" * 64), ("conversions/c/b1", "c" * 64, "")):
        detail = {"sha256": sha256} | ({"original": {"model": "c", "sha256": original}} if original else {})
        made = Record(Kind.CONVERSION, place, Outcome.OK, host=HOST, detail=detail)
        write_record(records / HOST / f"{place}.json", made)
    other = root / "other"
    write_run(other, "other-host", [usual_block(1, 0.7)], finished="2026-12-02T07:00:00Z")
    write_bundle(root / "other.zip", "other-host", folder_records(other), "", lambda path: None)
    configuration = load_configuration(Path())
    settings = dataclasses.replace(configuration.settings, imports=(Import("other.zip", "bundle"),))
    configuration = dataclasses.replace(configuration, root=root, settings=settings)
    collect(configuration, gather(configuration, records), root / "results" / "tables")
    rows = [
        verdict(),
        verdict(host="other-host", change_percent=-30.0, blocks=1),
        verdict(
            finding="attempt_4_cannot_convert",
            attempt="attempt_4",
            engine="converter-b9002",
            arm="",
            prompt_class="",
            change_percent=None,
        ),
    ]
    write_table(root / "results" / "tables" / "verdicts.parquet", rows, VERDICTS)
    return root


@pytest.fixture
def tables(project: Path) -> Tables:
    return Tables(project / "results" / "tables", project)


def test_a_verdict_leads_to_its_blocks_requests_records_and_hashes(tables: Tables, project: Path) -> None:
    ((name, row),) = verdict_rows(tables, "attempt_1_does_not_pay", "mechanism", HOST)
    found = trace(tables, name, row)
    assert [(e["block"], e["arm"], e["prompt_class"]) for e in found.effects] == [
        (1, "draft", "all"),
        (2, "draft", "all"),
    ]
    assert {(m["arm"], m["prompt_id"]) for m in found.measurements} == {
        (a, p) for a in ("draft", "baseline") for p in ("prose-1", "code-1")
    }
    assert all(m["counted"] for m in found.measurements)
    run = f"results/records/{HOST}/measure/attempt_1/{ENGINE}/run-001"
    # The model that generated is a copy: its own record and that of its original end the chain.
    origins = [f"results/records/{HOST}/{place}.json" for place in ("conversions/c/b1", "padded/p")]
    blocks = [f"{run}/block-001.json", f"{run}/block-002.json", f"{run}/plan.json"]
    assert [s.label for s in found.sources] == [*blocks, *origins]
    assert found.sources[-1].hashes == {"original.sha256": "c" * 64, "sha256": MODEL_SHA256}
    first = found.sources[0]
    assert first.sha256 == hashlib.sha256((project / first.label).read_bytes()).hexdigest()
    assert first.hashes["arms.draft.model_sha256"] == MODEL_SHA256
    assert first.hashes["arms.draft.engine_sha256"] == "e" * 64
    assert found.sources[2].hashes == {"prompt prose-1": "9" * 64}
    assert "config/prompts/prose-1.txt" in found.configuration


def test_a_refusal_leads_to_the_record_of_the_conversion(tables: Tables) -> None:
    ((name, row),) = verdict_rows(tables, "attempt_4_cannot_convert")
    found = trace(tables, name, row)
    assert [o["subject"] for o in found.outcomes] == ["tiny-target"]
    (source,) = found.sources
    assert source.hashes == {"source.sha256": "b" * 64}
    assert source.versions["torch"] == "2.13.0"
    text = as_text(found)
    assert "conversion tiny-target: refused not supported" in text
    assert "version of torch: 2.13.0" in text


def test_a_record_in_a_bundle_is_found(tables: Tables) -> None:
    ((name, row),) = verdict_rows(tables, "attempt_1_does_not_pay", host="other-host")
    found = trace(tables, name, row)
    assert found.sources[0].label.startswith("other.zip!records/other-host/")
    assert found.sources[0].hashes["arms.draft.model_sha256"] == MODEL_SHA256


def test_a_published_number_leads_to_its_place(tables: Tables) -> None:
    starts = rows_with_number(tables, "25.34")
    assert ("measurements", "M1") in {(name.split(",")[0], row.get("session")) for name, row in starts}
    name, row = next(item for item in starts if item[1].get("session") == "M1")
    (source,) = trace(tables, name, row).sources
    assert source.hashes["id"] == "M1"


@pytest.mark.parametrize("text", ["-45.25", "45.25 %", "\u221245.25", "+45.25\u202f%", "-45.2"])
def test_a_number_is_found_as_it_is_printed(text: str, tables: Tables) -> None:
    found = {row.get("finding") for _, row in rows_with_number(tables, text)}
    assert "attempt_1_does_not_pay" in found


def test_a_file_that_is_gone_and_versions_that_were_not_recorded_are_said(tables: Tables, project: Path) -> None:
    ((name, row),) = verdict_rows(tables, "attempt_1_does_not_pay", host=HOST)
    path = project / f"results/records/{HOST}/measure/attempt_1/{ENGINE}/run-001/block-002.json"
    kept = path.read_bytes()
    path.unlink()
    try:
        text = as_text(trace(Tables(project / "results" / "tables", project), name, row))
    finally:
        path.write_bytes(kept)
    assert "block-002.json  sha256 the file is not here" in text
    assert "versions: not recorded" in text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: verdict_rows(t, "nothing"), "findings: attempt_1_does_not_pay, attempt_4_cannot_convert"),
        (lambda t: start_row(t, "nothing", 0), "there is no table 'nothing'"),
        (lambda t: start_row(t, "verdicts", 99), "verdicts has 3 rows"),
        (lambda t: rows_with_number(t, "many"), "'many' is no number"),
        (lambda t: rows_with_number(t, "123456.789"), "no table holds"),
    ],
)
def test_what_is_not_there_is_said(call: Any, message: str, tables: Tables) -> None:
    with pytest.raises(TraceError, match=message):
        call(tables)


def test_the_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here = ["--tables", str(project / "results" / "tables"), "--root", str(project)]
    assert command.main(["--finding", "attempt_1_does_not_pay", "--host", HOST, *here]) == 0
    assert MODEL_SHA256 in capsys.readouterr().out
    assert command.main(["--table", "effects", "--row", "0", "--json", *here]) == 0
    assert json.loads(capsys.readouterr().out)[0]["measurements"]
    assert command.main(["--number", "26.0", *here]) == 0
    assert "choose one with --table and --row" in capsys.readouterr().out
    assert command.main(["--finding", "nothing", *here]) == 2
    assert "no verdict on 'nothing'" in capsys.readouterr().err
