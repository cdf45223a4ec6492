"""Answers of llama-server as real builds gave them, broken ones, and the rules about engagement and text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from findings.config import Driver, SpeculationType
from findings.engine import client
from findings.engine.arms import Launch
from findings.engine.client import Completion, DraftLine, degenerate, first_difference, parse_completion
from findings.engine.failure import EngineFailure
from findings.records import Engagement, Outcome

ANSWER: dict[str, Any] = {
    "index": 0,
    "content": "2. item two",
    "tokens": [236778, 236761, 4188, 1156],
    "stop_type": "limit",
    "timings": {
        "cache_n": 0,
        "prompt_n": 50,
        "prompt_ms": 152.268,
        "predicted_n": 4,
        "predicted_ms": 93.1,
        "draft_n": 3,
        "draft_n_accepted": 2,
    },
}
LOG_NEW = (
    "0.02.391.802 I slot print_timing: id  0 | task 0 | draft acceptance = 1.00000 (   33 accepted /    33 generated),"
    " mean len = 17.50\n"
)
LOG_OLD = (
    "draft acceptance rate = 0.50000 (   32 accepted /    64 generated)\n"
    "statistics ngram_simple: #calls(b,g,a) = 1 14 2, #gen drafts = 2, #acc drafts = 2, #gen tokens = 42, #acc tokens "
    "= 32, dur(b,g,a) = 0.001, 0.013, 0.002 ms\n"
)
LOG_TRANSLATED = "the target and draft vocabs are not compatible - tokens will be translated between the two\n"
LOG_REFUSED = (
    "0.00.736.505 W spec common_specu: draft model vocab type must match target model to use speculation but "
    "vocab_type_dft = 2 while vocab_type_tgt = 1\n"
    "0.00.736.600 E spec common_specu: the target and draft vocabs are not compatible\n"
)


def changed(**timings: Any) -> dict[str, Any]:
    answer = json.loads(json.dumps(ANSWER))
    answer["timings"].update(timings)
    return answer


def completion(drafted: int | None = None) -> Completion:
    return Completion(5, 1.0, 4, 2.0, drafted, 0 if drafted is not None else None, "x", (1, 2, 3, 4))


def launch(kind: SpeculationType) -> Launch:
    return Launch(Driver.XLLAMACPP, kind)


def test_an_answer_is_read() -> None:
    found = parse_completion(ANSWER)
    assert (found.prompt_n, found.predicted_n, found.draft_n, found.draft_n_accepted) == (50, 4, 3, 2)
    assert found.tokens == (236778, 236761, 4188, 1156)
    assert found.stop_type == "limit"


def test_no_drafting_is_none_and_not_zero() -> None:
    answer = changed()
    del answer["timings"]["draft_n"], answer["timings"]["draft_n_accepted"]
    assert parse_completion(answer).draft_n is None
    assert parse_completion(changed(draft_n=0, draft_n_accepted=0)).draft_n == 0


@pytest.mark.parametrize(
    "answer",
    [
        None,
        [],
        "text",
        {},
        {"content": "x"},
        {**ANSWER, "timings": None},
        {**ANSWER, "tokens": ["a"]},
        {**ANSWER, "tokens": [True]},
        {**ANSWER, "content": 5},
        changed(predicted_n="64"),
        changed(predicted_ms=-1.0),
        changed(predicted_ms=float("nan")),
        changed(prompt_n=None),
        changed(draft_n=3, draft_n_accepted=4),
        changed(draft_n=True),
    ],
)
def test_anything_else_is_a_broken_answer(answer: Any) -> None:
    with pytest.raises(EngineFailure) as caught:
        parse_completion(answer)
    assert caught.value.outcome is Outcome.CRASHED


def test_draft_lines_of_new_and_old_builds() -> None:
    new, old = client.draft_lines(LOG_NEW + LOG_OLD)
    assert new == DraftLine(33, 33, 17.5)
    assert new.rounds == 2.0
    assert old == DraftLine(32, 64, None)
    assert old.rounds is None
    found = client.draft_statistics(LOG_OLD)["ngram_simple"]
    assert (found.drafts_generated, found.tokens_generated, found.tokens_accepted) == (2, 42, 32)
    assert client.tokens_per_round(2, 33) == 17.5
    assert client.acceptance(None, None) is None
    assert client.acceptance(64, 32) == 0.5
    with pytest.raises(ValueError, match="no rounds"):
        client.tokens_per_round(0, 0)


def test_counters_by_position() -> None:
    text = (
        "# TYPE llamacpp:spec_decode_num_drafts_total counter\nllamacpp:spec_decode_num_drafts_total 2\n"
        "llamacpp:spec_decode_num_draft_tokens_total 33\nllamacpp:spec_decode_num_accepted_tokens_total 33\n"
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 2\n'
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="10"} 1\n'
        'llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="2"} 2\n'
    )
    found = client.parse_metrics(text)
    assert found == client.DraftCounters(2, 33, 33, (2, 2, 1))
    assert client.parse_metrics("llamacpp:prompt_tokens_total 50\n") is None


@pytest.mark.parametrize(
    ("kind", "flag", "drafted", "log", "expected"),
    [
        (SpeculationType.NONE, False, None, "", Engagement.OFF),
        (SpeculationType.NONE, True, None, "", Engagement.OFF),
        (SpeculationType.NONE, False, 7, "", Engagement.WITH_DRAFTS),  # an arm that lies about being off shows
        (SpeculationType.DRAFT_SIMPLE, False, None, LOG_REFUSED, Engagement.NOT_ENGAGED),
        (SpeculationType.DRAFT_SIMPLE, False, None, "", Engagement.NOT_ENGAGED),  # -md with type none: a silent one
        (SpeculationType.DRAFT_SIMPLE, True, None, "", Engagement.WITHOUT_DRAFTS),
        (SpeculationType.DRAFT_SIMPLE, True, 0, "", Engagement.WITHOUT_DRAFTS),
        (SpeculationType.DRAFT_SIMPLE, True, 45, LOG_TRANSLATED, Engagement.WITH_DRAFTS),
        (SpeculationType.DRAFT_SIMPLE, None, None, LOG_REFUSED, Engagement.NOT_ENGAGED),
        (SpeculationType.DRAFT_SIMPLE, None, None, LOG_OLD, Engagement.WITHOUT_DRAFTS),
        (SpeculationType.DRAFT_SIMPLE, None, None, "", Engagement.NOT_ENGAGED),
        (SpeculationType.NGRAM_SIMPLE, True, None, "", Engagement.WITHOUT_DRAFTS),
        (SpeculationType.NGRAM_SIMPLE, False, None, "", Engagement.NOT_ENGAGED),
        (SpeculationType.NGRAM_SIMPLE, None, None, "", Engagement.WITHOUT_DRAFTS),
        (SpeculationType.NGRAM_SIMPLE, True, 33, "", Engagement.WITH_DRAFTS),
    ],
)
def test_the_four_states(
    kind: SpeculationType, flag: bool | None, drafted: int | None, log: str, expected: Engagement
) -> None:
    completions = [completion(None), completion(drafted)]
    assert client.engagement(launch(kind), {"speculative": flag}, completions, log) is expected


def test_what_the_log_says_about_vocabularies() -> None:
    assert client.vocabulary_message(LOG_TRANSLATED) == "translated"
    assert client.vocabulary_message(LOG_REFUSED) == "incompatible"
    assert client.vocabulary_message(LOG_NEW) == ""
    assert client.not_engaged_reason(LOG_REFUSED).startswith("spec common_specu: draft model vocab type must match")
    assert client.not_engaged_reason(LOG_TRANSLATED) == ""


def test_the_devices_of_a_log() -> None:
    log = (
        "load_tensors: offloaded 27/27 layers to GPU\nload_tensors:      Vulkan0 model buffer size =  1000.50 MiB\n"
        "load_tensors:   CPU_Mapped model buffer size =   235.16 MiB\nllama_kv_cache: Vulkan0 KV buffer size = 2 MiB\n"
    )
    found = client.backend_used(log)
    assert found == {"buffers_mib": {"Vulkan0": 1002.5, "CPU": 235.16}, "offloaded": ["27/27"]}
    assert client.backend_used("nothing") == {}


def test_first_difference() -> None:
    assert first_difference([1, 2, 3], [1, 2, 3]) is None
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2
    assert first_difference([], []) is None


@given(st.lists(st.integers(0, 5)), st.lists(st.integers(0, 5)))
def test_first_difference_is_the_length_of_the_common_beginning(a: list[int], b: list[int]) -> None:
    index = first_difference(a, b)
    assert index == first_difference(b, a)
    if index is None:
        assert a == b
    else:
        assert a[:index] == b[:index]
        assert a[index : index + 1] != b[index : index + 1]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([7] * 64, True),
        ([1, 2, 3] * 20, True),
        (list(range(10)) + [5, 6] * 25, True),
        (list(range(64)), False),
        (list(range(40)) + [5, 6] * 10, False),  # only a third of it
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12] * 6, False),  # a list being copied
        ([7] * 20, False),  # too short to say
        ([], False),
    ],
)
def test_degenerate(tokens: list[int], expected: bool) -> None:
    assert degenerate(tokens) is expected


def test_an_endpoint_never_prints_its_key() -> None:
    assert "secret" not in repr(client.Endpoint("http://127.0.0.1:1", "secret"))
