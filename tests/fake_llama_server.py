"""A llama-server that misbehaves on request: `--mode NAME`. Only for what a real engine cannot be made to do.

It listens on --host and --port as the real one does; `/health` says ok unless the mode is about health.
"""

import contextlib
import os
import signal
import socket
import sys
import threading
import time

OK = b'{"status":"ok"}'
ANSWER = (
    b'{"content":"x","tokens":[1,2],"stop_type":"limit","timings":{"prompt_n":1,"prompt_ms":1.0,"predicted_n":2,'
    b'"predicted_ms":2.0}}'
)


def value(flag: str) -> str:
    return sys.argv[sys.argv.index(flag) + 1]


def http(body: bytes, status: str = "200 OK", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def answer(mode: str, connection: socket.socket) -> None:
    request = b""
    while b"\r\n\r\n" not in request:
        piece = connection.recv(65536)
        if not piece:
            return
        request += piece
    if request.startswith(b"GET /health"):
        if mode == "hang-health":
            time.sleep(600)
        busy = mode == "loading"
        connection.sendall(http(b'{"error":{"message":"Loading model"}}', "503 Busy") if busy else http(OK))
        return
    if not request.startswith(b"POST"):
        connection.sendall(http(b"[]" if b"/slots" in request else b"{}"))
    elif mode == "hang":
        time.sleep(600)
    elif mode == "dribble":
        connection.sendall(http(b"", length=10**6))
        while True:
            connection.sendall(b" ")
            time.sleep(0.1)
    elif mode == "garbage":
        connection.sendall(http(b"\x00\xff<html>not JSON"))
    elif mode == "not-http":
        connection.sendall(b"\x16\x03\x01 nothing like HTTP\r\n\r\n")
    elif mode == "error-500":
        connection.sendall(http(b'{"error":{"code":500,"message":"context size exceeded"}}', "500 Internal"))
    elif mode == "half":
        connection.sendall(http(ANSWER[:40], length=len(ANSWER)))
    elif mode == "endless":
        connection.sendall(http(b"", length=10**11))
        while True:
            connection.sendall(b"a" * 65536)
    elif mode == "nonsense-numbers":
        connection.sendall(http(ANSWER.replace(b'"predicted_n":2', b'"predicted_n":-2')))
    elif mode != "close":
        connection.sendall(http(ANSWER))


def main() -> int:
    mode = value("--mode")
    if mode == "exit":
        print("error loading model: unknown model architecture: 'made-up'", file=sys.stderr)
        return 1
    if mode == "crash":
        os.kill(os.getpid(), signal.SIGILL)
    if mode in ("log", "log-exit"):
        line = b"a log line that says nothing at all, over and over again\n"
        sys.stderr.buffer.write(b"FIRST LINE\n" + line * 600_000 + b"LAST LINE\n")
        sys.stderr.flush()
    if mode == "log-exit":
        print("error: unknown model architecture: 'made-up'", file=sys.stderr)
        return 1
    if mode == "grow":
        held = []
        while True:
            held.append(bytearray(os.urandom(1)) * (8 * 2**20))
            time.sleep(0.01)
    if mode == "no-listen":
        time.sleep(600)
    if mode == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if mode == "child" and os.fork() == 0:
        time.sleep(600)
    server = socket.socket()
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((value("--host"), int(value("--port"))))
    except OSError:
        print(f"couldn't bind HTTP server socket, port: {value('--port')}", file=sys.stderr, flush=True)
        return 1
    server.listen(16)
    while True:
        connection, _ = server.accept()

        def serve(one: socket.socket = connection) -> None:
            with one, contextlib.suppress(OSError):
                answer(mode, one)

        threading.Thread(target=serve, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
