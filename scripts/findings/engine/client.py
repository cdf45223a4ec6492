"""Talks to a llama-server over HTTP, strictly: every answer is bounded in time and size and checked before use.

Source of the fields: tools/server/README.md of llama.cpp, and builds 8929 to 11549 as tried. `timings.draft_n` is
absent unless something was drafted, so its absence alone does not tell "off", "not engaged" and "found nothing to
draft" apart; `engagement` does, from the slot's `speculative` flag, which all those builds have, and the log.
"""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

import requests
import urllib3

from findings.config import SpeculationType
from findings.engine.arms import Launch
from findings.engine.failure import EngineFailure, tidy_line
from findings.records import Engagement, Outcome

RESPONSE_LIMIT = 8 * 2**20
CONNECT_TIMEOUT_S = 5.0
INFO_TIMEOUT_S = 10.0
WARM_UP_PROMPT = "A quiet morning by the river."
DEGENERATE_MIN_TOKENS = 24
DEGENERATE_MAX_PERIOD = 8
DEGENERATE_SHARE = 0.75
# The slot's parameters that decide which token is taken; they are the same in all arms.
SAMPLING = ("temperature", "seed", "top_k", "top_p", "min_p", "repeat_penalty", "ignore_eos", "samplers")
VOCAB_TYPES = {0: "none", 1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo2"}


@dataclass(frozen=True)
class Endpoint:
    """Where a server answers and the key it wants ("" for none)."""

    url: str
    key: str = ""

    def __repr__(self) -> str:
        """Without the key: this may end in a message."""
        return f"Endpoint({self.url!r})"


@dataclass(frozen=True)
class Completion:
    """One answer. Counts in tokens, times in milliseconds, both as the engine reports them.

    `draft_n` is None where the engine reported no drafting at all, which differs from 0. `tokens` are the ids.
    """

    prompt_n: int
    prompt_ms: float
    predicted_n: int
    predicted_ms: float
    draft_n: int | None
    draft_n_accepted: int | None
    text: str
    tokens: tuple[int, ...]
    stop_type: str = ""
    cache_n: int = 0


def _session() -> requests.Session:
    """A session that never uses a proxy: the server is on this machine."""
    session = requests.Session()
    session.trust_env = False
    return session


def _fetch(
    server: Endpoint, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
) -> tuple[int, bytes]:
    """(status, body) of one request, within `timeout_s` in all and RESPONSE_LIMIT bytes.

    Raises EngineFailure: timed_out, or crashed where the connection breaks or the answer does not end.
    """
    deadline = time.monotonic() + timeout_s
    headers = {"Authorization": f"Bearer {server.key}"} if server.key else {}
    where = f"{method} {path}"
    try:
        with (
            _session() as session,
            session.request(
                method,
                server.url + path,
                json=body,
                headers=headers,
                timeout=(min(CONNECT_TIMEOUT_S, timeout_s), timeout_s),
                stream=True,
                allow_redirects=False,
            ) as response,
        ):
            received = bytearray()
            # read1 gives what has come; iter_content would wait for a whole piece, however slowly it dribbles in.
            while piece := response.raw.read1(65536, decode_content=True):
                received += piece
                if len(received) > RESPONSE_LIMIT:
                    raise EngineFailure(Outcome.CRASHED, f"{where}: the answer is longer than {RESPONSE_LIMIT} bytes")
                if time.monotonic() > deadline:
                    raise EngineFailure(Outcome.TIMED_OUT, f"{where}: the answer did not end within {timeout_s:g} s")
            expected = response.headers.get("Content-Length", "")
            if expected.isdigit() and len(received) < int(expected):
                raise EngineFailure(Outcome.CRASHED, f"{where}: the connection was closed in the middle of the answer")
            return response.status_code, bytes(received)
    except urllib3.exceptions.ReadTimeoutError as error:
        raise EngineFailure(Outcome.TIMED_OUT, f"{where}: the answer stopped for {timeout_s:g} s") from error
    except urllib3.exceptions.HTTPError as error:
        raise EngineFailure(Outcome.CRASHED, f"{where}: {_broken(error)}") from error
    except requests.Timeout as error:
        raise EngineFailure(Outcome.TIMED_OUT, f"{where}: no answer within {timeout_s:g} s") from error
    except requests.RequestException as error:
        raise EngineFailure(Outcome.CRASHED, f"{where}: {_broken(error)}") from error


def _broken(error: Exception) -> str:
    """A broken connection in plain words (requests' own name the address and the port, which change every time)."""
    text = str(error)
    if "refused" in text.lower():
        return "connection refused (no server there)"
    if "IncompleteRead" in text:
        return "the connection was closed in the middle of the answer"
    if "RemoteDisconnected" in text or "reset" in text.lower() or "aborted" in text.lower():
        return "the connection was closed without an answer"
    return f"not an HTTP answer ({type(error).__name__})"


def _json(where: str, body: bytes) -> Any:
    """The decoded JSON of an answer; EngineFailure(crashed) for anything else."""
    try:
        return json.loads(body)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        start = body[:60].decode("utf-8", "replace")
        raise EngineFailure(Outcome.CRASHED, f"{where}: the answer is not JSON but {start!r}") from error


def _request_json(server: Endpoint, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> Any:
    """The JSON of an answer with status 200; EngineFailure(refused) with the server's message for another status."""
    status, received = _fetch(server, method, path, body, timeout_s)
    if status != 200:
        raise EngineFailure(Outcome.REFUSED, f"{method} {path}: HTTP {status}: {_message(received)}")
    return _json(f"{method} {path}", received)


def _message(body: bytes) -> str:
    """The message in a server's error answer, or the beginning of whatever it sent."""
    try:
        decoded = json.loads(body)
        return str(decoded["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body[:120].decode("utf-8", "replace").strip() or "no message"


def healthy(server: Endpoint, timeout_s: float = 2.0) -> bool:
    """Whether /health says ok; False while it loads, hangs, or is not there."""
    try:
        status, _ = _fetch(server, "GET", "/health", None, timeout_s)
    except EngineFailure:
        return False
    return status == 200


def _number(fields: Mapping[str, Any], name: str, where: str) -> float:
    """A finite number of at least 0, or EngineFailure(crashed)."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
        raise EngineFailure(Outcome.CRASHED, f"{where}: {name} is {value!r}, not a number of at least 0")
    return float(value)


def parse_completion(answer: Any, where: str = "POST /completion") -> Completion:
    """A Completion from the decoded answer; EngineFailure(crashed) where it is not one, naming the field."""
    if not isinstance(answer, Mapping):
        raise EngineFailure(Outcome.CRASHED, f"{where}: the answer is {type(answer).__name__}, not an object")
    timings, text, tokens = answer.get("timings"), answer.get("content"), answer.get("tokens", [])
    if not isinstance(timings, Mapping) or not isinstance(text, str):
        raise EngineFailure(Outcome.CRASHED, f"{where}: the answer has no timings or no content")
    if not isinstance(tokens, list) or not all(isinstance(t, int) and not isinstance(t, bool) for t in tokens):
        raise EngineFailure(Outcome.CRASHED, f"{where}: tokens are not a list of token ids")
    drafted = int(_number(timings, "draft_n", where)) if timings.get("draft_n") is not None else None
    accepted = int(_number(timings, "draft_n_accepted", where)) if drafted is not None else None
    if drafted is not None and accepted is not None and accepted > drafted:
        raise EngineFailure(Outcome.CRASHED, f"{where}: {accepted} accepted of {drafted} drafted tokens")
    return Completion(
        prompt_n=int(_number(timings, "prompt_n", where)),
        prompt_ms=_number(timings, "prompt_ms", where),
        predicted_n=int(_number(timings, "predicted_n", where)),
        predicted_ms=_number(timings, "predicted_ms", where),
        draft_n=drafted,
        draft_n_accepted=accepted,
        text=text,
        tokens=tuple(tokens),
        stop_type=str(answer.get("stop_type", "")),
        cache_n=int(timings["cache_n"]) if isinstance(timings.get("cache_n"), int) else 0,
    )


def complete(
    server: Endpoint,
    prompt: str | Sequence[int],
    n_predict: int,
    timeout_s: float,
    seed: int = 1,
    cache_prompt: bool = False,
) -> Completion:
    """Continue `prompt` (text or token ids) by `n_predict` tokens, greedily, not stopping at the end-of-text token.

    Raises EngineFailure: refused (HTTP error, with the server's message), crashed (connection or answer broken),
    timed_out.
    """
    body = {
        "prompt": prompt if isinstance(prompt, str) else list(prompt),
        "n_predict": n_predict,
        "temperature": 0.0,
        "ignore_eos": True,
        "cache_prompt": cache_prompt,
        "seed": seed,
        "return_tokens": True,
        "id_slot": 0,
        "stream": False,
    }
    return parse_completion(_request_json(server, "POST", "/completion", body, timeout_s))


def tokenize(server: Endpoint, text: str, timeout_s: float = INFO_TIMEOUT_S) -> tuple[int, ...]:
    """Token ids of `text` in the target's vocabulary, with the beginning-of-text token where the model adds one."""
    body = {"content": text, "add_special": True}
    answer = _request_json(server, "POST", "/tokenize", body, timeout_s)
    tokens = answer.get("tokens") if isinstance(answer, Mapping) else None
    if not isinstance(tokens, list) or not all(isinstance(token, int) for token in tokens):
        raise EngineFailure(Outcome.CRASHED, "POST /tokenize: the answer holds no token ids")
    return tuple(tokens)


def warm_up(server: Endpoint, n_predict: int, timeout_s: float) -> Completion:
    """The first request of a process, never counted: it pays for page faults, graphs and threads."""
    return complete(server, WARM_UP_PROMPT, n_predict, timeout_s)


def server_settings(server: Endpoint, timeout_s: float = INFO_TIMEOUT_S) -> dict[str, Any]:
    """What the server says about itself, as far as this build says it; unknown values are None.

    Keys: n_ctx, slots, build_info, model_file, model_bytes, n_params, n_vocab, vocab_type ("SPM", "BPE" ...), ftype,
    speculative (whether the slot can speculate), speculative_params and sampling (the slot's, after a request).
    """
    props = _optional(server, "/props", timeout_s)
    models = _optional(server, "/v1/models", timeout_s)
    slots = _optional(server, "/slots", timeout_s)
    props = props if isinstance(props, Mapping) else {}
    data = models.get("data") if isinstance(models, Mapping) else None
    meta = data[0].get("meta") if isinstance(data, list) and data and isinstance(data[0], Mapping) else None
    meta = meta if isinstance(meta, Mapping) else {}
    slot = slots[0] if isinstance(slots, list) and slots and isinstance(slots[0], Mapping) else {}
    parameters = slot.get("params")
    parameters = parameters if isinstance(parameters, Mapping) else {}
    defaults = props.get("default_generation_settings")
    context = slot.get("n_ctx") or (defaults.get("n_ctx") if isinstance(defaults, Mapping) else None)
    vocabulary = meta.get("vocab_type")
    return {
        "n_ctx": context,
        "slots": props.get("total_slots"),
        "build_info": props.get("build_info"),
        "model_file": _leaf(props.get("model_path")),
        "model_bytes": meta.get("size"),
        "n_params": meta.get("n_params"),
        "n_vocab": meta.get("n_vocab"),
        "vocab_type": VOCAB_TYPES.get(vocabulary, vocabulary) if isinstance(vocabulary, int) else vocabulary,
        "ftype": props.get("model_ftype") or meta.get("ftype"),
        "speculative": slot.get("speculative"),
        "speculative_params": {k: v for k, v in parameters.items() if str(k).startswith("speculative.")},
        "sampling": {name: parameters[name] for name in SAMPLING if name in parameters},
    }


def _leaf(path: Any) -> str | None:
    """The file name of a path of any system."""
    if not isinstance(path, str):
        return None
    return PureWindowsPath(path).name if "\\" in path else PurePosixPath(path).name


def _optional(server: Endpoint, path: str, timeout_s: float) -> Any:
    """The JSON at `path`, None where this build does not answer it."""
    try:
        return _request_json(server, "GET", path, None, timeout_s)
    except EngineFailure as failure:
        if failure.outcome is Outcome.REFUSED:
            return None
        raise


_METRIC = re.compile(r'^llamacpp:(spec_decode_\w+)(?:\{position="(\d+)"\})? (\d+(?:\.\d+)?)\s*$', re.MULTILINE)


@dataclass(frozen=True)
class DraftCounters:
    """Totals since the server's start, of builds whose /metrics has them (11549 does, 8929 does not).

    rounds: verification steps that had a draft; accepted_at: accepted tokens by position in the draft.
    """

    rounds: int
    drafted: int
    accepted: int
    accepted_at: tuple[int, ...]


def draft_counters(server: Endpoint, timeout_s: float = INFO_TIMEOUT_S) -> DraftCounters | None:
    """The counters of /metrics, None where this build has none (or the endpoint is off)."""
    try:
        status, body = _fetch(server, "GET", "/metrics", None, timeout_s)
    except EngineFailure:
        return None
    return parse_metrics(body.decode("utf-8", "replace")) if status == 200 else None


def parse_metrics(text: str) -> DraftCounters | None:
    """DraftCounters from the Prometheus text, None where it has no counters of speculation."""
    totals: dict[str, int] = {}
    positions: dict[int, int] = {}
    for name, position, value in _METRIC.findall(text):
        if position:
            positions[int(position)] = int(float(value))
        else:
            totals[name] = int(float(value))
    rounds = totals.get("spec_decode_num_drafts_total")
    if rounds is None:
        return None
    return DraftCounters(
        rounds=rounds,
        drafted=totals.get("spec_decode_num_draft_tokens_total", 0),
        accepted=totals.get("spec_decode_num_accepted_tokens_total", 0),
        accepted_at=tuple(positions[index] for index in sorted(positions)),
    )


# --- what the log says about drafting --------------------------------------------------------------------------------

_ACCEPTANCE = re.compile(
    r"draft acceptance(?: rate)? = *[\d.]+ *\( *(\d+) accepted / *(\d+) generated\)(?:, mean len = *([\d.]+))?"
)
_STATISTICS = re.compile(
    r"statistics +([\w-]+): .*?#gen drafts = *(\d+), #acc drafts = *(\d+), #gen tokens = *(\d+), #acc tokens = *(\d+)"
)
_VOCABULARY = re.compile(r"vocabs are not compatible|vocab type must match|failed to initialize speculative", re.I)
_TRANSLATED = re.compile(r"tokens will be translated between the two", re.IGNORECASE)


@dataclass(frozen=True)
class DraftLine:
    """One request's line about drafting: tokens accepted and generated; `mean_len` is tokens per round.

    llama.cpp's `mean len` is 1 + accepted / rounds, where a round is a verification step that had a draft; it is None
    in builds that do not print it (8929 to 9713 do not).
    """

    accepted: int
    generated: int
    mean_len: float | None = None

    @property
    def rounds(self) -> float | None:
        """Verification steps that had a draft, from `mean_len`; None where that is unknown or nothing was accepted."""
        if self.mean_len is None or self.mean_len <= 1.0:
            return None
        return self.accepted / (self.mean_len - 1.0)


@dataclass(frozen=True)
class DraftStatistics:
    """Cumulative counts of one kind of speculation since the server's start, as builds before 11549 print them.

    `tokens_generated` counts what the drafter proposed, before the server cut drafts to their limit, so it can exceed
    the `draft_n` of the timings.
    """

    kind: str
    drafts_generated: int
    drafts_accepted: int
    tokens_generated: int
    tokens_accepted: int


def draft_lines(log: str) -> list[DraftLine]:
    """The lines about draft acceptance, one for each request that drafted, in order."""
    return [
        DraftLine(int(accepted), int(generated), float(mean) if mean else None)
        for accepted, generated, mean in _ACCEPTANCE.findall(log)
    ]


def draft_statistics(log: str) -> dict[str, DraftStatistics]:
    """The last statistics line of each kind of speculation (totals since the start), by the engine's name of it."""
    return {kind: DraftStatistics(kind, *map(int, numbers)) for kind, *numbers in _STATISTICS.findall(log)}


def vocabulary_message(log: str) -> str:
    """`incompatible`, `translated` or "": what the log says about the two vocabularies.

    Builds up to 9093 say "not compatible - tokens will be translated" and go on drafting through text; later ones
    refuse to speculate and serve without it.
    """
    if _TRANSLATED.search(log):
        return "translated"
    return "incompatible" if _VOCABULARY.search(log) else ""


def engagement(launch: Launch, settings: Mapping[str, Any], completions: Sequence[Completion], log: str) -> Engagement:
    """What speculation did in a run, from strongest to weakest evidence.

    1. Tokens were drafted: with drafts. 2. The arm asks for none: off. 3. The slot says whether it can speculate (all
    builds tried have that flag). 4. Without the flag: a refusal in the log means not engaged, a statistics line
    engaged; an n-gram type counts as attached, a drafter's as not.
    """
    if any(completion.draft_n for completion in completions):
        return Engagement.WITH_DRAFTS
    if launch.speculation is SpeculationType.NONE:
        return Engagement.OFF
    flag = settings.get("speculative")
    if isinstance(flag, bool):
        return Engagement.WITHOUT_DRAFTS if flag else Engagement.NOT_ENGAGED
    if vocabulary_message(log) == "incompatible":
        return Engagement.NOT_ENGAGED
    if _STATISTICS.search(log):
        return Engagement.WITHOUT_DRAFTS
    return Engagement.NOT_ENGAGED if launch.speculation.needs_drafter else Engagement.WITHOUT_DRAFTS


def not_engaged_reason(log: str) -> str:
    """Why a drafter did not engage, in the log's own words; empty where it does not say."""
    for line in log.splitlines():
        if _VOCABULARY.search(line) and not _TRANSLATED.search(line):
            return tidy_line(line)
    return ""


_BUFFER = re.compile(r"(\S+?)(?:_Mapped|_REPACK|_Host)? +(?:model|KV|compute|RS) buffer size = *([\d.]+) MiB")
_OFFLOADED = re.compile(r"offloaded (\d+)/(\d+) layers to GPU")


def backend_used(log: str) -> dict[str, Any]:
    """Where the server really computes: `buffers_mib` by device from the log's buffer lines, `offloaded` layers.

    Empty where the build's verbosity prints none.
    """
    buffers: dict[str, float] = {}
    for device, size in _BUFFER.findall(log):
        buffers[device] = round(buffers.get(device, 0.0) + float(size), 2)
    layers = _OFFLOADED.findall(log)
    found: dict[str, Any] = {"buffers_mib": buffers} if buffers else {}
    if layers:
        found["offloaded"] = [f"{done}/{total}" for done, total in layers]
    return found


# --- the text itself -------------------------------------------------------------------------------------------------


def first_difference(a: Sequence[int], b: Sequence[int]) -> int | None:
    """Index of the first token in which two greedy outputs differ; None where they are equal.

    Where one is the beginning of the other, the length of the shorter.
    """
    for index, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return index
    return None if len(a) == len(b) else min(len(a), len(b))


def degenerate(tokens: Sequence[int]) -> bool:
    """Whether an output has fallen into a loop, so that speed or acceptance measured on it say nothing.

    Rule: of the last tokens, a run of at least 24 and at least three quarters of the output repeats with one period of
    1 to 8 tokens. A list being copied does not count: its period is longer. Shorter outputs are never degenerate.
    """
    needed = max(DEGENERATE_MIN_TOKENS, math.ceil(DEGENERATE_SHARE * len(tokens)))
    for period in range(1, DEGENERATE_MAX_PERIOD + 1):
        run = 0
        for index in range(len(tokens) - 1, period - 1, -1):
            if tokens[index] != tokens[index - period]:
                break
            run += 1
        if run and run + period >= needed:
            return True
    return False


def acceptance(drafted: int | None, accepted: int | None) -> float | None:
    """Accepted / drafted tokens (0..1), None where nothing was drafted."""
    return accepted / drafted if drafted and accepted is not None else None


def tokens_per_round(rounds: float, accepted: int) -> float:
    """Mean tokens that one verification step yields: the accepted ones and the target's own, 1 + accepted / rounds.

    Raises ValueError for no rounds.
    """
    if rounds <= 0:
        raise ValueError("no rounds, no tokens per round")
    return 1.0 + accepted / rounds
