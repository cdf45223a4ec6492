"""How a converter ended, in its own words: with stand-ins for the converter, and with lines that real ones wrote."""

import json
import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import convert as command
from findings import convert as cv
from findings.checkpoint import CheckpointError
from findings.records import Kind, Outcome, Record, read_record, write_record

CHECKPOINT = Path(__file__).parents[2] / "config" / "checkpoints" / "tiny-gemma4-assistant-dense"

OK = """
import sys
out = sys.argv[sys.argv.index("--outfile") + 1]
open(out, "wb").write(b"GGUF" + b"\\0" * 60)
"""
UNSUPPORTED = """
import sys
print("INFO:hf-to-gguf:Loading model: x", file=sys.stderr)
print("ERROR:hf-to-gguf:Model Gemma4AssistantForCausalLM is not supported", file=sys.stderr)
sys.exit(1)
"""


def job(tmp_path: Path, script: str, **changes: object) -> cv.Conversion:
    source = tmp_path / "a source"  # a path with a space, as people have them
    (source / "gguf-py" / "gguf").mkdir(parents=True, exist_ok=True)
    (source / "gguf-py" / "gguf" / "constants.py").write_text("x = 1\n")
    (source / cv.SCRIPT).write_text(script)
    made = cv.Conversion(
        "tiny-dense",
        CHECKPOINT,
        "converter-b1",
        source,
        Path(sys.executable),
        tmp_path / "cache",
        build=1,
        timeout_s=60,
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def test_a_conversion_lands_in_the_cache_whole(tmp_path: Path) -> None:
    record = cv.convert(job(tmp_path, OK))
    assert record.kind is Kind.CONVERSION
    assert (record.outcome, record.reason, record.exit_code) == (Outcome.OK, "", 0)
    made = tmp_path / "cache" / record.detail["cache_path"]
    assert made.name == "tiny-dense-f16.gguf"
    assert made.parent.parent.name == "converted"
    assert made.stat().st_size == record.detail["size_bytes"] == 64
    assert record.detail["architecture"] == "Gemma4AssistantForCausalLM"
    assert not list(made.parent.glob(".convert*"))


def test_the_same_inputs_are_converted_once(tmp_path: Path) -> None:
    first = cv.convert(job(tmp_path, OK + "open(out + '.ran', 'w')\n"))
    count = tmp_path / "count"
    script = OK + f"open({str(count)!r}, 'a').write('x')\n"
    second = [cv.convert(job(tmp_path, script)) for _ in range(3)]
    assert count.read_text() == "x"
    assert [record.detail["reused"] for record in second] == [False, True, True]
    assert first.detail["key"] != second[0].detail["key"]


def test_a_damaged_result_is_made_again(tmp_path: Path) -> None:
    record = cv.convert(job(tmp_path, OK))
    made = tmp_path / "cache" / record.detail["cache_path"]
    made.write_bytes(b"GGUF" + b"\1" * 60)
    again = cv.convert(job(tmp_path, OK))
    assert again.detail["reused"] is False
    assert made.read_bytes() == b"GGUF" + b"\0" * 60


def test_what_can_change_the_bytes_changes_the_key(tmp_path: Path) -> None:
    base, versions = job(tmp_path, OK), {"transformers": "4.57.6"}
    copy = tmp_path / "copy"
    shutil.copytree(CHECKPOINT, copy)
    keys = {
        cv.content_key(base, versions),
        cv.content_key(base, {"transformers": "5.24.0"}),
        cv.content_key(replace(base, outtype="q8_0"), versions),
        cv.content_key(replace(base, checkpoint_id="other"), versions),
        cv.content_key(replace(base, target=CHECKPOINT), versions),
    }
    same = cv.content_key(replace(base, checkpoint=copy, converter_id="b", timeout_s=1.0), versions)
    assert same in keys
    (copy / "config.json").write_text((copy / "config.json").read_text() + " ")
    keys.add(cv.content_key(replace(base, checkpoint=copy), versions))
    (base.source / "gguf-py" / "gguf" / "constants.py").write_text("x = 2\n")
    keys.add(cv.content_key(base, versions))
    assert len(keys) == 7


def test_a_refusal_is_a_record_in_the_converters_words(tmp_path: Path) -> None:
    record = cv.convert(job(tmp_path, UNSUPPORTED))
    assert record.outcome is Outcome.UNSUPPORTED
    assert record.reason == "Model Gemma4AssistantForCausalLM is not supported"
    assert record.exit_code == 1
    assert record.log_head[-1].startswith("ERROR:hf-to-gguf")
    assert len(record.log_sha256) == 64
    assert "sha256" not in record.detail
    assert not list((tmp_path / "cache").rglob("*.gguf"))


def test_a_record_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    talk = "import sys, os\nprint(sys.argv, sys.executable, os.getcwd(), __file__)\nraise ValueError(os.getcwd())\n"
    record = cv.convert(job(tmp_path, talk))
    text = json.dumps([record.argv, record.log_head, record.log_tail, record.reason])
    for place in (tmp_path, CHECKPOINT, Path(sys.executable).parent, Path(sys.executable).resolve().parent):
        assert str(place) not in text, place
    assert "<llama.cpp>/convert_hf_to_gguf.py" in text


def test_the_same_refusal_has_the_same_log_sum_in_another_folder(tmp_path: Path) -> None:
    script = "import sys\nprint(__file__, sys.argv[1])\nsys.exit(1)\n"
    sums = {cv.convert(job(tmp_path / name, script)).log_sha256 for name in ("a", "b")}
    assert len(sums) == 1


def test_code_0_without_a_gguf_is_not_ok(tmp_path: Path) -> None:
    for script in ("", OK.replace('b"GGUF"', 'b"gguf"')):
        record = cv.convert(job(tmp_path, script))
        assert record.outcome is Outcome.CRASHED
        assert "left no GGUF" in record.reason


def test_a_signal_is_a_crash(tmp_path: Path) -> None:
    record = cv.convert(job(tmp_path, "import os, signal\nprint('half way', flush=True)\nos.kill(os.getpid(), 11)\n"))
    assert (record.outcome, record.exit_code) == (Outcome.CRASHED, -11)
    assert record.reason == "ended by signal 11; last words: half way"


def test_the_time_limit_ends_the_converter_and_its_children(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(300)'])\n"
        "print(child.pid, flush=True)\ntime.sleep(300)\n"
    )
    record = cv.convert(job(tmp_path, script, timeout_s=3.0))
    assert (record.outcome, record.exit_code) == (Outcome.TIMED_OUT, None)
    assert "no end within 3 s" in record.reason
    child = int(record.log_head[0])
    for _ in range(100):
        if not psutil.pid_exists(child) or psutil.Process(child).status() == psutil.STATUS_ZOMBIE:
            break
        time.sleep(0.1)
    else:
        pytest.fail("the converter's child still runs")


def test_the_converter_sees_no_token_and_no_python_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_" + "x" * 30)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    script = "import os, json\nprint(json.dumps({k: v for k, v in os.environ.items()}))\nraise SystemExit(3)\n"
    seen = json.loads("".join(cv._run(job(tmp_path, script), tmp_path / "x.gguf").log))
    assert "HF_TOKEN" not in seen
    assert "PYTHONPATH" not in seen
    assert seen["HF_HUB_OFFLINE"] == "1"


# Lines that real converters wrote, with the outcome that they mean.
MISSING_PACKAGE = """\
Traceback (most recent call last):
  File "convert_hf_to_gguf.py", line 24, in <module>
    import torch
ModuleNotFoundError: No module named 'torch'
"""
KEY_ERROR = """\
Traceback (most recent call last):
  File "/x/convert_hf_to_gguf.py", line 12, in main
    go()
  File "/x/conversion/gemma.py", line 711, in generate_extra_tensors
    head_dim_full = (self.hparams["global_head_dim"])
                     ~~~~~~~~~~~~^^^^^^^^^^^^^^^^^^^
KeyError: 'global_head_dim'
"""
BARE_ASSERT = """\
Traceback (most recent call last):
  File "/x/conversion/gemma.py", line 684, in set_gguf_parameters
    assert head_dim_full is not None
           ^^^^^^^^^^^^^^^^^^^^^^^^^
AssertionError
"""
CAUSED = """\
Traceback (most recent call last):
  File "/x/a.py", line 1, in one
    x
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/b.py", line 2, in two
    raise ValueError("Tokenizer class T does not exist")
ValueError: Tokenizer class T does not exist
"""


@pytest.mark.parametrize(
    ("code", "log", "outcome", "reason"),
    [
        (0, "INFO:hf-to-gguf:Model successfully exported", Outcome.OK, ""),
        (1, "ERROR:hf-to-gguf:Model X is not supported\n", Outcome.UNSUPPORTED, "Model X is not supported"),
        (
            1,
            "NotImplementedError: Architecture 'X' not supported!\n",
            Outcome.UNSUPPORTED,
            "Architecture 'X' not supported!",
        ),
        (
            1,
            "NotImplementedError: BPE pre-tokenizer was not recognized - update get_vocab_base_pre()\n",
            Outcome.UNSUPPORTED,
            "BPE pre-tokenizer was not recognized - update get_vocab_base_pre()",
        ),
        (1, "ERROR:hf-to-gguf:Error: x is not a directory\n", Outcome.REFUSED, "Error: x is not a directory"),
        (2, "usage: x\nx: error: unrecognized arguments: --mtp\n", Outcome.REFUSED, "unrecognized arguments: --mtp"),
        (1, KEY_ERROR, Outcome.CRASHED, "KeyError: 'global_head_dim' (gemma.py:711 in generate_extra_tensors)"),
        (1, BARE_ASSERT, Outcome.CRASHED, "AssertionError: at `assert head_dim_full is not None` (gemma.py:684 in"),
        (1, CAUSED, Outcome.CRASHED, "ValueError: Tokenizer class T does not exist (b.py:2 in two)"),
        (-9, "INFO:hf-to-gguf:Writing", Outcome.CRASHED, "ended by signal 9"),
        (None, "INFO:hf-to-gguf:Writing", Outcome.TIMED_OUT, "last words: INFO:hf-to-gguf:Writing"),
        (7, "", Outcome.REFUSED, "exit code 7; last words: none"),
    ],
)
def test_the_decisive_words(code: int | None, log: str, outcome: Outcome, reason: str) -> None:
    found = cv.classify(code, log)
    assert found[0] is outcome
    assert reason in found[1]
    assert bool(reason) == bool(found[1])


@pytest.mark.parametrize(
    ("log", "word"),
    [
        (MISSING_PACKAGE, "torch"),
        (
            "ImportError: \nT5Converter requires the protobuf library but it was not found in your environment",
            "protobuf",
        ),
        (
            "ImportError: T5Converter requires the protobuf library but it was not found in your environment.",
            "protobuf",
        ),
        ("OSError: [Errno 28] No space left on device", "No space left"),
    ],
)
def test_what_is_not_the_converters_answer_is_a_fault(log: str, word: str) -> None:
    with pytest.raises(cv.ConversionError, match=word):
        cv.classify(1, log)


def test_a_source_without_converter_or_a_python_that_is_none(tmp_path: Path) -> None:
    wrong = job(tmp_path, OK)
    (wrong.source / cv.SCRIPT).unlink()
    with pytest.raises(cv.ConversionError, match="inside"):
        cv.convert(wrong)
    with pytest.raises(cv.ConversionError, match="does not answer"):
        cv.convert(job(tmp_path, OK, python=tmp_path / "no-python"))
    with pytest.raises(CheckpointError, match=r"config\.json"):
        cv.convert(job(tmp_path, OK, checkpoint=tmp_path))


# --- the command ----------------------------------------------------------------------------------------------------


def by_hand(tmp_path: Path, script: str) -> tuple[int, Path]:
    made, record = job(tmp_path, script), tmp_path / "record.json"
    words = ["--checkpoint", CHECKPOINT, "--source", made.source, "--python", made.python, "--converter", "b1"]
    words += ["--cache", made.cache, "--record", record]
    return command.main([str(word) for word in words]), record


def test_the_command_writes_the_record_and_ends_with_0(tmp_path: Path) -> None:
    for script, outcome in ((OK, Outcome.OK), (UNSUPPORTED, Outcome.UNSUPPORTED), ("1 / 0", Outcome.CRASHED)):
        code, path = by_hand(tmp_path, script)
        assert code == 0
        assert read_record(path).outcome is outcome


def test_the_command_ends_with_1_for_a_missing_package(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, path = by_hand(tmp_path, "import a_package_that_nobody_has\n")
    assert code == 1
    assert not path.exists()
    assert "a_package_that_nobody_has" in capsys.readouterr().err


def test_half_a_command_line_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as raised:
        command.main(["--checkpoint", str(CHECKPOINT), "--record", str(tmp_path / "r.json")])
    assert raised.value.code == 2


@pytest.mark.parametrize("missing", ["checkpoint", "converter", "environment"])
def test_an_input_that_is_not_here_makes_a_record_not_run(tmp_path: Path, missing: str) -> None:
    records = tmp_path / "records" / "some-host"
    model, converter = "tiny-gemma4-assistant-dense", "converter-b9538"
    places = {
        "checkpoint": records / "sources" / f"{model}.json",
        "converter": records / "sources" / f"{converter}.json",
        "environment": records / "environments" / "converter.json",
    }
    for what, path in places.items():
        outcome = Outcome.UNAVAILABLE if what == missing else Outcome.OK
        write_record(path, Record(Kind.DOWNLOAD, what, outcome, "the disk is full" if what == missing else ""))
    out = tmp_path / "out.json"
    words = ["--model", model, "--converter", converter, "--records", records, "--cache", tmp_path, "--record", out]
    root = Path(__file__).parents[2]
    assert command.main([str(word) for word in [*words, "--config-root", root]]) == 0
    record = read_record(out)
    assert record.outcome is Outcome.NOT_RUN
    assert missing in record.reason
    assert "the disk is full" in record.reason
    assert record.host == "some-host"


def test_an_unwritable_cache_is_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    code, path = by_hand(tmp_path, OK)
    assert code == 1
    assert not path.exists()
    assert os.linesep.join(capsys.readouterr().err.splitlines()).startswith("convert: ")
