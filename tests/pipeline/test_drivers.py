"""One suite over both drivers, with real engines and real models; then what older builds do with the same arms."""

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from gguf import GGUFWriter

import engine_bench as bench
from findings.config import Driver, Engine, Speculation, SpeculationType
from findings.engine import client
from findings.engine.arms import Launch, Unsupported, translate
from findings.engine.client import Completion, Endpoint, complete
from findings.engine.drivers import RunningEngine, locate_binary, start_engine
from findings.engine.failure import EngineFailure
from findings.engine.features import features_from_detail
from findings.engine.limited_log import LOG_NAME
from findings.engine.probe import probe, probe_features
from findings.records import Engagement, Outcome

pytestmark = pytest.mark.engine

BOTH = (bench.BINDING, bench.SERVER)
NONE = Speculation(SpeculationType.NONE)
SELF = Speculation(SpeculationType.DRAFT_SIMPLE, drafter="target", n_max=3, n_min=0, p_min=0.0)
OTHER = Speculation(SpeculationType.DRAFT_SIMPLE, drafter="drafter", n_max=16, n_min=0, p_min=0.75)
LOOKUP = Speculation(SpeculationType.NGRAM_SIMPLE, ngram_n=12, ngram_m=48, ngram_min_hits=1)


@dataclass(frozen=True)
class Run:
    completions: list[Completion]
    settings: dict[str, Any]
    engagement: Engagement
    log: str


@contextmanager
def started(engine_id: str, launch: Launch, folder: Path) -> Iterator[RunningEngine]:
    with start_engine(bench.engine(engine_id), bench.program(engine_id), launch, folder, 120) as running:
        yield running


def run(engine_id: str, speculation: Speculation, folder: Path, prompts: Sequence[str], tokens: int) -> Run:
    drafters = {"target": bench.TARGET, "drafter": bench.OTHER_VOCABULARY}
    drafter = bench.model(drafters[speculation.drafter]) if speculation.drafter else None
    launch = bench.launch(engine_id, speculation, bench.settings(bench.model(bench.TARGET), drafter))
    with started(engine_id, launch, folder) as running:
        completions = [running.complete(prompt, tokens, 300) for prompt in prompts]
        settings = client.server_settings(running.endpoint)
        log = running.log_text()
    return Run(completions, settings, client.engagement(launch, settings, completions, log), log)


@pytest.mark.parametrize("engine_id", BOTH)
def test_a_baseline_answers_what_was_asked_and_is_alone_on_this_machine(engine_id: str, tmp_path: Path) -> None:
    launch = bench.launch(engine_id, NONE, bench.settings(bench.model(bench.TARGET)))
    with started(engine_id, launch, tmp_path) as running:
        first = running.complete(bench.PROSE, 12, 300)
        again = running.complete(bench.PROSE, 12, 300)
        settings = client.server_settings(running.endpoint)
        listening = [c for c in psutil.Process(running.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        with pytest.raises(EngineFailure) as caught:
            complete(Endpoint(running.base_url, "a wrong key"), bench.PROSE, 1, 60)
        pid = running.pid
        command = " ".join(psutil.Process(pid).cmdline())
        key = running.endpoint.key
        log = running.log_text()
    assert (first.predicted_n, len(first.tokens), first.draft_n) == (12, 12, None)
    assert first.predicted_ms > 0
    assert client.first_difference(first.tokens, again.tokens) is None
    assert again.prompt_n == first.prompt_n  # nothing came from a cache
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    assert caught.value.outcome is Outcome.REFUSED
    assert key
    assert key not in command
    assert key not in log
    assert not any(key in file.read_text(errors="replace") for file in tmp_path.iterdir())
    assert (settings["n_ctx"], settings["slots"], settings["vocab_type"]) == (1024, 1, "SPM")
    assert settings["model_file"] == bench.model(bench.TARGET).name
    assert settings["speculative"] is False
    assert client.engagement(launch, settings, [first], log) is Engagement.OFF
    assert "CPU" in client.backend_used(log)["buffers_mib"]
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("engine_id", BOTH)
def test_a_drafter_with_another_vocabulary_does_not_engage_and_the_log_says_why(engine_id: str, tmp_path: Path) -> None:
    found = run(engine_id, OTHER, tmp_path, [bench.PROSE], 12)
    assert found.engagement is Engagement.NOT_ENGAGED
    assert found.completions[0].draft_n is None
    assert found.settings["speculative"] is False
    assert client.vocabulary_message(found.log) == "incompatible"
    assert "vocab" in client.not_engaged_reason(found.log)


@pytest.mark.parametrize("engine_id", BOTH)
def test_lookup_drafts_on_a_list_to_copy_and_the_log_agrees_with_the_answer(engine_id: str, tmp_path: Path) -> None:
    found = run(engine_id, LOOKUP, tmp_path, [bench.LIST], 48)
    answer = found.completions[0]
    assert found.engagement is Engagement.WITH_DRAFTS
    assert answer.draft_n is not None
    assert answer.draft_n_accepted is not None
    assert 0 < answer.draft_n_accepted <= answer.draft_n
    (line,) = client.draft_lines(found.log)
    assert (line.generated, line.accepted) == (answer.draft_n, answer.draft_n_accepted)


@pytest.mark.parametrize("engine_id", BOTH)
def test_lookup_that_finds_nothing_is_attached_without_drafts(engine_id: str, tmp_path: Path) -> None:
    found = run(engine_id, LOOKUP, tmp_path, [bench.PROSE], 4)
    assert found.completions[0].draft_n is None
    assert found.engagement is Engagement.WITHOUT_DRAFTS


@pytest.mark.parametrize("engine_id", BOTH)
def test_a_model_that_drafts_for_itself_is_mostly_accepted(engine_id: str, tmp_path: Path) -> None:
    found = run(engine_id, SELF, tmp_path, [bench.PROSE], 24)
    answer = found.completions[0]
    assert found.engagement is Engagement.WITH_DRAFTS
    share = client.acceptance(answer.draft_n, answer.draft_n_accepted)
    assert share is not None
    assert share > 0.8


def unknown_architecture(path: Path) -> Path:
    writer = GGUFWriter(path, "made-up-architecture")
    writer.add_uint32("made-up-architecture.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.parametrize("engine_id", BOTH)
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("architecture", "unknown model architecture: 'made-up-architecture'"),
        ("truncated", "not within the file bounds"),
        ("garbage", "invalid magic"),
        ("missing", "No such file"),
    ],
)
def test_a_file_that_is_no_model_is_refused_in_the_engines_words(
    engine_id: str, kind: str, words: str, tmp_path: Path
) -> None:
    file = tmp_path / f"{kind}.gguf"
    if kind == "architecture":
        unknown_architecture(file)
    elif kind == "truncated":
        with bench.model(bench.TARGET).open("rb") as whole:
            file.write_bytes(whole.read(30_000_000))
    elif kind == "garbage":
        file.write_bytes(b"garbage" * 100)
    with pytest.raises(EngineFailure) as caught:
        start_engine(
            bench.engine(engine_id),
            bench.program(engine_id),
            bench.launch(engine_id, NONE, bench.settings(file)),
            tmp_path / "work",
            120,
        )
    assert caught.value.outcome is Outcome.REFUSED
    assert words in caught.value.reason
    assert str(tmp_path) not in caught.value.reason
    assert caught.value.exit_code == 1
    assert words in (tmp_path / "work" / LOG_NAME).read_text()


@pytest.mark.parametrize("engine_id", BOTH)
def test_a_drafter_of_an_unknown_architecture_is_refused(engine_id: str, tmp_path: Path) -> None:
    drafter = unknown_architecture(tmp_path / "drafter.gguf")
    launch = bench.launch(engine_id, SELF, bench.settings(bench.model(bench.TARGET), drafter))
    with pytest.raises(EngineFailure) as caught:
        start_engine(bench.engine(engine_id), bench.program(engine_id), launch, tmp_path / "work", 120)
    assert caught.value.outcome is Outcome.REFUSED
    assert "unknown model architecture: 'made-up-architecture'" in caught.value.reason


@pytest.mark.parametrize(
    ("engine_id", "extra"), [(bench.BINDING, ("n_ubatch=64",)), (bench.SERVER, ("--flash-attn", "off"))]
)
def test_a_users_own_flags_reach_the_engine(engine_id: str, extra: tuple[str, ...], tmp_path: Path) -> None:
    launch = bench.launch(engine_id, NONE, bench.settings(bench.model(bench.TARGET), extra=extra))
    with started(engine_id, launch, tmp_path) as running:
        log = running.log_text()
    if engine_id == bench.BINDING:
        assert re.search(r"n_ubatch += 64\b", log)
    else:
        assert re.search(r"flash_attn += disabled", log)


@pytest.mark.parametrize("engine_id", BOTH)
def test_a_probe_names_the_build_and_what_it_offers(engine_id: str) -> None:
    record = probe(bench.engine(engine_id), bench.program(engine_id), host="here")
    assert record.outcome is Outcome.OK
    assert record.reason == ""
    found = features_from_detail(json.loads(json.dumps(record.detail)))
    assert found.build == bench.engine(engine_id).build
    assert set(found.spec_types) == {kind.value for kind in SpeculationType}
    stored = "xllamacpp-b11549" if engine_id == bench.BINDING else "llama-server-b10068"
    kept = json.loads((bench.ROOT / "tests" / "data" / "probes" / f"{stored}.json").read_text())
    assert dict(found.options) == kept["options"]  # the unit tests' data are what this build really answers


def test_a_binary_that_is_not_there_or_not_an_engine_is_told_apart(tmp_path: Path) -> None:
    server = bench.engine(bench.SERVER)
    for engine in (
        Engine("none", 1, "", Driver.LLAMA_SERVER, server.backend, binary="no-such-llama-server"),
        Engine("folder", 1, "", Driver.LLAMA_SERVER, server.backend, binary=str(tmp_path)),
    ):
        with pytest.raises(EngineFailure) as caught:
            locate_binary(engine)
        assert caught.value.outcome is Outcome.UNAVAILABLE
    other = probe(Engine("true", 1, "", Driver.LLAMA_SERVER, server.backend), Path("/bin/true"))
    assert other.outcome is Outcome.REFUSED
    assert "does not answer as llama-server" in other.reason
    illegal = tmp_path / "needs-amx"
    illegal.write_text("#!/bin/sh\nkill -ILL $$\n")
    illegal.chmod(0o755)
    died = probe(Engine("amx", 1, "", Driver.LLAMA_SERVER, server.backend), illegal)
    assert died.outcome is Outcome.CRASHED
    assert "illegal instruction: this CPU lacks" in died.reason
    assert died.exit_code in (-4, 132)


def test_a_name_on_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = bench.program(bench.SERVER)
    monkeypatch.setenv("PATH", f"{binary.parent}{os.pathsep}{os.environ['PATH']}")
    engine = Engine("own", 0, "", Driver.LLAMA_SERVER, bench.engine(bench.SERVER).backend, binary="llama-server")
    assert locate_binary(engine) == binary.resolve()
    assert locate_binary(engine, configured=str(binary)) == binary.resolve()


# --- what other builds do with the same arms (records of 2026-12-02, re-tried here) ----------------------------------


@pytest.mark.parametrize("engine_id", ["llama.cpp-b8929", "llama.cpp-b9093"])
def test_spring_builds_translate_tokens_between_vocabularies_and_draft(engine_id: str, tmp_path: Path) -> None:
    found = run(engine_id, OTHER, tmp_path, [bench.PROSE, bench.LIST], 24)
    assert found.engagement is Engagement.WITH_DRAFTS
    assert client.vocabulary_message(found.log) == "translated"


def test_b9538_says_that_the_vocabularies_differ_and_does_not_engage(tmp_path: Path) -> None:
    found = run("llama.cpp-b9538", OTHER, tmp_path, [bench.PROSE], 12)
    assert found.engagement is Engagement.NOT_ENGAGED
    assert client.vocabulary_message(found.log) == "incompatible"


def test_b8929_keeps_the_length_of_an_ngram_draft(tmp_path: Path) -> None:
    found = run("llama.cpp-b8929", LOOKUP, tmp_path, [bench.LIST], 48)
    assert found.engagement is Engagement.WITH_DRAFTS
    statistics = client.draft_statistics(found.log)["ngram_simple"]
    assert (found.completions[0].draft_n or 0) > 16 * statistics.drafts_generated  # its own default would cut at 16


def test_b9093_has_no_mtp_and_says_so() -> None:
    features, _ = probe_features(bench.engine("llama.cpp-b9093"), bench.program("llama.cpp-b9093"))
    server = bench.settings(Path("m.gguf"), Path("d.gguf"))
    result = translate(Speculation(SpeculationType.DRAFT_MTP, drafter="d"), features, server)
    assert isinstance(result, Unsupported)
    assert "COMMON_SPECULATIVE_TYPE_DRAFT_MTP" in result.reason
