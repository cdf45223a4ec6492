"""Bundles: export, import, merging, and every way in which a bundle can be wrong."""

from __future__ import annotations

import json
import os
import stat
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from record_factory import ENGINE, usual_block, write_host, write_run

import export as command
from findings import bundles
from findings.bundles import BundleError, folder_records, merge, newest_runs, read_bundle, write_bundle
from findings.records import Kind, Outcome, Record, write_record

HOST = "some-host"


def passes(path: Path) -> None:
    assert path.exists()


def made(folder: Path, host: str = HOST, finished: str = "2026-12-02T07:00:00Z", ratio: float = 0.5) -> Path:
    """A folder of records with one complete run."""
    write_host(folder, host)
    write_run(folder, host, [usual_block(1, ratio), usual_block(2, ratio)], finished=finished)
    return folder


def bundled(folder: Path, out: Path, host: str = HOST) -> Path:
    write_bundle(out, host, folder_records(folder), "c" * 64, passes)
    return out


def test_a_bundle_gives_back_what_was_put_in(tmp_path: Path) -> None:
    records = made(tmp_path / "records")
    bundle = read_bundle(bundled(records, tmp_path / "b.zip"), "docs/records/b.zip")
    assert (bundle.host, bundle.code_sha256, bundle.notes) == (HOST, "c" * 64, ())
    assert {f.relative: f.read() for f in bundle.files} == {f.relative: f.read() for f in folder_records(records)}
    assert {f.label.split("!")[0] for f in bundle.files} == {"docs/records/b.zip"}
    assert all(f.origin == "docs/records/b.zip" for f in bundle.files)


def test_the_same_records_give_the_same_bytes_whenever_and_whoever_writes_them(tmp_path: Path) -> None:
    records = made(tmp_path / "records")
    first = bundled(records, tmp_path / "one.zip").read_bytes()
    for path in records.rglob("*.json"):
        os.utime(path, (10**9, 10**9))
    before = os.umask(0o077)
    try:
        assert bundled(records, tmp_path / "two.zip").read_bytes() == first
    finally:
        os.umask(before)
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        manifest = json.loads(archive.read("manifest.json"))
    assert set(manifest) == {"bundle", "schema", "host", "code_sha256", "records"}


def test_a_check_that_fails_leaves_the_old_bundle_and_nothing_else(tmp_path: Path) -> None:
    records = made(tmp_path / "records")
    out = bundled(records, tmp_path / "out" / "b.zip")
    before = out.read_bytes()

    def refuse(path: Path) -> None:
        assert zipfile.is_zipfile(path)
        raise ValueError("a secret")

    with pytest.raises(ValueError, match="a secret"):
        write_bundle(out, HOST, folder_records(records)[:1], "", refuse)
    assert out.read_bytes() == before
    assert [p.name for p in out.parent.iterdir()] == ["b.zip"]


def test_nothing_and_strangers_are_not_exported(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no records to export"):
        write_bundle(tmp_path / "b.zip", HOST, [], "", passes)
    records = made(tmp_path / "records", "other-host")
    with pytest.raises(BundleError, match="'other-host' do not belong"):
        write_bundle(tmp_path / "b.zip", HOST, folder_records(records), "", passes)


# --- bundles that are refused -----------------------------------------------------------------------------------------


def rewritten(
    path: Path,
    change: Callable[[dict[str, bytes]], None] = lambda members: None,
    info: Callable[[zipfile.ZipInfo], None] = lambda entry: None,
    compression: int = zipfile.ZIP_STORED,
) -> Path:
    """The bundle with its members changed; hashes in the manifest stay as `change` leaves them."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    change(members)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (stat.S_IFREG | 0o644) << 16
            entry.compress_type = compression
            info(entry)
            archive.writestr(entry, content)
    return path


def manifest_with(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    def change(members: dict[str, bytes]) -> None:
        members["manifest.json"] = json.dumps(json.loads(members["manifest.json"]) | changes).encode()

    return change


def renamed(new: str) -> Callable[[dict[str, bytes]], None]:
    """One record under another name, in the manifest, too."""

    def change(members: dict[str, bytes]) -> None:
        old = f"records/{HOST}/host.json"
        manifest = json.loads(members["manifest.json"])
        manifest["records"][new] = manifest["records"].pop(old)
        members[new] = members.pop(old)
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


def record_with(**changes: Any) -> Callable[[dict[str, bytes]], None]:
    """host.json with other content and the right hash."""

    def change(members: dict[str, bytes]) -> None:
        import hashlib

        name = f"records/{HOST}/host.json"
        members[name] = json.dumps(json.loads(members[name]) | changes).encode()
        manifest = json.loads(members["manifest.json"])
        manifest["records"][name] = hashlib.sha256(members[name]).hexdigest()
        members["manifest.json"] = json.dumps(manifest).encode()

    return change


def edited(members: dict[str, bytes]) -> None:
    members[f"records/{HOST}/host.json"] += b" "


def dropped(members: dict[str, bytes]) -> None:
    del members[f"records/{HOST}/host.json"]


def added(members: dict[str, bytes]) -> None:
    members[f"records/{HOST}/extra.json"] = b"{}"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (manifest_with(schema=2), "schema version 2, this version of the project reads 1"),
        (manifest_with(bundle=9), "bundle version 9"),
        (manifest_with(host="another"), "does not belong to host 'another'"),
        (manifest_with(records=[]), "has no list of records"),
        (lambda members: members.pop("manifest.json"), "so it is no bundle"),
        (lambda members: members.update({"manifest.json": b"{"}), "is no JSON"),
        (edited, "was changed after the export"),
        (dropped, "not in both"),
        (added, "not in both"),
        (record_with(schema=2), "has record schema 2"),
        (record_with(outcome="perhaps"), "unknown outcome 'perhaps'"),
        (renamed("../../evil.json"), "is no name of a record"),
        (renamed("/etc/evil.json"), "is no name of a record"),
        (renamed(f"records/{HOST}/../x.json"), "is no name of a record"),
        (renamed(f"records/{HOST}/a/..json/../x.json"), "is no name of a record"),
        (renamed(f"records/{HOST}\\x.json"), "is no name of a record"),
        (renamed("C:/x.json"), "is no name of a record"),
        (renamed(f"records/{HOST}/x.sh"), "is no name of a record"),
        (renamed("records/other-host/host.json"), "does not belong to host"),
    ],
)
def test_a_wrong_bundle_is_refused_by_name(
    change: Callable[[dict[str, bytes]], None], message: str, tmp_path: Path
) -> None:
    path = rewritten(bundled(made(tmp_path / "records"), tmp_path / "wrong.zip"), change)
    with pytest.raises(BundleError, match=message) as caught:
        read_bundle(path)
    assert "wrong.zip" in str(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["records", "wrong.zip"]


def test_links_are_refused(tmp_path: Path) -> None:
    def link(entry: zipfile.ZipInfo) -> None:
        if entry.filename.endswith("host.json"):
            entry.external_attr = (stat.S_IFLNK | 0o777) << 16

    path = rewritten(bundled(made(tmp_path / "records"), tmp_path / "b.zip"), info=link)
    with pytest.raises(BundleError, match="is a link, folder or device"):
        read_bundle(path)


def test_a_member_twice_is_refused(tmp_path: Path) -> None:
    path = bundled(made(tmp_path / "records"), tmp_path / "b.zip")
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(f"records/{HOST}/host.json", b"{}")
    with pytest.raises(BundleError, match="occurs twice"):
        read_bundle(path)


def test_a_bomb_is_refused_before_it_is_unpacked(tmp_path: Path) -> None:
    def bomb(members: dict[str, bytes]) -> None:
        members[f"records/{HOST}/host.json"] = b" " * 5_000_000

    path = rewritten(bundled(made(tmp_path / "records"), tmp_path / "b.zip"), bomb, compression=zipfile.ZIP_DEFLATED)
    with pytest.raises(BundleError, match="absurd size"):
        read_bundle(path)


def test_a_size_that_the_header_claims_is_believed_and_refused(tmp_path: Path) -> None:
    path = bundled(made(tmp_path / "records"), tmp_path / "b.zip")
    data = bytearray(path.read_bytes())
    place = data.rindex(b"PK\x01\x02")
    data[place + 24 : place + 28] = struct.pack("<I", 2**31)
    path.write_bytes(data)
    with pytest.raises(BundleError, match="absurd size"):
        read_bundle(path)


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.95])
def test_a_damaged_bundle_is_refused(cut: float, tmp_path: Path) -> None:
    path = bundled(made(tmp_path / "records"), tmp_path / "b.zip")
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(BundleError, match=r"b\.zip: damaged or no bundle"):
        read_bundle(path)


def test_one_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = bundled(made(tmp_path / "records"), tmp_path / "b.zip")
    data = bytearray(path.read_bytes())
    data[data.index(b"predicted_ms") + 3] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"b\.zip"):
        read_bundle(path)


def test_a_missing_bundle_and_another_file_are_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"none\.zip: there is no such file"):
        read_bundle(tmp_path / "none.zip")
    (tmp_path / "x.zip").write_text("no zip")
    with pytest.raises(BundleError, match=r"x\.zip: damaged or no bundle"):
        read_bundle(tmp_path / "x.zip")


def test_records_of_an_unknown_kind_are_left_out_and_said(tmp_path: Path) -> None:
    path = rewritten(bundled(made(tmp_path / "records"), tmp_path / "b.zip"), record_with(kind="horoscope"))
    bundle = read_bundle(path)
    assert "host.json" not in {f.relative for f in bundle.files}
    assert "1 records of unknown kind 'horoscope' left out" in bundle.notes[0]


def test_a_bundle_that_was_packed_again_with_compression_is_read(tmp_path: Path) -> None:
    path = rewritten(bundled(made(tmp_path / "records"), tmp_path / "b.zip"), compression=zipfile.ZIP_DEFLATED)
    assert len(read_bundle(path).files) == 6


# --- runs and merging -------------------------------------------------------------------------------------------------


def names(files: tuple[bundles.RecordFile, ...]) -> set[str]:
    return {f.relative.removeprefix(f"measure/attempt_1/{ENGINE}/") for f in files}


def test_the_newest_complete_run_counts_and_others_are_said(tmp_path: Path) -> None:
    for run, finished in ((1, "2026-12-01T00:00:00Z"), (2, "2026-12-02T00:00:00Z"), (3, ""), (10, "")):
        write_run(tmp_path, HOST, [usual_block(1)], run=run, finished=finished)
    chosen = newest_runs(folder_records(tmp_path))
    assert names(chosen.files) == {
        "session.json",
        "run-002/block-001.json",
        "run-002/complete.json",
        "run-002/plan.json",
    }
    assert any("run-003, run-010 not complete" in note for note in chosen.notes)
    assert any("run-001 replaced by run-002" in note for note in chosen.notes)
    everything = newest_runs(folder_records(tmp_path), every_run=True)
    assert {"run-001/block-001.json", "run-002/block-001.json"} <= names(everything.files)
    assert "run-003/block-001.json" not in names(everything.files)


def test_the_run_that_the_session_names_counts_while_a_newer_one_has_no_session_yet(tmp_path: Path) -> None:
    write_run(tmp_path, HOST, [usual_block(1)], run=1, finished="2026-12-01T00:00:00Z")
    newer = write_run(tmp_path, HOST, [usual_block(1)], run=2)
    (newer / "complete.json").write_text('{"finished": "2026-12-02T00:00:00Z"}')
    assert "run-001/block-001.json" in names(newest_runs(folder_records(tmp_path)).files)
    (newer.parent / "session.json").write_text("{")
    assert "run-002/block-001.json" in names(newest_runs(folder_records(tmp_path)).files)


def test_run_numbers_are_numbers(tmp_path: Path) -> None:
    write_run(tmp_path, HOST, [usual_block(1)], run=999, finished="2026-12-01T00:00:00Z")
    write_run(tmp_path, HOST, [usual_block(1)], run=1000, finished="2026-12-02T00:00:00Z")
    assert "run-1000/block-001.json" in names(newest_runs(folder_records(tmp_path)).files)


@pytest.mark.parametrize("local_is_newer", [True, False])
def test_of_the_same_host_twice_the_newer_session_is_taken_whole(local_is_newer: bool, tmp_path: Path) -> None:
    times = ["2026-12-02T07:00:00Z", "2026-12-05T07:00:00Z"]
    mine, theirs = times[::-1] if local_is_newer else times
    local = made(tmp_path / "local", finished=mine, ratio=0.5)
    other = made(tmp_path / "other", finished=theirs, ratio=0.9)
    bundle = read_bundle(bundled(other, tmp_path / "b.zip"))
    merged = merge([folder_records(local), bundle.files])
    taken = {f.origin == "" for f in merged.files if f.unit.startswith("measure/")}
    assert taken == {local_is_newer}
    assert len([f for f in merged.files if f.relative.endswith("block-001.json")]) == 1
    assert len(merged.notes) == 1
    assert f"{mine if local_is_newer else theirs}) taken" in merged.notes[0]


def test_identical_records_are_no_conflict(tmp_path: Path) -> None:
    local = made(tmp_path / "local")
    bundle = read_bundle(bundled(local, tmp_path / "b.zip"))
    merged = merge([folder_records(local), bundle.files])
    assert merged.notes == ()
    assert {f.origin for f in merged.files} == {""}


def test_other_hosts_and_other_subjects_stand_side_by_side(tmp_path: Path) -> None:
    local = made(tmp_path / "local")
    other = made(tmp_path / "other", "other-host")
    write_record(other / "other-host" / "probes" / "x.json", Record(Kind.PROBE, "x", Outcome.OK, host="other-host"))
    bundle = read_bundle(bundled(other, tmp_path / "b.zip", "other-host"))
    merged = merge([folder_records(local), bundle.files])
    assert {f.host for f in merged.files} == {HOST, "other-host"}
    assert len(merged.files) == 6 + 7
    assert [f.label for f in merged.files] == sorted(f.label for f in merged.files)


def test_links_and_half_written_files_in_the_records_are_passed_over(tmp_path: Path) -> None:
    records = made(tmp_path / "records")
    before = len(folder_records(records))
    (records / HOST / ".host.json.abc.part").write_text("{")
    (records / HOST / ".half.json").write_text("{")
    (records / HOST / "link.json").symlink_to(records / HOST / "host.json")
    assert len(folder_records(records)) == before


# --- the command ------------------------------------------------------------------------------------------------------


def test_export_writes_a_bundle_and_refuses_a_leak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    records = made(tmp_path / "records")
    out = tmp_path / "out" / "b.zip"
    arguments = ["--records", str(records), "--host", HOST, "--out", str(out)]
    assert command.main(arguments) == 0
    assert read_bundle(out).host == HOST
    out.unlink()
    token = "hf_" + "AbCdEf1234" * 3
    path = records / HOST / "host.json"
    path.write_text(path.read_text().replace("Debian 12", token), encoding="utf-8")
    assert command.main(arguments) == 1
    shown = "".join(capsys.readouterr())
    assert "host.json:" in shown and "token" in shown
    assert token not in shown
    assert list(out.parent.iterdir()) == []


def test_export_without_records_says_what_to_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--records", str(tmp_path), "--host", HOST, "--out", str(tmp_path / "b.zip")]) == 2
    assert "has no records to export; run `snakemake" in capsys.readouterr().err
