"""Runs POSIX sh scripts on another machine through the system's own ssh.

What is needed there: sshd, a POSIX sh, the usual Linux tools (the list in begin.sh) and a folder; no Python. A script
is sent over standard input, so that the command line there (which every user of that machine can read) holds neither a
value nor a key, and the login shell, whichever it is, reads one fixed word. Every value in a script is quoted.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from findings.config import RemoteHost
from findings.engine.failure import EngineFailure
from findings.engine.probe import engine_environment
from findings.interrupted import with_us
from findings.records import Outcome

SSH_CONFIG_VARIABLE = "FINDINGS_SSH_CONFIG"
SCRIPTS = Path(__file__).parent
CONNECT_TIMEOUT_S = 15
ANSWER_TIMEOUT_S = 120.0
OUTPUT_LIMIT = 4 * 2**20
DESTINATION = re.compile(r"(?:[A-Za-z0-9._][A-Za-z0-9._-]*@)?[A-Za-z0-9\[][A-Za-z0-9.:\[\]_-]*")
# Only these; keys, ports, users and jumps belong in ssh's own configuration. A shared connection (ControlMaster) would
# outlive this process and its forwarding with it.
OPTIONS = (
    "BatchMode=yes",
    f"ConnectTimeout={CONNECT_TIMEOUT_S}",
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
    "ControlMaster=no",
    "ControlPath=none",
    "ForwardAgent=no",
    "ForwardX11=no",
    "PermitLocalCommand=no",
    "RemoteCommand=none",
    "RequestTTY=no",
    "ExitOnForwardFailure=yes",
    "LogLevel=ERROR",
)


class RemoteFailure(EngineFailure):
    """A machine that could not be used; an expected answer. `cause` is one word for programs."""

    def __init__(self, cause: str, reason: str) -> None:
        self.cause = cause
        super().__init__(Outcome.UNAVAILABLE, reason)


@dataclass(frozen=True)
class Answer:
    """What a script there printed, and its exit code (the shell's: 128 + n for signal n)."""

    exit_code: int
    stdout: bytes
    stderr: str


@dataclass(frozen=True)
class Connection:
    """How one machine is reached. `label` names it in records, which never hold its destination."""

    label: str
    destination: str
    folder: str
    config: Path | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a destination that ssh would take for an option, or a folder that is not absolute."""
        where = f"config/config.yaml: hosts[{self.label}]"
        if not DESTINATION.fullmatch(self.destination):
            raise ValueError(f"{where}.ssh: {self.destination!r}: write user@machine, or a name from ~/.ssh/config")
        if not self.folder.startswith("/") or re.search(r"[\x00-\x1f\x7f]", self.folder):
            raise ValueError(f"{where}.folder: {self.folder!r}: write an absolute path of a folder there")

    def argv(self, script: str, log: Path, forward: tuple[int, int] | None = None) -> list[str]:
        """The ssh command for a script of this length; `forward` is (port of 127.0.0.1 here, the same there)."""
        options = [part for option in OPTIONS for part in ("-o", option)]
        chosen = ["-F", str(self.config)] if self.config is not None else []
        tunnel = ["-L", f"127.0.0.1:{forward[0]}:127.0.0.1:{forward[1]}"] if forward is not None else []
        return ["ssh", "-E", str(log), *chosen, *options, *tunnel, "--", self.destination, bootstrap(script)]

    def start(self, script: str, log: Path, forward: tuple[int, int] | None = None) -> subprocess.Popen[bytes]:
        """Start ssh with a script on its way; it ends with this process (start it from a thread that stays).

        Its own words go to `log`, so that standard error holds only what the other side says. Raises RemoteFailure.
        """
        argv = self.argv(script, log, forward)
        program = shutil.which(argv[0])
        if program is None:
            raise RemoteFailure("no_ssh", "there is no ssh on this machine; install openssh-client")
        process = subprocess.Popen(
            with_us([program, *argv[1:]]),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=engine_environment(),
            start_new_session=True,
        )
        send(process, script.encode())
        return process

    def run(
        self,
        name: str,
        values: Mapping[str, str | int] | None = None,
        *,
        feed: Callable[[IO[bytes]], None] | None = None,
        timeout_s: float = ANSWER_TIMEOUT_S,
    ) -> Answer:
        """Run the script `name`.sh there to its end; `feed` writes what it reads from standard input.

        Raises RemoteFailure where ssh cannot connect, the folder or a tool is missing, or the connection breaks.
        """
        body = compose(["begin"], {"folder": self.folder}) + compose([name], values or {}, subshell=True)
        with tempfile.TemporaryDirectory(prefix="findings-ssh-") as place:
            log = Path(place) / "ssh.log"
            process = self.start(body, log)
            feeder = threading.Thread(target=_feed, args=(process, feed), daemon=True)
            feeder.start()
            try:
                output, errors = _read_both(process, timeout_s)
                code = process.wait(timeout=10)
            except subprocess.TimeoutExpired as error:
                raise RemoteFailure(
                    "timed_out", f"host {self.label}: no end of {name} within {timeout_s:g} s; the machine is stuck"
                ) from error
            finally:
                kill_group(process)
            return self._answer(name, output, errors, code, log)

    def _answer(self, name: str, output: bytes, errors: bytes, code: int, log: Path) -> Answer:
        begun, found = _after_begin(output)
        if not begun:
            raise self.failed(code, log)
        self.raise_for(found)
        match = re.search(rb"\n@end (\d+)\n\Z", found)
        if not match:
            raise RemoteFailure("lost", f"host {self.label}: the connection was lost during {name}; run it again")
        return Answer(int(match.group(1)), found[: match.start()], errors.decode("utf-8", "replace"))

    def raise_for(self, told: bytes) -> None:
        """Raises RemoteFailure for what begin.sh says when the machine cannot be used."""
        first = told.partition(b"\n")[0].decode("utf-8", "replace")
        where = f"host {self.label}"
        if first == "@nofolder":
            raise RemoteFailure(
                "no_folder", f"{where}: its folder is not there; make it, or mend `folder:` of this host in config.yaml"
            )
        if first == "@readonly":
            raise RemoteFailure("read_only", f"{where}: its folder cannot be written by the user that ssh logs in as")
        if first.startswith("@missing"):
            raise RemoteFailure("tools", f"{where} lacks {first.removeprefix('@missing').strip()}; install these there")

    def no_program(self, told: str) -> RemoteFailure:
        """Why an executable cannot be used, from the word of a script."""
        said = "is not there" if told == "@absent" else "is not executable (chmod +x)"
        return RemoteFailure(
            "program",
            f"host {self.label}: the llama-server {said}; mend `executables:` of this host in config/config.yaml",
        )

    def failed(self, code: int, log: Path) -> RemoteFailure:
        """Why ssh ended without having run anything there, from its own words."""
        words = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return explain_ssh(self.label, code, words)


def connection_to(host: RemoteHost) -> Connection:
    """The connection of a configured machine; FINDINGS_SSH_CONFIG names another file than ~/.ssh/config."""
    chosen = os.environ.get(SSH_CONFIG_VARIABLE, "")
    return Connection(host.label, host.ssh, host.folder.rstrip("/") or "/", Path(chosen) if chosen else None)


def bootstrap(script: str) -> str:
    """The one word for the login shell: read exactly the script (byte by byte, nothing after it) and run it."""
    return f"exec sh -c 'eval \"$(dd bs=1 count={len(script.encode())} 2>/dev/null)\"'"


def assigned(values: Mapping[str, str | int]) -> str:
    """Shell assignments, every value quoted."""
    return "".join(f"{name}={shlex.quote(str(value))}\n" for name, value in values.items())


def compose(
    names: Sequence[str], values: Mapping[str, str | int], arguments: Sequence[str] = (), *, subshell: bool = False
) -> str:
    """The text of scripts after each other, their values before them; `subshell` makes an exit end only them."""
    text = assigned(values)
    if arguments:
        text += "set -- " + " ".join(shlex.quote(word) for word in arguments) + "\n"
    text += "".join((SCRIPTS / f"{name}.sh").read_text(encoding="utf-8") for name in names)
    # The last line stands even where a script ended itself.
    return f"(\n{text})\nprintf '\\n@end %d\\n' $?\n" if subshell else text


def send(process: subprocess.Popen[bytes], data: bytes) -> bool:
    """Write to the other side; False where nobody reads any more."""
    if process.stdin is None:
        return False
    try:
        process.stdin.write(data)
        process.stdin.flush()
    except (OSError, ValueError):
        return False
    return True


def close_input(process: subprocess.Popen[bytes]) -> None:
    """Tell the other side that nothing comes any more."""
    if process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):
            process.stdin.close()


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End ssh with what it started (a jump through another machine is a process of its own) and its pipes here."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(timeout=10)
    for stream in (process.stdin, process.stdout, process.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.close()


def _feed(process: subprocess.Popen[bytes], feed: Callable[[IO[bytes]], None] | None) -> None:
    if feed is not None and process.stdin is not None:
        with contextlib.suppress(OSError, ValueError):  # the other side says why it stopped reading
            feed(process.stdin)
    close_input(process)


def _read_both(process: subprocess.Popen[bytes], timeout_s: float) -> tuple[bytes, bytes]:
    """Both outputs to their ends, each up to OUTPUT_LIMIT. Raises subprocess.TimeoutExpired."""
    found: dict[str, bytes] = {}

    def read(name: str, stream: IO[bytes] | None) -> None:
        kept = bytearray()
        with contextlib.suppress(OSError, ValueError):
            while stream is not None and (piece := stream.read1(65536)):  # type: ignore[attr-defined]
                kept += piece
                if len(kept) > 2 * OUTPUT_LIMIT:
                    del kept[OUTPUT_LIMIT:-OUTPUT_LIMIT]
        found[name] = bytes(kept)

    threads = [
        threading.Thread(target=read, args=(name, stream), daemon=True)
        for name, stream in (("out", process.stdout), ("err", process.stderr))
    ]
    for thread in threads:
        thread.start()
    process.wait(timeout=timeout_s)
    for thread in threads:
        thread.join(timeout=10)
    return found.get("out", b""), found.get("err", b"")


def _after_begin(output: bytes) -> tuple[bool, bytes]:
    """Whether the script ran, and what it printed; whatever a login shell prints before it is left out."""
    match = re.search(rb"(?:\A|\n)@begin\n", output)
    return (True, output[match.end() :]) if match else (False, b"")


_SSH_WORDS = (
    (
        "unknown_name",
        r"Could not resolve hostname",
        "its name cannot be resolved; mend `ssh:` of this host in config/config.yaml, or ssh's own configuration",
    ),
    (
        "host_key_changed",
        r"IDENTIFICATION HAS CHANGED|Host key for .* has changed",
        "its host key is another one than known_hosts has: somebody else may answer there; where the machine was "
        "really set up anew, remove the old key with ssh-keygen -R",
    ),
    (
        "host_key_unknown",
        r"Host key verification failed|No .* host key is known",
        "its host key is not known here; connect once by hand with ssh and compare the fingerprint",
    ),
    (
        "key_refused",
        r"Permission denied|Too many authentication failures|No supported authentication",
        "it refuses every key that ssh offers, and passwords are never asked for; put a public key into "
        "authorized_keys there (ssh-copy-id), or name the right one in ssh's own configuration",
    ),
    (
        "local_port",
        r"cannot listen to port|Could not request local forwarding|Address already in use",
        "the port for the tunnel was taken on this machine; run it again",
    ),
    (
        "configuration",
        r"Bad configuration option|bad configuration|Bad owner or permissions|Can't open user config",
        "ssh does not accept its own configuration file; `ssh -G` with this destination says where",
    ),
    (
        "unreachable",
        r"Connection (?:refused|timed out|closed|reset)|No route to host|Network is unreachable|Operation timed out"
        r"|kex_exchange_identification|Connection to .* timed out|not responding",
        "it does not answer; is it on, and does sshd listen there? Try ssh by hand",
    ),
)


def explain_ssh(label: str, code: int, words: str) -> RemoteFailure:
    """ssh's own words as a sentence with the mend, without the names and addresses in them."""
    for cause, pattern, mend in _SSH_WORDS:
        match = re.search(pattern, words)
        if match:
            said = f" ({match.group(0)})" if cause == "unreachable" else ""
            return RemoteFailure(cause, f"host {label}: {mend}{said}")
    if not words.strip() and code == 0:
        return RemoteFailure("no_shell", f"host {label}: the login there runs no command (a restricted shell?)")
    return RemoteFailure("ssh", f"host {label}: ssh ended with code {code}; try ssh by hand")
