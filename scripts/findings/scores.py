"""The pre-check scored: what it said before a pair was loaded, beside what the engine then did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from findings.bundles import RecordFile
from findings.evidence import record_of
from findings.precheck import observe, score
from findings.records import Kind, Outcome, Record

Row = dict[str, Any]
Pair = tuple[str, str, str, str]


def gain_signs(verdicts: Iterable[Mapping[str, Any]]) -> dict[Pair, int]:
    """Sign of the measured gain by (host, attempt, engine, arm), where the interval excludes 0."""
    signs: dict[Pair, int] = {}
    for row in verdicts:
        low, high = row["ln_ratio_low"], row["ln_ratio_high"]
        judged = row["scope"] == "mechanism" and row["prompt_class"] == "all" and low is not None and high is not None
        if judged and (low > 0 or high < 0):
            signs[(row["host"], row["attempt"], row["engine"], row["arm"])] = 1 if low > 0 else -1
    return signs


def score_rows(
    files: Sequence[RecordFile], verdicts: Iterable[Mapping[str, Any]], builds: Mapping[str, int]
) -> list[Row]:
    """Four rows (loads, engages, fits, pays) for every prediction that met a load; `builds` by engine id."""
    signs = gain_signs(verdicts)
    loads: dict[Pair, tuple[Record, str]] = {}
    predictions: list[tuple[RecordFile, Record]] = []
    for file in files:
        kind = file.relative.split("/")[0]
        if kind == "loads":
            record = record_of(file)
            loads[(file.host, record.attempt, record.engine, record.arm)] = (record, file.label)
        elif kind == "precheck":
            predictions.append((file, record_of(file)))
    rows: list[Row] = []
    for file, record in predictions:
        pair = (file.host, record.attempt, record.engine, record.arm)
        if record.kind is not Kind.PRECHECK or record.outcome is not Outcome.OK or pair not in loads:
            continue
        load, label = loads[pair]
        for answer in score(record.detail["prediction"], observe(load, signs.get(pair))):
            rows.append(
                {
                    "study": record.study,
                    "host": file.host,
                    "attempt": record.attempt,
                    "engine": record.engine,
                    "build": builds.get(record.engine),
                    "arm": record.arm,
                    "question": answer.question,
                    "predicted": answer.predicted,
                    "observed": answer.observed,
                    "right": answer.right,
                    "reason": answer.reason,
                    "observed_reason": answer.observed_reason,
                    "record": file.label,
                    "observed_record": label,
                }
            )
    return rows
