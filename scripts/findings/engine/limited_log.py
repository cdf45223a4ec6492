"""The log of an engine: its beginning and its end in memory and on disk, the sha256 of everything between."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import deque
from pathlib import Path

LOG_HEAD_BYTES = 512 * 1024
LOG_TAIL_BYTES = 512 * 1024
LOG_NAME = "engine.log"


class LimitedLog:
    """The first and the last bytes of a stream, the sha256 and length of all of it; memory stays bounded.

    The head is written to the file as it comes; the tail when the stream ends.
    """

    def __init__(self, path: Path, head: int = LOG_HEAD_BYTES, tail: int = LOG_TAIL_BYTES) -> None:
        self._file = path.open("wb")
        self._head_limit, self._tail_limit = head, tail
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._hash = hashlib.sha256()
        self._lock = threading.Lock()
        self.total_bytes = 0

    def write(self, data: bytes) -> None:
        """Take the next bytes of the stream."""
        with self._lock:
            self._hash.update(data)
            self.total_bytes += len(data)
            room = self._head_limit - len(self._head)
            if room > 0:
                self._head += data[:room]
                with contextlib.suppress(OSError, ValueError):  # a full disk must not stop the engine's pipe
                    self._file.write(data[:room])
                    self._file.flush()
                data = data[room:]
            if data:
                self._tail.append(data)
                self._tail_bytes += len(data)
                while self._tail_bytes - len(self._tail[0]) >= self._tail_limit:
                    self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> str:
        """Head and tail as text, with a line that says how much is left out between them."""
        with self._lock:
            head, tail = bytes(self._head), b"".join(self._tail)[-self._tail_limit :]
            left_out = self.total_bytes - len(head) - len(tail)
        middle = f"\n[... {left_out} bytes left out ...]\n".encode() if left_out else b""
        return (head + middle + tail).decode("utf-8", "replace")

    def sha256(self) -> str:
        """sha256 of the whole stream so far, as hex."""
        with self._lock:
            return self._hash.hexdigest()

    def close(self) -> None:
        """Write the tail to the file and close it."""
        text = self.text()
        with contextlib.suppress(OSError, ValueError):
            self._file.seek(0)
            self._file.truncate()
            self._file.write(text.encode("utf-8", "replace"))
            self._file.close()
