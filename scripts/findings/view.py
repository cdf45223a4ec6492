"""Pieces of text that the document and the report share: labels, claims, credits, the attestation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from findings import words
from findings.config import Configuration, DerivedClaim, Finding, FindingKind, Published
from findings.leakscan import HitKind
from findings.looks import OUTCOMES, VERDICTS, look
from findings.published import ClaimCheck, Follows, check_claims, conclusion, shown
from findings.story import AttemptStory, ControlLine, ControlStory, ImportedLine, OutcomeLine, Story, VerdictLine

MARKS: Mapping[str, str] = {"holds": "●", "no_longer_holds": "✖", "inconclusive": "◆", "not_testable": "□"}
QUESTIONS: Mapping[str, str] = {
    "loads": "will it load?",
    "engages": "will it engage?",
    "fits": "will it fit?",
    "pays": "will it pay?",
}
KINDS: Mapping[str, str] = {
    HitKind.TOKEN: "tokens",
    HitKind.PRIVATE_KEY: "private keys",
    HitKind.LOGIN: "logins",
    HitKind.SECRET: "strings that look like passwords",
    HitKind.PRIVATE_ADDRESS: "private network addresses",
    HitKind.MAC_ADDRESS: "hardware addresses",
    HitKind.MACHINE_NAME: "the machine's name",
    HitKind.USER_NAME: "the user's name",
    HitKind.HOME_PATH: "home folders",
    HitKind.LOCAL_PATH: "paths of this machine",
    HitKind.EMAIL: "e-mail addresses",
    HitKind.PACKAGE_INDEX: "addresses of package indexes",
}
SHOWN_VERSIONS = ("version", "build", "commit", "driver", "backend", "python", "lock_sha256", "size_bytes", "sha256")


@dataclass(frozen=True)
class Scanned:
    """What the leak scan read: files behind the text and their lines, and hits that an allowance covers, by reason."""

    files: int
    lines: int
    allowed: Mapping[str, int]


@dataclass(frozen=True)
class AgainstLine:
    """A published comparison computed against one baseline, as text; `stated`: the one that its words point to."""

    baseline: str
    stated: bool
    computed: str
    follows: str


@dataclass(frozen=True)
class ClaimLine:
    """A published comparison, what it is about, and whether it follows, as text."""

    shown: str
    place: str
    figure: str
    against: tuple[AgainstLine, ...]
    remark: str


def mark(verdict: str) -> str:
    """A shape for a verdict, the same in the figures."""
    return MARKS.get(verdict, "○")


def verdict_label(verdict: str) -> str:
    """A verdict in words."""
    return look(VERDICTS, verdict).label


def outcome_label(outcome: str) -> str:
    """An outcome in words."""
    return look(OUTCOMES, outcome).label


def ratio_percent(ln_ratio: float) -> str:
    """A ln ratio of speeds as a change in percent; an end that says nothing is `unbounded`."""
    if math.isinf(ln_ratio):
        return "unbounded"
    return words.percent(math.expm1(ln_ratio) * 100, 1)


def drafts(line: ImportedLine) -> str:
    """Accepted of drafted tokens and in how many runs any were drafted, or what the method did instead."""
    if line.arm_kind == "baseline":
        return words.NOTHING
    if line.drafted == 0:
        return "drafted nothing"
    text = f"{line.accepted} of {line.drafted} ({words.share(line.accepted / line.drafted)})"
    return text if line.drafting_runs == line.runs else f"{text}, drafted in {line.drafting_runs} of {line.runs} runs"


def imported_model(line: ImportedLine) -> str:
    """A model of others with its quantization, where its name does not say it."""
    if not line.quantization or line.quantization in line.model:
        return line.model
    return f"{line.model}, {line.quantization}"


def needed(line: VerdictLine) -> str:
    """What would make a finding testable; a command as code."""
    text = line.would_make_testable
    return f"`{text}`" if text.startswith("snakemake ") else text


def host_name(configuration: Configuration, host: str) -> str:
    """A published machine's label with its GPU; `not stated` where the study does not say."""
    known = configuration.published.hosts.get(host)
    if known is None:
        return host or "not stated"
    same = re.sub(r"[^a-z0-9]", "", known.gpu.lower()) == re.sub(r"[^a-z0-9]", "", known.label.lower())
    return known.gpu if same else f"{known.label} ({known.gpu})"


def facts(line: OutcomeLine) -> str:
    """The details of an environment, a probe or a download that identify it, on one line."""
    if line.outcome != "ok":
        return words.said(line.reason)
    found = []
    for name in SHOWN_VERSIONS:
        value = line.detail.get(name)
        if value not in (None, "", []):
            shown = words.size(int(value)) if name == "size_bytes" else str(value)
            found.append(f"{words.spaced(name)} {shown[:12] if 'sha256' in name else shown}")
    packages = line.detail.get("packages")
    if isinstance(packages, Mapping):
        found += [f"{name} {version}" for name, version in sorted(packages.items())]
    kinds = line.detail.get("spec_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str) and kinds:
        found.append(f"speculation: {', '.join(str(kind) for kind in kinds)}")
    return "; ".join(found) or words.NOTHING


def claim_lines(published: Published) -> list[ClaimLine]:
    """The derived claims with what they come to against the stated baseline and each alternative."""
    checks: dict[str, list[ClaimCheck]] = {}
    for check in check_claims(published):
        checks.setdefault(check.claim, []).append(check)
    return [_claim(published, claim, checks[claim.id]) for claim in published.claims.values()]


def _claim(published: Published, claim: DerivedClaim, checks: Sequence[ClaimCheck]) -> ClaimLine:
    answers = {Follows.YES: "yes", Follows.WITHIN_ROUNDING: "within the rounding of the figures", Follows.NO: "no"}
    note = f" {words.sentence(claim.note)}" if claim.note else ""
    return ClaimLine(
        shown=words.true_minus(claim.shown_as or shown(claim.value, claim.kind, claim.decimals)),
        place=claim.place,
        figure=_figure(published, claim.figure),
        against=tuple(
            AgainstLine(
                baseline=_figure(published, check.baseline),
                stated=check.stated,
                computed=words.true_minus(shown(check.computed, check.kind, check.decimals + 1)),
                follows=answers[check.follows],
            )
            for check in checks
        ),
        remark=words.true_minus(conclusion(checks)) + note,
    )


def _figure(published: Published, key: str) -> str:
    """A published figure with its id: `M1, 25.34 tokens/s`."""
    figure = published.measurements[key]
    return f"{key}, {words.speed(figure.tg_tokens_per_s, figure.decimals)}"


def shows_cause(item: AttemptStory, finding: Finding) -> bool:
    """Whether a published cause is told with this finding: with the finding about the cause, else with the first."""
    cause = finding.published_root_cause
    if not cause:
        return False
    same = [f.finding for f in item.findings if f.finding.published_root_cause == cause]
    chosen = next((f for f in same if f.kind is FindingKind.ROOT_CAUSE), same[0])
    return chosen.id == finding.id


def control_says(control: ControlStory, told: ControlLine) -> str:
    """What a positive control allows to say about "does not pay" on one machine: one or two sentences."""
    line = told.line
    what = f"{line.host or 'This machine'} with {line.engine}"
    doubt = "a “does not pay” of multi-token prediction there would not be credible"
    if line.verdict == "not_testable" and line.would_make_testable == control.command:
        return f"{what}: not measured yet (`{control.command}`)."
    if line.change is None:
        return f"{what}: no speed of multi-token prediction ({line.reason}), so {doubt}."
    change = words.percent(line.change.mean, 1)
    if line.change.low is not None and line.change.high is not None:
        change += f", interval {words.percent(line.change.low, 1)} to {words.percent(line.change.high, 1)}"
    drafted = f"{told.accepted} of {told.drafted} drafted tokens accepted"
    numbers = f"{change} ({words.count(line.blocks or 0, 'block')}, {drafted})"
    if line.verdict == "holds":
        return f"{what} can show multi-token prediction paying: {numbers}."
    gates = words.listing([words.spaced(gate) for gate in line.failed_gates])
    why = f" (failed gates: {gates})" if gates else ""
    return f"{what} was not seen to pay even here{why}: {numbers}. So {doubt}."


def where(line: object) -> str:
    """The engine, converter or wheel of a line, with its build where the id does not say it."""
    name = str(getattr(line, "engine", "") or getattr(line, "converter", "") or "")
    build = getattr(line, "build", None)
    if build is None or words.build(build) in name:
        return name or words.NOTHING
    return f"{name} ({words.build(build)})" if name else words.build(build)


def about(line: OutcomeLine) -> str:
    """What a conversion, load or probe was about, without what another column says."""
    return line.arm or line.subject.removesuffix(f"/{line.converter}") or words.NOTHING


def credits_of(lines: Sequence[ImportedLine]) -> list[str]:
    """Source and licence of each imported file, once."""
    found = {f"{line.source or 'source not stated'}, {line.licence or 'licence not stated'}" for line in lines}
    return sorted(found)


def attestation(scanned: Scanned) -> str:
    """What was scanned for what before this was written; a hit stops the writing."""
    kinds = [KINDS.get(kind, words.spaced(kind)) for kind in HitKind if kind is not HitKind.UNREADABLE]
    text = (
        f"Before this was written, its own text and the {words.count(scanned.files, 'file')} behind it (tables and "
        f"figures, {words.count(scanned.lines, 'line')}) were scanned for {words.listing(kinds)}. "
    )
    if not scanned.allowed:
        return text + "Nothing was found; a hit would have stopped it."
    reasons = "; ".join(f"{reason} ({count})" for reason, count in sorted(scanned.allowed.items()))
    return text + f"Nothing was found but what the configuration allows with a reason: {reasons}."


def helpers(story: Story) -> dict[str, Any]:
    """Names that both templates use."""
    configuration = story.configuration
    return {
        "words": words,
        "story": story,
        "study": configuration.study,
        "document": configuration.published.document,
        "published": configuration.published,
        "scopes": ("as_published", "mechanism"),
        "verdict_words": tuple(VERDICTS),
        "questions": QUESTIONS,
        "mark": mark,
        "verdict_label": verdict_label,
        "outcome_label": outcome_label,
        "ratio_percent": ratio_percent,
        "drafts": drafts,
        "imported_model": imported_model,
        "needed": needed,
        "about": about,
        "facts": facts,
        "where": where,
        "control_says": control_says,
        "shows_cause": shows_cause,
        "loose": [f for f in story.findings if f.finding.attempt not in configuration.attempts],
        "host_name": lambda host: host_name(configuration, host),
        "claims": claim_lines(configuration.published),
        "credits": credits_of(story.imported),
    }
