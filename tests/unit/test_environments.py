"""Isolated environments: built by the real venv and pip from a folder of packages, without a network."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from findings.environments import (
    MARKER,
    diagnose,
    ensure_environment,
    environment_folder,
    environment_python,
    python_tag,
    read_lock,
)
from findings.records import Outcome, to_json

ROOT = Path(__file__).resolve().parent.parent.parent


def make_wheel(folder: Path, name: str, version: str) -> str:
    """A package with one module that knows its version; the wheel's sha256."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}.py": f"VERSION = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as out:
        for path, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            out.writestr(path, text)
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("HF_TOKEN", "hf_MARKEDTOKENabcdefgh")
    return folder


def make_lock(path: Path, requirement: str, digest: str, head: str = "") -> Path:
    path.write_text(f"{head}{requirement} --hash=sha256:{digest}\n")
    return path


def test_environment_is_built_used_and_reused(packages: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache with space"
    lock = make_lock(tmp_path / "engine-b1.txt", "tiny==1.0", make_wheel(packages, "tiny", "1.0"), "# note: 1 kB\n")
    record = ensure_environment("engine-b1", lock, cache)
    assert record.reason == ""
    python = environment_python(record, cache)
    words = subprocess.run(
        [python, "-c", "import tiny; print(tiny.VERSION)"], capture_output=True, text=True, check=True
    )
    assert words.stdout.strip() == "1.0"
    assert record.detail["packages"]["tiny"] == "1.0"
    assert record.detail["folder"].startswith("environments/engine-b1-")
    assert str(tmp_path) not in to_json(record)
    assert not list(cache.glob("environments/*.tmp"))
    for name in list(packages.iterdir()):
        name.unlink()
    again = ensure_environment("engine-b1", lock, cache)
    assert (again.outcome, again.detail["reused"]) == (Outcome.OK, True)


def test_half_built_environment_is_built_anew(packages: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    lock = make_lock(tmp_path / "engine-b1.txt", "tiny==1.0", make_wheel(packages, "tiny", "1.0"))
    folder = environment_folder("engine-b1", read_lock(lock), cache)
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").write_text("not a python")
    record = ensure_environment("engine-b1", lock, cache)
    assert (record.outcome, record.detail["reused"]) == (Outcome.OK, False)
    assert (folder / MARKER).is_file()


def test_missing_package_leads_to_the_fallback_lock(packages: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    digest = make_wheel(packages, "tiny", "1.0")
    make_lock(tmp_path / "second.txt", "tiny==1.0", digest)
    lock = make_lock(tmp_path / "first.txt", "tiny==1.0+cpu", digest, "# fallback: second.txt\n")
    record = ensure_environment("converter", lock, cache)
    assert (record.outcome, record.detail["lock"]) == (Outcome.OK, "second.txt")
    assert [entry["cause"] for entry in record.detail["tried"]] == ["no_wheel"]
    assert ensure_environment("converter", lock, cache).detail["reused"] is True


def test_package_with_another_hash_is_never_installed(
    packages: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    cache = tmp_path / "cache"
    make_wheel(packages, "tiny", "1.0")
    record = ensure_environment("engine-b1", make_lock(tmp_path / "engine-b1.txt", "tiny==1.0", "0" * 64), cache)
    assert record.outcome is Outcome.UNAVAILABLE
    assert [entry["cause"] for entry in record.detail["tried"]] == ["wrong_hash"]
    assert record.detail["retryable"] is False
    assert not list((cache / "environments").iterdir())
    for text in (to_json(record), *capfd.readouterr()):
        assert "MARKEDTOKEN" not in text


def test_two_processes_build_once(packages: Path, tmp_path: Path) -> None:
    lock = make_lock(tmp_path / "engine-b1.txt", "tiny==1.0", make_wheel(packages, "tiny", "1.0"))
    program = ROOT / "scripts" / "environment.py"
    started = []
    for name in ("a.json", "b.json"):
        argv = [sys.executable, str(program), "--environment", "engine-b1", "--lock", str(lock), "--host", "some-host"]
        argv += ["--cache", str(tmp_path / "cache"), "--record", str(tmp_path / name)]
        started.append(subprocess.Popen(argv, stderr=subprocess.PIPE))
    assert [process.wait(timeout=180) for process in started] == [0, 0]
    for process in started:
        assert process.stderr is not None
        process.stderr.close()
    records = [json.loads((tmp_path / name).read_text()) for name in ("a.json", "b.json")]
    assert [record["outcome"] for record in records] == ["ok", "ok"]
    assert sorted(record["detail"]["reused"] for record in records) == [False, True]
    assert records[0]["host"] == "some-host"


def test_missing_lock_and_unsafe_id_are_usage_errors(tmp_path: Path) -> None:
    program = ROOT / "scripts" / "environment.py"
    real = str(make_lock(tmp_path / "real.txt", "tiny==1.0", "0" * 64))
    for env_id, lock in (("engine", "missing.txt"), ("../engine", real)):
        argv = [
            sys.executable,
            str(program),
            "--environment",
            env_id,
            "--lock",
            lock,
            "--record",
            str(tmp_path / "r.json"),
        ]
        done = subprocess.run(
            [*argv, "--cache", str(tmp_path / "c")], capture_output=True, text=True, check=False, cwd=tmp_path
        )
        assert done.returncode == 2
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "r.json").exists()


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n", "disk_full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n", "wrong_hash"),
        (
            "WARNING: Retrying (Retry(total=2)) after connection broken by 'NewConnectionError(...: Failed to "
            "establish a new connection: [Errno -3] Temporary failure in name resolution')'\n"
            "ERROR: Could not find a version that satisfies the requirement x==1 (from versions: none)\n"
            "ERROR: No matching distribution found for x==1\n",
            "no_network",
        ),
        ("ERROR: No matching distribution found for xllamacpp==1\n", "no_wheel"),
        (
            "ERROR: Cannot install torch==2.13.0+cpu because ... conflicting\nERROR: ResolutionImpossible: for help\n",
            "no_wheel",
        ),
        ("ERROR: Could not install packages due to an OSError: [Errno 30] Read-only file system: '/x'\n", "read_only"),
        ("something else\n", "pip"),
        ("", "pip"),
    ],
)
def test_pip_output_is_told_apart(output: str, cause: str) -> None:
    found, message = diagnose(output)
    assert found == cause
    assert "://" not in message
    if cause == "no_wheel":
        assert python_tag() in message


def test_locks_of_the_project_pin_everything_and_name_no_place() -> None:
    locks = sorted((ROOT / "envs").glob("*.txt"))
    assert {"pipeline.txt", "dev.txt", "converter.txt", "engine-b11549.txt"} <= {lock.name for lock in locks}
    for lock in locks:
        text = lock.read_text()
        assert "://" not in text, lock.name
        assert str(ROOT) not in text, lock.name
        requirements = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
        assert all("==" in line and line.endswith("\\") for line in requirements), lock.name
        assert text.count("--hash=sha256:") >= len(requirements), lock.name
        fallback = read_lock(lock).fallback
        assert not fallback or (lock.parent / fallback).is_file()


def test_test_lock_holds_the_pipeline_lock() -> None:
    def pins(name: str) -> set[str]:
        lines = (ROOT / "envs" / name).read_text().splitlines()
        return {line.split(" ")[0] for line in lines if line and not line.startswith((" ", "#"))}

    assert pins("pipeline.txt") <= pins("dev.txt")
