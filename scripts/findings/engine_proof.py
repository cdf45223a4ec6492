"""The protocol proved on a real engine: nothing found where nothing is, known effects found, speeds as the engine's.

Three experiments, through the code that measures attempts (arm_runner, session, effects, inference):

1. *Null comparisons.* One long session of two arms that are both the baseline. Every four usable blocks in the order in
   which they ran are one comparison: together they are a session of one look, and no block is in two of them.
2. *Known effects.* The session of attempt 2, in which the target drafts for itself (slower) and n-grams copy a list
   (faster), judged as an attempt is.
3. *The engine's own figure.* Generation timed by the server beside llama-bench's loop over the same library
   (engine/bench_loop.py), both processes alive, asked in turn (one, other, other, one) for the same number of tokens
   behind the same number of prompt tokens.
"""

from __future__ import annotations

import json
import math
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from scipy.stats import binom

from findings.arm_runner import WARMUP_PROMPT, Ready
from findings.blocks import Block
from findings.config import Configuration, Driver, Protocol, ProtocolChanges, StudyAttempt
from findings.design import order_for_block
from findings.effects import arm_effects
from findings.engine.bench_loop import __file__ as bench_loop_file
from findings.engine.client import server_settings
from findings.engine.drivers import RunningEngine, start_engine
from findings.engine.failure import EngineFailure
from findings.engine.probe import engine_environment
from findings.engine.reported import reported_settings
from findings.gates import usable_blocks
from findings.groundwork import lay_groundwork
from findings.inference import Claim, SequentialPlan, Verdict, analyse, control_gate, null_gate, t_interval, to_percent
from findings.job import Job
from findings.measure import arm_runner, prepare_bench, session_plan
from findings.plan import drafter_of, target_of
from findings.records import Outcome, Record
from findings.session import Judged, load_blocks, run_session
from findings.verdicts import sequential_plan, session_gates

ATTEMPT = "attempt_2"
BASELINE, NULL, DRAFT, LIST = "baseline", "null", "draft", "list"
BLOCKS_A_COMPARISON = 4
# One short request per process is enough to differ by: what counts is the variance between processes.
NULL_TOKENS, NULL_WARMUP = 24, 8
AGREEMENT = 0.03
BENCH_TOKENS = 64
Say = Callable[[str], None]


class ProofError(RuntimeError):
    """Something that the proof needs is not there; the message says what."""


@dataclass(frozen=True)
class Comparison:
    """One null comparison: the mean difference in percent, its plain 95 % interval, and what would have been said."""

    mean_percent: float
    low_percent: float
    high_percent: float
    interval_excludes_0: bool
    called_different: bool
    null_gate_passed: bool


# --- what is run -----------------------------------------------------------------------------------------------------


def null_configuration(configuration: Configuration, comparisons: int) -> Configuration:
    """The study with one session of `comparisons` x 4 blocks of baseline and null arm, one short prompt each."""
    protocol = replace(
        configuration.study.protocol,
        predict_tokens=NULL_TOKENS,
        warmup_tokens=NULL_WARMUP,
        looks=(BLOCKS_A_COMPARISON * comparisons,),
        max_blocks=BLOCKS_A_COMPARISON * comparisons,
    )
    return _with(configuration, protocol, arms=(BASELINE, NULL))


def known_configuration(configuration: Configuration) -> Configuration:
    """The study with attempt 2 cut down to the arms whose effect is known."""
    return _with(configuration, configuration.study.protocol, arms=(BASELINE, NULL, DRAFT, LIST))


def _with(configuration: Configuration, protocol: Protocol, arms: tuple[str, ...]) -> Configuration:
    attempt: StudyAttempt = replace(configuration.study.attempts[ATTEMPT], arms=arms, protocol=ProtocolChanges())
    attempts = {**configuration.study.attempts, ATTEMPT: attempt}
    return replace(configuration, study=replace(configuration.study, protocol=protocol, attempts=attempts))


def groundwork(configuration: Configuration, engine_id: str, records: Path, cache: Path, say: Say) -> None:
    """Models, environment and probe. Raises ProofError where one cannot be had."""
    arms = configuration.arms_of(ATTEMPT)
    models = dict.fromkeys(target_of(configuration, ATTEMPT, arm).id for arm in arms)
    models |= dict.fromkeys(m.id for arm in arms if (m := drafter_of(configuration, ATTEMPT, arm)) is not None)
    missing = lay_groundwork(configuration, records, cache, models, [engine_id], say)
    if missing:
        raise ProofError("; ".join(f"{r.kind.value} {r.subject}: {r.outcome.value}: {r.reason}" for r in missing))


def run_nulls(job: Job, engine_id: str, folder: Path, say: Say) -> tuple[Record, list[Block]]:
    """The long session of `null_configuration` (interrupted ones are continued): its record and all of its blocks."""
    bench = prepare_bench(job, ATTEMPT, engine_id)
    claim = Judged("null comparison", NULL, "all", Claim.DOES_NOT_PAY)
    plan = replace(session_plan(job, ATTEMPT, engine_id, bench), judged=(claim,))
    record = run_session(plan, folder, arm_runner(job.configuration.study.protocol_of(ATTEMPT), bench), None, say)
    return record, load_blocks(folder / str(record.detail["run"]))


def run_known(job: Job, engine_id: str, folder: Path, say: Say) -> tuple[Record, list[Block]]:
    """The session of `known_configuration`, stopped as an attempt is, without the cost curve."""
    bench = prepare_bench(job, ATTEMPT, engine_id)
    plan = session_plan(job, ATTEMPT, engine_id, bench)
    record = run_session(plan, folder, arm_runner(job.configuration.study.protocol_of(ATTEMPT), bench), None, say)
    return record, load_blocks(folder / str(record.detail["run"]))


# --- what it says ----------------------------------------------------------------------------------------------------


def comparisons_of(blocks: Sequence[Block]) -> list[Comparison]:
    """Disjoint null comparisons of four usable blocks each, in their order; what is left at the end is not used."""
    usable = usable_blocks(blocks)
    groups = [usable[i : i + BLOCKS_A_COMPARISON] for i in range(0, len(usable), BLOCKS_A_COMPARISON)]
    return [_compare(arm_effects(group, NULL)) for group in groups if len(group) == BLOCKS_A_COMPARISON]


def _compare(d: Sequence[float]) -> Comparison:
    """A session of one look: a loss or a gain is a difference, demonstrated equivalence is none."""
    plan = SequentialPlan(looks=(BLOCKS_A_COMPARISON,))
    decision = analyse(d, plan)
    if decision.nominal is None or decision.interval is None:
        raise ProofError(f"a null comparison without a result: {decision.reason}")
    mean, low, high = decision.nominal.percent
    loses = decision.decision is Verdict.HOLDS and decision.interval.high < 0
    return Comparison(
        mean,
        low,
        high,
        interval_excludes_0=low > 0 or high < 0,
        called_different=loses or decision.decision is Verdict.NO_LONGER_HOLDS,
        null_gate_passed=null_gate(d, plan).passed,
    )


def most_by_chance(comparisons: int, rate: float = 0.05) -> int:
    """The largest number of false alarms that a true `rate` exceeds in at most one run of this proof in twenty."""
    return int(binom.ppf(0.95, comparisons, rate))


def summary_of_nulls(blocks: Sequence[Block]) -> dict[str, Any]:
    """Counts of what was called different, the spread of ln ratios between blocks, and every comparison."""
    found = comparisons_of(blocks)
    usable = usable_blocks(blocks)
    d = [value for value in arm_effects(usable, NULL) if math.isfinite(value)]
    together = t_interval(d, 0.025).percent if len(d) > 1 else None
    excluded = sum(one.interval_excludes_0 for one in found)
    limit = most_by_chance(len(found)) if found else 0
    return {
        "comparisons": len(found),
        "blocks_each": BLOCKS_A_COMPARISON,
        "blocks": len(blocks),
        "usable_blocks": len(usable),
        "called_different": sum(one.called_different for one in found),
        "interval_excludes_0": excluded,
        "null_gate_failed": sum(not one.null_gate_passed for one in found),
        "most_by_chance": limit,
        "within_error_rate": bool(found) and excluded <= limit,
        "sd_of_blocks": round(statistics.stdev(d), 4) if len(d) > 1 else None,
        "all_blocks_percent": [round(value, 2) for value in together] if together else None,
        "each": [{key: _rounded(value) for key, value in asdict(one).items()} for one in found],
    }


def summary_of_known(configuration: Configuration, record: Record, blocks: Sequence[Block]) -> dict[str, Any]:
    """Whether self-drafting was seen as slower and the list as faster, by the rules that attempts are judged by."""
    plan = sequential_plan(configuration, ATTEMPT)
    usable = usable_blocks(blocks)
    effects = arm_effects(usable, DRAFT)
    decision = analyse(effects, plan)
    control = control_gate(arm_effects(usable, LIST), plan)
    slower = decision.decision is Verdict.HOLDS and decision.interval is not None and decision.interval.high < 0
    gates = session_gates(configuration, ATTEMPT, blocks, DRAFT, "all")
    return {
        "blocks": len(blocks),
        "usable_blocks": len(usable),
        "stopped": record.reason,
        "self_drafting": {"detected_as_slower": slower, "reason": decision.reason, **_counters(usable, DRAFT)},
        "list_to_repeat": {"detected_as_faster": control.passed, "reason": control.reason, **_counters(usable, LIST)},
        "gates": {gate.name: {"passed": gate.passed, "reason": gate.reason} for gate in gates},
    }


def _counters(blocks: Sequence[Block], arm: str) -> dict[str, Any]:
    runs = [block.arms[arm] for block in blocks if arm in block.arms]
    requests = [request for run in runs for request in run.requests if request.counted]
    return {
        "drafted": sum(request.draft_n or 0 for request in requests),
        "accepted": sum(request.draft_n_accepted or 0 for request in requests),
        "generated": sum(request.predicted_n for request in requests),
    }


def _rounded(value: Any) -> Any:
    return round(value, 2) if isinstance(value, float) else value


# --- the engine's own figure -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """One pair of processes: tokens per second of the server as it reports them, per decode, and of llama-bench's loop.

    The server's clock starts when the first token is there (it comes out of the prompt's last decode), so n tokens are
    reported for n - 1 decodes; `server_decodes` counts those instead.
    """

    server: float
    server_decodes: float
    loop: float


class BenchLoop:
    """llama-bench's loop in a process of its own, asked for one point at a time. Raises EngineFailure if it ends."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.sizes: dict[str, int] = self._line()

    def _line(self) -> dict[str, Any]:
        text = self._process.stdout.readline() if self._process.stdout else ""
        if not text:
            raise EngineFailure(Outcome.CRASHED, f"the decode loop ended with {self._process.wait()}", "")
        line: dict[str, Any] = json.loads(text)
        return line

    def milliseconds(self, depth: int, tokens: int) -> float:
        """Time of `tokens` decodes behind `depth` tokens."""
        if self._process.stdin is not None:
            self._process.stdin.write(json.dumps({"depth": depth, "tokens": tokens}) + "\n")
            self._process.stdin.flush()
        return float(self._line()["ms"])


@contextmanager
def bench_loop(ready: Ready, sizes: Mapping[str, int], log: Path) -> Iterator[BenchLoop]:
    """The loop over the library of a binding's engine, with the target of `ready`; ended on the way out."""
    libraries = sorted(ready.program.parent.parent.glob("lib/python*/site-packages/xllamacpp/*.so"))
    if ready.engine.driver is not Driver.XLLAMACPP or not libraries:
        raise ProofError(f"engine {ready.engine.id} has no library that the loop can be run on")
    argv = [
        str(ready.program),
        "-I",
        bench_loop_file,
        str(libraries[0]),
        str(ready.model_path),
        json.dumps(dict(sizes)),
    ]
    with (
        log.open("wb") as errors,
        subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, env=engine_environment({})
        ) as process,
    ):
        try:
            yield BenchLoop(process)
        finally:
            process.kill()


def compare_with_loop(job: Job, engine_id: str, pairs: int, rounds: int, say: Say) -> dict[str, Any]:
    """Server and loop, `pairs` times in fresh processes; in each, `rounds` times one, other, other, one.

    Raises ProofError where the two do not run with the same sizes, EngineFailure where one of them ends.
    """
    study = job.configuration.study
    bench = prepare_bench(job, ATTEMPT, engine_id)
    ready = bench.arms[BASELINE]
    if not isinstance(ready, Ready):
        raise ProofError(f"the baseline cannot be started: {ready.reason}")
    prompt = bench.prompts[BASELINE][0]
    wanted = {"threads": study.threads, "ctx": study.ctx, "batch": study.batch, "ubatch": min(study.batch, 512)}
    found: list[Pair] = []
    for pair in range(1, pairs + 1):
        say(f"pair of processes {pair} of {pairs}")
        # Which of the two is started first, and asked first, changes as the order of arms does in a session.
        first = order_for_block(["server", "loop"], pair, study.protocol.seed)[0]
        with (
            tempfile.TemporaryDirectory(prefix="findings-proof-") as folder,
            start_engine(
                ready.engine, ready.program, ready.launch, Path(folder), study.protocol.start_timeout_s
            ) as run,
            bench_loop(ready, wanted, Path(folder) / "loop.log") as loop,
        ):
            _same_sizes({**server_settings(run.endpoint), **reported_settings(run.log_text())}, loop.sizes)
            found.append(_alternate(run, loop, prompt.text, rounds, first, study.protocol))
    return summary_of_pairs(found, rounds)


def _same_sizes(server: Mapping[str, Any], loop: Mapping[str, int]) -> None:
    different = [f"{key} {server.get(key)} and {value}" for key, value in loop.items() if server.get(key) != value]
    if different:
        raise ProofError(f"server and loop differ: {', '.join(different)}")


def _alternate(
    engine: RunningEngine, loop: BenchLoop, prompt: str, rounds: int, first: str, protocol: Protocol
) -> Pair:
    """Ask both in turn; the sums of tokens over the sums of seconds."""
    engine.complete(WARMUP_PROMPT, protocol.warmup_tokens, protocol.request_timeout_s)
    depth = engine.complete(prompt, 2, protocol.request_timeout_s).prompt_n
    loop.milliseconds(depth, 2)
    other = "loop" if first == "server" else "server"
    tokens = server_ms = loop_ms = 0.0
    for who in [first, other, other, first] * rounds:
        if who == "loop":
            loop_ms += loop.milliseconds(depth, BENCH_TOKENS)
        else:
            answer = engine.complete(prompt, BENCH_TOKENS, protocol.request_timeout_s)
            server_ms += answer.predicted_ms
            tokens += answer.predicted_n
    asked = 2 * rounds
    return Pair(
        server=1000 * tokens / server_ms,
        server_decodes=1000 * (tokens - asked) / server_ms,
        loop=1000 * asked * BENCH_TOKENS / loop_ms,
    )


def summary_of_pairs(pairs: Sequence[Pair], rounds: int) -> dict[str, Any]:
    """Mean difference of the server's figure from the loop's in percent, with its 95 % interval over pairs."""

    def differences(values: Sequence[float]) -> list[float]:
        if len(values) < 2:
            return [_rounded(to_percent(values[0]))] if values else []
        return [_rounded(value) for value in t_interval(values, 0.025).percent]

    reported = [math.log(pair.server / pair.loop) for pair in pairs]
    decodes = [math.log(pair.server_decodes / pair.loop) for pair in pairs]
    mean = to_percent(statistics.fmean(reported)) if reported else math.nan
    return {
        "pairs": len(pairs),
        "rounds": rounds,
        "tokens": BENCH_TOKENS,
        "reported_percent": differences(reported),
        "per_decode_percent": differences(decodes),
        "within_3_percent": bool(reported) and abs(mean) <= 100 * AGREEMENT,
        "tokens_per_s": [{key: _rounded(value) for key, value in asdict(pair).items()} for pair in pairs],
    }
