"""Each gate passes on a clean block and fires on exactly its own fault."""

from __future__ import annotations

from dataclasses import replace

import pytest

from builders import TOKENS, arm_run, block, with_request
from findings import gates
from findings.blocks import ArmRun
from findings.records import Engagement, Outcome

CLEAN = [
    arm_run("baseline", "baseline"),
    arm_run("null", "null"),
    arm_run("draft", drafted=20),
]


def changed(index: int, **changes: object) -> list[ArmRun]:
    runs = list(CLEAN)
    runs[index] = replace(runs[index], **changes)  # type: ignore[arg-type]
    return runs


FAULTS = {
    "machine_quiet": changed(1, other_cpu_share=0.4),
    "token_count": [CLEAN[0], CLEAN[1], with_request(CLEAN[2], 0, predicted_n=TOKENS - 1)],
    "text_not_degenerate": [with_request(CLEAN[0], 0, degenerate=True), *CLEAN[1:]],
    "same_bytes": changed(2, model_sha256="b" * 64),
    "same_settings": changed(2, settings={"n_ctx": 4096}),
    "prompts_fresh": [CLEAN[0], CLEAN[1], with_request(CLEAN[2], 1, prompt_id="prose-1")],
    "memory_headroom": changed(2, swap_bytes=4096),
    "clocks_steady": changed(2, machine={"gpu": {"throttle_reasons": ["sw_thermal_slowdown"]}}),
    "backend_as_asked": changed(2, settings={"n_ctx": 2048, "backend_used": "vulkan"}),
}


def failed(runs: list[ArmRun]) -> set[str]:
    return {gate.name for gate in gates.common_gates([block(1, runs)], 1, TOKENS, "cpu") if not gate.passed}


def test_a_clean_block_passes_every_gate() -> None:
    assert failed(CLEAN) == set()


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_fires_its_own_gate_alone(name: str) -> None:
    assert failed(FAULTS[name]) == {name}


def test_every_common_gate_has_a_fault_here() -> None:
    assert {gate.name for gate in gates.common_gates([block(1, CLEAN)], 1, TOKENS, "cpu")} == set(FAULTS)


def test_memory_that_is_nearly_gone_fires_without_swap() -> None:
    assert failed(changed(0, machine={"memory_available_share": 0.01})) == {"memory_headroom"}


def test_a_list_to_repeat_may_look_like_a_loop() -> None:
    assert failed([with_request(CLEAN[0], 1, degenerate=True), *CLEAN[1:]]) == set()


@pytest.mark.parametrize("state", [Engagement.NOT_ENGAGED, Engagement.WITHOUT_DRAFTS, Engagement.OFF])
def test_an_arm_that_did_not_draft_in_every_block_fails(state: Engagement) -> None:
    blocks = [block(1, CLEAN), block(2, changed(2, engagement=state))]
    gate = gates.drafter_engaged(blocks, "draft")
    assert not gate.passed
    assert state.value in gate.reason
    assert gates.drafter_engaged(blocks[:1], "draft").passed


def test_blocks_are_chosen_by_load_and_baseline_alone() -> None:
    noisy = block(1, changed(1, other_cpu_share=0.2))
    no_baseline = block(2, changed(0, outcome=Outcome.CRASHED))
    slow = block(3, [CLEAN[0], CLEAN[1], arm_run("draft", speed=1.0, drafted=5)])
    assert gates.usable_blocks([noisy, no_baseline, slow]) == [slow]


GPU_A = {"n_ctx": 2048, "backend": "cuda", "backend_used": "cuda", "build_info": "b11549-a", "flash_attn": "disabled"}
GPU_B = {
    "n_ctx": 2048,
    "backend": "vulkan",
    "backend_used": "vulkan",
    "build_info": "b11549-b",
    "flash_attn": "enabled",
}


def test_arms_on_two_backends_may_differ_in_what_a_backend_brings_along_and_in_nothing_else() -> None:
    runs = [
        arm_run("baseline", "baseline", settings=GPU_A),
        arm_run("null", "null", settings=GPU_A),
        arm_run("vulkan", settings=GPU_B, engine_sha256="f" * 64),
    ]
    assert failed(runs) == set()
    assert failed([*runs[:2], replace(runs[2], settings={**GPU_B, "n_ctx": 4096})]) == {"same_settings"}
    assert failed([*runs[:2], replace(runs[2], settings={**GPU_B, "backend_used": "cpu"})]) == {"backend_as_asked"}
    assert failed([runs[0], replace(runs[1], engine_sha256="f" * 64), runs[2]]) == {"same_bytes"}
    assert failed([runs[0], replace(runs[1], settings={**GPU_A, "flash_attn": "enabled"}), runs[2]]) == {
        "same_settings"
    }


@pytest.mark.parametrize("key", gates.EQUAL_SETTINGS)
def test_every_setting_that_must_be_equal_is_looked_at(key: str) -> None:
    base = dict.fromkeys(gates.EQUAL_SETTINGS, 1)
    runs = [replace(run, settings=base) for run in CLEAN]
    assert failed(runs) == set()
    assert failed([*runs[:2], replace(runs[2], settings={**base, key: 2})]) == {"same_settings"}
    assert failed([*runs[:2], replace(runs[2], settings={**base, key: None})]) == set()  # not reported is no difference
