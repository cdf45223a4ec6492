"""Run convert_hf_to_gguf.py of one llama.cpp build on one checkpoint, and say how it ended in the converter's words.

A refusal is an answer, and its record is what the findings about "cannot be converted" rest on. Only what has
nothing to do with build and checkpoint (a package missing from the environment, a full disk) is a pipeline's fault.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findings.cache import exclusive, is_verified, land, safe_name
from findings.checkpoint import checkpoint_architecture, checkpoint_files
from findings.interrupted import with_us
from findings.records import Kind, Outcome, Record, clip_log, redact, sha256_file, sha256_text, utc_now, write_text

SCRIPT = "convert_hf_to_gguf.py"
TIMEOUT_S = 1800.0
GGUF_MAGIC = b"GGUF"


class ConversionError(RuntimeError):
    """The pipeline cannot run the converter at all; the message says what to mend."""


@dataclass(frozen=True)
class Conversion:
    """One checkpoint (a folder) through one converter.

    `source` is the unpacked llama.cpp source with convert_hf_to_gguf.py in it, `python` an interpreter with what that
    imports. `target` is the target's folder for converters that read the target to convert a drafter (EAGLE-3, DFlash).
    """

    checkpoint_id: str
    checkpoint: Path
    converter_id: str
    source: Path
    python: Path
    cache: Path
    outtype: str = "f16"
    target: Path | None = None
    archive_sha256: str = ""
    build: int | None = None
    timeout_s: float = TIMEOUT_S

    @property
    def file_name(self) -> str:
        """Name of the GGUF."""
        return safe_name(f"{self.checkpoint_id}-{self.outtype}.gguf")


@dataclass(frozen=True)
class _Run:
    """How the subprocess ended; `log` is stdout and stderr in order, `exit_code` None after the time limit."""

    exit_code: int | None
    log: str
    seconds: float


def converter_files(source: Path) -> tuple[Path, ...]:
    """The files of a llama.cpp source which decide what its converter does, sorted. Raises ConversionError."""
    if not (source / SCRIPT).is_file():
        raise ConversionError(
            f"{source.name}: no {SCRIPT} in the converter's source; check `inside` in config/engines.yaml"
        )
    found = [source / SCRIPT, *(source / "conversion").rglob("*.py"), *(source / "gguf-py" / "gguf").rglob("*.py")]
    return tuple(sorted(found))


def converter_sha256(source: Path) -> str:
    """sha256 over names and contents of `converter_files`: the same for an archive and for a source of one's own."""
    lines = [f"{sha256_file(path)}  {path.relative_to(source).as_posix()}" for path in converter_files(source)]
    return sha256_text("\n".join(lines))


def content_key(job: Conversion, versions: Mapping[str, str]) -> str:
    """Name of the result's folder in the cache: it changes with every input that can change the bytes."""
    parts: dict[str, Any] = {
        "checkpoint": {path.name: sha256_file(path) for path in checkpoint_files(job.checkpoint)},
        "converter": converter_sha256(job.source),
        "outtype": job.outtype,
        "name": job.file_name,
        "target": {p.name: sha256_file(p) for p in checkpoint_files(job.target)} if job.target else {},
        "versions": dict(versions),
    }
    return sha256_text(json.dumps(parts, sort_keys=True))[:32]


def convert(job: Conversion) -> Record:
    """Convert, or take the earlier result of the same inputs from the cache; the record of kind conversion.

    detail: checkpoint, converter, build, architecture, outtype, checkpoint_sha256 (by file), converter_sha256,
    archive_sha256, key; for outcome ok also sha256, size_bytes, cache_path (relative to the cache), reused.
    Raises ConversionError, CheckpointError, CacheError, OSError.
    """
    started = utc_now()
    versions = environment_versions(job.python)
    key = content_key(job, versions)
    target = job.cache / "converted" / key / job.file_name
    with exclusive(job.cache, f"converted-{key}", f"convert {job.checkpoint_id}"):
        known = _known_sha256(target)
        if known and is_verified(target, known):
            return _record(job, versions, key, started, _Run(0, "", 0.0), Outcome.OK, "", target, reused=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".convert.", suffix=".part") as scratch:
            made = Path(scratch) / job.file_name
            run = _run(job, made)
            outcome, reason = classify(run.exit_code, run.log, job.timeout_s)
            if outcome is Outcome.OK and not _is_gguf(made):
                outcome, reason = Outcome.CRASHED, "the converter ended with 0 and left no GGUF"
            if outcome is Outcome.OK:
                digest = sha256_file(made)
                land(made, target, digest)
                write_text(target.parent / "sha256.txt", f"{digest}  {job.file_name}\n")
        return _record(job, versions, key, started, run, outcome, reason, target, reused=False)


def _known_sha256(target: Path) -> str:
    """The sha256 noted when the file was made, or nothing."""
    noted = target.parent / "sha256.txt"
    if not target.is_file() or not noted.is_file():
        return ""
    return noted.read_text(encoding="utf-8").partition(" ")[0]


def _is_gguf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as stream:
        return stream.read(len(GGUF_MAGIC)) == GGUF_MAGIC


def _record(
    job: Conversion,
    versions: Mapping[str, str],
    key: str,
    started: str,
    run: _Run,
    outcome: Outcome,
    reason: str,
    target: Path,
    *,
    reused: bool,
) -> Record:
    log = _neutral(run.log, job)
    head, tail = clip_log(log)
    detail: dict[str, Any] = {
        "checkpoint": job.checkpoint_id,
        "converter": job.converter_id,
        "build": job.build,
        "architecture": checkpoint_architecture(job.checkpoint),
        "outtype": job.outtype,
        "checkpoint_sha256": {path.name: sha256_file(path) for path in checkpoint_files(job.checkpoint)},
        "converter_sha256": converter_sha256(job.source),
        "archive_sha256": job.archive_sha256,
        "key": key,
    }
    if outcome is Outcome.OK:
        detail |= {
            "sha256": _known_sha256(target),
            "size_bytes": target.stat().st_size,
            "cache_path": target.relative_to(job.cache).as_posix(),
            "reused": reused,
        }
    return Record(
        kind=Kind.CONVERSION,
        subject=f"{job.checkpoint_id}/{job.converter_id}",
        outcome=outcome,
        reason=_neutral(reason, job),
        argv=tuple(_neutral(part, job) for part in _argv(job, Path(job.file_name))),
        exit_code=run.exit_code,
        seconds=round(run.seconds, 3),
        started=started,
        log_head=head,
        log_tail=tail,
        # Of the text without this machine's folders, so that the same refusal has the same sum everywhere.
        log_sha256=sha256_text(log) if log else "",
        versions=versions,
        detail=detail,
    )


def _argv(job: Conversion, outfile: Path) -> list[str]:
    command = [str(job.python), "-B", str(job.source / SCRIPT), str(job.checkpoint)]
    command += ["--outtype", job.outtype, "--outfile", str(outfile), "--model-name", job.checkpoint_id]
    return command + (["--target-model-dir", str(job.target)] if job.target else [])


def _environment() -> dict[str, str]:
    """This process's environment without what would reach the network or change what Python imports."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "HF_", "HUGGING", "TRANSFORMERS_"))}
    return kept | {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONUTF8": "1",
    }


def _run(job: Conversion, outfile: Path) -> _Run:
    clock = time.monotonic()
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                with_us(_argv(job, outfile)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=outfile.parent,
                env=_environment(),
                start_new_session=True,
            )
        except OSError as error:
            raise ConversionError(f"{job.python.name}: cannot be started ({error.strerror})") from error
        try:
            code: int | None = process.wait(timeout=job.timeout_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            _end(process)
        log.seek(0)
        return _Run(code, log.read().decode("utf-8", "replace"), time.monotonic() - clock)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the converter and whatever it started, if it still runs."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _neutral(text: str, job: Conversion) -> str:
    """`text` without the folders of this machine, so that records of two machines can be compared."""
    places = {
        str(job.python): "python",
        str(job.python.parent.parent): "<environment>",
        str(job.source): "<llama.cpp>",
        str(job.checkpoint): f"<{job.checkpoint_id}>",
        str(job.cache): "<cache>",
    }
    if job.target:
        places[str(job.target)] = "<target>"
    for path, name in sorted(places.items(), key=lambda item: -len(item[0])):
        text = text.replace(str(Path(path).resolve()), name).replace(path, name)
    return redact(re.sub(r"\.convert\.\w+\.part", "<scratch>", text))


# --- the converter's words ------------------------------------------------------------------------------------------

_MISSING = re.compile(
    r"^(?:ModuleNotFoundError: .*|.*\brequires the \S+ library but it was not found in your environment.*)$",
    re.MULTILINE,
)
_NO_SPACE = re.compile(r"No space left on device|Disk quota exceeded")
_UNSUPPORTED = re.compile(
    r"(Model \S+ is not supported|Architecture '?\S+'? not supported!?|BPE pre-tokenizer was not recognized.*)"
)
_ERROR_LINE = re.compile(r"^ERROR:[\w.-]+:(.*)$", re.M)
_RAISED = re.compile(r"^([A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Warning))(?:: ?(.*))?$")
_FRAME = re.compile(r'^\s*File ".*?([^/\\"]+)", line (\d+), in (.+)$')


def classify(exit_code: int | None, log: str, timeout_s: float = TIMEOUT_S) -> tuple[Outcome, str]:
    """(outcome, reason) of a converter's run; the reason is the converter's own decisive line wherever it has one.

    `exit_code` None means that the time limit ended it, a negative one the signal. ok: code 0. unsupported: the
    converter says that it does not know the architecture or tokenizer. refused: it stopped by itself with an error
    line. crashed: an exception or a signal. Raises ConversionError for a missing package or a full disk.
    """
    if exit_code == 0:
        return Outcome.OK, ""
    if missing := _MISSING.search(log):
        raise ConversionError(
            f"the converter's environment is incomplete: {missing[0].strip()}; add the package to its lock"
        )
    if full := _NO_SPACE.search(log):
        raise ConversionError(f"{full[0]} while converting; free space, or set FINDINGS_CACHE")
    if exit_code is None:
        return Outcome.TIMED_OUT, f"no end within {timeout_s:.0f} s; last words: {_last_line(log)}"
    if said := _UNSUPPORTED.search(log):
        return Outcome.UNSUPPORTED, said[1].strip()
    if exit_code < 0:
        return Outcome.CRASHED, f"ended by signal {-exit_code}; last words: {_last_line(log)}"
    if raised := _exception(log):
        return Outcome.CRASHED, raised
    if errors := _ERROR_LINE.findall(log):
        return Outcome.REFUSED, errors[-1].strip()
    return Outcome.REFUSED, f"exit code {exit_code}; last words: {_last_line(log)}"


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "none"


def _exception(log: str) -> str:
    """The last exception of a traceback with its place: a bare AssertionError says nothing without its line."""
    if "Traceback (most recent call last)" not in log:
        return ""
    place, code, found = "", "", ""
    lines = log.splitlines()
    for index, line in enumerate(lines):
        if frame := _FRAME.match(line):
            place = f"{frame[1]}:{frame[2]} in {frame[3]}"
            code = lines[index + 1].strip() if index + 1 < len(lines) else ""
        elif raised := _RAISED.match(line):
            words = (raised[2] or "").strip() or f"at `{code}`"
            found = f"{raised[1]}: {words} ({place})"
    return found


_VERSIONS = """
import importlib.metadata as m, json, platform
found = {"python": platform.python_version()}
for name in ("torch", "transformers", "sentencepiece", "protobuf", "numpy", "safetensors", "tokenizers"):
    try:
        found[name] = m.version(name)
    except m.PackageNotFoundError:
        pass
print(json.dumps(found))
"""


def environment_versions(python: Path) -> dict[str, str]:
    """Versions in the interpreter's environment of what the converter's result depends on. Raises ConversionError."""
    try:
        answer = subprocess.run(
            [str(python), "-I", "-c", _VERSIONS],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
            env=_environment(),
        )
        versions: dict[str, str] = json.loads(answer.stdout)
    except (OSError, subprocess.SubprocessError, json.JSONDecodeError) as error:
        raise ConversionError(
            f"{python.name}: the converter's Python does not answer ({type(error).__name__})"
        ) from error
    return versions
