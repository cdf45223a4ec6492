"""doctor tells what is here and what can run, and touches no network but the one request that can be left out."""

import json
import socket
from pathlib import Path

import pytest

from findings import doctor, gpu_checks
from findings.config import load_configuration
from findings.environments import MARKER, environment_folder, python_in, read_lock
from findings.gpu_checks import Level
from findings.host import Gpu

ROOT = Path(__file__).parents[2]
GTX_1060 = Gpu("NVIDIA GeForce GTX 1060 6GB", "6.1", 6 * 2**30, "580.95.05")
MODERN = Gpu("NVIDIA GeForce RTX 4070", "8.9", 12 * 2**30, "590.10")


def built(name: str, cache: Path) -> None:
    """An environment that looks whole."""
    folder = environment_folder(name, read_lock(ROOT / "envs" / f"{name}.txt"), cache)
    python_in(folder).parent.mkdir(parents=True)
    python_in(folder).touch()
    (folder / MARKER).write_text(json.dumps({"packages": {"xllamacpp": "1"}}))


@pytest.fixture
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize("study", ["mini", "pascal"])
@pytest.mark.usefixtures("no_sockets")
def test_it_opens_no_socket_and_writes_nothing(study: str, tmp_path: Path) -> None:
    configuration = load_configuration(ROOT, {"study": study, "host": "here"})
    found = doctor.diagnose(configuration, tmp_path / "cache", network=False, ask_programs=False)
    assert found.hub == "unknown: not asked"
    assert not (tmp_path / "cache").exists()
    assert {state.id for state in found.attempts} == set(configuration.study.attempts)
    text = doctor.described(found)
    assert all(name in text for name in configuration.study.attempts)


@pytest.mark.usefixtures("no_sockets")
def test_what_is_missing_is_counted_and_what_is_here_is_not(tmp_path: Path) -> None:
    configuration = load_configuration(ROOT, {"host": "here"})
    target = configuration.models["gemma-3-270m-q4-k-m"]
    before = doctor.diagnose(configuration, tmp_path, network=False, ask_programs=False)
    assert target.sha256
    place = tmp_path / "models" / target.sha256 / target.file
    place.parent.mkdir(parents=True)
    place.touch()
    built("engine-b11549", tmp_path)
    after = doctor.diagnose(configuration, tmp_path, network=False, ask_programs=False)
    gone = {item.name for item in before.downloads} - {item.name for item in after.downloads}
    assert gone == {"model gemma-3-270m-q4-k-m", "environment engine-b11549"}
    assert any(item.note.startswith("torch for the CPU") for item in after.downloads)
    assert {state.id for state in after.engines if state.here} == {"llama.cpp-b11549"}


def test_an_attempt_without_its_gpu_or_executable_says_both(tmp_path: Path) -> None:
    configuration = load_configuration(ROOT, {"study": "pascal", "host": "here"})
    found = doctor.diagnose(configuration, tmp_path, network=False, ask_programs=False)
    (state,) = [state for state in found.attempts if state.id == "backend_switch"]
    assert not state.runs
    text = " ".join(state.reasons)
    assert "GPU" in text
    assert "llama.cpp-b9041-vulkan is missing" in text
    assert "lock" in text


def test_what_needs_no_gpu_of_an_attempt_is_said_beside_what_does(tmp_path: Path) -> None:
    found = doctor.diagnose(load_configuration(ROOT), tmp_path, network=False, ask_programs=False)
    (state,) = [state for state in found.attempts if state.id == "attempt_5"]
    assert not state.runs
    assert state.anyway == ("5 builds of PyTorch are asked for their GPU architectures",)
    text = doctor.described(found)
    assert "attempt_5: runs here in part" in text
    assert "attempt_3: cannot run here" in text


def test_an_engine_that_dies_is_told_and_not_taken_for_here(tmp_path: Path) -> None:
    binary = tmp_path / "llama-server"
    binary.write_text("#!/bin/sh\nkill -ILL $$\n")
    binary.chmod(0o755)
    overrides = {"study": "pascal", "host": "here", "binaries": {"llama.cpp-b9041-cuda": str(binary)}}
    found = doctor.diagnose(load_configuration(ROOT, overrides), tmp_path / "cache", network=False)
    (state,) = [state for state in found.engines if state.id == "llama.cpp-b9041-cuda"]
    assert not state.here
    assert "crashed" in state.words
    assert "illegal instruction" in state.words.lower()


@pytest.mark.parametrize(
    ("path", "mend"),
    [
        (r"C:\llama\llama-server.exe", "/mnt/c/llama/llama-server.exe"),
        ("D:/my engines/llama-server.exe", "/mnt/d/my engines/llama-server.exe"),
    ],
)
def test_a_path_of_windows_is_accepted_and_told_for_what_it_is(path: str, mend: str, tmp_path: Path) -> None:
    overrides = {"study": "pascal", "host": "here", "binaries": {"llama.cpp-b9041-cuda": path}}
    configuration = load_configuration(ROOT, overrides)
    assert configuration.engines["llama.cpp-b9041-cuda"].binary == path
    found = doctor.diagnose(configuration, tmp_path, network=False, ask_programs=False)
    (state,) = [state for state in found.engines if state.id == "llama.cpp-b9041-cuda"]
    assert not state.here
    assert f"{path} is a path of Windows, and this is not Windows; under WSL write {mend}" in state.words


@pytest.mark.usefixtures("no_sockets")
def test_a_newcomer_reads_what_would_be_fetched_and_that_nothing_was(tmp_path: Path) -> None:
    configuration = load_configuration(ROOT, {"host": "here"})
    text = doctor.described(doctor.diagnose(configuration, tmp_path, network=False, ask_programs=False))
    (told,) = [line for line in text.splitlines() if line.startswith("To fetch: ")]
    assert float(told.split()[2]) > 300
    assert text.endswith("Nothing was fetched, built or measured to find this out.")


def test_the_hub_is_waited_for_only_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "HUB_SECONDS", 0.2)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        assert doctor.hub_access(True, f"http://127.0.0.1:{silent.getsockname()[1]}").startswith("no: ")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert doctor.hub_access(True) == "no: HF_HUB_OFFLINE is set"


@pytest.mark.parametrize(
    ("gpu", "level"),
    [
        (GTX_1060, Level.OK),
        (Gpu(GTX_1060.name, "6.1", 1, "581.80"), Level.OK),  # release 580 for Windows is numbered to 582
        (Gpu(GTX_1060.name, "6.1", 1, "590.44"), Level.WARNING),
        (Gpu("TITAN V", "7.0", 1, "590.44"), Level.WARNING),
        (MODERN, None),
    ],
)
def test_the_last_driver_branch_for_old_gpus(gpu: Gpu, level: Level | None) -> None:
    check = gpu_checks.driver_check(gpu)
    assert (check.level if check else None) is level
    assert check is None or "580" in check.message


@pytest.mark.parametrize(
    ("gpu", "cuda", "level"),
    [(GTX_1060, "13.0", Level.WARNING), (GTX_1060, "12.8", Level.NOTE), (MODERN, "13.0", None), (GTX_1060, "", None)],
)
def test_a_program_of_cuda_13_has_no_code_for_pascal(gpu: Gpu, cuda: str, level: Level | None) -> None:
    check = gpu_checks.cuda_check(gpu, "torch", cuda)
    assert (check.level if check else None) is level


@pytest.mark.parametrize(
    ("system", "kernel", "level"),
    [
        ("Windows", "10", Level.WARNING),
        ("Linux", "5.15.153.1-microsoft-standard-WSL2", Level.WARNING),
        ("Linux", "6.1.0", Level.OK),
    ],
)
def test_silent_spills_of_windows_are_warned_of(system: str, kernel: str, level: Level) -> None:
    check = gpu_checks.spill_check(system, kernel)
    assert check.level is level
    assert ("silently" in check.message) == (level is Level.WARNING)


def test_spills_are_no_matter_where_no_gpu_is_except_on_windows() -> None:
    assert gpu_checks.checks((), (), "Linux", "6.1.0") == []
    assert [check.level for check in gpu_checks.checks((GTX_1060,), (), "Linux", "6.1.0")] == [Level.OK, Level.OK]
    assert [check.level for check in gpu_checks.checks((), (), "Windows")] == [Level.WARNING]
