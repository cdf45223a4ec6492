"""What an engine's log says about how the target runs: batch sizes, threads, cache types, flash attention, device.

/props and /slots tell neither, so that "the same settings in all arms" would otherwise rest on what was asked. The
lines are those of builds 8929 to 11549 at the verbosity that drivers and launches use; a line that is missing gives no
key. The target is loaded first in all of them, so the first line of a kind is the target's and a drafter's is not read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_CONTEXT = {
    key: re.compile(rf"llama_context: {key} *= (\w+)\s*$", re.MULTILINE)
    for key in ("n_batch", "n_ubatch", "kv_unified")
}
_THREADS = re.compile(r"system_info: n_threads = (\d+) \(n_threads_batch = (\d+)\)")
_CACHE = re.compile(r"llama_kv_cache: size = .*?K \((\w+)\):.*?V \((\w+)\):")
_FLASH = re.compile(r"Flash Attention (?:was auto, set to )?(enabled|disabled)")
_FLASH_ASKED = re.compile(r"llama_context: flash_attn *= (\w+)\s*$", re.MULTILINE)
_BACKENDS = {"cuda": "cuda", "vulkan": "vulkan", "metal": "metal", "mtl": "metal"}


def reported_settings(log: str) -> dict[str, Any]:
    """The target's settings: n_batch, n_ubatch, n_threads, n_threads_batch, kv_unified, cache_type_k/_v, flash_attn.

    Sizes are numbers, the others the engine's words; `flash_attn` is what `auto` was resolved to, where it says so.
    """
    found: dict[str, Any] = {}
    for key, pattern in _CONTEXT.items():
        if match := pattern.search(log):
            found[key] = int(match.group(1)) if match.group(1).isdigit() else match.group(1)
    if match := _THREADS.search(log):
        found["n_threads"], found["n_threads_batch"] = int(match.group(1)), int(match.group(2))
    if match := _CACHE.search(log):
        found["cache_type_k"], found["cache_type_v"] = match.groups()
    if match := _FLASH.search(log) or _FLASH_ASKED.search(log):
        found["flash_attn"] = match.group(1)
    return found


def backend_of_buffers(buffers: Mapping[str, float]) -> str:
    """`cuda`, `vulkan`, `metal` or `cpu` from the names of the devices that hold buffers; "" where there are none.

    A GPU's run keeps a part (the embedding) on the CPU, so any device beside it decides.
    """
    for device in sorted(buffers):
        for beginning, backend in _BACKENDS.items():
            if device.lower().startswith(beginning):
                return backend
    return "cpu" if buffers else ""
