"""Isolated Python environments for engines and converters, each made from a lock with hashes.

A virtual environment cannot be moved, so it is built in place; a marker that is written last says that it is whole.
Its folder carries the lock's sha256 and the Python's tag: another lock is another environment. Comments at the head of
a lock may name a size (`# note: ...`) and another lock to take where the first cannot be had (`# fallback: NAME.txt`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from findings.cache import MIB, CacheError, exclusive, explain_os_error, safe_name, say
from findings.interrupted import with_us
from findings.records import Kind, Outcome, Record, clip_log, redact, sha256_file, sha256_text, utc_now, write_text

MARKER = ".complete.json"
PROGRESS_EVERY_S = 5.0
LIMIT_S = 2 * 3600.0
KEPT_LOG_LINES = 400
_ADDRESS = re.compile(r"\w+://[^\s'\"]+")
_STEP = re.compile(r"^\s*(Downloading|Using cached|Building|Installing collected|Successfully|ERROR)", re.IGNORECASE)


class EnvironmentFault(Exception):  # noqa: N818 - a reason for a record, seldom an error of ours
    """An environment that could not be built.

    `cause`: disk_full, no_network, wrong_hash, no_wheel, timed_out, read_only, busy, pip (anything else pip says).
    """

    def __init__(self, cause: str, message: str, log: str = "") -> None:
        self.cause = cause
        self.log = log
        super().__init__(message)


@dataclass(frozen=True)
class LockFile:
    """A lock: its text's sha256, and what the comments at its head say."""

    path: Path
    sha256: str
    note: str = ""
    fallback: str = ""


@dataclass
class _Build:
    """One environment being looked for or built, for its record."""

    env_id: str
    cache: Path
    started: str = field(default_factory=utc_now)
    clock: float = field(default_factory=time.monotonic)
    tried: list[dict[str, str]] = field(default_factory=list)
    log: str = ""

    def record(self, outcome: Outcome, reason: str, detail: dict[str, Any]) -> Record:
        """The record of this environment."""
        head, tail = clip_log(redact(self.log))
        causes = {entry["cause"] for entry in self.tried}
        return Record(
            kind=Kind.ENVIRONMENT,
            subject=self.env_id,
            outcome=outcome,
            reason=reason,
            seconds=round(time.monotonic() - self.clock, 3),
            started=self.started,
            log_head=head,
            log_tail=tail,
            log_sha256=sha256_text(self.log) if self.log else "",
            versions={"python": sys.version.split()[0]},
            detail={
                **detail,
                "tried": self.tried,
                "retryable": outcome is not Outcome.OK and bool(causes - {"wrong_hash", "no_wheel", "no_lock"}),
            },
        )


def python_tag() -> str:
    """Interpreter and platform of this process, for example `cp311-linux-x86_64`."""
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{sysconfig.get_platform()}"


def read_lock(path: Path) -> LockFile:
    """Read a lock's head. Raises FileNotFoundError with what to do."""
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such lock; locks are made by scripts/relock.py")
    head: dict[str, str] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        key, separator, value = line[1:].partition(":")
        if separator and key.strip() in ("note", "fallback"):
            head[key.strip()] = value.strip()
    fallback = safe_name(head["fallback"]) if "fallback" in head else ""
    return LockFile(path, sha256_file(path), head.get("note", ""), fallback)


def environment_folder(env_id: str, lock: LockFile, cache: Path) -> Path:
    """Where the environment of a lock lies."""
    return cache / "environments" / f"{safe_name(env_id)}-{lock.sha256[:12]}-{python_tag()}"


def python_in(folder: Path) -> Path:
    """The interpreter of a virtual environment."""
    return folder / "Scripts" / "python.exe" if os.name == "nt" else folder / "bin" / "python"


def ensure_environment(env_id: str, lock: Path, cache: Path) -> Record:
    """Have the environment of `lock` in the cache: a record of kind environment, outcome ok or unavailable.

    detail for outcome ok: python and folder (relative to the cache), lock (its file name), lock_sha256, packages
    {name: version}, reused (bool). The environment's Python is the one that runs this. Raises FileNotFoundError for a
    lock that does not exist; CacheError (unsafe_name) for an id that is no plain name.
    """
    build = _Build(env_id, cache)
    locks = [read_lock(lock)]
    if locks[0].fallback:
        locks.append(read_lock(lock.with_name(locks[0].fallback)))
    for candidate in locks:
        packages = _complete(environment_folder(env_id, candidate, cache))
        if packages is not None:
            return _ok(build, candidate, packages, reused=True)
    for candidate in locks:
        try:
            packages, reused = _build_once(build, candidate)
        except (EnvironmentFault, CacheError) as error:
            cause = error.cause
            build.tried.append({"lock": candidate.path.name, "cause": cause, "reason": redact(str(error))})
            say(f"environment {env_id}", f"{candidate.path.name}: {error}")
            # Only what another lock can mend leads on to it: no disk or no network hits both alike.
            if cause not in ("no_wheel", "wrong_hash"):
                break
        else:
            return _ok(build, candidate, packages, reused)
    reason = "; ".join(f"{entry['lock']}: {entry['reason']}" for entry in build.tried)
    return build.record(Outcome.UNAVAILABLE, reason, {"lock": locks[0].path.name, "lock_sha256": locks[0].sha256})


def environment_python(record: Record, cache: Path) -> Path:
    """The interpreter of an environment's record. Raises ValueError for a record that is not ok."""
    if record.outcome is not Outcome.OK:
        raise ValueError(f"environment {record.subject} is {record.outcome.value}: {record.reason}")
    return cache / str(record.detail["python"])


def _ok(build: _Build, lock: LockFile, packages: dict[str, str], reused: bool) -> Record:
    folder = environment_folder(build.env_id, lock, build.cache)
    return build.record(
        Outcome.OK,
        "",
        {
            "python": python_in(folder).relative_to(build.cache).as_posix(),
            "folder": folder.relative_to(build.cache).as_posix(),
            "lock": lock.path.name,
            "lock_sha256": lock.sha256,
            "packages": packages,
            "reused": reused,
        },
    )


def _complete(folder: Path) -> dict[str, str] | None:
    """The packages of a whole environment, None where it is missing, half built, or its base Python is gone."""
    try:
        packages = json.loads((folder / MARKER).read_text(encoding="utf-8"))["packages"]
        return {str(k): str(v) for k, v in packages.items()} if python_in(folder).exists() else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _build_once(build: _Build, lock: LockFile) -> tuple[dict[str, str], bool]:
    """Build under the cache's lock, unless another process just did; (packages, reused)."""
    folder = environment_folder(build.env_id, lock, build.cache)
    try:
        with exclusive(build.cache, folder.name, f"environment {build.env_id}"):
            packages = _complete(folder)
            if packages is not None:
                return packages, True
            return _make(build, lock, folder), False
    except OSError as error:
        raise explain_os_error(error, "the cache folder") or error from error


def _make(build: _Build, lock: LockFile, folder: Path) -> dict[str, str]:
    """Build the environment in `folder`; a failed one is removed."""
    label = f"environment {build.env_id}"
    say(label, f"building from {lock.path.name}" + (f" ({lock.note})" if lock.note else ""))
    temporary = folder.with_name(f"{folder.name}.tmp")
    for leftover in (folder, temporary):
        shutil.rmtree(leftover, ignore_errors=True)
    temporary.mkdir(parents=True)
    done = False
    try:
        # This Python's pip installs into the new environment: putting a pip into each takes longer than most engines.
        _run(build, [sys.executable, "-I", "-m", "venv", "--without-pip", str(folder)], label, temporary)
        pip = [sys.executable, "-I", "-m", "pip", "--python", str(python_in(folder))]
        options = ["--no-input", "--disable-pip-version-check", "--progress-bar", "off", "--retries", "3"]
        _run(
            build,
            [*pip, "install", *options, "--require-hashes", "--no-compile", "--requirement", lock.path.name],
            label,
            temporary,
            lock.path.resolve().parent,
        )
        packages = _packages(build, [*pip, "list", "--format", "json", "--disable-pip-version-check"], temporary)
        write_text(
            folder / MARKER, json.dumps({"lock": lock.path.name, "lock_sha256": lock.sha256, "packages": packages})
        )
        done = True
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        if not done:
            shutil.rmtree(folder, ignore_errors=True)
    say(label, f"ready, {len(packages)} packages, {time.monotonic() - build.clock:.0f} s")
    return packages


def _variables(temporary: Path) -> dict[str, str]:
    """The environment variables for pip: the user's configuration stays, what would install elsewhere goes."""
    kept = {k: v for k, v in os.environ.items() if k not in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "VIRTUAL_ENV")}
    # The token of the model hub is none of pip's business.
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "PYTHONPATH", "PYTHONHOME"):
        kept.pop(name, None)
    return {**kept, "PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "TMPDIR": str(temporary.resolve())}


def _packages(build: _Build, argv: Sequence[str], temporary: Path) -> dict[str, str]:
    done = subprocess.run(argv, capture_output=True, text=True, check=False, env=_variables(temporary), timeout=120)
    if done.returncode != 0:
        build.log += done.stderr
        raise EnvironmentFault("pip", f"pip cannot list what it installed: {_last_words(done.stderr)}")
    return {entry["name"]: entry["version"] for entry in json.loads(done.stdout)}


def _run(build: _Build, argv: Sequence[str], label: str, temporary: Path, folder: Path | None = None) -> None:
    """Run one command of the build with progress lines. Raises EnvironmentFault with the cause."""
    started = time.monotonic()
    process = subprocess.Popen(
        with_us(argv),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        cwd=folder,
        env=_variables(temporary),
    )
    finished = threading.Event()
    watcher = threading.Thread(target=_watch, args=(process, temporary, label, started, finished), daemon=True)
    watcher.start()
    lines: list[str] = []
    try:
        if process.stdout is not None:
            for line in process.stdout:
                # Where this machine shops says nothing about what was installed.
                if not line.startswith(("Looking in ", "WARNING: Location ")) and line.strip():
                    lines.append(_ADDRESS.sub("<address>", line.rstrip("\n")))
                del lines[: -2 * KEPT_LOG_LINES]
                if _STEP.match(line):
                    say(label, line.strip()[:200])
        process.wait()
    finally:
        finished.set()
        if process.poll() is None:
            process.kill()
            process.wait()
        watcher.join(timeout=5)
    text = "\n".join(lines[-KEPT_LOG_LINES:]) + "\n"
    build.log += text
    if time.monotonic() - started > LIMIT_S:
        raise EnvironmentFault("timed_out", f"it took longer than {LIMIT_S / 3600:.0f} h", text)
    if process.returncode != 0:
        cause, message = diagnose(text)
        raise EnvironmentFault(cause, message, text)


def _watch(
    process: subprocess.Popen[str], temporary: Path, label: str, started: float, finished: threading.Event
) -> None:
    """Say every few seconds how much pip has fetched (it unpacks below TMPDIR); end it at the limit."""
    while not finished.wait(PROGRESS_EVERY_S):
        seconds = time.monotonic() - started
        say(label, f"working, {_size(temporary) / MIB:.1f} MiB in work, {seconds:.0f} s")
        if seconds > LIMIT_S:
            process.kill()


def _size(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):
        for path in folder.rglob("*"):
            with contextlib.suppress(OSError):
                total += path.lstat().st_size
    return total


def _last_words(text: str) -> str:
    """The line of pip's output that says what is wrong, without addresses."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith("error")]
    words = " ".join((errors or lines or ["no output"])[:2] if errors else lines[-1:] or ["no output"])
    return redact(_ADDRESS.sub("<address>", words))[:400]


_SIGNS = (
    ("disk_full", ("no space left on device", "disk quota exceeded")),
    ("wrong_hash", ("do not match the hashes", "hashes are required")),
    (
        "no_network",
        (
            "name resolution",
            "name or service not known",
            "failed to establish a new connection",
            "network is unreachable",
            "connection refused",
            "max retries exceeded",
            "read timed out",
            "proxyerror",
            "connection aborted",
            "connection broken",
        ),
    ),
    (
        "no_wheel",
        ("no matching distribution", "not a supported wheel", "could not find a version", "resolutionimpossible"),
    ),
    ("read_only", ("read-only file system", "permission denied")),
)
_MENDS = {
    "disk_full": "the disk is full; free space, or set FINDINGS_CACHE to a folder on a larger disk",
    "wrong_hash": "a package has not the sha256 of the lock; the index offers other files than those that were locked",
    "no_network": "the package index cannot be reached; check the network and `pip config list`, then try again",
    "no_wheel": "no package file fits this machine or version",
    "read_only": "the cache folder cannot be written; make it writable, or set FINDINGS_CACHE",
    "pip": "pip failed",
}


def diagnose(output: str) -> tuple[str, str]:
    """(cause, message) for the output of a failed pip: what is wrong, what to do, and pip's last words."""
    lowered = output.lower()
    cause = next((name for name, signs in _SIGNS if any(sign in lowered for sign in signs)), "pip")
    message = _MENDS[cause]
    if cause == "no_wheel":
        message += f" (this is Python {sys.version.split()[0]}, {python_tag()}; another Python may have one)"
    return cause, f"{message}: {_last_words(output)}"
