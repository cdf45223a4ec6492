"""A positive control that is an attempt of its own: judged as one claim, told with its attempt, counted nowhere."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from builders import arm_run, request
from builders import block as built
from findings import plan
from findings.blocks import Block, block_to_json
from findings.config import Configuration, load_configuration
from findings.inference import Claim, Verdict
from findings.measure import judged_claims
from findings.publish import render_document
from findings.records import Kind, Outcome, Record, write_record
from findings.stale import records_of_gone_files
from findings.story import Story, in_order, read_rows, tell
from findings.tables import TABLES
from findings.verdict_rows import _row as verdict_row
from findings.verdicts import CONTROL, HostRecords, control_question, judge_control, sequential_plan, session_gates
from findings.view import Scanned, control_says
from sample_tables import rows, write

ROOT = Path(__file__).parents[2]
CONTROLLED, ENGINE = "mtp_control", "llama.cpp-b11549"
SESSION = f"measure/{CONTROLLED}/{ENGINE}/session.json"
NOISE = (0.01, -0.02, 0.015, -0.005, 0.01, -0.01)


@pytest.fixture(scope="module")
def configuration() -> Configuration:
    return load_configuration(ROOT)


def blocks(ratio: float, count: int = 4, *, tokens: int = 128, null: float = 1.0) -> list[Block]:
    """Blocks in which the control's arm is `ratio` times as fast as the baseline."""

    def run(name: str, kind: str, speed: float, drafted: int | None = None) -> Any:
        asked = [request(f"templated-{n}", "templated", speed, drafted, predicted_n=tokens) for n in (1, 2)]
        return replace(arm_run(name, kind, speed, drafted), requests=tuple(asked))

    return [
        built(
            number,
            [
                run("baseline", "baseline", 50.0),
                run("null", "null", 50.0 * null * (1 + NOISE[number % 6])),
                run("mtp_artificial", "positive_control", 50.0 * ratio * (1 + NOISE[(number + 2) % 6]), 90),
            ],
        )
        for number in range(1, count + 1)
    ]


def host(found: list[Block], **detail: Any) -> HostRecords:
    """The records of a machine that ran these blocks."""
    shared: dict[str, Any] = {"study": "mini", "attempt": CONTROLLED, "engine": ENGINE}
    listed = {"mtp_artificial": {"outcome": "ok", "reason": ""}}
    session = Record(Kind.SESSION, "s", Outcome.OK, detail={"run": "run-001", "arms": listed} | detail, **shared)
    records = {SESSION: session}
    for one in found:
        path = f"measure/{CONTROLLED}/{ENGINE}/run-001/block-{one.block:03d}.json"
        records[path] = Record(Kind.BLOCK, "b", Outcome.OK, detail=block_to_json(one), **shared)
    return HostRecords("h", records)


def judged(configuration: Configuration, records: HostRecords) -> Any:
    (found,) = judge_control(configuration, configuration.attempts[CONTROLLED], records)
    assert found.scope == CONTROL
    return found


def test_the_padded_target_is_made_from_the_tiny_one(configuration: Configuration) -> None:
    roles = configuration.study.roles_of(CONTROLLED)
    assert plan.model_record(configuration, roles["target"]) == f"padded/{roles['target']}.json"
    assert configuration.models[roles["target"]].copied_from == "tiny-gemma4-target-f16"
    wanted = plan.attempt_records(configuration, CONTROLLED)
    assert f"padded/{roles['target']}.json" in wanted
    assert SESSION in wanted
    assert not [record for record in wanted if record.startswith(("loads/", "precheck/"))]


def test_a_session_of_a_control_settles_whether_it_pays_as_one_claim(configuration: Configuration) -> None:
    (claim,) = judged_claims(configuration, CONTROLLED)
    assert (claim.arm, claim.claim) == ("mtp_artificial", Claim.PAYS)
    assert sequential_plan(configuration, CONTROLLED).family == 1
    # The control adds no claim to those that the study's findings are corrected for.
    without = replace(
        configuration,
        study=replace(
            configuration.study,
            attempts={name: one for name, one in configuration.study.attempts.items() if name != CONTROLLED},
        ),
    )
    assert sequential_plan(without, "attempt_2") == sequential_plan(configuration, "attempt_2")


@pytest.mark.parametrize(
    ("ratio", "null", "verdict"),
    [
        (1.8, 1.0, Verdict.HOLDS),
        (1.0, 1.0, Verdict.NO_LONGER_HOLDS),
        (0.7, 1.0, Verdict.NO_LONGER_HOLDS),
        (1.06, 1.0, Verdict.INCONCLUSIVE),
        (1.8, 1.3, Verdict.INCONCLUSIVE),
    ],
)
def test_the_control_is_seen_to_pay_or_not(
    configuration: Configuration, ratio: float, null: float, verdict: Verdict
) -> None:
    found = judged(configuration, host(blocks(ratio, null=null)))
    assert found.verdict is verdict
    assert found.failed_gates == (("null_equal",) if null != 1.0 else ())


def test_a_control_that_was_not_run_or_drafted_nothing_says_so(configuration: Configuration) -> None:
    nothing = judged(configuration, HostRecords("h", {}))
    assert (nothing.verdict, nothing.would_make_testable) == (Verdict.NOT_TESTABLE, f"snakemake --cores 1 {CONTROLLED}")
    silent = [
        replace(
            one,
            arms=one.arms | {"mtp_artificial": arm_run("mtp_artificial", "positive_control", 90.0, 0)},
        )
        for one in blocks(1.0)
    ]
    found = judged(configuration, host(silent))
    assert found.verdict is Verdict.NOT_TESTABLE
    assert "no speed to compare" in found.reason


def test_a_session_is_judged_by_the_looks_and_tokens_that_it_was_planned_with(configuration: Configuration) -> None:
    recorded = {"looks": [3], "identity": {"protocol": {"predict_tokens": "64"}}}
    records = host(blocks(1.8, 3, tokens=64), **recorded)
    found = judged(configuration, records)
    assert (found.verdict, found.decision.look) == (Verdict.HOLDS, 3)
    gates = session_gates(configuration, CONTROLLED, records.blocks(SESSION), "mtp_artificial", "all")
    assert "token_count" in [gate.name for gate in gates if not gate.passed]


# --- what is said ---------------------------------------------------------------------------------------------------


def story(configuration: Configuration, folder: Path, records: HostRecords | None) -> Story:
    """The sample tables with the verdict of the control, as it comes from these records."""
    sample = copy.deepcopy(rows())
    if records is not None:
        question = control_question(configuration, configuration.attempts[CONTROLLED])
        row = verdict_row(configuration, question, judged(configuration, records), records.host)
        sample["verdicts"].append(row)
    found = read_rows(write(folder, sample))
    return tell(configuration, {name: in_order(found[name]) for name in TABLES})


def said(told: Story) -> list[str]:
    return [
        control_says(control, line)
        for attempt in told.attempts
        if attempt.attempt.id == "attempt_4"
        for control in attempt.controls
        for line in control.lines
    ]


def test_a_control_that_pays_is_told_with_its_attempt_and_its_numbers(
    configuration: Configuration, tmp_path: Path
) -> None:
    told = story(configuration, tmp_path, host(blocks(1.8)))
    (text,) = said(told)
    assert text.startswith(f"h with {ENGINE} can show multi-token prediction paying: +80.")
    assert "interval +" in text
    assert "4 blocks" in text
    document = render_document(told, "figures", Scanned(files=1, lines=1, allowed={}))
    assert text in document
    assert "artificial by construction" in document
    assert "## Mtp control" not in document


@pytest.mark.parametrize("ratio", [0.7, 1.0, 1.06])
def test_a_control_that_does_not_pay_takes_the_ground_from_does_not_pay(
    configuration: Configuration, tmp_path: Path, ratio: float
) -> None:
    (text,) = said(story(configuration, tmp_path, host(blocks(ratio))))
    assert "was not seen to pay even here" in text
    assert "“does not pay” of multi-token prediction there would not be credible" in text


def test_a_control_that_drafts_nothing_is_no_control(configuration: Configuration, tmp_path: Path) -> None:
    records = host(blocks(1.8))
    broken = dict(records.records)
    broken[SESSION] = replace(broken[SESSION], outcome=Outcome.CRASHED, reason="signal 6")
    (text,) = said(story(configuration, tmp_path, HostRecords("h", broken)))
    assert "signal 6" in text
    assert "would not be credible" in text


def test_a_control_is_counted_nowhere(configuration: Configuration, tmp_path: Path) -> None:
    with_it = story(configuration, tmp_path / "with", host(blocks(1.8)))
    without = story(configuration, tmp_path / "without", None)
    assert with_it.counts == without.counts
    assert with_it.verdicts == without.verdicts
    assert [attempt.attempt.id for attempt in with_it.attempts] == [
        name for name, one in configuration.attempts.items() if not one.control_of
    ]
    (text,) = said(story(configuration, tmp_path / "unmeasured", HostRecords("h", {})))
    assert "not measured yet" in text


# --- records of what is made here -----------------------------------------------------------------------------------


def test_a_copy_that_the_cache_lost_is_made_again(tmp_path: Path) -> None:
    records, cache = tmp_path / "records", tmp_path / "cache"
    made = cache / "converted" / "k" / "p.gguf"
    made.parent.mkdir(parents=True)
    made.write_bytes(b"GGUF")
    good = Record(Kind.CONVERSION, "p", Outcome.OK, detail={"cache_path": "converted/k/p.gguf"})
    for place in ("padded/p", "retyped/p", "conversions/c/b1"):
        write_record(records / f"{place}.json", good)
    refused = Record(Kind.CONVERSION, "c", Outcome.UNSUPPORTED, "Model X is not supported")
    write_record(records / "conversions" / "c" / "b0.json", refused)
    assert records_of_gone_files(records, cache) == []
    made.unlink()
    found = [path.relative_to(records).as_posix() for path in records_of_gone_files(records, cache)]
    assert found == ["conversions/c/b1.json", "retyped/p.json", "padded/p.json"]
