"""The configuration: frozen dataclasses, and the one function that reads and checks all of config/.

Schemas (workflow/schemas/*.schema.yaml) hold types, limits, defaults and meanings; the dataclasses here have the same
fields, so a checked document becomes an object by name. What a schema cannot say (references between files, roles,
arms of an attempt, pins of downloads) is checked in this module. All errors are collected: a user mends them in one go.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from findings.config_check import ConfigurationError, checked_documents

__all__ = ["ConfigurationError", "load_configuration"]


class SpeculationType(StrEnum):
    """What proposes the tokens that the target verifies, in our words; the engine's driver translates."""

    NONE = "none"
    DRAFT_SIMPLE = "draft_simple"
    DRAFT_MTP = "draft_mtp"
    NGRAM_SIMPLE = "ngram_simple"
    NGRAM_MAP_K = "ngram_map_k"
    NGRAM_MAP_K4V = "ngram_map_k4v"
    NGRAM_MOD = "ngram_mod"
    NGRAM_CACHE = "ngram_cache"

    @property
    def needs_drafter(self) -> bool:
        """Whether a second model proposes the tokens."""
        return self in (SpeculationType.DRAFT_SIMPLE, SpeculationType.DRAFT_MTP)


class ArmKind(StrEnum):
    """What an arm is for."""

    BASELINE = "baseline"
    NULL = "null"
    POSITIVE_CONTROL = "positive_control"
    CANDIDATE = "candidate"


class PromptClass(StrEnum):
    """Kind of text a prompt asks the model to continue."""

    PROSE = "prose"
    CODE = "code"
    STRUCTURED = "structured"
    LIST = "list"
    TEMPLATED = "templated"


class MirrorKind(StrEnum):
    """Where a file can be fetched from."""

    HUGGINGFACE = "huggingface"
    PYPI = "pypi"
    GITHUB = "github"
    PATH = "path"


class ModelFormat(StrEnum):
    """How a model lies on disk: one GGUF file, or a folder with safetensors and JSON."""

    GGUF = "gguf"
    CHECKPOINT = "checkpoint"


class Driver(StrEnum):
    """How an engine is started: in a process of the binding, as a llama-server executable, or with transformers."""

    XLLAMACPP = "xllamacpp"
    LLAMA_SERVER = "llama-server"
    TRANSFORMERS = "transformers"

    @property
    def in_python(self) -> bool:
        """Whether its program is a Python interpreter that runs a host script of ours."""
        return self is not Driver.LLAMA_SERVER

    @property
    def reads(self) -> ModelFormat:
        """The format of the models that it loads."""
        return ModelFormat.CHECKPOINT if self is Driver.TRANSFORMERS else ModelFormat.GGUF


class Backend(StrEnum):
    """Device family that computes."""

    CPU = "cpu"
    CUDA = "cuda"
    VULKAN = "vulkan"
    METAL = "metal"


class FindingKind(StrEnum):
    """What a finding claims, and so which rule judges it."""

    DOES_NOT_PAY = "does_not_pay"
    PAYS = "pays"
    CANNOT_CONVERT = "cannot_convert"
    CANNOT_LOAD = "cannot_load"
    DOES_NOT_ENGAGE = "does_not_engage"
    DOES_NOT_FIT = "does_not_fit"
    NOT_SHIPPED = "not_shipped"
    TORCH_SUPPORTS = "torch_supports"
    TORCH_DROPPED = "torch_dropped"
    ECOSYSTEM = "ecosystem"
    ROOT_CAUSE = "root_cause"
    EXTERNAL = "external"


class RootCauseStatus(StrEnum):
    """What became of a published root cause."""

    NOT_STATED = "not_stated"
    PLAUSIBLE = "plausible"
    CONFIRMED = "confirmed"
    CONTRADICTED = "contradicted"
    UNTESTED = "untested"


# --- sources -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PypiPart:
    """One package that holds a piece of a file; the pieces are concatenated in the order given."""

    package: str
    version: str
    file: str


@dataclass(frozen=True)
class Mirror:
    """One place that offers the file. Which fields count depends on `kind` (config/README.md).

    For `pypi`, an empty `file` means the package file itself (a wheel, or an sdist where `packaging` says so).
    """

    kind: MirrorKind
    repo: str = ""
    file: str = ""
    revision: str = ""
    package: str = ""
    version: str = ""
    packaging: str = "wheel"
    parts: tuple[PypiPart, ...] = ()
    tag: str = ""
    path: str = ""


@dataclass(frozen=True)
class ModelFile:
    """One file of a checkpoint; sha256 and size in bytes where they are known."""

    name: str
    sha256: str | None = None
    size_bytes: int | None = None


@dataclass(frozen=True)
class ConvertedFrom:
    """A GGUF that this pipeline makes itself: from which checkpoint, with which converter."""

    checkpoint: str
    converter: str


@dataclass(frozen=True)
class PaddedFrom:
    """A GGUF that this pipeline makes dearer on purpose: of which model, and how many feed-forward columns a layer."""

    model: str
    columns: int


@dataclass(frozen=True)
class Model:
    """One model. GGUF: `file` is its name and sha256/size_bytes pin it; checkpoint: `files` lists what is needed."""

    id: str
    title: str
    format: ModelFormat
    file: str = ""
    files: tuple[ModelFile, ...] = ()
    mirrors: tuple[Mirror, ...] = ()
    converted_from: ConvertedFrom | None = None
    retyped_from: str | None = None
    padded_from: PaddedFrom | None = None
    sha256: str | None = None
    size_bytes: int | None = None
    locked: bool = True
    quantization: str = ""
    license: str = ""
    gated: bool = False
    trained: bool = True
    role_hints: tuple[str, ...] = ()
    note: str = ""

    @property
    def copied_from(self) -> str | None:
        """The model that this one is a changed copy of (retyped or padded), None for every other."""
        return self.padded_from.model if self.padded_from is not None else self.retyped_from


@dataclass(frozen=True)
class Source:
    """An archive with its pins: the name it gets in the cache, mirrors in order, sha256, size in bytes."""

    file: str
    mirrors: tuple[Mirror, ...]
    sha256: str | None = None
    size_bytes: int | None = None


# --- engines -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Engine:
    """One runtime of one build for one backend.

    `environment` names the lock envs/<environment>.txt ("" for a binary of the user's). `binary` is a path, a name on
    PATH, or, with an archive or an environment, the path inside that. `date` is ISO 8601 as precise as is known.
    """

    id: str
    build: int
    date: str
    driver: Driver
    backend: Backend
    environment: str = ""
    package: str = ""
    version: str = ""
    binary: str = ""
    archive: Source | None = None
    shipped_by: str = ""
    note: str = ""

    @property
    def needs_gpu(self) -> bool:
        """Whether it computes on a GPU."""
        return self.backend is not Backend.CPU


@dataclass(frozen=True)
class Converter:
    """convert_hf_to_gguf.py of one build; `inside` is the path of llama.cpp's source folder in the archive."""

    id: str
    build: int
    date: str
    environment: str
    source: Source
    inside: str
    note: str = ""


@dataclass(frozen=True)
class TorchWheel:
    """One build of PyTorch to be asked for its GPU architectures; `cuda` is the toolkit ("" for a CPU build).

    Installed by this project (`environment`), or read from its wheel where pip would find it (by `wheel_file`, else by
    version), of which only the library that holds the list is fetched, pinned by `library_sha256`.
    """

    id: str
    version: str
    channel: str
    cuda: str = ""
    environment: str = ""
    wheel_file: str = ""
    library_sha256: str | None = None
    date: str = ""
    note: str = ""


# --- attempts ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speculation:
    """What an arm does. Lengths in tokens, p_min a probability; None where the value has no meaning for the type."""

    type: SpeculationType
    drafter: str = ""
    n_max: int | None = None
    n_min: int | None = None
    p_min: float | None = None
    ngram_n: int | None = None
    ngram_m: int | None = None
    ngram_min_hits: int | None = None
    gpu_layers_draft: int | None = None


@dataclass(frozen=True)
class Arm:
    """One engine configuration. `engine: alternative` takes the study's alternative to the job's engine.

    `load_only`: it is loaded once per engine and asked a little, never measured in blocks.

    `engine_flags` maps a driver to extra arguments; empty `prompt_classes` means the study's (or the attempt's there).
    """

    id: str
    kind: ArmKind
    speculation: Speculation
    prompt_classes: tuple[PromptClass, ...] = ()
    engine: str = "same"
    load_only: bool = False
    engine_flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True)
class PublishedAttempt:
    """What the study says about an attempt, in our words; `place` is the section."""

    place: str
    hypothesis: str
    outcome: str
    root_cause: str = ""
    advice: str = ""
    flags: str = ""


@dataclass(frozen=True)
class Attempt:
    """One experiment: its arms, the findings it judges, and what the study said.

    With `control_of` it is no attempt of the study but the positive control of one: it judges no finding, and shows
    whether this machine and engine can show a gain where there is one.
    """

    id: str
    title: str
    hypothesis: str
    findings: tuple[str, ...]
    published: PublishedAttempt | None = None
    control_of: str = ""
    roles: tuple[str, ...] = ()
    arms: tuple[Arm, ...] = ()
    method: str = ""

    @property
    def baseline(self) -> Arm:
        """The arm that the others are compared with. Raises StopIteration for an attempt without arms."""
        return next(arm for arm in self.arms if arm.kind is ArmKind.BASELINE)

    @property
    def control(self) -> Arm:
        """The positive control among the arms. Raises StopIteration for an attempt without one."""
        return next(arm for arm in self.arms if arm.kind is ArmKind.POSITIVE_CONTROL)

    def arm(self, arm_id: str) -> Arm:
        """The arm of that id. Raises KeyError."""
        for arm in self.arms:
            if arm.id == arm_id:
                return arm
        raise KeyError(arm_id)


# --- findings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedScope:
    """What a finding was said about: models, backends, GPU compute capabilities, memory sizes in GiB, builds, OS."""

    models: tuple[str, ...] = ()
    backends: tuple[Backend, ...] = ()
    compute_capabilities: tuple[str, ...] = ()
    vram_gib: tuple[int, ...] = ()
    builds: tuple[int, ...] = ()
    os: tuple[str, ...] = ()
    torch: tuple[str, ...] = ()


@dataclass(frozen=True)
class FindingScope:
    """The two scopes of a finding; `mechanism` says in words what is general about it and where it can be tested."""

    as_published: PublishedScope
    mechanism: str


@dataclass(frozen=True)
class Statement:
    """The finding stated twice, in our own words."""

    as_published: str
    mechanism: str


@dataclass(frozen=True)
class Finding:
    """One published claim (kinds and scopes: shared words of the project, config/README.md).

    `hardware_matters` false: the two scopes coincide wherever the software is the same. `arm` and `prompt_class` name
    what is judged; `metric` is tg (generation) or pp (prompt evaluation); `claimed` false: the study left the question
    open and this project asks it; `claims` are ids of derived claims in config/published.yaml. `cuda_from` and
    `cuda_to` bound the CUDA toolkits of the PyTorch builds that it speaks about.
    """

    id: str
    title: str
    attempt: str
    kind: FindingKind
    statement: Statement
    scope: FindingScope
    hardware_matters: bool
    rests_on: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    arm: str = ""
    arms: tuple[str, ...] = ()
    prompt_class: str = "all"
    metric: str = "tg"
    claimed: bool = True
    cuda_from: str = ""
    cuda_to: str = ""
    place: str = ""
    advice: str = ""
    published_root_cause: str = ""
    root_cause_status: RootCauseStatus = RootCauseStatus.NOT_STATED
    root_cause_note: str = ""
    would_make_testable: str = ""


# --- published evidence ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PublishedHost:
    """A machine of the study (memory in GiB)."""

    id: str
    label: str
    gpu: str
    vram_gib: int
    compute_capability: str
    os: str
    cpu: str = ""
    second_gpu: str = ""


@dataclass(frozen=True)
class PublishedMeasurement:
    """One published figure; speeds in generated tokens per second, acceptance as a share of 1, change in percent.

    A figure whose host or backend the study does not state has "" there. `decimals`: digits after the point as printed.
    """

    id: str
    place: str
    host: str = ""
    model: str = ""
    quantization: str = ""
    backend: str = ""
    attempt: str = ""
    arm: str = "baseline"
    arm_kind: str = "baseline"
    drafter: str = ""
    tg_tokens_per_s: float | None = None
    decimals: int = 2
    acceptance: float | None = None
    pp_change_percent: float | None = None
    note: str = ""


@dataclass(frozen=True)
class DerivedClaim:
    """A published comparison: `value` (percent for `percent_change`, a factor for `factor`) of figure over baseline.

    `baseline` is the figure that the study's words point to; `alternatives` are others it may have been taken from.
    """

    id: str
    place: str
    kind: str
    value: float
    decimals: int
    figure: str
    baseline: str
    alternatives: tuple[str, ...] = ()
    shown_as: str = ""
    finding: str = ""
    note: str = ""


@dataclass(frozen=True)
class Since:
    """Something that became known after the study; `date` ISO 8601 as precise as known, `build` where it has one."""

    id: str
    statement: str
    basis: str
    source: str
    date: str = ""
    build: int | None = None
    findings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SisterFinding:
    """A finding of somebody else that the study leans on, and what became of it."""

    statement: str
    source: str
    status: str
    status_date: str
    place: str


@dataclass(frozen=True)
class PublishedTorch:
    """What the study says about PyTorch: architectures per wheel, and what the libraries above need."""

    arch_list: tuple[str, ...]
    arch_list_channel: str
    last_torch_with_pascal: str
    channels_without_pascal: tuple[str, ...]
    place: str
    ecosystem: Mapping[str, str] = field(default_factory=dict)
    expectation: str = ""


@dataclass(frozen=True)
class StudyDocument:
    """The study itself."""

    title: str
    date: str
    subject: str
    takeaway: str
    wanted: str
    tools: Mapping[str, str] = field(default_factory=dict)
    attestation: str = ""


@dataclass(frozen=True)
class Published:
    """All published evidence, with ids as keys where there are ids."""

    document: StudyDocument
    hosts: Mapping[str, PublishedHost]
    measurements: Mapping[str, PublishedMeasurement]
    claims: Mapping[str, DerivedClaim]
    torch: PublishedTorch
    since_then: Mapping[str, Since]
    sister_finding: SisterFinding
    recommendations: tuple[str, ...] = ()
    open_questions: tuple[str, ...] = ()


# --- prompts -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Prompt:
    """One prompt: class, version of its text, the text itself and its sha256."""

    id: str
    prompt_class: PromptClass
    version: int
    file: str
    text: str = ""
    sha256: str = ""
    note: str = ""


# --- study -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Protocol:
    """How a measured attempt runs. Lengths in tokens, times in seconds, margin and levels as shares of 1."""

    predict_tokens: int
    warmup_tokens: int
    looks: tuple[int, ...]
    max_blocks: int
    alpha: float
    margin: float
    equivalence_level: float
    seed: int
    start_timeout_s: float
    request_timeout_s: float
    prompts_per_class: int
    load_predict_tokens: int


@dataclass(frozen=True)
class ProtocolChanges:
    """What an attempt does otherwise than the study's protocol; None and () leave it as it is.

    Error rates and the margin are not among them: they belong to all verdicts of a report together.
    """

    predict_tokens: int | None = None
    warmup_tokens: int | None = None
    load_predict_tokens: int | None = None
    prompts_per_class: int | None = None
    looks: tuple[int, ...] = ()
    max_blocks: int | None = None


@dataclass(frozen=True)
class Requirements:
    """What a machine must have; 0 and "" mean nothing is asked. Memory in bytes."""

    gpu: bool = False
    gpu_memory_bytes: int = 0
    memory_bytes: int = 0
    compute_capability: str = ""
    os: str = ""


@dataclass(frozen=True)
class ConversionPlan:
    """One checkpoint through several converters."""

    checkpoint: str
    converters: tuple[str, ...]


@dataclass(frozen=True)
class StudyAttempt:
    """What a study does with one attempt: models by role, engines to measure and to load with, conversions, wheels."""

    roles: Mapping[str, str] = field(default_factory=dict)
    measure: tuple[str, ...] = ()
    load: tuple[str, ...] = ()
    probe: tuple[str, ...] = ()
    convert: tuple[ConversionPlan, ...] = ()
    torch_wheels: tuple[str, ...] = ()
    alternatives: Mapping[str, str] = field(default_factory=dict)
    arms: tuple[str, ...] = ()
    prompt_classes: tuple[PromptClass, ...] = ()
    memory_budgets_bytes: tuple[int, ...] = ()
    requires: Requirements = Requirements()
    gpu_layers: int | None = None
    ctx: int | None = None
    protocol: ProtocolChanges = ProtocolChanges()
    note: str = ""


@dataclass(frozen=True)
class Study:
    """A study: protocol, machine settings and what each attempt does. `ctx`, `batch` in tokens."""

    id: str
    title: str
    threads: int
    ctx: int
    batch: int
    gpu_layers: int
    default_engine: str
    prompt_classes: tuple[PromptClass, ...]
    protocol: Protocol
    attempts: Mapping[str, StudyAttempt]
    roles: Mapping[str, str] = field(default_factory=dict)
    needs_lock: bool = False
    as_published: bool = False
    note: str = ""

    def roles_of(self, attempt: str) -> dict[str, str]:
        """Model ids by role for an attempt: the study's roles, overridden by the attempt's."""
        return {**self.roles, **self.attempts[attempt].roles}

    def protocol_of(self, attempt: str) -> Protocol:
        """The protocol of an attempt: the study's, with what the attempt changes."""
        changes = vars(self.attempts[attempt].protocol).items()
        return dataclasses.replace(self.protocol, **{key: value for key, value in changes if value not in (None, ())})


# --- settings of this machine ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Import:
    """Somebody else's measurements or a bundle of another host; `path` relative to the project."""

    path: str
    format: str
    study: str = ""
    source: str = ""
    license: str = ""
    date: str = ""
    host: str = ""
    note: str = ""


@dataclass(frozen=True)
class Allowance:
    """A place where the leak scan may find something, and why that is all right."""

    file: str
    pattern: str
    reason: str


@dataclass(frozen=True)
class RemoteHost:
    """A further machine that measures in this run, under a label of its own.

    Over ssh: destination, a folder there, and the executables of llama-server by engine id (absolute, or relative to
    that folder). Through Slurm: where its jobs go (partition, constraint, nodelist) and what they get (gpu, gpu_model);
    its nodes see this folder and the cache. `engines` restricts what is run there (default: all that have an
    executable, or all of the study).
    """

    label: str
    ssh: str = ""
    folder: str = ""
    executables: Mapping[str, str] = field(default_factory=dict)
    slurm: Mapping[str, str | int] = field(default_factory=dict)
    engines: tuple[str, ...] = ()

    def has(self, engine_id: str) -> bool:
        """Whether an engine can be run there."""
        if self.ssh and engine_id not in self.executables:
            return False
        return not self.engines or engine_id in self.engines


@dataclass(frozen=True)
class Settings:
    """config/config.yaml, after what the command line overrides."""

    study: str
    host: str = "auto"
    cache: str = ""
    imports: tuple[Import, ...] = ()
    binaries: Mapping[str, str] = field(default_factory=dict)
    measure_here: bool = True
    hosts: tuple[RemoteHost, ...] = ()
    leakscan_allowances: tuple[Allowance, ...] = ()


@dataclass(frozen=True)
class Configuration:
    """Everything, checked. Mappings keep the order of the files."""

    root: Path
    settings: Settings
    study: Study
    attempts: Mapping[str, Attempt]
    findings: Mapping[str, Finding]
    models: Mapping[str, Model]
    engines: Mapping[str, Engine]
    converters: Mapping[str, Converter]
    torch_wheels: Mapping[str, TorchWheel]
    published: Published
    prompts: Mapping[str, Prompt]
    files: tuple[Path, ...] = ()

    @property
    def host(self) -> str:
        """The configured host label, or "auto"."""
        return self.settings.host

    def controls_of(self, attempt: str) -> tuple[Attempt, ...]:
        """The positive controls of an attempt that are attempts of their own."""
        return tuple(other for other in self.attempts.values() if other.control_of == attempt)

    def prompts_of(self, attempt: str, classes: Sequence[str]) -> list[Prompt]:
        """An attempt's prompts of those classes: at most `prompts_per_class` each, in the order of prompts.yaml."""
        most = self.study.protocol_of(attempt).prompts_per_class
        taken: dict[str, int] = {}
        chosen = []
        for prompt in self.prompts.values():
            seen = taken.get(prompt.prompt_class, 0)
            if prompt.prompt_class in classes and seen < most:
                taken[prompt.prompt_class] = seen + 1
                chosen.append(prompt)
        return chosen

    def arms_of(self, attempt: str) -> tuple[Arm, ...]:
        """The arms that this study runs for an attempt, in the attempt's order (all, unless the study names some)."""
        chosen = self.study.attempts[attempt].arms
        return tuple(arm for arm in self.attempts[attempt].arms if not chosen or arm.id in chosen)

    def measured_arms(self, attempt: str) -> tuple[Arm, ...]:
        """The arms that run in the blocks of a session."""
        return tuple(arm for arm in self.arms_of(attempt) if not arm.load_only)

    def classes_of(self, attempt: str, arm: Arm) -> tuple[PromptClass, ...]:
        """Prompt classes of an arm: its own, else the attempt's in this study, else the study's."""
        return arm.prompt_classes or self.study.attempts[attempt].prompt_classes or self.study.prompt_classes


def load_configuration(
    root: Path, overrides: Mapping[str, Any] | None = None, *, use_lock: bool = True
) -> Configuration:
    """Read and check config/ below `root`; `use_lock=False` leaves the study's lock out, for making it anew.

    `overrides` replaces top-level keys of config/config.yaml (what snakemake merged from --config and --configfile).
    Raises ConfigurationError with every error found.
    """
    return _assemble(root, checked_documents(root, overrides or {}, use_lock=use_lock))


def build(cls: Any, document: Mapping[str, Any]) -> Any:
    """An object of a dataclass from a checked mapping: nested dataclasses, tuples, mappings and enums by annotation."""
    hints = _hints(cls)
    names = [item.name for item in dataclasses.fields(cls)]
    return cls(**{name: _value(hints[name], document[name]) for name in names if name in document})


@functools.cache
def _hints(cls: Any) -> dict[str, Any]:
    return get_type_hints(cls)


def _value(hint: Any, value: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return None if value is None else _value(next(a for a in arguments if a is not type(None)), value)
    if origin is tuple:
        return tuple(_value(arguments[0], item) for item in value)
    if origin is Mapping:
        return {key: _value(arguments[1], item) for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return build(hint, value) if isinstance(hint, type) else value
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint(value)
    if hint is float:
        return float(value)
    return value


def _keyed(cls: type[Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {entry["id"]: build(cls, entry) for entry in entries}


def _assemble(root: Path, documents: Mapping[str, Any]) -> Configuration:
    published = documents["published"]
    settings: Settings = build(Settings, documents["config"])
    engines: dict[str, Engine] = _keyed(Engine, documents["engines"]["engines"])
    for engine_id, binary in settings.binaries.items():
        # The user's own executable stands in for whatever the project would have built or fetched.
        engines[engine_id] = dataclasses.replace(engines[engine_id], binary=binary, environment="", archive=None)
    return Configuration(
        root=root,
        settings=settings,
        study=build(Study, documents["study"]),
        attempts=_keyed(Attempt, documents["attempts"]["attempts"]),
        findings=_keyed(Finding, documents["findings"]["findings"]),
        models=_keyed(Model, documents["models"]["models"]),
        engines=engines,
        converters=_keyed(Converter, documents["engines"]["converters"]),
        torch_wheels=_keyed(TorchWheel, documents["engines"]["torch_wheels"]),
        published=Published(
            document=build(StudyDocument, published["document"]),
            hosts=_keyed(PublishedHost, published["hosts"]),
            measurements=_keyed(PublishedMeasurement, published["measurements"]),
            claims=_keyed(DerivedClaim, published["claims"]),
            torch=build(PublishedTorch, published["torch"]),
            since_then=_keyed(Since, published["since_then"]),
            sister_finding=build(SisterFinding, published["sister_finding"]),
            recommendations=tuple(published["recommendations"]),
            open_questions=tuple(published["open_questions"]),
        ),
        prompts=_keyed(Prompt, documents["prompts"]["prompts"]),
        files=tuple(documents["files"]),
    )
