"""Which PyTorch builds carry Pascal: the rule, the answers of stand-ins for torch, and wheels as files."""

import hashlib
import io
import json
import os
import sys
import textwrap
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import torch_probe as command
from findings import torch_probe as tp
from findings.records import Kind, Outcome, read_record

ROOT = Path(__file__).parents[2]
# As published for Linux: cu126 has no sm_61 by name, and its sm_60 binaries run on 6.1 all the same.
CU126 = "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90"
CU128 = "sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_120"


def words(text: str) -> tuple[tp.Architecture, ...]:
    return tp.parse_architectures(text.split())


@pytest.mark.parametrize(
    ("text", "answer", "by"),
    [
        (CU126, tp.Answer.CARRIES, "sm_60"),
        ("sm_50 sm_60 sm_61 sm_70 compute_90", tp.Answer.CARRIES, "sm_61"),
        (CU128, tp.Answer.DROPPED, "7.5"),
        ("sm_70 compute_70", tp.Answer.DROPPED, "7.0"),
        ("sm_50 sm_52", tp.Answer.DROPPED, "5.0"),  # machine code of another generation does not run
        ("sm_62", tp.Answer.DROPPED, "6.2"),  # nor does a newer one of the same generation
        ("sm_70 compute_50", tp.Answer.CARRIES, "compute_50"),
        ("sm_70 compute_61", tp.Answer.CARRIES, "compute_61"),
        ("compute_61 sm_60", tp.Answer.CARRIES, "sm_60"),  # machine code is named before PTX
        ("sm_70 compute_62", tp.Answer.DROPPED, "6.2"),
        ("compute_60a", tp.Answer.DROPPED, "6.0"),
        ("sm_90a sm_100f compute_120", tp.Answer.DROPPED, "9.0"),
        ("", tp.Answer.UNKNOWN, "could not be read"),
    ],
)
def test_the_rule(text: str, answer: tp.Answer, by: str) -> None:
    found, rests_on = tp.judge(words(text), cuda_build=True)
    assert found is answer
    assert by in rests_on


def test_a_build_without_cuda_is_not_a_build_that_dropped_pascal() -> None:
    assert tp.judge((), cuda_build=False)[0] is tp.Answer.NO_CUDA_BUILD


@pytest.mark.parametrize(
    ("name", "capability", "runs"),
    [
        ("sm_80", 86, True),
        ("sm_86", 80, False),
        ("sm_90a", 90, True),
        ("sm_90a", 91, False),
        ("sm_100f", 103, True),
        ("sm_100f", 120, False),
        ("compute_75", 120, True),
    ],
)
def test_newer_devices_follow_the_same_rule(name: str, capability: int, runs: bool) -> None:
    assert tp.parse_architectures([name])[0].runs_on(capability) is runs


def test_words_of_another_form_are_left_out() -> None:
    assert [a.name for a in words("sm_61 gfx906 sm_ SM_70 sm_100a compute_90 -gencode")] == [
        "sm_61",
        "sm_100a",
        "compute_90",
    ]


@given(st.lists(st.text(max_size=12)))
def test_no_text_breaks_the_parser(given_words: list[str]) -> None:
    for found in tp.parse_architectures(given_words):
        assert found.name in [word.strip() for word in given_words]


@pytest.mark.parametrize(
    ("version", "cuda", "channel"),
    [
        ("2.13.0+cpu", "", "cpu"),
        ("2.11.0+cu126", "12.6", "cu126"),
        ("2.11.0", "12.8", "cu128"),
        ("2.11.0", "", "cpu"),
        ("2.4.0a0+gitee1b680", "12.4", "cu124"),
        ("2.9.0+rocm6.4", "", "rocm6.4"),
    ],
)
def test_the_channel(version: str, cuda: str, channel: str) -> None:
    assert tp.channel_of(version, cuda) == channel


# --- an interpreter ---------------------------------------------------------------------------------------------------


def interpreter(folder: Path, torch: str) -> Path:
    """A program that is called like Python and has the stand-in `torch` (source text) as its torch."""
    script = folder / "a python"
    script.write_text(
        f"#!{sys.executable} -I\n"
        + textwrap.dedent(
            """\
            import sys, types
            torch = types.ModuleType("torch")
            torch.version = types.SimpleNamespace(cuda=None, hip=None, git_version="abc")
            torch._C = types.SimpleNamespace()
            torch.cuda = types.SimpleNamespace(
                get_arch_list=lambda: [], is_available=lambda: False, device_count=lambda: 0
            )
            sys.modules["torch"] = torch
            """
        )
        + textwrap.dedent(torch)
        + "\nassert sys.argv[1:3] == ['-I', '-c'], sys.argv\n"
        + "code = sys.argv[3]\nsys.argv = ['-c', *sys.argv[4:]]\nexec(code)\n"
    )
    script.chmod(0o755)
    return script


def test_a_cuda_build_without_a_device_is_told_from_a_cpu_build(tmp_path: Path) -> None:
    hidden = f"""
        torch.__version__ = "2.11.0+cu128"
        torch.version.cuda = "12.8"
        torch._C._cuda_getArchFlags = lambda: {CU128!r}
    """
    record = tp.probe_python("w", interpreter(tmp_path, hidden))
    assert (record.kind, record.outcome, record.reason) == (Kind.TORCH, Outcome.OK, "")
    assert record.detail["sm_61"] == "dropped"
    assert record.detail["list_from"] == "compiled-in flags"
    assert record.detail["architectures"] == CU128.split()
    cpu = tp.probe_python("w", interpreter(tmp_path, 'torch.__version__ = "2.13.0+cpu"'))
    assert cpu.detail["sm_61"] == "no_cuda_build"
    assert cpu.detail["channel"] == "cpu"
    assert "without CUDA" in cpu.reason


def test_a_build_that_answers_is_taken_at_its_word(tmp_path: Path) -> None:
    build = f"""
        torch.__version__ = "2.11.0+cu126"
        torch.version.cuda = "12.6"
        torch.cuda.get_arch_list = lambda: {CU126.split()!r}
        torch.cuda.is_available = lambda: True
        torch.cuda.device_count = lambda: 1
        torch.cuda.get_device_name = lambda i: "NVIDIA GeForce GTX 1060 6GB"
        torch.cuda.get_device_capability = lambda i: (6, 1)
    """
    record = tp.probe_python("w", interpreter(tmp_path, build), "2.11.0+cu126")
    assert (record.detail["sm_61"], record.detail["by"]) == ("carries", "sm_60")
    assert record.detail["devices"] == [{"name": "NVIDIA GeForce GTX 1060 6GB", "capability": [6, 1]}]
    assert record.versions == {"torch": "2.11.0+cu126"}
    other = tp.probe_python("w", interpreter(tmp_path, build), "2.4.0+cu118")
    assert "asked for 2.4.0+cu118, found 2.11.0+cu126" in other.reason


def test_a_cuda_build_that_hides_its_list_is_unknown(tmp_path: Path) -> None:
    build = 'torch.__version__ = "2.1"\ntorch.version.cuda = "11.8"\ntorch._C._cuda_getArchFlags = lambda: None'
    record = tp.probe_python("w", interpreter(tmp_path, build))
    assert record.detail["sm_61"] == "unknown"
    assert record.reason


def test_no_torch_and_a_torch_that_cannot_be_imported(tmp_path: Path) -> None:
    none = tp.probe_python("w", interpreter(tmp_path, 'sys.modules["torch"] = None'))
    assert none.outcome is Outcome.UNAVAILABLE
    real = tp.probe_python("w", Path(sys.executable))
    assert (real.outcome, real.reason) == (Outcome.UNAVAILABLE, "no torch in that environment")
    broken = tp.probe_python(
        "w", interpreter(tmp_path, 'raise OSError("libcudart.so.12: cannot open shared object file")')
    )
    assert broken.outcome is Outcome.CRASHED
    assert "libcudart.so.12" in broken.reason


def test_what_is_no_interpreter_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(tp.ProbeError, match="cannot be asked"):
        tp.probe_python("w", tmp_path / "none")


def test_noise_on_stdout_does_not_hide_the_answer(tmp_path: Path) -> None:
    record = tp.probe_python("w", interpreter(tmp_path, 'torch.__version__ = "2.13.0+cpu"\nprint("a warning", end="")'))
    assert record.detail["version"] == "2.13.0+cpu"


def test_libraries_that_are_not_installed_rest_on_published_evidence() -> None:
    told = tp.describe_libraries(
        {"vllm": {"version": "1", "says": "compute capability 7.0 or higher"}, "xformers": {"version": "2", "says": ""}}
    )
    assert told["vllm"]["evidence"] == "its own metadata"
    assert "names no compute capability" in told["xformers"]["evidence"]
    assert "not installed here" in told["flash-attn"]["evidence"]
    assert set(told) == set(tp.LIBRARIES)


# --- a wheel's file ---------------------------------------------------------------------------------------------------


def wheel(folder: Path, version: str, cuda: str, library: bytes | None) -> Path:
    path = folder / "torch.whl"
    with zipfile.ZipFile(path, "w") as opened:
        opened.writestr(
            "torch/version.py",
            f"__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\ngit_version = 'abc'\n",
        )
        if library is not None:
            opened.writestr("torch/lib/libtorch_python.so", library)
    return path


def test_a_wheel_is_read_without_being_installed(tmp_path: Path) -> None:
    noise = b"\x7fELF" + b"sm_\x00sm_35 is too old\x00" + b"\0" * 100
    for flags, answer in ((CU126, "carries"), (CU128, "dropped")):
        library = noise + b"\0" + flags.encode() + b"\0sm_90\0" + noise
        record = tp.probe_wheel("w", wheel(tmp_path, "2.11.0+cu126", "'12.6'", library))
        assert record.detail["sm_61"] == answer
        assert record.detail["architectures"] == flags.split()
        assert (record.detail["channel"], record.detail["cuda"], record.detail["told_by"]) == ("cu126", "12.6", "wheel")


def test_wheels_without_cuda_or_without_the_text(tmp_path: Path) -> None:
    cpu = tp.probe_wheel("w", wheel(tmp_path, "2.13.0+cpu", "None", b"nothing"))
    assert cpu.detail["sm_61"] == "no_cuda_build"
    empty = tp.probe_wheel("w", wheel(tmp_path, "2.11.0+cu130", "'13.0'", None))
    assert empty.detail["sm_61"] == "unknown"
    other = tmp_path / "other.whl"
    other.write_bytes(b"no zip")
    with pytest.raises(tp.ProbeError, match="not a readable wheel"):
        tp.probe_wheel("w", other)
    with zipfile.ZipFile(other, "w") as opened:
        opened.writestr("numpy/version.py", "")
    with pytest.raises(tp.ProbeError, match="a wheel of torch"):
        tp.probe_wheel("w", other)


def test_the_text_is_found_across_the_pieces_it_is_read_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tp, "READ_BYTES", 16)
    content = b"\0" * 11 + CU126.encode() + b"\0" * 40
    assert tp.architecture_literal(io.BytesIO(content)) == (CU126.split(), hashlib.sha256(content).hexdigest())
    assert tp.architecture_literal(io.BytesIO(b""))[0] == []


# --- the command ----------------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out, records = tmp_path / "out.json", tmp_path / "records" / "some-host"
    python = interpreter(tmp_path, 'torch.__version__ = "2.13.0+cpu"')
    assert command.main(["--python", str(python), "--record", str(out)]) == 0
    assert json.loads(out.read_text())["detail"]["channel"] == "cpu"
    known = ["--records", str(records), "--config-root", str(ROOT), "--record", str(out)]
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert command.main(["--wheel", "torch-2.11.0-cu128", *known]) == 0
    record = read_record(out)
    assert (record.outcome, record.host) == (Outcome.UNAVAILABLE, "some-host")
    assert "add PyTorch's channel cu128 to pip's configuration" in record.reason
    assert record.detail["retryable"] is False
    assert command.main(["--wheel", "torch-0", *known]) == 1
    assert "torch-0" in capsys.readouterr().err
    with pytest.raises(SystemExit) as raised:
        command.main(["--record", str(out)])
    assert raised.value.code == 2
