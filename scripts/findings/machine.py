"""Watches the machine while an arm runs: who else computed, memory, swap, and GPU clocks where NVML has them."""

from __future__ import annotations

import contextlib
import functools
import importlib
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import psutil

from findings.host import usable_cores

SAMPLE_SECONDS = 0.5
_RAPL = Path("/sys/class/powercap/intel-rapl:0/energy_uj")


@dataclass(frozen=True)
class LoadReport:
    """What happened between start and stop (seconds, bytes, shares 0..1, joules)."""

    wall_s: float
    engine_cpu_s: float
    other_cpu_share: float
    rss_bytes: int
    swap_bytes: int
    machine: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Snapshot:
    """Counters of a machine at one moment: seconds since some start, bytes swapped, microjoules where it tells them.

    `own_s` are the processor seconds that this pipeline itself has used there.
    """

    at: float
    busy_s: float
    engine_s: float
    own_s: float = 0.0
    swapped: int = 0
    energy_uj: int | None = None


@dataclass(frozen=True)
class Sample:
    """What only a look in between tells: the engine's resident bytes, share of memory available, the GPU's readings."""

    rss_bytes: int
    available_share: float
    gpu: Mapping[str, Any] | None = None


class LoadSource(Protocol):
    """A machine as it can be watched while an engine runs on it; None for what it does not tell (any more)."""

    period_s: float

    def cores(self) -> int:
        """Cores that the engine may use."""

    def snapshot(self) -> Snapshot | None:
        """The counters now."""

    def sample(self) -> Sample | None:
        """A look now."""


def _busy_seconds() -> float:
    """Busy processor seconds of the machine since boot; stolen time counts as busy, waiting for disks not."""
    times = psutil.cpu_times()
    # user already holds guest time, nice holds guest_nice (proc(5)).
    busy = times.user + times.nice + times.system
    return float(busy + getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0) + getattr(times, "steal", 0.0))


def process_cpu_seconds(pid: int) -> float:
    """User and system seconds of a process and its living children; 0.0 once it is gone."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return 0.0
    total = 0.0
    for member in family:
        try:
            times = member.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system
    return total


class LocalLoad:
    """This machine, and an engine on it; a sample costs next to nothing."""

    period_s = SAMPLE_SECONDS

    def __init__(self, engine_pid: int) -> None:
        self._pid = engine_pid
        self._gpu = GpuReader()

    def cores(self) -> int:
        """Cores that this process may use."""
        return usable_cores()

    def snapshot(self) -> Snapshot:
        """The counters now; the seconds of an engine that is gone are 0."""
        own, swap = os.times(), psutil.swap_memory()
        return Snapshot(
            at=time.monotonic(),
            busy_s=_busy_seconds(),
            engine_s=process_cpu_seconds(self._pid),
            own_s=own.user + own.system,
            swapped=int(swap.sin + swap.sout),
            energy_uj=_rapl_microjoules(),
        )

    def sample(self) -> Sample | None:
        """A look now; None once the engine is gone."""
        try:
            rss = int(psutil.Process(self._pid).memory_info().rss)
        except psutil.Error:
            return None
        memory = psutil.virtual_memory()
        return Sample(rss, memory.available / max(memory.total, 1), self._gpu.read())


class LoadWatch:
    """Context manager around the counted requests of one arm; `report` is there once it has closed.

    The share of others is the machine's busy time less the engine's and this process's, over the time of the cores
    that the engine may use. A machine that stopped telling is not known to be quiet, so others had all of it.
    """

    def __init__(self, source: LoadSource) -> None:
        self._source = source
        self._stop = threading.Event()
        self._samples: list[Sample] = []
        self._thread = threading.Thread(target=self._look, daemon=True)
        self.report: LoadReport | None = None

    def __enter__(self) -> Self:
        self._start = self._source.snapshot()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._source.snapshot()
        self._stop.set()
        self._thread.join(timeout=5)
        self.report = load_report(self._start, end, self._source.cores(), list(self._samples))

    def _look(self) -> None:
        while (sample := self._source.sample()) is not None:
            self._samples.append(sample)
            if self._stop.wait(self._source.period_s):
                return


def load_report(start: Snapshot | None, end: Snapshot | None, cores: int, samples: Sequence[Sample]) -> LoadReport:
    """What happened between two snapshots on a machine with so many usable cores."""
    rss = max((sample.rss_bytes for sample in samples), default=0)
    machine: dict[str, Any] = {
        "memory_available_share": round(min((sample.available_share for sample in samples), default=1.0), 4)
    }
    if (gpu := gpu_summary([sample.gpu for sample in samples if sample.gpu is not None])) is not None:
        machine["gpu"] = gpu
    if start is None or end is None:
        return LoadReport(0.0, 0.0, 1.0, rss, 0, machine)
    wall = max(end.at - start.at, 1e-9)
    engine = max(end.engine_s - start.engine_s, 0.0)
    others = max((end.busy_s - start.busy_s) - engine - (end.own_s - start.own_s), 0.0)
    before, after = start.energy_uj, end.energy_uj
    if before is not None and after is not None and after >= before:
        machine["energy_j"] = (after - before) / 1e6
    return LoadReport(
        wall_s=wall,
        engine_cpu_s=engine,
        other_cpu_share=round(min(others / (wall * max(cores, 1)), 1.0), 4),
        rss_bytes=rss,
        swap_bytes=max(end.swapped - start.swapped, 0),
        machine=machine,
    )


def _rapl_microjoules() -> int | None:
    """The package's energy counter, None where the machine does not tell (no RAPL, or not readable)."""
    try:
        return int(_RAPL.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


class GpuReader:
    """Counters of the NVIDIA GPUs of this machine; silent without NVML, without a driver, and without a GPU.

    Clocks, temperature, power and throttle reasons are those of the first GPU; memory is that of all of them, since an
    engine spreads a model over all.
    """

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:  # absent on most machines, and not needed there
            return
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return
        weakref.finalize(self, _end_nvml, nvml)
        with contextlib.suppress(nvml.NVMLError):
            self._handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        if self._handles:
            self._nvml = nvml

    def memory_used_bytes(self) -> int | None:
        """Memory in use on all GPUs, whoever uses it; None where that is not told."""
        nvml = self._nvml
        if nvml is None:
            return None
        try:
            return sum(int(nvml.nvmlDeviceGetMemoryInfo(handle).used) for handle in self._handles)
        except nvml.NVMLError:
            return None

    def read(self) -> dict[str, Any] | None:
        """The readings that the driver gives now, without those that it does not know; None without NVML."""
        nvml = self._nvml
        if nvml is None:
            return None
        first = self._handles[0]
        row: dict[str, Any] = {}
        readings: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(first, nvml.NVML_CLOCK_SM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(first, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(first) / 1000,
            "throttle_mask": lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(first)),
        }
        for name, read in readings.items():
            with contextlib.suppress(nvml.NVMLError):
                row[name] = read()
        if (used := self.memory_used_bytes()) is not None:
            row["memory_used_bytes"] = used
        return row


def _end_nvml(nvml: Any) -> None:
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlShutdown()


def with_gpu_memory(machine: Mapping[str, Any], before: int | None, after: int | None) -> dict[str, Any]:
    """What was watched of a machine, with the GPUs' memory in use before the engine started and after it had ended.

    Between them lies the peak (memory_used_bytes_max); nothing is added where no GPU was watched.
    """
    gpu = machine.get("gpu")
    if not isinstance(gpu, Mapping):
        return dict(machine)
    more = {"memory_before_bytes": before, "memory_after_bytes": after}
    return {**machine, "gpu": {**gpu, **{name: value for name, value in more.items() if value is not None}}}


def gpu_summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Smallest and largest of each reading and the names of all throttle reasons; None where nothing was read."""
    if not rows:
        return None
    result: dict[str, Any] = {}
    for name in ("sm_clock_mhz", "temperature_c", "power_w", "memory_used_bytes"):
        values = [row[name] for row in rows if name in row]
        if values:
            result[f"{name}_min"], result[f"{name}_max"] = min(values), max(values)
    masks = [int(row["throttle_mask"]) for row in rows if "throttle_mask" in row]
    if masks:
        result["throttle_reasons"] = throttle_names(functools.reduce(operator.or_, masks))
    return result


# Bits of nvmlClocksThrottleReasons (NVML API reference).
_THROTTLE_BITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
    0x200: "board_limit",
    0x400: "reliability",
}


def throttle_names(mask: int) -> list[str]:
    """Names of the throttle reasons in an NVML bit mask, `["none"]` for 0; unknown bits together are one name."""
    names = [name for bit, name in _THROTTLE_BITS.items() if mask & bit]
    if unknown := mask & ~functools.reduce(operator.or_, _THROTTLE_BITS):
        names.append(f"unknown_{unknown:#x}")
    return names or ["none"]
