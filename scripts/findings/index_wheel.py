"""Reads single members of a wheel on the package index, without fetching the whole: a CUDA build of torch has 800 MB.

The index is asked for ranges of bytes; the zip's directory lies at its end. The index's own hash of the wheel cannot be
checked that way, so whoever reads a member pins the member.
"""

from __future__ import annotations

import contextlib
import io
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx2

from findings.download import CONTENT_RANGE, FetchError, status_error
from findings.mirrors import find_file, index_failures, package_finder

BUFFER_BYTES = 1024 * 1024
MOST_BYTES = 128 * BUFFER_BYTES
"""What may be read of one wheel; the members of interest have about 10 MB."""


@dataclass(frozen=True)
class IndexWheel:
    """An opened wheel; `stated_sha256` is what the index says of the whole file ("" where it says nothing)."""

    name: str
    zip: zipfile.ZipFile
    size_bytes: int
    stated_sha256: str


class RangeFile(io.RawIOBase):
    """A file on a server that answers requests for ranges, read as a seekable stream. Raises FetchError."""

    def __init__(self, client: httpx2.Client, url: str) -> None:
        self._client, self._url = client, url
        self._position = 0
        self.bytes_read = 0
        _, self.size = self._get(0, 0)

    def _get(self, first: int, last: int) -> tuple[bytes, int]:
        """The bytes `first` to `last`, both included, and the size of the whole."""
        # Streamed, since a server that ignores the range would send everything.
        asked = {"Range": f"bytes={first}-{last}"}
        with index_failures(), self._client.stream("GET", self._url, headers=asked) as response:
            if response.status_code not in (200, 206):
                raise status_error(response.status_code)
            span = CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
            if response.status_code == 200 or span is None or int(span[1]) != first or span[3] == "*":
                raise FetchError("refused", "the package index does not answer requests for a part of a file")
            return response.read(), int(span[3])

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """Position in bytes."""
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """As of any stream."""
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = max(0, start + offset)
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read up to the buffer's length; 0 at the end."""
        wanted = min(len(buffer), self.size - self._position)
        if wanted <= 0:
            return 0
        if self.bytes_read + wanted > MOST_BYTES:
            raise FetchError("refused", f"more than {MOST_BYTES >> 20} MiB of the wheel would have to be read")
        data, _ = self._get(self._position, self._position + wanted - 1)
        if len(data) != wanted:
            raise FetchError("cut", f"the package index sent {len(data)} of {wanted} bytes")
        buffer[:wanted] = data
        self._position += wanted
        self.bytes_read += wanted
        return wanted


@contextlib.contextmanager
def opened_wheel(package: str, name: re.Pattern[str], absent: str) -> Iterator[IndexWheel]:
    """The wheel whose file name matches, where pip would find it, on disk or on an index.

    Raises FetchError: not_found, no_network, refused (no ranges), not_the_file (no zip) ...
    """
    with package_finder() as finder:
        link = find_file(finder, package, name, absent)
        stated = ((link.hash_option or {}).get("sha256") or [""])[0]
        try:
            if link.is_file:
                with zipfile.ZipFile(link.file_path) as opened:
                    yield IndexWheel(link.filename, opened, link.file_path.stat().st_size, stated)
                return
            remote = RangeFile(finder.session, link.url_without_fragment)
            with zipfile.ZipFile(io.BufferedReader(remote, BUFFER_BYTES)) as opened:
                yield IndexWheel(link.filename, opened, remote.size, stated)
        except zipfile.BadZipFile as error:
            raise FetchError("not_the_file", f"{link.filename}: not a readable wheel ({error})") from None
