"""Translates an arm, stated in our words, into what one build of the engine understands.

Every difference between builds in the names of flags and attributes lives in the tables of this module. Which name a
build has is found by probing (features.py), never by a list of builds. All values are passed explicitly, so a default
that changes between builds (p_min 0.75 -> 0, n_max 16 -> 3, `-md` alone -> no speculation) cannot change an arm.

Lengths mean the same in all builds: `n_max`, `n_min`, `p_min` belong to drafter models and ngram_mod; the length of an
ngram_simple or ngram_map draft is `ngram_m`. (Builds with one flat set of values, such as 8929, cut those drafts to
their n_max as well; the translation raises it to ngram_m there.)
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from findings.config import Backend, Driver, Speculation, SpeculationType
from findings.engine.features import Features

# What an arm gets where it says nothing: llama.cpp's defaults of spring 2026, when the study was made.
DEFAULT_N_MAX, DEFAULT_N_MIN, DEFAULT_P_MIN = 16, 0, 0.75
DEFAULT_NGRAM_N, DEFAULT_NGRAM_M, DEFAULT_NGRAM_MIN_HITS = 12, 48, 1
DEFAULT_MOD_N, DEFAULT_MOD_N_MAX, DEFAULT_MOD_N_MIN = 24, 64, 48
UBATCH = 512

# Our word for a kind of speculation -> names that builds have had for it, newest first.
TYPE_NAMES: Mapping[Driver, Mapping[SpeculationType, tuple[str, ...]]] = {
    Driver.XLLAMACPP: {
        SpeculationType.NONE: ("COMMON_SPECULATIVE_TYPE_NONE",),
        SpeculationType.DRAFT_SIMPLE: ("COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE", "COMMON_SPECULATIVE_TYPE_DRAFT"),
        SpeculationType.DRAFT_MTP: ("COMMON_SPECULATIVE_TYPE_DRAFT_MTP",),
        SpeculationType.NGRAM_SIMPLE: ("COMMON_SPECULATIVE_TYPE_NGRAM_SIMPLE",),
        SpeculationType.NGRAM_MAP_K: ("COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K",),
        SpeculationType.NGRAM_MAP_K4V: ("COMMON_SPECULATIVE_TYPE_NGRAM_MAP_K4V",),
        SpeculationType.NGRAM_MOD: ("COMMON_SPECULATIVE_TYPE_NGRAM_MOD",),
        SpeculationType.NGRAM_CACHE: ("COMMON_SPECULATIVE_TYPE_NGRAM_CACHE",),
    },
    Driver.LLAMA_SERVER: {
        SpeculationType.NONE: ("none",),
        SpeculationType.DRAFT_SIMPLE: ("draft-simple",),
        SpeculationType.DRAFT_MTP: ("draft-mtp",),
        SpeculationType.NGRAM_SIMPLE: ("ngram-simple",),
        SpeculationType.NGRAM_MAP_K: ("ngram-map-k",),
        SpeculationType.NGRAM_MAP_K4V: ("ngram-map-k4v",),
        SpeculationType.NGRAM_MOD: ("ngram-mod",),
        SpeculationType.NGRAM_CACHE: ("ngram-cache",),
    },
    # transformers' generators of candidates; "" is generation without one.
    Driver.TRANSFORMERS: {
        SpeculationType.NONE: ("",),
        SpeculationType.DRAFT_SIMPLE: ("AssistedCandidateGenerator",),
        SpeculationType.DRAFT_MTP: ("SinglePositionMultiTokenCandidateGenerator",),
        SpeculationType.NGRAM_SIMPLE: ("PromptLookupCandidateGenerator",),
    },
}

# Our word for a value -> names that builds have had for it, newest first. "{ngram}" stands for the type.
OPTION_NAMES: Mapping[Driver, Mapping[str, tuple[str, ...]]] = {
    Driver.XLLAMACPP: {
        "type": ("speculative.types", "speculative.type"),
        "drafter": ("speculative.draft.mparams.path", "speculative.mparams_dft.path"),
        "n_max": ("speculative.draft.n_max", "speculative.n_max"),
        "n_min": ("speculative.draft.n_min", "speculative.n_min"),
        "p_min": ("speculative.draft.p_min", "speculative.p_min"),
        "ctx_draft": ("speculative.draft.n_ctx", "speculative.n_ctx"),
        "threads_draft": ("speculative.draft.cpuparams.n_threads", "speculative.cpuparams.n_threads"),
        "threads_batch_draft": ("speculative.draft.cpuparams_batch.n_threads", "speculative.cpuparams_batch.n_threads"),
        "gpu_layers_draft": ("speculative.draft.n_gpu_layers", "speculative.n_gpu_layers"),
        "device_draft": ("speculative.draft.devices", "speculative.devices"),
        "ngram_n": ("speculative.{ngram}.size_n", "speculative.ngram_size_n"),
        "ngram_m": ("speculative.{ngram}.size_m", "speculative.ngram_size_m"),
        "ngram_min_hits": ("speculative.{ngram}.min_hits", "speculative.ngram_min_hits"),
        "mod_n": ("speculative.ngram_mod.n_match", "speculative.ngram_size_n"),
        "mod_n_max": ("speculative.ngram_mod.n_max", "speculative.n_max"),
        "mod_n_min": ("speculative.ngram_mod.n_min", "speculative.n_min"),
        "cap": ("speculative.n_max",),
        "floor": ("speculative.n_min",),
    },
    Driver.LLAMA_SERVER: {
        "type": ("--spec-type",),
        "drafter": ("--spec-draft-model", "--model-draft", "-md"),
        "n_max": ("--spec-draft-n-max", "--draft-max"),
        "n_min": ("--spec-draft-n-min", "--draft-min"),
        "p_min": ("--spec-draft-p-min", "--draft-p-min"),
        "ctx_draft": ("--spec-draft-ctx-size", "--ctx-size-draft"),
        "threads_draft": ("--spec-draft-threads", "--threads-draft"),
        "threads_batch_draft": ("--spec-draft-threads-batch", "--threads-batch-draft"),
        "gpu_layers_draft": ("--spec-draft-ngl", "--gpu-layers-draft", "-ngld"),
        "device_draft": ("--spec-draft-device", "--device-draft"),
        "ngram_n": ("--spec-{ngram}-size-n", "--spec-ngram-size-n"),
        "ngram_m": ("--spec-{ngram}-size-m", "--spec-ngram-size-m"),
        "ngram_min_hits": ("--spec-{ngram}-min-hits", "--spec-ngram-min-hits"),
        "mod_n": ("--spec-ngram-mod-n-match", "--spec-ngram-size-n"),
        "mod_n_max": ("--spec-ngram-mod-n-max", "--draft-max"),
        "mod_n_min": ("--spec-ngram-mod-n-min", "--draft-min"),
        "cap": ("--draft-max",),
        "floor": ("--draft-min",),
    },
    Driver.TRANSFORMERS: {
        "n_max": ("num_assistant_tokens",),
        "p_min": ("assistant_confidence_threshold",),
        "ngram_n": ("max_matching_ngram_size",),
        "ngram_m": ("prompt_lookup_num_tokens",),
    },
}

# What transformers has no setting for, and the value at which it does what is meant all the same.
_TRANSFORMERS_FIXED: Mapping[str, float] = {"n_min": 0, "ngram_min_hits": 1}

# The server's own settings, the same for every arm: what they are for, and their names; None = a flag without a value.
_BINDING_SERVER: Mapping[str, tuple[str, ...]] = {
    "model": ("model.path",),
    "ctx": ("n_ctx",),
    "batch": ("n_batch",),
    "ubatch": ("n_ubatch",),
    "slots": ("n_parallel",),
    "threads": ("cpuparams.n_threads",),
    "threads_batch": ("cpuparams_batch.n_threads",),
    "gpu_layers": ("n_gpu_layers",),
    "fit": ("fit_params",),
    "host": ("hostname",),
    "hosts": ("hostnames",),
    "port": ("port",),
    "cache_prompt": ("cache_prompt",),
    "cache_ram": ("cache_ram_mib",),
    "cache_idle": ("cache_idle_slots",),
    "kv_unified": ("kv_unified",),
    "ctx_shift": ("ctx_shift",),
    "slots_endpoint": ("endpoint_slots",),
    "metrics_endpoint": ("endpoint_metrics",),
    "mmap": ("use_mmap",),
    "load_mode": ("load_mode",),
    "swa_full": ("swa_full",),
    "warmup": ("warmup",),
    "ui": ("ui", "webui"),
    "offline": ("offline",),
    "verbosity": ("verbosity",),
}
# What a user may set of transformers_host.Settings beside the arm.
_TRANSFORMERS_EXTRA = ("dtype", "attn_implementation")
_FORBIDDEN_EXTRA = re.compile(
    r"(?i)^(--?(host|port|api-key.*|model|m|log-file|path|ssl-.*)|model\.path|hostnames?|port|api_keys)$"
)


@dataclass(frozen=True)
class ServerSettings:
    """What every arm of a job shares. `ctx`, `batch` in tokens; `gpu_layers` as `-ngl`; paths of GGUF files.

    For transformers `model` and `drafter` are checkpoints' folders. `device` is llama.cpp's name of a device
    (`Vulkan0`), "" for the first of the backend. `extra` holds the user's own flags for this driver: command-line
    words, or `attribute.path=value` for the binding and `name=value` for transformers.
    """

    model: Path
    drafter: Path | None = None
    threads: int = 2
    ctx: int = 2048
    batch: int = 512
    gpu_layers: int = 0
    backend: Backend = Backend.CPU
    device: str = ""
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    """An arm in the words of one build: `settings` for the binding and transformers, `flags` for llama-server.

    `words` says, for the record, which name of this build stands for each of our words.
    """

    driver: Driver
    speculation: SpeculationType
    settings: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    build: int = 0
    fixed_port: int | None = None

    def described(self) -> dict[str, Any]:
        """The launch as JSON for a record: the same values, files without their folders."""
        return {
            "driver": self.driver.value,
            "speculation": self.speculation.value,
            "settings": {name: _file_name(value) for name, value in self.settings.items()},
            "flags": [_file_name(flag) for flag in self.flags],
            "words": dict(self.words),
        }


@dataclass(frozen=True)
class Unsupported:
    """An arm that this build cannot do; `reason` in the build's own words where it has any."""

    reason: str


def _file_name(value: Any) -> Any:
    """A path as its last part; other values unchanged."""
    return Path(value).name if isinstance(value, str) and ("/" in value or "\\" in value) else value


def spec_types_of(driver: Driver, offered: Sequence[str]) -> dict[str, str]:
    """Our words for the kinds of speculation that a build offers -> the build's name for each."""
    found = {}
    for word, names in TYPE_NAMES[driver].items():
        name = next((name for name in names if name in offered), None)
        if name is not None:
            found[word.value] = name
    return found


def speculation_values(speculation: Speculation) -> dict[str, Any]:
    """The values of an arm in our words, defaults filled in; the keys are those of OPTION_NAMES."""

    def given(value: Any, default: Any) -> Any:
        return default if value is None else value

    kind = speculation.type
    if kind is SpeculationType.NONE:
        return {}
    if kind.needs_drafter:
        return {
            "n_max": given(speculation.n_max, DEFAULT_N_MAX),
            "n_min": given(speculation.n_min, DEFAULT_N_MIN),
            "p_min": given(speculation.p_min, DEFAULT_P_MIN),
        }
    if kind is SpeculationType.NGRAM_MOD:
        return {
            "mod_n": given(speculation.ngram_n, DEFAULT_MOD_N),
            "mod_n_max": given(speculation.n_max, DEFAULT_MOD_N_MAX),
            "mod_n_min": given(speculation.n_min, DEFAULT_MOD_N_MIN),
        }
    if kind is SpeculationType.NGRAM_CACHE:
        return {}  # its lengths are constants of the engine
    return {
        "ngram_n": given(speculation.ngram_n, DEFAULT_NGRAM_N),
        "ngram_m": given(speculation.ngram_m, DEFAULT_NGRAM_M),
        "ngram_min_hits": given(speculation.ngram_min_hits, DEFAULT_NGRAM_MIN_HITS),
    }


def _names(driver: Driver, word: str, kind: SpeculationType) -> list[str]:
    """The names that builds have had for one of our words, newest first."""
    ngram = kind.value if driver is Driver.XLLAMACPP else kind.value.replace("_", "-")
    return [name.format(ngram=ngram) for name in OPTION_NAMES[driver][word]]


def _missing(features: Features, names: Sequence[str]) -> str:
    """Why none of `names` can be used, in the build's own words."""
    for name in names:
        if name in features.removed:
            return f"{name}: {features.removed[name]}"
    what = {Driver.XLLAMACPP: "attribute", Driver.LLAMA_SERVER: "flag"}.get(features.driver, "field of its settings")
    return f"this build ({features.version}) has no {what} {' or '.join(names)}"


def _type_missing(kind: SpeculationType, features: Features) -> Unsupported:
    """The refusal for a kind of speculation that the build does not offer."""
    offered = ", ".join(sorted(filter(None, features.spec_types.values()))) or "none at all"
    if features.driver is Driver.TRANSFORMERS:
        named = TYPE_NAMES[features.driver].get(kind)
        lacks = f"has no {named[0]}" if named else f"has no counterpart of {kind.value}"
        return Unsupported(f"this build ({features.version}) {lacks}; it offers {offered}")
    if features.driver is Driver.XLLAMACPP:
        wanted = TYPE_NAMES[features.driver][kind][0]
        return Unsupported(
            f"common_speculative_type has no member {wanted} in this build ({features.version}); it offers {offered}"
        )
    wanted = TYPE_NAMES[features.driver][kind][0]
    return Unsupported(f"--spec-type offers no {wanted} in this build ({features.version}); it offers {offered}")


def translate(speculation: Speculation, features: Features, server: ServerSettings) -> Launch | Unsupported:
    """The launch of one arm in the words of the probed build, or why the build cannot do it.

    Raises ValueError where the caller's settings make no sense for any build (a drafter arm without a file).
    """
    kind = speculation.type
    if kind.needs_drafter and server.drafter is None:
        raise ValueError(f"speculation {kind.value} needs the path of a drafter")
    if kind.value not in features.spec_types:
        return _type_missing(kind, features)
    if features.driver is Driver.TRANSFORMERS:
        return _transformers_launch(speculation, features, server)
    values = speculation_values(speculation)
    wanted: dict[str, Any] = {}
    words: dict[str, str] = {}
    for word, value in values.items():
        names = _names(features.driver, word, kind)
        name = features.first(names)
        if not name:
            return Unsupported(_missing(features, names))
        wanted[name], words[word] = value, name
    for word, value in _caps(kind, values).items():
        # Only where the builds' flat values hold for n-grams, too: there is no name of the type's own.
        flat = features.first(_names(features.driver, word, kind))
        if flat and words.get("ngram_n", "").endswith(("speculative.ngram_size_n", "--spec-ngram-size-n")):
            wanted[flat], words[word] = value, flat
    if kind.needs_drafter:
        layers = server.gpu_layers if speculation.gpu_layers_draft is None else speculation.gpu_layers_draft
        refusal = _add_drafter(kind, features, server, layers, wanted, words)
        if refusal is not None:
            return refusal
    type_name = features.spec_types[kind.value]
    if features.driver is Driver.XLLAMACPP:
        return _binding_launch(kind, type_name, features, server, wanted, words)
    return _server_launch(kind, type_name, features, server, wanted, words)


def _caps(kind: SpeculationType, values: Mapping[str, Any]) -> dict[str, int]:
    """The flat limits (most and fewest drafted tokens) that let an n-gram draft keep its own length."""
    if kind in (SpeculationType.NGRAM_SIMPLE, SpeculationType.NGRAM_MAP_K, SpeculationType.NGRAM_MAP_K4V):
        return {"cap": int(values["ngram_m"]), "floor": 0}
    return {}


def _add_drafter(
    kind: SpeculationType,
    features: Features,
    server: ServerSettings,
    layers: int,
    wanted: dict[str, Any],
    words: dict[str, str],
) -> Unsupported | None:
    """Add what concerns the drafter's model to `wanted`; only file and layers are required of a build."""
    concerns: list[tuple[str, Any, bool]] = [
        ("drafter", str(server.drafter), True),
        ("gpu_layers_draft", layers, True),
        ("threads_draft", server.threads, False),
        ("threads_batch_draft", server.threads, False),
        ("ctx_draft", server.ctx, False),
    ]
    if features.driver is Driver.LLAMA_SERVER:
        device = "none" if server.backend is Backend.CPU or layers == 0 else _device(features, server)
        if device:
            concerns.append(("device_draft", device, False))
    for word, value, required in concerns:
        names = _names(features.driver, word, kind)
        name = features.first(names)
        if name:
            wanted[name], words[word] = value, name
        elif required:
            return Unsupported(_missing(features, names))
    return None


def _device(features: Features, server: ServerSettings) -> str:
    """llama.cpp's name of the device to use; `none` for the CPU, "" where a GPU backend has none."""
    if server.backend is Backend.CPU:
        return "none"
    if server.device:
        return server.device
    prefix = {Backend.CUDA: ("cuda",), Backend.VULKAN: ("vulkan",), Backend.METAL: ("metal", "mtl")}[server.backend]
    names = (str(device.get("name", "")) for device in features.devices)
    return next((name for name in names if name.lower().startswith(prefix)), "")


def _binding_launch(
    kind: SpeculationType,
    type_name: str,
    features: Features,
    server: ServerSettings,
    wanted: dict[str, Any],
    words: dict[str, str],
) -> Launch | Unsupported:
    """The launch for the binding: attribute paths and their values."""
    if server.backend is not Backend.CPU and not _device(features, server):
        return Unsupported(f"this build ({features.version}) lists no {server.backend.value} device")
    member = {"enum": ["common_speculative_type", type_name]}
    type_attribute = features.first(_names(features.driver, "type", kind))
    if not type_attribute:
        return Unsupported(_missing(features, _names(features.driver, "type", kind)))
    words["type"] = f"{type_attribute}={type_name}"
    general: dict[str, Any] = {
        "model": str(server.model),
        "ctx": server.ctx,
        "batch": server.batch,
        "ubatch": min(server.batch, UBATCH),
        "slots": 1,
        "threads": server.threads,
        "threads_batch": server.threads,
        "gpu_layers": server.gpu_layers,
        "fit": False,
        "host": "127.0.0.1",
        "hosts": ["127.0.0.1"],
        "port": 0,
        "cache_prompt": False,
        "cache_ram": 0,
        "cache_idle": False,
        "kv_unified": False,
        "ctx_shift": False,
        "slots_endpoint": True,
        "metrics_endpoint": True,
        "mmap": True,
        "load_mode": {"enum": ["llama_load_mode", "LLAMA_LOAD_MODE_MMAP"]},
        "swa_full": False,
        "warmup": True,
        "ui": False,
        "offline": True,
        "verbosity": features.log_details,
    }
    settings = {
        name: general[word] for word, names in _BINDING_SERVER.items() for name in [features.first(names)] if name
    }
    settings[type_attribute] = [member] if type_attribute.endswith("s") else member
    settings.update(wanted)
    for text in server.extra:
        refusal = _extra_attribute(text, features, settings)
        if refusal is not None:
            return refusal
    return Launch(features.driver, kind, settings=settings, words=words, build=features.build)


def _extra_attribute(text: str, features: Features, settings: dict[str, Any]) -> Unsupported | None:
    """Add one `attribute.path=value` of the user; values are JSON, names of enumeration members stay as they are."""
    path, separator, value = text.partition("=")
    if not separator or _FORBIDDEN_EXTRA.match(path):
        raise ValueError(f"engine_flags.xllamacpp: {text!r}: write attribute.path=value (not model, host, port or key)")
    if path not in features.options:
        return Unsupported(_missing(features, [path]))
    default = features.options[path]
    enum = (
        re.match(r"^(GGML_TYPE|LLAMA_FLASH_ATTN_TYPE|LLAMA_LOAD_MODE)_", default) if isinstance(default, str) else None
    )
    if enum:
        settings[path] = {"enum": [enum.group(1).lower(), value]}
        return None
    try:
        settings[path] = json.loads(value)
    except json.JSONDecodeError:
        settings[path] = value
    return None


def _server_launch(
    kind: SpeculationType,
    type_name: str,
    features: Features,
    server: ServerSettings,
    wanted: dict[str, Any],
    words: dict[str, str],
) -> Launch | Unsupported:
    """The launch for llama-server: command-line words. Address, port and key are added at the start."""
    device = _device(features, server)
    if not device:
        return Unsupported(f"--list-devices of this build ({features.version}) lists no {server.backend.value} device")
    general: list[tuple[tuple[str, ...], str | None, bool]] = [
        (("--model", "-m"), str(server.model), True),
        (("--ctx-size", "-c"), str(server.ctx), True),
        (("--batch-size", "-b"), str(server.batch), True),
        (("--ubatch-size", "-ub"), str(min(server.batch, UBATCH)), True),
        (("--parallel", "-np"), "1", True),
        (("--threads", "-t"), str(server.threads), True),
        (("--threads-batch", "-tb"), str(server.threads), True),
        (("--gpu-layers", "--n-gpu-layers", "-ngl"), str(server.gpu_layers), True),
        (("--device", "-dev"), device, server.backend is not Backend.CPU),
        (("--fit", "-fit"), "off", False),
        (("--no-cache-prompt",), None, False),
        (("--cache-ram", "-cram"), "0", False),
        (("--no-kv-unified",), None, False),
        (("--no-context-shift",), None, False),
        (("--slots",), None, False),
        (("--metrics",), None, False),
        (("--mmap",), None, False),
        (("--load-mode",), "mmap", False),
        (("--warmup",), None, False),
        (("--no-ui", "--no-webui"), None, False),
        (("--offline",), None, False),
        (("--log-verbosity", "-lv"), str(features.log_details), False),
        (("--log-colors",), "off", False),
    ]
    flags: list[str] = []
    for names, value, required in general:
        name = features.first(names)
        if name:
            flags += [name] if value is None else [name, value]
        elif required:
            return Unsupported(_missing(features, names))
    type_flag = features.first(_names(features.driver, "type", kind))
    # Builds of spring 2026 draft with `-md` alone: their --spec-type has no name for it (type_name is then "").
    if type_flag and type_name:
        flags += [type_flag, type_name]
        words["type"] = f"{type_flag} {type_name}"
    for name, value in wanted.items():
        flags += [name, str(value)]
    for word in server.extra:
        flag = word.partition("=")[0]
        if _FORBIDDEN_EXTRA.match(flag):
            raise ValueError(f"engine_flags.llama-server: {word!r} is set by the pipeline; remove it")
        if flag.startswith("-") and not re.match(r"^-\d", flag) and flag not in features.options:
            return Unsupported(_missing(features, [flag]))
    flags += server.extra
    return Launch(features.driver, kind, flags=tuple(flags), words=words, build=features.build)


def _transformers_launch(speculation: Speculation, features: Features, server: ServerSettings) -> Launch | Unsupported:
    """The launch for transformers: the settings of its host process.

    A length of n-grams is the longest that transformers looks for; where it finds none, it looks for shorter ones.
    """
    kind = speculation.type
    generator = features.spec_types[kind.value]
    settings: dict[str, Any] = {
        "model": str(server.model),
        "device": "cpu",
        "dtype": "float32",
        "threads": server.threads,
        "ctx": server.ctx,
        "attn_implementation": "sdpa",
        "generator": generator,
    }
    if server.backend is not Backend.CPU:
        device = _torch_device(features, server)
        if isinstance(device, Unsupported):
            return device
        # As stored (bfloat16 for Gemma): a GPU that is too old for it shows that in its speed or its refusal.
        settings |= {"device": device, "dtype": "stored"}
    words = {"type": f"generator={generator or 'none'}"}
    for word, value in speculation_values(speculation).items():
        if word in _TRANSFORMERS_FIXED or (word == "p_min" and kind is SpeculationType.DRAFT_MTP):
            if value != _TRANSFORMERS_FIXED.get(word, 0.0):
                return Unsupported(f"{generator} ({features.version}) has no setting for {word}, here {value}")
            continue
        names = _names(features.driver, word, kind)
        name = features.first(names)
        if not name:
            return Unsupported(_missing(features, names))
        settings[name], words[word] = value, name
    if kind.needs_drafter:
        on_cpu = settings["device"] == "cpu" or speculation.gpu_layers_draft == 0
        settings |= {"assistant": str(server.drafter), "assistant_device": "cpu" if on_cpu else settings["device"]}
        words["drafter"] = "assistant"
    for text in server.extra:
        name, separator, value = text.partition("=")
        if not separator or name not in _TRANSFORMERS_EXTRA:
            known = " or ".join(_TRANSFORMERS_EXTRA)
            raise ValueError(f"engine_flags.transformers: {text!r}: write {known}=value; all else is the pipeline's")
        settings[name] = value
    return Launch(features.driver, kind, settings=settings, words=words, build=features.build)


def _torch_device(features: Features, server: ServerSettings) -> str | Unsupported:
    """torch's name of the first GPU, or why this torch cannot compute on it."""
    if server.backend is not Backend.CUDA:
        return Unsupported(f"this build ({features.version}) has no {server.backend.value} backend")
    if not features.devices:
        return Unsupported(f"this build ({features.version}, {features.system_info}) sees no CUDA device")
    if server.gpu_layers < 999:
        return Unsupported(f"transformers loads the whole model onto the GPU, not {server.gpu_layers} layers")
    device = features.devices[0]
    if device.get("compiled_for") != "carries":
        name = f"{device.get('description')} (compute capability {device.get('compute_capability')})"
        return Unsupported(f"this build ({features.version}) is not compiled for {name}: {device.get('by')}")
    return "cuda:0"
