"""Rows of the verdicts table: every finding on every machine whose records are here, its own and those of bundles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from findings.bundles import RecordFile
from findings.config import Configuration, ConfigurationError, Finding
from findings.evidence import record_of
from findings.inference import to_percent
from findings.records import Record
from findings.verdicts import HostRecords, Judgement, control_question, judge, judge_control, settle_family

Row = dict[str, Any]
StudyLoader = Callable[[str], Configuration]


def machines(files: Iterable[RecordFile]) -> list[tuple[HostRecords, str]]:
    """Records by machine and study (records that belong to no study go to each study of their machine)."""
    by_host: dict[str, dict[str, Record]] = {}
    for file in files:
        if file.is_record:
            by_host.setdefault(file.host, {})[file.relative] = record_of(file)
    found = []
    for host, records in sorted(by_host.items()):
        studies = sorted({record.study for record in records.values() if record.study})
        for study in studies or [""]:
            mine = {path: record for path, record in records.items() if record.study in ("", study)}
            found.append((HostRecords(host, mine), study))
    return found


def verdict_rows(
    configuration: Configuration, files: Iterable[RecordFile], load_study: StudyLoader, attempts: Sequence[str] = ()
) -> list[Row]:
    """All rows; `attempts` restricts them. Bundles of another study are judged by that study's configuration.

    A finding that no machine has records for gets one row per scope that says so, so that none is ever missing.
    """
    rows: list[Row] = []
    wanted = [f for f in configuration.findings.values() if not attempts or f.attempt in attempts]
    hosts = machines(files) or [(HostRecords("", {}), configuration.study.id)]
    for host, study in hosts:
        chosen = _configuration_of(configuration, study, load_study)
        if chosen is None:
            continue
        judged: list[tuple[Finding, Judgement]] = []
        for finding in wanted:
            judged += [(finding, judgement) for judgement in judge(chosen, finding, host)]
        for finding, judgement in settle_family(judged, chosen.study.protocol.alpha):
            rows.append(_row(chosen, finding, judgement, host.host))
        for control in chosen.attempts.values():
            if control.control_of and control.id in chosen.study.attempts and (not attempts or control.id in attempts):
                asked = control_question(chosen, control)
                rows += [_row(chosen, asked, j, host.host) for j in judge_control(chosen, control, host)]
    return rows


def _configuration_of(configuration: Configuration, study: str, load_study: StudyLoader) -> Configuration | None:
    if study in ("", configuration.study.id):
        return configuration
    try:
        return load_study(study)
    except ConfigurationError:
        return None  # a bundle of a study that this version does not have


def published_percent(configuration: Configuration, finding: Finding) -> float | None:
    """The published change that a finding states first, in percent; None where it states no such figure."""
    claims = configuration.published.claims
    for claim_id in finding.claims:
        claim = claims.get(claim_id)
        if claim is not None and claim.kind == "percent_change":
            return claim.value
    return None


def _row(configuration: Configuration, finding: Finding, judgement: Judgement, host: str) -> Row:
    decision = judgement.decision
    interval = decision.interval if decision is not None else None
    percents: Mapping[str, float | None] = {
        "change_percent": to_percent(interval.mean) if interval else None,
        "change_low_percent": to_percent(interval.low) if interval else None,
        "change_high_percent": to_percent(interval.high) if interval else None,
    }
    return {
        "finding": finding.id,
        "attempt": finding.attempt,
        "scope": judgement.scope,
        "study": configuration.study.id,
        "host": host,
        "engine": judgement.engine,
        "build": judgement.build,
        "evidence": "measured",
        "verdict": judgement.verdict.value,
        "reason": judgement.reason,
        "arm": judgement.arm,
        "prompt_class": judgement.prompt_class,
        "ln_ratio": interval.mean if interval else None,
        "ln_ratio_low": interval.low if interval else None,
        "ln_ratio_high": interval.high if interval else None,
        **percents,
        "blocks": decision.blocks if decision else None,
        "blocks_needed": decision.blocks_needed if decision else None,
        "failed_gates": list(judgement.failed_gates),
        "p_value": decision.p_value if decision else None,
        "holds_until_build": judgement.holds_until_build,
        "fails_since_build": judgement.fails_since_build,
        "would_make_testable": judgement.would_make_testable,
        "published_percent": published_percent(configuration, finding),
        "advice": finding.advice,
        "command": f"snakemake --cores 1 {finding.attempt}" if finding.attempt else "snakemake --cores 1 report",
    }
