"""Records to tables: what each row says, what does not count, and that the same records give the same bytes."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
from record_factory import ENGINE, arm, block, request, usual_block, write_host, write_run

import evidence as command
from findings import evidence
from findings.bundles import folder_records, write_bundle
from findings.config import Configuration, Import, load_configuration
from findings.evidence import collect, gather
from findings.imports import ImportedFileError
from findings.records import Engagement, Kind, Outcome, Record, RecordError, write_record
from findings.tables import EFFECTS, HOSTS, MEASUREMENTS, OUTCOMES, TABLES, read_table, sort_rows

HOST = "some-host"
LATER = "2026-12-02T07:00:00Z"


@pytest.fixture(scope="module")
def real() -> Configuration:
    return load_configuration(Path())


@pytest.fixture
def plain(real: Configuration) -> Configuration:
    """The project's configuration without imports."""
    return dataclasses.replace(real, settings=dataclasses.replace(real.settings, imports=()))


def importing(configuration: Configuration, *items: Import) -> Configuration:
    return dataclasses.replace(configuration, settings=dataclasses.replace(configuration.settings, imports=items))


def tables_of(configuration: Configuration, records: Path, out: Path, **more: Any) -> dict[str, list[dict[str, Any]]]:
    """Rows of every table, measured ones alone unless `published` is true."""
    options = {key: more.pop(key) for key in ("attempt", "every_run") if key in more}
    collect(configuration, gather(configuration, records, **options), out, published=more.get("published", False))
    listed = (MEASUREMENTS, OUTCOMES, EFFECTS, HOSTS)
    return {table.name: read_table(out / table.filename, table).to_pylist() for table in listed}


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "records"
    write_host(folder, HOST)
    write_run(folder, HOST, [usual_block(1, 0.5), usual_block(2, 0.6)], finished=LATER)
    return folder


# --- measurements -----------------------------------------------------------------------------------------------------


def test_a_row_says_what_was_asked_what_came_and_where_it_stands(
    plain: Configuration, records: Path, tmp_path: Path
) -> None:
    rows = tables_of(plain, records, tmp_path / "t")["measurements"]
    assert len(rows) == 2 * 4 * 3
    found = [r for r in rows if (r["block"], r["arm"], r["prompt_id"]) == (1, "draft", "prose-1")]
    (row,) = found
    assert row["evidence"] == "measured"
    assert (row["host"], row["attempt"], row["engine"], row["build"], row["backend"]) == (
        HOST,
        "attempt_1",
        ENGINE,
        11549,
        "cpu",
    )
    assert (row["position"], row["repetition"], row["counted"], row["prompt_class"]) == (1, 2, True, "prose")
    assert row["predicted_ms"] == 2000.0
    assert row["tg_tokens_per_s"] == pytest.approx(32.0)
    assert row["pp_tokens_per_s"] == pytest.approx(200.0)
    assert (row["draft_tokens"], row["accepted_tokens"], row["acceptance"]) == (40, 20, 0.5)
    assert (row["model"], row["quantization"]) == ("gemma-3-270m-q4-k-m", "Q4_K_M")
    assert row["record"] == f"results/records/{HOST}/measure/attempt_1/{ENGINE}/run-001/block-001.json"
    assert row["session"] == "0123456789abcdef/run-001"


def test_warm_up_rows_are_there_and_not_counted(plain: Configuration, records: Path, tmp_path: Path) -> None:
    rows = tables_of(plain, records, tmp_path / "t")["measurements"]
    assert {r["repetition"] for r in rows if not r["counted"]} == {1}
    assert sum(not r["counted"] for r in rows) == 8


def test_engagement_is_told_request_by_request(plain: Configuration, records: Path, tmp_path: Path) -> None:
    rows = tables_of(plain, records, tmp_path / "t")["measurements"]
    of = {(r["arm"], r["prompt_id"]): r["engagement"] for r in rows}
    assert of[("ngram", "prose-1")] == "engaged_without_drafts"
    assert of[("ngram", "code-1")] == "engaged_with_drafts"
    assert {of[(name, "code-1")] for name in ("baseline", "null")} == {"off"}


def test_a_failed_request_has_no_figures(plain: Configuration, tmp_path: Path) -> None:
    bad = request("prose-1", 0.0, outcome=Outcome.TIMED_OUT, predicted_n=0, text_sha256="")
    write_run(tmp_path / "r", HOST, [block(1, arm("baseline", "baseline", "none", (bad,)))], finished=LATER)
    rows = tables_of(plain, tmp_path / "r", tmp_path / "t")["measurements"]
    (row,) = [r for r in rows if r["counted"]]
    assert row["outcome"] == "timed_out"
    assert [row[k] for k in ("tg_tokens_per_s", "predicted_tokens", "predicted_ms", "text_sha256")] == [None] * 4


# --- effects ----------------------------------------------------------------------------------------------------------


def test_effects_compare_with_the_baseline_of_the_same_block(
    plain: Configuration, records: Path, tmp_path: Path
) -> None:
    rows = tables_of(plain, records, tmp_path / "t")["effects"]
    of = {(r["block"], r["arm"], r["prompt_class"]): r for r in rows}
    assert set(of) == {(b, a, c) for b in (1, 2) for a in ("draft", "ngram", "null") for c in ("all", "code", "prose")}
    assert of[(1, "draft", "all")]["ln_ratio"] == pytest.approx(math.log(0.5))
    assert of[(2, "draft", "code")]["ln_ratio"] == pytest.approx(math.log(0.6))
    assert of[(1, "null", "all")]["ln_ratio"] == 0.0
    row = of[(1, "draft", "prose")]
    assert row["arm_tg_tokens_per_s"] == pytest.approx(32.0)
    assert row["baseline_tg_tokens_per_s"] == pytest.approx(64.0)
    assert (row["prompts"], row["draft_tokens"], row["acceptance"], row["reason"]) == (1, 40, 0.5, "")


def test_what_drafted_nothing_has_no_speed_of_speculation(plain: Configuration, records: Path, tmp_path: Path) -> None:
    rows = tables_of(plain, records, tmp_path / "t")["effects"]
    (row,) = [r for r in rows if (r["block"], r["arm"], r["prompt_class"]) == (1, "ngram", "prose")]
    assert row["engagement"] == "engaged_without_drafts"
    assert (row["ln_ratio"], row["arm_tg_tokens_per_s"]) == (None, None)
    assert row["reason"] == "engaged_without_drafts"


@pytest.mark.parametrize("state", [Engagement.NOT_ENGAGED, Engagement.WITHOUT_DRAFTS])
def test_an_arm_that_never_engaged_has_no_effect_in_any_class(
    state: Engagement, plain: Configuration, tmp_path: Path
) -> None:
    asked = (request("prose-1", 500.0), request("code-1", 500.0))
    ran = block(
        1,
        arm("baseline", "baseline", "none", asked),
        arm("draft", "candidate", "draft_simple", asked, engagement=state),
    )
    write_run(tmp_path / "r", HOST, [ran], finished=LATER)
    rows = tables_of(plain, tmp_path / "r", tmp_path / "t")["effects"]
    assert {(r["ln_ratio"], r["engagement"], r["reason"]) for r in rows} == {(None, state.value, state.value)}


def test_a_crashed_arm_and_a_crashed_baseline_say_so(plain: Configuration, tmp_path: Path) -> None:
    asked = (request("prose-1", 500.0),)
    base = arm("baseline", "baseline", "none", asked)
    died = arm("draft", "candidate", "draft_simple", (), outcome=Outcome.CRASHED, reason="signal 11")
    write_run(tmp_path / "r", HOST, [block(1, base, died)], finished=LATER)
    rows = tables_of(plain, tmp_path / "r", tmp_path / "t")
    assert [(r["ln_ratio"], r["reason"]) for r in rows["effects"]] == [(None, "crashed: signal 11")]
    (row,) = [r for r in rows["outcomes"] if r["arm"] == "draft"]
    assert (row["kind"], row["outcome"], row["reason"], row["block"]) == ("block", "crashed", "signal 11", 1)
    no_base = arm("baseline", "baseline", "none", (), outcome=Outcome.TIMED_OUT)
    null = arm("null", "null", "none", asked)
    write_run(tmp_path / "s", HOST, [block(1, no_base, null)], finished=LATER)
    rows = tables_of(plain, tmp_path / "s", tmp_path / "t")
    assert {r["reason"] for r in rows["effects"]} == {"baseline timed_out"}


# --- outcomes and hosts -----------------------------------------------------------------------------------------------


def test_every_record_is_an_outcome_with_its_prediction(plain: Configuration, records: Path, tmp_path: Path) -> None:
    shared: dict[str, Any] = {"host": HOST, "study": "mini", "attempt": "attempt_1", "engine": ENGINE, "arm": "draft"}
    folder = records / HOST
    prediction = Record(Kind.PRECHECK, "p", Outcome.OK, detail={"summary": "will not engage"}, **shared)
    write_record(folder / "precheck" / "attempt_1" / ENGINE / "draft.json", prediction)
    load = Record(
        Kind.LOAD,
        f"attempt_1/{ENGINE}/draft",
        Outcome.NOT_ENGAGED,
        reason="vocabs are not compatible",
        argv=("llama-server", "-m", "a file.gguf"),
        exit_code=-9,
        seconds=3.5,
        log_head=("first",),
        log_tail=("last",),
        detail={"engagement": "not_engaged", "drafted": 0},
        **shared,
    )
    write_record(folder / "loads" / "attempt_1" / ENGINE / "draft.json", load)
    converted = Record(Kind.CONVERSION, "tiny-target", Outcome.REFUSED, reason="not supported", host=HOST)
    write_record(folder / "conversions" / "tiny-target" / "converter-b9002.json", converted)
    derived = Record(Kind.CONVERSION, "retyped", Outcome.OK, host=HOST)
    write_record(folder / "derived" / "retyped.json", derived)
    listed = tables_of(plain, records, tmp_path / "t")["outcomes"]
    assert [r["converter"] for r in listed if r["subject"] == "retyped"] == [""]
    rows = {(r["kind"], r["arm"]): r for r in listed if r["subject"] != "retyped"}
    row = rows[("load", "draft")]
    assert (row["outcome"], row["reason"], row["engagement"]) == ("not_engaged", load.reason, "not_engaged")
    assert row["prediction"] == "will not engage"
    assert (row["command"], row["exit_code"], row["seconds"]) == ("llama-server -m 'a file.gguf'", -9, 3.5)
    assert row["log_tail"] == "first\nlast"
    assert json.loads(row["detail_json"]) == {"drafted": 0, "engagement": "not_engaged"}
    assert (rows[("conversion", "")]["converter"], rows[("conversion", "")]["build"]) == ("converter-b9002", 9002)
    assert rows[("block", "draft")]["prediction"] == "will not engage"
    assert rows[("block", "draft")]["log_tail"] == "the last line"
    assert "tokens" not in rows[("block", "draft")]["detail_json"]


def test_a_machine_has_its_gpu(plain: Configuration, records: Path, tmp_path: Path) -> None:
    (row,) = tables_of(plain, records, tmp_path / "t")["hosts"]
    assert (row["host"], row["compute_capability"], row["gpu_memory_bytes"]) == (HOST, "6.1", 6 * 2**30)


def test_the_build_of_an_engine_that_is_not_configured_comes_from_its_probe(
    plain: Configuration, records: Path, tmp_path: Path
) -> None:
    probe = Record(Kind.PROBE, ENGINE, Outcome.OK, host=HOST, engine=ENGINE, detail={"build": 4711})
    write_record(records / HOST / "probes" / f"{ENGINE}.json", probe)
    unknown = dataclasses.replace(plain, engines={})
    assert {r["build"] for r in tables_of(unknown, records, tmp_path / "t")["measurements"]} == {4711}
    assert {r["build"] for r in tables_of(plain, records, tmp_path / "t")["measurements"]} == {11549}


# --- what counts ------------------------------------------------------------------------------------------------------


def test_only_the_newest_complete_run_counts_unless_asked(plain: Configuration, records: Path, tmp_path: Path) -> None:
    write_run(records, HOST, [usual_block(1, 0.9)], run=2, finished="2026-12-03T07:00:00Z")
    write_run(records, HOST, [usual_block(1, 0.1)], run=3)
    rows = tables_of(plain, records, tmp_path / "t")["effects"]
    assert {r["session"] for r in rows} == {"0123456789abcdef/run-002"}
    rows = tables_of(plain, records, tmp_path / "t", every_run=True)["effects"]
    assert {r["session"] for r in rows} == {"0123456789abcdef/run-001", "0123456789abcdef/run-002"}


def test_one_attempt_alone(plain: Configuration, records: Path, tmp_path: Path) -> None:
    write_run(records, HOST, [usual_block(1)], attempt="attempt_6", finished=LATER)
    both = tables_of(plain, records, tmp_path / "t")["measurements"]
    assert {r["attempt"] for r in both} == {"attempt_1", "attempt_6"}
    one = tables_of(plain, records, tmp_path / "t", attempt="attempt_6")
    assert {r["attempt"] for r in one["measurements"]} == {"attempt_6"}
    assert [r["host"] for r in one["hosts"]] == [HOST]


def test_a_broken_record_stops_with_its_name_and_the_old_tables_stay(
    plain: Configuration, records: Path, tmp_path: Path
) -> None:
    tables_of(plain, records, tmp_path / "t")
    before = {p.name: p.read_bytes() for p in (tmp_path / "t").iterdir()}
    path = records / HOST / "measure" / "attempt_1" / ENGINE / "run-001" / "block-002.json"
    raw = json.loads(path.read_text(encoding="utf-8"))
    del raw["detail"]["arms"]["draft"]["requests"][1]["prompt_id"]
    path.write_text(json.dumps(raw), encoding="utf-8")
    with pytest.raises(RecordError, match=r"block-002\.json: not a whole block"):
        tables_of(plain, records, tmp_path / "t")
    path.write_text("{", encoding="utf-8")
    with pytest.raises(RecordError, match=r"block-002\.json: not readable"):
        tables_of(plain, records, tmp_path / "t")
    assert {p.name: p.read_bytes() for p in (tmp_path / "t").iterdir()} == before


def test_the_same_records_give_the_same_bytes_in_order(
    real: Configuration, records: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, size in (("one", 16_384), ("two", 3)):
        monkeypatch.setattr(evidence, "BATCH_ROWS", size)
        collect(real, gather(real, records), tmp_path / name)
    for table in (MEASUREMENTS, OUTCOMES, EFFECTS, HOSTS):
        one = read_table(tmp_path / "one" / table.filename, table)
        assert one.num_rows > 0
        assert one.equals(read_table(tmp_path / "two" / table.filename, table))
        assert one.to_pylist() == sort_rows(one, table).to_pylist(), table.name
    collect(real, gather(real, records), tmp_path / "three")
    monkeypatch.setattr(evidence, "BATCH_ROWS", 16_384)
    collect(real, gather(real, records), tmp_path / "four")
    for table in (MEASUREMENTS, OUTCOMES, EFFECTS, HOSTS):
        assert (tmp_path / "one" / table.filename).read_bytes() == (tmp_path / "four" / table.filename).read_bytes()


def test_without_any_record_there_are_published_rows_and_whole_tables(plain: Configuration, tmp_path: Path) -> None:
    rows = tables_of(plain, tmp_path / "none", tmp_path / "t", published=True)
    assert {r["evidence"] for r in rows["measurements"]} == {"published"}


# --- published --------------------------------------------------------------------------------------------------------


def test_published_speeds_are_rows_of_their_own_kind(plain: Configuration, tmp_path: Path) -> None:
    rows = tables_of(plain, tmp_path / "none", tmp_path / "t", published=True)
    figures = {r["session"]: r for r in rows["measurements"]}
    assert set(figures) == {f"M{n}" for n in range(1, 10)}
    assert {k: figures[k]["tg_tokens_per_s"] for k in ("M1", "M6", "M7", "M9")} == {
        "M1": 25.34,
        "M6": 26.0,
        "M7": 22.6,
        "M9": 7.0,
    }
    assert (figures["M7"]["acceptance"], figures["M7"]["engagement"]) == (0.0, "engaged_with_drafts")
    assert figures["M9"]["engagement"] == ""
    assert figures["M6"]["engagement"] == "off"
    assert all(figures["M1"][k] is None for k in ("predicted_ms", "predicted_tokens", "block", "build", "draft_tokens"))
    assert figures["M1"]["record"] == "config/published.yaml#M1"
    (other,) = [r for r in rows["outcomes"] if r["evidence"] == "published"]
    assert other["subject"] == "M10"
    assert json.loads(other["detail_json"])["pp_change_percent"] == -65


def test_published_comparisons_follow_from_the_published_speeds(plain: Configuration, tmp_path: Path) -> None:
    rows = tables_of(plain, tmp_path / "none", tmp_path / "t", published=True)["effects"]
    of = {r["session"]: r["ln_ratio"] for r in rows}
    assert of["attempt_1_change"] == pytest.approx(math.log(22.6 / 26.0))
    assert of["vulkan_e2b_gain"] == pytest.approx(math.log(34.46 / 23.44))
    assert {r["block"] for r in rows} == {None}


# --- imports and bundles ----------------------------------------------------------------------------------------------


def test_imported_rows_stand_beside_the_measured_ones(real: Configuration, records: Path, tmp_path: Path) -> None:
    rows = tables_of(real, records, tmp_path / "t", published=True)
    assert [e for e, _ in _groups(rows["measurements"])] == ["imported", "measured", "published"]
    imported = [r for r in rows["measurements"] if r["evidence"] == "imported"]
    assert len(imported) == 72
    assert {r["licence"] for r in imported} == {"CC-BY-4.0"}
    assert {r["host"] for r in rows["hosts"]} >= {"gtx-1080-ti", HOST}


def _groups(rows: list[dict[str, Any]]) -> list[tuple[str, int]]:
    found: list[tuple[str, int]] = []
    for row in rows:
        if found and found[-1][0] == row["evidence"]:
            found[-1] = (row["evidence"], found[-1][1] + 1)
        else:
            found.append((row["evidence"], 1))
    return found


def test_a_bundle_of_another_host_is_measured_evidence_with_its_origin(
    plain: Configuration, records: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    write_run(other, "other-host", [usual_block(1, 1.2)], finished=LATER)
    write_bundle(tmp_path / "other.zip", "other-host", folder_records(other), "", lambda path: None)
    configuration = dataclasses.replace(importing(plain, Import("other.zip", "bundle")), root=tmp_path)
    rows = tables_of(configuration, records, tmp_path / "t")
    of = {(r["host"], r["evidence"], r["source"]) for r in rows["measurements"]}
    assert of == {(HOST, "measured", ""), ("other-host", "measured", "other.zip")}
    assert {r["record"].split("!")[0] for r in rows["effects"] if r["host"] == "other-host"} == {"other.zip"}


def test_a_format_that_does_not_fit_the_file_is_said(plain: Configuration, tmp_path: Path) -> None:
    wrong = importing(plain, Import("config/imports/inventivehq-gtx-1080-ti.json", "llama_bench"))
    with pytest.raises(ImportedFileError, match="'llama_bench' is stated, but the file is 'speculation_records'"):
        gather(wrong, tmp_path)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_writes_the_tables_and_says_how_many(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command.main(["--records", str(records), "--out", str(tmp_path / "t")]) == 0
    assert sorted(p.name for p in (tmp_path / "t").iterdir()) == [
        "effects.parquet",
        "hosts.parquet",
        "measurements.parquet",
        "outcomes.parquet",
    ]
    assert "measurements" in capsys.readouterr().err


def test_the_command_names_a_wrong_configuration_and_a_broken_record(
    records: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--records", str(records), "--out", str(tmp_path / "t")]
    assert command.main([*out, "--overrides", '{"nonsense": 1}']) == 2
    assert "nonsense" in capsys.readouterr().err
    (records / HOST / "host.json").write_text("{}", encoding="utf-8")
    assert command.main(out) == 1
    assert "host.json" in capsys.readouterr().err


def test_the_document_is_written_between_its_markers(tmp_path: Path) -> None:
    text = Path("docs/tables.md").read_text(encoding="utf-8")
    copy = tmp_path / "tables.md"
    copy.write_text(text.replace("| finding |", "| lost |"), encoding="utf-8")
    assert command.main(["--document", str(copy)]) == 0
    assert copy.read_text(encoding="utf-8") == text
    assert set(TABLES) == {"measurements", "outcomes", "effects", "verdicts", "hosts", "precheck_scores"}
