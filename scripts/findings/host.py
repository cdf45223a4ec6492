"""Facts of the machine that measures, under a generic label that can be published.

The machine's own name never appears: a label is made from the processor (or the first NVIDIA GPU) and the number of
cores, for example `amd-epyc-2core` or `gtx-1060-6gb`.
"""

from __future__ import annotations

import importlib
import os
import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from findings.records import Kind, Outcome, Record, utc_now

LABEL = re.compile(r"^[a-z0-9][a-z0-9.-]{0,39}$")
_MARKETING = re.compile(
    r"\b(nvidia|geforce|intel|core|processor|cpu|with|radeon|graphics|genuine|authentic(?:amd)?|laptop|gpu)\b"
)


@dataclass(frozen=True)
class Gpu:
    """One NVIDIA GPU as NVML describes it; `compute_capability` like "6.1", memory in bytes."""

    name: str
    compute_capability: str
    memory_bytes: int
    driver: str


@dataclass(frozen=True)
class HostFacts:
    """What a table row about a machine holds (memory in bytes, cores as this process may use them)."""

    label: str
    os: str
    python: str
    cpu: str
    cores: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)


def cpu_name() -> str:
    """Model name of the processor, as the kernel tells it, or the machine type where it does not."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.lower().startswith(("model name", "hardware")):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def usable_cores() -> int:
    """Cores that this process may run on (a container or taskset may allow fewer than the machine has)."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def nvidia_gpus() -> tuple[Gpu, ...]:
    """NVIDIA GPUs by NVML; an empty tuple where there is no NVML, no driver, or no package for it."""
    try:
        pynvml: Any = importlib.import_module("pynvml")
    except ImportError:  # absent on most machines, and not needed there
        return ()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        driver = _text(pynvml.nvmlSystemGetDriverVersion())
        found = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            memory = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            found.append(Gpu(_text(pynvml.nvmlDeviceGetName(handle)), f"{major}.{minor}", memory, driver))
        return tuple(found)
    except pynvml.NVMLError:
        return ()
    finally:
        pynvml.nvmlShutdown()


def _text(value: str | bytes) -> str:
    """NVML's strings, which older bindings give as bytes."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def slug(name: str) -> str:
    """A hardware name as a short label: lower case, marketing words dropped, hyphens."""
    plain = _MARKETING.sub(" ", re.sub(r"\(r\)|\(tm\)|@.*$", " ", name.lower()))
    plain = re.sub(r"\b\d+-core\b", " ", plain)
    return re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:28].strip("-") or "machine"


def host_label(cpu: str, cores: int, gpus: tuple[Gpu, ...]) -> str:
    """Generic label of a machine: its first GPU with memory in GB, else its processor with the number of cores."""
    if gpus:
        return f"{slug(gpus[0].name)}-{round(gpus[0].memory_bytes / 2**30)}gb"
    return f"{slug(cpu)}-{cores}core"


def resolve_label(configured: str) -> str:
    """The label from the configuration, or one made from the hardware where that says `auto`.

    Raises ValueError for a label that could not be a folder's name.
    """
    label = host_label(cpu_name(), usable_cores(), nvidia_gpus()) if configured in ("", "auto") else configured
    if not LABEL.match(label):
        raise ValueError(
            f"config/config.yaml: host: {label!r} is not a label (lower-case letters, digits, dots and hyphens, "
            "40 at most); write for example gtx-1060-6gb, or auto"
        )
    return label


def operating_system() -> str:
    """Distribution and version, or the kernel's name where there is no os-release."""
    try:
        facts = platform.freedesktop_os_release()
        return f"{facts.get('NAME', 'Linux')} {facts.get('VERSION_ID', '')}".strip()
    except OSError:
        return platform.system()


def host_facts(configured: str = "auto") -> HostFacts:
    """Facts of this machine (see HostFacts)."""
    return HostFacts(
        label=resolve_label(configured),
        os=operating_system(),
        python=platform.python_version(),
        cpu=cpu_name(),
        cores=usable_cores(),
        memory_bytes=int(psutil.virtual_memory().total),
        gpus=nvidia_gpus(),
        versions={"kernel": platform.release().split("-")[0], "machine": platform.machine()},
    )


def host_record(facts: HostFacts) -> Record:
    """The facts of a machine as a record."""
    detail: dict[str, Any] = {
        "os": facts.os,
        "python": facts.python,
        "cpu": facts.cpu,
        "cores": facts.cores,
        "memory_bytes": facts.memory_bytes,
        "gpus": [vars(gpu) for gpu in facts.gpus],
    }
    return Record(
        Kind.HOST, facts.label, Outcome.OK, host=facts.label, started=utc_now(), versions=facts.versions, detail=detail
    )
