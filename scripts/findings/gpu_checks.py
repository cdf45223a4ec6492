"""What is known about old NVIDIA GPUs, and about memory spills, as checks with a message.

Sources: the driver branch from NVIDIA's "UNIX graphics feature deprecation schedule" (release 580 is the last for
Maxwell, Pascal and Volta); the toolkit from the release notes of CUDA Toolkit 13.0, "Deprecated Architectures", and
NVIDIA's developer blog "Navigating GPU Architecture Support" (no offline compilation and no libraries below compute
capability 7.5; CUDA 12.9 is the last that has them). Both read in December 2026.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from findings.host import Gpu

LAST_OLD_BRANCH = 580
"""Last driver branch for compute capabilities below OLDEST_IN_CUDA_13; its drivers for Windows are numbered to 582."""
FIRST_NEW_BRANCH = 590
"""First driver branch without them."""
OLDEST_IN_CUDA_13 = 7.5


class Level(StrEnum):
    """How much a check matters to who reads it."""

    OK = "ok"
    NOTE = "note"
    WARNING = "warning"


@dataclass(frozen=True)
class Check:
    """One statement about this machine."""

    level: Level
    message: str


def capability(gpu: Gpu) -> float:
    """Compute capability as a number ("6.1" -> 6.1); 0.0 where it cannot be read."""
    try:
        return float(gpu.compute_capability)
    except ValueError:
        return 0.0


def old(gpu: Gpu) -> bool:
    """Whether a GPU is of a generation that new drivers and CUDA 13 leave out (Maxwell, Pascal, Volta)."""
    return 0.0 < capability(gpu) < OLDEST_IN_CUDA_13


def driver_check(gpu: Gpu) -> Check | None:
    """The driver branch of an old GPU; None for a GPU that new drivers support."""
    if not old(gpu):
        return None
    branch = gpu.driver.partition(".")[0]
    name = f"{gpu.name} (compute capability {gpu.compute_capability})"
    if branch.isdigit() and int(branch) >= FIRST_NEW_BRANCH:
        text = f"{name}: driver {gpu.driver}, but branch {LAST_OLD_BRANCH} is the last for it; install that branch"
        return Check(Level.WARNING, text)
    text = f"{name}: driver {gpu.driver}; branch {LAST_OLD_BRANCH} is the last for it, do not take a newer one"
    return Check(Level.OK, text)


def cuda_check(gpu: Gpu, program: str, cuda: str) -> Check | None:
    """Whether a program built with a CUDA toolkit (`12.8`) can hold code for a GPU; None where nothing is to be said.

    A build may leave an architecture out although its toolkit knows it; only the build's own list proves that it runs.
    """
    major = cuda.partition(".")[0]
    if not old(gpu) or not major.isdigit():
        return None
    wanted = f"sm_{gpu.compute_capability.replace('.', '')}"
    if int(major) >= 13:
        text = f"{program} is built with CUDA {cuda}, which cannot compile for {wanted}; take a build with CUDA 12"
        return Check(Level.WARNING, text)
    return Check(Level.NOTE, f"{program} is built with CUDA {cuda}, which still knows {wanted}")


def spill_check(system: str, kernel: str = "") -> Check:
    """What happens when a GPU's memory is too small, by operating system (`platform.system()`, `platform.release()`).

    Under WSL the driver is that of Windows.
    """
    if system == "Windows" or "microsoft" in kernel.lower():
        text = (
            "Windows moves what does not fit into the GPU's memory to shared memory silently, and everything becomes"
            " slow instead of failing; set the driver's CUDA sysmem fallback policy to 'prefer no sysmem fallback'"
        )
        return Check(Level.WARNING, text)
    text = "too little GPU memory fails openly here (Vulkan spills only with GGML_VK_ALLOW_SYSMEM_FALLBACK)"
    return Check(Level.OK, text)


def checks(gpus: Sequence[Gpu], cuda_programs: Sequence[tuple[str, str]], system: str, kernel: str = "") -> list[Check]:
    """All checks of a machine; `cuda_programs` are pairs of a program's name and the CUDA version it is built with."""
    found = [driver_check(gpu) for gpu in gpus]
    found += [cuda_check(gpu, name, cuda) for gpu in gpus for name, cuda in cuda_programs]
    spill = spill_check(system, kernel)
    if gpus or spill.level is not Level.OK:  # where no GPU is, there is nothing to reassure about
        found.append(spill)
    return [check for check in found if check is not None]
