"""What an executable on another machine is: its bytes, and what it answers when it is asked what it offers."""

from __future__ import annotations

from pathlib import PurePosixPath

from findings.engine.failure import EngineFailure
from findings.engine.probe import Asked, Asker
from findings.programs import hash_of_program
from findings.records import Outcome
from findings.remote.connection import Connection, RemoteFailure

HASH_TIMEOUT_S = 600.0
TIMED_OUT = 124


def program_there(connection: Connection, executable: str) -> PurePosixPath:
    """Its absolute path; `executable` is absolute or relative to the folder there."""
    return PurePosixPath(connection.folder) / executable


def program_sha256_there(connection: Connection, program: PurePosixPath) -> str:
    """sha256 of the executable together with the libraries beside it, as programs.program_sha256 makes it here.

    Raises RemoteFailure where it is missing or cannot be read.
    """
    answer = connection.run("hash_program", {"program": str(program)}, timeout_s=HASH_TIMEOUT_S)
    return parse_hashes(connection, program, answer.stdout.decode("utf-8", "surrogateescape"))


def parse_hashes(connection: Connection, program: PurePosixPath, text: str) -> str:
    """The sha256 from what hash_program.sh prints."""
    lines = text.splitlines()
    if lines and lines[0].startswith("@"):
        raise connection.no_program(lines[0])
    if not lines or len(lines[0].split()[0]) != 64:
        raise RemoteFailure("program", f"host {connection.label}: {program.name} there cannot be read")
    beside: dict[PurePosixPath, str] = {}
    for line in lines[1:]:
        digest, _, path = line.partition("  ")
        beside[PurePosixPath(path)] = digest
    return hash_of_program(lines[0].split()[0], program.name, [(path, beside[path]) for path in sorted(beside)])


def asker(connection: Connection, program: PurePosixPath) -> Asker:
    """How the probe asks that executable (see engine/probe.py)."""

    def ask(flag: str, timeout_s: float) -> Asked:
        values: dict[str, str | int] = {"program": str(program), "flag": flag, "limit": int(timeout_s)}
        answer = connection.run("ask", values, timeout_s=timeout_s + 60)
        text = answer.stdout.decode("utf-8", "replace")
        if text.startswith("@"):
            raise connection.no_program(text.strip())
        if answer.exit_code == TIMED_OUT:
            raise EngineFailure(Outcome.TIMED_OUT, f"no answer to {flag} within {timeout_s:g} s")
        return Asked(answer.exit_code, text, answer.stderr)

    return ask
