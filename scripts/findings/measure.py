"""Joins configuration, records and real engines: one session of an attempt, or one cheap load of an arm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from findings import plan
from findings.arm_runner import Blocked, Place, Ready, blocked_run, prepare, prompts_of, run_arm
from findings.blocks import ArmRun
from findings.config import (
    Arm,
    ArmKind,
    Backend,
    Configuration,
    Driver,
    FindingKind,
    Prompt,
    Protocol,
    Requirements,
    SpeculationType,
)
from findings.costs import measure_costs
from findings.inference import Claim, Metric
from findings.job import Job
from findings.records import Engagement, Kind, Outcome, Record, utc_now
from findings.session import ArmRunner, ArmSpec, Judged, SessionPlan, run_session
from findings.verdicts import control_question, sequential_plan

# How many noisy blocks a session may replace, as a share of its planned maximum.
REPLACEMENT_SHARE = 0.5
# The cost curve is measured up to this many drafted tokens; longer drafts are rare and slow to time.
MOST_DRAFTED = 16


@dataclass(frozen=True)
class Bench:
    """The arms of a session with the prompts that each answers."""

    arms: Mapping[str, Ready | Blocked]
    prompts: Mapping[str, list[Prompt]]


def place_of(job: Job) -> Place:
    """Where a job finds things, and where its engines run."""
    return Place(job.records, job.cache, job.shared, job.site)


def unmet_requirement(requires: Requirements, host: Record) -> str:
    """What the machine of a host record lacks for an attempt, in words; empty where it has everything."""
    if host.outcome is not Outcome.OK:
        return host.reason
    gpus = list(host.detail.get("gpus", ()))
    if requires.gpu and not gpus:
        return "needs a GPU, and this machine has none that NVML reports"
    if requires.compute_capability and all(g["compute_capability"] != requires.compute_capability for g in gpus):
        return f"needs a GPU of compute capability {requires.compute_capability}"
    if requires.gpu_memory_bytes and all(g["memory_bytes"] < requires.gpu_memory_bytes for g in gpus):
        return f"needs a GPU with {requires.gpu_memory_bytes / 2**30:.1f} GiB of memory"
    memory = int(host.detail.get("memory_bytes", 0))
    if requires.memory_bytes > memory:
        return f"needs {requires.memory_bytes / 2**30:.1f} GiB of memory, this machine has {memory / 2**30:.1f}"
    if requires.os and requires.os.lower() not in str(host.detail.get("os", "")).lower():
        return f"needs {requires.os}"
    return ""


def judged_claims(configuration: Configuration, attempt: str) -> tuple[Judged, ...]:
    """The speed claims about an attempt's arms that a session has to settle; of a control, whether it pays."""
    configured = configuration.attempts[attempt]
    asked = [control_question(configuration, configured)] if configured.control_of else configuration.findings.values()
    arms = {arm.id for arm in configuration.measured_arms(attempt)}
    claims = {FindingKind.DOES_NOT_PAY: Claim.DOES_NOT_PAY, FindingKind.PAYS: Claim.PAYS}
    return tuple(
        Judged(finding.id, arm, finding.prompt_class, claims[finding.kind], Metric(finding.metric))
        for finding in asked
        if finding.attempt == attempt and finding.kind in claims
        for arm in finding.arms or (finding.arm,)
        if arm in arms
    )


def measure_attempt(job: Job, attempt: str, engine_id: str, folder: Path, say: Callable[[str], None]) -> Record:
    """Run (or go on with) a session of an attempt on an engine; `folder` holds its run folders."""
    configuration = job.configuration
    place = place_of(job)
    missing = unmet_requirement(configuration.study.attempts[attempt].requires, place.read("host.json"))
    if missing:
        return unrun_session(job, attempt, engine_id, Outcome.NOT_RUN, missing)
    bench = prepare_bench(job, attempt, engine_id)
    session = session_plan(job, attempt, engine_id, bench)
    baseline = bench.arms[configuration.attempts[attempt].baseline.id]
    if isinstance(baseline, Blocked):
        return unrun_session(job, attempt, engine_id, baseline.outcome, baseline.reason)
    protocol = configuration.study.protocol_of(attempt)

    def meter(active: Sequence[str]) -> Mapping[str, Any]:
        running = {n: p for n, p in bench.arms.items() if n in active and isinstance(p, Ready)}
        # N-grams cost nothing to propose, and a drafter made for MTP does not run alone: neither has its own price.
        # Costs are timed with a cache that keeps the prompt between requests, which the host of transformers has not.
        drafting = {
            n: p
            for n, p in running.items()
            if p.arm.speculation.type is SpeculationType.DRAFT_SIMPLE and p.engine.driver is not Driver.TRANSFORMERS
        }
        return measure_costs(baseline, drafting, _most_drafted(running.values()), protocol) if drafting else {}

    return run_session(session, folder, arm_runner(configuration.study.protocol_of(attempt), bench), meter, say)


def prepare_bench(job: Job, attempt: str, engine_id: str) -> Bench:
    """Every measured arm of an attempt, ready to start or blocked. Raises RecordError where a stage has not run."""
    configuration, place = job.configuration, place_of(job)
    arms = configuration.measured_arms(attempt)
    return Bench(
        {arm.id: prepare(configuration, attempt, engine_id, arm, place) for arm in arms},
        {arm.id: prompts_of(configuration, attempt, arm) for arm in arms},
    )


def arm_runner(protocol: Protocol, bench: Bench) -> ArmRunner:
    """What a session calls for each arm of each block: a fresh process that is asked this block's prompts."""

    def run(spec: ArmSpec, number: int, position: int) -> ArmRun:
        prepared = bench.arms[spec.name]
        if isinstance(prepared, Blocked):
            return blocked_run(prepared, position)
        # The same order of prompts for all arms of a block, another one in the next block.
        prompts = _rotated(bench.prompts[spec.name], number)
        return run_arm(
            prepared,
            prompts,
            protocol.predict_tokens,
            warmup_tokens=protocol.warmup_tokens,
            start_timeout_s=protocol.start_timeout_s,
            request_timeout_s=protocol.request_timeout_s,
            position=position,
        )

    return run


def _most_drafted(arms: Iterable[Ready]) -> int:
    """The longest draft that any of these arms may make, in tokens."""
    lengths = [1]
    for ready in arms:
        speculation = ready.arm.speculation
        lengths += [n for n in (speculation.n_max, speculation.ngram_m) if n]
    return min(max(lengths), MOST_DRAFTED)


def _rotated(prompts: list[Prompt], number: int) -> list[Prompt]:
    shift = number % len(prompts) if prompts else 0
    return [*prompts[shift:], *prompts[:shift]]


def session_plan(job: Job, attempt: str, engine_id: str, bench: Bench) -> SessionPlan:
    """The plan of a session: arms, claims to settle, looks, and the identity that an interrupted run must share."""
    configuration = job.configuration
    arms = configuration.measured_arms(attempt)
    sequential = sequential_plan(configuration, attempt)
    control = next((arm for arm in arms if arm.kind is ArmKind.POSITIVE_CONTROL), None)
    classes = configuration.classes_of(attempt, control) if control else ()
    return SessionPlan(
        study=configuration.study.id,
        attempt=attempt,
        engine=engine_id,
        host=job.host,
        arms=tuple(ArmSpec(arm.id, arm.kind.value, arm.speculation.type.value) for arm in arms),
        judged=judged_claims(configuration, attempt),
        sequential=sequential,
        seed=configuration.study.protocol.seed,
        control_class=classes[0].value if len(classes) == 1 else "all",
        extra_blocks=max(2, math.ceil(sequential.looks[-1] * REPLACEMENT_SHARE)),
        identity=_identity(configuration, attempt, engine_id, bench),
    )


def _identity(configuration: Configuration, attempt: str, engine_id: str, bench: Bench) -> dict[str, Any]:
    """What must be the same for a block to belong to a session: bytes, settings, prompts, protocol."""
    arms: dict[str, Any] = {}
    for name, prepared in bench.arms.items():
        if isinstance(prepared, Blocked):
            arms[name] = {"outcome": prepared.outcome.value, "reason": prepared.reason}
        else:
            arms[name] = {
                "launch": prepared.launch.described(),
                "engine_sha256": prepared.engine_sha256,
                "model_sha256": prepared.model_sha256,
                "drafter_sha256": prepared.drafter_sha256,
            }
        arms[name]["prompts"] = {prompt.id: prompt.sha256 for prompt in bench.prompts[name]}
    return {
        "study": configuration.study.id,
        "attempt": attempt,
        "engine": engine_id,
        "arms": arms,
        "protocol": {key: str(value) for key, value in asdict(configuration.study.protocol_of(attempt)).items()},
    }


def unrun_session(job: Job, attempt: str, engine_id: str, outcome: Outcome, reason: str) -> Record:
    """The record of a session of which nothing was run."""
    return Record(
        Kind.SESSION,
        f"{attempt}/{engine_id}",
        outcome,
        reason=reason,
        host=job.host,
        study=job.configuration.study.id,
        attempt=attempt,
        engine=engine_id,
        started=utc_now(),
        detail={"run": "", "blocks": 0, "stop_reason": reason, "arms": {}},
    )


def load_once(job: Job, attempt: str, engine_id: str, arm_id: str) -> Record:
    """Start one arm once and ask one short request per class: outcome, engagement, drafted and accepted tokens."""
    configuration = job.configuration
    arm = configuration.attempts[attempt].arm(arm_id)
    began, started = time.monotonic(), utc_now()
    place = place_of(job)
    protocol = configuration.study.protocol_of(attempt)
    missing = unmet_requirement(configuration.study.attempts[attempt].requires, place.read("host.json"))
    prepared = (
        Blocked(arm, Outcome.NOT_RUN, missing) if missing else prepare(configuration, attempt, engine_id, arm, place)
    )
    if isinstance(prepared, Blocked):
        run = blocked_run(prepared)
    else:
        run = run_arm(
            prepared,
            _one_per_class(prompts_of(configuration, attempt, arm)),
            protocol.load_predict_tokens,
            warmup_tokens=protocol.warmup_tokens,
            start_timeout_s=protocol.start_timeout_s,
            request_timeout_s=protocol.request_timeout_s,
            memory_limit_bytes=memory_limit(configuration, attempt, prepared),
        )
    return _load_record(job, attempt, engine_id, arm, run, started, time.monotonic() - began)


def unrun_load(job: Job, attempt: str, engine_id: str, arm_id: str, outcome: Outcome, reason: str) -> Record:
    """The record of a load that was not tried."""
    arm = job.configuration.attempts[attempt].arm(arm_id)
    return _load_record(job, attempt, engine_id, arm, blocked_run(Blocked(arm, outcome, reason)), utc_now(), 0.0)


def memory_limit(configuration: Configuration, attempt: str, ready: Ready) -> int:
    """The memory in bytes that a load may take: the smallest budget of an attempt on the CPU, where memory is plenty.

    A GPU has its own limit, which the load meets by itself.
    """
    budgets = configuration.study.attempts[attempt].memory_budgets_bytes
    return min(budgets, default=0) if ready.engine.backend is Backend.CPU else 0


def _one_per_class(prompts: list[Prompt]) -> list[Prompt]:
    seen: dict[str, Prompt] = {}
    for prompt in prompts:
        seen.setdefault(prompt.prompt_class, prompt)
    return list(seen.values())


def _load_record(job: Job, attempt: str, engine_id: str, arm: Arm, run: ArmRun, started: str, seconds: float) -> Record:
    counted = [r for r in run.requests if r.counted and r.outcome is Outcome.OK]
    reported = [r for r in run.requests if r.draft_n is not None]
    outcome = run.outcome
    if outcome is Outcome.OK and run.engagement is Engagement.NOT_ENGAGED:
        outcome = Outcome.NOT_ENGAGED
    return Record(
        Kind.LOAD,
        f"{attempt}/{engine_id}/{arm.id}",
        outcome,
        reason=run.reason,
        host=job.host,
        study=job.configuration.study.id,
        attempt=attempt,
        engine=engine_id,
        arm=arm.id,
        seconds=round(seconds, 3),
        started=started,
        log_tail=run.log_tail,
        log_sha256=run.log_sha256,
        versions={"build": str(plan.engine_of(job.configuration, attempt, engine_id, arm).build or "")},
        detail={
            "engagement": run.engagement.value,
            "drafted": sum(r.draft_n or 0 for r in reported) if reported else None,
            "accepted": sum(r.draft_n_accepted or 0 for r in reported) if reported else None,
            "degenerate": any(r.degenerate for r in counted if r.prompt_class != "list"),
            "mechanism": str(run.settings.get("vocabulary", "")),
            "settings": dict(run.settings),
            "model_sha256": run.model_sha256,
            "drafter_sha256": run.drafter_sha256,
            "engine_sha256": run.engine_sha256,
            "requests": [asdict(r) for r in run.requests],
        },
    )
