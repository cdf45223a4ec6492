"""What the engine's log says about its settings, in the words of two builds."""

from __future__ import annotations

import pytest

from findings.engine.reported import backend_of_buffers, reported_settings

NEW = """\
0.00.001.837 I cmn  common_param: system_info: n_threads = 2 (n_threads_batch = 3) / 2 | CPU : SSE3 = 1 | OPENMP = 1 |
0.00.823.833 I llama_context: n_ctx                 = 1024
0.00.823.855 I llama_context: n_batch               = 512
0.00.823.865 I llama_context: n_ubatch              = 256
0.00.823.887 I llama_context: flash_attn            = auto
0.00.823.888 I llama_context: kv_unified            = false
0.00.824.156 I llama_kv_cache: size =    3.00 MiB (1024 cells), K (f16):    1.50 MiB, V (q8_0):    1.50 MiB
0.01.074.266 I resolve_fused_ops: Flash Attention enabled
0.01.264.489 I llama_context: n_batch               = 1024
0.01.264.490 I llama_kv_cache: size =    3.00 MiB (1024 cells), K (q4_0):    1.50 MiB, V (q4_0):    1.50 MiB
"""
OLD = """\
system_info: n_threads = 2 (n_threads_batch = 2) / 2 | CPU : SSE3 = 1 |
llama_context: n_batch       = 512
llama_context: flash_attn    = auto
sched_reserve: Flash Attention was auto, set to disabled
"""


def test_the_first_model_is_the_target_and_a_drafter_is_not_read() -> None:
    assert reported_settings(NEW) == {
        "n_batch": 512,
        "n_ubatch": 256,
        "kv_unified": "false",
        "n_threads": 2,
        "n_threads_batch": 3,
        "cache_type_k": "f16",
        "cache_type_v": "q8_0",
        "flash_attn": "enabled",
    }


def test_an_older_build_says_it_in_other_words_and_less_of_it() -> None:
    assert reported_settings(OLD) == {"n_batch": 512, "n_threads": 2, "n_threads_batch": 2, "flash_attn": "disabled"}
    assert reported_settings("llama_context: flash_attn    = auto\n") == {"flash_attn": "auto"}
    assert reported_settings("") == {}


@pytest.mark.parametrize(
    ("buffers", "backend"),
    [
        ({}, ""),
        ({"CPU": 286.1}, "cpu"),
        ({"CPU": 170.0, "Vulkan0": 900.0}, "vulkan"),
        ({"CPU": 170.0, "CUDA0": 900.0, "CUDA_Host": 3.0}, "cuda"),
        ({"Metal": 1.0}, "metal"),
    ],
)
def test_a_gpu_that_holds_anything_is_the_backend(buffers: dict[str, float], backend: str) -> None:
    assert backend_of_buffers(buffers) == backend
