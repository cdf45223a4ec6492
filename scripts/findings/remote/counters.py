"""Reads what serve.sh prints of the other machine's /proc: processor times, memory, swap, and nvidia-smi's readings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from findings.machine import Sample, Snapshot


@dataclass(frozen=True)
class Units:
    """What the numbers of one machine mean: usable cores, clock ticks a second, bytes of a page."""

    cores: int = 1
    ticks: int = 100
    page: int = 4096


@dataclass(frozen=True)
class Counters:
    """One look at a machine and at an engine on it; seconds, bytes, shares 0..1.

    `engine_cpu_s` holds ended children, too. `oom_kills` is the kernel's own counter, 0 where it has none.
    """

    uptime_s: float
    busy_s: float
    engine_cpu_s: float
    rss_bytes: int
    peak_rss_bytes: int
    engine_swap_bytes: int
    swapped_bytes: int
    available_share: float
    oom_kills: int
    gpu: Mapping[str, Any] | None

    def snapshot(self) -> Snapshot:
        """As a watch over the machine's load takes it."""
        return Snapshot(at=self.uptime_s, busy_s=self.busy_s, engine_s=self.engine_cpu_s, swapped=self.swapped_bytes)

    def sample(self) -> Sample:
        """As a watch over memory and GPU takes it."""
        return Sample(self.rss_bytes, self.available_share, self.gpu)


def parse_counters(text: str, units: Units, gpu: str = "") -> Counters | None:
    """Counters from lines of /proc/uptime, stat, meminfo, vmstat, <pid>/stat and <pid>/status, in that order.

    None where the engine or the machine's own times are not among them.
    """
    uptime = busy = -1.0
    engine_ticks = rss = peak = swap = swapped = oom = 0
    total = available = 0
    engine_seen = False
    for line in text.splitlines():
        name, _, rest = line.partition(" ")
        if name == "cpu":
            # proc(5): user nice system idle iowait irq softirq steal; guest time is in user already.
            times = [int(word) for word in rest.split()[:8]]
            times += [0] * (8 - len(times))
            busy = (sum(times) - times[3] - times[4]) / units.ticks
        elif name in ("pswpin", "pswpout"):
            swapped += int(rest) * units.page
        elif name == "oom_kill":
            oom = int(rest)
        elif line.startswith(("MemTotal:", "MemAvailable:", "VmRSS:", "VmHWM:", "VmSwap:")):
            key, _, value = line.partition(":")
            size = int(value.split()[0]) * 1024
            total = size if key == "MemTotal" else total
            available = size if key == "MemAvailable" else available
            rss += size if key == "VmRSS" else 0
            peak += size if key == "VmHWM" else 0
            swap += size if key == "VmSwap" else 0
        elif re.match(r"\d+ \(", line):
            # The name in brackets may hold anything; after it: state ppid ... utime(14) stime(15) cutime cstime.
            words = line.rpartition(")")[2].split()
            engine_ticks += sum(int(word) for word in words[11:15])
            engine_seen = engine_seen or words[:1] != ["Z"]
        elif re.fullmatch(r"\d+\.\d+ \d+\.\d+", line):
            uptime = float(name)
    if uptime < 0 or busy < 0 or not engine_seen:
        return None
    return Counters(
        uptime_s=uptime,
        busy_s=busy,
        engine_cpu_s=engine_ticks / units.ticks,
        rss_bytes=rss,
        peak_rss_bytes=peak,
        engine_swap_bytes=swap,
        swapped_bytes=swapped,
        available_share=available / total if total else 1.0,
        oom_kills=oom,
        gpu=parse_gpu(gpu),
    )


def parse_gpu(line: str) -> dict[str, Any] | None:
    """Readings of one GPU from nvidia-smi (MHz, degrees, W, MiB, mask); those it does not support are left out."""
    words = [word.strip() for word in line.split(",")]
    if len(words) != 5:
        return None
    row: dict[str, Any] = {}
    names = ("sm_clock_mhz", "temperature_c", "power_w", "memory_used_bytes")
    for name, word in zip(names, words, strict=False):
        try:
            value = float(word)
        except ValueError:  # [N/A], [Not Supported]
            continue
        if name == "memory_used_bytes":
            row[name] = int(value) * 2**20
        else:
            row[name] = value if name == "power_w" else int(value)
    if re.fullmatch(r"0x[0-9a-fA-F]+", words[4]):
        row["throttle_mask"] = int(words[4], 16)
    return row or None
