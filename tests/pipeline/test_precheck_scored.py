"""The pre-check against real engines: every pair of tests/precheck_pairs.py is predicted, then loaded and asked."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

import engine_bench as bench
from findings.config import Speculation, SpeculationType
from findings.engine import client
from findings.engine.arms import Launch, ServerSettings, Unsupported, translate
from findings.engine.drivers import RunningEngine, start_engine
from findings.engine.failure import EngineFailure
from findings.precheck import Mechanism, Observed, Question, observed_mechanism, precheck_files, score
from precheck_pairs import PAIRS, Pair

pytestmark = pytest.mark.engine

ENGINES = ("llama.cpp-b8929", "llama.cpp-b9093", "llama.cpp-b9538", "llama.cpp-b11549")
PROMPT, TOKENS, DRAFTED, PATIENCE_S = "Hello world, this is text.", 24, 4, 120.0


def kill(running: RunningEngine) -> None:
    """End it at once: the older servers take seconds to leave when asked."""
    with contextlib.suppress(OSError):
        os.killpg(running.pid, signal.SIGKILL)


def observed(engine_id: str, pair: Pair, target: Path, drafter: Path, folder: Path) -> Observed:
    """What the engine does with a pair: its server's start, one request, its counters."""
    speculation = Speculation(SpeculationType(pair.spec_type), drafter="d", n_max=DRAFTED, n_min=0, p_min=0.0)
    server = ServerSettings(model=target, drafter=drafter, threads=1, ctx=256, batch=64)
    launch = translate(speculation, bench.features(engine_id), server)
    if isinstance(launch, Unsupported):
        return Observed(False, Mechanism.NOT_LOADED.value, reason=launch.reason)
    try:
        running = start_engine(bench.engine(engine_id), bench.program(engine_id), launch, folder, PATIENCE_S)
    except EngineFailure as failure:
        return Observed(False, Mechanism.NOT_LOADED.value, reason=failure.reason)
    with running:
        try:
            return answered(running, launch)
        except EngineFailure as failure:
            return Observed(True, Mechanism.FAILS.value, reason=failure.reason)
        finally:
            kill(running)


def answered(running: RunningEngine, launch: Launch) -> Observed:
    completion = running.complete(PROMPT, TOKENS, PATIENCE_S)
    settings = client.server_settings(running.endpoint)
    log = running.log_text()
    mechanism = observed_mechanism(
        client.engagement(launch, settings, [completion], log),
        completion.draft_n,
        completion.draft_n_accepted,
        client.vocabulary_message(log) == "translated",
    )
    reason = f"{completion.draft_n_accepted} of {completion.draft_n} drafted tokens accepted"
    return Observed(True, mechanism.value, True, None, reason)


@pytest.mark.parametrize("engine_id", ENGINES)
@pytest.mark.parametrize("name", PAIRS)
def test_the_prediction_is_what_the_engine_does(name: str, engine_id: str, tmp_path: Path) -> None:
    pair = PAIRS[name]
    target, drafter = pair.make(tmp_path / "pair")
    question = Question(build=bench.engine(engine_id).build, spec_type=pair.spec_type, budget=1 << 34, deep=True)
    prediction = precheck_files(target, drafter, question)
    seen = observed(engine_id, pair, target, drafter, tmp_path / "engine")
    told = Mechanism(str(seen.engages))
    # Whether a draft is accepted is in the weights, not in the headers.
    expected = Mechanism.ENGAGED if told is Mechanism.ALL_REJECTED else told
    assert (prediction.mechanism, prediction.loads) == (expected, seen.loads), (seen.reason, prediction.text())
    wrong = [row for row in score(prediction.label(), seen) if row.right is False]
    assert not wrong, wrong


def test_enough_pairs_of_every_outcome_are_scored(tmp_path: Path) -> None:
    outcomes = set()
    for name, pair in PAIRS.items():
        target, drafter = pair.make(tmp_path / name)
        for build in (8929, 9093, 9538, 11549):
            question = Question(build=build, spec_type=pair.spec_type, deep=True)
            outcomes.add(precheck_files(target, drafter, question).mechanism)
    assert len(PAIRS) >= 40
    assert outcomes == set(Mechanism) - {Mechanism.ALL_REJECTED, Mechanism.OFF}
