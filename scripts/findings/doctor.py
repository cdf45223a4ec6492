"""What this machine has, what of the study can run on it, and what running it would take. Nothing is fetched.

The only network access is one HEAD request to the models' hub, bounded in time, and it can be left out. Programs that
are already here are started to be asked for their version and devices.
"""

from __future__ import annotations

import json
import os
import platform
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import requests

from findings import plan
from findings.config import Configuration, Engine, MirrorKind, Model, ModelFormat, StudyAttempt
from findings.engine.drivers import locate_binary
from findings.engine.failure import EngineFailure
from findings.engine.probe import probe_features
from findings.environments import MARKER, environment_folder, python_in, read_lock
from findings.gpu_checks import Check, checks
from findings.host import HostFacts, host_facts, host_record
from findings.measure import unmet_requirement
from findings.mirrors import hub_endpoint
from findings.programs import own_interpreter
from findings.records import Outcome
from findings.sources import checkpoint_key
from findings.torch_probe import probe_python

HUB_SECONDS = 4.0
PROBE_SECONDS = 20.0
# For the estimate of time alone: what a small machine does. Said in the output, never used in a verdict.
ASSUMED_TOKENS_PER_S = 20.0
ASSUMED_START_S = 3.0
ASSUMED_MIB_PER_S = 5.0
MIB = 2**20


@dataclass(frozen=True)
class EngineState:
    """One engine of the study: here, to be fetched (`needs` names the sources), or missing, and in which words."""

    id: str
    here: bool
    obtainable: bool
    words: str
    program: Path | None = None


@dataclass(frozen=True)
class AttemptState:
    """Whether an attempt of the study can run here; `reasons`: what stands against it, `anyway`: what is done then."""

    id: str
    runs: bool
    reasons: tuple[str, ...]
    anyway: tuple[str, ...] = ()


@dataclass(frozen=True)
class Download:
    """Something that running would fetch; size in bytes, None where it is not known; `note` is the lock's own."""

    name: str
    size_bytes: int | None
    note: str = ""


@dataclass(frozen=True)
class Diagnosis:
    """Everything that doctor says."""

    study: str
    host: HostFacts
    engines: tuple[EngineState, ...]
    devices: Mapping[str, tuple[str, ...]]
    torch: tuple[str, ...]
    hub: str
    checks: tuple[Check, ...]
    attempts: tuple[AttemptState, ...]
    downloads: tuple[Download, ...]
    seconds: tuple[float, float]


def hub_access(asked: bool, endpoint: str = "") -> str:
    """`yes`, `no: <why>` or `unknown: <why>`; one HEAD request that takes HUB_SECONDS at most, none if not `asked`."""
    if not asked:
        return "unknown: not asked"
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on"):
        return "no: HF_HUB_OFFLINE is set"
    answer = ["no: no answer within a few seconds"]

    def ask() -> None:
        try:
            found = requests.head(endpoint or hub_endpoint(), timeout=HUB_SECONDS, allow_redirects=False)
            answer[0] = "yes" if found.status_code < 500 else f"no: it answers {found.status_code}"
        except requests.RequestException as error:
            answer[0] = f"no: it cannot be reached from here ({type(error).__name__})"

    # A thread: looking up a name has no time limit of its own.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(HUB_SECONDS)
    return answer[0]


def built_environment(name: str, root: Path, cache: Path) -> Path | None:
    """Folder of an environment that is whole in the cache, of its lock or of the lock's fallback; None otherwise."""
    path = root / "envs" / f"{name}.txt"
    while path.is_file():
        lock = read_lock(path)
        folder = environment_folder(name, lock, cache)
        if (folder / MARKER).is_file() and python_in(folder).exists():
            return folder
        if not lock.fallback:
            break
        path = path.with_name(lock.fallback)
    return None


def engine_state(engine: Engine, root: Path, cache: Path) -> EngineState:
    """Where an engine stands on this machine."""
    if engine.archive is not None and engine.archive.sha256:
        if (cache / "archives" / engine.archive.sha256 / engine.archive.file).is_file():
            return EngineState(engine.id, True, True, f"release archive {engine.archive.file} in the cache")
        return EngineState(engine.id, False, True, f"release archive {engine.archive.file} would be fetched")
    if engine.environment:
        folder = built_environment(engine.environment, root, cache)
        if folder is None:
            there = (root / "envs" / f"{engine.environment}.txt").is_file()
            words = f"environment {engine.environment} would be built" if there else f"no lock {engine.environment}"
            return EngineState(engine.id, False, there, words)
        python = python_in(folder)
        try:
            program = python if engine.driver.in_python else locate_binary(engine, python)
        except EngineFailure as failure:
            return EngineState(engine.id, False, False, failure.reason)
        return EngineState(engine.id, True, True, f"environment {engine.environment} is built", program)
    try:
        program = own_interpreter(engine) if engine.driver.in_python else locate_binary(engine)
    except EngineFailure as failure:
        told = failure.reason.removeprefix(f"{engine.id}: ")
        words = f"{told}; name yours under `binaries:` in the configuration (a path, or a name on PATH)"
        words += f". {engine.note}" if engine.note else ""
        return EngineState(engine.id, False, False, words)
    return EngineState(engine.id, True, True, f"executable {program.name}", program)


def engines_of_study(configuration: Configuration) -> list[Engine]:
    """Every engine that the study starts or asks, each once."""
    found: dict[str, Engine] = {}
    for attempt, chosen in configuration.study.attempts.items():
        for engine_id in (*chosen.measure, *chosen.load, *chosen.probe):
            for engine in plan.engines_of_job(configuration, attempt, engine_id):
                found.setdefault(engine.id, engine)
    return list(found.values())


def _sources(configuration: Configuration, attempt: str) -> tuple[list[Model], list[str]]:
    """(models to fetch, converters) of an attempt; a model that is made here stands for what it is made from."""
    chosen = configuration.study.attempts[attempt]
    arms = configuration.arms_of(attempt)
    runs = bool(chosen.load or chosen.measure)
    wanted = plan.models_of_arms(configuration, attempt, arms) if runs else []
    wanted += [item.checkpoint for item in chosen.convert]
    converters = {name: None for item in chosen.convert for name in item.converters}
    models: dict[str, Model] = {}
    for name in wanted:
        model = configuration.models[name]
        while model.copied_from or model.converted_from:
            if model.converted_from is not None:
                converters[model.converted_from.converter] = None
                model = configuration.models[model.converted_from.checkpoint]
            elif model.copied_from is not None:
                model = configuration.models[model.copied_from]
        models[model.id] = model
    return list(models.values()), list(converters)


def _committed(model: Model) -> bool:
    return any(mirror.kind is MirrorKind.PATH for mirror in model.mirrors)


def _missing_bytes(model: Model, cache: Path) -> int | None:
    """Bytes of a model that the cache lacks; None where that is not known before `lock`."""
    if model.format is not ModelFormat.CHECKPOINT:
        if model.sha256 is None:
            return None
        return 0 if (cache / "models" / model.sha256 / model.file).is_file() else model.size_bytes
    if _committed(model):
        return 0
    pins = [(file.name, file.sha256 or "") for file in model.files]
    if not pins or any(not digest for _, digest in pins):
        return None
    folder = cache / "models" / checkpoint_key(pins)
    missing = [file.size_bytes for file in model.files if not (folder / file.name).is_file()]
    return sum(size for size in missing if size) if None not in missing else None


def attempt_state(
    configuration: Configuration, attempt: str, host: HostFacts, engines: Mapping[str, EngineState]
) -> AttemptState:
    """Whether an attempt can run on this machine, and everything that stands against it."""
    chosen = configuration.study.attempts[attempt]
    reasons = [unmet_requirement(chosen.requires, host_record(host))]
    for engine in dict.fromkeys((*chosen.measure, *chosen.load)):
        for used in plan.engines_of_job(configuration, attempt, engine):
            state = engines[used.id]
            if not state.here and not state.obtainable:
                reasons.append(f"engine {state.id} is missing (see above)")
    for model in _sources(configuration, attempt)[0]:
        pinned = model.sha256 if model.format is ModelFormat.GGUF else all(file.sha256 for file in model.files)
        if not pinned and not _committed(model):
            reasons.append(f"model {model.id}: not resolved yet, run the target lock")
    kept = tuple(dict.fromkeys(reason for reason in reasons if reason))
    anyway = []
    if chosen.torch_wheels:
        anyway.append(f"{len(chosen.torch_wheels)} builds of PyTorch are asked for their GPU architectures")
    if chosen.convert:
        anyway.append("its conversions are tried")
    return AttemptState(attempt, not kept, kept, tuple(anyway))


def downloads(configuration: Configuration, engines: Iterable[Engine], cache: Path) -> tuple[Download, ...]:
    """What the study would fetch that the cache lacks: models, archives, environments."""
    root = configuration.root
    found: dict[str, Download] = {}
    environments = {engine.environment: None for engine in engines if engine.environment}
    for engine in engines:
        if engine.archive is not None and not engine_state(engine, root, cache).here:
            found[engine.id] = Download(f"archive of {engine.id}", engine.archive.size_bytes)
    for attempt, chosen in configuration.study.attempts.items():
        models, converters = _sources(configuration, attempt)
        for model in models:
            size = _missing_bytes(model, cache)
            if size != 0:
                note = "gated: accept its licence first" if model.gated else ""
                found[model.id] = Download(f"model {model.id}", size, note)
        for name in converters:
            converter = configuration.converters[name]
            environments[converter.environment] = None
            source = converter.source
            if not source.sha256 or not (cache / "archives" / source.sha256 / source.file).is_file():
                found[name] = Download(f"source of {name}", source.size_bytes)
        for wheel in chosen.torch_wheels:
            if configuration.torch_wheels[wheel].environment:
                environments[configuration.torch_wheels[wheel].environment] = None
    for name in environments:
        lock = root / "envs" / f"{name}.txt"
        if lock.is_file() and built_environment(name, root, cache) is None:
            found[f"environment {name}"] = Download(f"environment {name}", None, read_lock(lock).note)
    return tuple(found.values())


def _session_seconds(configuration: Configuration, attempt: str, chosen: StudyAttempt) -> tuple[float, float]:
    """(least, most) seconds of an attempt's sessions and loads under the assumptions of this module."""
    protocol = configuration.study.protocol_of(attempt)
    arms = configuration.measured_arms(attempt)
    prompts = sum(len(configuration.prompts_of(attempt, list(configuration.classes_of(attempt, arm)))) for arm in arms)
    tokens = prompts * protocol.predict_tokens + len(arms) * protocol.warmup_tokens
    block = len(arms) * ASSUMED_START_S + tokens / ASSUMED_TOKENS_PER_S
    sessions = len(chosen.measure)
    loads = len(plan.load_trials(configuration, attempt))
    load = loads * (ASSUMED_START_S + 4 * protocol.load_predict_tokens / ASSUMED_TOKENS_PER_S)
    return sessions * block * min(protocol.looks) + load, sessions * block * protocol.max_blocks + load


def diagnose(
    configuration: Configuration, cache: Path, *, network: bool = True, ask_programs: bool = True
) -> Diagnosis:
    """Everything about this machine and the configured study; see the module for what it does and does not touch."""
    root = configuration.root
    host = host_facts(configuration.host)
    wanted = engines_of_study(configuration)
    states = {engine.id: engine_state(engine, root, cache) for engine in wanted}
    devices: dict[str, tuple[str, ...]] = {}
    if ask_programs:
        for engine in wanted:
            program = states[engine.id].program
            if program is not None:
                states[engine.id], devices[engine.id] = _asked(engine, states[engine.id], program)
    torch, programs = _torch(configuration, cache) if ask_programs else ((), ())
    attempts = tuple(attempt_state(configuration, name, host, states) for name in configuration.study.attempts)
    fetched = downloads(configuration, wanted, cache)
    least = most = sum(item.size_bytes or 0 for item in fetched) / MIB / ASSUMED_MIB_PER_S
    for state in attempts:
        if state.runs:
            few, many = _session_seconds(configuration, state.id, configuration.study.attempts[state.id])
            least, most = least + few, most + many
    return Diagnosis(
        study=configuration.study.id,
        host=host,
        engines=tuple(states.values()),
        devices=devices,
        torch=torch,
        hub=hub_access(network),
        checks=tuple(checks(host.gpus, programs, platform.system(), platform.release())),
        attempts=attempts,
        downloads=fetched,
        seconds=(least, most),
    )


def _asked(engine: Engine, state: EngineState, program: Path) -> tuple[EngineState, tuple[str, ...]]:
    """An engine that is here, asked for its version and devices; one that dies is no longer `here`."""
    try:
        features, _ = probe_features(engine, program, PROBE_SECONDS)
    except EngineFailure as failure:
        words = f"{state.words}, but it does not answer: {failure.outcome.value}: {failure.reason}"
        return replace(state, here=False, obtainable=False, words=words), ()
    listed = tuple(f"{device['name']}: {device.get('description', '')}" for device in features.devices)
    build = f", build {features.build}" if features.build else ""
    return replace(state, words=f"{state.words}; {features.version}{build}"), listed


def _torch(configuration: Configuration, cache: Path) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """(lines about PyTorch in the environments that are built, (name, CUDA version) of each)."""
    names: dict[str, None] = {}
    for chosen in configuration.study.attempts.values():
        for item in chosen.convert:
            names.update({configuration.converters[name].environment: None for name in item.converters})
        names.update({configuration.torch_wheels[name].environment: None for name in chosen.torch_wheels})
    lines: list[str] = []
    programs: list[tuple[str, str]] = []
    for name in names:
        folder = built_environment(name, configuration.root, cache) if name else None
        if folder is None or "torch" not in _packages(folder):
            continue
        record = probe_python(name, python_in(folder))
        detail: Mapping[str, Any] = record.detail
        if record.outcome is not Outcome.OK:
            lines.append(f"environment {name}: {record.outcome.value}: {record.reason}")
            continue
        version = str(detail.get("version", "?"))
        listed = ", ".join(map(str, detail.get("arch_list", ()))) or "none (a build for the CPU)"
        lines.append(f"environment {name}: torch {version}, GPU architectures: {listed}")
        if detail.get("cuda"):
            programs.append((f"torch {version}", str(detail["cuda"])))
    return tuple(lines), tuple(programs)


def _packages(folder: Path) -> dict[str, str]:
    """Packages of a built environment by name; empty where its marker cannot be read."""
    try:
        found = json.loads((folder / MARKER).read_text(encoding="utf-8"))["packages"]
        return {str(name): str(version) for name, version in found.items()}
    except (OSError, ValueError, KeyError, AttributeError):
        return {}


def _minutes(seconds: float) -> str:
    return (
        "under a minute" if seconds < 60 else f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
    )


def described(found: Diagnosis) -> str:
    """The diagnosis as text for a terminal."""
    host = found.host
    lines = [f"Study {found.study} on {host.label}", "", "Machine"]
    lines.append(
        f"  {host.os}, Python {host.python}, {host.cpu}, {host.cores} cores, {host.memory_bytes / 2**30:.1f} GiB"
    )
    for gpu in host.gpus:
        size = gpu.memory_bytes / 2**30
        lines.append(f"  {gpu.name}, compute capability {gpu.compute_capability}, {size:.1f} GiB, driver {gpu.driver}")
    if not host.gpus:
        lines.append("  no NVIDIA GPU that NVML reports (none, no driver, or nvidia-ml-py is not installed)")
    lines += [
        f"  hub of the models reachable: {found.hub}",
        *(f"  {check.level.value}: {check.message}" for check in found.checks),
    ]
    lines += [f"  {line}" for line in found.torch or ("no PyTorch in an environment that is built here",)]
    lines += ["", "Engines"]
    for engine in found.engines:
        sign = "here" if engine.here else "to fetch" if engine.obtainable else "missing"
        lines.append(f"  {engine.id}: {sign}: {engine.words}")
        lines += [f"    device {device}" for device in found.devices.get(engine.id, ())]
    lines += ["", "Attempts"]
    for attempt in found.attempts:
        runs = "can run here" if attempt.runs else "runs here in part" if attempt.anyway else "cannot run here"
        lines.append(f"  {attempt.id}: {runs}")
        lines += [f"    {reason}" for reason in attempt.reasons]
        lines += [f"    all the same: {what}" for what in attempt.anyway if not attempt.runs]
    known = sum(item.size_bytes or 0 for item in found.downloads)
    open_ones = sum(item.size_bytes is None for item in found.downloads)
    total = f"{known / MIB:.1f} MiB" + (f", and {open_ones} of a size not listed" if open_ones else "")
    lines += ["", f"To fetch: {total if found.downloads else 'nothing, all of it is here'}"]
    for item in found.downloads:
        told = "size not listed" if item.size_bytes is None else f"{item.size_bytes / MIB:.1f} MiB"
        lines.append(f"  {item.name}: {told}" + (f" ({item.note})" if item.note else ""))
    least, most = found.seconds
    lines += ["", f"Time, if everything is made anew: {_minutes(least)} to {_minutes(most)}"]
    lines.append(
        f"  (rough: {ASSUMED_TOKENS_PER_S:.0f} tokens/s, {ASSUMED_START_S:.0f} s a start, {ASSUMED_MIB_PER_S:.0f} MiB/s"
        " fetched; attempts that cannot run take none; a session stops as soon as its verdict is settled)"
    )
    lines += ["", "Nothing was fetched, built or measured to find this out."]
    return "\n".join(lines)
