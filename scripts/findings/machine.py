"""Watches the machine while an arm runs: who else computed, memory, swap, and GPU clocks where NVML has them."""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

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
class _Snapshot:
    at: float
    busy_s: float
    total_s: float
    engine_s: float
    own_s: float
    swapped: int


def _machine_times() -> tuple[float, float]:
    """(busy, total) processor seconds of the machine since boot; stolen time counts as busy, waiting for disks not."""
    times = psutil.cpu_times()
    # user already holds guest time, nice holds guest_nice (proc(5)).
    busy = times.user + times.nice + times.system
    busy += getattr(times, "irq", 0.0) + getattr(times, "softirq", 0.0) + getattr(times, "steal", 0.0)
    return busy, busy + times.idle + getattr(times, "iowait", 0.0)


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


class LoadWatch:
    """Context manager around the counted requests of one arm; `report` is there once it has closed.

    The share of others is the machine's busy time less the engine's and this process's, over the time of the cores
    that this process may use. Sampling (memory, GPU) runs in a thread twice a second and costs next to nothing.
    """

    def __init__(self, engine_pid: int) -> None:
        self._pid = engine_pid
        self._stop = threading.Event()
        self._rss = 0
        self._available = 1.0
        self._gpu = _GpuSamples()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._energy = _rapl_microjoules()
        self.report: LoadReport | None = None

    def __enter__(self) -> Self:
        self._start = self._snapshot()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = self._snapshot()
        self._stop.set()
        self._thread.join(timeout=5)
        self.report = self._summary(end)

    def _snapshot(self) -> _Snapshot:
        busy, total = _machine_times()
        own = os.times()
        swap = psutil.swap_memory()
        return _Snapshot(
            time.monotonic(),
            busy,
            total,
            process_cpu_seconds(self._pid),
            own.user + own.system,
            int(swap.sin + swap.sout),
        )

    def _sample(self) -> None:
        while True:
            try:
                self._rss = max(self._rss, int(psutil.Process(self._pid).memory_info().rss))
            except psutil.Error:
                return
            memory = psutil.virtual_memory()
            self._available = min(self._available, memory.available / max(memory.total, 1))
            self._gpu.sample()
            if self._stop.wait(SAMPLE_SECONDS):
                return

    def _summary(self, end: _Snapshot) -> LoadReport:
        start = self._start
        wall = max(end.at - start.at, 1e-9)
        engine = max(end.engine_s - start.engine_s, 0.0)
        own = end.own_s - start.own_s
        others = max((end.busy_s - start.busy_s) - engine - own, 0.0)
        machine: dict[str, Any] = {"memory_available_share": round(self._available, 4)}
        if (gpu := self._gpu.summary()) is not None:
            machine["gpu"] = gpu
        after = _rapl_microjoules()
        if self._energy is not None and after is not None and after >= self._energy:
            machine["energy_j"] = (after - self._energy) / 1e6
        return LoadReport(
            wall_s=wall,
            engine_cpu_s=engine,
            other_cpu_share=round(min(others / (wall * usable_cores()), 1.0), 4),
            rss_bytes=self._rss,
            swap_bytes=max(end.swapped - start.swapped, 0),
            machine=machine,
        )


def _rapl_microjoules() -> int | None:
    """The package's energy counter, None where the machine does not tell (no RAPL, or not readable)."""
    try:
        return int(_RAPL.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


class _GpuSamples:
    """Clocks, temperature, power, memory and throttle reasons of the first NVIDIA GPU; silent without NVML."""

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []
        self._nvml: Any = None
        try:
            nvml: Any = importlib.import_module("pynvml")
        except ImportError:  # absent on most machines, and not needed there
            return
        try:
            nvml.nvmlInit()
            self._handle = nvml.nvmlDeviceGetHandleByIndex(0)
        except nvml.NVMLError:
            return
        self._nvml = nvml

    def sample(self) -> None:
        nvml = self._nvml
        if nvml is None:
            return
        row: dict[str, Any] = {}
        readings: dict[str, Callable[[], Any]] = {
            "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM),
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(self._handle, nvml.NVML_TEMPERATURE_GPU),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
            "memory_used_bytes": lambda: int(nvml.nvmlDeviceGetMemoryInfo(self._handle).used),
            "throttle_mask": lambda: int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._handle)),
        }
        for name, read in readings.items():
            try:
                row[name] = read()
            except nvml.NVMLError:
                continue
        self._rows.append(row)

    def summary(self) -> dict[str, Any] | None:
        if self._nvml is None or not self._rows:
            return None
        result: dict[str, Any] = {}
        for name in ("sm_clock_mhz", "temperature_c", "power_w", "memory_used_bytes"):
            values = [row[name] for row in self._rows if name in row]
            if values:
                result[f"{name}_min"], result[f"{name}_max"] = min(values), max(values)
        mask = 0
        for row in self._rows:
            mask |= row.get("throttle_mask", 0)
        result["throttle_reasons"] = throttle_names(mask)
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
}


def throttle_names(mask: int) -> list[str]:
    """Names of the throttle reasons in an NVML bit mask, `["none"]` for 0."""
    return [name for bit, name in _THROTTLE_BITS.items() if mask & bit] or ["none"]
