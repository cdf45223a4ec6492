"""NVIDIA's counters without a GPU: the real module's names, signatures and errors around answers that are made up.

The answers alone are fake: every name that is asked for must exist in nvidia-ml-py, and every call must fit the
signature there.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from findings import host
from findings.blocks import ArmRun, Block
from findings.gates import THROTTLE_HARMLESS, clocks_steady, memory_headroom
from findings.machine import GpuReader, Sample, Snapshot, gpu_summary, load_report, throttle_names, with_gpu_memory
from findings.records import Engagement, Outcome

GIB = 2**30
GTX_1060 = {
    "nvmlInit": None,
    "nvmlShutdown": None,
    "nvmlSystemGetDriverVersion": "580.95.05",
    "nvmlDeviceGetCount": 1,
    "nvmlDeviceGetHandleByIndex": "handle",
    "nvmlDeviceGetName": b"NVIDIA GeForce GTX 1060 6GB",
    "nvmlDeviceGetCudaComputeCapability": (6, 1),
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=6 * GIB, used=GIB, free=5 * GIB),
    "nvmlDeviceGetClockInfo": 1708,
    "nvmlDeviceGetTemperature": 71,
    "nvmlDeviceGetPowerUsage": 98_500,
    "nvmlDeviceGetCurrentClocksThrottleReasons": pynvml.nvmlClocksThrottleReasonSwPowerCap,
}


class Nvml:
    """The real module whose functions answer from a table; an error in it is raised."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = dict(answers)
        self.called: list[str] = []

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)  # AttributeError where nvidia-ml-py has no such name
        if not inspect.isfunction(real):
            return real

        def answer(*arguments: Any) -> Any:
            inspect.signature(real).bind(*arguments)
            self.called.append(name)
            given = self.answers[name]
            if isinstance(given, Exception):
                raise given
            return given

        return answer


def placed(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> Nvml:
    nvml = Nvml(GTX_1060 | changes)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type] # a stand-in
    return nvml


def error(name: str) -> Exception:
    """An error of NVML as the module raises it: one class for each code."""
    found: Exception = pynvml.NVMLError(getattr(pynvml, name))
    assert type(found) is not pynvml.NVMLError
    return found


def test_a_gpu_is_described_and_the_library_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = placed(monkeypatch)
    assert host.nvidia_gpus() == (host.Gpu("NVIDIA GeForce GTX 1060 6GB", "6.1", 6 * GIB, "580.95.05"),)
    assert nvml.called[0] == "nvmlInit"
    assert nvml.called[-1] == "nvmlShutdown"


def test_a_look_reads_everything_and_the_library_is_closed_with_the_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = placed(monkeypatch)
    reader = GpuReader()
    assert reader.read() == {
        "sm_clock_mhz": 1708,
        "temperature_c": 71,
        "power_w": 98.5,
        "memory_used_bytes": GIB,
        "throttle_mask": 4,
    }
    del reader
    assert nvml.called.count("nvmlInit") == nvml.called.count("nvmlShutdown") == 1


@pytest.mark.parametrize("code", ["NVML_ERROR_NOT_SUPPORTED", "NVML_ERROR_FUNCTION_NOT_FOUND"])
def test_what_an_old_gpu_or_driver_does_not_tell_is_left_out(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    placed(
        monkeypatch,
        nvmlDeviceGetPowerUsage=error(code),
        nvmlDeviceGetCurrentClocksThrottleReasons=error(code),
    )
    row = GpuReader().read()
    assert row == {"sm_clock_mhz": 1708, "temperature_c": 71, "memory_used_bytes": GIB}
    summary = gpu_summary([row])
    assert summary is not None
    assert "throttle_reasons" not in summary  # not told is not the same as none


def test_a_driver_that_is_lost_in_the_middle_ends_the_readings_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nvml = placed(monkeypatch)
    reader = GpuReader()
    for name in GTX_1060:
        nvml.answers[name] = error("NVML_ERROR_GPU_IS_LOST")
    assert reader.read() == {}
    assert reader.memory_used_bytes() is None


@pytest.mark.parametrize("code", ["NVML_ERROR_LIBRARY_NOT_FOUND", "NVML_ERROR_DRIVER_NOT_LOADED"])
def test_without_a_library_or_driver_there_is_no_gpu_and_no_noise(
    code: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    nvml = placed(monkeypatch, nvmlInit=error(code))
    assert host.nvidia_gpus() == ()
    assert GpuReader().read() is None
    assert GpuReader().memory_used_bytes() is None
    assert set(nvml.called) == {"nvmlInit"}
    assert capfd.readouterr() == ("", "")


def test_the_real_module_on_this_machine_raises_nothing_and_says_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert (GpuReader().read() is None) == (host.nvidia_gpus() == ())
    assert capfd.readouterr() == ("", "")


def test_a_driver_without_any_gpu_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    placed(monkeypatch, nvmlDeviceGetCount=0)
    assert host.nvidia_gpus() == ()
    assert GpuReader().read() is None


def test_every_throttle_reason_of_the_module_has_a_name() -> None:
    prefix = "nvmlClocksThrottleReason"
    bits = {getattr(pynvml, name) for name in dir(pynvml) if name.startswith(prefix) and not name.endswith("All")}
    for bit in bits:
        (name,) = throttle_names(bit)
        assert not name.startswith("unknown"), (hex(bit), name)
    assert throttle_names(0) == ["none"]
    assert throttle_names(0x4 | 0x4000) == ["sw_power_cap", "unknown_0x4000"]


def run_on(gpu: dict[str, Any], buffers: Mapping[str, float] | None = None) -> list[Block]:
    run = ArmRun(
        "draft",
        "candidate",
        "draft_simple",
        Outcome.OK,
        Engagement.WITH_DRAFTS,
        machine={"gpu": gpu, "memory_available_share": 0.5},
        settings={"buffers_mib": buffers or {}},
    )
    return [Block(1, ("draft",), 1, "session", {"draft": run})]


def test_samples_become_a_summary_of_the_arm_that_the_gates_read(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = placed(monkeypatch)
    reader = GpuReader()
    samples = []
    for clock, used, mask in ((1708, 2 * GIB, 0), (1200, 3 * GIB, pynvml.nvmlClocksThrottleReasonHwThermalSlowdown)):
        nvml.answers["nvmlDeviceGetClockInfo"] = clock
        nvml.answers["nvmlDeviceGetMemoryInfo"] = SimpleNamespace(total=6 * GIB, used=used)
        nvml.answers["nvmlDeviceGetCurrentClocksThrottleReasons"] = mask
        samples.append(Sample(1, 0.5, reader.read()))
    report = load_report(Snapshot(0, 0, 0), Snapshot(1, 1, 1), 2, samples)
    gpu = with_gpu_memory(report.machine, GIB, GIB)["gpu"]
    assert (gpu["memory_before_bytes"], gpu["memory_used_bytes_max"], gpu["memory_after_bytes"]) == (GIB, 3 * GIB, GIB)
    assert (gpu["sm_clock_mhz_min"], gpu["sm_clock_mhz_max"]) == (1200, 1708)
    assert (gpu["temperature_c_max"], gpu["power_w_max"]) == (71, 98.5)
    gate = clocks_steady(run_on(gpu))
    assert not gate.passed
    assert "hw_thermal_slowdown" in gate.reason


def test_idling_and_set_clocks_are_no_throttling() -> None:
    assert clocks_steady(run_on({"throttle_reasons": sorted(THROTTLE_HARMLESS)})).passed


@pytest.mark.parametrize(
    ("peak_gib", "buffers", "passed"),
    [
        (5.0, {"CUDA0": 4096.0}, True),
        (3.0, {"CUDA0": 4096.0}, False),
        (3.0, {"CUDA0": 2048.0, "CUDA1": 2048.0}, False),
        (3.0, {"Vulkan0": 4096.0}, False),
        (1.1, {"CPU": 4096.0, "CUDA": 4096.0}, True),
        (1.1, {}, True),
    ],
)
def test_buffers_that_the_gpus_memory_does_not_hold_have_spilled(
    peak_gib: float, buffers: dict[str, float], passed: bool
) -> None:
    gpu = {"memory_before_bytes": GIB, "memory_used_bytes_max": int(peak_gib * GIB)}
    gate = memory_headroom(run_on(gpu, buffers))
    assert gate.passed is passed, gate.reason
    assert passed or "spilled out of the GPU's memory: draft: 2048 of 4096 MiB" in gate.reason


def test_where_no_gpu_was_watched_nothing_is_added() -> None:
    assert with_gpu_memory({"energy_j": 1.0}, None, None) == {"energy_j": 1.0}
