"""Gates: checks that a measurement may be used at all.

Each gate reads blocks and says passed or not, with a sentence for people. A failed gate never changes a figure; it
makes the verdict inconclusive or not testable and is named there.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findings.blocks import ArmRun, Block, RequestResult
from findings.records import Engagement, Outcome

# Share of the machine that others may use while an arm runs: on two cores 0.10 is a fifth of one core.
QUIET_LIMIT = 0.10
# Share of available memory below which the next allocation may start to swap.
HEADROOM_LIMIT = 0.05
# Share of an engine's buffers on a GPU by which the GPUs' used memory must have grown; less lies in the machine's
# memory (a driver rounds, and others may free some meanwhile).
RESIDENT_SHARE = 0.8
# A device's own buffers; those of its host side (`CUDA_Host`) are read as `CUDA`.
_ON_A_GPU = re.compile(r"(CUDA|Vulkan)\d+")
# What must be the same in every arm for a ratio to mean anything: what /props, /slots and /v1/models say
# (client.server_settings) and what the log says (reported.reported_settings).
EQUAL_SETTINGS = (
    "n_ctx", "slots", "sampling", "model_file", "model_bytes", "n_params", "vocab_type",
    "n_batch", "n_ubatch", "n_threads", "n_threads_batch", "kv_unified", "cache_type_k", "cache_type_v",
)  # fmt: skip
# What only arms on the same backend can share; a comparison of backends compares these.
EQUAL_IN_A_BACKEND = ("build_info", "flash_attn", "ftype")
THROTTLE_HARMLESS = frozenset({"none", "gpu_idle", "applications_clocks_setting"})


@dataclass(frozen=True)
class Gate:
    """One check: its name, whether it passed, and why (with the numbers)."""

    name: str
    passed: bool
    reason: str


def quiet(block: Block, limit: float = QUIET_LIMIT) -> bool:
    """Whether nobody else used more than `limit` of the machine during any arm of this block."""
    return all(run.other_cpu_share <= limit for run in block.arms.values())


def usable_blocks(blocks: Sequence[Block], limit: float = QUIET_LIMIT) -> list[Block]:
    """Blocks whose baseline ran and whose machine was quiet (chosen by load alone, never by speed)."""
    return [block for block in blocks if quiet(block, limit) and _baseline_ok(block)]


def _baseline_ok(block: Block) -> bool:
    return any(run.kind == "baseline" and run.outcome is Outcome.OK for run in block.arms.values())


def machine_quiet(blocks: Sequence[Block], needed: int, limit: float = QUIET_LIMIT) -> Gate:
    """At least `needed` blocks ran while the machine was otherwise idle."""
    calm = [block for block in blocks if quiet(block, limit)]
    worst = max((run.other_cpu_share for block in blocks for run in block.arms.values()), default=0.0)
    text = (
        f"{len(calm)} of {len(blocks)} blocks ran with others using at most {limit:.0%} of the machine "
        f"(worst {worst:.0%}); {needed} are needed"
    )
    return Gate("machine_quiet", len(calm) >= needed, text)


def _runs(blocks: Iterable[Block], arm: str) -> list[ArmRun]:
    return [block.arms[arm] for block in blocks if arm in block.arms]


def _backend(run: ArmRun) -> str:
    """The backend that an arm was asked to use."""
    return str(run.settings.get("backend", ""))


def _counted(runs: Iterable[ArmRun]) -> list[RequestResult]:
    return [request for run in runs for request in run.requests if request.counted]


def drafter_engaged(blocks: Sequence[Block], arm: str) -> Gate:
    """The arm drafted tokens in every block; otherwise its speed is not the speed of speculation."""
    states = [run.engagement for run in _runs(blocks, arm)]
    drafting = sum(state is Engagement.WITH_DRAFTS for state in states)
    others = sorted({state.value for state in states if state is not Engagement.WITH_DRAFTS})
    text = f"{arm} drafted in {drafting} of {len(states)} blocks" + (f"; else {', '.join(others)}" if others else "")
    return Gate("drafter_engaged", bool(states) and drafting == len(states), text)


def token_count(blocks: Sequence[Block], arms: Sequence[str], asked: int) -> Gate:
    """Every counted request of these arms produced exactly the tokens that were asked for."""
    wrong = [
        f"{run.arm}/{request.prompt_id}: {request.predicted_n}"
        for arm in arms
        for run in _runs(blocks, arm)
        for request in run.requests
        if request.counted and request.outcome is Outcome.OK and request.predicted_n != asked
    ]
    text = f"{asked} tokens asked" + (f", other counts: {', '.join(wrong[:3])}" if wrong else ", all as asked")
    return Gate("token_count", not wrong, text)


def text_not_degenerate(blocks: Sequence[Block], baseline: str, prompt_class: str = "all") -> Gate:
    """The baseline's text of the judged class is not a loop (a loop is what n-gram speculation copies best).

    A class whose purpose is repetition (`list`) is not asked.
    """
    asked = [r for r in _counted(_runs(blocks, baseline)) if r.prompt_class != "list"]
    requests = [r for r in asked if prompt_class in ("all", r.prompt_class)]
    bad = sorted({request.prompt_id for request in requests if request.degenerate})
    text = f"degenerate baseline text for {', '.join(bad)}" if bad else "the baseline's text is not a loop"
    return Gate("text_not_degenerate", not bad, text)


def same_bytes(blocks: Sequence[Block]) -> Gate:
    """Engine and target model had the same sha256 in all arms of all blocks (one engine for each backend)."""
    runs = [run for block in blocks for run in block.arms.values() if run.outcome is Outcome.OK]
    engines = {(_backend(run), run.engine_sha256) for run in runs}
    models = {run.model_sha256 for run in runs}
    passed = len(engines) <= len({backend for backend, _ in engines}) and len(models) <= 1
    hashes = sorted({sha256[:12] for _, sha256 in engines}), sorted(sha256[:12] for sha256 in models)
    text = "one engine and one target model in all arms" if passed else f"engines {hashes[0]}, models {hashes[1]}"
    return Gate("same_bytes", passed, text)


def same_settings(blocks: Sequence[Block]) -> Gate:
    """What the servers report of context, batch, threads, cache, slots, sampling and model is equal in all arms."""
    seen: dict[str, set[str]] = {}
    for run in (run for block in blocks for run in block.arms.values() if run.outcome is Outcome.OK):
        for key in EQUAL_SETTINGS:
            if run.settings.get(key) not in (None, {}):
                seen.setdefault(key, set()).add(str(run.settings[key]))
        for key in EQUAL_IN_A_BACKEND:
            if run.settings.get(key) is not None:
                seen.setdefault(f"{key} ({_backend(run)})", set()).add(str(run.settings[key]))
    different = {key: sorted(values) for key, values in seen.items() if len(values) > 1}
    text = (
        f"differ: {different}" if different else f"equal in all arms: {', '.join(sorted(seen)) or 'nothing reported'}"
    )
    return Gate("same_settings", not different, text)


def prompts_fresh(blocks: Sequence[Block]) -> Gate:
    """No prompt was sent twice to one process: a repeated prompt feeds n-gram caches."""
    repeated = [
        f"block {block.block} {run.arm}"
        for block in blocks
        for run in block.arms.values()
        if len({request.prompt_id for request in run.requests}) != len(run.requests)
    ]
    text = (
        f"a prompt was repeated in one process: {', '.join(repeated[:3])}" if repeated else "each prompt once a process"
    )
    return Gate("prompts_fresh", not repeated, text)


def memory_headroom(blocks: Sequence[Block]) -> Gate:
    """No arm swapped, memory was left while each ran, and what the engine put onto a GPU is in that GPU's memory."""
    runs = [run for block in blocks for run in block.arms.values()]
    swapped = [run.arm for run in runs if run.swap_bytes > 0]
    tight = [
        run.arm
        for run in runs
        if run.machine.get("memory_available_share") is not None
        and float(run.machine["memory_available_share"]) < HEADROOM_LIMIT
    ]
    if swapped or tight:
        return Gate(
            "memory_headroom", False, f"swapped: {sorted(set(swapped))}; little memory left: {sorted(set(tight))}"
        )
    spilled = {run.arm: told for run in runs if (told := spilled_memory(run))}
    if spilled:
        arms = "; ".join(f"{arm}: {told}" for arm, told in sorted(spilled.items()))
        return Gate("memory_headroom", False, f"spilled out of the GPU's memory: {arms}")
    return Gate("memory_headroom", True, "nothing swapped, memory left")


def spilled_memory(run: ArmRun) -> str:
    """`900 of 4000 MiB` where the GPUs' memory grew by much less than the buffers that the log names there; else "".

    A driver that moves buffers into the machine's memory (Windows, WSL; Vulkan where it is allowed to) does so without
    a word, and everything becomes slow. Empty, too, where no NVML told the memory before and during the run.
    """
    gpu = run.machine.get("gpu") or {}
    before, peak = gpu.get("memory_before_bytes"), gpu.get("memory_used_bytes_max")
    buffers = run.settings.get("buffers_mib") or {}
    placed = sum(float(size) for name, size in buffers.items() if _ON_A_GPU.fullmatch(str(name)))
    if before is None or peak is None or placed <= 0:
        return ""
    grown = (int(peak) - int(before)) / 2**20
    return "" if grown >= RESIDENT_SHARE * placed else f"{max(grown, 0.0):.0f} of {placed:.0f} MiB"


def clocks_steady(blocks: Sequence[Block]) -> Gate:
    """No GPU throttled for heat or power during an arm (passes with a note where nothing reports clocks)."""
    reports: list[Mapping[str, Any]] = [
        run.machine["gpu"] for block in blocks for run in block.arms.values() if run.machine.get("gpu")
    ]
    if not reports:
        return Gate("clocks_steady", True, "no GPU clocks to read on this machine")
    reasons = {str(r) for report in reports for r in report.get("throttle_reasons", ())} - THROTTLE_HARMLESS
    return Gate("clocks_steady", not reasons, f"throttled: {sorted(reasons)}" if reasons else "no throttling reported")


def backend_as_asked(blocks: Sequence[Block], backend: str) -> Gate:
    """The backend that the log shows is the one that each arm was asked to use (`backend` where an arm has none).

    A log that names no device passes for the CPU alone: that a GPU computed has to be shown. Layers of the target that
    were left on the CPU although all were asked onto the GPU fail it, too.
    """
    runs = [run for block in blocks for run in block.arms.values() if run.outcome is Outcome.OK]
    seen = {(_backend(run) or backend, str(run.settings.get("backend_used") or ""), _left_out(run)) for run in runs}
    said = [
        f"asked {asked}, used {used or 'not reported'}" + (f" with {layers} layers on it" if layers else "")
        for asked, used, layers in sorted(seen)
    ]
    passed = all((used == asked or (used == "" and asked == "cpu")) and not layers for asked, used, layers in seen)
    return Gate("backend_as_asked", passed, "; ".join(said) or "nothing ran")


def _left_out(run: ArmRun) -> str:
    """`10/27` where fewer of the target's layers lie on the GPU than were asked; "" otherwise.

    The log names the target first.
    """
    layers = run.settings.get("offloaded") or ()
    launch = run.settings.get("launch") or {}
    if not layers or _backend(run) in ("", "cpu"):
        return ""
    done, _, total = str(layers[0]).partition("/")
    asked = _layers_asked(launch)
    if not (done.isdigit() and total.isdigit()) or asked is None:
        return ""
    return str(layers[0]) if int(done) < min(int(total), asked) else ""


def _layers_asked(launch: Mapping[str, Any]) -> int | None:
    """GPU layers that a launch asks for, None where it does not say."""
    flags = [str(flag) for flag in launch.get("flags", ())]
    for name in ("--gpu-layers", "--n-gpu-layers", "-ngl"):
        if name in flags[:-1]:
            word = flags[flags.index(name) + 1]
            return int(word) if word.isdigit() else None
    value = (launch.get("settings") or {}).get("n_gpu_layers")
    return value if isinstance(value, int) and value >= 0 else None


def common_gates(
    blocks: Sequence[Block], needed: int, asked_tokens: int, backend: str, prompt_class: str = "all"
) -> list[Gate]:
    """The gates that concern a whole session (all but those of one arm, the null arm and the control)."""
    arms = sorted({name for block in blocks for name in block.arms})
    baseline = next((run.arm for block in blocks for run in block.arms.values() if run.kind == "baseline"), "baseline")
    checks: list[Callable[[], Gate]] = [
        lambda: machine_quiet(blocks, needed),
        lambda: token_count(blocks, arms, asked_tokens),
        lambda: text_not_degenerate(blocks, baseline, prompt_class),
        lambda: same_bytes(blocks),
        lambda: same_settings(blocks),
        lambda: prompts_fresh(blocks),
        lambda: memory_headroom(blocks),
        lambda: clocks_steady(blocks),
        lambda: backend_as_asked(blocks, backend),
    ]
    return [check() for check in checks]
