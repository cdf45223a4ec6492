"""Logs that the real engines printed, and how each ending is named."""

import signal

import pytest

from findings.engine import failure
from findings.engine.failure import EngineFailure, classify_exit, decisive_line, signal_words
from findings.records import Outcome

MISSING = """0.00.014.212 I srv    load_model: loading model 'missing.gguf'
0.00.014.504 E gguf_init_from_file: failed to open GGUF file '/data/somewhere/missing.gguf' (No such file or directory)
0.00.014.861 E llama_model_load: error loading model: llama_model_loader: failed to load model from missing.gguf
0.00.014.902 E llama_model_load_from_file_impl: failed to load model
0.00.014.962 E srv    load_model: failed to load model, 'missing.gguf'
0.00.015.439 E srv          init: exiting due to model loading error
error: RuntimeError: Failed to init server, please check the input params.
"""
GARBAGE = """gguf_init_from_file_ptr: invalid magic characters: 'garb', expected 'GGUF'
llama_model_load: error loading model: llama_model_loader: failed to load model from garbage.gguf
init: exiting due to model loading error
"""
TRUNCATED = """llama_model_load: error loading model: tensor 'token_embd.weight' data is not within the file bounds, model is corrupted or incomplete
llama_model_load_from_file_impl: failed to load model
init: exiting due to model loading error
"""  # noqa: E501
ARCHITECTURE = """llama_model_load: error loading model: error loading model architecture: unknown model architecture: 'gemma4-assistant'
llama_model_load_from_file_impl: failed to load model
srv    load_model: failed to load draft model, 'drafter.gguf'
exiting due to model loading error
"""  # noqa: E501
CUDA_MEMORY = """ggml_backend_cuda_buffer_type_alloc_buffer: allocating 4096.00 MiB on device 0: cudaMalloc failed: out of memory
alloc_tensor_range: failed to allocate CUDA0 buffer of size 4294967296
llama_model_load: error loading model: unable to allocate CUDA0 buffer
exiting due to model loading error
"""  # noqa: E501
VULKAN_MEMORY = """ggml_vulkan: Device memory allocation of size 3221225472 failed.
ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory
llama_model_load: error loading model: unable to allocate Vulkan0 buffer
exiting due to model loading error
"""
REMOVED = """error while handling argument "--draft-max": the argument has been removed. use --spec-draft-n-max or --spec-ngram-mod-n-max

usage:
--draft, --draft-n, --draft-max N       the argument has been removed. use --spec-draft-n-max
"""  # noqa: E501
NO_MTP = """0.03.866.731 W llama_init_from_model: context type MTP requested but model doesn't contain MTP layers
0.03.875.979 E common_speculative_init_result: failed to create MTP context
0.03.875.996 E srv    load_model: failed to create MTP context
0.03.876.480 E srv          init: exiting due to model loading error
"""
ASSERTION_WITH_GDB = """0.01.0 I srv  update_slots: all slots are idle
/build/llama.cpp/src/llama-graph.cpp:155: GGML_ASSERT(ubatch->embd_state && "needs a state embedding") failed
[New LWP 3795]
warning: could not find '.gnu_debugaltlink' file
syscall () at ../sysdeps/unix/sysv/linux/x86_64/syscall.S:38
38\t../sysdeps/unix/sysv/linux/x86_64/syscall.S: No such file or directory.
#0  syscall () at ../sysdeps/unix/sysv/linux/x86_64/syscall.S:38
[Inferior 1 (process 3790) detached]
"""
PORT = """0.00.000.100 E srv   start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080
0.00.000.200 E srv  llama_server: exiting due to HTTP server error
"""
BAD_ALLOC = "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n"
ASSERTION = "/src/ggml/src/ggml.c:3456: GGML_ASSERT(a->ne[2] == b->ne[0]) failed\n"


@pytest.mark.parametrize(
    ("log", "code", "outcome", "words"),
    [
        (MISSING, 1, Outcome.REFUSED, "failed to open GGUF file 'missing.gguf' (No such file or directory)"),
        (GARBAGE, 1, Outcome.REFUSED, "invalid magic characters: 'garb', expected 'GGUF'"),
        (TRUNCATED, 1, Outcome.REFUSED, "data is not within the file bounds, model is corrupted or incomplete"),
        (ARCHITECTURE, 1, Outcome.REFUSED, "unknown model architecture: 'gemma4-assistant'"),
        (CUDA_MEMORY, 1, Outcome.OUT_OF_MEMORY, "cudaMalloc failed: out of memory"),
        (VULKAN_MEMORY, 1, Outcome.OUT_OF_MEMORY, "ErrorOutOfDeviceMemory"),
        (BAD_ALLOC, -signal.SIGABRT, Outcome.OUT_OF_MEMORY, "bad_alloc"),
        (REMOVED, 1, Outcome.REFUSED, "the argument has been removed. use --spec-draft-n-max"),
        (ASSERTION_WITH_GDB, -signal.SIGABRT, Outcome.CRASHED, 'GGML_ASSERT(ubatch->embd_state && "needs a state'),
        (MISSING, -signal.SIGABRT, Outcome.CRASHED, "SIGABRT"),
        (NO_MTP, 1, Outcome.REFUSED, "context type MTP requested but model doesn't contain MTP layers"),
        (PORT, 1, Outcome.UNAVAILABLE, "couldn't bind HTTP server socket"),
        (ASSERTION, -signal.SIGABRT, Outcome.CRASHED, "GGML_ASSERT(a->ne[2] == b->ne[0]) failed"),
        ("", -signal.SIGILL, Outcome.CRASHED, "illegal instruction: this CPU lacks"),
        ("", 132, Outcome.CRASHED, "illegal instruction: this CPU lacks"),
        ("", 139, Outcome.CRASHED, "segmentation fault"),
        ("", -signal.SIGSEGV, Outcome.CRASHED, "segmentation fault"),
        ("", -signal.SIGKILL, Outcome.CRASHED, "killed by SIGKILL"),
        ("", 3, Outcome.CRASHED, "exit code 3"),
        ("", 0, Outcome.CRASHED, "ended by itself with exit code 0"),
    ],
)
def test_an_ending_gets_its_outcome_and_the_engines_own_words(
    log: str, code: int, outcome: Outcome, words: str
) -> None:
    found, reason = classify_exit(code, log)
    assert found is outcome
    assert words in reason


def test_sigkill_is_out_of_memory_only_where_the_kernel_says_so() -> None:
    assert classify_exit(-signal.SIGKILL, "", oom_killed=True)[0] is Outcome.OUT_OF_MEMORY
    assert classify_exit(-signal.SIGKILL, CUDA_MEMORY, oom_killed=False)[0] is Outcome.CRASHED


def test_a_crash_counts_before_what_the_log_said_earlier() -> None:
    warning = "W load: the draft vocab is not compatible\n"
    assert classify_exit(-signal.SIGSEGV, warning) == (Outcome.CRASHED, signal_words(-signal.SIGSEGV))


def test_reasons_hold_no_folder_no_time_stamp_and_no_colour() -> None:
    line = decisive_line("\x1b[31m0.00.014.504 E gguf_init: failed to open GGUF file '/srv/x/y/m.gguf'\x1b[0m\n")
    assert line == "gguf_init: failed to open GGUF file 'm.gguf'"
    assert decisive_line("C:\\llama\\models\\m.gguf: No such file\n") == "m.gguf: No such file"
    assert decisive_line("all is well\n") == ""


def test_a_failure_is_bounded_and_holds_no_token() -> None:
    found = EngineFailure(Outcome.CRASHED, "hf_" + "a" * 30 + " " + "x" * 10_000)
    assert len(found.reason) <= failure.REASON_LIMIT
    assert "hf_a" not in found.reason


def test_signals_beyond_the_known_ones_are_numbers() -> None:
    assert signal_words(2) == "exit code 2"
    assert "SIGTERM" in signal_words(-signal.SIGTERM)
    assert signal_words(-63) == "signal 63"


def test_the_kernels_counter_never_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    assert failure.oom_kills() >= 0
    monkeypatch.setattr(failure.Path, "read_text", lambda *_, **__: "oom_kill not-a-number\n")
    assert failure.oom_kills() == 0
