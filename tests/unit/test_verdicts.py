"""Rules for findings that are not about speed: what each kind of record says, per build, and what it never says."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy import stats

from findings.config import Backend, Configuration, PublishedScope, load_configuration
from findings.inference import SequentialPlan, Verdict
from findings.records import Kind, Outcome, Record
from findings.verdicts import HostRecords, Judgement, judge, matches_published, sequential_plan, with_flips

ROOT = Path(__file__).parents[2]
HOLDS, FAILS, OPEN, UNTESTED = Verdict.HOLDS, Verdict.NO_LONGER_HOLDS, Verdict.INCONCLUSIVE, Verdict.NOT_TESTABLE


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    return load_configuration(ROOT)


def host(**gpu: Any) -> Record:
    gpus = [{"name": "g", "compute_capability": "6.1", "memory_bytes": 6 * 2**30, "driver": "1"} | gpu] if gpu else []
    return Record(Kind.HOST, "h", Outcome.OK, detail={"gpus": gpus})


def load(
    engine: str, arm: str, outcome: Outcome = Outcome.OK, reason: str = "", attempt: str = "attempt_4", **detail: Any
) -> tuple[str, Record]:
    path = f"loads/{attempt}/{engine}/{arm}.json"
    return path, Record(
        Kind.LOAD, path, outcome, reason, study="mini", attempt=attempt, engine=engine, arm=arm, detail=detail
    )


def conversion(checkpoint: str, converter: str, outcome: Outcome, reason: str = "") -> tuple[str, Record]:
    return f"conversions/{checkpoint}/{converter}.json", Record(Kind.CONVERSION, checkpoint, outcome, reason)


def verdicts(configuration: Configuration, finding: str, *records: tuple[str, Record]) -> dict[str, Judgement]:
    """Judgements of the mechanism by engine, converter or wheel."""
    records_of = HostRecords("h", {"host.json": host(), **dict(records)})
    judged = judge(configuration, configuration.findings[finding], records_of)
    return {item.engine: item for item in judged if item.scope == "mechanism"}


def test_the_only_look_of_attempt_6_is_no_weaker_than_the_last_of_the_study(configuration: Configuration) -> None:
    """Half widths of the intervals at the last look, in standard deviations of the blocks, for both kinds of bounds."""
    short = sequential_plan(configuration, "attempt_6")
    usual = sequential_plan(configuration, "attempt_2")
    assert short.max_blocks < usual.max_blocks
    assert short.family == usual.family

    def half_widths(plan: SequentialPlan) -> list[float]:
        last, blocks = len(plan.looks) - 1, plan.max_blocks
        levels = (plan.two_sided_level(last), plan.equivalence_level(last))
        return [float(stats.t.isf(level, blocks - 1)) / math.sqrt(blocks) for level in levels]

    assert all(mine <= theirs for mine, theirs in zip(half_widths(short), half_widths(usual), strict=True))


def test_a_converter_that_refuses_one_form_still_refuses(configuration: Configuration) -> None:
    dense, centroids = "tiny-gemma4-assistant-dense", "tiny-gemma4-assistant-centroids"
    found = verdicts(
        configuration,
        "attempt_4_cannot_convert",
        conversion(dense, "converter-b9002", Outcome.UNSUPPORTED, "Model X is not supported"),
        conversion(centroids, "converter-b9002", Outcome.UNSUPPORTED, "Model X is not supported"),
        conversion(dense, "converter-b9538", Outcome.OK),
        conversion(centroids, "converter-b9538", Outcome.REFUSED, "no such tensor"),
        conversion(dense, "converter-b11434", Outcome.OK),
        conversion(centroids, "converter-b11434", Outcome.OK),
    )
    assert {name: item.verdict for name, item in found.items()} == {
        "converter-b9002": HOLDS,
        "converter-b9538": HOLDS,
        "converter-b11434": FAILS,
    }
    assert "Model X is not supported" in found["converter-b9002"].reason
    assert {(i.holds_until_build, i.fails_since_build) for i in found.values()} == {(9538, 11434)}


@pytest.mark.parametrize(
    ("outcome", "detail", "verdict"),
    [
        (Outcome.REFUSED, {}, HOLDS),
        (Outcome.UNSUPPORTED, {}, HOLDS),
        (Outcome.NOT_ENGAGED, {}, HOLDS),
        (Outcome.OK, {"drafted": 0}, OPEN),
        (Outcome.OK, {"drafted": 9, "accepted": 5, "degenerate": True}, OPEN),
        (Outcome.OK, {"drafted": 9, "accepted": 5}, FAILS),
        (Outcome.CRASHED, {}, UNTESTED),
        (Outcome.TIMED_OUT, {}, UNTESTED),
        (Outcome.NOT_RUN, {}, UNTESTED),
    ],
)
def test_loading_fails_the_finding_only_with_drafted_tokens_and_sane_text(
    configuration: Configuration, outcome: Outcome, detail: dict[str, Any], verdict: Verdict
) -> None:
    arms = ("mtp_dense", "mtp_centroids")
    found = verdicts(
        configuration,
        "attempt_4_cannot_load",
        *(load("llama.cpp-b9713", arm, outcome, "said so", **detail) for arm in arms),
    )
    assert found["llama.cpp-b9713"].verdict is verdict


@pytest.mark.parametrize(
    ("outcome", "detail", "verdict", "words"),
    [
        (Outcome.NOT_ENGAGED, {}, HOLDS, "not engaged"),
        (Outcome.OK, {"drafted": 40, "accepted": 0}, HOLDS, "0 of 40"),
        (Outcome.OK, {"drafted": 40, "accepted": 24, "mechanism": "translated"}, FAILS, "translated"),
        (Outcome.OK, {"drafted": 0, "accepted": 0}, OPEN, "not one token"),
    ],
)
def test_not_engaged_all_rejected_and_translated_are_three_answers(
    configuration: Configuration, outcome: Outcome, detail: dict[str, Any], verdict: Verdict, words: str
) -> None:
    record = load("llama.cpp-b8929", "draft", outcome, "vocabs differ", "attempt_1", **detail)
    found = verdicts(configuration, "attempt_1_does_not_engage", record)["llama.cpp-b8929"]
    assert found.verdict is verdict
    assert words in found.reason.replace("_", " ")


def test_a_drafter_with_other_token_types_that_drafts_contradicts_the_cause(configuration: Configuration) -> None:
    record = load("llama.cpp-b8929", "retyped", attempt="attempt_1", drafted=50, accepted=43)
    found = verdicts(configuration, "attempt_1_root_cause", record)["llama.cpp-b8929"]
    assert found.verdict is FAILS
    assert "43 of 50" in found.reason


@pytest.mark.parametrize(("types", "verdict"), [(["none", "draft_simple"], HOLDS), (["ngram_cache"], FAILS)])
def test_shipping_is_what_the_build_offers(configuration: Configuration, types: list[str], verdict: Verdict) -> None:
    engine = "llama.cpp-b8929"
    probe = Record(Kind.PROBE, engine, Outcome.OK, engine=engine, detail={"spec_types": dict.fromkeys(types, "x")})
    found = verdicts(configuration, "attempt_6_not_shipped", (f"probes/{engine}.json", probe))
    assert found[engine].verdict is verdict


def test_prompt_lookup_of_transformers_says_nothing_about_builds_of_llama_cpp(configuration: Configuration) -> None:
    engine = "transformers-5.24.0-cpu"
    detail = {"spec_types": {"ngram_simple": "PromptLookupCandidateGenerator"}}
    probe = Record(Kind.PROBE, engine, Outcome.OK, engine=engine, detail=detail)
    found = verdicts(configuration, "attempt_6_not_shipped", (f"probes/{engine}.json", probe))
    assert engine not in found


@pytest.mark.parametrize(
    ("answer", "verdict"), [("carries", HOLDS), ("dropped", FAILS), ("no_cuda_build", UNTESTED), ("unknown", UNTESTED)]
)
def test_a_wheel_without_cuda_says_nothing_about_pascal(
    configuration: Configuration, answer: str, verdict: Verdict
) -> None:
    wheel = "torch-2.13.0-cpu"
    record = Record(Kind.TORCH, wheel, Outcome.OK, detail={"sm_61": answer, "version": "2", "channel": "c"})
    found = verdicts(configuration, "attempt_5_cu126_carries_pascal", (f"torch/{wheel}.json", record))
    assert found[wheel].verdict is verdict


def torch(wheel: str, version: str, answer: str) -> tuple[str, Record]:
    detail = {"sm_61": answer, "version": version, "channel": version.partition("+")[2], "by": "sm_60"}
    return f"torch/{wheel}.json", Record(Kind.TORCH, wheel, Outcome.OK, detail=detail)


def test_a_finding_about_pytorch_is_judged_by_the_builds_that_it_speaks_about(configuration: Configuration) -> None:
    records = (
        torch("torch-2.7.1-cu126", "2.7.1+cu126", "carries"),
        torch("torch-2.8.0-cu128", "2.8.0+cu128", "dropped"),
        torch("torch-2.11.0-cu130", "2.11.0+cu130", "dropped"),
    )
    host = HostRecords("h", dict(records))
    supports = judge(configuration, configuration.findings["attempt_5_cu126_carries_pascal"], host)
    # The build of the study's own channel was not read, so its claim about that very wheel stays open.
    assert [(item.scope, item.engine, item.verdict) for item in supports] == [
        ("mechanism", "torch-2.7.1-cu126", HOLDS),
        ("as_published", "", UNTESTED),
    ]
    dropped = judge(configuration, configuration.findings["attempt_5_cu128_dropped_pascal"], host)
    assert [(item.scope, item.engine, item.verdict) for item in dropped] == [
        ("mechanism", "torch-2.8.0-cu128", HOLDS),
        ("mechanism", "torch-2.11.0-cu130", HOLDS),
        ("as_published", "torch-2.11.0-cu130", HOLDS),
    ]


def test_a_build_that_carries_pascal_again_ends_the_claim_that_it_was_dropped(configuration: Configuration) -> None:
    host = HostRecords("h", dict([torch("torch-2.11.0-cu130", "2.11.0+cu130", "carries")]))
    judged = judge(configuration, configuration.findings["attempt_5_cu128_dropped_pascal"], host)
    assert {item.verdict for item in judged} == {FAILS}


@pytest.mark.parametrize(
    ("outcome", "verdict"), [(Outcome.OUT_OF_MEMORY, HOLDS), (Outcome.OK, FAILS), (Outcome.NOT_RUN, UNTESTED)]
)
def test_fitting_is_what_the_load_did(configuration: Configuration, outcome: Outcome, verdict: Verdict) -> None:
    record = load("llama.cpp-b11549", "draft", outcome, "killed", "attempt_2")
    found = verdicts(configuration, "attempt_2_does_not_fit", record)
    assert found["llama.cpp-b11549"].verdict is verdict


def test_a_mini_result_never_stands_for_a_published_figure(configuration: Configuration) -> None:
    records = HostRecords("h", {"host.json": host(compute_capability="6.1")})
    for finding in configuration.findings.values():
        if finding.hardware_matters:
            judged = judge(configuration, finding, records)
            published = [item for item in judged if item.scope == "as_published"]
            assert [item.verdict for item in published] == [UNTESTED]
            assert published[0].would_make_testable


def test_every_finding_gets_both_scopes_without_any_record(configuration: Configuration) -> None:
    for finding in configuration.findings.values():
        judged = judge(configuration, finding, HostRecords("h", {}))
        assert {item.scope for item in judged} == {"mechanism", "as_published"}
        assert all(item.verdict is UNTESTED and item.reason for item in judged)


def test_no_flip_is_claimed_where_a_later_build_holds_again() -> None:
    base = Judgement(HOLDS, "")
    rows = [replace(base, build=1), replace(base, build=2, verdict=FAILS), replace(base, build=3)]
    assert all(item.fails_since_build is None for item in with_flips(rows))
    rows = [replace(base, build=1), replace(base, build=2, verdict=OPEN), replace(base, build=3, verdict=FAILS)]
    assert {(item.holds_until_build, item.fails_since_build) for item in with_flips(rows)} == {(1, 3)}


@pytest.mark.parametrize(
    ("gpu", "backends", "matches"),
    [
        ({"compute_capability": "6.1"}, [Backend.CUDA], True),
        ({"compute_capability": "8.6"}, [Backend.CUDA], False),
        ({"compute_capability": "6.1", "memory_bytes": 4 * 2**30}, [Backend.CUDA], False),
        ({"compute_capability": "6.1"}, [Backend.CPU], False),
        ({}, [Backend.CUDA], False),
    ],
)
def test_the_published_hardware_is_recognised(gpu: dict[str, Any], backends: list[Backend], matches: bool) -> None:
    scope = PublishedScope(compute_capabilities=("6.1",), vram_gib=(6,), backends=(Backend.CUDA,))
    found, needed = matches_published(scope, host(**gpu), backends)
    assert found is matches
    assert matches or "6.1" in needed
