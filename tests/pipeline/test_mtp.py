"""Multi-token prediction in real engines: refused before the architecture was known, drafting after."""

from contextlib import ExitStack
from pathlib import Path

import pytest

import converter_bench as cb
import engine_bench as bench
from findings.checkpoint import document
from findings.config import Speculation, SpeculationType
from findings.engine import client
from findings.engine.client import Completion
from findings.engine.drivers import start_engine
from findings.engine.failure import EngineFailure
from findings.padding import padded
from findings.records import Outcome, sha256_file

pytestmark = pytest.mark.engine
BEFORE, KNOWING = "llama.cpp-b9538", ("llama.cpp-b9713", "llama.cpp-b11549")
DRAFTERS = (cb.DENSE, cb.CENTROIDS)
NONE = Speculation(SpeculationType.NONE)
MTP = Speculation(SpeculationType.DRAFT_MTP, drafter="drafter", n_max=3, n_min=0, p_min=0.0)
PROMPT = document((1, 2, 1, 1), 1) + "Clara goes to the market"
TOKENS = 64
FEWEST_TURNS, MOST_TURNS, SHORT = 4, 60, 32


def answer(engine: str, speculation: Speculation, target: Path, drafter: Path | None, workdir: Path) -> Completion:
    launch = bench.launch(engine, speculation, bench.settings(target, drafter))
    with start_engine(bench.engine(engine), bench.program(engine), launch, workdir, 120.0) as running:
        return client.complete(running.endpoint, PROMPT, TOKENS, 120.0)


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_runtime_before_the_architecture_refuses_both_drafters(tmp_path: Path, drafter: str) -> None:
    launch = bench.launch(BEFORE, NONE, bench.settings(cb.converted_path(drafter)))
    with pytest.raises(EngineFailure) as raised:
        start_engine(bench.engine(BEFORE), bench.program(BEFORE), launch, tmp_path, 120.0).stop()
    assert raised.value.outcome is Outcome.REFUSED
    assert "unknown model architecture: 'gemma4-assistant'" in raised.value.reason


def test_the_runtime_before_the_architecture_runs_the_target(tmp_path: Path) -> None:
    plain = answer(BEFORE, NONE, cb.converted_path(cb.TARGET), None, tmp_path)
    assert plain.predicted_n == TOKENS
    assert plain.draft_n is None


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("engine", KNOWING)
def test_both_forms_draft_and_are_accepted(tmp_path: Path, engine: str, drafter: str) -> None:
    target = cb.converted_path(cb.TARGET)
    plain = answer(engine, NONE, target, None, tmp_path / "plain")
    drafted = answer(engine, MTP, target, cb.converted_path(drafter), tmp_path / "mtp")
    assert plain.draft_n is None
    assert drafted.draft_n is not None
    assert drafted.draft_n_accepted is not None
    # Trained weights: most of what is proposed is taken (random ones get 0), and never more than was proposed.
    assert drafted.draft_n // 2 < drafted.draft_n_accepted <= drafted.draft_n
    assert drafted.tokens == plain.tokens


def test_the_trained_text_goes_on_as_it_was_trained(tmp_path: Path) -> None:
    plain = answer(KNOWING[-1], NONE, cb.converted_path(cb.TARGET), None, tmp_path)
    assert "Then Clara leaves the market and takes the" in plain.text
    assert "David goes to the station" in plain.text


def padded_target() -> Path:
    """The control's target as the configuration has it."""
    target = cb.converted_path(cb.TARGET)
    model = bench.configuration().models["tiny-gemma4-target-padded"]
    assert model.padded_from is not None
    return padded(target, sha256_file(target), model.file, bench.cache(), model.padded_from.columns)[0]


def test_the_padded_target_says_the_same_and_takes_the_same_drafts(tmp_path: Path) -> None:
    engine, target, drafter = KNOWING[-1], cb.converted_path(cb.TARGET), cb.converted_path(cb.DENSE)
    dear = padded_target()
    assert dear.stat().st_size > 20 * target.stat().st_size
    plain = answer(engine, NONE, target, None, tmp_path / "plain")
    cheap = answer(engine, MTP, target, drafter, tmp_path / "cheap")
    drafted = answer(engine, MTP, dear, drafter, tmp_path / "mtp")
    assert drafted.tokens == plain.tokens
    assert (drafted.draft_n, drafted.draft_n_accepted) == (cheap.draft_n, cheap.draft_n_accepted)


def test_on_the_padded_target_accepted_drafts_pay(tmp_path: Path) -> None:
    """Both servers are up and asked in turn, and the quickest answer of each counts: others only ever slow one down."""
    engine, dear, drafter = KNOWING[-1], padded_target(), cb.converted_path(cb.DENSE)
    server = bench.settings(dear, drafter)
    with ExitStack() as stack:
        plain, mtp = (
            stack.enter_context(
                start_engine(
                    bench.engine(engine), bench.program(engine), bench.launch(engine, kind, server), workdir, 240.0
                )
            )
            for kind, workdir in ((NONE, tmp_path / "plain"), (MTP, tmp_path / "mtp"))
        )
        alone, drafting = 0.0, 0.0
        for turn in range(MOST_TURNS):
            first = client.complete(plain.endpoint, PROMPT, SHORT, 240.0)
            second = client.complete(mtp.endpoint, PROMPT, SHORT, 240.0)
            assert (first.predicted_n, first.tokens) == (SHORT, second.tokens)
            assert second.draft_n is not None
            assert second.draft_n_accepted is not None
            assert second.draft_n_accepted > second.draft_n / 2
            alone = max(alone, first.predicted_n / first.predicted_ms)
            drafting = max(drafting, second.predicted_n / second.predicted_ms)
            if turn >= FEWEST_TURNS and drafting > alone:
                break
        assert drafting > alone


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_arm_as_a_whole_is_refused_before_the_architecture(tmp_path: Path, drafter: str) -> None:
    """b9538 offers draft-mtp (other models have it), so what refuses is the loader of the drafter."""
    with pytest.raises(EngineFailure) as raised:
        answer(BEFORE, MTP, cb.converted_path(cb.TARGET), cb.converted_path(drafter), tmp_path)
    assert raised.value.outcome is Outcome.REFUSED
    assert "unknown model architecture: 'gemma4-assistant'" in raised.value.reason
