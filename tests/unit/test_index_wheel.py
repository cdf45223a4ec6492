"""Single members of a wheel, read from a package index of our own on 127.0.0.1 by ranges of bytes."""

from __future__ import annotations

import io
import os
import random
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from findings import index_wheel
from findings.config import TorchWheel
from findings.download import FetchError
from findings.index_wheel import opened_wheel
from findings.records import Outcome
from findings.torch_probe import ProbeError, probe_index
from hubserver import Fault, HubServer, Seen

FILE = "torch-2.7.1-cp311-cp311-manylinux_2_28_x86_64.whl"
NAME = re.compile(re.escape(FILE))
LIBRARY = b"\0sm_50 sm_60 sm_70\0" + random.Random(1).randbytes(400_000)
BALLAST = random.Random(2).randbytes(12_000_000)


def wheel_bytes() -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("torch/version.py", "__version__ = '2.7.1+cu126'\ncuda: Optional[str] = '12.6'\n")
        out.writestr("torch/lib/libtorch_cuda.so", BALLAST)
        out.writestr("torch/lib/libtorch_python.so", LIBRARY)
    return made.getvalue()


@pytest.fixture(scope="module")
def content() -> bytes:
    return wheel_bytes()


@pytest.fixture
def index(content: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    for name in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with HubServer({"packages/index": {FILE: content}}) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"{server.url}/simple")
        yield server


def of_the_wheel(index: HubServer) -> list[Seen]:
    return [seen for seen in index.seen if seen.path.endswith(FILE)]


def wheel(version: str = "2.7.1+cu126", file: str = FILE, library_sha256: str | None = None) -> TorchWheel:
    channel = version.partition("+")[2]
    return TorchWheel("w", version, channel, wheel_file=file, library_sha256=library_sha256)


def test_only_what_is_asked_for_is_fetched(index: HubServer, content: bytes) -> None:
    record = probe_index(wheel())
    assert record.outcome is Outcome.OK
    assert record.detail["architectures"] == ["sm_50", "sm_60", "sm_70"]
    assert (record.detail["sm_61"], record.detail["by"]) == ("carries", "sm_60")
    assert record.detail["wheel_bytes"] == len(content)
    asked = [re.fullmatch(r"bytes=(\d+)-(\d+)", seen.headers["range"]) for seen in of_the_wheel(index)]
    fetched = sum(int(span[2]) + 1 - int(span[1]) for span in asked if span)
    assert fetched < len(content) / 2


def test_the_library_is_pinned(index: HubServer) -> None:
    digest = probe_index(wheel()).detail["library_sha256"]
    assert probe_index(wheel(library_sha256=digest)).outcome is Outcome.OK
    with pytest.raises(ProbeError, match=r"torch_wheels\[w\].library_sha256: f+ is pinned"):
        probe_index(wheel(library_sha256="f" * 64))


def test_a_build_is_found_by_its_version(index: HubServer, content: bytes) -> None:
    channel = "torch-2.7.1+cu126-cp311-cp311-linux_x86_64.whl"
    index.repositories = {"packages/index": {channel: content, "torch-2.7.1+cu126-cp311-cp311-win_amd64.whl": b"no"}}
    assert probe_index(wheel(file="")).detail["wheel_file"] == channel
    missing = probe_index(wheel("2.7.9+cu126", file=""))
    assert missing.outcome is Outcome.UNAVAILABLE
    assert "add PyTorch's channel cu126 to pip's configuration" in missing.reason


def test_a_wheel_on_disk_is_read_there(
    index: HubServer, content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / FILE).write_bytes(content)
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert probe_index(wheel()).outcome is Outcome.OK
    assert not of_the_wheel(index)


@pytest.mark.parametrize(
    ("fault", "said", "retried"),
    [
        (Fault("no_range"), "does not answer requests for a part", False),
        (Fault("status", status=503), "the server failed (503)", True),
        (Fault("status", status=403), "forbids access", False),
        (Fault("status", at="index", status=500), "the package index failed", True),
        (Fault("other_range"), "does not answer requests for a part", False),
    ],
)
def test_an_index_that_fails_is_an_outcome(index: HubServer, fault: Fault, said: str, retried: bool) -> None:
    index.fault = fault
    record = probe_index(wheel())
    assert record.outcome is Outcome.UNAVAILABLE
    assert said in record.reason
    assert record.detail["retryable"] is retried


def test_what_is_no_wheel_says_so(index: HubServer) -> None:
    index.repositories = {"packages/index": {FILE: b"<html>please log in</html>" * 100}}
    record = probe_index(wheel())
    assert (record.outcome, record.detail["cause"]) == (Outcome.UNAVAILABLE, "not_the_file")


def test_a_directory_without_end_is_not_read(index: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_wheel, "MOST_BYTES", 100_000)
    with pytest.raises(FetchError, match="would have to be read"), opened_wheel("torch", NAME, "absent") as found:
        found.zip.read("torch/lib/libtorch_cuda.so")


@pytest.mark.engine
def test_real_builds_for_cuda_say_what_they_carry() -> None:
    """About 20 MB from the package index; it goes by the configuration that the report uses."""
    from findings.config import load_configuration

    wheels = load_configuration(Path(__file__).parents[2]).torch_wheels
    found = {name: probe_index(wheels[name]) for name in ("torch-2.7.1-cu126", "torch-2.11.0-cu130")}
    assert {name: record.detail["sm_61"] for name, record in found.items()} == {
        "torch-2.7.1-cu126": "carries",
        "torch-2.11.0-cu130": "dropped",
    }
    assert [record.detail["version"] for record in found.values()] == ["2.7.1+cu126", "2.11.0+cu130"]
