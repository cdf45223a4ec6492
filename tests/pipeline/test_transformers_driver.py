"""The driver `transformers` with the real thing: the committed checkpoints on a CPU, and tiny ordinary models."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import engine_bench as bench
from findings import plan
from findings.checkpoint import document
from findings.config import Backend, Driver, Engine, Requirements, Speculation, SpeculationType
from findings.engine import client
from findings.engine.arms import Launch, Unsupported, translate
from findings.engine.client import Completion, Endpoint
from findings.engine.drivers import LOG_NAME, start_engine
from findings.engine.failure import EngineFailure
from findings.engine.features import Features, features_from_detail
from findings.engine.probe import probe
from findings.engine.reported import backend_of_buffers, reported_settings
from findings.groundwork import lay_groundwork
from findings.host import host_facts, host_record
from findings.inference import Verdict
from findings.job import Job
from findings.measure import load_once, measure_attempt
from findings.programs import engine_program, program_sha256
from findings.records import Engagement, Outcome, write_record
from findings.verdicts import HostRecords, judge_speed

pytestmark = pytest.mark.engine

ENGINE = "transformers-5.24.0-cpu"
CHECKPOINTS = bench.ROOT / "config" / "checkpoints"
TARGET = CHECKPOINTS / "tiny-gemma4-target"
DRAFTERS = ("tiny-gemma4-assistant-dense", "tiny-gemma4-assistant-centroids")
NONE = Speculation(SpeculationType.NONE)
MTP = Speculation(SpeculationType.DRAFT_MTP, drafter="drafter", n_max=3, n_min=0, p_min=0.0)
ASSISTANT = Speculation(SpeculationType.DRAFT_SIMPLE, drafter="drafter", n_max=3, n_min=0, p_min=0.0)
LOOKUP = Speculation(SpeculationType.NGRAM_SIMPLE, ngram_n=4, ngram_m=8, ngram_min_hits=1)
PROMPT = document((1, 2, 1, 1), 1) + "Clara goes to the market"
OTHER = document((3, 1, 4, 2), 1)
TOKENS = 48
START_S = 240

# Two ordinary models, made from a configuration alone: the assistant is the target with one layer left out, so that it
# is right often and not always, which no training would be needed to see.
MAKE_PAIR = """
import sys
from pathlib import Path
import torch
from transformers import LlamaConfig, LlamaForCausalLM
import shutil
out, tokenizer = Path(sys.argv[1]), Path(sys.argv[2])
torch.manual_seed(7)
shape = dict(vocab_size=448, hidden_size=64, intermediate_size=128, num_attention_heads=2, num_key_value_heads=1,
             max_position_embeddings=512, bos_token_id=2, eos_token_id=1, pad_token_id=0, tie_word_embeddings=False)
target = LlamaForCausalLM(LlamaConfig(num_hidden_layers=3, **shape))
for parameter in target.model.layers[2].parameters():
    parameter.data *= 0.5
small = LlamaForCausalLM(LlamaConfig(num_hidden_layers=2, **shape))
small.load_state_dict({k: v for k, v in target.state_dict().items() if ".layers.2." not in k})
other = LlamaForCausalLM(LlamaConfig(num_hidden_layers=1, **{**shape, "vocab_size": 400}))
for name, model in (("target", target), ("assistant", small), ("other", other)):
    model.save_pretrained(out / name)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / file, out / name / file)
pickled = out / "pickled"
shutil.copytree(out / "target", pickled)
torch.save(target.state_dict(), pickled / "pytorch_model.bin")
(pickled / "model.safetensors").unlink()
"""


def launch(speculation: Speculation, target: Path = TARGET, drafter: Path | None = None) -> Launch:
    server = replace(bench.settings(target, drafter), ctx=512)
    made = translate(speculation, bench.features(ENGINE), server)
    assert isinstance(made, Launch), made
    return made


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with target, assistant, other (another size of vocabulary) and pickled (the target as a pickle)."""
    folder = tmp_path_factory.mktemp("pair")
    subprocess.run([bench.program(ENGINE), "-I", "-c", MAKE_PAIR, str(folder), str(TARGET)], check=True)
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[Completion]:
    """What the committed target says alone, in one process: PROMPT, OTHER."""
    with start_engine(
        bench.engine(ENGINE), bench.program(ENGINE), launch(NONE), tmp_path_factory.mktemp("plain"), START_S
    ) as running:
        return [running.complete(prompt, TOKENS, 300) for prompt in (PROMPT, OTHER)]


def test_a_baseline_answers_as_the_other_drivers_do_and_is_alone_on_this_machine(
    plain: list[Completion], tmp_path: Path
) -> None:
    wanted = launch(NONE)
    with start_engine(bench.engine(ENGINE), bench.program(ENGINE), wanted, tmp_path, START_S) as running:
        again = running.complete(PROMPT, TOKENS, 300)
        settings = client.server_settings(running.endpoint)
        listening = [c for c in psutil.Process(running.pid).net_connections("tcp") if c.status == psutil.CONN_LISTEN]
        with pytest.raises(EngineFailure) as wrong_key:
            client.complete(Endpoint(running.base_url, "a wrong key"), PROMPT, 1, 60)
        with pytest.raises(EngineFailure) as too_long:
            running.complete(PROMPT, 500, 60)
        tokens = client.tokenize(running.endpoint, PROMPT)
        counters = client.draft_counters(running.endpoint)
        pid, key, log = running.pid, running.endpoint.key, running.log_text()
        command = " ".join(psutil.Process(pid).cmdline())
    assert (again.predicted_n, len(again.tokens), again.draft_n) == (TOKENS, TOKENS, None)
    assert again.tokens == plain[0].tokens
    assert again.prompt_n == len(tokens)
    assert tokens[0] == 2  # <bos>, which the checkpoint's tokenizer leaves out and the family wants
    assert min(again.prompt_ms, again.predicted_ms) > 0
    assert {c.laddr.ip for c in listening} == {"127.0.0.1"}
    assert wrong_key.value.outcome is Outcome.REFUSED
    assert "exceed the context of 512" in too_long.value.reason
    assert key
    assert key not in command + log
    assert not any(key in file.read_text(errors="replace") for file in tmp_path.iterdir())
    assert (settings["n_ctx"], settings["slots"], settings["model_file"]) == (512, 1, TARGET.name)
    assert (settings["ftype"], settings["n_params"], settings["n_vocab"]) == ("float32", 264192, 448)
    assert settings["build_info"] == "transformers 5.24.0, torch " + str(bench.features(ENGINE).version.split()[-1])
    assert settings["speculative"] is False
    assert client.engagement(wanted, settings, [again], log) is Engagement.OFF
    assert reported_settings(log)["n_threads"] == 2
    assert backend_of_buffers(client.backend_used(log)["buffers_mib"]) == "cpu"
    assert counters is not None
    assert counters.drafted == 0
    assert not psutil.pid_exists(pid)


def test_the_trained_text_goes_on_as_it_was_trained(plain: list[Completion]) -> None:
    assert "Then Clara leaves the market and takes the" in plain[0].text
    assert "David goes to the station" in plain[0].text


@pytest.mark.parametrize(
    ("speculation", "drafter"),
    [(MTP, DRAFTERS[0]), (MTP, DRAFTERS[1]), (LOOKUP, None)],
    ids=("dense", "centroids", "n"),
)
def test_speculation_says_the_same_and_counts_what_it_drafts(
    plain: list[Completion], speculation: Speculation, drafter: str | None, tmp_path: Path
) -> None:
    wanted = launch(speculation, drafter=CHECKPOINTS / drafter if drafter else None)
    with start_engine(bench.engine(ENGINE), bench.program(ENGINE), wanted, tmp_path, START_S) as running:
        answers = [running.complete(prompt, TOKENS, 300) for prompt in (PROMPT, OTHER)]
        settings = client.server_settings(running.endpoint)
        counters = client.draft_counters(running.endpoint)
        log = running.log_text()
    assert [answer.tokens for answer in answers] == [answer.tokens for answer in plain]
    assert client.engagement(wanted, settings, answers, log) is Engagement.WITH_DRAFTS
    drafted = [answer.draft_n or 0 for answer in answers]
    accepted = [answer.draft_n_accepted or 0 for answer in answers]
    assert min(accepted) > 0
    assert all(few <= many for few, many in zip(accepted, drafted, strict=True))
    # Every token but the first (the prompt's own pass) was accepted, or came with a verification step.
    assert counters is not None
    assert (counters.drafted, counters.accepted) == (sum(drafted), sum(accepted))
    assert sum(counters.accepted_at) == sum(accepted)
    assert sum(accepted) + counters.rounds <= 2 * (TOKENS - 1)
    lines = client.draft_lines(log)
    assert [(line.generated, line.accepted) for line in lines] == list(zip(drafted, accepted, strict=True))
    if drafter:
        assert sum(accepted) > sum(drafted) // 2  # trained weights; random ones get next to nothing
        assert max(drafted) <= 3 * (TOKENS - 1)


def test_an_ordinary_assistant_drafts_and_changes_nothing(pair: Path, tmp_path: Path) -> None:
    answers: dict[str, Completion] = {}
    for name, speculation, drafter in (("plain", NONE, None), ("assisted", ASSISTANT, pair / "assistant")):
        wanted = launch(speculation, pair / "target", drafter)
        with start_engine(bench.engine(ENGINE), bench.program(ENGINE), wanted, tmp_path / name, START_S) as running:
            answers[name] = running.complete(PROMPT, TOKENS, 300)
    assert answers["assisted"].tokens == answers["plain"].tokens
    assert answers["plain"].draft_n is None
    assert answers["assisted"].draft_n is not None
    assert 0 < (answers["assisted"].draft_n_accepted or 0) < answers["assisted"].draft_n
    assert 1 not in answers["plain"].tokens  # the end of the text is never taken


@pytest.mark.parametrize(
    ("target", "drafter", "speculation", "words"),
    [
        ("pickled", "", NONE, "no safetensors in pickled; pytorch_model.bin may hold code (a pickle) and is not read"),
        ("nowhere", "", NONE, "nowhere: No such file or directory"),
        ("file", "", NONE, "is a file; transformers reads a checkpoint"),
        ("unknown", "", NONE, "unknown model architecture: 'MadeUpForCausalLM'"),
        ("incomplete", "", NONE, "missing tensor 'lm_head.weight' (1 missing)"),
        ("truncated", "", NONE, "incomplete metadata"),
        ("target", "other", ASSISTANT, "vocabs are not compatible: 448 tokens in the target, 400 in the assistant"),
        ("target", "assistant", MTP, "LlamaForCausalLM is not compatible with SinglePosition"),
        ("target", "reworded", ASSISTANT, "vocabs are not compatible: the same number of tokens, but other texts"),
        ("target", "mtp", MTP, "made for a width of 128, the target has 64"),
    ],
)
def test_what_cannot_be_loaded_is_refused_with_words(
    pair: Path, target: str, drafter: str, speculation: Speculation, words: str, tmp_path: Path
) -> None:
    folder = pair / target
    if target == "file":
        folder = tmp_path / "model.gguf"
        folder.write_bytes(b"GGUF")
    elif target in ("unknown", "incomplete", "truncated"):
        folder = tmp_path / target
        folder.mkdir()
        for file in (pair / "target").iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        spoil(folder, target)
    assistant = pair / drafter if drafter else None
    if drafter in ("reworded", "mtp"):
        assistant = tmp_path / drafter
        assistant.mkdir()
        for file in (pair / "assistant" if drafter == "reworded" else CHECKPOINTS / DRAFTERS[0]).iterdir():
            (assistant / file.name).write_bytes(file.read_bytes())
        spoil(assistant, drafter)
    with pytest.raises(EngineFailure) as caught:
        start_engine(
            bench.engine(ENGINE),
            bench.program(ENGINE),
            launch(speculation, folder, assistant),
            tmp_path / "work",
            START_S,
        )
    assert caught.value.outcome is Outcome.REFUSED
    assert words in caught.value.reason
    assert str(tmp_path) not in caught.value.reason
    assert words in (tmp_path / "work" / LOG_NAME).read_text()


def spoil(folder: Path, how: str) -> None:
    weights = folder / "model.safetensors"
    if how == "unknown":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"architectures": ["MadeUpForCausalLM"]}))
    elif how == "mtp":
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"backbone_hidden_size": 128}))
    elif how == "reworded":
        tokens = json.loads((folder / "tokenizer.json").read_text())
        word = max(tokens["model"]["vocab"], key=tokens["model"]["vocab"].get)
        tokens["model"]["vocab"][word + "x"] = tokens["model"]["vocab"].pop(word)
        (folder / "tokenizer.json").write_text(json.dumps(tokens))
    elif how == "truncated":
        weights.write_bytes(weights.read_bytes()[:100_000])
    else:
        # The head is renamed in the file's header: same length, so that all else stays where it is.
        weights.write_bytes(weights.read_bytes().replace(b'"lm_head.weight"', b'"lm_tail.weight"', 1))


def test_an_arm_of_attempt_5_runs_from_records_as_the_workflow_makes_them(tmp_path: Path) -> None:
    """The study's own models and arm; only the engine is that for the CPU, and no GPU is asked for."""
    bench.program(ENGINE)
    whole = bench.configuration()
    chosen = replace(whole.study.attempts["attempt_5"], measure=(ENGINE,), requires=Requirements())
    study = replace(whole.study, attempts={**whole.study.attempts, "attempt_5": chosen})
    configuration = replace(whole, study=study)
    records = tmp_path / "here"
    models = plan.models_of_arms(configuration, "attempt_5", configuration.arms_of("attempt_5"))
    missing = lay_groundwork(configuration, records, bench.cache(), models, [ENGINE], lambda text: None)
    assert missing == []
    assert plan.precheck_trials(configuration, "attempt_5") == []  # the pre-check reads GGUF files alone
    record = load_once(Job(configuration, records, bench.cache(), records), "attempt_5", ENGINE, "assistant")
    assert record.outcome is Outcome.OK, record.reason
    assert record.detail["engagement"] == Engagement.WITH_DRAFTS.value
    assert 0 < record.detail["accepted"] <= record.detail["drafted"]
    assert record.detail["settings"]["backend_used"] == "cpu"
    assert record.detail["settings"]["launch"]["settings"]["dtype"] == "float32"
    assert len(record.detail["engine_sha256"]) == len(record.detail["drafter_sha256"]) == 64


def test_without_a_gpu_the_studys_attempt_5_is_not_run_and_says_why(tmp_path: Path) -> None:
    configuration = bench.configuration()
    records = tmp_path / "here"
    facts = replace(host_facts("here"), gpus=())
    write_record(records / "host.json", host_record(facts))
    job = Job(configuration, records, bench.cache(), records)
    record = measure_attempt(job, "attempt_5", "transformers-cuda", tmp_path / "session", lambda text: None)
    assert record.outcome is Outcome.NOT_RUN
    assert "needs a GPU" in record.reason
    host = HostRecords("here", {"measure/attempt_5/transformers-cuda/session.json": record})
    (judged,) = judge_speed(configuration, configuration.findings["attempt_5_assistant_pays"], host)
    assert judged.verdict is Verdict.NOT_TESTABLE
    assert "needs a GPU" in judged.reason
    assert "CUDA build of PyTorch" in judged.would_make_testable
    assert judged.build is None


def test_code_in_a_checkpoint_does_not_run(pair: Path, tmp_path: Path) -> None:
    folder, trace = tmp_path / "coded", tmp_path / "ran"
    folder.mkdir()
    for file in (pair / "target").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    code = f"from pathlib import Path\nPath({str(trace)!r}).touch()\n"
    (folder / "modeling_mine.py").write_text(code)
    (folder / "custom_generate").mkdir()
    (folder / "custom_generate" / "generate.py").write_text(code)
    config = json.loads((folder / "config.json").read_text())
    config |= {
        "model_type": "mine",
        "auto_map": {"AutoConfig": "modeling_mine.C", "AutoModelForCausalLM": "modeling_mine.M"},
    }
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineFailure) as caught:
        start_engine(bench.engine(ENGINE), bench.program(ENGINE), launch(NONE, folder), tmp_path / "work", START_S)
    assert caught.value.outcome is Outcome.REFUSED
    assert not trace.exists()


def test_memory_that_torch_does_not_get_is_out_of_memory(pair: Path, tmp_path: Path) -> None:
    """A model whose weights are 6 GiB of nothing (a sparse file), with 5 GiB of address space."""
    folder = tmp_path / "large"
    folder.mkdir()
    for file in (pair / "target").iterdir():
        if file.suffix == ".json":
            (folder / file.name).write_bytes(file.read_bytes())
    header = (pair / "target" / "model.safetensors").read_bytes()
    size = int.from_bytes(header[:8], "little")
    tensors = json.loads(header[8 : 8 + size])
    wide = 3_500_000
    config = json.loads((folder / "config.json").read_text()) | {"vocab_size": wide}
    (folder / "config.json").write_text(json.dumps(config))
    offset = 0
    for name, entry in tensors.items():
        if name == "__metadata__":
            continue
        if name in ("model.embed_tokens.weight", "lm_head.weight"):
            entry["shape"][0] = wide
        length = 4 * entry["shape"][0] * (entry["shape"][1] if len(entry["shape"]) > 1 else 1)
        entry["data_offsets"] = [offset, offset + length]
        offset += length
    text = json.dumps(tensors).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        stream.truncate(8 + len(text) + offset)
    with pytest.raises(EngineFailure) as caught:
        start_engine(
            bench.engine(ENGINE),
            bench.program(ENGINE),
            launch(NONE, folder),
            tmp_path / "work",
            START_S,
            address_space_bytes=3 * 2**30,
        )
    assert caught.value.outcome is Outcome.OUT_OF_MEMORY, caught.value.log
    assert "memory" in caught.value.reason.lower()


PARENT = """
import sys, time
from pathlib import Path
sys.path[:0] = sys.argv[1:3]
import engine_bench as bench
import test_transformers_driver as module
running = module.start_engine(
    bench.engine(module.ENGINE), bench.program(module.ENGINE), module.launch(module.NONE), Path(sys.argv[3]), 240
)
print(running.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the parent-death signal is Linux's")
def test_it_dies_with_its_parent(tmp_path: Path) -> None:
    bench.program(ENGINE)
    here = Path(__file__).parent
    paths = [f"{bench.ROOT / 'scripts'}{os.pathsep}{here.parent}", str(here)]
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, *paths, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{paths[0]}{os.pathsep}{here}"},
    )
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    child = psutil.Process(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    child.wait(timeout=20)
    assert not child.is_running()


def test_a_probe_names_versions_devices_and_what_it_offers() -> None:
    record = probe(bench.engine(ENGINE), bench.program(ENGINE), host="here")
    assert record.outcome is Outcome.OK
    found = features_from_detail(json.loads(json.dumps(record.detail)))
    assert re.fullmatch(r"transformers 5\.24\.0, torch 2\.13\.0(\+\w+)?", found.version)
    assert set(found.spec_types) == {"none", "draft_simple", "draft_mtp", "ngram_simple"}
    assert found.driver is Driver.TRANSFORMERS
    assert record.argv[1] == "probe"
    assert len(program_sha256(bench.engine(ENGINE), bench.program(ENGINE))) == 64


def test_an_environment_without_torch_is_told_apart(tmp_path: Path) -> None:
    record = probe(bench.engine(ENGINE), Path(sys.executable))
    assert record.outcome is Outcome.UNAVAILABLE
    assert "no torch in its environment" in record.reason
    own = Engine("own", 0, "", Driver.TRANSFORMERS, Backend.CUDA, binary=str(tmp_path / "python"))
    with pytest.raises(EngineFailure) as caught:
        engine_program(own, tmp_path, tmp_path)
    assert caught.value.outcome is Outcome.UNAVAILABLE
    assert "name a Python with torch under `binaries`" in caught.value.reason


def test_an_interpreter_of_a_virtual_environment_stays_that(tmp_path: Path) -> None:
    link = tmp_path / "venv" / "bin" / "python"
    link.parent.mkdir(parents=True)
    link.symlink_to(sys.executable)
    own = Engine("own", 0, "", Driver.TRANSFORMERS, Backend.CUDA, binary=str(link))
    assert engine_program(own, tmp_path, tmp_path) == link


def test_a_gpu_arm_on_a_build_for_the_cpu_is_unsupported() -> None:
    features: Features = bench.features(ENGINE)
    if features.devices:
        pytest.skip("SKIPPED, NOT TESTED: this torch sees a GPU")
    server = replace(bench.settings(TARGET), backend=Backend.CUDA, gpu_layers=999)
    made = translate(NONE, features, server)
    assert isinstance(made, Unsupported)
    assert "sees no CUDA device" in made.reason
