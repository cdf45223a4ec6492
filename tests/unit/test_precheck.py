"""The pre-check's answers, its command line, split files, and its score."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from pathlib import Path

import pytest
from gguf import GGUFValueType

import precheck as command
from findings.engine_rules import NEWEST_TESTED
from findings.gguf_header import read_header
from findings.loadability import check_file
from findings.precheck import Mechanism, Observed, Question, observe, precheck_files, score
from findings.records import Kind, Outcome, Record, read_record
from findings.split_files import find_parts
from precheck_pairs import BPE, MTP, MTP_TARGET, PAIRS, SPM
from tiny_gguf import Tiny, token_texts, write, write_mtp


def predicted(folder: Path, name: str, build: int) -> Mechanism:
    target, drafter = PAIRS[name].make(folder)
    question = Question(build=build, spec_type=PAIRS[name].spec_type, deep=True)
    return precheck_files(target, drafter, question).mechanism


@pytest.mark.parametrize(
    ("name", "by_build"),
    [
        ("spm_equal", "engaged engaged engaged engaged"),
        ("text_300", "translated translated not_engaged not_engaged"),
        ("larger_by_128", "engaged engaged engaged engaged"),
        ("larger_by_129", "translated translated not_engaged not_engaged"),
        ("spm_and_bpe_same_texts", "engaged engaged engaged not_engaged"),
        ("eos_id", "translated engaged engaged engaged"),
        ("drafter_without_vocabulary", "fails fails not_engaged not_engaged"),
        ("mtp", "not_loaded not_loaded not_loaded engaged"),
        ("mtp_wrong_width", "not_loaded not_loaded not_loaded not_loaded"),
        ("truncated_by_one_byte", "not_loaded not_loaded not_loaded not_loaded"),
    ],
)
def test_predictions_by_build_are_those_that_engines_confirmed(tmp_path: Path, name: str, by_build: str) -> None:
    found = [predicted(tmp_path, name, build) for build in (8929, 9093, 9538, 11549)]
    assert " ".join(found) == by_build


def run(capsys: pytest.CaptureFixture[str], *argv: str | Path) -> tuple[int, str]:
    code = command.main([str(word) for word in argv])
    return code, capsys.readouterr().out


def test_text_begins_with_one_line_of_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write(tmp_path / "target.gguf", SPM)
    code, text = run(capsys, target, write(tmp_path / "drafter.gguf", BPE))
    assert code == 0
    assert text.splitlines()[0] == f"NO: will load, stay healthy, and silently not speculate (build {NEWEST_TESTED})"
    assert "What to do:" in text
    assert "--spec-type draft-simple" in text


def test_json_and_record_hold_the_same_prediction(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write(tmp_path / "target.gguf", SPM)
    record_path = tmp_path / "record.json"
    code, text = run(capsys, target, target, "--memory", "6GiB", "--json", "--record", record_path)
    answer, record = json.loads(text), read_record(record_path)
    assert code == 0
    assert answer["prediction"] == {"loads": True, "engages": "engaged", "fits": True, "gain_sign": -1}
    assert record.detail["prediction"] == answer["prediction"]
    assert (record.kind, record.outcome) == (Kind.PRECHECK, Outcome.OK)
    assert answer["can_pay"]["never"] is True


def test_a_file_that_is_no_gguf_is_exit_code_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write(tmp_path / "target.gguf", SPM)
    page = tmp_path / "page.gguf"
    page.write_bytes(b"<!DOCTYPE html>")
    record_path = tmp_path / "record.json"
    code, text = run(capsys, target, page, "--record", record_path)
    assert code == 1
    assert "web page" in text
    assert read_record(record_path).outcome is Outcome.REFUSED


@pytest.mark.parametrize(
    "argv", [[], ["a.gguf", "--memory", "much"], ["a.gguf", "--ctx", "0"], ["a.gguf", "--cache-k", "x"]]
)
def test_bad_usage_is_exit_code_2(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command.main(argv)
    assert caught.value.code == 2


def test_one_model_alone_is_answered(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, write(tmp_path / "target.gguf", SPM))
    assert code == 0
    assert text.startswith("YES: will load")


def test_too_little_memory_is_a_no(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = write(tmp_path / "target.gguf", SPM)
    _, text = run(capsys, target, "--memory", "100KiB")
    assert text.splitlines()[0].endswith("but it does not fit")
    assert "more than the" in text


def test_sizes_that_differ_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drafter = write(tmp_path / "drafter.gguf", SPM.changed(tokens=token_texts(700)))
    _, text = run(capsys, write(tmp_path / "target.gguf", SPM), drafter, "--relative-cost", "0.1")
    assert text.startswith("CAREFUL:")
    assert "from id 640 on" in text


def test_an_mtp_drafter_names_its_type_and_width(tmp_path: Path) -> None:
    target, drafter = write_mtp(tmp_path / "t.gguf", MTP_TARGET), write_mtp(tmp_path / "d.gguf", MTP)
    found = precheck_files(target, drafter, Question(spec_type="draft_simple"))
    assert found.spec_type == "draft_mtp"
    assert found.mtp is not None
    assert found.mtp.target_width == 64
    assert "start it with --spec-type draft-mtp" in " ".join(found.todo)
    halves = MTP.changed(more_tensors=("masked_embd_centroids.weight",))
    note = precheck_files(target, write_mtp(tmp_path / "h.gguf", halves), Question()).reasons
    assert any("token ordering are missing" in reason for reason in note)


# --- parts -----------------------------------------------------------------------------------------------------------


FIRST, SECOND = "model-00001-of-00002.gguf", "model-00002-of-00002.gguf"


def part(folder: Path, number: int, count: int = 2, tensors: int = 42, name: str = "") -> Path:
    split = {
        "split.no": (GGUFValueType.UINT16, number),
        "split.count": (GGUFValueType.UINT16, count),
        "split.tensors.count": (GGUFValueType.INT32, tensors),
    }
    file = folder / (name or f"model-{number + 1:05d}-of-{count:05d}.gguf")
    return write(file, Tiny(extra=split))


def test_whole_parts_are_taken_together(tmp_path: Path) -> None:
    first = read_header(part(tmp_path, 0))
    part(tmp_path, 1)
    found = find_parts(first)
    assert not found.problems
    assert len(found.tensors) == 42


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / SECOND).unlink(), "1 of 2 parts missing"),
        (
            lambda folder: shutil.copy(folder / "model-00001-of-00002.gguf", folder / "model-00002-of-00002.gguf"),
            "split.no",
        ),
        (lambda folder: part(folder, 1, tensors=42) and part(folder, 0, tensors=43), "hold 42 tensors"),
        (lambda folder: (folder / SECOND).write_bytes(b"<html>"), "web page"),
    ],
)
def test_what_is_wrong_with_parts_is_named(tmp_path: Path, change: object, words: str) -> None:
    first = part(tmp_path, 0)
    part(tmp_path, 1)
    change(tmp_path)  # type: ignore[operator]
    answer = check_file(read_header(first), 11549)
    assert not answer.loads
    assert any(words in reason for reason in answer.reasons), answer.reasons


def test_a_later_part_and_parts_joined_with_cat_are_named(tmp_path: Path) -> None:
    second = part(tmp_path, 1)
    assert "give the engine the first part" in check_file(read_header(second), 11549).reasons[0]
    joined = tmp_path / "model.gguf"
    joined.write_bytes(part(tmp_path, 0).read_bytes() + second.read_bytes())
    assert "--merge" in check_file(read_header(joined), 11549).reasons[0]


# --- hostile values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["llama.block_count", "llama.attention.head_count", "llama.context_length"])
@pytest.mark.parametrize("value", [0, 1, 2**31, 2**32 - 1])
def test_odd_numbers_never_break_the_answer(tmp_path: Path, key: str, value: int) -> None:
    odd = write(tmp_path / "odd.gguf", SPM.changed(without_keys=(), extra={}))
    content = odd.read_bytes()
    at = content.index(key.encode()) + len(key) + 4
    odd.write_bytes(content[:at] + struct.pack("<I", value) + content[at + 4 :])
    found = precheck_files(odd, odd, Question(budget=1 << 30))
    assert found.text()
    assert json.dumps(found.as_json())


def raw_model(path: Path, keys: list[bytes], tensors: list[bytes]) -> Path:
    """A file written byte by byte; `gguf` refuses to write these."""
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(keys)) + b"".join(keys + tensors) + b"\0" * 4096
    )
    return path


def raw_text(text: bytes) -> bytes:
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        # Found by scripts/fuzz_header.py: no dimension at all, of a type with blocks.
        (struct.pack("<IIQ", 0, 8, 0), "no multiple of 32"),
        (struct.pack("<IQIQ", 1, 33, 8, 0), "no multiple of 32"),
        (struct.pack("<IQIQ", 1, 32, 99, 0), "which this build does not know"),
        (struct.pack("<IQIQ", 1, 32, 4, 0), "which this build does not know"),
        (struct.pack("<IQIQ", 1, 32, 0, 64), "has offset 64, the engine expects 0"),
        (struct.pack("<IQIQ", 1, 2**63, 0, 0), "overflows"),
        (struct.pack("<IQQQQIQ", 4, 2**20, 2**20, 2**20, 2**20, 0, 0), "overflows"),
        (struct.pack("<IQQQQQIQ", 5, 1, 1, 1, 1, 1, 0, 0), "5 dimensions"),
        (struct.pack("<IQIQ", 1, 2**40, 0, 0), "truncated"),
    ],
)
def test_odd_tensors_are_named(tmp_path: Path, tensor: bytes, words: str) -> None:
    path = raw_model(tmp_path / "odd.gguf", [], [raw_text(b"token_embd.weight") + tensor])
    answer = check_file(read_header(path), 11549)
    assert not answer.loads
    assert any(words in reason for reason in answer.reasons), answer.reasons
    assert precheck_files(path, path, Question(deep=True)).text()


def test_a_list_of_millions_of_layers_is_not_decoded(tmp_path: Path) -> None:
    count = 3_000_000
    claim = raw_text(b"llama.feed_forward_length") + struct.pack("<IIQ", 9, 5, count) + b"\1" * 4 * count
    architecture = raw_text(b"general.architecture") + struct.pack("<I", 8) + raw_text(b"llama")
    path = raw_model(tmp_path / "odd.gguf", [architecture, claim], [])
    tracemalloc.start()
    assert precheck_files(path, path, Question()).text()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5_000_000


# --- score -----------------------------------------------------------------------------------------------------------


DRAFTS = "engaged_with_drafts"


def load_record(outcome: Outcome, requests: int = 1, **detail: object) -> Record:
    return Record(Kind.LOAD, "s", outcome, "said", detail={"requests": [{}] * requests, **detail})


@pytest.mark.parametrize(
    ("record", "loads", "engages", "fits"),
    [
        (load_record(Outcome.OK, engagement="engaged_with_drafts", drafted=9, accepted=3), True, "engaged", True),
        (load_record(Outcome.OK, engagement="engaged_with_drafts", drafted=9, accepted=0), True, "all_rejected", True),
        (
            load_record(Outcome.OK, engagement="engaged_with_drafts", drafted=9, mechanism="translated"),
            True,
            "translated",
            True,
        ),
        (load_record(Outcome.NOT_ENGAGED, engagement="not_engaged"), True, "not_engaged", True),
        (load_record(Outcome.REFUSED, 0), False, "not_loaded", None),
        (load_record(Outcome.CRASHED, 2), True, "fails", None),
        (load_record(Outcome.OUT_OF_MEMORY, 0), None, None, False),
        (load_record(Outcome.NOT_RUN, 0), None, None, None),
        (load_record(Outcome.UNSUPPORTED, 0), None, None, None),
        (load_record(Outcome.TIMED_OUT, 0), None, None, None),
    ],
)
def test_records_of_loads_are_read(record: Record, loads: bool | None, engages: str | None, fits: bool | None) -> None:
    seen = observe(record)
    assert (seen.loads, seen.engages, seen.fits) == (loads, engages, fits)


def test_a_score_tells_right_wrong_and_unknown() -> None:
    prediction = {"loads": True, "engages": "engaged", "fits": None, "gain_sign": -1}
    rows = {row.question: row for row in score(prediction, Observed(True, "not_engaged", True, -1, "said"))}
    assert {name: row.right for name, row in rows.items()} == {
        "loads": True,
        "engages": False,
        "fits": None,
        "pays": True,
    }
    assert (rows["engages"].predicted, rows["engages"].observed) == ("yes", "no")
    assert (rows["pays"].predicted, rows["fits"].predicted) == ("no", None)
