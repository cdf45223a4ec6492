"""Each gate made to fire by what really goes wrong: real engine, real models, the code that measures attempts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest

import engine_bench
from findings import gates
from findings.arm_runner import Place, Ready, prepare, run_arm
from findings.blocks import ArmRun, Block
from findings.config import Configuration, Prompt
from findings.effects import arm_effects
from findings.host import usable_cores
from findings.inference import SequentialPlan, control_gate, null_gate
from findings.records import Engagement, Outcome
from findings.session import compare_texts

pytestmark = pytest.mark.engine

TOKENS = 12
LOOP = "one one one one one one one one one one one one one one one one one one one one one one one one"


@dataclass(frozen=True)
class Rig:
    """Runs one arm of the study for real; `study` changes what all arms share (threads, ctx, batch, roles)."""

    configuration: Configuration
    place: Place

    def ready(self, attempt: str, arm: str, extra: tuple[str, ...] = (), **study: Any) -> Ready:
        roles = study.pop("roles", {})
        configuration = replace(self.configuration, study=replace(self.configuration.study, **study))
        if roles:
            changed = replace(configuration.study.attempts[attempt], roles=roles)
            attempts = {**configuration.study.attempts, attempt: changed}
            configuration = replace(configuration, study=replace(configuration.study, attempts=attempts))
        wanted = configuration.attempts[attempt].arm(arm)
        if extra:
            engine = configuration.engines[engine_bench.BINDING]
            wanted = replace(wanted, engine_flags={engine.driver: extra})
        found = prepare(configuration, attempt, engine_bench.BINDING, wanted, self.place)
        assert isinstance(found, Ready), found
        return found

    def run(self, ready: Ready, prompts: Sequence[Prompt], tokens: int = TOKENS) -> ArmRun:
        return run_arm(ready, prompts, tokens, warmup_tokens=2, start_timeout_s=240, request_timeout_s=240)

    def prompts(self, *classes: str) -> list[Prompt]:
        return self.configuration.prompts_of("attempt_2", classes)


@pytest.fixture(scope="module")
def rig(configuration: Configuration, place: Place) -> Rig:
    return Rig(configuration, place)


@pytest.fixture(scope="module")
def clean(rig: Rig) -> dict[str, ArmRun]:
    """One block of attempt 2 as it should be (but for the machine, which others may use)."""
    prompts = {"draft": rig.prompts("prose"), "list": rig.prompts("list")}
    return {
        arm: rig.run(rig.ready("attempt_2", arm), prompts.get(arm, rig.prompts("prose", "list")))
        for arm in ("baseline", "null", "draft", "list")
    }


def block(runs: dict[str, ArmRun], number: int = 1) -> Block:
    return Block(number, tuple(runs), 1, "s", runs)


def failed(runs: dict[str, ArmRun], asked: int = TOKENS) -> set[str]:
    """Names of the gates that fail, but for the machine's load: nobody can promise a quiet machine to a test."""
    found = gates.common_gates([block(runs)], 1, asked, "cpu")
    return {gate.name for gate in found if not gate.passed} - {"machine_quiet"}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes that compute and do nothing else."""
    running = [subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()


def test_a_clean_block_passes_and_its_settings_come_from_the_engine(clean: dict[str, ArmRun]) -> None:
    assert {run.outcome for run in clean.values()} == {Outcome.OK}
    assert failed(clean) == set()
    assert gates.drafter_engaged([block(clean)], "draft").passed
    asked = {"n_ctx": 2048, "slots": 1, "n_batch": 512, "n_ubatch": 512, "n_threads": 2, "n_threads_batch": 2}
    for run in clean.values():
        assert {key: run.settings[key] for key in asked} == asked
        assert (run.settings["cache_type_k"], run.settings["cache_type_v"]) == ("f16", "f16")
        assert run.settings["sampling"]["temperature"] == 0.0
        assert run.settings["backend_used"] == "cpu"
        assert all(run.settings.get(key) is not None for key in gates.EQUAL_SETTINGS)


def test_a_busy_process_beside_the_engine_makes_the_block_unusable(rig: Rig, clean: dict[str, ArmRun]) -> None:
    with busy(usable_cores()):
        run = rig.run(rig.ready("attempt_2", "null"), rig.prompts("prose"), 24)
    found = block({**clean, "null": run})
    gate = gates.machine_quiet([found], 1)
    assert run.outcome is Outcome.OK
    assert run.other_cpu_share > gates.QUIET_LIMIT
    assert not gate.passed
    assert gate.reason.startswith("0 of 1 blocks")
    assert gates.usable_blocks([found]) == []


def test_a_context_too_small_gives_fewer_tokens(rig: Rig, clean: dict[str, ArmRun]) -> None:
    run = rig.run(rig.ready("attempt_2", "null", ctx=256), rig.prompts("prose"), 240)
    (request,) = (r for r in run.requests if r.counted)
    assert run.outcome is Outcome.OK
    assert 0 < request.predicted_n < 240
    gate = gates.token_count([block({"null": run})], ["null"], 240)
    assert not gate.passed
    assert str(request.predicted_n) in gate.reason
    assert gates.token_count([block(clean)], list(clean), TOKENS).passed


def test_a_drafter_of_another_vocabulary_is_not_engaged(rig: Rig, clean: dict[str, ArmRun]) -> None:
    run = rig.run(rig.ready("attempt_1", "draft"), rig.prompts("prose"))
    gate = gates.drafter_engaged([block({**clean, "draft": run})], "draft")
    assert (run.outcome, run.engagement) == (Outcome.OK, Engagement.NOT_ENGAGED)
    assert "vocab" in run.reason
    assert not gate.passed
    assert "not_engaged" in gate.reason


def test_a_text_that_loops(rig: Rig, clean: dict[str, ArmRun]) -> None:
    prompt = replace(rig.prompts("prose")[0], text=LOOP)
    run = rig.run(rig.ready("attempt_2", "baseline"), [prompt], 32)
    found = block({"baseline": run, "null": replace(clean["null"], requests=())})
    gate = gates.text_not_degenerate([found], "baseline", "prose")
    assert not gate.passed
    assert prompt.id in gate.reason
    assert gates.text_not_degenerate([block(clean)], "baseline").passed


def test_another_model_in_one_arm(rig: Rig, clean: dict[str, ArmRun]) -> None:
    ready = rig.ready("attempt_1", "null", roles={"target": engine_bench.OTHER_VOCABULARY})
    run = rig.run(ready, rig.prompts("prose", "list"))
    runs = {**clean, "null": run}
    assert failed(runs) == {"same_bytes", "same_settings"}  # the server names its file, too
    compared = compare_texts(runs, "baseline")
    assert all(isinstance(r.first_difference, int) for r in compared["null"].requests if r.counted)


@pytest.mark.parametrize(
    ("key", "extra", "study"),
    [
        ("n_ctx", (), {"ctx": 1024}),
        ("n_threads", (), {"threads": 1}),
        ("n_batch", (), {"batch": 256}),
        ("cache_type_k", ("cache_type_k=GGML_TYPE_Q8_0",), {}),
    ],
)
def test_another_setting_in_one_arm(
    rig: Rig, clean: dict[str, ArmRun], key: str, extra: tuple[str, ...], study: dict[str, Any]
) -> None:
    runs = {**clean, "null": rig.run(rig.ready("attempt_2", "null", extra, **study), rig.prompts("prose", "list"))}
    (gate,) = (g for g in gates.common_gates([block(runs)], 1, TOKENS, "cpu") if g.name == "same_settings")
    assert failed(runs) == {"same_settings"}
    assert key in gate.reason


def test_the_same_prompt_twice_in_one_process_is_flagged(rig: Rig, clean: dict[str, ArmRun]) -> None:
    (prompt,) = rig.prompts("list")
    run = rig.run(rig.ready("attempt_2", "list"), [prompt, prompt])
    runs = {**clean, "list": run}
    assert failed(runs) == {"prompts_fresh"}
    # Nor does such a pair give an effect: the second time measures what the first one left in the n-gram cache.
    assert [str(d) for d in arm_effects([block(runs)], "list")] == ["nan"]


def test_memory_is_watched_while_the_engine_runs(clean: dict[str, ArmRun], monkeypatch: pytest.MonkeyPatch) -> None:
    shares = [run.machine["memory_available_share"] for run in clean.values()]
    assert all(0 < share < 1 for share in shares)
    assert all(run.rss_bytes > 50 * 2**20 for run in clean.values())
    # Filling the machine's memory would hit others; a limit above what is free shows that the reading decides.
    monkeypatch.setattr(gates, "HEADROOM_LIMIT", max(shares) + 0.001)
    assert failed(clean) == {"memory_headroom"}


def test_swapping_is_a_fault_even_if_memory_is_left(clean: dict[str, ArmRun]) -> None:
    assert failed({**clean, "null": replace(clean["null"], swap_bytes=4096)}) == {"memory_headroom"}


def test_a_backend_that_was_not_asked_for(clean: dict[str, ArmRun]) -> None:
    asked = {**clean["null"].settings, "backend": "vulkan"}
    assert "backend_as_asked" in failed({**clean, "null": replace(clean["null"], settings=asked)})


def test_greedy_text_is_compared_with_the_baselines(clean: dict[str, ArmRun]) -> None:
    compared = compare_texts(clean, "baseline")
    same = [r for r in compared["null"].requests if r.counted]
    assert [(len(r.tokens), r.first_difference) for r in same] == [(TOKENS, None)] * 2
    texts = {r.prompt_id: r.tokens for r in clean["baseline"].requests}
    (drafted,) = (r for r in compared["draft"].requests if r.counted)
    agrees = drafted.tokens == texts[drafted.prompt_id]
    assert (drafted.first_difference is None) == agrees  # recorded either way, assumed never


def test_an_arm_that_is_slower_is_no_null_arm_and_no_control(rig: Rig) -> None:
    """Self-drafting under the names of the arms that must be equal to the baseline, and faster than it."""
    plan = SequentialPlan(looks=(4,))
    arms = {name: rig.ready("attempt_2", name) for name in ("baseline", "draft")}
    blocks = []
    for number in range(1, 5):
        runs = {name: rig.run(ready, rig.prompts("prose"), 24) for name, ready in arms.items()}
        blocks.append(block(runs, number))
    if not all(gates.quiet(item) for item in blocks):
        pytest.skip("NOT CHECKED: others were computing on this machine, so these speeds say nothing")
    effects = arm_effects(blocks, "draft")
    null, control = null_gate(effects, plan), control_gate(effects, plan)
    assert not null.passed
    assert "differs from itself: -" in null.reason
    assert not control.passed
    assert "was not seen to pay" in control.reason
