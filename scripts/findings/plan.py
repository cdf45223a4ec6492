"""What each attempt needs: the records that its verdict rests on, as paths below results/records/<host>/.

The workflow's graph is static: it follows from the configuration alone, never from how something ended.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from findings.config import (
    Arm,
    ArmKind,
    Configuration,
    Engine,
    Model,
    ModelFormat,
    RemoteHost,
    SpeculationType,
    StudyAttempt,
)

TARGET_ROLE = "target"


@dataclass(frozen=True)
class Trial:
    """One arm of one attempt on one engine."""

    attempt: str
    engine: str
    arm: str

    @property
    def folder(self) -> str:
        """`attempt/engine/arm`."""
        return f"{self.attempt}/{self.engine}/{self.arm}"


def wildcard(names: Iterable[str]) -> str:
    """A regular expression for exactly these names, longest first; it matches nothing where there are none."""
    ordered = sorted(names, key=lambda name: (-len(name), name))
    return "|".join(re.escape(name) for name in ordered) or "(?!)"


def model_record(configuration: Configuration, model_id: str) -> str:
    """The record that says where a model's bytes are: of its download, or of what makes it here."""
    model = configuration.models[model_id]
    if model.retyped_from is not None:
        return f"retyped/{model_id}.json"
    if model.padded_from is not None:
        return f"padded/{model_id}.json"
    if model.converted_from is not None:
        return conversion_record(model.converted_from.checkpoint, model.converted_from.converter)
    return f"sources/{model_id}.json"


def conversion_record(checkpoint: str, converter: str) -> str:
    """The record of one checkpoint through one converter."""
    return f"conversions/{checkpoint}/{converter}.json"


def engine_of(configuration: Configuration, attempt: str, engine_id: str, arm: Arm) -> Engine:
    """The engine that an arm runs on: the job's, or the study's alternative to it (backend switch)."""
    if arm.engine == "same":
        return configuration.engines[engine_id]
    alternatives = configuration.study.attempts[attempt].alternatives
    return configuration.engines[alternatives.get(engine_id, engine_id)]


def engines_of_job(configuration: Configuration, attempt: str, engine_id: str) -> list[Engine]:
    """All engines that one job of an attempt starts, the job's own first."""
    found = {engine_id: configuration.engines[engine_id]}
    for arm in configuration.arms_of(attempt):
        engine = engine_of(configuration, attempt, engine_id, arm)
        found.setdefault(engine.id, engine)
    return list(found.values())


def model_of(configuration: Configuration, attempt: str, role: str) -> Model:
    """The model that plays a role in an attempt of the study (KeyError where the study gives none)."""
    return configuration.models[configuration.study.roles_of(attempt)[role]]


def target_of(configuration: Configuration, attempt: str, arm: Arm) -> Model:
    """The target model of an arm. Every arm of an attempt has the same one; the arm is asked for symmetry."""
    del arm
    return model_of(configuration, attempt, TARGET_ROLE)


def drafter_of(configuration: Configuration, attempt: str, arm: Arm) -> Model | None:
    """The drafter of an arm, None where its speculation needs none."""
    if not arm.speculation.type.needs_drafter:
        return None
    return model_of(configuration, attempt, arm.speculation.drafter)


def models_of_arms(configuration: Configuration, attempt: str, arms: Sequence[Arm]) -> list[str]:
    """Ids of every model that these arms load, each once."""
    found: dict[str, None] = {}
    for arm in arms:
        found[target_of(configuration, attempt, arm).id] = None
        drafter = drafter_of(configuration, attempt, arm)
        if drafter is not None:
            found[drafter.id] = None
    return list(found)


def loaded_arms(configuration: Configuration, attempt: str) -> list[Arm]:
    """The arms that are tried once per engine (cheap): those that speculate, the controls left out."""
    arms = configuration.arms_of(attempt)
    return [arm for arm in arms if arm.kind is ArmKind.CANDIDATE and arm.speculation.type is not SpeculationType.NONE]


def paired_arms(configuration: Configuration, attempt: str) -> list[Arm]:
    """The arms with a drafter model, which the pre-check predicts: it reads GGUF files, no checkpoints."""
    roles = configuration.study.roles_of(attempt)

    def is_gguf(role: str) -> bool:
        return role not in roles or configuration.models[roles[role]].format is ModelFormat.GGUF

    return [
        arm
        for arm in configuration.arms_of(attempt)
        if arm.kind is ArmKind.CANDIDATE
        and arm.speculation.type.needs_drafter
        and is_gguf(TARGET_ROLE)
        and is_gguf(arm.speculation.drafter)
    ]


def load_trials(configuration: Configuration, attempt: str) -> list[Trial]:
    """Every arm x engine that is loaded once in this study."""
    engines = configuration.study.attempts[attempt].load
    return [Trial(attempt, engine, arm.id) for engine in engines for arm in loaded_arms(configuration, attempt)]


def precheck_trials(configuration: Configuration, attempt: str) -> list[Trial]:
    """Every pair x engine that is loaded or measured, so each prediction meets an outcome."""
    plan = configuration.study.attempts[attempt]
    engines = dict.fromkeys((*plan.load, *plan.measure))
    return [Trial(attempt, engine, arm.id) for engine in engines for arm in paired_arms(configuration, attempt)]


def program_records(engines: Iterable[Engine]) -> list[str]:
    """Records of the environments and release archives of these engines (none for an executable of the user's)."""
    found: dict[str, None] = {}
    for engine in engines:
        if engine.environment:
            found[f"environments/{engine.environment}.json"] = None
        if engine.archive is not None:
            found[f"sources/{engine.id}.json"] = None
    return list(found)


def probe_records(configuration: Configuration, attempt: str) -> list[str]:
    """Records of the engines that are only asked what they offer, and of those that run."""
    plan = configuration.study.attempts[attempt]
    engines = dict.fromkeys((*plan.probe, *plan.load, *plan.measure))
    return [f"probes/{engine}.json" for engine in engines]


def host_of(configuration: Configuration, label: str) -> RemoteHost | None:
    """The further machine of this label; None for the machine that runs the workflow."""
    return next((host for host in configuration.settings.hosts if host.label == label), None)


def by_slurm(configuration: Configuration, label: str) -> bool:
    """Whether the jobs of a machine go through Slurm."""
    host = host_of(configuration, label)
    return host is not None and any(host.slurm.values())


def by_ssh(configuration: Configuration, label: str) -> bool:
    """Whether a machine is reached over ssh."""
    host = host_of(configuration, label)
    return host is not None and bool(host.ssh)


def on_host(configuration: Configuration, host: RemoteHost) -> Configuration:
    """The configuration as another machine runs it: its engines alone, and nothing that needs no measuring machine."""

    def kept(engines: Sequence[str], alternatives: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(name for name in engines if host.has(name) and host.has(alternatives.get(name, name)))

    def narrowed(attempt: StudyAttempt) -> StudyAttempt:
        measured = kept(attempt.measure, attempt.alternatives)
        return replace(attempt, measure=measured, load=kept(attempt.load, {}), probe=kept(attempt.probe, {}))

    attempts = {name: narrowed(attempt) for name, attempt in configuration.study.attempts.items()}
    return replace(configuration, study=replace(configuration.study, attempts=attempts))


def shared_records(configuration: Configuration, attempt: str) -> list[str]:
    """Records of what the machine that runs the workflow fetches, makes and asks for an attempt, whoever measures."""
    plan = configuration.study.attempts[attempt]
    records: list[str] = []
    runs = bool(plan.load or plan.measure)
    models = models_of_arms(configuration, attempt, configuration.arms_of(attempt)) if runs else []
    records += [model_record(configuration, model) for model in models]
    records += [conversion_record(item.checkpoint, converter) for item in plan.convert for converter in item.converters]
    records += [f"torch/{wheel}.json" for wheel in plan.torch_wheels]
    return list(dict.fromkeys(records))


def measured_records(configuration: Configuration, attempt: str) -> list[str]:
    """Records that a measuring machine makes for an attempt, in the order of the stages; none where it runs nothing."""
    plan = configuration.study.attempts[attempt]
    records = probe_records(configuration, attempt)
    records += [f"precheck/{trial.folder}.json" for trial in precheck_trials(configuration, attempt)]
    records += [f"loads/{trial.folder}.json" for trial in load_trials(configuration, attempt)]
    records += [f"measure/{attempt}/{engine}/session.json" for engine in plan.measure]
    return ["host.json", *records] if records else []


def attempt_records(configuration: Configuration, attempt: str) -> list[str]:
    """Every record that the verdicts of an attempt rest on, where one machine does everything."""
    records = ["host.json", *shared_records(configuration, attempt), *measured_records(configuration, attempt)]
    return list(dict.fromkeys(records))
