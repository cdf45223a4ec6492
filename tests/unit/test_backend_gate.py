"""The backend that is asked must be the one that the server's log shows, whole."""

from typing import Any

import pytest

from findings.blocks import ArmRun, Block
from findings.engine.client import backend_used
from findings.engine.reported import backend_of_buffers
from findings.gates import backend_as_asked
from findings.records import Engagement, Outcome

CUDA = """
load_tensors: offloaded {layers} layers to GPU
load_tensors:   CPU_Mapped model buffer size =   170.00 MiB
load_tensors:        CUDA0 model buffer size =   241.00 MiB
llama_kv_cache:      CUDA0 KV buffer size =    15.00 MiB
"""
VULKAN = """
load_tensors: offloaded {layers} layers to GPU
load_tensors:      Vulkan0 model buffer size =   241.00 MiB
load_tensors: Vulkan_Host model buffer size =   170.00 MiB
"""
CPU = "load_tensors: offloaded {layers} layers to GPU\nload_tensors:   CPU_Mapped model buffer size =   241.00 MiB\n"
BINDING = {"settings": {"n_gpu_layers": 999}}
SERVER = {"flags": ["--model", "m.gguf", "--gpu-layers", "999"]}


def block(asked: str, log: str, launch: dict[str, Any], layers: str = "19/19") -> Block:
    """A block of one arm whose settings are made from a log as arm_runner makes them."""
    devices = backend_used(log.format(layers=layers))
    settings = {
        **devices,
        "backend": asked,
        "backend_used": backend_of_buffers(devices.get("buffers_mib", {})),
        "launch": launch,
    }
    run = ArmRun("baseline", "baseline", "none", Outcome.OK, Engagement.OFF, settings=settings)
    return Block(1, ("baseline",), 1, "session", {"baseline": run})


@pytest.mark.parametrize("launch", [BINDING, SERVER])
@pytest.mark.parametrize(
    ("asked", "log", "layers", "passed"),
    [
        ("cuda", CUDA, "19/19", True),
        ("vulkan", VULKAN, "19/19", True),
        ("cpu", CPU, "0/19", True),
        ("cuda", VULKAN, "19/19", False),
        ("cuda", CPU, "0/19", False),
        ("cpu", CUDA, "19/19", False),
        ("cuda", CUDA, "10/19", False),
        ("cuda", "no word about buffers", "19/19", False),
        ("cpu", "no word about buffers", "19/19", True),
    ],
)
def test_a_mismatch_fails_the_gate(launch: dict[str, Any], asked: str, log: str, layers: str, passed: bool) -> None:
    gate = backend_as_asked([block(asked, log, launch, layers)], "cpu")
    assert gate.passed is passed, gate.reason
    assert f"asked {asked}" in gate.reason


def test_fewer_layers_are_right_where_fewer_were_asked() -> None:
    launch = {"flags": ["-ngl", "10"]}
    assert backend_as_asked([block("cuda", CUDA, launch, "10/19")], "cuda").passed
