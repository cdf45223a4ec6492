"""One file over HTTP: resumed where that is safe, verified while it is written, bounded in time, retries and size.

A partial file is continued only because the whole is hashed at the end; a wrong hash deletes it. The server is asked
for an unchanged file (If-Range) where it gave a strong entity tag. Limits of waiting are in `Patience`.
"""

from __future__ import annotations

import email.utils
import hashlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import httpx2

from findings.cache import MIB, CacheError, explain_os_error, require_space, say
from findings.records import write_text

CHUNK_BYTES = 256 * 1024
PROGRESS_EVERY_S = 3.0
# Fetching something whose size nobody tells ends here; nothing that this project uses is larger.
UNKNOWN_SIZE_LIMIT_BYTES = 64 * 1024 * MIB
TRANSIENT = {"no_network", "timed_out", "server_error", "rate_limited", "cut", "disk_full", "read_only", "busy"}
CONTENT_RANGE = re.compile(r"^bytes (\d+)-(\d+)/(\d+|\*)$")


class FetchError(Exception):
    """A file that could not be fetched from one place.

    `cause` is a word for tables: no_network, timed_out, unauthorized, gated, not_found, rate_limited, server_error,
    cut, wrong_hash, wrong_size, not_the_file, redirect_loop, disk_full, read_only, busy, offline, bad_archive, refused.
    `wait_s` is what the server asked to wait, if it did.
    """

    def __init__(self, cause: str, message: str, wait_s: float | None = None) -> None:
        self.cause = cause
        self.wait_s = wait_s
        super().__init__(message)


class _RetryError(FetchError):
    """A failure after which the same request may succeed; `wait_s` is what the server asked for."""


@dataclass(frozen=True)
class Patience:
    """Limits in seconds, and how many tries in a row may bring next to nothing (fewer than `stall_bytes`)."""

    connect_s: float = 15.0
    read_s: float = 30.0
    idle_tries: int = 4
    all_tries: int = 40
    first_wait_s: float = 1.0
    longest_wait_s: float = 30.0
    stall_window_s: float = 60.0
    stall_bytes: int = 64 * 1024

    @property
    def timeout(self) -> httpx2.Timeout:
        """The client's limits for one step of a request."""
        return httpx2.Timeout(self.read_s, connect=self.connect_s)


@dataclass(frozen=True)
class Request:
    """What to fetch: address, headers, what the bytes must be, the name for progress lines.

    Without a sha256 a partial file of an earlier process is never continued.
    """

    url: str
    label: str
    sha256: str | None = None
    size_bytes: int | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


class Progress:
    """Lines `120.4 of 241.4 MiB, 12.1 MiB/s, 10 s left`, every few seconds and at the end."""

    def __init__(self, label: str, total: int | None, done: int = 0) -> None:
        self.label, self.total, self.done = label, total, done
        self._first, self._start = done, time.monotonic()
        self._last = self._start

    def add(self, count: int) -> None:
        """Count bytes; says so when it is time."""
        self.done += count
        if time.monotonic() - self._last >= PROGRESS_EVERY_S:
            self._last = time.monotonic()
            say(self.label, self.line())

    def line(self) -> str:
        """The line for now."""
        seconds = max(time.monotonic() - self._start, 1e-6)
        speed = max(self.done - self._first, 0) / seconds
        size = (
            f"{self.done / MIB:.1f} MiB" if not self.total else f"{self.done / MIB:.1f} of {self.total / MIB:.1f} MiB"
        )
        left = f", {(self.total - self.done) / speed:.0f} s left" if self.total and speed > 0 else ""
        return f"{size}, {speed / MIB:.1f} MiB/s{left}"


def fetch_file(client: httpx2.Client, request: Request, part: Path, patience: Patience | None = None) -> str:
    """Fetch `request` into `part`; the sha256 of the whole file.

    An existing `part` is continued where that is safe. On failure a part that can be continued stays; any other is
    deleted. Raises FetchError.
    """
    transfer = _Transfer(client, request, part, patience or Patience())
    try:
        return transfer.run()
    except OSError as error:
        mapped = explain_os_error(error, "the cache folder")
        if mapped is None:
            raise
        # Give the space back: a full disk hurts everything else on the machine.
        transfer.forget()
        raise FetchError(mapped.cause, str(mapped)) from None
    except CacheError as error:
        raise FetchError(error.cause, str(error)) from None


class _Transfer:
    """One `fetch_file`: the part on disk and the hash of what is in it, always in step."""

    def __init__(self, client: httpx2.Client, request: Request, part: Path, patience: Patience) -> None:
        self.client, self.request, self.part, self.patience = client, request, part, patience
        self.state_path = part.with_name(part.name + ".state")
        self.size = 0
        self.digest = hashlib.sha256()
        self.continued = False
        self.progress = Progress(request.label, request.size_bytes)

    def run(self) -> str:
        """Fetch until whole. Raises FetchError, OSError, CacheError."""
        self.part.parent.mkdir(parents=True, exist_ok=True)
        self._take_up()
        idle = tries = 0
        while True:
            before = self.size
            try:
                if self.size == 0 or self.size != self.request.size_bytes:
                    self._one_response()
                return self._finish()
            except _RetryError as error:
                tries += 1
                idle = 0 if self.size - before >= self.patience.stall_bytes else idle + 1
                if idle >= self.patience.idle_tries or tries >= self.patience.all_tries:
                    raise FetchError(error.cause, str(error)) from None
                _wait(error, idle, self.patience, self.request.label)
            except FetchError as error:
                # A refusal (an address that expired, a login page) says nothing against the bytes that are here.
                if error.cause in ("wrong_hash", "wrong_size"):
                    self.forget()
                if error.cause != "wrong_hash" or not self.continued:
                    raise
                # The bytes of an earlier run may have been the bad ones: once more, from the start.
                self.continued = False
                say(self.request.label, "the continued file has a wrong sha256; fetching it again from the start")

    def forget(self) -> None:
        """Delete the part."""
        self.part.unlink(missing_ok=True)
        self.state_path.unlink(missing_ok=True)
        self._restart()

    def _restart(self) -> None:
        self.size, self.digest, self.progress = (
            0,
            hashlib.sha256(),
            Progress(self.request.label, self.request.size_bytes),
        )

    def _take_up(self) -> None:
        """Continue the part of an earlier run where the whole can be verified; delete it where not."""
        if not self.part.exists():
            return
        size = self.part.stat().st_size
        too_long = self.request.size_bytes is not None and size > self.request.size_bytes
        if self.request.sha256 is None or too_long or size == 0:
            self.forget()
            return
        with self.part.open("rb") as stream:
            while block := stream.read(CHUNK_BYTES):
                self.digest.update(block)
                self.size += len(block)
        self.continued = True
        self.progress = Progress(self.request.label, self.request.size_bytes, self.size)
        say(self.request.label, f"continuing at {self.size / MIB:.1f} MiB")

    def _finish(self) -> str:
        """The sha256 of the whole. Raises FetchError (wrong_hash) where it is not the expected one."""
        found = self.digest.hexdigest()
        if self.request.sha256 is not None and found != self.request.sha256:
            raise FetchError(
                "wrong_hash", f"the file has sha256 {found}, {self.request.sha256} is expected; it was deleted"
            )
        self.state_path.unlink(missing_ok=True)
        say(self.request.label, f"fetched and verified, {self.progress.line()}")
        return found

    def _entity_tag(self) -> str:
        """The strong entity tag that the part's first bytes came with, or ""."""
        try:
            return str(json.loads(self.state_path.read_text(encoding="utf-8"))["etag"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def _headers(self) -> dict[str, str]:
        headers = {**self.request.headers, "Accept-Encoding": "identity"}
        if self.size:
            headers["Range"] = f"bytes={self.size}-"
            if etag := self._entity_tag():
                headers["If-Range"] = etag
        return headers

    def _one_response(self) -> None:
        try:
            with self.client.stream(
                "GET", self.request.url, headers=self._headers(), follow_redirects=True, timeout=self.patience.timeout
            ) as response:
                self._check_status(response)
                _check_content(response, self.request)
                self._write(response)
        except httpx2.TooManyRedirects:
            raise FetchError("redirect_loop", "the server redirects in a circle") from None
        except httpx2.TimeoutException as error:
            raise _RetryError("timed_out", f"no answer within the time limit ({type(error).__name__})") from None
        except (httpx2.RemoteProtocolError, httpx2.ReadError):
            raise _RetryError("cut", "the connection was cut") from None
        except (httpx2.ConnectError, httpx2.ProxyError) as error:
            raise _RetryError("no_network", f"no connection ({short(error)})") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, httpx2.StreamError) as error:
            raise FetchError("refused", f"the request failed ({type(error).__name__})") from None

    def _check_status(self, response: httpx2.Response) -> None:
        status = response.status_code
        if status == 206:
            match = CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
            if self.size == 0 or match is None or int(match[1]) != self.size:
                self.forget()
                raise _RetryError("cut", "the server answered with another range than asked for")
        elif status == 416 and self.size:
            self.forget()
            raise _RetryError("cut", "the server has no bytes after the part fetched earlier (416)")
        elif status != 200:
            raise status_error(status, response.headers.get("Retry-After", ""))

    def _write(self, response: httpx2.Response) -> None:
        append = response.status_code == 206
        if not append:
            self._restart()
            length = response.headers.get("Content-Length", "")
            require_space(self.part.parent, self.request.size_bytes or (int(length) if length.isdigit() else 0))
            etag = response.headers.get("ETag", "")
            write_text(self.state_path, json.dumps({"etag": "" if etag.startswith("W/") else etag}) + "\n")
        limit = UNKNOWN_SIZE_LIMIT_BYTES if self.request.size_bytes is None else self.request.size_bytes
        stall = _Stall(self.patience)
        with self.part.open("ab" if append else "wb") as stream:
            for chunk in response.iter_bytes():
                if self.size + len(chunk) > limit:
                    raise FetchError("wrong_size", f"the server sends more than the {limit} bytes that are expected")
                stream.write(chunk)
                self.digest.update(chunk)
                self.size += len(chunk)
                self.progress.add(len(chunk))
                stall.add(len(chunk))
        if self.request.size_bytes is not None and self.size < self.request.size_bytes:
            raise _RetryError("cut", f"the connection ended after {self.size} of {self.request.size_bytes} bytes")


class _Stall:
    """Ends a transfer that drips: a read limit alone is reset by every single byte."""

    def __init__(self, patience: Patience) -> None:
        self.patience = patience
        self.start, self.count = time.monotonic(), 0

    def add(self, count: int) -> None:
        """Count bytes. Raises _RetryError (timed_out) after a window with next to none."""
        self.count += count
        if time.monotonic() - self.start > self.patience.stall_window_s:
            if self.count < self.patience.stall_bytes:
                raise _RetryError("timed_out", "the server sends next to nothing")
            self.start, self.count = time.monotonic(), 0


def short(error: BaseException) -> str:
    """An error's own words in one short line, without addresses (they can hold signatures)."""
    text = re.sub(r"\w+://\S+", "<address>", " ".join(str(error).split()))
    return text[:160] or type(error).__name__


def status_error(status: int, retry_after: str = "") -> FetchError:
    """The failure that an HTTP status other than 200 and 206 stands for."""
    if status == 401:
        return FetchError("unauthorized", "the server wants a login (401)")
    if status == 403:
        return FetchError("unauthorized", "the server forbids access (403)")
    if status in (404, 410):
        return FetchError("not_found", f"the server has no such file ({status})")
    if status == 429:
        return _RetryError("rate_limited", "the server says: too many requests (429)", _seconds(retry_after))
    if status == 408 or status >= 500:
        return _RetryError("server_error", f"the server failed ({status})", _seconds(retry_after))
    return FetchError("refused", f"the server answered {status}")


def _seconds(retry_after: str) -> float | None:
    """Seconds that a Retry-After header asks to wait (a number or a date), None where it says nothing."""
    if retry_after.strip().isdigit():
        return float(retry_after)
    try:
        moment = email.utils.parsedate_to_datetime(retry_after)
    except (ValueError, TypeError):
        return None
    return max(0.0, (moment - datetime.now(UTC)).total_seconds()) if moment.tzinfo else None


def _wait(error: _RetryError, idle: int, patience: Patience, label: str) -> None:
    """Sleep before the next try. Raises FetchError where the server asks for more patience than there is."""
    wait = min(patience.first_wait_s * 2 ** max(idle - 1, 0), patience.longest_wait_s)
    if error.wait_s is not None:
        if error.wait_s > patience.longest_wait_s:
            raise FetchError(error.cause, f"{error}; it asks to wait {error.wait_s:.0f} s: try again later")
        wait = max(error.wait_s, patience.first_wait_s)
    say(label, f"{error}; trying again in {wait:.0f} s")
    time.sleep(wait)


def _check_content(response: httpx2.Response, request: Request) -> None:
    """Refuse at the header what cannot be the file: a web page of a captive portal, another length."""
    encoded = response.headers.get("Content-Encoding", "identity") not in ("", "identity")
    length = response.headers.get("Content-Length", "")
    total = int(length) if length.isdigit() and response.status_code == 200 and not encoded else None
    match = CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if response.status_code == 206 and match and match[3] != "*":
        total = int(match[3])
    same_size = total is not None and total == request.size_bytes
    page = response.headers.get("Content-Type", "").split(";")[0].strip().lower() == "text/html"
    if page and not same_size:
        raise FetchError(
            "not_the_file",
            "the server answered with a web page instead of the file (a login page of the network, perhaps)",
        )
    if total is not None and request.size_bytes is not None and not same_size:
        raise FetchError("wrong_size", f"the server offers {total} bytes, {request.size_bytes} are expected")
