"""Arms in our words against transformers as it was really probed, on the CPU and with GPUs that nobody here has."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from findings.config import Backend, Driver, Speculation, SpeculationType
from findings.engine.arms import Launch, ServerSettings, Unsupported, translate
from findings.engine.failure import classify_exit
from findings.engine.features import Features, features_from_detail
from findings.engine.probe import transformers_features
from findings.records import Outcome

PROBE = Path(__file__).parents[1] / "data" / "probes" / "transformers-5.24.0.json"
SERVER = ServerSettings(model=Path("/models/target"), drafter=Path("/models/assistant"), ctx=512)
MTP = Speculation(SpeculationType.DRAFT_MTP, drafter="drafter", n_max=3, n_min=0, p_min=0.0)
ASSISTANT = Speculation(SpeculationType.DRAFT_SIMPLE, drafter="drafter", n_max=5, n_min=0, p_min=0.4)
LOOKUP = Speculation(SpeculationType.NGRAM_SIMPLE, ngram_n=12, ngram_m=16, ngram_min_hits=1)
# Architectures that wheels of these channels name.
CU126 = ["sm_50", "sm_60", "sm_61", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90"]
CU130 = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]


def probed() -> Features:
    return features_from_detail(json.loads(PROBE.read_text(encoding="utf-8")))


def on_gpu(flags: list[str], capability: tuple[int, int] = (6, 1), seen: bool = True) -> Features:
    detail = json.loads(PROBE.read_text(encoding="utf-8"))
    raw = {
        "version": "5.24.0",
        "generators": [name for name in detail["spec_types"].values() if name],
        "options": detail["options"],
    }
    devices = [{"name": "GPU of a test", "capability": list(capability)}] if seen else []
    torch: Mapping[str, Any] = {
        "version": "2.11.0+cu126",
        "cuda": "12.6",
        "git": "",
        "arch_list": flags if seen else [],
        "arch_flags": flags,
        "devices": devices,
    }
    return transformers_features(raw, torch)


def launched(speculation: Speculation, features: Features, server: ServerSettings = SERVER) -> Launch:
    made = translate(speculation, features, server)
    assert isinstance(made, Launch), made
    return made


def refused(speculation: Speculation, features: Features, server: ServerSettings = SERVER) -> str:
    made = translate(speculation, features, server)
    assert isinstance(made, Unsupported), made
    return made.reason


def test_every_value_of_an_arm_becomes_a_setting_and_is_written_out() -> None:
    plain = launched(Speculation(SpeculationType.NONE), probed()).settings
    assert plain == {
        "model": "/models/target",
        "device": "cpu",
        "dtype": "float32",
        "threads": 2,
        "ctx": 512,
        "attn_implementation": "sdpa",
        "generator": "",
    }
    mtp = launched(MTP, probed())
    assert mtp.settings == {
        **plain,
        "generator": "SinglePositionMultiTokenCandidateGenerator",
        "num_assistant_tokens": 3,
        "assistant": "/models/assistant",
        "assistant_device": "cpu",
    }
    assert mtp.words["n_max"] == "num_assistant_tokens"
    assistant = launched(ASSISTANT, probed()).settings
    assert assistant["generator"] == "AssistedCandidateGenerator"
    assert (assistant["num_assistant_tokens"], assistant["assistant_confidence_threshold"]) == (5, 0.4)
    lookup = launched(LOOKUP, probed()).settings
    assert lookup["generator"] == "PromptLookupCandidateGenerator"
    assert (lookup["max_matching_ngram_size"], lookup["prompt_lookup_num_tokens"]) == (12, 16)
    assert "assistant" not in lookup


def test_a_launch_is_described_without_folders() -> None:
    described = launched(MTP, probed()).described()
    assert described["driver"] == "transformers"
    assert (described["settings"]["model"], described["settings"]["assistant"]) == ("target", "assistant")


@pytest.mark.parametrize(
    ("speculation", "words"),
    [
        (replace(MTP, p_min=0.75), "has no setting for p_min, here 0.75"),
        (replace(MTP, n_min=2), "has no setting for n_min, here 2"),
        (replace(LOOKUP, ngram_min_hits=3), "has no setting for ngram_min_hits, here 3"),
        (Speculation(SpeculationType.NGRAM_MOD), "has no counterpart of ngram_mod; it offers Assisted"),
        (Speculation(SpeculationType.NGRAM_CACHE), "has no counterpart of ngram_cache"),
    ],
)
def test_what_transformers_cannot_do_is_unsupported_with_the_reason(speculation: Speculation, words: str) -> None:
    reason = refused(speculation, probed())
    assert words in reason
    assert "transformers 5.24.0" in reason


def test_a_version_without_the_generator_is_unsupported() -> None:
    older = replace(probed(), spec_types={"none": "", "draft_simple": "AssistedCandidateGenerator"})
    assert "has no SinglePositionMultiTokenCandidateGenerator; it offers AssistedCandidateGenerator" in refused(
        MTP, older
    )
    assert "has no field of its settings num_assistant_tokens" in refused(MTP, replace(probed(), options={}))


GPU = replace(SERVER, backend=Backend.CUDA, gpu_layers=999)


def test_a_gpu_that_torch_is_compiled_for_computes_with_the_weights_as_stored() -> None:
    settings = launched(MTP, on_gpu(CU126), GPU).settings
    assert (settings["device"], settings["dtype"], settings["assistant_device"]) == ("cuda:0", "stored", "cuda:0")
    apart = launched(replace(MTP, gpu_layers_draft=0), on_gpu(CU126), GPU).settings
    assert (apart["device"], apart["assistant_device"]) == ("cuda:0", "cpu")


def test_a_gpu_that_torch_cannot_use_is_unsupported_and_says_why() -> None:
    dropped = refused(MTP, on_gpu(CU130), GPU)
    assert "is not compiled for GPU of a test (compute capability 6.1): the oldest architecture is 7.5" in dropped
    assert "sees no CUDA device" in refused(MTP, on_gpu(CU126, seen=False), GPU)
    assert "sees no CUDA device" in refused(MTP, probed(), GPU)
    assert "not 20 layers" in refused(MTP, on_gpu(CU126), replace(GPU, gpu_layers=20))
    assert "has no vulkan backend" in refused(MTP, on_gpu(CU126), replace(GPU, backend=Backend.VULKAN))
    assert isinstance(translate(MTP, on_gpu(CU130, (7, 5)), GPU), Launch)


def test_a_user_sets_precision_and_attention_and_nothing_else() -> None:
    settings = launched(MTP, probed(), replace(SERVER, extra=("dtype=bfloat16", "attn_implementation=eager"))).settings
    assert (settings["dtype"], settings["attn_implementation"]) == ("bfloat16", "eager")
    for wrong in ("device=cuda:1", "model=other", "dtype"):
        with pytest.raises(ValueError, match=r"engine_flags\.transformers"):
            translate(MTP, probed(), replace(SERVER, extra=(wrong,)))


def test_features_survive_a_record() -> None:
    found = on_gpu(CU126)
    again = features_from_detail(json.loads(json.dumps(found.to_detail())))
    assert again == found
    assert again.driver is Driver.TRANSFORMERS
    assert again.devices[0]["by"] == "sm_61"


@pytest.mark.parametrize(
    "words",
    [
        "error loading model: OutOfMemoryError: CUDA out of memory. Tried to allocate 15.00 GiB. GPU 0 has a total",
        "error generating: AcceleratorError: CUDA error: out of memory",
        "error loading model: RuntimeError: [enforce fail at alloc_cpu.cpp:119] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you tried to allocate 3584000000 bytes. Error code 12 (Cannot allocate memory)",
    ],
)
def test_what_torch_says_without_memory_is_out_of_memory(words: str) -> None:
    outcome, reason = classify_exit(1, f"  at modeling_utils.py:10 in to\n{words}\n")
    assert outcome is Outcome.OUT_OF_MEMORY
    assert "memory" in reason
