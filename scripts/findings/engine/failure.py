"""How an engine failed: the outcome, the decisive line of its log as the reason, and nothing else.

The texts are those of llama.cpp (src/llama-model-loader.cpp, src/llama-model.cpp, ggml backends, tools/server) as seen
in builds 8929 to 11549. Signals are named from the exit code; a SIGKILL counts as out of memory only where the
kernel's own counter of such kills has grown (see `oom_kills`).
"""

from __future__ import annotations

import re
import signal
from pathlib import Path

from findings.records import Outcome, redact

REASON_LIMIT = 300

OUT_OF_MEMORY = re.compile(
    r"cudaMalloc failed: out of memory|CUDA error: out of memory|ErrorOutOfDeviceMemory|ErrorOutOfHostMemory"
    r"|failed to allocate (?:\S+ )?(?:buffer|compute|pinned)|unable to allocate \S+ buffer|alloc_tensor_range: failed"
    r"|Insufficient Memory|std::bad_alloc|\bbad_alloc\b|MemoryError|[Cc]annot allocate memory|GGML_ASSERT.*alloc"
    r"|can't allocate memory|out of memory",
    re.IGNORECASE,
)
REFUSED = re.compile(
    r"unknown model architecture|error loading model|failed to load model|not compatible|failed to open GGUF"
    r"|invalid magic|tensor '.*' data is not within the file bounds|missing tensor|wrong number of tensors"
    r"|unknown (?:argument|value)|invalid argument|error while handling argument|the argument has been removed"
    r"|failed to load draft model|failed to open|No such file|exiting due to model loading error"
    r"|failed to create \w+ context|the file is probably corrupted|corrupted or incomplete|key not found in model",
    re.IGNORECASE,
)
PORT_TAKEN = re.compile(r"couldn't bind|Address already in use|bind .*failed|failed to bind", re.IGNORECASE)

# From the most telling to the least: llama.cpp prints the cause first and then up to four lines that only pass it on.
_DECISIVE = (
    re.compile(r".*GGML_ASSERT\(.*|.*GGML_ABORT.*|.*what\(\): .*"),
    re.compile(r"unknown model architecture: '[^']*'", re.IGNORECASE),
    re.compile(r"the argument has been removed.*|error: invalid argument: .*|error while handling argument .*"),
    re.compile(r"(?:Illegal instruction|illegal hardware instruction).*", re.IGNORECASE),
    re.compile(r"cudaMalloc failed: out of memory.*|.*ErrorOutOf\w+Memory.*|.*bad_alloc.*|.*MemoryError.*"),
    re.compile(r".*failed to open GGUF file.*|.*invalid magic.*|.*not within the file bounds.*|.*No such file.*"),
    re.compile(r".*not compatible.*", re.IGNORECASE),
    re.compile(r".*error loading model: .*|.*error loading model .*: .*"),
    OUT_OF_MEMORY,
    re.compile(r".*doesn't contain MTP layers.*|.*failed to create \w+ context.*"),
    re.compile(r"^(?:[\d.]+ )?E (?!.*exiting due to).*"),
    REFUSED,
    PORT_TAKEN,
    re.compile(r"(?:^|\s)(?:\w*Error|\w*Exception|fatal|error)\b.*", re.IGNORECASE),
)

_SIGNAL_WORDS = {
    signal.SIGILL: "illegal instruction: this CPU lacks instructions that the binary was built for (AVX-512, AMX ...)",
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error (a file that was shortened while mapped, or a faulty disk)",
    signal.SIGABRT: "aborted by an assertion or an uncaught exception",
    signal.SIGFPE: "arithmetic error",
    signal.SIGKILL: "killed by SIGKILL (from outside; the kernel counted no out-of-memory kill)",
    signal.SIGTERM: "ended by SIGTERM from outside",
    signal.SIGINT: "ended by SIGINT from outside",
}


class EngineFailure(RuntimeError):  # noqa: N818 - a refusal is an answer, not an error
    """An engine that did not do what was asked; an expected answer, with an outcome for the record.

    `log` is the engine's (limited) log, `exit_code` the process's (negative = signal) or None while it lives,
    `log_sha256` that of the whole log where its start failed.
    """

    log_sha256: str = ""

    def __init__(self, outcome: Outcome, reason: str, log: str = "", exit_code: int | None = None) -> None:
        self.outcome = outcome
        self.reason = redact(reason)[:REASON_LIMIT]
        self.log = log
        self.exit_code = exit_code
        super().__init__(f"{outcome.value}: {self.reason}")


_STAMP = re.compile(r"^(?:\d+\.\d\d\.\d{3}\.\d{3}\s+)?(?:[IWED]\s+)?")
_PATH = re.compile(r"(?:[A-Za-z]:)?(?:[/\\][^\s'\":]+){2,}")


def tidy_line(line: str) -> str:
    """One log line without the time stamp, the level, and the folders of paths (they are this machine's)."""
    line = _STAMP.sub("", re.sub(r"\x1b\[[0-9;]*m", "", line).strip())
    return _PATH.sub(lambda match: re.split(r"[/\\]", match.group(0))[-1], line)[:REASON_LIMIT]


def decisive_line(log: str) -> str:
    """The log line that says best why the engine failed, tidied; empty where nothing in the log tells."""
    lines = log.splitlines()
    for pattern in _DECISIVE:
        for line in lines:
            if pattern.search(line):
                return tidy_line(line)
    return ""


_BACKTRACE = re.compile(
    r"^(?:\[New LWP \d+\]|\[Inferior .*|warning: .*|\d+\t.*: No such file or directory\.|#\d+ .*"
    r"|.*libthread_db.*|0x[0-9a-f]+ in .*|Using host .*|See: .*|This GDB .*)$"
)


def _without_backtrace(log: str) -> str:
    """The log without what a debugger printed: ggml calls gdb when it aborts, and gdb misses its own source files."""
    return "\n".join(line for line in log.splitlines() if not _BACKTRACE.match(line))


def signal_words(exit_code: int) -> str:
    """What an exit code says: signals as words (both -11 and the shell's 139), else `exit code N`."""
    number = -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code < 160 else 0
    if number <= 0:
        return f"exit code {exit_code}"
    try:
        name = signal.Signals(number)
    except ValueError:
        return f"signal {number}"
    words = _SIGNAL_WORDS.get(name, "ended by a signal")
    return words if name.name in words else f"{name.name}: {words}"


def _killed_by(exit_code: int) -> int:
    """The signal's number behind an exit code, 0 where it is none."""
    return -exit_code if exit_code < 0 else exit_code - 128 if 128 < exit_code < 160 else 0


def classify_exit(exit_code: int, log: str, oom_killed: bool = False) -> tuple[Outcome, str]:
    """(outcome, reason) of an engine process that has ended although nobody asked it to.

    `oom_killed`: the kernel's counter of out-of-memory kills grew while the engine ran. A signal counts before the
    log's texts, except for aborts, where the log holds the assertion or the exception that caused them.
    """
    number = _killed_by(exit_code)
    log = _without_backtrace(log)
    line = decisive_line(log)
    if number == signal.SIGKILL:
        if oom_killed:
            return Outcome.OUT_OF_MEMORY, "killed by the kernel's out-of-memory killer"
        return Outcome.CRASHED, signal_words(exit_code)
    if OUT_OF_MEMORY.search(log):
        found = next((tidy_line(text) for text in log.splitlines() if OUT_OF_MEMORY.search(text)), line)
        return Outcome.OUT_OF_MEMORY, found
    if number and number != signal.SIGABRT:
        return Outcome.CRASHED, signal_words(exit_code)
    if PORT_TAKEN.search(log):
        return Outcome.UNAVAILABLE, tidy_line(next(text for text in log.splitlines() if PORT_TAKEN.search(text)))
    if not number and REFUSED.search(log):
        return Outcome.REFUSED, line or signal_words(exit_code)
    if number or exit_code:
        return Outcome.CRASHED, f"{signal_words(exit_code)}{': ' + line if line else ''}"
    return Outcome.CRASHED, f"ended by itself with exit code 0{': ' + line if line else ''}"


def oom_kills() -> int:
    """Out-of-memory kills that the kernel has counted for this control group, else for the whole machine (0: unknown).

    Sources: memory.events of cgroup v2, memory.oom_control of v1, oom_kill of /proc/vmstat.
    """
    for path, key in (
        (Path("/sys/fs/cgroup/memory.events"), "oom_kill"),
        (Path("/sys/fs/cgroup/memory/memory.oom_control"), "oom_kill"),
        (Path("/proc/vmstat"), "oom_kill"),
    ):
        try:
            for line in path.read_text(encoding="ascii").splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value)
        except (OSError, ValueError):
            continue
    return 0
