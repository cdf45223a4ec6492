"""The scan that stands before everything that is published: secrets, private addresses, names, and paths of a machine.

Known forms of tokens and keys come from detect-secrets; addresses, names, paths and e-mail addresses from the rules
here. Containers are opened (zip, gz, tar, Parquet, PNG text, data URIs in HTML and SVG). A hit says file, line, column
and kind, and never what was found. Hexadecimal digests are no secrets: nothing that publishes hashes could pass else.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import getpass
import html
import io
import ipaddress
import os
import re
import socket
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from detect_secrets.filters import heuristic
from detect_secrets.plugins.aws import AWSKeyDetector
from detect_secrets.plugins.azure_storage_key import AzureStorageKeyDetector
from detect_secrets.plugins.basic_auth import BasicAuthDetector
from detect_secrets.plugins.discord import DiscordBotTokenDetector
from detect_secrets.plugins.github_token import GitHubTokenDetector
from detect_secrets.plugins.gitlab_token import GitLabTokenDetector
from detect_secrets.plugins.high_entropy_strings import Base64HighEntropyString
from detect_secrets.plugins.jwt import JwtTokenDetector
from detect_secrets.plugins.keyword import KeywordDetector
from detect_secrets.plugins.mailchimp import MailchimpDetector
from detect_secrets.plugins.npm import NpmDetector
from detect_secrets.plugins.openai import OpenAIDetector
from detect_secrets.plugins.private_key import PrivateKeyDetector
from detect_secrets.plugins.pypi_token import PypiTokenDetector
from detect_secrets.plugins.sendgrid import SendGridDetector
from detect_secrets.plugins.slack import SlackDetector
from detect_secrets.plugins.square_oauth import SquareOAuthDetector
from detect_secrets.plugins.stripe import StripeDetector
from detect_secrets.plugins.telegram_token import TelegramBotTokenDetector
from detect_secrets.plugins.twilio import TwilioKeyDetector

from findings.config import Allowance

MAX_DEPTH = 4
MAX_INNER_BYTES = 2**30
MAX_MEMBERS = 200_000


class HitKind(StrEnum):
    """What was found."""

    TOKEN = "token"  # noqa: S105 - the word, not a token
    PRIVATE_KEY = "private_key"
    LOGIN = "login"
    SECRET = "secret"  # noqa: S105 - the word
    PRIVATE_ADDRESS = "private_address"
    MAC_ADDRESS = "mac_address"
    MACHINE_NAME = "machine_name"
    USER_NAME = "user_name"
    HOME_PATH = "home_path"
    LOCAL_PATH = "local_path"
    EMAIL = "email"
    PACKAGE_INDEX = "package_index"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, order=True)
class Hit:
    """One finding: where (line and column from 1; the row for a table) and what kind. It never holds what was found."""

    file: str
    line: int
    column: int
    kind: HitKind

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.kind}"


@dataclass(frozen=True)
class Names:
    """What belongs to this machine and user and must not be published, besides what patterns can tell.

    `secrets` are values of tokens that this process knows, so that they are found whatever their form.
    """

    machine: tuple[str, ...] = ()
    user: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class ScanResult:
    """Hits that no allowance covers, what was read, hits by kind (every kind, 0 included), allowed hits by reason, and
    files that hold nothing that can be read as text (images, fonts)."""

    hits: tuple[Hit, ...]
    files: int
    lines: int
    bytes: int
    by_kind: Mapping[str, int]
    allowed: Mapping[str, int]
    opaque: tuple[str, ...]


class LeakError(ValueError):
    """Something that must not be published was found; the message lists file, line and kind of each hit."""

    def __init__(self, hits: Sequence[Hit]) -> None:
        self.hits = tuple(hits)
        listed = "\n".join(f"  {hit}" for hit in self.hits[:50])
        more = f"\n  ... and {len(self.hits) - 50} more" if len(self.hits) > 50 else ""
        super().__init__(
            f"{len(self.hits)} places hold what must not be published; remove it at its origin, or list it under "
            f"`leakscan_allowances` in config/config.yaml with a reason:\n{listed}{more}"
        )


# --- names of this machine -----------------------------------------------------------------------------------------

# Names that say nothing about anybody: users of containers and runners, and what people call their only machine.
GENERIC_USERS = frozenset(
    """root user users runner admin administrator ubuntu debian fedora vagrant docker jovyan nobody app build builder ci
    github gitlab-runner jenkins snakemake conda codespace vscode test tester guest home main node python worker default
    public you name me""".split()  # noqa: SIM905 - fifty quoted words would be no better to read
)
GENERIC_MACHINES = frozenset(
    """localhost localdomain ubuntu debian fedora arch linux windows macbook desktop laptop server runner build builder
    host computer machine docker container node node01 master worker test home main default""".split()  # noqa: SIM905
)
_SECRET_VARIABLE = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY)$", re.I)


def names_here(project: Path | None = None) -> Names:
    """Names, paths and tokens of this machine and process; generic names are left out, they tell nothing."""
    machine = {socket.gethostname()}
    machine |= {name.split(".", 1)[0] for name in machine}
    people = {_user(), _full_name()}
    places = {str(Path.home()), str((project or Path()).resolve()), str(Path(tempfile.gettempdir()).resolve())}
    variables = {value for key, value in os.environ.items() if _SECRET_VARIABLE.search(key) and len(value) >= 8}
    return Names(
        machine=tuple(sorted(n for n in machine if len(n) >= 4 and n.lower() not in GENERIC_MACHINES)),
        user=tuple(sorted(n for n in people if len(n) >= 4 and n.lower() not in GENERIC_USERS)),
        # A place of one level (/root, /tmp, /work) is too common a word in a text to be anybody's.
        paths=tuple(sorted((p for p in places if p.count(os.sep) > 1), key=lambda p: (-len(p), p))),
        secrets=tuple(sorted(variables | _hub_token())),
    )


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return ""


def _full_name() -> str:
    """First and last name from the account, where it has both."""
    try:
        import pwd  # noqa: PLC0415 - POSIX only

        name = pwd.getpwuid(os.getuid()).pw_gecos.split(",")[0].strip()
    except (ImportError, KeyError):
        return ""
    return name if " " in name else ""


def _hub_token() -> set[str]:
    """The token that huggingface_hub would send, wherever it is kept."""
    from huggingface_hub import get_token  # noqa: PLC0415 - slow to import

    token = get_token()
    return {token} if token and len(token) >= 8 else set()


# --- rules for one line --------------------------------------------------------------------------------------------

_OCTET = r"(?:25[0-5]|2[0-4]\d|1?\d?\d)"
_IPV4 = re.compile(rf"(?<![\d.])(?<!==)(?<!\w-){_OCTET}(?:\.{_OCTET}){{3}}(?![\d]|\.\d)")
_IPV6 = re.compile(r"(?<![0-9A-Za-z:])(?:fe[89ab][0-9a-f]|f[cd][0-9a-f]{2}):[0-9a-f:]{2,40}(?![0-9A-Za-z])", re.I)
_PRIVATE = tuple(
    ipaddress.ip_network(n)
    for n in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "169.254.0.0/16",
        "100.64.0.0/10",
        "fc00::/7",
        "fe80::/10",
    )
)
_MAC = re.compile(
    r"(?<![0-9A-Za-z:-])(?:[0-9A-Fa-f]{2}([:-]))(?:[0-9A-Fa-f]{2}\1){4}[0-9A-Fa-f]{2}(?![0-9A-Za-z]|[:-][0-9A-Fa-f])"
)
_NO_MACHINE = re.compile(r"^(?:00[:-]){5}00$|^(?:ff[:-]){5}ff$", re.I)
_PLACEHOLDER = r"(?!(?:user|you|name|me|username)\b|[<$%{*.\[(])"
_HOME = re.compile(
    rf"(?<![\w.~-])(?:/home/|/Users/){_PLACEHOLDER}[^/\s\"'<>:;,|)]+"
    rf"|(?<![\w.~/-])/root(?=/[\w.])"
    rf"|(?<![A-Za-z0-9])[A-Za-z]:[\\/]{{1,4}}Users[\\/]{{1,4}}{_PLACEHOLDER}[^\\/\s\"'<>:;,|]+",
    re.I,
)
_DRIVE = re.compile(
    r"(?<![A-Za-z0-9])[A-Z]:\\{1,4}(?!Users\\)[A-Za-z0-9_$][\w $.-]{2,}"
    r"|(?<![\\\w])\\\\{1,2}[\w.-]{2,}\\{1,2}[\w$.-]{2,}"
)
_FILE_URI = re.compile(r"file:/{2,3}(?:[A-Za-z]:)?/?[\w.-]+/[\w.-]+")
_EMAIL = re.compile(r"(?<![\w.+%/-])[A-Za-z0-9][\w.+%-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,6}[A-Za-z]{2,18}(?![\w-])")
_NO_EMAIL = re.compile(
    r"^git@|@(?:[\w-]+\.)*example\.(?:com|org|net)$|\.(?:invalid|example|test|localhost|png|svg|jpe?g|gif|webp|js|css|py|json)$",
    re.I,
)
_INDEX = re.compile(r"https?://[^\s\"'<>]*/simple(?=[/\s\"'<>)]|$)", re.I)
_TOKENS = re.compile(
    r"(?<![A-Za-z0-9_])(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[\w-]{20,}"
    r"|sk-(?:proj-|ant-)?[A-Za-z0-9_-]{20,}|AKIA[0-9A-Z]{16}|xox[abprs]-[A-Za-z0-9-]{10,}|AIza[\w-]{35})"
    r"|(?i:\bauthorization[\"']?\s*[:=]\s*[\"']?(?:bearer|basic)\s+)(?!<|\$|\{)[\w.+/=-]{8,}"
    r"|(?i:[?&](?:token|access_token|sig|signature|x-amz-signature)=)(?!<|\$|\{)[\w.%+/=-]{8,}"
)
# Detectors of fixed forms. Left out: those whose pattern is a few capital letters and anything (Artifactory), and
# hexadecimal entropy, which is what every hash looks like.
_FORMS: tuple[tuple[Any, HitKind], ...] = (
    (AWSKeyDetector(), HitKind.TOKEN),
    (AzureStorageKeyDetector(), HitKind.TOKEN),
    (BasicAuthDetector(), HitKind.LOGIN),
    (DiscordBotTokenDetector(), HitKind.TOKEN),
    (GitHubTokenDetector(), HitKind.TOKEN),
    (GitLabTokenDetector(), HitKind.TOKEN),
    (JwtTokenDetector(), HitKind.TOKEN),
    (MailchimpDetector(), HitKind.TOKEN),
    (NpmDetector(), HitKind.TOKEN),
    (OpenAIDetector(), HitKind.TOKEN),
    (PrivateKeyDetector(), HitKind.PRIVATE_KEY),
    (PypiTokenDetector(), HitKind.TOKEN),
    (SendGridDetector(), HitKind.TOKEN),
    (SlackDetector(), HitKind.TOKEN),
    (SquareOAuthDetector(), HitKind.TOKEN),
    (StripeDetector(), HitKind.TOKEN),
    (TelegramBotTokenDetector(), HitKind.TOKEN),
    (TwilioKeyDetector(), HitKind.TOKEN),
)
_ENTROPY = Base64HighEntropyString(limit=4.5)
_KEYWORD = KeywordDetector()
_KEYWORD_HINT = re.compile(r"pass|pwd|secret|key|contrase", re.I)
_QUOTED = re.compile(r"([\"'])([A-Za-z0-9+/=_-]{24,200})\1")
_EMPTY_WORDS = re.compile(
    r"^[<$%{*\[]|^(?:none|null|true|false|\.\.\.|x+|\*+)$|(?:^|[_\W])(?:removed|redacted|example)(?:$|[_\W])", re.I
)


def _ipv4_hits(line: str) -> Iterator[tuple[int, str, HitKind]]:
    for pattern in (_IPV4, _IPV6):
        for found in pattern.finditer(line):
            try:
                address = ipaddress.ip_address(found[0])
            except ValueError:
                continue
            if any(address in network for network in _PRIVATE if network.version == address.version):
                yield found.start(), found[0], HitKind.PRIVATE_ADDRESS


def _form_hits(line: str) -> Iterator[tuple[int, str, HitKind]]:
    for detector, kind in _FORMS:
        for value in detector.analyze_string(line):
            if not _EMPTY_WORDS.search(value):
                yield max(line.find(value), 0), value, kind


def _secret_hits(line: str) -> Iterator[tuple[int, str, HitKind]]:
    """Values of passwords and keys by their name, and quoted strings that look random (never a hexadecimal one)."""
    if _KEYWORD_HINT.search(line):
        for value in _KEYWORD.analyze_string(line):
            plain = len(set(value)) < 5 or not any(c.isdigit() for c in value)
            if not plain and len(value) >= 8 and not _EMPTY_WORDS.search(value) and not _is_digest(value):
                yield max(line.find(value), 0), value, HitKind.SECRET
    for found in _QUOTED.finditer(line):
        value = found[2]
        classes = (any(c.islower() for c in value), any(c.isupper() for c in value), any(c.isdigit() for c in value))
        if all(classes) and _ENTROPY.calculate_shannon_entropy(value) > 4.5 and not _is_path(value):
            yield found.start(2), value, HitKind.SECRET


def _is_digest(value: str) -> bool:
    """A hash in hexadecimal, or as a content security policy writes it."""
    return re.fullmatch(r"[0-9a-f]{7,128}|sha(?:256|384|512)-[A-Za-z0-9+/]{43,86}={0,2}", value) is not None


def _is_path(value: str) -> bool:
    """Words joined by slashes, hyphens or underscores: a path or an identifier, nothing random."""
    if heuristic.is_potential_uuid(value) or _is_digest(value):
        return True
    words = [word for word in re.split(r"[/_=+-]+", value) if word]
    return len(words) > 2 and max(map(len, words)) <= 14


_PATTERNS: tuple[tuple[re.Pattern[str], HitKind, str], ...] = (
    (_TOKENS, HitKind.TOKEN, ""),
    (_HOME, HitKind.HOME_PATH, ""),
    (_DRIVE, HitKind.LOCAL_PATH, "\\"),
    (_FILE_URI, HitKind.LOCAL_PATH, "file:"),
    (_EMAIL, HitKind.EMAIL, "@"),
    (_MAC, HitKind.MAC_ADDRESS, ""),
    (_INDEX, HitKind.PACKAGE_INDEX, "/simple"),
)


@cache
def _name_pattern(names: tuple[str, ...]) -> re.Pattern[str] | None:
    """The names as whole words; None where there are none."""
    if not names:
        return None
    words = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![A-Za-z0-9_])(?:{words})(?![A-Za-z0-9_])")


def _line_hits(line: str, names: Names) -> Iterator[tuple[int, str, HitKind]]:
    """(column from 0, what was found, kind) of every hit in one line."""
    if line.strip(" \t,").isdigit():
        return  # a record holds each token id on a line of its own
    for secret in names.secrets:
        if secret in line:
            yield line.index(secret), secret, HitKind.TOKEN
    for place in names.paths:
        if place in line:
            yield line.index(place), place, HitKind.LOCAL_PATH
    for listed, kind in ((names.machine, HitKind.MACHINE_NAME), (names.user, HitKind.USER_NAME)):
        pattern = _name_pattern(listed)
        for found in pattern.finditer(line) if pattern else ():
            yield found.start(), found[0], kind
    for pattern, kind, hint in _PATTERNS:
        if hint in line:
            for found in pattern.finditer(line):
                if not (kind is HitKind.EMAIL and _NO_EMAIL.search(found[0])) and not (
                    kind is HitKind.MAC_ADDRESS and _NO_MACHINE.match(found[0])
                ):
                    yield found.start(), found[0], kind
    yield from _ipv4_hits(line)
    yield from _form_hits(line)
    yield from _secret_hits(line)


# --- files ---------------------------------------------------------------------------------------------------------

_DATA_URI = re.compile(r"data:[\w.+/-]*(?:;[\w=.+-]+)*;base64,([A-Za-z0-9+/=\s]{16,}?)(?=[\"')\s<]|$)")
_PLAIN_URI = re.compile(r"data:[\w.+/-]*(?:;[\w=.+-]+)*,([^\"'\s)]{4,})")
_IMAGES = (b"\xff\xd8\xff", b"GIF8", b"RIFF", b"wOFF", b"wOF2", b"OTTO", b"\x00\x01\x00\x00", b"%PDF")
_PNG = b"\x89PNG\r\n\x1a\n"


class Scanner:
    """Collects hits and counts over any number of files and texts."""

    def __init__(self, allowances: Iterable[Allowance] = (), names: Names | None = None) -> None:
        self._allowances = tuple((a, re.compile(a.pattern)) for a in allowances)
        self._names = names if names is not None else names_here()
        self._hits: set[Hit] = set()
        self._allowed: Counter[str] = Counter()
        self._opaque: list[str] = []
        self.files = self.lines = self.bytes = 0

    def result(self) -> ScanResult:
        """What was found so far; hits in the order of files and lines."""
        kinds = Counter(hit.kind.value for hit in self._hits)
        return ScanResult(
            tuple(sorted(self._hits)),
            self.files,
            self.lines,
            self.bytes,
            {kind.value: kinds[kind.value] for kind in HitKind},
            dict(sorted(self._allowed.items())),
            tuple(self._opaque),
        )

    def scan_path(self, path: Path, shown_as: str = "") -> None:
        """A file, or all files of a folder in order; links are not followed. Raises OSError."""
        label = shown_as or path.as_posix()
        if path.is_dir():
            for child in sorted(path.iterdir()):
                self.scan_path(child, f"{label}/{child.name}")
        elif not path.is_symlink():
            self.scan_bytes(label, path.read_bytes())

    def scan_text(self, label: str, text: str) -> None:
        """A text that may not be on disk yet, counted as one file."""
        self.scan_bytes(label, text.encode("utf-8", "surrogateescape"))

    def scan_bytes(self, label: str, data: bytes) -> None:
        """The content of one file."""
        self.files += 1
        self.bytes += len(data)
        self._open(label, data, 0)

    def _open(self, label: str, data: bytes, depth: int) -> None:
        """Whatever `data` is, by its first bytes; containers are opened down to MAX_DEPTH."""
        try:
            if depth > MAX_DEPTH or len(data) > MAX_INNER_BYTES:
                self._add(label, 1, 0, "", HitKind.UNREADABLE)
            elif data.startswith(b"PK\x03\x04"):
                self._zip(label, data, depth)
            elif data.startswith(b"\x1f\x8b"):
                self._open(f"{label}!gz", _inflate(data, 31), depth + 1)
            elif data.startswith(b"PAR1"):
                self._parquet(label, data)
            elif data[257:262] == b"ustar":
                self._tar(label, data, depth)
            elif data.startswith(_PNG):
                self._opaque.append(label)
                for text in _png_texts(data):
                    self._text(f"{label}!text", text, depth)
            elif data.startswith(_IMAGES) or b"\0" in data[:4096]:
                self._opaque.append(label)
            else:
                self._text(label, data.decode("utf-8", "replace"), depth)
        except (ValueError, OSError, EOFError, zlib.error, zipfile.BadZipFile, tarfile.TarError, struct.error):
            self._add(label, 1, 0, "", HitKind.UNREADABLE)

    def _zip(self, label: str, data: bytes, depth: int) -> None:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if len(entries) > MAX_MEMBERS or sum(entry.file_size for entry in entries) > MAX_INNER_BYTES:
                raise ValueError("too large to be looked through")
            for entry in entries:
                self._text(label, entry.filename, depth)
                if not entry.is_dir():
                    self._open(f"{label}!{entry.filename}", archive.read(entry), depth + 1)

    def _tar(self, label: str, data: bytes, depth: int) -> None:
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            for member in archive:
                self._text(label, f"{member.name} {member.uname}", depth)
                stream = archive.extractfile(member) if member.isfile() else None
                if stream is not None:
                    self._open(f"{label}!{member.name}", stream.read(), depth + 1)

    def _parquet(self, label: str, data: bytes) -> None:
        """Every distinct text of every column; the line is the first row that holds it."""
        table = pq.read_table(io.BytesIO(data))
        for key, value in (table.schema.metadata or {}).items():
            self._text(label, f"{key.decode('utf-8', 'replace')}={value.decode('utf-8', 'replace')}", MAX_DEPTH)
        for name, column in zip(table.column_names, table.columns, strict=True):
            values = column
            if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
                values = pc.list_flatten(values)
            if pa.types.is_dictionary(values.type):
                values = values.cast(values.type.value_type)
            if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
                continue
            for value in pc.unique(values).to_pylist():
                if value and self._holds_hit(value):
                    row = pc.index(values, pa.scalar(value, values.type)).as_py() + 1
                    self._text(f"{label}[{name}]", value, MAX_DEPTH, first_line=row)
                self.lines += 1

    def _holds_hit(self, value: str) -> bool:
        return any(True for line in value.splitlines() for _ in _line_hits(line, self._names))

    def _text(self, label: str, text: str, depth: int, first_line: int = 1) -> None:
        """Lines of a text; data URIs are taken out and looked into on their own."""
        for number, line in enumerate(text.splitlines(), start=first_line):
            self.lines += 1
            plain = line
            if "data:" in line:
                for found in _DATA_URI.finditer(line):
                    self._data_uri(label, number, found[1], depth)
                plain = _DATA_URI.sub("data:,", line)
                for uri in _PLAIN_URI.findall(plain):
                    self._line(label, number, unquote(uri))
            self._line(label, number, plain)
            if "&" in plain and (decoded := html.unescape(plain)) != plain:
                self._line(label, number, decoded)

    def _data_uri(self, label: str, number: int, encoded: str, depth: int) -> None:
        try:
            self._open(f"{label}:{number}!data", base64.b64decode(encoded), depth + 1)
        except (binascii.Error, ValueError):
            self._add(label, number, 0, "", HitKind.UNREADABLE)

    def _line(self, label: str, number: int, line: str) -> None:
        for column, value, kind in _line_hits(line, self._names):
            self._add(label, number, column, value, kind)

    def _add(self, label: str, line: int, column: int, value: str, kind: HitKind) -> None:
        for allowance, pattern in self._allowances:
            if fnmatch.fnmatch(label.split("!", 1)[0].split("[", 1)[0], allowance.file) and pattern.search(value):
                self._allowed[allowance.reason] += 1
                return
        self._hits.add(Hit(label, line, column + 1, kind))


def _inflate(data: bytes, window: int) -> bytes:
    """Decompress all members with a bound; ValueError beyond it, and where the data are cut off."""
    content = b""
    while data:
        engine = zlib.decompressobj(window)
        content += engine.decompress(data, max(MAX_INNER_BYTES - len(content), 1))
        if not engine.eof:
            raise ValueError("cut off, or too large to be looked through")
        data = engine.unused_data
    return content


def _png_texts(data: bytes) -> Iterator[str]:
    """Texts in a PNG: tEXt, zTXt, iTXt and eXIf chunks."""
    place = len(_PNG)
    while place + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[place : place + 8])
        body = data[place + 8 : place + 8 + length]
        if kind == b"zTXt":
            key, _, packed = body.partition(b"\0")
            yield f"{key.decode('latin-1')} {_inflate(packed[1:], 15).decode('latin-1')}"
        elif kind in (b"tEXt", b"iTXt", b"eXIf"):
            yield body.replace(b"\0", b" ").decode("utf-8", "replace")
        place += 12 + length


def scan_paths(paths: Iterable[Path], allowances: Iterable[Allowance] = (), names: Names | None = None) -> ScanResult:
    """Scan files and folders (see ScanResult). Raises OSError for a path that cannot be read."""
    scanner = Scanner(allowances, names)
    for path in paths:
        scanner.scan_path(path)
    return scanner.result()


def scan(paths: Iterable[Path], allowances: Iterable[Allowance] = ()) -> list[Hit]:
    """The hits alone, in the order of files and lines."""
    return list(scan_paths(paths, allowances).hits)


def require_clean(result: ScanResult) -> None:
    """Raises LeakError where the scan has hits."""
    if result.hits:
        raise LeakError(result.hits)
