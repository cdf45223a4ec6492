"""Runs one arm for real: finds its files, starts the engine, asks the prompts, stops it, and says what happened.

Everything that can go wrong with an engine ends as an `ArmRun` with an outcome and a reason. What is wrong with the
pipeline itself (a record that is missing, a disk that is full) raises.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from findings import plan
from findings.blocks import ArmRun, RequestResult
from findings.config import Arm, Configuration, Engine, Prompt, PromptClass
from findings.engine.arms import Launch, ServerSettings, Unsupported, translate
from findings.engine.client import (
    Completion,
    backend_used,
    degenerate,
    draft_counters,
    engagement,
    not_engaged_reason,
    server_settings,
    vocabulary_message,
)
from findings.engine.failure import EngineFailure
from findings.engine.features import features_from_detail
from findings.engine.reported import backend_of_buffers, reported_settings
from findings.engine.serving import ServingEngine
from findings.machine import GpuReader, with_gpu_memory
from findings.records import Engagement, Outcome, Record, clip_log, read_record, sha256_text, utc_now
from findings.site import Here, Site
from findings.sources import model_path

WARMUP_PROMPT = "The keeper of the tower counted the steps once more before the storm reached the coast, and"
WARMUP_ID = "warm-up"


@dataclass(frozen=True)
class Place:
    """Where a job finds things: records of the host that measures, records of what was fetched and made, the cache."""

    records: Path
    cache: Path
    shared: Path
    remote: Site | None = None

    @property
    def site(self) -> Site:
        """Where the engines run."""
        return self.remote or Here(self.shared, self.cache)

    def read(self, path: str) -> Record:
        """The record at a path below the measuring host's folder. Raises RecordError where it is missing or damaged."""
        return read_record(self.records / path)

    def read_shared(self, path: str) -> Record:
        """The record of a model or program, below the folder of the machine that fetched it. Raises RecordError."""
        return read_record(self.shared / path)


@dataclass(frozen=True)
class Ready:
    """An arm that can be started: where, the program, the launch in the build's words, and the bytes it loads.

    Paths are those of the site.
    """

    arm: Arm
    engine: Engine
    site: Site
    program: Path
    launch: Launch
    model_sha256: str
    drafter_sha256: str | None
    engine_sha256: str
    trained: bool
    model_path: Path
    drafter_path: Path | None


@dataclass(frozen=True)
class Blocked:
    """An arm that cannot be started here, with the outcome that says so."""

    arm: Arm
    outcome: Outcome
    reason: str


def prepare(configuration: Configuration, attempt: str, engine_id: str, arm: Arm, place: Place) -> Ready | Blocked:
    """Resolve one arm to files and a launch, or say why it cannot be started.

    Raises RecordError where an earlier stage has not run.
    """
    engine = plan.engine_of(configuration, attempt, engine_id, arm)
    probe = place.read(f"probes/{engine.id}.json")
    if probe.outcome is not Outcome.OK:
        return Blocked(arm, probe.outcome, f"engine {engine.id}: {probe.reason}")
    files: list[Path] = []
    hashes: list[str] = []
    models = [plan.target_of(configuration, attempt, arm), plan.drafter_of(configuration, attempt, arm)]
    for model in models:
        if model is None:
            continue
        source = place.read_shared(plan.model_record(configuration, model.id))
        if source.outcome is not Outcome.OK:
            return Blocked(
                arm, Outcome.NOT_RUN, f"model {model.id} is not here: {source.outcome.value}: {source.reason}"
            )
        files.append(model_path(source, place.cache))
        hashes.append(str(source.detail["sha256"]))
    study = configuration.study
    chosen = study.attempts[attempt]
    server = ServerSettings(
        model=files[0],
        drafter=files[1] if len(files) > 1 else None,
        threads=study.threads,
        ctx=chosen.ctx or study.ctx,
        batch=study.batch,
        gpu_layers=study.gpu_layers if chosen.gpu_layers is None else chosen.gpu_layers,
        backend=engine.backend,
        extra=tuple(arm.engine_flags.get(engine.driver, ())),
    )
    features = features_from_detail(probe.detail)
    launch = translate(arm.speculation, features, server)
    if isinstance(launch, Unsupported):
        return Blocked(arm, Outcome.UNSUPPORTED, launch.reason)
    site = place.site
    try:
        program = site.program(engine)
        engine_sha256 = site.program_sha256(engine, program)
        files = [site.model(file, sha256) for file, sha256 in zip(files, hashes, strict=True)]
    except EngineFailure as failure:
        return Blocked(arm, failure.outcome, failure.reason)
    # Nothing is copied to another machine for an arm that its build cannot do; now the files are where it runs.
    server = replace(server, model=files[0], drafter=files[1] if len(files) > 1 else None)
    launch = translate(arm.speculation, features, server)
    if isinstance(launch, Unsupported):
        return Blocked(arm, Outcome.UNSUPPORTED, launch.reason)
    return Ready(
        arm=arm,
        engine=engine,
        site=site,
        program=program,
        launch=launch,
        model_sha256=hashes[0],
        drafter_sha256=hashes[1] if len(hashes) > 1 else None,
        engine_sha256=engine_sha256,
        trained=all(model.trained for model in models if model is not None),
        model_path=files[0],
        drafter_path=files[1] if len(files) > 1 else None,
    )


def prompts_of(configuration: Configuration, attempt: str, arm: Arm) -> list[Prompt]:
    """The prompts of an arm, in the study's order. The baseline and the null arm answer those of every other arm."""
    classes: dict[PromptClass, None] = {}
    others = configuration.measured_arms(attempt) if arm.kind in ("baseline", "null") else (arm,)
    for other in others:
        for name in configuration.classes_of(attempt, other):
            classes[name] = None
    return configuration.prompts_of(attempt, list(classes))


def blocked_run(blocked: Blocked, position: int = 0) -> ArmRun:
    """What a block holds for an arm that could not be started."""
    arm = blocked.arm
    state = Engagement.OFF if arm.speculation.type == "none" else Engagement.NOT_ENGAGED
    return ArmRun(
        arm.id,
        arm.kind.value,
        arm.speculation.type.value,
        blocked.outcome,
        state,
        blocked.reason,
        position=position,
        started=utc_now(),
    )


def run_arm(
    ready: Ready,
    prompts: Sequence[Prompt],
    predict_tokens: int,
    *,
    warmup_tokens: int,
    start_timeout_s: float,
    request_timeout_s: float,
    position: int = 0,
    memory_limit_bytes: int = 0,
) -> ArmRun:
    """One fresh engine process: warm-up, then every prompt once. Never raises for what an engine does.

    Token counts in tokens, time limits in seconds; an engine whose resident memory exceeds `memory_limit_bytes` is
    ended as out of memory (0: no limit). The process has ended when this returns.
    """
    started = utc_now()
    began = time.monotonic()
    arm = ready.arm
    blank = ArmRun(
        arm.id,
        arm.kind.value,
        arm.speculation.type.value,
        Outcome.OK,
        Engagement.OFF,
        position=position,
        started=started,
        engine_sha256=ready.engine_sha256,
        model_sha256=ready.model_sha256,
        drafter_sha256=ready.drafter_sha256,
    )
    gpus = GpuReader()
    before = gpus.memory_used_bytes()
    with tempfile.TemporaryDirectory(prefix="findings-engine-") as folder:
        try:
            engine = ready.site.start(
                ready.engine, ready.program, ready.launch, Path(folder), start_timeout_s, memory_limit_bytes
            )
        except EngineFailure as failure:
            return _failed(blank, failure, time.monotonic() - began)
        startup = time.monotonic() - began
        try:
            run = _ask(blank, ready, engine, prompts, predict_tokens, warmup_tokens, request_timeout_s)
        finally:
            engine.stop()
        if isinstance(ready.site, Here):  # the GPUs that were asked are those of the engine
            run = replace(run, machine=with_gpu_memory(run.machine, before, gpus.memory_used_bytes()))
        return replace(run, startup_s=round(startup, 3))


def _failed(blank: ArmRun, failure: EngineFailure, seconds: float) -> ArmRun:
    _, tail = clip_log(failure.log)
    state = Engagement.OFF if blank.speculation == "none" else Engagement.NOT_ENGAGED
    return replace(
        blank,
        outcome=failure.outcome,
        reason=failure.reason,
        engagement=state,
        startup_s=round(seconds, 3),
        log_tail=tail,
        log_sha256=failure.log_sha256 or sha256_text(failure.log),
    )


def _ask(
    blank: ArmRun,
    ready: Ready,
    engine: ServingEngine,
    prompts: Sequence[Prompt],
    predict_tokens: int,
    warmup_tokens: int,
    timeout_s: float,
) -> ArmRun:
    """Warm up, ask, and read what the server reports about itself."""
    requests: list[RequestResult] = []
    completions: list[Completion] = []
    failure: EngineFailure | None = None
    settings: dict[str, Any] = {}
    try:
        warm = engine.complete(WARMUP_PROMPT, warmup_tokens, timeout_s)
        requests.append(_result(WARMUP_ID, "warm-up", warm, counted=False))
        settings = server_settings(engine.endpoint)
    except EngineFailure as error:
        failure = error
    with engine.watch_load() as watch:
        for prompt in prompts if failure is None else ():
            try:
                answer = engine.complete(prompt.text, predict_tokens, timeout_s)
            except EngineFailure as error:
                failure = error
                requests.append(
                    RequestResult(prompt.id, prompt.prompt_class.value, True, error.outcome, reason=error.reason)
                )
                break
            completions.append(answer)
            requests.append(_result(prompt.id, prompt.prompt_class.value, answer, counted=True))
    counters = draft_counters(engine.endpoint) if failure is None else None
    log = engine.log_text()
    state = engagement(ready.launch, settings, completions, log)
    _, tail = clip_log(log)
    devices = backend_used(log)
    report = watch.report
    outcome, reason = (failure.outcome, failure.reason) if failure else (Outcome.OK, "")
    if failure is None and state is Engagement.NOT_ENGAGED:
        reason = not_engaged_reason(log)
    return replace(
        blank,
        outcome=outcome,
        reason=reason,
        engagement=state,
        engine_cpu_s=round(report.engine_cpu_s, 3) if report else 0.0,
        engine_wall_s=round(report.wall_s, 3) if report else 0.0,
        other_cpu_share=report.other_cpu_share if report else 0.0,
        rss_bytes=report.rss_bytes if report else 0,
        swap_bytes=report.swap_bytes if report else 0,
        machine=report.machine if report else {},
        settings={
            **settings,
            **reported_settings(log),
            **devices,
            "backend_used": backend_of_buffers(devices.get("buffers_mib", {})),
            "backend": ready.engine.backend.value,
            "vocabulary": vocabulary_message(log),
            "draft_counters": asdict(counters) if counters is not None else None,
            "launch": ready.launch.described(),
        },
        log_tail=tail,
        log_sha256=engine.log_sha256(),
        requests=tuple(requests),
    )


def _result(prompt_id: str, prompt_class: str, answer: Completion, *, counted: bool) -> RequestResult:
    return RequestResult(
        prompt_id,
        prompt_class,
        counted,
        Outcome.OK,
        prompt_n=answer.prompt_n,
        prompt_ms=answer.prompt_ms,
        predicted_n=answer.predicted_n,
        predicted_ms=answer.predicted_ms,
        draft_n=answer.draft_n,
        draft_n_accepted=answer.draft_n_accepted,
        text_sha256=sha256_text(answer.text),
        tokens=tuple(answer.tokens),
        degenerate=degenerate(answer.tokens),
    )
