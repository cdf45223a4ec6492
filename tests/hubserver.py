"""A hub of our own on 127.0.0.1 that speaks the API that huggingface_hub uses, and can misbehave on purpose.

Repositories are given as {repo: {file: bytes}}. Files named in `lfs` are redirected to storage on another origin
(localhost instead of 127.0.0.1), as the real hub does; the others are sent by the hub itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from urllib.parse import urlsplit

COMMIT = "1f" * 20
SIGNATURE = "Signature=SIGNEDADDRESS&X-Amz-Signature=SIGNEDADDRESS"


@dataclass
class Fault:
    """What goes wrong, how often (`times`, -1: always) and where.

    `at` is meta (HEAD of a file), file (its bytes), api, or index (a package's page).
    """

    kind: str
    at: str = "file"
    times: int = -1
    after: int = 0
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    then: Fault | None = None


@dataclass
class Seen:
    """One request: what a test asks afterwards."""

    method: str
    path: str
    headers: dict[str, str]


class HubServer:
    """Context manager: `url` is the endpoint, `fault` what goes wrong next, `seen` the requests so far."""

    def __init__(self, repositories: Mapping[str, Mapping[str, bytes]], lfs: frozenset[str] = frozenset()) -> None:
        self.repositories = repositories
        self.lfs = lfs
        self.fault: Fault | None = None
        self.seen: list[Seen] = []
        self.released = threading.Event()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> HubServer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def take_fault(self, at: str) -> Fault | None:
        """The fault for a request of that sort, counted down."""
        fault = self.fault
        if fault is None or fault.at != at or fault.times == 0:
            return None
        fault.times -= 1
        if fault.times == 0:
            self.fault = fault.then
        return fault

    def requests_for_bytes(self) -> list[Seen]:
        """GET requests for the content of files."""
        return [seen for seen in self.seen if seen.method == "GET" and not seen.path.startswith("/api/")]


def blob_id(data: bytes) -> str:
    """git's name of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _handler(hub: HubServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            pass

        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                super().handle()

        def do_HEAD(self) -> None:
            self._answer()

        def do_GET(self) -> None:
            self._answer()

        def _answer(self) -> None:
            hub.seen.append(Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}))
            path = urlsplit(self.path).path
            try:
                if match := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
                    self._api(match[1])
                elif match := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                    self._resolve(match[1], match[3])
                elif match := re.fullmatch(r"/storage/([^/]+/[^/]+)/(.+)", path):
                    self._bytes(hub.repositories[match[1]][match[2]])
                elif match := re.fullmatch(r"/simple/([^/]+)/", path):
                    self._index(match[1])
                elif match := re.fullmatch(r"/([^/]+/[^/]+)/releases/download/([^/]+)/(.+)", path):
                    self._bytes(hub.repositories[match[1]][match[3]])
                else:
                    self._send(404, {"Location": "/lost"} if path == "/lost" else {})
            except (BrokenPipeError, ConnectionResetError):
                self.close_connection = True

        def _send(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _common_fault(self, fault: Fault | None) -> bool:
            """Answer a fault that is the same for every sort of request."""
            if fault is None:
                return False
            if fault.kind == "status":
                self._send(fault.status, fault.headers, b"no")
            elif fault.kind == "loop":
                self._send(302, {"Location": self.path})
            elif fault.kind == "html":
                self._send(200, {"Content-Type": "text/html; charset=utf-8"}, b"<html>please log in to the wifi</html>")
            elif fault.kind == "hang":
                hub.released.wait(30)
                self.close_connection = True
            elif fault.kind == "close":
                self.close_connection = True
            else:
                return False
            return True

        def _api(self, repo: str) -> None:
            if self._common_fault(hub.take_fault("api")):
                return
            if repo not in hub.repositories:
                self._send(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
                return
            siblings = []
            for name, data in hub.repositories[repo].items():
                entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": blob_id(data)}
                if name in hub.lfs:
                    entry["lfs"] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
                siblings.append(entry)
            body = json.dumps({"id": repo, "sha": COMMIT, "siblings": siblings, "tags": []}).encode()
            self._send(200, {"Content-Type": "application/json"}, body)

        def _index(self, package: str) -> None:
            """The page of a package index; its files are the repository `packages/index`."""
            if self._common_fault(hub.take_fault("index")):
                return
            links = ""
            for name, data in hub.repositories["packages/index"].items():
                if name.split("-")[0] == package.replace("-", "_"):
                    digest = hashlib.sha256(data).hexdigest()
                    links += f'<a href="/packages/index/releases/download/1/{name}#sha256={digest}">{name}</a>'
            status = 200 if links else 404
            self._send(status, {"Content-Type": "text/html"}, f"<html><body>{links}</body></html>".encode())

        def _resolve(self, repo: str, name: str) -> None:
            if self.command == "HEAD" and self._common_fault(hub.take_fault("meta")):
                return
            data = hub.repositories.get(repo, {}).get(name)
            if repo not in hub.repositories:
                self._send(401, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "Repository not found"})
            elif data is None:
                self._send(404, {"X-Error-Code": "EntryNotFound", "X-Error-Message": "Entry not found"})
            elif name in hub.lfs:
                digest = hashlib.sha256(data).hexdigest()
                self._send(
                    302,
                    {
                        "Location": f"http://localhost:{hub.port}/storage/{repo}/{name}?{SIGNATURE}",
                        "X-Repo-Commit": COMMIT,
                        "X-Linked-ETag": f'"{digest}"',
                        "X-Linked-Size": str(len(data)),
                        "ETag": f'"{digest}"',
                    },
                )
            elif self.command == "HEAD":
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{blob_id(data)}"', "Content-Length": str(len(data))}
                self._send(200, headers)
            else:
                self._bytes(data, {"X-Repo-Commit": COMMIT})

        def _bytes(self, data: bytes, extra: Mapping[str, str] | None = None) -> None:
            fault = hub.take_fault("file")
            if self._common_fault(fault):
                return
            kind = fault.kind if fault else ""
            etag = f'"{hashlib.sha256(data).hexdigest()}"'
            headers = {
                "ETag": etag,
                "Accept-Ranges": "bytes",
                "Content-Type": "application/octet-stream",
                **(extra or {}),
            }
            if kind == "wrong_bytes":
                data = data[:-1] + bytes([data[-1] ^ 1])
            elif kind == "longer":
                data = data + b"more"
            elif kind == "shorter":
                data = data[:-4]
            start, end = 0, len(data)
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            if match and kind != "no_range" and self.headers.get("If-Range", etag) == etag:
                start = int(match[1]) + (1 if kind == "other_range" else 0)
                if start >= len(data) or kind == "no_such_range":
                    self._send(416, {"Content-Range": f"bytes */{len(data)}"})
                    return
                end = min(end, int(match[2]) + 1) if match[2] else end
                headers["Content-Range"] = f"bytes {start}-{end - 1}/{len(data)}"
            body = data[start:end]
            self.send_response(206 if "Content-Range" in headers and (start or (match and match[2])) else 200)
            lied = {"Transfer-Encoding": "chunked"} if kind == "endless" else {"Content-Length": str(len(body))}
            for name, value in {**headers, **lied}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "HEAD":
                return
            self._body(body, fault)

        def _body(self, body: bytes, fault: Fault | None) -> None:
            kind = fault.kind if fault else ""
            if kind == "endless":
                block = b"%x\r\n" % len(body) + body + b"\r\n"
                for _ in range(1000):
                    self.wfile.write(block)
            elif kind in ("cut", "stall", "drip"):
                self.wfile.write(body[: fault.after if fault else 0])
                self.wfile.flush()
                deadline = time.monotonic() + 30
                while kind == "drip" and time.monotonic() < deadline and not hub.released.wait(0.05):
                    self.wfile.write(b"x")
                    self.wfile.flush()
                if kind == "stall":
                    hub.released.wait(30)
                self.close_connection = True
                self.connection.shutdown(2)
            else:
                self.wfile.write(body)

    return Handler
