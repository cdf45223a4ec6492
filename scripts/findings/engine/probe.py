"""Asks an engine, before any model is loaded, what it is and what it can do; the answer is a `probe` record.

The binding is asked in a process of its environment's Python (xllamacpp_host.py probe), transformers in the same way
(with torch_probe's question for torch); a llama-server binary by `--version` (which it prints on stderr), `--help` and
`--list-devices`. A binary that dies is an outcome, not an error.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from findings.config import Driver, Engine
from findings.engine.arms import spec_types_of
from findings.engine.failure import EngineFailure, classify_exit, signal_words
from findings.engine.features import Features
from findings.records import Kind, Outcome, Record, clip_log, sha256_text, utc_now
from findings.torch_probe import ProbeError, judge, parse_architectures
from findings.torch_probe import ask as ask_torch

HOST_SCRIPTS = {
    Driver.XLLAMACPP: Path(__file__).with_name("xllamacpp_host.py"),
    Driver.TRANSFORMERS: Path(__file__).with_name("transformers_host.py"),
}
PROBE_TIMEOUT_S = 60.0
TORCH_TIMEOUT_S = 300.0  # the first import of torch reads hundreds of megabytes
OUTPUT_LIMIT = 4 * 2**20
_VERSION = re.compile(r"^version:\s*(\S+)\s*\(([0-9a-f]+)\)", re.MULTILINE)
_REMOVED = re.compile(r"the argument has been removed.*|\bremoved\b.*use .*", re.IGNORECASE)
_DROPPED_NAME = re.compile(
    r"(?i)^(hf_|hugging|llama_|ggml_(?!vk_)|python|pip_|uv_|.*_proxy$|.*token.*|.*secret.*|.*passw.*|.*credential.*"
    r"|.*api_?key.*|.*access_?key.*|.*private_?key.*)"
)
# Tokens by their look (hub, GitHub, cloud), and addresses with a login inside.
_DROPPED_VALUE = re.compile(r"\bhf_\w{8}|\bgh[pousr]_\w{16}|\bAKIA[0-9A-Z]{12}|://[^/\s:@]*:[^/\s@]+@|-----BEGIN ")
_FLAG = re.compile(r"\s*(--?[A-Za-z][\w.-]*)(,\s*)?")


@dataclass(frozen=True)
class Asked:
    """What a probing command printed."""

    exit_code: int
    stdout: str
    stderr: str


Asker = Callable[[str, float], Asked]
"""Runs an executable with one flag and a time limit in seconds, wherever it is; raises EngineFailure."""


def engine_environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of an engine's process: ours without tokens, proxies, and settings of llama.cpp or Python.

    An engine that crashes may print all of it. Whatever has the name or the look of a secret stays here.
    """
    # GGML_NO_BACKTRACE: an abort would call gdb, which takes seconds and fills the log with its own complaints.
    kept = {k: v for k, v in os.environ.items() if not _DROPPED_NAME.match(k) and not _DROPPED_VALUE.search(v)}
    return {**kept, "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", "GGML_NO_BACKTRACE": "1", **(extra or {})}


def _ask(argv: Sequence[str], timeout_s: float) -> Asked:
    """Run a probing command.

    Raises EngineFailure: `unavailable` where it cannot be started, `timed_out` where it does not end.
    """
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            env=engine_environment(),
            start_new_session=True,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise EngineFailure(Outcome.TIMED_OUT, f"no answer to {argv[-1]} within {timeout_s:g} s") from error
    except OSError as error:
        reason = f"cannot start {Path(argv[0]).name}: {error.strerror}"
        raise EngineFailure(Outcome.UNAVAILABLE, reason) from error
    texts = [output[:OUTPUT_LIMIT].decode("utf-8", "replace") for output in (done.stdout, done.stderr)]
    return Asked(done.returncode, texts[0], texts[1])


def parse_help(text: str) -> tuple[dict[str, str], dict[str, str], dict[str, str]]:
    """(defaults, removed, values) by flag from `llama-server --help`; every alias is a key.

    defaults: text of "(default: ...)", "" where none is named; removed: the build's words for flags that it refuses;
    values: the word after the flag (`N`, `none,ngram-cache`, `[on|off|auto]`), "" for a switch.
    """
    defaults: dict[str, str] = {}
    removed: dict[str, str] = {}
    values: dict[str, str] = {}
    flags: list[str] = []
    value = description = ""

    def finish() -> None:
        gone = _REMOVED.search(description)
        default = re.search(r"\bdefault: *([^),]*)", description)
        for flag in flags:
            if gone:
                removed[flag] = gone.group(0).strip()
            else:
                defaults[flag] = default.group(1).strip().strip("'\"") if default else ""
                values[flag] = value

    for line in text.splitlines():
        if line.startswith("-") and not line.startswith("----"):
            finish()
            flags, position = [], 0
            while match := _FLAG.match(line, position):
                flags.append(match.group(1))
                position = match.end()
                if not match.group(2):
                    break
            rest = line[position:]
            value = rest.strip().split("  ")[0].strip() if rest.startswith(" ") and not rest.startswith("  ") else ""
            description = rest.strip()[len(value) :].strip()
        elif line.startswith(" "):
            description += " " + line.strip()
        else:
            finish()
            flags, value, description = [], "", ""
    finish()
    return defaults, removed, values


def parse_devices(text: str) -> tuple[dict[str, Any], ...]:
    """Devices of `--list-devices`: lines such as `  Vulkan0: AMD Radeon (8176 MiB, 7000 MiB free)`; never the CPU."""
    found = []
    for line in text.splitlines():
        match = re.match(r"^\s+(\w+): (.*?)(?: \((\d+) MiB, (\d+) MiB free\))?\s*$", line)
        if match:
            total = int(match.group(3)) * 2**20 if match.group(3) else 0
            found.append({"name": match.group(1), "description": match.group(2), "memory_total": total})
    return tuple(found)


def server_spec_types(defaults: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    """Kinds of speculation that a llama-server offers (our word -> its word for --spec-type, "" for no word needed).

    Builds of spring 2026 name only n-gram types there and draft as soon as they get a drafter's file.
    """
    offered = re.split(r"[,|\[\]<>{}\s]+", values.get("--spec-type", ""))
    found = spec_types_of(Driver.LLAMA_SERVER, offered)
    found.setdefault("none", "")
    drafts = any(word.startswith("draft-") for word in offered)
    if not drafts and ("--model-draft" in defaults or "-md" in defaults):
        found["draft_simple"] = ""
    return found


def log_details_of(help_text: str) -> int:
    """The verbosity that prints devices and buffers: 4 where the build calls that level `trace`, else 3."""
    return 4 if re.search(r"\b4: *trace", help_text) else 3


def local_asker(binary: Path) -> Asker:
    """How an executable on this machine is asked."""
    return lambda flag, timeout_s: _ask([str(binary), flag], timeout_s)


def _probe_server(engine: Engine, ask: Asker, timeout_s: float) -> tuple[Features, str]:
    """Features of a llama-server executable, and what it printed."""
    log = ""
    answers: dict[str, Asked] = {}
    for flag in ("--version", "--help", "--list-devices"):
        answer = ask(flag, timeout_s)
        log += answer.stderr + ("" if flag == "--help" else answer.stdout)
        if answer.exit_code != 0:
            everything = answer.stderr + answer.stdout
            if flag == "--list-devices":  # older builds lack it; a crash of a driver there says a lot
                log += f"{flag}: {signal_words(answer.exit_code)}\n"
                continue
            outcome, reason = classify_exit(answer.exit_code, everything)
            raise EngineFailure(outcome, f"{flag}: {reason}", everything, answer.exit_code)
        answers[flag] = answer
    printed = answers["--version"].stderr + answers["--version"].stdout
    match = _VERSION.search(printed)
    if not match:
        raise EngineFailure(Outcome.REFUSED, "--version does not answer as llama-server does", printed, 0)
    help_text = answers["--help"].stdout + answers["--help"].stderr
    defaults, removed, values = parse_help(help_text)
    # A build from a shallow clone calls itself number 1; the configuration knows the number then.
    number = int(match.group(1)) if match.group(1).isdigit() else 0
    listed = answers["--list-devices"].stdout + answers["--list-devices"].stderr if "--list-devices" in answers else ""
    features = Features(
        driver=Driver.LLAMA_SERVER,
        build=number if number > 1 else engine.build,
        version=f"{engine.package} {engine.version}".strip() or f"llama-server b{number}",
        commit=match.group(2),
        system_info=next((line for line in printed.splitlines() if line.startswith("built with")), ""),
        devices=parse_devices(listed),
        spec_types=server_spec_types(defaults, values),
        options=defaults,
        removed=removed,
        log_details=log_details_of(help_text),
    )
    return features, log


# The parts of CommonParams that an arm, or a user's extra attribute, can touch; the rest would only fill the record.
_KEPT = re.compile(
    r"^(speculative\.|n_(ctx|batch|ubatch|parallel|gpu_layers|threads_http)$|model\.path$|cpuparams(_batch)?\.(n_threads|poll)$"
    r"|fit_params$|hostnames?$|port$|api_keys$|cache_(prompt|ram_mib|idle_slots|type_[kv])$|kv_unified$|ctx_shift$"
    r"|endpoint_|use_mmap$|use_mlock$|load_mode$|swa_full$|warmup$|(web)?ui$|offline$|verbosity$|flash_attn_type$"
    r"|no_(kv_offload|op_offload|extra_bufts|host)$|main_gpu$)"
)


def binding_features(raw: Mapping[str, Any]) -> Features:
    """Features from what `xllamacpp_host.py probe` printed.

    The wheel does not know its own build number; the package's version ends in it (year.month.build).
    """
    version = str(raw["version"])
    tail = version.rpartition(".")[2]
    members = sorted(raw["enums"].get("common_speculative_type", {}), key=len)
    options = {path: value for path, value in raw["attributes"].items() if _KEPT.match(path)}
    commit = str(raw.get("build_info", {}).get("commit", ""))
    return Features(
        driver=Driver.XLLAMACPP,
        build=int(tail) if tail.isdigit() else 0,
        version=f"xllamacpp {version}",
        commit="" if commit == "unknown" else commit,
        system_info=str(raw.get("system_info", "")),
        devices=tuple({"name": d["name"], "description": d.get("description", "")} for d in raw.get("devices", ())),
        spec_types=spec_types_of(Driver.XLLAMACPP, members),
        options=options,
        # The log's levels were numbered anew (4 = trace instead of debug) in the weeks in which the list of types came.
        log_details=4 if "speculative.types" in options else 3,
    )


def _probe_binding(python: Path, timeout_s: float) -> tuple[Features, str]:
    """Features of the binding in the environment of `python`, and what it printed on stderr."""
    raw, log = _ask_host(Driver.XLLAMACPP, python, timeout_s)
    try:
        return binding_features(raw), log
    except (ValueError, KeyError, TypeError) as error:
        raise EngineFailure(Outcome.CRASHED, f"the probe's answer cannot be read ({error})", str(raw)) from error


def _ask_host(driver: Driver, python: Path, timeout_s: float) -> tuple[Mapping[str, Any], str]:
    """What a host script prints about its package, and its stderr. Raises EngineFailure."""
    answer = _ask([str(python), "-I", str(HOST_SCRIPTS[driver]), "probe"], timeout_s)
    if answer.exit_code != 0:
        outcome, reason = classify_exit(answer.exit_code, answer.stderr)
        raise EngineFailure(outcome, reason, answer.stderr, answer.exit_code)
    try:
        raw = json.loads(answer.stdout.splitlines()[-1])
    except (ValueError, IndexError) as error:
        raise EngineFailure(Outcome.CRASHED, f"the probe's answer cannot be read ({error})", answer.stdout) from error
    if not isinstance(raw, Mapping):
        raise EngineFailure(Outcome.CRASHED, "the probe's answer is no object", answer.stdout)
    return raw, answer.stderr


def transformers_features(raw: Mapping[str, Any], torch: Mapping[str, Any]) -> Features:
    """Features from what `transformers_host.py probe` and torch_probe's question printed.

    A device is listed with what torch_probe's rule says of it: whether this torch was compiled for it.
    """
    words = list(torch["arch_list"]) or list(torch["arch_flags"] or ())
    compiled = parse_architectures(words)
    devices = []
    for number, device in enumerate(torch["devices"]):
        major, minor = device["capability"]
        answer, by = judge(compiled, cuda_build=bool(torch["cuda"]), capability=10 * int(major) + int(minor))
        devices.append(
            {
                "name": f"CUDA{number}",
                "description": str(device["name"]),
                "compute_capability": f"{major}.{minor}",
                "compiled_for": answer.value,
                "by": by,
            }
        )
    return Features(
        driver=Driver.TRANSFORMERS,
        build=0,
        version=f"transformers {raw['version']}, torch {torch['version']}",
        commit=str(torch["git"]),
        system_info=f"CUDA {torch['cuda'] or 'none'}, compiled for {' '.join(words) or 'no GPU'}",
        devices=tuple(devices),
        spec_types=spec_types_of(Driver.TRANSFORMERS, ["", *raw["generators"]]),
        options=dict(raw["options"]),
    )


def _probe_transformers(python: Path, timeout_s: float) -> tuple[Features, str]:
    """Features of transformers and torch in the environment of `python`, and what they printed on stderr."""
    try:
        answer, done = ask_torch(python, timeout_s)
    except ProbeError as error:
        raise EngineFailure(Outcome.UNAVAILABLE, str(error)) from error
    if done.returncode != 0:
        outcome, reason = classify_exit(done.returncode, done.stderr)
        raise EngineFailure(outcome, f"importing torch: {reason}", done.stderr, done.returncode)
    if "torch" not in answer:
        raise EngineFailure(Outcome.UNAVAILABLE, f"{python.name}: no torch in its environment", done.stderr, 0)
    raw, log = _ask_host(Driver.TRANSFORMERS, python, timeout_s)
    try:
        return transformers_features(raw, answer["torch"]), done.stderr + log
    except (ValueError, KeyError, TypeError) as error:
        raise EngineFailure(Outcome.CRASHED, f"the probe's answer cannot be read ({error})", str(raw)) from error


def probe_features(
    engine: Engine, python_or_binary: Path, timeout_s: float = PROBE_TIMEOUT_S, ask: Asker | None = None
) -> tuple[Features, str]:
    """(features, log) of an engine; `ask` asks an executable that is not on this machine.

    Raises EngineFailure with the outcome: `unavailable`, `crashed` (by signal, in words), `timed_out`, `refused`.
    """
    if engine.driver is Driver.XLLAMACPP:
        return _probe_binding(python_or_binary, timeout_s)
    if engine.driver is Driver.TRANSFORMERS:
        return _probe_transformers(python_or_binary, max(timeout_s, TORCH_TIMEOUT_S))
    return _probe_server(engine, ask or local_asker(python_or_binary), timeout_s)


def probe(
    engine: Engine,
    python_or_binary: Path,
    host: str = "",
    timeout_s: float = PROBE_TIMEOUT_S,
    ask: Asker | None = None,
) -> Record:
    """The probe record of an engine; every failure of the engine is in it, nothing is raised for one."""
    started, begun = utc_now(), time.monotonic()
    detail: dict[str, Any] = {}
    outcome, reason, exit_code = Outcome.OK, "", 0
    try:
        features, log = probe_features(engine, python_or_binary, timeout_s, ask)
        detail = features.to_detail()
        if engine.build and features.build and engine.build != features.build:
            reason = f"configured as build {engine.build}, answers as build {features.build}"
    except EngineFailure as failure:
        outcome, reason, log, exit_code = failure.outcome, failure.reason, failure.log, failure.exit_code or 0
    head, tail = clip_log(log)
    return Record(
        kind=Kind.PROBE,
        subject=engine.id,
        outcome=outcome,
        reason=reason,
        host=host,
        engine=engine.id,
        argv=(python_or_binary.name, "probe" if engine.driver.in_python else "--help"),
        exit_code=exit_code,
        seconds=round(time.monotonic() - begun, 3),
        started=started,
        log_head=head,
        log_tail=tail,
        log_sha256=sha256_text(log),
        versions={"engine": str(detail.get("version", ""))} if detail else {},
        detail=detail,
    )


def failed_probe(engine: Engine, failure: EngineFailure, host: str = "") -> Record:
    """The record of an engine that could not even be found."""
    return Record(
        kind=Kind.PROBE,
        subject=engine.id,
        outcome=failure.outcome,
        reason=failure.reason,
        host=host,
        engine=engine.id,
        started=utc_now(),
    )
