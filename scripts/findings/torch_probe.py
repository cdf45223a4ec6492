"""Ask a build of PyTorch which GPU architectures it was compiled for, and judge whether it carries Pascal (sm_61).

The list is compiled into the library, so no GPU is needed to read it, but the public call hides it: older versions
answer an empty list without a device, which looks like a CPU build. `torch._C._cuda_getArchFlags()` tells them apart
(a CPU build has no such function). A wheel that is not installed is read from its file: the same text stands in
libtorch_python as one literal.

Which binaries run where is NVIDIA's rule (CUDA C++ programming guide, binary and PTX compatibility): a cubin for X.y
runs on X.z with z >= y; PTX for X.y is compiled at load time for anything newer or equal; a name that ends in `a` is
bound to its own architecture, one that ends in `f` to its family.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, Any

from findings.config import TorchWheel
from findings.download import TRANSIENT, FetchError
from findings.index_wheel import opened_wheel
from findings.records import Kind, Outcome, Record, clip_log, redact, sha256_text, utc_now

PASCAL = 61
"""Compute capability 6.1, as the study's GTX 1060, times ten."""
LIBRARIES = ("flash-attn", "vllm", "bitsandbytes", "sglang", "xformers", "triton")
PROBE_TIMEOUT_S = 300.0
READ_BYTES = 8 * 1024 * 1024


class Answer(StrEnum):
    """What a build says about one compute capability."""

    CARRIES = "carries"
    DROPPED = "dropped"
    NO_CUDA_BUILD = "no_cuda_build"
    UNKNOWN = "unknown"


class ProbeError(RuntimeError):
    """The interpreter or file cannot be asked at all; the message says what to mend."""


@dataclass(frozen=True)
class Architecture:
    """One compiled target: machine code (`sm_`) or PTX (`compute_`), its capability times ten, its suffix (a, f)."""

    binary: bool
    capability: int
    suffix: str = ""

    @property
    def name(self) -> str:
        """As nvcc spells it."""
        return f"{'sm' if self.binary else 'compute'}_{self.capability}{self.suffix}"

    def runs_on(self, capability: int) -> bool:
        """Whether a device of `capability` (times ten) can run it."""
        if self.suffix == "a":
            return self.capability == capability
        if self.binary or self.suffix == "f":
            return self.capability // 10 == capability // 10 and self.capability <= capability
        return self.capability <= capability


_NAME = re.compile(r"(sm|compute)_(\d{2,3})([af]?)\Z")


def parse_architectures(words: Iterable[str]) -> tuple[Architecture, ...]:
    """Architectures from words such as `sm_61`, `compute_90`, `sm_100a`; words of another form are left out."""
    found = []
    for word in words:
        if match := _NAME.match(word.strip()):
            found.append(Architecture(match[1] == "sm", int(match[2]), match[3]))
    return tuple(found)


def judge(architectures: Sequence[Architecture], *, cuda_build: bool, capability: int = PASCAL) -> tuple[Answer, str]:
    """(answer, what it rests on): `carries` names the first architecture that the device can run."""
    if not cuda_build:
        return Answer.NO_CUDA_BUILD, "a build without CUDA carries no GPU architecture"
    if not architectures:
        return Answer.UNKNOWN, "a CUDA build whose list of architectures could not be read"
    able = [each for each in architectures if each.runs_on(capability)]
    # Machine code first: PTX is compiled at the first start, and cuBLAS or cuDNN below may lack the architecture.
    able.sort(key=lambda each: (not each.binary, -each.capability))
    if able:
        return Answer.CARRIES, able[0].name
    oldest = min(each.capability for each in architectures)
    return Answer.DROPPED, f"the oldest architecture is {oldest / 10:.1f}"


def channel_of(version: str, cuda: str) -> str:
    """PyTorch's channel: the local part of the version (`cpu`, `cu126`), else what its CUDA version says."""
    local = version.partition("+")[2]
    if re.fullmatch(r"cpu|cu\d+|rocm[\d.]+|xpu", local):
        return local
    return "cu" + cuda.replace(".", "") if cuda else "cpu"


_PROBE = """
import importlib.metadata as metadata, json, re, sys
found = {"libraries": {}}
for name in sys.argv[1:]:
    try:
        told = metadata.metadata(name)
    except metadata.PackageNotFoundError:
        continue
    text = told.get_payload() if isinstance(told.get_payload(), str) else ""
    text += " " + (told.get("Description") or "") + " " + (told.get("Summary") or "")
    said = re.search(r"[^.\\n]*compute capability[^\\n]{0,80}", text, re.I)
    found["libraries"][name] = {"version": told["Version"], "says": said.group(0).strip() if said else ""}
try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    print("\\n" + json.dumps(found))
    sys.exit(0)
flags = getattr(torch._C, "_cuda_getArchFlags", None)
found["torch"] = {
    "version": torch.__version__, "cuda": torch.version.cuda or "", "hip": getattr(torch.version, "hip", None) or "",
    "git": getattr(torch.version, "git_version", "") or "", "arch_list": list(torch.cuda.get_arch_list()),
    "arch_flags": (flags() or "").split() if flags else None, "is_available": bool(torch.cuda.is_available()),
    "devices": [
        {"name": torch.cuda.get_device_name(i), "capability": list(torch.cuda.get_device_capability(i))}
        for i in range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    ],
}
print("\\n" + json.dumps(found))
"""


def ask(python: Path, timeout_s: float = PROBE_TIMEOUT_S) -> tuple[dict[str, Any], subprocess.CompletedProcess[str]]:
    """What the interpreter's torch says about itself (empty where it crashed), and how the process ended.

    Raises ProbeError where the interpreter cannot be started or does not end in time.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _PROBE, *LIBRARIES],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=environment,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ProbeError(
            f"{python.name}: cannot be asked ({type(error).__name__}); give a Python interpreter"
        ) from error
    lines = done.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if done.returncode == 0 and lines else {}
    except json.JSONDecodeError:
        answer = {}
    return answer, done


def probe_python(wheel_id: str, python: Path, expected_version: str = "") -> Record:
    """The record of an interpreter's torch. Raises ProbeError.

    outcome ok: it answered (also a CPU build). unavailable: no torch there. crashed: importing torch failed.
    detail: version, cuda, channel, sm_61 (an Answer), by, architectures, list_from, is_available, devices, libraries.
    """
    started = utc_now()
    answer, done = ask(python)
    head, tail = clip_log(redact(done.stderr))
    blank = Record(
        Kind.TORCH, wheel_id, Outcome.OK, started=started, exit_code=done.returncode, log_head=head, log_tail=tail
    )
    if done.stderr:
        blank = _with(blank, log_sha256=sha256_text(redact(done.stderr)))
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return _with(blank, outcome=Outcome.CRASHED, reason=redact(f"importing torch failed: {last[0]}"))
    torch = answer.get("torch")
    libraries = describe_libraries(answer.get("libraries", {}))
    if torch is None:
        return _with(
            blank, outcome=Outcome.UNAVAILABLE, reason="no torch in that environment", detail={"libraries": libraries}
        )
    return _with(blank, **_judged(torch, "python", expected_version, {"libraries": libraries}))


def _judged(torch: Mapping[str, Any], told_by: str, expected_version: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """reason and detail of a build's answer."""
    flags = torch["arch_flags"]
    words = list(torch["arch_list"]) or list(flags or ())
    architectures = parse_architectures(words)
    cuda_build = bool(torch["cuda"]) or bool(flags)
    sm_61, by = judge(architectures, cuda_build=cuda_build)
    reason = by if sm_61 in (Answer.NO_CUDA_BUILD, Answer.UNKNOWN) else ""
    if expected_version and expected_version != torch["version"]:
        reason = f"{reason}; asked for {expected_version}, found {torch['version']}".lstrip("; ")
    source = "" if not words else "torch.cuda.get_arch_list" if torch["arch_list"] else "compiled-in flags"
    detail = {
        "version": torch["version"],
        "cuda": torch["cuda"],
        "hip": torch["hip"],
        "git": torch["git"],
        "channel": channel_of(torch["version"], torch["cuda"]),
        "sm_61": sm_61.value,
        "by": by,
        "architectures": [each.name for each in architectures],
        "list_from": source,
        "told_by": told_by,
        "is_available": torch["is_available"],
        "devices": torch["devices"],
    }
    return {"reason": reason, "detail": detail | dict(more), "versions": {"torch": torch["version"]}}


def _with(record: Record, **changes: Any) -> Record:
    return Record(**({name: getattr(record, name) for name in Record.__dataclass_fields__} | changes))


def describe_libraries(installed: Mapping[str, Mapping[str, str]]) -> dict[str, dict[str, str]]:
    """For each library above PyTorch: its version and what its metadata says about the smallest compute capability."""
    told = {}
    for name in LIBRARIES:
        if name not in installed:
            told[name] = {"version": "", "says": "", "evidence": "published evidence only: not installed here"}
            continue
        says = installed[name]["says"]
        evidence = "its own metadata" if says else "published evidence only: its metadata names no compute capability"
        told[name] = {"version": installed[name]["version"], "says": says, "evidence": evidence}
    return told


# --- a wheel's file ---------------------------------------------------------------------------------------------------

_FLAGS = re.compile(rb"(?<![\w.])(?:(?:sm|compute)_\d{2,3}[af]?)(?:[ ;](?:sm|compute)_\d{2,3}[af]?)*(?=\x00)")
_ASSIGNED = re.compile(r"^(__version__|cuda|hip|git_version)(?:\s*:[^=]+)?\s*=\s*(?:'([^']*)'|\"([^\"]*)\"|None)", re.M)


PYTHON_LIBRARIES = ("torch/lib/libtorch_python.so", "torch/lib/torch_python.dll")


def probe_wheel(wheel_id: str, wheel: Path) -> Record:
    """The same record from a wheel's file, nothing installed. Raises ProbeError where it is not a wheel of torch."""
    try:
        with zipfile.ZipFile(wheel) as opened:
            return probe_opened(wheel_id, wheel.name, opened)
    except (OSError, zipfile.BadZipFile) as error:
        raise ProbeError(f"{wheel.name}: not a readable wheel ({type(error).__name__})") from error


def probe_index(wheel: TorchWheel) -> Record:
    """The same record from a wheel where pip would find it, of which only two members are read (about 10 MB).

    The member that holds the list is pinned by its sha256. outcome unavailable, with detail.retryable, where the index
    cannot be asked or has no such file. Raises ProbeError for other bytes than those pinned.
    """
    started = utc_now()
    # Without a name, the build for Linux that this project's own lowest Python would get.
    name = (
        re.escape(wheel.wheel_file) or rf"torch-{re.escape(wheel.version)}(-\d+)?-cp311-cp311-\w*linux\w*_x86_64\.whl"
    )
    absent = f"no place that pip is set to has torch {wheel.version}: add PyTorch's channel {wheel.channel} to pip's "
    absent += "configuration (extra-index-url) and ask again with --forcerun torch_probe"
    try:
        with opened_wheel("torch", re.compile(name), absent) as found:
            record = probe_opened(wheel.id, found.name, found.zip)
            more = {"wheel_bytes": found.size_bytes, "stated_wheel_sha256": found.stated_sha256}
    except FetchError as error:
        detail = {"retryable": error.cause in TRANSIENT, "cause": error.cause}
        detail |= {"version": wheel.version, "channel": wheel.channel, "sm_61": Answer.UNKNOWN.value}
        return Record(Kind.TORCH, wheel.id, Outcome.UNAVAILABLE, str(error), started=started, detail=detail)
    digest = record.detail["library_sha256"]
    if wheel.library_sha256 and digest != wheel.library_sha256:
        raise ProbeError(
            f"config/engines.yaml: torch_wheels[{wheel.id}].library_sha256: {wheel.library_sha256} is pinned, the "
            f"library in {record.detail['wheel_file']} has {digest}; another file is served under that name: do not "
            "trust it"
        )
    return _with(record, started=started, detail={**record.detail, **more})


def probe_opened(wheel_id: str, name: str, opened: zipfile.ZipFile) -> Record:
    """The record of an opened wheel. Raises ProbeError where it is no wheel of torch."""
    started = utc_now()
    names = set(opened.namelist())
    if "torch/version.py" not in names:
        raise ProbeError(f"{name}: no torch/version.py in it; give a wheel of torch")
    text = opened.read("torch/version.py").decode("utf-8", "replace")
    stated = {key: single or double or "" for key, single, double in _ASSIGNED.findall(text)}
    flags: list[str] = []
    digest = ""
    for library in names.intersection(PYTHON_LIBRARIES):
        with opened.open(library) as stream:
            flags, digest = architecture_literal(stream)
    cuda = stated.get("cuda", "")
    torch = {
        "version": stated.get("__version__", ""),
        "cuda": cuda,
        "hip": stated.get("hip", ""),
        "git": stated.get("git_version", ""),
        "arch_list": [],
        "arch_flags": flags if cuda else None,
        "is_available": False,
        "devices": [],
    }
    judged = _judged(torch, "wheel", "", {"library_sha256": digest, "wheel_file": name})
    return _with(Record(Kind.TORCH, wheel_id, Outcome.OK, started=started), **judged)


def architecture_literal(stream: IO[bytes]) -> tuple[list[str], str]:
    """(the longest text such as `sm_50 sm_60 compute_90` before a zero byte, as words, [] without one; the sha256)."""
    best: list[str] = []
    rest = b""
    digest = hashlib.sha256()
    while piece := stream.read(READ_BYTES):
        digest.update(piece)
        data = rest + piece
        for found in _FLAGS.findall(data):
            words = re.split(r"[ ;]", found.decode("ascii"))
            best = max(best, words, key=len)
        rest = data[-1024:]
    return best, digest.hexdigest()
