"""The pre-check of a pair: will each file load, will the pair engage, will it fit, can it pay; and was that right.

Everything comes from the two headers and from what a build of llama.cpp is known to do (findings.engine_rules). The
prediction is made before anything is loaded; `score` puts it beside what an engine then did.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from findings import engine_rules
from findings.engine_rules import Behaviour
from findings.gguf_header import GgufError, Header, read_header
from findings.loadability import Loadability, check_file
from findings.memory_plan import MemoryPlan, Settings, plan_model
from findings.mtp import MtpCheck, check_mtp, needed_type
from findings.payoff import Payoff, bytes_per_token, payoff
from findings.records import Engagement, Outcome, Record
from findings.vocabulary import Comparison, Vocabulary, compare, read_vocabulary

DEFAULT_DRAFTED = 3
FLAGS = {"draft_simple": "draft-simple", "draft_mtp": "draft-mtp", "draft_eagle3": "draft-eagle3"}
FLAGS |= {"draft_dflash": "draft-dflash"}


class Mechanism(StrEnum):
    """What speculation does once the server is up. The first three draft, the others do not get that far."""

    ENGAGED = "engaged"
    TRANSLATED = "translated"
    ALL_REJECTED = "all_rejected"
    NOT_ENGAGED = "not_engaged"
    FAILS = "fails"
    NOT_LOADED = "not_loaded"
    OFF = "off"

    @property
    def drafts(self) -> bool:
        """Whether tokens are drafted."""
        return self in (Mechanism.ENGAGED, Mechanism.TRANSLATED, Mechanism.ALL_REJECTED)


@dataclass(frozen=True)
class Prediction:
    """What is expected of a pair on one build, with reasons and what to do, all in words for people.

    `gain_sign` is -1 (slower), 0 (nothing happens), 1 (faster) or None where the headers do not tell. `unreadable`
    names a file that is no GGUF (then nothing else was asked).
    """

    build: int
    target: str
    drafter: str
    spec_type: str
    mechanism: Mechanism
    verdict: str
    reasons: tuple[str, ...] = ()
    todo: tuple[str, ...] = ()
    unreadable: str = ""
    target_load: Loadability | None = None
    drafter_load: Loadability | None = None
    vocabularies: tuple[Vocabulary, Vocabulary] | None = None
    comparison: Comparison | None = None
    mtp: MtpCheck | None = None
    memory: MemoryPlan | None = None
    payoff: Payoff | None = None
    gain_sign: int | None = None
    certain: bool = True

    @property
    def loads(self) -> bool:
        """Whether the server gets up with all files."""
        return self.mechanism is not Mechanism.NOT_LOADED

    @property
    def fits(self) -> bool | None:
        """Whether the pair fits; None without a budget or a plan."""
        return self.memory.fits if self.memory else None

    def label(self) -> dict[str, Any]:
        """The part that is scored: loads, engages (a Mechanism), fits, gain_sign."""
        return {
            "loads": self.loads,
            "engages": self.mechanism.value,
            "fits": self.fits,
            "gain_sign": self.gain_sign,
        }

    def as_json(self) -> dict[str, Any]:
        """The prediction as JSON for a record and for programs."""
        return {
            "summary": self.verdict,
            "build": self.build,
            "target": self.target,
            "drafter": self.drafter,
            "spec_type_needed": self.spec_type,
            "will_load_target": _load_json(self.target_load),
            "will_load_drafter": _load_json(self.drafter_load),
            "will_engage": {"mechanism": self.mechanism.value, **_comparison_json(self.comparison, self.vocabularies)},
            "mtp": self.mtp.as_json() if self.mtp else None,
            "fits": self.memory.as_json() if self.memory else None,
            "can_pay": self.payoff.as_json() if self.payoff else None,
            "reasons": list(self.reasons),
            "todo": list(self.todo),
            "certain": self.certain,
            "unreadable": self.unreadable,
            "prediction": self.label(),
        }

    def text(self) -> str:
        """For people: one line of verdict, then the reasons, then what to do."""
        lines = [self.verdict, ""]
        lines += [f"  - {reason}" for reason in self.reasons]
        if self.todo:
            lines += ["", "What to do:", *(f"  - {step}" for step in self.todo)]
        return "\n".join(lines) + "\n"


def _load_json(found: Loadability | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"loads": found.loads, "reasons": list(found.reasons), "certain": found.certain, "notes": list(found.notes)}


def _comparison_json(found: Comparison | None, vocabularies: tuple[Vocabulary, Vocabulary] | None) -> dict[str, Any]:
    content: dict[str, Any] = {"vocabularies_equal": None, "checks": [], "information": []}
    if found is not None:
        content = {
            "vocabularies_equal": found.compatible,
            "checks": [vars(check) for check in found.checks],
            "information": list(found.information),
        }
    if vocabularies is not None:
        content["vocabularies"] = {
            role: {**vars(v), "notes": list(v.notes), "type": v.type_name}
            for role, v in zip(("target", "drafter"), vocabularies, strict=True)
        }
    return content


@dataclass(frozen=True)
class Question:
    """What is asked. `spec_type` in our words ("" for what the drafter needs), `budget` in bytes, None for no limit.

    `drafted` is the length of a draft in tokens. `relative_cost` and `verify_cost` replace the estimate from bytes by
    measured costs, both in tokens of the target.
    """

    build: int = engine_rules.NEWEST_TESTED
    spec_type: str = ""
    settings: Settings = field(default_factory=Settings)
    budget: int | None = None
    drafted: int = DEFAULT_DRAFTED
    relative_cost: float | None = None
    verify_cost: float | None = None
    deep: bool = False


def precheck_files(target: Path, drafter: Path | None, question: Question) -> Prediction:
    """`precheck` on files. A file that cannot be read as GGUF gives a prediction that says so (`unreadable`)."""
    headers: list[Header] = []
    for path in (target, drafter):
        if path is None:
            continue
        try:
            headers.append(read_header(path))
        except GgufError as error:
            return Prediction(
                question.build,
                target.name,
                drafter.name if drafter else "",
                question.spec_type,
                Mechanism.NOT_LOADED,
                f"NO: {path.name} is no readable GGUF file",
                reasons=(str(error),),
                unreadable=error.fault.value,
            )
    return precheck(headers[0], headers[1] if len(headers) > 1 else None, question)


def precheck(target: Header, drafter: Header | None, question: Question) -> Prediction:
    """The prediction for one pair (or for one model alone, without a drafter) on one build."""
    rules = engine_rules.behaviour(question.build)
    target_load = check_file(target, question.build, question.deep)
    drafter_load = check_file(drafter, question.build, question.deep) if drafter is not None else None
    needed = needed_type(drafter) if drafter is not None else "none"
    asked = question.spec_type or needed
    base = Prediction(
        build=question.build,
        target=target.path.name,
        drafter=drafter.path.name if drafter is not None else "",
        spec_type=needed,
        mechanism=Mechanism.OFF,
        verdict="",
        target_load=target_load,
        drafter_load=drafter_load,
        certain=target_load.certain and (drafter_load is None or drafter_load.certain) and rules.certain,
        memory=_memory(target, target_load, drafter, drafter_load, question, rules),
    )
    if drafter is not None and drafter_load is not None:
        base = replace(
            base,
            vocabularies=(read_vocabulary(target), read_vocabulary(drafter)),
            comparison=compare(target, drafter, rules),
            mtp=check_mtp(target, drafter, rules),
            payoff=_payoff(target, target_load, drafter, drafter_load, question),
        )
        base = replace(base, mechanism=_mechanism(base, asked, rules))
    elif not target_load.loads:
        base = replace(base, mechanism=Mechanism.NOT_LOADED)
    base = replace(base, gain_sign=_gain_sign(base))
    return replace(base, verdict=_verdict(base), reasons=_reasons(base, rules), todo=_todo(base, asked, rules))


def _mechanism(found: Prediction, asked: str, rules: Behaviour) -> Mechanism:
    """What speculation will do, by that build's rules."""
    assert found.target_load and found.drafter_load and found.comparison and found.mtp and found.vocabularies
    if not (found.target_load.loads and found.drafter_load.loads):
        return Mechanism.NOT_LOADED
    if asked == "draft_mtp":
        return _mtp_mechanism(found, rules)
    none = [vocabulary.type_id == 0 for vocabulary in found.vocabularies]
    if any(none) and (all(none) or rules.drafter_without_vocabulary == "fails"):
        return Mechanism.FAILS
    if not found.comparison.compatible:
        return Mechanism(rules.on_mismatch)
    if found.mtp.is_mtp:
        # A drafter that needs the target's hidden states, started as an ordinary one.
        return Mechanism(rules.mtp_as_draft_simple)
    return Mechanism.ENGAGED


def _mtp_mechanism(found: Prediction, rules: Behaviour) -> Mechanism:
    """MTP compares widths, and nothing of the vocabularies (common/speculative.cpp)."""
    assert found.mtp is not None
    if not rules.mtp or not found.mtp.is_mtp or found.mtp.problems:
        return Mechanism.NOT_LOADED
    return Mechanism.ENGAGED


def _gain_sign(found: Prediction) -> int | None:
    if found.mechanism is Mechanism.NOT_ENGAGED:
        return 0
    if found.mechanism.drafts and found.payoff is not None and found.payoff.never:
        return -1
    return None


def _memory(
    target: Header,
    target_load: Loadability,
    drafter: Header | None,
    drafter_load: Loadability | None,
    question: Question,
    rules: Behaviour,
) -> MemoryPlan | None:
    if not target_load.loads or (drafter_load is not None and not drafter_load.loads):
        return None
    plans = [
        plan_model(header, load.parts.tensors, read_vocabulary(header).size, question.settings, rules)
        for header, load in ((target, target_load), (drafter, drafter_load))
        if header is not None and load is not None
    ]
    return MemoryPlan(plans[0], plans[1] if len(plans) > 1 else None, question.budget, question.settings)


def _payoff(
    target: Header, target_load: Loadability, drafter: Header, drafter_load: Loadability, question: Question
) -> Payoff | None:
    cost = question.relative_cost
    if cost is None:
        ours = bytes_per_token(target, target_load.parts.tensors)
        theirs = bytes_per_token(drafter, drafter_load.parts.tensors)
        if not ours or not theirs:
            return None
        cost = theirs / ours
    measured = question.relative_cost is not None and question.verify_cost is not None
    return payoff(cost, question.drafted, question.verify_cost or 1.0, measured)


_HEADLINES = {
    Mechanism.ENGAGED: "will load and draft",
    Mechanism.TRANSLATED: "will load and draft through text: the vocabularies differ, the tokens are translated",
    Mechanism.ALL_REJECTED: "will load and draft, and every draft will be rejected",
    Mechanism.NOT_ENGAGED: "will load, stay healthy, and silently not speculate",
    Mechanism.FAILS: "will load, and fail at the first request",
    Mechanism.NOT_LOADED: "will not load",
    Mechanism.OFF: "will load",
}


def _verdict(found: Prediction) -> str:
    good = found.mechanism in (Mechanism.ENGAGED, Mechanism.TRANSLATED, Mechanism.OFF)
    head = f"{_HEADLINES[found.mechanism]} (build {found.build})"
    if not good:
        return f"NO: {head}"
    if found.fits is False:
        return f"NO: {head}, but it does not fit"
    if found.payoff is not None and found.payoff.never:
        return f"NO: {head}, but it can never pay"
    if found.mechanism is Mechanism.TRANSLATED:
        return f"CAREFUL: {head}"
    doubts = _hazards(found)
    return f"CAREFUL: {head}, but {doubts[0]}" if doubts else f"YES: {head}"


def _hazards(found: Prediction) -> list[str]:
    """What the engine does not check although it spoils the pair."""
    hazards = []
    comparison = found.comparison
    if comparison is None or not found.mechanism.drafts:
        return []
    if comparison.type_difference_missed:
        hazards.append(
            "this build does not notice that the vocabularies are of different types: drafts may all be rejected "
            "(0 of 736 accepted in one such pair)"
        )
    if comparison.compatible and comparison.smaller_size != comparison.larger_size:
        hazards.append(
            f"a token from id {comparison.smaller_size} on exists in one vocabulary only: the request that produces "
            "one fails (HTTP 500) or ends the server"
        )
    if found.mtp is not None and found.mtp.is_mtp and not comparison.compatible:
        failed = comparison.failed
        hazards.append(
            f"the vocabularies differ ({failed.name if failed else ''}), which draft-mtp does not check: drafts would "
            "be other tokens than meant"
        )
    return hazards


def _reasons(found: Prediction, rules: Behaviour) -> tuple[str, ...]:
    reasons: list[str] = []
    for role, load in (("target", found.target_load), ("drafter", found.drafter_load)):
        if load is not None:
            reasons += [f"{role} will not load: {reason}" for reason in load.reasons]
            reasons += [f"{role}: {note}" for note in load.notes]
    if found.mtp is not None:
        if found.mtp.is_mtp:
            reasons.append(f"the drafter is made for a target of width {found.mtp.target_width} ({found.spec_type})")
        reasons += [*found.mtp.problems, *found.mtp.notes]
    if found.comparison is not None:
        for check in found.comparison.checks:
            reasons.append(f"{check.name}: {'equal' if check.passed else 'DIFFERENT'}: {check.detail}")
        reasons += found.comparison.information
    for vocabulary, role in zip(found.vocabularies or (), ("target", "drafter"), strict=False):
        reasons += [f"{role}: {note}" for note in vocabulary.notes]
    reasons += _hazards(found)
    if found.memory is not None:
        reasons.append(f"memory: {found.memory.sentence()}")
        for plan in (found.memory.target, found.memory.drafter):
            reasons += plan.notes if plan else ()
    if found.payoff is not None and found.loads:
        reasons.append(found.payoff.sentence())
    if rules.note and found.drafter:
        reasons.append(rules.note)
    return tuple(dict.fromkeys(reasons))


def _todo(found: Prediction, asked: str, rules: Behaviour) -> tuple[str, ...]:
    steps: list[str] = []
    flag = FLAGS.get(found.spec_type, found.spec_type)
    if found.drafter and found.mtp is not None and found.mtp.is_mtp and asked != found.spec_type:
        steps.append(f"start it with --spec-type {flag}; as {FLAGS.get(asked, asked)} it does not work")
    elif found.drafter and found.loads and (rules.spec_type_needed or found.spec_type != "draft_simple"):
        steps.append(f"pass --spec-type {flag}: with the drafter's file alone this build does not speculate")
    if found.mechanism in (Mechanism.NOT_ENGAGED, Mechanism.TRANSLATED):
        steps.append("take a drafter of the target's own family whose tokenizer.ggml.tokens are the same")
    for load in (found.target_load, found.drafter_load):
        for reason in load.reasons if load else ():
            if "unknown model architecture" in reason and "knows it" in reason:
                steps.append("use a newer build of llama.cpp")
            if "truncated" in reason:
                steps.append("download the file again and compare its sha256")
    if found.fits is False and found.memory is not None:
        steps.append("shorten the context (-c), quantize the cache (-ctk q8_0 -ctv q8_0), or take a smaller file")
    if found.payoff is not None and found.payoff.never and found.mechanism.drafts:
        steps.append("do not benchmark this pair; take a drafter that costs a small part of the target")
    return tuple(dict.fromkeys(steps))


# --- prediction against outcome --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Observed:
    """What an engine did with a pair; None where it does not tell. `engages` is a Mechanism's value."""

    loads: bool | None = None
    engages: str | None = None
    fits: bool | None = None
    gain_sign: int | None = None
    reason: str = ""


@dataclass(frozen=True)
class ScoreRow:
    """One question: prediction and outcome as yes, no or None, and whether they agree (None where one is unknown)."""

    question: str
    predicted: str | None
    observed: str | None
    right: bool | None
    reason: str
    observed_reason: str


def observed_mechanism(
    engagement: Engagement, drafted: int | None, accepted: int | None, translated: bool
) -> Mechanism:
    """What speculation did, from a run's engagement and counters."""
    if engagement is Engagement.OFF:
        return Mechanism.OFF
    if engagement is Engagement.NOT_ENGAGED:
        return Mechanism.NOT_ENGAGED
    if translated:
        return Mechanism.TRANSLATED
    return Mechanism.ALL_REJECTED if drafted and not accepted else Mechanism.ENGAGED


def observe(record: Record, gain_sign: int | None = None) -> Observed:
    """What the record of a load says; `gain_sign` comes from a measurement, where there is one."""
    detail = record.detail
    answered = bool(detail.get("requests"))
    if record.outcome in (Outcome.OK, Outcome.NOT_ENGAGED):
        told = observed_mechanism(
            Engagement(detail["engagement"]),
            detail.get("drafted"),
            detail.get("accepted"),
            str(detail.get("mechanism", "")) == "translated",
        )
        return Observed(True, told.value, True, gain_sign, record.reason)
    if record.outcome is Outcome.OUT_OF_MEMORY:
        return Observed(None, None, False, None, record.reason)
    if record.outcome in (Outcome.REFUSED, Outcome.CRASHED):
        mechanism = Mechanism.FAILS if answered else Mechanism.NOT_LOADED
        return Observed(answered, mechanism.value, None, None, record.reason)
    return Observed(reason=record.reason)


def score(prediction: Mapping[str, Any], observed: Observed) -> tuple[ScoreRow, ...]:
    """Prediction (its `label`) and outcome side by side: loads, engages, fits, pays.

    Engaging counts as drafting at all; whether drafts are accepted is not in the headers.
    """
    mechanism = Mechanism(prediction["engages"])
    told = Mechanism(observed.engages) if observed.engages is not None else None
    answers = (
        ("loads", prediction["loads"], observed.loads),
        ("engages", mechanism.drafts, told.drafts if told is not None else None),
        ("fits", prediction["fits"], observed.fits),
        ("pays", _positive(prediction["gain_sign"]), _positive(observed.gain_sign)),
    )
    return tuple(
        ScoreRow(
            question,
            _word(said),
            _word(seen),
            None if said is None or seen is None else said == seen,
            mechanism.value.replace("_", " "),
            observed.reason,
        )
        for question, said, seen in answers
    )


def _positive(sign: int | None) -> bool | None:
    return None if sign is None else sign > 0


def _word(value: bool | None) -> str | None:
    return None if value is None else "yes" if value else "no"
