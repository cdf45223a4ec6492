"""The scan before publishing: every kind is found, in every container, never shown; our own outputs pass."""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import leakscan as command
from findings import leakscan
from findings.config import Allowance
from findings.leakscan import HitKind, LeakError, Names, Scanner, names_here, require_clean

NOBODY = Names()
# Put together here, so that this file holds none of them.
HUB_TOKEN = "hf_" + "AbCdEf1234" * 3
PLANTED = {
    "hub token": (HUB_TOKEN, HitKind.TOKEN),
    "github token": ("ghp_" + "a1B2c3D4e5" * 4, HitKind.TOKEN),
    "github fine-grained": ("github_pat_" + "11ABCDEFG0" * 3, HitKind.TOKEN),
    "aws key": ("AKIA" + "IOSFODNN7EXAMPL3", HitKind.TOKEN),
    "openai": ("sk-" + "proj-" + "Ab12Cd34" * 5, HitKind.TOKEN),
    "slack": ("xoxb" + "-123456789012-123456789012-AbCdEfGhIjKl", HitKind.TOKEN),
    "jwt": (
        ".".join(
            base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")
            for part in ({"alg": "HS256", "typ": "JWT"}, {"sub": "1234567890", "name": "n"}, {"x": "yyyyyyyyyyyy"})
        ),
        HitKind.TOKEN,
    ),
    "authorization": ("Authorization: Bearer " + "abcdef0123456789", HitKind.TOKEN),
    "signed address": ("https://cdn.example.org/f?X-Amz-Signature=" + "0a1b2c3d4e5f", HitKind.TOKEN),
    "private key": ("-----BEGIN " + "OPENSSH PRIVATE KEY-----", HitKind.PRIVATE_KEY),
    "login in an address": ("https://someone:" + "pa55w0rd@host.example.org/x", HitKind.LOGIN),
    "password": ('password = "' + 'c0rrectHorse9battery"', HitKind.SECRET),
    "random string": ('key: "' + 'kJ8xQ2vN5mZ0pL7wR4tY1uB6cD3fG9hS/aEe"', HitKind.SECRET),
    "ten network": ("10.20.30.40", HitKind.PRIVATE_ADDRESS),
    "home network": ("http://192.168.178.21:8080/", HitKind.PRIVATE_ADDRESS),
    "172.16": ("host=172.20.0.3", HitKind.PRIVATE_ADDRESS),
    "link local": ("169.254.10.1", HitKind.PRIVATE_ADDRESS),
    "ipv6 link local": ("fe80::1ff:fe23:4567:890a", HitKind.PRIVATE_ADDRESS),
    "ipv6 unique local": ("fd12:3456:789a:1::1", HitKind.PRIVATE_ADDRESS),
    "mac": ("3c:22:fb:0a:1b:2c", HitKind.MAC_ADDRESS),
    "mac of windows": ("3C-22-FB-0A-1B-2C", HitKind.MAC_ADDRESS),
    "home": ("/home/" + "anna/models/x.gguf", HitKind.HOME_PATH),
    "home of a mac": ("/Users/" + "anna/x", HitKind.HOME_PATH),
    "home of root": ("/root" + "/.cache/x", HitKind.HOME_PATH),
    "home on windows": ("C:\\Users\\" + "anna\\x", HitKind.HOME_PATH),
    "home on windows in json": ("C:\\\\Users\\\\" + "anna\\\\x", HitKind.HOME_PATH),
    "drive": ("D:\\" + "SomeModels\\x.gguf", HitKind.LOCAL_PATH),
    "share": ("\\\\" + "nas01\\models\\x.gguf", HitKind.LOCAL_PATH),
    "file address": ("file:///" + "opt/place/x", HitKind.LOCAL_PATH),
    "e-mail": ("anna.meier@" + "uni-somewhere.de", HitKind.EMAIL),
    "index": ("https://pkgs.internal.company/" + "simple/torch/", HitKind.PACKAGE_INDEX),
}


def hits_of(text: str, names: Names = NOBODY) -> list[HitKind]:
    scanner = Scanner(names=names)
    scanner.scan_text("file.txt", text)
    return [hit.kind for hit in scanner.result().hits]


@pytest.mark.parametrize(("secret", "kind"), PLANTED.values(), ids=PLANTED)
@pytest.mark.parametrize(
    "around", ["{}", "a line with {} in it", '{{"key": "{}"}}', "<p>{}</p>", "x\ty\t{}\tz", "({})"]
)
def test_each_kind_is_found_wherever_it_stands(secret: str, kind: HitKind, around: str) -> None:
    if around.startswith("{{") and '"' in secret:
        secret = secret.replace('"', "'")
    assert kind in hits_of(around.format(secret))


@pytest.mark.parametrize(("secret", "kind"), PLANTED.values(), ids=PLANTED)
def test_the_report_says_where_and_what_and_never_the_secret(
    secret: str, kind: HitKind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.md").write_text(f"first\nsecond {secret}\n", encoding="utf-8")
    assert command.main([str(tmp_path), "--no-allowances", "--json"]) == 1
    shown = "".join(capsys.readouterr())
    assert "notes.md:2:" in shown
    assert kind.value in shown
    assert secret not in shown
    assert max((len(part) for part in secret.split() if part in shown), default=0) < 8


INNOCENT = [
    hashlib.sha256(b"x").hexdigest(),
    f'"sha256": "{hashlib.sha256(b"y").hexdigest()}"',
    f'"commit": "{hashlib.sha1(b"z").hexdigest()}"',
    'key: "gemma-3-270m-it-q4-k-m-gguf-part1-of-4"',
    '"unit": "measure/attempt_1/llama-cpp-b11549/run-001"',
    "http://127.0.0.1:8080/health and 0.0.0.0 and ::1",
    "nvidia-driver 535.183.01, Windows 10.0.19045, kernel 6.1.0, onnx==10.0.0.1",
    "llama.cpp b11549-a1b2c3d, 2026.10.11549",
    "2026-12-02T06:30:00Z took 00:01:02",
    "SHA256 3c:22:fb:0a:1b:2c:3d:4e:5f:60:71:82:93:a4:b5:c6",
    "hf_to_gguf hf_transfer convert_hf_to_gguf.py",
    "git@github.com:ggml-org/llama.cpp.git",
    "someone@example.com and x@2x.png",
    "<home>/models, ~/models, $HOME/models, /home/<user>/x, /home/user/x",
    "https://github.com/ggml-org/llama.cpp/home/page",
    "https://user@host/x",
    "password: <removed>, token=<token>, Authorization: <token>",
    "PASSWORD = os.environ['PASSWORD']",
    '"tokens": [1, 2, 3], "max_tokens": 256, "token_type": "normal"',
    "M 10.5 20.25 L 30.125 40 C 1 2 3 4 5 6",
    '"text": "a:\\nb", "ratio 3:\\t4"',
    "key value pairs: tokenizer.ggml.bos_token_id = 2",
]


@pytest.mark.parametrize("text", INNOCENT)
def test_what_is_no_leak_passes(text: str) -> None:
    assert hits_of(text) == []


def test_our_own_records_and_documents_pass() -> None:
    """False positives would teach people to allow everything."""
    result = leakscan.scan_paths([Path("docs"), Path("config")], names=NOBODY)
    assert [str(hit) for hit in result.hits] == []
    assert result.lines > 100


# --- names ----------------------------------------------------------------------------------------------------------


def test_names_of_this_machine_are_found_as_whole_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(leakscan.socket, "gethostname", lambda: "zephyr7.lab.example")
    monkeypatch.setattr(leakscan.getpass, "getuser", lambda: "annamei")
    monkeypatch.setenv("SOME_API_KEY", "plainwords-not-a-known-form")
    project = tmp_path / "some" / "checkout"
    project.mkdir(parents=True)
    names = names_here(project)
    assert hits_of("measured on zephyr7 today", names) == [HitKind.MACHINE_NAME]
    assert hits_of("by annamei.", names) == [HitKind.USER_NAME]
    assert hits_of("zephyr77 and hannamei", names) == []
    assert HitKind.LOCAL_PATH in hits_of(f"{project}/results", names)
    assert hits_of("sent plainwords-not-a-known-form along", names) == [HitKind.TOKEN]
    assert "plainwords" not in repr(names)


@pytest.mark.parametrize(("machine", "user"), [("localhost", "root"), ("runner", "runner"), ("vm", "ci")])
def test_generic_names_tell_nothing_and_are_no_hits(machine: str, user: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leakscan.socket, "gethostname", lambda: machine)
    monkeypatch.setattr(leakscan.getpass, "getuser", lambda: user)
    monkeypatch.setattr(leakscan, "_full_name", lambda: "")
    names = names_here()
    assert (names.machine, names.user) == ((), ())


def test_an_account_without_a_name_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(leakscan.getpass, "getuser", unknown)
    assert isinstance(names_here(), Names)


# --- containers -----------------------------------------------------------------------------------------------------


def zip_of(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return out.getvalue()


def tar_of(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        archive.addfile(info, io.BytesIO(content))
    return out.getvalue()


def png_of(text: bytes) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    return b"\x89PNG\r\n\x1a\n" + chunk(b"zTXt", b"Author\0\0" + zlib.compress(text)) + chunk(b"IEND", b"")


def parquet_of(value: str) -> bytes:
    out = io.BytesIO()
    table = pa.table({"n": [1, 2, 3], "text": ["a", "b", value], "gates": [["x"], [], [value]]})
    pq.write_table(table, out)
    return out.getvalue()


SECRET = b"second line\n" + HUB_TOKEN.encode()
SVG = b"<svg xmlns='http://www.w3.org/2000/svg'><text>" + HUB_TOKEN.encode() + b"</text></svg>"
CONTAINERS = {
    "zip": zip_of("inner/notes.txt", SECRET),
    "zip in zip": zip_of("inner.zip", zip_of("notes.txt", SECRET)),
    "name in a zip": zip_of(f"{HUB_TOKEN}.txt", b"nothing"),
    "gzip": gzip.compress(SECRET),
    "tar.gz": gzip.compress(tar_of("notes.txt", SECRET)),
    "png text": png_of(HUB_TOKEN.encode()),
    "parquet": parquet_of(HUB_TOKEN),
    "svg": SVG,
    "data uri": b'<img src="data:image/svg+xml;base64,' + base64.b64encode(SVG) + b'">',
    "png in a data uri": b"<img src='data:image/png;base64," + base64.b64encode(png_of(HUB_TOKEN.encode())) + b"'>",
    "url-encoded data uri": b'<img src="data:image/svg+xml,%3Ctext%3Ehf%5F' + HUB_TOKEN[3:].encode() + b'%3C/text%3E">',
    "html entities": b"<p>anna&#64;uni-somewhere.de</p>",
}


@pytest.mark.parametrize("data", CONTAINERS.values(), ids=CONTAINERS)
def test_containers_are_looked_into(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "thing.bin").write_bytes(data)
    result = leakscan.scan_paths([tmp_path], names=NOBODY)
    assert {hit.kind for hit in result.hits} <= {HitKind.TOKEN, HitKind.EMAIL}
    assert result.hits
    assert result.files == 1


def test_a_row_of_a_table_is_named() -> None:
    scanner = Scanner(names=NOBODY)
    scanner.scan_bytes("t.parquet", parquet_of(HUB_TOKEN))
    assert ("t.parquet[text]", 3) in {(hit.file, hit.line) for hit in scanner.result().hits}
    assert "t.parquet[gates]" in {hit.file for hit in scanner.result().hits}


@pytest.mark.parametrize("data", [b"PK\x03\x04 broken", gzip.compress(b"x" * 1000)[:20], b"PAR1 broken"])
def test_what_cannot_be_opened_is_a_hit_not_a_pass(data: bytes) -> None:
    scanner = Scanner(names=NOBODY)
    scanner.scan_bytes("x.bin", data)
    assert [hit.kind for hit in scanner.result().hits] == [HitKind.UNREADABLE]


def test_images_are_counted_as_without_text() -> None:
    scanner = Scanner(names=NOBODY)
    scanner.scan_bytes("x.jpg", b"\xff\xd8\xff\xe0" + bytes(range(256)))
    assert scanner.result().opaque == ("x.jpg",)


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.write_text(HUB_TOKEN)
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "link.txt").symlink_to(outside)
    assert leakscan.scan_paths([inside], names=NOBODY).files == 0


# --- allowances and counts ------------------------------------------------------------------------------------------


def test_an_allowance_covers_its_file_and_pattern_and_is_counted() -> None:
    allowance = Allowance(file="docs/*.md", pattern=r"^anna\.meier@", reason="the maintainer's public address")
    scanner = Scanner([allowance], NOBODY)
    address = "anna.meier@" + "uni-somewhere.de"
    for name in ("docs/a.md", "report.html"):
        scanner.scan_text(name, f"{address}\nother@" + "uni-somewhere.de")
    result = scanner.result()
    assert [(hit.file, hit.line) for hit in result.hits] == [("docs/a.md", 2), ("report.html", 1), ("report.html", 2)]
    assert result.allowed == {"the maintainer's public address": 1}


def test_counts_name_every_kind_and_a_clean_result_passes() -> None:
    scanner = Scanner(names=NOBODY)
    scanner.scan_text("a.md", "one\ntwo\n")
    scanner.scan_text("b.md", "three\n")
    result = scanner.result()
    assert (result.files, result.lines, result.bytes) == (2, 3, 14)
    assert set(result.by_kind) == {kind.value for kind in HitKind}
    assert sum(result.by_kind.values()) == 0
    require_clean(result)


def test_a_hit_stops(tmp_path: Path) -> None:
    scanner = Scanner(names=NOBODY)
    scanner.scan_text("a.md", HUB_TOKEN)
    with pytest.raises(LeakError, match=r"a\.md:1:1: token") as caught:
        require_clean(scanner.result())
    assert HUB_TOKEN not in str(caught.value)


def test_scan_gives_the_hits_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text(HUB_TOKEN)
    (tmp_path / "a.txt").write_text(f"\n{HUB_TOKEN}")
    assert [(Path(hit.file).name, hit.line) for hit in leakscan.scan([tmp_path])] == [("a.txt", 2), ("b.txt", 1)]


def test_the_command_passes_clean_files_and_refuses_missing_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.md").write_text("all is well\n")
    assert command.main([str(tmp_path / "a.md"), "--no-allowances", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == 1
    assert command.main([str(tmp_path / "none"), "--no-allowances"]) == 2
