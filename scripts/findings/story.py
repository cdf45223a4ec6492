"""From tables and configuration to what is said: one view of the evidence, for the document and for the report.

Everything is ordered by content, never by the order of rows, so the same tables give the same story on every machine.
Nothing here formats a number: that is done in words.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd

from findings.comparisons import EffectRow, effect_panels
from findings.config import Arm, Attempt, Configuration, Finding, Model
from findings.tables import TABLES, TableError, read_table

Row = Mapping[str, Any]
SCOPES = ("as_published", "mechanism")
CONTROL = "control"
VERDICT_ORDER = ("no_longer_holds", "holds", "inconclusive", "not_testable")
WORKED = ("ok",)
TRIED = ("conversion", "load", "torch")


@dataclass(frozen=True)
class Change:
    """A change of speed in percent: mean and the ends of its interval."""

    mean: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class VerdictLine:
    """One row of the verdicts table, with the finding's title; `changes` is None where nothing was measured."""

    finding: str
    title: str
    attempt: str
    scope: str
    study: str
    host: str
    engine: str
    build: int | None
    evidence: str
    verdict: str
    reason: str
    arm: str
    prompt_class: str
    change: Change | None
    blocks: int | None
    blocks_needed: int | None
    failed_gates: tuple[str, ...]
    p_value: float | None
    holds_until: int | None
    fails_since: int | None
    would_make_testable: str
    published_percent: float | None
    advice: str
    command: str


@dataclass(frozen=True)
class FindingStory:
    """A finding with its verdicts: `leading` has one line per scope and host, the one that speaks for today."""

    finding: Finding
    lines: tuple[VerdictLine, ...]
    leading: tuple[VerdictLine, ...]

    def of_scope(self, scope: str) -> tuple[VerdictLine, ...]:
        """The leading lines of one scope."""
        return tuple(line for line in self.leading if line.scope == scope)


@dataclass(frozen=True)
class OutcomeLine:
    """One executed thing; `log_tail` as text, empty where there is none."""

    evidence: str
    host: str
    attempt: str
    kind: str
    subject: str
    engine: str
    build: int | None
    converter: str
    arm: str
    outcome: str
    reason: str
    engagement: str
    exit_code: int | None
    command: str
    log_tail: str
    prediction: str
    record: str
    detail: Mapping[str, Any]


@dataclass(frozen=True)
class ScoreLine:
    """One question of the pre-check with its answer and the engine's (`yes`, `no`, or empty)."""

    attempt: str
    host: str
    engine: str
    build: int | None
    arm: str
    question: str
    predicted: str
    observed: str
    right: bool | None
    reason: str
    observed_reason: str


@dataclass(frozen=True)
class ArmStory:
    """An arm with the model that drafts in it (None where none does, or where this study has none for the role)."""

    arm: Arm
    drafter: Model | None
    classes: tuple[str, ...]


@dataclass(frozen=True)
class PanelStory:
    """What was measured with one engine on one host: blocks, requests, and a line per arm and class."""

    host: str
    engine: str
    blocks: int
    requests: int
    rows: tuple[EffectRow, ...]


@dataclass(frozen=True)
class ControlLine:
    """What a positive control showed on one machine with one engine, and how many drafted tokens it accepted there."""

    line: VerdictLine
    drafted: int
    accepted: int


@dataclass(frozen=True)
class ControlStory:
    """The positive control of an attempt; its target is not the attempt's, and not a natural one."""

    attempt: Attempt
    target: Model | None
    lines: tuple[ControlLine, ...]
    panels: tuple[PanelStory, ...]

    @property
    def command(self) -> str:
        """The command that runs this control and what it needs."""
        return f"snakemake --cores 1 {self.attempt.id}"


@dataclass(frozen=True)
class AttemptStory:
    """Everything about one attempt."""

    attempt: Attempt
    in_study: bool
    findings: tuple[FindingStory, ...]
    arms: tuple[ArmStory, ...]
    models: tuple[tuple[str, Model], ...]
    measured_with: tuple[str, ...]
    loaded_with: tuple[str, ...]
    converted_with: tuple[str, ...]
    panels: tuple[PanelStory, ...]
    outcomes: tuple[OutcomeLine, ...]
    refusals: tuple[OutcomeLine, ...]
    scores: tuple[ScoreLine, ...]
    published_rows: tuple[str, ...]
    controls: tuple[ControlStory, ...] = ()

    @property
    def command(self) -> str:
        """The command that runs this attempt and what it needs, and nothing else."""
        return f"snakemake --cores 1 {self.attempt.id}"


@dataclass(frozen=True)
class ImportedLine:
    """Somebody else's measurements of one method on one backend.

    `change` is the mean over the runs in which tokens were drafted (None where there are none), without an interval.
    """

    host: str
    model: str
    quantization: str
    backend: str
    arm: str
    arm_kind: str
    prompts: int
    runs: int
    mean_tokens_per_s: float
    change: float | None
    drafted: int
    accepted: int
    drafting_runs: int
    source: str
    licence: str


@dataclass(frozen=True)
class HostLine:
    """A machine as its row describes it."""

    evidence: str
    host: str
    os: str
    python: str
    cpu: str
    cores: int | None
    memory_bytes: int | None
    gpu: str
    compute_capability: str
    driver: str
    versions: Mapping[str, str]
    source: str


@dataclass(frozen=True)
class TableLine:
    """A table that the story was made of: rows by kind of evidence, and a digest of its content."""

    name: str
    rows: int
    by_evidence: Mapping[str, int]
    digest: str


@dataclass(frozen=True)
class Story:
    """All that the document and the report say."""

    configuration: Configuration
    attempts: tuple[AttemptStory, ...]
    findings: tuple[FindingStory, ...]
    verdicts: tuple[VerdictLine, ...]
    counts: Mapping[str, Mapping[str, int]]
    imported: tuple[ImportedLine, ...]
    hosts: tuple[HostLine, ...]
    environment: tuple[OutcomeLine, ...]
    tables: tuple[TableLine, ...]

    @property
    def measured_hosts(self) -> tuple[str, ...]:
        """Labels of the machines that this pipeline measured on."""
        return tuple(sorted({host.host for host in self.hosts if host.evidence == "measured"}))


def read_rows(folder: Path) -> dict[str, list[Row]]:
    """All tables below `folder` as rows, ordered by content; a table that is not there is empty.

    Raises TableError for a folder without any table and for a file that is no table of ours.
    """
    if not table_files(folder):
        raise TableError(f"{folder}: holds none of the tables (docs/tables.md); run the target `tables` first")
    found: dict[str, list[Row]] = {}
    for name, table in TABLES.items():
        path = folder / table.filename
        found[name] = in_order(read_table(path, table).to_pylist()) if path.exists() else []
    return found


def table_files(folder: Path) -> list[Path]:
    """The files of the tables below `folder` that are there."""
    return [path for table in TABLES.values() if (path := folder / table.filename).exists()]


def in_order(rows: Iterable[Row]) -> list[Row]:
    """Rows in an order that depends on their content alone."""
    return sorted(rows, key=canonical)


def canonical(row: Row) -> str:
    """A row as JSON with sorted keys."""
    return json.dumps(row, sort_keys=True, ensure_ascii=True, default=str)


def frames(rows: Mapping[str, Sequence[Row]]) -> dict[str, pd.DataFrame]:
    """The rows as data frames; an empty table keeps its columns."""
    return {
        name: pd.DataFrame([dict(row) for row in rows.get(name, ())], columns=list(table.names))
        for name, table in TABLES.items()
    }


def tell(configuration: Configuration, rows: Mapping[str, Sequence[Row]]) -> Story:
    """The story of these tables."""
    verdicts = tuple(_verdict(configuration, row) for row in rows["verdicts"] if row["scope"] != CONTROL)
    controls = [_verdict(configuration, row) for row in rows["verdicts"] if row["scope"] == CONTROL]
    findings = tuple(_finding(configuration, finding, verdicts) for finding in configuration.findings.values())
    outcomes = tuple(_outcome(row) for row in rows["outcomes"])
    scores = tuple(_score(row) for row in rows["precheck_scores"])
    data = frames(rows)
    panels = effect_panels(data["effects"], data["verdicts"])
    return Story(
        configuration=configuration,
        attempts=tuple(
            replace(
                _attempt(configuration, attempt, findings, outcomes, scores, panels, rows["measurements"]),
                controls=tuple(
                    _control(configuration, control, controls, panels, rows)
                    for control in configuration.controls_of(attempt.id)
                    if control.id in configuration.study.attempts or any(c.attempt == control.id for c in controls)
                ),
            )
            for attempt in configuration.attempts.values()
            if not attempt.control_of
        ),
        findings=findings,
        verdicts=tuple(sorted(verdicts, key=_verdict_key)),
        counts={scope: Counter(line.verdict for f in findings for line in f.of_scope(scope)) for scope in SCOPES},
        imported=_imported(rows["measurements"]),
        hosts=tuple(_host(row) for row in rows["hosts"]),
        environment=tuple(
            line
            for line in outcomes
            if line.kind in ("environment", "probe", "download") and line.evidence == "measured"
        ),
        tables=tuple(_table(name, rows[name]) for name in TABLES),
    )


# --- verdicts -----------------------------------------------------------------------------------------------------


def _verdict(configuration: Configuration, row: Row) -> VerdictLine:
    known = configuration.findings.get(str(row["finding"]))
    change = None
    if row["change_percent"] is not None:
        change = Change(row["change_percent"], row["change_low_percent"], row["change_high_percent"])
    return VerdictLine(
        finding=row["finding"],
        title=known.title if known else str(row["finding"]),
        attempt=row["attempt"],
        scope=row["scope"],
        study=row["study"],
        host=row["host"],
        engine=row["engine"],
        build=row["build"],
        evidence=row["evidence"],
        verdict=row["verdict"],
        reason=row["reason"],
        arm=row["arm"],
        prompt_class=row["prompt_class"],
        change=change,
        blocks=row["blocks"],
        blocks_needed=row["blocks_needed"],
        failed_gates=tuple(row["failed_gates"]),
        p_value=row["p_value"],
        holds_until=row["holds_until_build"],
        fails_since=row["fails_since_build"],
        would_make_testable=row["would_make_testable"],
        published_percent=row["published_percent"],
        advice=row["advice"],
        command=row["command"],
    )


def _verdict_key(line: VerdictLine) -> tuple[Any, ...]:
    return (line.attempt, line.finding, SCOPES.index(line.scope), line.host, line.build or 0, line.engine, line.reason)


def _finding(configuration: Configuration, finding: Finding, verdicts: Sequence[VerdictLine]) -> FindingStory:
    lines = tuple(sorted((line for line in verdicts if line.finding == finding.id), key=_verdict_key))
    leading = []
    for scope in SCOPES:
        for host in sorted({line.host for line in lines if line.scope == scope}):
            here = [line for line in lines if line.scope == scope and line.host == host]
            leading.append(max(here, key=lambda line: _weight(configuration, line)))
    return FindingStory(finding, lines, tuple(leading))


def _weight(configuration: Configuration, line: VerdictLine) -> tuple[Any, ...]:
    """Which of several builds speaks for today: one that was tested, the study's default engine, the newest."""
    return (
        line.verdict != "not_testable",
        line.engine == configuration.study.default_engine,
        line.build or 0,
        line.engine,
        line.reason,
    )


# --- outcomes, pre-check ------------------------------------------------------------------------------------------


def _outcome(row: Row) -> OutcomeLine:
    return OutcomeLine(
        evidence=row["evidence"],
        host=row["host"],
        attempt=row["attempt"],
        kind=row["kind"],
        subject=row["subject"],
        engine=row["engine"],
        build=row["build"],
        converter=row["converter"],
        arm=row["arm"],
        outcome=row["outcome"],
        reason=row["reason"],
        engagement=row["engagement"],
        exit_code=row["exit_code"],
        command=row["command"],
        log_tail=row["log_tail"],
        prediction=row["prediction"] or "",
        record=row["record"],
        detail=json.loads(row["detail_json"] or "{}"),
    )


def _score(row: Row) -> ScoreLine:
    return ScoreLine(
        attempt=row["attempt"],
        host=row["host"],
        engine=row["engine"],
        build=row["build"],
        arm=row["arm"],
        question=row["question"],
        predicted=row["predicted"] or "",
        observed=row["observed"] or "",
        right=row["right"],
        reason=row["reason"],
        observed_reason=row["observed_reason"],
    )


# --- attempts -----------------------------------------------------------------------------------------------------


def _attempt(
    configuration: Configuration,
    attempt: Attempt,
    findings: Sequence[FindingStory],
    outcomes: Sequence[OutcomeLine],
    scores: Sequence[ScoreLine],
    panels: Mapping[tuple[str, str, str], Sequence[EffectRow]],
    measurements: Sequence[Row],
) -> AttemptStory:
    plan = configuration.study.attempts.get(attempt.id)
    roles = configuration.study.roles_of(attempt.id) if plan else dict(configuration.study.roles)
    mine = [line for line in outcomes if line.evidence == "measured" and line.attempt == attempt.id]
    own = sorted((line for line in mine if line.kind in TRIED), key=_tried_key)
    ended = sorted((line for line in mine if line.outcome not in WORKED), key=_tried_key)
    used = set(roles) & (set(attempt.roles) | {arm.speculation.drafter for arm in attempt.arms})
    return AttemptStory(
        attempt=attempt,
        in_study=plan is not None,
        findings=tuple(f for f in findings if f.finding.attempt == attempt.id),
        arms=tuple(
            ArmStory(
                arm,
                configuration.models.get(roles.get(arm.speculation.drafter, "")),
                _classes(configuration, attempt, arm),
            )
            for arm in attempt.arms
        ),
        models=tuple(
            (role, configuration.models[roles[role]]) for role in sorted(used) if roles[role] in configuration.models
        ),
        measured_with=tuple(plan.measure) if plan else (),
        loaded_with=tuple(plan.load) if plan else (),
        converted_with=tuple(dict.fromkeys(c for item in plan.convert for c in item.converters)) if plan else (),
        panels=_panels(attempt, panels, measurements),
        outcomes=tuple(own),
        refusals=_once(ended),
        scores=tuple(s for s in scores if s.attempt == attempt.id),
        published_rows=tuple(m.id for m in configuration.published.measurements.values() if m.attempt == attempt.id),
    )


def _panels(
    attempt: Attempt, panels: Mapping[tuple[str, str, str], Sequence[EffectRow]], measurements: Sequence[Row]
) -> tuple[PanelStory, ...]:
    return tuple(
        _panel(host, engine, attempt.id, lines, measurements)
        for (host, name, engine), lines in sorted(panels.items())
        if name == attempt.id
    )


def _control(
    configuration: Configuration,
    control: Attempt,
    lines: Sequence[VerdictLine],
    panels: Mapping[tuple[str, str, str], Sequence[EffectRow]],
    rows: Mapping[str, Sequence[Row]],
) -> ControlStory:
    """A control's lines by machine and engine, with the drafts that the effects count."""
    plan = configuration.study.attempts.get(control.id)
    told = []
    for line in sorted(
        (line for line in lines if line.attempt == control.id), key=lambda item: (item.host, item.engine)
    ):
        effects = [
            row
            for row in rows["effects"]
            if row["evidence"] == line.evidence
            and (row["host"], row["attempt"], row["engine"], row["arm"])
            == (line.host, control.id, line.engine, control.control.id)
            and row["prompt_class"] == line.prompt_class
            and row["ln_ratio"] is not None
        ]
        drafted, accepted = (sum(int(row[key] or 0) for row in effects) for key in ("draft_tokens", "accepted_tokens"))
        told.append(ControlLine(line, drafted, accepted))
    target = configuration.models.get(configuration.study.roles_of(control.id).get("target", "")) if plan else None
    return ControlStory(control, target, tuple(told), _panels(control, panels, rows["measurements"]))


def _classes(configuration: Configuration, attempt: Attempt, arm: Arm) -> tuple[str, ...]:
    """Classes of prompts of an arm; of the study's in general where the study does not run the attempt."""
    if attempt.id in configuration.study.attempts:
        return tuple(str(group) for group in configuration.classes_of(attempt.id, arm))
    return tuple(str(group) for group in arm.prompt_classes or configuration.study.prompt_classes)


def _tried_key(line: OutcomeLine) -> tuple[Any, ...]:
    """Conversions before loads, older builds before newer ones."""
    place = TRIED.index(line.kind) if line.kind in TRIED else len(TRIED)
    return (
        place,
        line.kind,
        line.build or 0,
        line.engine,
        line.converter,
        line.arm,
        line.subject,
        line.host,
        line.record,
    )


def _once(lines: Sequence[OutcomeLine]) -> tuple[OutcomeLine, ...]:
    """Lines without the repetitions that every block makes of the same refusal."""
    seen: dict[tuple[str, ...], OutcomeLine] = {}
    for line in lines:
        key: tuple[str, ...] = (line.host, line.kind, line.engine, line.converter, line.arm, line.outcome, line.reason)
        if line.kind != "block":
            key = (*key, line.subject)
        seen.setdefault(key, line)
    return tuple(seen.values())


def _panel(host: str, engine: str, attempt: str, lines: Sequence[EffectRow], measurements: Sequence[Row]) -> PanelStory:
    here = [
        row
        for row in measurements
        if row["evidence"] == "measured" and (row["host"], row["engine"], row["attempt"]) == (host, engine, attempt)
    ]
    blocks = {(row["session"], row["block"]) for row in here}
    return PanelStory(host, engine, len(blocks), sum(bool(row["counted"]) for row in here), tuple(lines))


# --- others' data, machines, tables -------------------------------------------------------------------------------


def _imported(measurements: Sequence[Row]) -> tuple[ImportedLine, ...]:
    """One line per machine, model, backend and method; a change is the mean over prompts of the ratio's logarithm."""
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in measurements:
        if row["evidence"] == "imported" and row["counted"] and row["tg_tokens_per_s"]:
            group = (row["host"], row["model"], row["quantization"], row["backend"], row["arm"])
            groups.setdefault(group, []).append(row)
    lines = []
    for key, rows in groups.items():
        host, model, quantization, backend, arm = key
        kind = str(rows[0]["arm_kind"])
        base = [r for k, v in groups.items() if k[:4] == key[:4] for r in v if r["arm_kind"] == "baseline"]
        drafting = [r for r in rows if r["draft_tokens"]]
        lines.append(
            ImportedLine(
                host=host,
                model=model,
                quantization=quantization,
                backend=backend,
                arm=arm,
                arm_kind=kind,
                prompts=len({r["prompt_id"] for r in rows}),
                runs=len(rows),
                mean_tokens_per_s=math.fsum(float(r["tg_tokens_per_s"]) for r in rows) / len(rows),
                change=_mean_change(drafting, base) if kind != "baseline" else None,
                drafted=sum(int(r["draft_tokens"]) for r in drafting),
                accepted=sum(int(r["accepted_tokens"] or 0) for r in rows),
                drafting_runs=len(drafting),
                source=str(rows[0]["source"]),
                licence=str(rows[0]["licence"]),
            )
        )
    return tuple(sorted(lines, key=lambda n: (n.host, n.model, n.backend, n.arm_kind != "baseline", n.arm)))


def _mean_change(rows: Sequence[Row], base: Sequence[Row]) -> float | None:
    """Change in percent against the baseline's run of the same prompt, averaged over prompts as ln ratios."""
    speeds: dict[str, list[float]] = {}
    for row in base:
        speeds.setdefault(str(row["prompt_id"]), []).append(float(row["tg_tokens_per_s"]))
    logs = [
        math.log(float(row["tg_tokens_per_s"]) / (math.fsum(known) / len(known)))
        for row in rows
        if (known := speeds.get(str(row["prompt_id"])))
    ]
    return math.expm1(math.fsum(logs) / len(logs)) * 100 if logs else None


def _host(row: Row) -> HostLine:
    return HostLine(
        evidence=row["evidence"],
        host=row["host"],
        os=row["os"],
        python=row["python"],
        cpu=row["cpu"],
        cores=row["cores"],
        memory_bytes=row["memory_bytes"],
        gpu=row["gpu"],
        compute_capability=row["compute_capability"],
        driver=row["driver"],
        versions={str(k): str(v) for k, v in sorted(json.loads(row["versions_json"] or "{}").items())},
        source=row["source"],
    )


def _table(name: str, rows: Sequence[Row]) -> TableLine:
    by = Counter(str(row.get("evidence", "measured")) for row in rows)
    digest = hashlib.sha256("\n".join(canonical(row) for row in rows).encode()).hexdigest()
    return TableLine(name, len(rows), dict(sorted(by.items())), digest)
