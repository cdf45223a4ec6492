"""The configuration: what is shipped is right, and every kind of mistake is told with file, key, value and mend."""

from __future__ import annotations

import copy
import dataclasses
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import jsonschema
import pytest
import yaml

from findings import config as model
from findings.config import ArmKind, Configuration, PromptClass, SpeculationType, load_configuration
from findings.config_check import ConfigurationError
from findings.config_read import MAX_FILE_BYTES, ReadError, parse_yaml, read_yaml
from findings.config_schema import did_you_mean, key_path, load_schema, resolved, with_defaults

ROOT = Path(__file__).parents[2]
FastLoader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
FastDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
STUDIES = ("mini", "pascal")
Document = dict[str, Any]
Change = Callable[[Document], None]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of config/ that a test may spoil."""
    shutil.copytree(ROOT / "config", tmp_path / "config", ignore=shutil.ignore_patterns("checkpoints", "*.lock.yaml"))
    return tmp_path


def spoil(project: Path, file: str, change: Change) -> None:
    path = project / "config" / file
    document = yaml.load(path.read_text(), Loader=FastLoader)
    change(document)
    path.write_text(yaml.dump(document, Dumper=FastDumper, sort_keys=False))


def errors_of(project: Path, **overrides: Any) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(project, overrides)
    return caught.value.messages


def only_error(project: Path, **overrides: Any) -> str:
    messages = errors_of(project, **overrides)
    assert len(messages) == 1, "\n".join(messages)
    return messages[0]


def entry(document: Document, kind: str, name: str) -> Document:
    found: Document = next(item for item in document[kind] if item["id"] == name)
    return found


def arm(document: Document, attempt: str, name: str) -> Document:
    return entry(entry(document, "attempts", attempt), "arms", name)


# --- what is shipped ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=STUDIES)
def shipped(request: pytest.FixtureRequest) -> Configuration:
    return load_configuration(ROOT, {"study": request.param})


def test_shipped_studies_are_right(shipped: Configuration) -> None:
    of_the_study = {*(f"attempt_{n}" for n in range(1, 7)), "backend_switch"}
    assert {name for name, one in shipped.attempts.items() if not one.control_of} == of_the_study
    assert of_the_study <= set(shipped.study.attempts) <= set(shipped.attempts)


def test_each_measured_attempt_has_null_and_positive_control(shipped: Configuration) -> None:
    for name, plan in shipped.study.attempts.items():
        kinds = {one.kind for one in shipped.arms_of(name)}
        if plan.measure:
            control = {ArmKind.CANDIDATE} if shipped.attempts[name].control_of else set()
            assert kinds == set(ArmKind) - control, name
            assert shipped.attempts[name].baseline in shipped.arms_of(name)


def test_positive_control_runs_on_the_list_to_copy(shipped: Configuration) -> None:
    for attempt in shipped.attempts.values():
        for one in attempt.arms:
            if one.kind is ArmKind.POSITIVE_CONTROL and not attempt.control_of:
                assert shipped.classes_of(attempt.id, one) == (PromptClass.LIST,)


def test_every_finding_is_stated_twice_and_belongs_to_its_attempt(shipped: Configuration) -> None:
    for finding in shipped.findings.values():
        assert finding.statement.as_published != finding.statement.mechanism
        assert finding.place
        if finding.attempt:
            assert finding.id in shipped.attempts[finding.attempt].findings


def test_each_published_attempt_has_a_finding(shipped: Configuration) -> None:
    with_findings = {finding.attempt for finding in shipped.findings.values()} - {""}
    assert with_findings == {name for name, one in shipped.attempts.items() if not one.control_of}


def test_a_padded_target_is_never_the_subject_of_a_finding(shipped: Configuration) -> None:
    padded = {one.id for one in shipped.models.values() if one.padded_from is not None}
    assert padded
    for name in shipped.study.attempts:
        if padded & set(shipped.study.roles_of(name).values()):
            assert shipped.attempts[name].control_of
            assert "artificial" in shipped.attempts[name].title
            assert not [finding for finding in shipped.findings.values() if finding.attempt == name]


def test_an_attempt_changes_its_protocol_and_nobody_else_s(project: Path) -> None:
    changes = {"looks": [5], "max_blocks": 5, "prompts_per_class": 2}
    spoil(project, "studies/mini.yaml", lambda d: d["attempts"]["attempt_2"].update(protocol=changes))
    found = load_configuration(project)
    mine, others = found.study.protocol_of("attempt_2"), found.study.protocol_of("attempt_1")
    assert (mine.looks, mine.max_blocks, mine.prompts_per_class) == ((5,), 5, 2)
    assert dataclasses.replace(mine, looks=others.looks, max_blocks=6, prompts_per_class=1) == others
    assert others == found.study.protocol
    assert [len(found.prompts_of(name, ("prose",))) for name in ("attempt_1", "attempt_2")] == [1, 2]


def test_every_download_is_pinned_or_waits_for_the_lock(shipped: Configuration) -> None:
    for one in shipped.models.values():
        local = all(mirror.kind == "path" for mirror in one.mirrors)
        assert one.sha256 or one.converted_from or one.copied_from or local or not one.locked, one.id
    assert all(one.source.sha256 for one in shipped.converters.values())


def test_mini_needs_no_lock_no_hub_and_no_gpu() -> None:
    mini = load_configuration(ROOT)
    for name in mini.study.attempts:
        for role_model in mini.study.roles_of(name).values():
            one = mini.models[role_model]
            assert one.locked
            assert one.converted_from or one.copied_from or one.mirrors[0].kind in ("pypi", "path")
    assert mini.study.gpu_layers == 0


def test_all_builds_of_the_runtime_are_there() -> None:
    builds = {one.build for one in load_configuration(ROOT).engines.values() if one.driver == "xllamacpp"}
    assert {8672, 8929, 9093, 9294, 9538, 9713, 9873, 10068, 10229, 10566, 10809, 11063, 11549} == builds


def test_locks_of_environments_exist_where_they_are_named(shipped: Configuration) -> None:
    named = {one.environment for one in (*shipped.engines.values(), *shipped.converters.values())} - {""}
    missing = [name for name in named if not (ROOT / f"envs/{name}.txt").exists()]
    assert not missing


def test_drafts_state_every_value(shipped: Configuration) -> None:
    for attempt in shipped.attempts.values():
        for one in attempt.arms:
            if one.speculation.type.needs_drafter:
                assert None not in (one.speculation.n_max, one.speculation.n_min, one.speculation.p_min)


def test_prompts_are_plain_and_have_a_hash(shipped: Configuration) -> None:
    for prompt in shipped.prompts.values():
        assert prompt.text.isascii()
        assert 100 <= len(prompt.text) <= 900
        assert len(prompt.sha256) == 64
    texts = [prompt.text for prompt in shipped.prompts.values()]
    assert len(set(texts)) == len(texts)


def test_prompts_of_takes_as_many_per_class_as_the_protocol_says(shipped: Configuration) -> None:
    chosen = shipped.prompts_of("attempt_6", ("prose", "list"))
    per_class = shipped.study.protocol.prompts_per_class
    assert [prompt.prompt_class for prompt in chosen] == ["prose"] * per_class + ["list"] * per_class


def test_roles_of_an_attempt_override_those_of_the_study() -> None:
    mini = load_configuration(ROOT)
    assert mini.study.roles_of("attempt_1") == {
        "target": "gemma-3-270m-q4-k-m",
        "drafter": "smollm2-135m-q4-1",
        "retyped": "gemma-3-270m-other-token-types",
    }
    assert mini.study.roles_of("attempt_4")["target"] == "tiny-gemma4-target-f16"


def test_objects_have_the_types_that_they_promise(shipped: Configuration) -> None:
    """Nested values are dataclasses, enums and tuples, not what YAML gave."""

    def check(value: Any, hint: Any) -> None:
        origin, arguments = get_origin(hint), get_args(hint)
        if origin in (Union, UnionType):
            if value is not None:
                check(value, next(one for one in arguments if one is not type(None)))
        elif origin is tuple:
            assert isinstance(value, tuple)
            for item in value:
                check(item, arguments[0])
        elif origin is not None:
            assert isinstance(value, dict)
            for item in value.values():
                check(item, arguments[1])
        elif dataclasses.is_dataclass(hint):
            assert type(value) is hint
            for field, inner in get_type_hints(hint).items():
                check(getattr(value, field), inner)
        elif isinstance(hint, type):
            assert isinstance(value, hint), (value, hint)

    check(shipped, Configuration)
    assert shipped.attempts["attempt_1"].arm("draft").speculation.type is SpeculationType.DRAFT_SIMPLE
    with pytest.raises(KeyError):
        shipped.attempts["attempt_1"].arm("nothing")


PAIRS = [
    ("config", (), model.Settings),
    ("config", ("imports", "items"), model.Import),
    ("config", ("leakscan_allowances", "items"), model.Allowance),
    ("study", (), model.Study),
    ("study", ("protocol",), model.Protocol),
    ("study", ("attempts", "additionalProperties"), model.StudyAttempt),
    ("study", ("attempts", "additionalProperties", "requires"), model.Requirements),
    ("study", ("attempts", "additionalProperties", "convert", "items"), model.ConversionPlan),
    ("attempts", ("attempts", "items"), model.Attempt),
    ("attempts", ("attempts", "items", "published"), model.PublishedAttempt),
    ("attempts", ("attempts", "items", "arms", "items"), model.Arm),
    ("attempts", ("attempts", "items", "arms", "items", "speculation"), model.Speculation),
    ("findings", ("findings", "items"), model.Finding),
    ("findings", ("findings", "items", "scope", "as_published"), model.PublishedScope),
    ("models", ("models", "items"), model.Model),
    ("models", ("models", "items", "mirrors", "items"), model.Mirror),
    ("engines", ("engines", "items"), model.Engine),
    ("engines", ("converters", "items"), model.Converter),
    ("engines", ("converters", "items", "source"), model.Source),
    ("engines", ("torch_wheels", "items"), model.TorchWheel),
    ("published", ("document",), model.StudyDocument),
    ("published", ("hosts", "items"), model.PublishedHost),
    ("published", ("measurements", "items"), model.PublishedMeasurement),
    ("published", ("claims", "items"), model.DerivedClaim),
    ("published", ("torch",), model.PublishedTorch),
    ("published", ("since_then", "items"), model.Since),
    ("published", ("sister_finding",), model.SisterFinding),
]


@pytest.mark.parametrize(("name", "path", "cls"), PAIRS, ids=lambda value: getattr(value, "__name__", None))
def test_dataclasses_have_the_keys_of_the_schemas(name: str, path: tuple[str, ...], cls: type[Any]) -> None:
    schema = load_schema(name)
    node = resolved(schema, schema)
    for step in path:
        node = resolved(schema, node[step] if step in ("items", "additionalProperties") else node["properties"][step])
    assert [item.name for item in dataclasses.fields(cls) if item.name in node["properties"]]
    assert {item.name for item in dataclasses.fields(cls)} - {"text"} == set(node["properties"]) | (
        {"sha256"} if cls is model.Prompt else set()
    )


# --- mistakes ----------------------------------------------------------------------------------------------------


def set_key(kind: str, name: str, key: str, value: Any) -> Change:
    def change(document: Document) -> None:
        entry(document, kind, name)[key] = value

    return change


def speculation(attempt: str, name: str, **values: Any) -> Change:
    def change(document: Document) -> None:
        arm(document, attempt, name)["speculation"].update(values)

    return change


def study_of(attempt: str, **values: Any) -> Change:
    def change(document: Document) -> None:
        document["attempts"][attempt].update(values)

    return change


def drop(attempt: str, name: str) -> Change:
    def change(document: Document) -> None:
        arms = entry(document, "attempts", attempt)["arms"]
        arms[:] = [item for item in arms if item["id"] != name]

    return change


def twice(kind: str, index: int = 0) -> Change:
    def change(document: Document) -> None:
        document[kind].append(copy.deepcopy(document[kind][index]))

    return change


def mirror(name: str, index: int = 0, **values: Any) -> Change:
    def change(document: Document) -> None:
        entry(document, "models", name)["mirrors"][index].update(values)

    return change


SHA = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
GEMMA, SMOL = "gemma-3-270m-q4-k-m", "smollm2-135m-q4-1"
PADDED = "tiny-gemma4-target-padded"
MISTAKES: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "unknown key": (
        "attempts.yaml",
        set_key("attempts", "attempt_1", "titel", "x"),
        ("config/attempts.yaml: attempts[attempt_1].titel", "unknown key 'titel'", "did you mean 'title'?"),
    ),
    "misspelt word": (
        "attempts.yaml",
        speculation("attempt_1", "list", type="ngram_simpel"),
        ("attempts[attempt_1].arms[list].speculation.type: 'ngram_simpel'", "did you mean 'ngram_simple'?"),
    ),
    "wrong type": (
        "studies/mini.yaml",
        lambda d: d.update(threads="two"),
        ("config/studies/mini.yaml: threads: 'two' is a text; write a whole number",),
    ),
    "number for a text": (
        "findings.yaml",
        lambda d: entry(d, "findings", "attempt_1_does_not_pay")["scope"]["as_published"].update(
            compute_capabilities=[6.1]
        ),
        ("6.1 is a number", 'in quotes, for example "6.1"'),
    ),
    "null not in quotes": (
        "attempts.yaml",
        lambda d: arm(d, "attempt_1", "null").update(kind=None),
        ("attempts[attempt_1].arms[null].kind: None", 'write "null" in quotes'),
    ),
    "missing key": (
        "models.yaml",
        lambda d: entry(d, "models", GEMMA).pop("license"),
        (f"models[{GEMMA}]: key 'license' is missing", "Licence of the weights"),
    ),
    "unknown model": (
        "studies/mini.yaml",
        study_of("attempt_1", roles={"drafter": "smollm2-135m-q4-0"}),
        ("attempts.attempt_1.roles.drafter: 'smollm2-135m-q4-0' is not a model", f"did you mean '{SMOL}'?"),
    ),
    "unknown engine": (
        "studies/mini.yaml",
        study_of("attempt_1", measure=["llama.cpp-b11548"]),
        ("attempts.attempt_1.measure: 'llama.cpp-b11548' is not an engine", "did you mean 'llama.cpp-b11549'?"),
    ),
    "unknown default engine": (
        "studies/mini.yaml",
        lambda d: d.update(default_engine="vllm"),
        ("default_engine: 'vllm' is not an engine; known: llama.cpp-b8672",),
    ),
    "unknown converter": (
        "studies/mini.yaml",
        study_of("attempt_4", convert=[{"checkpoint": "tiny-gemma4-target", "converters": ["converter-b9003"]}]),
        ("convert[tiny-gemma4-target].converters: 'converter-b9003' is not a converter", "did you mean 'converter-b90"),
    ),
    "gguf where a checkpoint is needed": (
        "studies/mini.yaml",
        study_of("attempt_4", convert=[{"checkpoint": GEMMA, "converters": ["converter-b9002"]}]),
        (f"convert.checkpoint: '{GEMMA}' is not a checkpoint",),
    ),
    "checkpoint where a gguf is needed": (
        "studies/mini.yaml",
        study_of("attempt_1", roles={"drafter": "tiny-gemma4-target"}),
        ("roles.drafter: 'tiny-gemma4-target' is a checkpoint; an engine needs a gguf",),
    ),
    "unknown wheel": (
        "studies/mini.yaml",
        study_of("attempt_5", torch_wheels=["torch-2.13.0"]),
        ("torch_wheels: 'torch-2.13.0' is not a torch wheel", "did you mean 'torch-2.13.0-cpu'?"),
    ),
    "unknown attempt": (
        "studies/mini.yaml",
        lambda d: d["attempts"].update(attempt_7={}),
        ("attempts.attempt_7: 'attempt_7' is not an attempt", "did you mean 'attempt_"),
    ),
    "unknown arm in a study": (
        "studies/mini.yaml",
        study_of("attempt_2", arms=["baseline", "draught"]),
        ("attempts.attempt_2.arms: 'draught' is not an arm of attempt_2", "did you mean 'draft'?"),
    ),
    "arms without the baseline": (
        "studies/mini.yaml",
        study_of("attempt_2", arms=["draft"]),
        ("attempts.attempt_2.arms: ['draft'] has no baseline; add it",),
    ),
    "missing role": (
        "studies/mini.yaml",
        study_of("attempt_1", roles={}),
        ("attempts.attempt_1.roles: role 'drafter' is missing; attempt_1 needs target, drafter",),
    ),
    "no alternative engine": (
        "studies/mini.yaml",
        study_of("backend_switch", alternatives={}),
        ("alternatives: 'llama.cpp-b11549-cuda' has no alternative",),
    ),
    "gpu wanted, engine on the cpu": (
        "studies/mini.yaml",
        study_of("attempt_3", measure=["llama.cpp-b11549"]),
        ("attempts.attempt_3.measure: 'llama.cpp-b11549' computes on the CPU, but attempt_3 requires a GPU",),
    ),
    "unknown finding": (
        "attempts.yaml",
        lambda d: entry(d, "attempts", "attempt_3")["findings"].append("attempt_3_pays"),
        ("attempts[attempt_3].findings: 'attempt_3_pays' is not a finding", "did you mean 'attempt_3_does_not_pay'?"),
    ),
    "finding of another attempt": (
        "attempts.yaml",
        lambda d: entry(d, "attempts", "attempt_3")["findings"].append("attempt_1_root_cause"),
        ("'attempt_1_root_cause' belongs to attempt_1",),
    ),
    "finding that its attempt does not list": (
        "attempts.yaml",
        lambda d: entry(d, "attempts", "attempt_3").update(findings=[]),
        ("findings[attempt_3_does_not_pay].attempt: 'attempt_3' does not list it",),
    ),
    "finding about an unknown arm": (
        "findings.yaml",
        set_key("findings", "attempt_3_does_not_pay", "arm", "draft_gpu"),
        ("findings[attempt_3_does_not_pay].arm: 'draft_gpu' is not an arm of attempt_3", "did you mean 'draft_cpu'?"),
    ),
    "finding without an arm": (
        "findings.yaml",
        lambda d: entry(d, "findings", "attempt_3_does_not_pay").pop("arm"),
        ("findings[attempt_3_does_not_pay].arm: '' is empty; kind does_not_pay needs the arm",),
    ),
    "finding that rests on nothing known": (
        "findings.yaml",
        set_key("findings", "attempt_3_does_not_pay", "rests_on", ["M99"]),
        ("rests_on: 'M99' is not a published measurement",),
    ),
    "unknown claim": (
        "findings.yaml",
        set_key("findings", "attempt_3_does_not_pay", "claims", ["attempt_3_chance"]),
        ("claims: 'attempt_3_chance' is not a derived claim", "did you mean 'attempt_3_change'?"),
    ),
    "duplicate id": (
        "models.yaml",
        twice("models"),
        (f"config/models.yaml: models: id '{GEMMA}' is there 2 times; rename or remove one",),
    ),
    "duplicate arm": (
        "attempts.yaml",
        lambda d: entry(d, "attempts", "attempt_1")["arms"].append(
            dict(arm(d, "attempt_1", "draft"), speculation={"type": "none"})
        ),
        ("attempts[attempt_1].arms: id 'draft' is there 2 times",),
    ),
    "one id for a model and a converter": (
        "models.yaml",
        set_key("models", "gemma-4-e2b-it-assistant-f16", "id", "converter-b9002"),
        ("id 'converter-b9002' is used for 2 things",),
    ),
    "no baseline": (
        "attempts.yaml",
        drop("backend_switch", "baseline"),
        ("attempts[backend_switch].arms: has 0 baselines []; give exactly one",),
    ),
    "two baselines": (
        "attempts.yaml",
        lambda d: arm(d, "attempt_1", "null").update(kind="baseline"),
        ("attempts[attempt_1].arms: has 2 baselines ['baseline', 'null']; give exactly one",),
    ),
    "no target": (
        "attempts.yaml",
        set_key("attempts", "backend_switch", "roles", []),
        ("attempts[backend_switch].roles: [] lacks target",),
    ),
    "baseline that speculates": (
        "attempts.yaml",
        speculation("attempt_1", "baseline", type="ngram_cache", n_max=3, n_min=0),
        ("arms[baseline].speculation.type: 'ngram_cache' is speculation",),
    ),
    "value left to the build": (
        "attempts.yaml",
        lambda d: arm(d, "attempt_1", "draft")["speculation"].pop("p_min"),
        ("arms[draft].speculation.p_min: is missing; draft_simple needs it",),
    ),
    "value without meaning": (
        "attempts.yaml",
        speculation("attempt_6", "ngram_cache", p_min=0.5),
        ("arms[ngram_cache].speculation.p_min: 0.5 has no meaning for ngram_cache; remove it",),
    ),
    "drafter of no role": (
        "attempts.yaml",
        speculation("attempt_3", "draft_cpu", drafter="draftr"),
        ("speculation.drafter: 'draftr' is not a role of the attempt; did you mean 'drafter'?",),
    ),
    "n_min above n_max": (
        "attempts.yaml",
        speculation("attempt_6", "ngram_mod", n_min=17),
        ("speculation.n_min: 17 is above n_max 16; write 16 at most",),
    ),
    "sha256 of another length": (
        "models.yaml",
        set_key("models", GEMMA, "sha256", SHA[:-1]),
        (f"models[{GEMMA}].sha256", "write 64 hexadecimal digits"),
    ),
    "sha256 with a letter": (
        "models.yaml",
        set_key("models", GEMMA, "sha256", SHA[:-1] + "g"),
        (f"models[{GEMMA}].sha256", "write 64 hexadecimal digits"),
    ),
    "branch without a sha256": (
        "models.yaml",
        set_key("models", "gemma-4-e2b-it-q4-k-m", "locked", True),
        ("models[gemma-4-e2b-it-q4-k-m].mirrors[0].revision: 'main' is a branch", "locked: false"),
    ),
    "package without a sha256": (
        "models.yaml",
        lambda d: entry(d, "models", SMOL).pop("sha256"),
        (f"models[{SMOL}].sha256: null does not pin what kind pypi gives",),
    ),
    "key of another kind of mirror": (
        "models.yaml",
        mirror(SMOL, repo="a/b"),
        (f"models[{SMOL}].mirrors[0].repo: 'a/b' has no meaning for kind pypi",),
    ),
    "mirror that lacks a key": (
        "models.yaml",
        lambda d: entry(d, "models", SMOL)["mirrors"][0].pop("version"),
        (f"models[{SMOL}].mirrors[0].version: '' is empty; kind pypi needs it",),
    ),
    "parts and package": (
        "models.yaml",
        mirror(GEMMA, package="x", version="1.0"),
        (f"models[{GEMMA}].mirrors[0]: parts and package/version/file exclude each other",),
    ),
    "neither mirrors nor conversion": (
        "models.yaml",
        set_key("models", SMOL, "mirrors", []),
        (f"models[{SMOL}]: has none of mirrors, converted_from, retyped_from", "give exactly one"),
    ),
    "converted from an unknown checkpoint": (
        "models.yaml",
        lambda d: entry(d, "models", "tiny-gemma4-target-f16")["converted_from"].update(checkpoint="tiny-gemma4-targt"),
        ("converted_from.checkpoint: 'tiny-gemma4-targt' is not a checkpoint", "did you mean 'tiny-gemma4-target'?"),
    ),
    "retyped from a checkpoint": (
        "models.yaml",
        set_key("models", "gemma-3-270m-other-token-types", "retyped_from", "tiny-gemma4-target"),
        ("retyped_from: 'tiny-gemma4-target' is not a GGUF that is no copy itself",),
    ),
    "padded from nothing that is known": (
        "models.yaml",
        lambda d: entry(d, "models", PADDED)["padded_from"].update(model="tiny-gemma4-target-f61"),
        (
            f"models[{PADDED}].padded_from.model: 'tiny-gemma4-target-f61' is not a GGUF",
            "did you mean 'tiny-gemma4-target-f16'?",
        ),
    ),
    "padded from another copy": (
        "models.yaml",
        lambda d: entry(d, "models", PADDED)["padded_from"].update(model="gemma-3-270m-other-token-types"),
        ("padded_from.model: 'gemma-3-270m-other-token-types' is not a GGUF that is no copy itself",),
    ),
    "padded from itself": (
        "models.yaml",
        lambda d: entry(d, "models", PADDED)["padded_from"].update(model=PADDED),
        (f"padded_from.model: '{PADDED}' is not a GGUF that is no copy itself",),
    ),
    "padded by nothing": (
        "models.yaml",
        lambda d: entry(d, "models", PADDED)["padded_from"].update(columns=0),
        (f"models[{PADDED}].padded_from.columns: 0 is too small; write at least 1",),
    ),
    "padded without its columns": (
        "models.yaml",
        lambda d: entry(d, "models", PADDED)["padded_from"].pop("columns"),
        (f"models[{PADDED}].padded_from: key 'columns' is missing",),
    ),
    "padded and retyped": (
        "models.yaml",
        set_key("models", PADDED, "retyped_from", GEMMA),
        (f"models[{PADDED}]: has retyped_from and padded_from of mirrors", "give exactly one"),
    ),
    "padded into a checkpoint": (
        "models.yaml",
        lambda d: entry(d, "models", PADDED).update(format="checkpoint", files=[{"name": "a.safetensors"}]),
        (f"models[{PADDED}].format: 'checkpoint' cannot be such a copy; write gguf",),
    ),
    "control of an unknown attempt": (
        "attempts.yaml",
        set_key("attempts", "mtp_control", "control_of", "attempt_44"),
        ("attempts[mtp_control].control_of: 'attempt_44' is not an attempt of the study", "did you mean 'attempt_4'?"),
    ),
    "control with a published outcome": (
        "attempts.yaml",
        set_key("attempts", "mtp_control", "published", {"place": "p", "hypothesis": "h", "outcome": "o"}),
        ("attempts[mtp_control].published: the study says nothing about a control; remove it",),
    ),
    "control that judges a finding": (
        "attempts.yaml",
        set_key("attempts", "mtp_control", "findings", ["attempt_4_does_not_pay"]),
        ("attempts[mtp_control].findings: ['attempt_4_does_not_pay']: a control judges no finding; write []",),
    ),
    "control with a candidate": (
        "attempts.yaml",
        lambda d: arm(d, "mtp_control", "mtp_artificial").update(kind="candidate"),
        ("arms: ['mtp_artificial'] are candidates; the arm of a control is of kind positive_control",),
    ),
    "attempt without what was published": (
        "attempts.yaml",
        lambda d: entry(d, "attempts", "attempt_6").pop("published"),
        ("attempts[attempt_6]: key 'published' is missing; add what the study says, or control_of for a control",),
    ),
    "looks of an attempt without its maximum": (
        "studies/mini.yaml",
        lambda d: d["attempts"]["attempt_2"].update(protocol={"looks": [5]}),
        ("attempts.attempt_2.protocol.looks: [5] must rise and end with max_blocks 6",),
    ),
    "an error rate of one attempt": (
        "studies/mini.yaml",
        lambda d: d["attempts"]["attempt_2"].update(protocol={"alpha": 0.5}),
        ("attempts.attempt_2.protocol.alpha: unknown key 'alpha'",),
    ),
    "too few prompts for an attempt": (
        "studies/mini.yaml",
        lambda d: d["attempts"]["attempt_2"].update(protocol={"prompts_per_class": 3}),
        ("protocol.prompts_per_class: 3 is more than config/prompts.yaml has: list 2, prose 2",),
    ),
    "no room for an attempt's answers": (
        "studies/mini.yaml",
        lambda d: d["attempts"]["mtp_control"].update(protocol={"predict_tokens": 500}),
        ("attempts.mtp_control.ctx: 512 has no room for 516 generated tokens",),
    ),
    "a pickle": (
        "models.yaml",
        lambda d: entry(d, "models", "gemma-4-e2b-it-assistant").update(files=[{"name": "pytorch_model.bin"}]),
        ("files: 'pytorch_model.bin' may hold code (a pickle); take the safetensors",),
    ),
    "waiting for a lock in a study without one": (
        "studies/mini.yaml",
        lambda d: d.update(roles={"target": "gemma-4-e2b-it-q4-k-m"}),
        ("'gemma-4-e2b-it-q4-k-m' waits for a lock; set needs_lock: true",),
    ),
    "looks that do not rise": (
        "studies/mini.yaml",
        lambda d: d["protocol"].update(looks=[6, 4]),
        ("protocol.looks: [6, 4] must rise and end with max_blocks 6",),
    ),
    "looks that end early": (
        "studies/mini.yaml",
        lambda d: d["protocol"].update(looks=[3, 5]),
        ("protocol.looks: [3, 5] must rise and end with max_blocks 6",),
    ),
    "too few prompts": (
        "studies/mini.yaml",
        lambda d: (
            d["protocol"].update(prompts_per_class=3),
            d.update(attempts={"attempt_6": d["attempts"]["attempt_6"]}),
        ),
        ("protocol.prompts_per_class: 3 is more than config/prompts.yaml has: code 2, list 2, prose 2, structured 2",),
    ),
    "no room in the context": (
        "studies/mini.yaml",
        lambda d: d["protocol"].update(predict_tokens=500, warmup_tokens=16),
        ("attempts.attempt_4.ctx: 512 has no room for 516 generated tokens",),
    ),
    "prompt without a file": (
        "prompts.yaml",
        set_key("prompts", "prose-1", "file", "prosa-1.txt"),
        ("prompts[prose-1].file: 'prosa-1.txt' does not exist; did you mean 'prose-1.txt'?",),
    ),
    "claim about a figure that is no speed": (
        "published.yaml",
        set_key("claims", "attempt_1_change", "figure", "M10"),
        ("claims[attempt_1_change]: M10 has no speed",),
    ),
    "claim about an unknown figure": (
        "published.yaml",
        set_key("claims", "attempt_1_change", "baseline", "M66"),
        ("claims[attempt_1_change].baseline: 'M66' is not a published measurement; did you mean 'M6'?",),
    ),
    "figure of an unknown machine": (
        "published.yaml",
        set_key("measurements", "M1", "host", "predatr"),
        ("measurements[M1].host: 'predatr' is not a host of the study; did you mean 'predator'?",),
    ),
    "runtime without an environment": (
        "engines.yaml",
        set_key("engines", "llama.cpp-b11549", "environment", ""),
        ("engines[llama.cpp-b11549].environment: '' is empty; driver xllamacpp needs",),
    ),
    "transformers on Vulkan": (
        "engines.yaml",
        set_key("engines", "transformers-cuda", "backend", "vulkan"),
        ("engines[transformers-cuda].backend: 'vulkan': driver transformers computes on cpu or cuda",),
    ),
    "transformers with a build of llama.cpp": (
        "engines.yaml",
        set_key("engines", "transformers-cuda", "build", 11549),
        ("engines[transformers-cuda].build: 11549: 0 is for driver transformers",),
    ),
    "llama.cpp without a build": (
        "engines.yaml",
        set_key("engines", "llama.cpp-b11549", "build", 0),
        ("engines[llama.cpp-b11549].build: 0: 0 is for driver transformers",),
    ),
    "a GGUF for transformers": (
        "studies/mini.yaml",
        lambda d: d["attempts"]["attempt_5"]["roles"].update(target=GEMMA),
        (f"attempts.attempt_5.roles.target: '{GEMMA}' is a gguf; an engine needs a checkpoint",),
    ),
    "engines of two kinds of models": (
        "studies/mini.yaml",
        lambda d: d["attempts"]["attempt_5"].update(load=["llama.cpp-b11549"]),
        ("attempts.attempt_5: attempt_5 mixes engines for checkpoints and for GGUF files; take one kind",),
    ),
    "archive without a sha256": (
        "engines.yaml",
        lambda d: entry(d, "converters", "converter-b9002")["source"].pop("sha256"),
        ("converters[converter-b9002].source.sha256: null does not pin",),
    ),
    "size beyond reason": (
        "models.yaml",
        set_key("models", GEMMA, "size_bytes", 10**13),
        (f"models[{GEMMA}].size_bytes: 10000000000000 is too large; write at most 1000000000000",),
    ),
    "size of nothing": (
        "models.yaml",
        set_key("models", GEMMA, "size_bytes", 0),
        (f"models[{GEMMA}].size_bytes: 0 is too small; write at least 1",),
    ),
    "threads beyond reason": (
        "studies/mini.yaml",
        lambda d: d.update(threads=10**6),
        ("threads: 1000000 is too large; write at most 1024",),
    ),
    "unknown engine's binary": (
        "config.yaml",
        lambda d: d.update(binaries={"llama.cpp-b9041-cud": "x"}),
        ("binaries: 'llama.cpp-b9041-cud' is not an engine; did you mean 'llama.cpp-b9041-cuda'?",),
    ),
    "binary of an engine without one": (
        "config.yaml",
        lambda d: d.update(binaries={"llama.cpp-b11549": "x"}),
        ("binaries.llama.cpp-b11549: 'x': this engine has no executable",),
    ),
}


@pytest.mark.parametrize(("file", "change", "parts"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistake_is_one_line_with_file_key_value_and_mend(
    project: Path, file: str, change: Change, parts: tuple[str, ...]
) -> None:
    spoil(project, file, change)
    messages = errors_of(project)
    assert all("\n" not in line and line.startswith("config/") for line in messages)
    found = [line for line in messages if all(part in line for part in parts)]
    assert found, "\n".join(messages)
    assert len(messages) <= 2, "one mistake must not be told many times:\n" + "\n".join(messages)


def fits(definition: str, text: str) -> bool:
    """Whether a text passes one of the shared definitions of the schemas."""
    schema = load_schema("models")
    return not list(jsonschema.Draft202012Validator(schema["$defs"][definition]).iter_errors(text))


BAD_IDS = ["../x", "a/b", "a..b", "", "A", "x;rm", "x y", "$(x)", "x\n", "-x", ".x", "x.", "ä", "a" * 65, "`x`", "x'"]
BAD_NAMES = ["../x", "/etc/passwd", "a/../b", "a//b", "C:\\x", "a;b", "a$b", "./x", "x\n", "~/x", "", "a/..", "a/b/"]


@pytest.mark.parametrize("name", BAD_IDS)
def test_ids_that_could_hurt_do_not_fit(name: str) -> None:
    assert not fits("id", name)


@pytest.mark.parametrize("name", BAD_NAMES)
def test_file_names_that_could_hurt_do_not_fit(name: str) -> None:
    assert not fits("inner_path", name)
    assert fits("optional_inner_path", name) is (name == "")


@pytest.mark.parametrize("name", ["a", "gemma-3-270m-q4-k-m", "llama.cpp-b8951", "null", "a_b", "0"])
def test_ids_that_people_have_fit(name: str) -> None:
    assert fits("id", name)


@pytest.mark.parametrize("name", ["a.gguf", "pkg/data/x.gguf.part00", "llama_x-1.0+cpu.whl", "a/.b", "Model 1.gguf"])
def test_file_names_that_people_have_fit(name: str) -> None:
    assert fits("inner_path", name)


PLACES: dict[str, tuple[str, Change]] = {
    "model": ("models.yaml", set_key("models", SMOL, "id", "../x")),
    "engine": ("engines.yaml", set_key("engines", "llama.cpp-b8672", "id", "../x")),
    "converter": ("engines.yaml", set_key("converters", "converter-b8992", "id", "../x")),
    "environment": ("engines.yaml", set_key("engines", "llama.cpp-b8672", "environment", "../x")),
    "attempt": ("attempts.yaml", set_key("attempts", "backend_switch", "id", "../x")),
    "arm": ("attempts.yaml", lambda d: arm(d, "attempt_6", "ngram_mod").update(id="../x")),
    "finding": ("findings.yaml", set_key("findings", "sister_moe_does_not_pay", "id", "../x")),
    "prompt": ("prompts.yaml", set_key("prompts", "prose-2", "id", "../x")),
    "file": ("models.yaml", set_key("models", GEMMA, "file", "../x")),
    "mirror": ("models.yaml", mirror(SMOL, file="../x")),
    "part": ("models.yaml", lambda d: entry(d, "models", GEMMA)["mirrors"][0]["parts"][0].update(file="../x")),
    "package": ("models.yaml", mirror(SMOL, package="../x")),
    "path mirror": ("models.yaml", mirror("tiny-gemma4-target", path="../x")),
    "checkpoint": ("models.yaml", set_key("models", "gemma-4-e2b-it-assistant", "files", [{"name": "../x"}])),
    "source": ("engines.yaml", lambda d: entry(d, "converters", "converter-b8992")["source"].update(file="../x")),
    "inside": ("engines.yaml", set_key("converters", "converter-b8992", "inside", "../x")),
    "binary": ("engines.yaml", set_key("engines", "llama.cpp-b9041-cuda", "binary", "../x")),
    "prompt file": ("prompts.yaml", set_key("prompts", "prose-1", "file", "../x")),
}


@pytest.mark.parametrize(("file", "change"), PLACES.values(), ids=PLACES.keys())
def test_no_name_leaves_its_folder(project: Path, file: str, change: Change) -> None:
    spoil(project, file, change)
    messages = errors_of(project)
    assert [line for line in messages if line.startswith(f"config/{file}: ") and "'../x' is not allowed; write" in line]


@pytest.mark.parametrize("path", ["../models", "a/../b", "..\\x", "x\x00y", "x`id`", "x$(id)", "a;b", "a|b", "x\ny"])
def test_paths_on_this_machine_have_no_tricks(path: str) -> None:
    assert not fits("host_path", path)


def test_the_cache_is_such_a_path(project: Path) -> None:
    assert load_configuration(project, {"cache": "/data/my cache"}).settings.cache == "/data/my cache"
    assert "cache: '../x' is not allowed" in only_error(project, cache="../x")


@pytest.mark.parametrize(
    "path", ["", "/data/cache", "C:\\llama\\llama-server.exe", "models with spaces/übung", "~/cache"]
)
def test_paths_that_people_have_are_fine(project: Path, path: str) -> None:
    spoil(project, "config.yaml", lambda d: d.update(cache=path))
    assert load_configuration(project).settings.cache == path


def test_repositories_revisions_and_tags_are_plain(project: Path) -> None:
    spoil(project, "models.yaml", mirror(GEMMA, 1, repo="a/b/c", revision="x;y"))
    messages = errors_of(project)
    assert any(".mirrors[1].repo: 'a/b/c'" in line for line in messages)
    assert any(".mirrors[1].revision: 'x;y'" in line for line in messages)


def test_a_commit_pins_as_well_as_a_sha256(project: Path) -> None:
    change = mirror("gemma-4-e2b-it-q4-k-m", revision="0123456789abcdef0123456789abcdef01234567")
    spoil(project, "models.yaml", change)
    spoil(project, "models.yaml", set_key("models", "gemma-4-e2b-it-q4-k-m", "locked", True))
    assert load_configuration(project).models["gemma-4-e2b-it-q4-k-m"].locked


def test_all_mistakes_are_told_at_once(project: Path) -> None:
    spoil(project, "models.yaml", set_key("models", GEMMA, "sha256", "x"))
    spoil(project, "attempts.yaml", set_key("attempts", "attempt_1", "titel", "x"))
    spoil(project, "attempts.yaml", speculation("attempt_6", "ngram_cache", type="ngram"))
    spoil(project, "studies/mini.yaml", lambda d: d.update(threads=0, ctx="long"))
    spoil(project, "prompts.yaml", set_key("prompts", "prose-1", "file", "prosa.txt"))
    messages = errors_of(project, hots="x")
    assert len(messages) == 7
    assert {line.split(":")[0].split(" ")[0] for line in messages} == {
        "config/models.yaml",
        "config/attempts.yaml",
        "config/studies/mini.yaml",
        "config/prompts.yaml",
        "config/config.yaml",
    }


def test_references_into_a_broken_file_are_not_told_besides(project: Path) -> None:
    spoil(project, "models.yaml", set_key("models", GEMMA, "licence", "x"))
    assert "did you mean 'license'?" in only_error(project)


# --- the command line and the lock -------------------------------------------------------------------------------


def test_overrides_replace_keys(project: Path) -> None:
    found = load_configuration(
        project, {"study": "pascal", "binaries": {"llama.cpp-b9041-cuda": "D:\\llama\\server.exe"}}
    )
    assert found.study.id == "pascal"
    assert found.engines["llama.cpp-b9041-cuda"].binary == "D:\\llama\\server.exe"
    assert found.settings.host == found.host == "auto"


def test_the_shipped_pascal_overrides_are_right(project: Path) -> None:
    overrides = yaml.safe_load((project / "config/pascal.yaml").read_text())
    assert load_configuration(project, overrides).study.as_published


def test_overrides_are_checked_and_say_where_they_come_from(project: Path) -> None:
    line = only_error(project, study="pascl")
    assert line == "config/config.yaml: study: 'pascl' is not a study; did you mean 'pascal'?"
    assert "with --config" in only_error(project, caches="x")
    assert "study: 5 is a number" in only_error(project, study=5)


@pytest.mark.parametrize("study", ["../mini", "/etc/passwd", "mini/../mini"])
def test_study_names_do_not_leave_the_folder(project: Path, study: str) -> None:
    assert all(line.startswith("config/config.yaml") for line in errors_of(project, study=study))


def test_host_labels_become_folders(project: Path) -> None:
    assert load_configuration(project, {"host": "gtx-1060-6gb"}).host == "gtx-1060-6gb"
    assert "host: '../x'" in only_error(project, host="../x")


LOCK = {
    "made": "2026-12-02T06:30:00Z",
    "models": [
        {
            "id": "gemma-4-e4b-it-q4-k-m",
            "repo": "unsloth/gemma-4-E4B-it-GGUF",
            "revision": "0123456789abcdef0123456789abcdef01234567",
            "files": [{"name": "gemma-4-E4B-it-Q4_K_M.gguf", "sha256": SHA, "size_bytes": 4977169568}],
        },
        {
            "id": "gemma-4-e4b-it-assistant",
            "repo": "google/gemma-4-E4B-it-assistant",
            "revision": "1123456789abcdef0123456789abcdef01234567",
            "files": [{"name": "model.safetensors", "sha256": SHA, "size_bytes": 159000000}],
        },
    ],
}


def write_lock(project: Path, lock: Any) -> None:
    (project / "config/pascal.lock.yaml").write_text(yaml.safe_dump(lock))


def test_the_lock_pins_models(project: Path) -> None:
    write_lock(project, LOCK)
    models = load_configuration(project, {"study": "pascal"}).models
    gguf, checkpoint = models["gemma-4-e4b-it-q4-k-m"], models["gemma-4-e4b-it-assistant"]
    assert gguf.locked
    assert (gguf.sha256, gguf.size_bytes) == (SHA, 4977169568)
    assert gguf.mirrors[0].revision == "0123456789abcdef0123456789abcdef01234567"
    assert checkpoint.locked
    assert [(item.name, item.sha256) for item in checkpoint.files] == [("model.safetensors", SHA)]
    assert not models["gemma-4-e2b-it-q4-k-m"].locked


def test_the_lock_of_another_study_is_not_read(project: Path) -> None:
    write_lock(project, LOCK)
    assert not load_configuration(project).models["gemma-4-e4b-it-q4-k-m"].locked


@pytest.mark.parametrize(
    ("key", "value", "part"),
    [
        ("id", "smollm2-135m-q4-1", "'smollm2-135m-q4-1' waits for no lock"),
        ("repo", "somebody/else", "'somebody/else' is no mirror of it"),
        ("revision", "main", "write a commit of 40 hexadecimal digits"),
        ("files", [{"name": "other.gguf", "sha256": SHA, "size_bytes": 1}], "'gemma-4-E4B-it-Q4_K_M.gguf' is missing"),
    ],
)
def test_a_lock_that_does_not_fit_is_refused(project: Path, key: str, value: Any, part: str) -> None:
    write_lock(project, {**LOCK, "models": [{**LOCK["models"][0], key: value}]})
    line = only_error(project, study="pascal")
    assert line.startswith("config/pascal.lock.yaml: models[")
    assert part in line


# --- YAML by an enemy --------------------------------------------------------------------------------------------

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "\n".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 9)}]" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)
TRICKS = {
    "tag": ("a: !!python/object/apply:os.system ['true']", "line 1: tag", "is refused; write plain values"),
    "own tag": ("a: !run true", "line 1: tag '!run' is refused", ""),
    "binary": ("a: !!binary aGVsbG8=", "is refused", ""),
    "anchor": ("a: &x 1", "line 1: anchors and aliases", "write the value out"),
    "bomb": (BOMB, "anchors and aliases", ""),
    "merge": ("a: {<<: *x}", "anchors and aliases", ""),
    "duplicate key": ("a: 1\nb: 2\na: 3", "line 3: key 'a' is there twice, first in line 1; remove one", ""),
    "duplicate inner key": ("x:\n  a: 1\n  a: 1", "line 3: key 'a' is there twice, first in line 2", ""),
    "key that is no text": ("1: x", "line 1: key 1 is not text; write it in quotes", ""),
    "key that is a list": ("? [a]\n: x", "is not text", ""),
    "deep": ("[" * 200 + "]" * 200, "nested more than", "flatten it"),
    "broken": ("a: [1\nb: 2", "mend the YAML", ""),
    "tab": ("a:\n\tb: 1", "line 2", "mend the YAML"),
    "two documents": ("a: 1\n---\nb: 2", "mend the YAML", ""),
    "number too long": ("a: " + "9" * 5000, "has a number that cannot be read", ""),
}


@pytest.mark.parametrize(("text", "first", "second"), TRICKS.values(), ids=TRICKS.keys())
def test_yaml_with_tricks_is_refused(text: str, first: str, second: str) -> None:
    with pytest.raises(ReadError) as caught:
        parse_yaml(text)
    assert first in str(caught.value)
    assert second in str(caught.value)


def test_plain_yaml_is_read_as_it_looks() -> None:
    text = 'a: 2026-05-06\nb: "1.0"\nc: [1, 2.5, true, null, "null"]\nd: ! x\ne: ~'
    assert parse_yaml(text) == {"a": "2026-05-06", "b": "1.0", "c": [1, 2.5, True, None, "null"], "d": "x", "e": None}


def test_a_trick_in_a_file_names_the_file(project: Path) -> None:
    with (project / "config/models.yaml").open("a") as stream:
        stream.write("\nmodels: []\n")
    line = only_error(project)
    assert line.startswith("config/models.yaml: line ")
    assert "key 'models' is there twice" in line


@pytest.mark.parametrize("content", [b"\xff\xfe", b"x" * (MAX_FILE_BYTES + 1), b"- a\n", b"", b"just text"])
def test_files_that_are_no_configuration(project: Path, content: bytes) -> None:
    (project / "config/models.yaml").write_bytes(content)
    assert only_error(project).startswith("config/models.yaml: ")


def test_a_missing_file_and_a_folder_in_its_place(project: Path) -> None:
    (project / "config/models.yaml").unlink()
    (project / "config/attempts.yaml").unlink()
    (project / "config/attempts.yaml").mkdir()
    messages = errors_of(project)
    assert [line.split(":")[0] for line in messages] == ["config/models.yaml", "config/attempts.yaml"]
    assert all("it must exist" in line for line in messages)


@pytest.mark.parametrize("content", [b"", b" \n", "Größe".encode(), b"x" * 30_000])
def test_prompts_must_be_plain_text(project: Path, content: bytes) -> None:
    (project / "config/prompts/prose-1.txt").write_bytes(content)
    assert "prompts[prose-1].file: 'prose-1.txt' is" in only_error(project)


def test_line_ends_of_another_system_do_not_change_a_prompt(project: Path) -> None:
    before = load_configuration(project).prompts["list-1"]
    path = project / "config/prompts/list-1.txt"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert load_configuration(project).prompts["list-1"] == before


def test_values_are_data_and_never_run(project: Path) -> None:
    text = "$(touch evil) `touch evil`; touch evil"
    spoil(project, "models.yaml", set_key("models", GEMMA, "title", text))
    assert load_configuration(project).models[GEMMA].title == text
    assert not list(project.rglob("evil"))


# --- helpers -----------------------------------------------------------------------------------------------------


def test_did_you_mean_offers_what_is_close_or_what_there_is() -> None:
    assert did_you_mean("tree", ["three", "four"]) == "; did you mean 'three'?"
    assert did_you_mean("xyz", ["a", "b"]) == "; known: a, b"
    assert did_you_mean("xyz", [f"name-{n}" for n in range(20)]).endswith("name-7, ...")
    assert did_you_mean("xyz", []) == "; none is configured"


def test_key_path_names_entries_by_their_id() -> None:
    document = {"a": [{"id": "one", "b": [1, 2]}, {"c": 1}]}
    assert key_path(document, ["a", 0, "b", 1]) == "a[one].b[1]"
    assert key_path(document, ["a", 1, "c"]) == "a[1].c"
    assert key_path(document, []) == "(whole file)"


def test_defaults_are_filled_in_everywhere_and_not_over_what_is_there() -> None:
    schema = load_schema("engines")
    raw = {
        "engines": [{"id": "x", "build": 1, "date": "", "driver": "llama-server", "backend": "cpu", "binary": "b"}],
        "converters": [
            {
                "id": "c",
                "build": 1,
                "date": "",
                "environment": "e",
                "inside": "i",
                "source": {"file": "f", "mirrors": []},
            }
        ],
        "torch_wheels": [],
    }
    complete = with_defaults(schema, schema, raw)
    assert complete["engines"][0]["binary"] == "b"
    assert complete["engines"][0]["archive"] is None
    assert complete["converters"][0]["source"]["sha256"] is None
    assert "note" not in raw["engines"][0], "the document itself is left alone"


def test_read_yaml_of_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match="must exist"):
        read_yaml(tmp_path / "nothing.yaml")


def run_check(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/check_config.py"), "--root", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_command_says_what_is_there_or_every_mistake(project: Path) -> None:
    good = run_check(project, "--set", "study=pascal")
    assert good.returncode == 0
    assert good.stdout.startswith("study pascal: ")
    spoil(project, "models.yaml", set_key("models", GEMMA, "sha256", "x"))
    bad = run_check(project, "--set", "cach=x")
    assert bad.returncode == 2
    assert bad.stderr.startswith("the configuration has 2 errors:\nconfig/")
    assert "Traceback" not in bad.stderr
    assert run_check(project, "--set", "study").returncode == 2
