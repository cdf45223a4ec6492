"""Verdicts: what the records of one machine say about each finding, once per scope and engine.

A finding is judged by the rule of its kind. A missing record, a failed gate or a machine that lacks what is needed is
never a verdict about the finding: it is `not_testable` or `inconclusive`, and the reason names what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

from packaging.version import Version

from findings.blocks import Block, block_from_json
from findings.breakeven import break_even
from findings.config import (
    Attempt,
    Backend,
    Configuration,
    Driver,
    Finding,
    FindingKind,
    FindingScope,
    PublishedScope,
    SpeculationType,
    Statement,
)
from findings.cost_curves import curve_of_blocks
from findings.effects import arm_effects, class_engagement
from findings.gates import Gate, common_gates, drafter_engaged, usable_blocks
from findings.inference import (
    ALL_CLASSES,
    Claim,
    Decision,
    Metric,
    SequentialPlan,
    Verdict,
    analyse,
    control_gate,
    holm,
    null_gate,
)
from findings.records import Engagement, Kind, Outcome, Record
from findings.session import settled_outcome

AS_PUBLISHED = "as_published"
MECHANISM = "mechanism"
CONTROL = "control"


@dataclass(frozen=True)
class HostRecords:
    """All records of one machine: path below results/records/<host>/ -> record."""

    host: str
    records: Mapping[str, Record]

    def get(self, path: str) -> Record | None:
        """The record at that path, None where it was never made."""
        return self.records.get(path)

    def of_kind(self, kind: Kind, attempt: str = "") -> list[Record]:
        """Records of one kind (and attempt), in the order of their paths."""
        return [r for _, r in sorted(self.records.items()) if r.kind is kind and (not attempt or r.attempt == attempt)]

    def blocks(self, session_path: str) -> list[Block]:
        """The blocks of the run that a session's record names."""
        session = self.records[session_path]
        folder = PurePosixPath(session_path).parent / str(session.detail.get("run", ""))
        found = [r for path, r in self.records.items() if PurePosixPath(path).parent == folder and r.kind is Kind.BLOCK]
        return sorted((block_from_json(r.detail) for r in found), key=lambda block: block.block)


@dataclass(frozen=True)
class Judgement:
    """One verdict before it becomes a row. `engine` is an engine's, a converter's or a wheel's id, or empty."""

    verdict: Verdict
    reason: str
    engine: str = ""
    build: int | None = None
    arm: str = ""
    prompt_class: str = ""
    decision: Decision | None = None
    failed_gates: tuple[str, ...] = ()
    would_make_testable: str = ""
    holds_until_build: int | None = None
    fails_since_build: int | None = None
    scope: str = MECHANISM
    gates: tuple[Gate, ...] = field(default=())


Rule = Callable[[Configuration, Finding, HostRecords], list[Judgement]]


def not_testable(reason: str, needed: str, **more: Any) -> Judgement:
    """A verdict that says that nothing could be tested, and what would change that."""
    return Judgement(Verdict.NOT_TESTABLE, reason, would_make_testable=needed, **more)


# --- speed ---------------------------------------------------------------------------------------------------------


def sequential_plan(configuration: Configuration, attempt: str, session: Record | None = None) -> SequentialPlan:
    """An attempt's protocol as the plan of looks; the family is every speed claim on every engine that is measured.

    A `session` is judged by the looks that it was planned with, whatever the configuration says by now. A control is
    no finding of the report, so it is judged as one claim alone.
    """
    protocol = configuration.study.protocol_of(attempt)
    attempts = configuration.study.attempts
    measured = sum(
        len(attempts[f.attempt].measure) for f in configuration.findings.values() if is_measured(configuration, f)
    )
    if configuration.attempts[attempt].control_of:
        measured = 1
    planned = session.detail.get("looks") if session is not None else None
    return SequentialPlan(
        looks=tuple(planned or protocol.looks),
        alpha=protocol.alpha,
        margin=protocol.margin,
        equivalence_alpha=(1.0 - protocol.equivalence_level) / 2.0,
        family=max(measured, 1),
    )


def is_measured(configuration: Configuration, finding: Finding) -> bool:
    """Whether this study measures the speed that a finding speaks about."""
    plan = configuration.study.attempts.get(finding.attempt)
    return (
        plan is not None
        and bool(plan.measure)
        and (configuration.study.as_published or not plan.requires.gpu)
        and finding.kind in (FindingKind.DOES_NOT_PAY, FindingKind.PAYS)
    )


def judge_speed(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """`does_not_pay` and `pays`: the sessions of the attempt, by the sequential rule and the gates."""
    plan = configuration.study.attempts.get(finding.attempt)
    if plan is None or not plan.measure:
        return [
            not_testable(
                f"study {configuration.study.id} does not measure {finding.attempt}", finding.would_make_testable
            )
        ]
    judged = []
    for engine_id in plan.measure:
        path = f"measure/{finding.attempt}/{engine_id}/session.json"
        session = host.get(path)
        engine = configuration.engines[engine_id]
        if session is None:
            judged.append(not_testable("not measured on this machine", f"snakemake --cores 1 {finding.attempt}"))
        elif session.outcome is not Outcome.OK:
            costs = break_even_elsewhere(configuration, finding, host)
            judged.append(
                not_testable(
                    f"{_ended(session)}.{costs}" if costs else _ended(session),
                    finding.would_make_testable or session.reason,
                )
            )
        else:
            judged.append(_judge_session(configuration, finding, session, host.blocks(path)))
        judged[-1] = replace(judged[-1], engine=engine_id, build=engine.build or None)
    return judged


def _ended(session: Record) -> str:
    """How a session without blocks ended: what the machine lacks, or what the engine did."""
    if session.outcome is Outcome.NOT_RUN:
        return session.reason
    return f"the session ended as {session.outcome.value}: {session.reason}"


def break_even_elsewhere(configuration: Configuration, finding: Finding, host: HostRecords) -> str:
    """The break-even of a pair that was not measured, from costs that another attempt measured for the same two models.

    A sentence with a leading space, or nothing where no session here knows the costs of both.
    """
    roles = configuration.study.roles_of(finding.attempt)
    speculation = configuration.attempts[finding.attempt].arm(finding.arm).speculation
    target, drafter, drafted = roles.get("target"), roles.get(speculation.drafter), speculation.n_max
    if not target or not drafter or not drafted:
        return ""
    for session in host.of_kind(Kind.SESSION):
        others = (
            configuration.study.roles_of(session.attempt) if session.attempt in configuration.study.attempts else {}
        )
        if session.outcome is not Outcome.OK or others.get("target") != target:
            continue
        arms = [arm for arm in configuration.arms_of(session.attempt) if others.get(arm.speculation.drafter) == drafter]
        blocks = host.blocks(f"measure/{session.attempt}/{session.engine}/session.json")
        for arm in arms:
            curve = curve_of_blocks([block.costs for block in blocks], arm.id)
            if curve is None or drafted + 1 > max(curve.target_s):
                continue
            found = break_even(curve, drafted)
            return (
                f" Break-even from the costs that {session.attempt.replace('_', ' ')} measured here for the same two "
                f"models with {session.engine} ({configuration.engines[session.engine].backend.value}): {found.reason}"
            )
    return ""


def _judge_session(
    configuration: Configuration, finding: Finding, session: Record, blocks: Sequence[Block]
) -> Judgement:
    """One session's answer: of the finding's arm, or of all arms that a finding about several kinds names."""
    arms = finding.arms or (finding.arm,)
    judged = [_judge_arm(configuration, finding, session, blocks, arm, len(arms)) for arm in arms]
    return judged[0] if len(judged) == 1 else combined(judged)


def combined(judged: Sequence[Judgement]) -> Judgement:
    """A claim that no kind pays: one that pays ends it, one that is open leaves it open, else the best one speaks.

    "Holds" for all needs no correction for their number (each must be shown, an intersection-union test); "one pays"
    was already judged at a level divided by it. A kind that proposed nothing cannot pay; it is named, and where no
    kind proposed anything nothing was tested.
    """
    silent = [item for item in judged if item.failed_gates == ("drafter_engaged",)]
    tried = [item for item in judged if item not in silent]
    if not tried:
        return replace(silent[0], reason=f"none of the {len(silent)} kinds proposed anything: {silent[0].reason}")
    for verdict in (Verdict.NO_LONGER_HOLDS, Verdict.INCONCLUSIVE, Verdict.NOT_TESTABLE):
        for item in tried:
            if item.verdict is verdict:
                return replace(item, reason=f"{item.arm}: {item.reason}")
    best = max(tried, key=lambda item: item.decision.nominal.mean if item.decision and item.decision.nominal else 0.0)
    others = f" Proposed nothing here: {', '.join(item.arm for item in silent)}." if silent else ""
    return replace(best, reason=f"{len(tried)} kinds were measured, the best is {best.arm}. {best.reason}{others}")


def _judge_arm(
    configuration: Configuration,
    finding: Finding,
    session: Record,
    blocks: Sequence[Block],
    arm: str,
    kinds: int,
) -> Judgement:
    plan = sequential_plan(configuration, finding.attempt, session)
    prompt_class = finding.prompt_class
    base = Judgement(Verdict.INCONCLUSIVE, "", arm=arm, prompt_class=prompt_class)
    listed = session.detail.get("arms", {}).get(arm)
    if listed is None:
        return replace(base, verdict=Verdict.NOT_TESTABLE, reason=f"arm {arm} was not part of the session")
    settled = settled_outcome(blocks, arm)
    if settled is not None or listed["outcome"] != Outcome.OK.value:
        why = settled.reason if settled else str(listed["reason"])
        state = settled.engagement.value if settled and settled.outcome is Outcome.OK else str(listed["outcome"])
        return replace(
            base,
            verdict=Verdict.NOT_TESTABLE,
            reason=f"the arm has no speed to compare: {state.replace('_', ' ')}" + (f" ({why})" if why else ""),
            failed_gates=("drafter_engaged",),
            would_make_testable="a pair that drafts with this engine",
        )
    usable = usable_blocks(blocks)
    runs = [block.arms[arm] for block in usable if arm in block.arms]
    states = {class_engagement(run, prompt_class) for run in runs}
    speculating = configuration.attempts[finding.attempt].arm(arm).speculation.type is not SpeculationType.NONE
    if speculating and runs and Engagement.WITH_DRAFTS not in states:
        return replace(
            base,
            verdict=Verdict.NOT_TESTABLE,
            reason=f"speculation was on and proposed nothing for the prompts of class {prompt_class}",
            failed_gates=("drafter_engaged",),
            would_make_testable="prompts in which it finds something to propose",
        )
    claim = Claim.PAYS if finding.kind is FindingKind.PAYS else Claim.DOES_NOT_PAY
    effects = arm_effects(usable, arm, prompt_class, Metric(finding.metric))
    decision = analyse(effects, plan, claim)
    if decision.decision is Verdict.NO_LONGER_HOLDS and kinds > 1:
        # "Some kind pays" is found in several places, so each is judged at a level divided by their number.
        decision = analyse(effects, replace(plan, family=plan.family * kinds), claim)
    gates = session_gates(configuration, finding.attempt, blocks, arm, prompt_class, session)
    failed = tuple(gate.name for gate in gates if not gate.passed)
    verdict, reason = decision.decision, decision.reason
    if failed and verdict in (Verdict.HOLDS, Verdict.NO_LONGER_HOLDS):
        why = "; ".join(gate.reason for gate in gates if not gate.passed)
        verdict, reason = Verdict.INCONCLUSIVE, f"{reason} Not used, a gate failed: {why}."
    return replace(base, verdict=verdict, reason=reason, decision=decision, failed_gates=failed, gates=tuple(gates))


def session_gates(
    configuration: Configuration,
    attempt: str,
    blocks: Sequence[Block],
    arm: str,
    prompt_class: str,
    session: Record | None = None,
) -> list[Gate]:
    """Every gate of one arm and prompt class in one session, the null arm's and the positive control's with it."""
    plan = sequential_plan(configuration, attempt, session)
    usable = usable_blocks(blocks)
    backend = next((str(r.settings.get("backend", "")) for b in blocks for r in b.arms.values()), "")
    asked = asked_tokens(configuration, attempt, session)
    gates = common_gates(blocks, plan.looks[0], asked, backend or "cpu", prompt_class)
    configured = configuration.attempts[attempt]
    if configured.arm(arm).speculation.type is not SpeculationType.NONE:
        gates.append(drafter_engaged(usable, arm))
    for other in configuration.arms_of(attempt):
        if other.kind == "null":
            result = null_gate(arm_effects(usable, other.id), plan)
            gates.append(Gate("null_equal", result.passed, result.reason))
        elif other.kind == "positive_control" and other.id != arm:
            result = control_gate(arm_effects(usable, other.id), plan)
            gates.append(Gate("control_pays", result.passed, result.reason))
    return gates


def asked_tokens(configuration: Configuration, attempt: str, session: Record | None) -> int:
    """Tokens that a session asked for with each prompt: by its own protocol, else by the configuration's."""
    recorded = session.detail.get("identity", {}).get("protocol", {}) if session is not None else {}
    return int(recorded.get("predict_tokens") or configuration.study.protocol_of(attempt).predict_tokens)


def control_question(configuration: Configuration, attempt: Attempt) -> Finding:
    """The question of a control in the form that the rule for speeds reads. It is nobody's finding."""
    classes = configuration.classes_of(attempt.id, attempt.control)
    return Finding(
        id=attempt.id,
        title=attempt.title,
        attempt=attempt.id,
        kind=FindingKind.PAYS,
        statement=Statement(as_published="", mechanism=attempt.hypothesis),
        scope=FindingScope(PublishedScope(), attempt.method),
        hardware_matters=True,
        arm=attempt.control.id,
        prompt_class=classes[0].value if len(classes) == 1 else ALL_CLASSES,
        claimed=False,
    )


def judge_control(configuration: Configuration, attempt: Attempt, host: HostRecords) -> list[Judgement]:
    """Whether a control was seen to pay, per engine: `holds` is "this machine and engine can show it paying"."""
    return [
        replace(j, scope=CONTROL) for j in judge_speed(configuration, control_question(configuration, attempt), host)
    ]


# --- conversion, loading, engagement ---------------------------------------------------------------------------------


def judge_conversion(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """`cannot_convert`: every converter that was tried on the checkpoints of the finding's drafters."""
    wanted = _checkpoints(configuration, finding)
    found: dict[str, list[Record]] = {}
    for path, record in sorted(host.records.items()):
        if record.kind is not Kind.CONVERSION or not path.startswith("conversions/"):
            continue
        _, checkpoint, name = PurePosixPath(path).parts
        converter_id = name.removesuffix(".json")
        if checkpoint in wanted and converter_id in configuration.converters:
            found.setdefault(converter_id, []).append(record)
    judged = []
    for converter, records in found.items():
        build = configuration.converters[converter].build
        judged.append(replace(_conversion_verdict(records), engine=converter, build=build))
    return judged or [not_testable("no conversion was tried on this machine", f"snakemake --cores 1 {finding.attempt}")]


def _checkpoints(configuration: Configuration, finding: Finding) -> set[str]:
    """Checkpoints of the drafters that a finding speaks about: those of its arms, or every one that is converted."""
    plan = configuration.study.attempts.get(finding.attempt)
    arms = set(finding.arms or ((finding.arm,) if finding.arm else ()))
    if plan is None:
        return set()
    if not arms:
        return {item.checkpoint for item in plan.convert}
    roles = configuration.study.roles_of(finding.attempt)
    found = set()
    for arm in configuration.arms_of(finding.attempt):
        model = configuration.models.get(roles.get(arm.speculation.drafter, ""))
        if arm.id in arms and model is not None and model.converted_from is not None:
            found.add(model.converted_from.checkpoint)
    return found


def _conversion_verdict(records: Sequence[Record]) -> Judgement:
    refused = [r for r in records if r.outcome in (Outcome.REFUSED, Outcome.UNSUPPORTED)]
    if refused:
        return Judgement(Verdict.HOLDS, f"the converter refuses: {refused[0].reason}")
    if all(r.outcome is Outcome.OK for r in records):
        return Judgement(Verdict.NO_LONGER_HOLDS, f"converted {len(records)} of {len(records)} checkpoints")
    other = next(r for r in records if r.outcome is not Outcome.OK)
    return not_testable(f"the conversion ended as {other.outcome.value}: {other.reason}", "a conversion that runs")


def judge_loading(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """`cannot_load`: refused by the engine; no longer holds only after a load that drafts text that is no loop."""
    return _per_engine(configuration, finding, host, _loading_verdict)


def _loading_verdict(record: Record) -> Judgement:
    drafted = int(record.detail.get("drafted") or 0)
    accepted = int(record.detail.get("accepted") or 0)
    if record.outcome in (Outcome.REFUSED, Outcome.UNSUPPORTED):
        return Judgement(Verdict.HOLDS, f"{record.outcome.value}: {record.reason}")
    if record.outcome is Outcome.NOT_ENGAGED:
        return Judgement(Verdict.HOLDS, f"loads, and does not speculate with it: {record.reason}")
    if record.outcome is not Outcome.OK:
        return not_testable(f"the load ended as {record.outcome.value}: {record.reason}", "a load that ends by itself")
    if drafted == 0:
        return Judgement(
            Verdict.INCONCLUSIVE, "it loads, but not one token was drafted", failed_gates=("drafter_engaged",)
        )
    if record.detail.get("degenerate"):
        return Judgement(
            Verdict.INCONCLUSIVE,
            f"it drafts ({accepted} of {drafted} accepted), but the text is a loop",
            failed_gates=("text_not_degenerate",),
        )
    return Judgement(Verdict.NO_LONGER_HOLDS, f"it loads and drafts: {accepted} of {drafted} drafted tokens accepted")


def judge_engagement(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """`does_not_engage`: of no use if the engine declines the pair, or accepts nothing of what it drafts."""
    return _per_engine(configuration, finding, host, _engagement_verdict)


def _engagement_verdict(record: Record) -> Judgement:
    drafted = int(record.detail.get("drafted") or 0)
    accepted = int(record.detail.get("accepted") or 0)
    mechanism = str(record.detail.get("mechanism", ""))
    if record.outcome in (Outcome.REFUSED, Outcome.UNSUPPORTED, Outcome.NOT_ENGAGED):
        return Judgement(Verdict.HOLDS, f"{record.outcome.value}: {record.reason}")
    if record.outcome is not Outcome.OK:
        return not_testable(f"the load ended as {record.outcome.value}: {record.reason}", "a load that ends by itself")
    if drafted and accepted == 0:
        return Judgement(Verdict.HOLDS, f"it drafts, and 0 of {drafted} drafted tokens are accepted")
    if drafted:
        how = f" ({mechanism})" if mechanism else ""
        return Judgement(Verdict.NO_LONGER_HOLDS, f"it drafts{how}: {accepted} of {drafted} drafted tokens accepted")
    return Judgement(Verdict.INCONCLUSIVE, "it loads, but not one token was drafted", failed_gates=("drafter_engaged",))


def _per_engine(
    configuration: Configuration, finding: Finding, host: HostRecords, rule: Callable[[Record], Judgement]
) -> list[Judgement]:
    """One judgement per engine from the loads of the finding's arms.

    Every engine with such a record counts, also those that only the timeline has tried.
    """
    arms = finding.arms or ((finding.arm,) if finding.arm else ())
    judged = []
    for engine_id in _engines_with(configuration, host, Kind.LOAD, finding.attempt):
        loads = [host.get(f"loads/{finding.attempt}/{engine_id}/{arm}.json") for arm in arms]
        results = [replace(rule(load), arm=load.arm) for load in loads if load is not None]
        if results:
            build = configuration.engines[engine_id].build
            judged.append(replace(_weakest(results), engine=engine_id, build=build or None))
    return judged or [not_testable("no engine was tried on this machine", f"snakemake --cores 1 {finding.attempt}")]


def _engines_with(configuration: Configuration, host: HostRecords, kind: Kind, attempt: str = "") -> list[str]:
    """Known engines with a record of that kind (and attempt), by build."""
    found = {record.engine or record.subject for record in host.of_kind(kind, attempt)}
    return sorted(found & set(configuration.engines), key=lambda name: (configuration.engines[name].build, name))


def _weakest(results: Sequence[Judgement]) -> Judgement:
    """Of several arms on one engine: a finding about all of them no longer holds once none of them shows it."""
    order = [Verdict.HOLDS, Verdict.INCONCLUSIVE, Verdict.NO_LONGER_HOLDS, Verdict.NOT_TESTABLE]
    return min(results, key=lambda item: order.index(item.verdict))


def judge_shipping(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """`not_shipped`: whether a build of llama.cpp offers n-gram speculation at all, by its own list of types."""
    judged = []
    for engine_id in _engines_with(configuration, host, Kind.PROBE):
        record = host.get(f"probes/{engine_id}.json")
        if record is None or configuration.engines[engine_id].driver is Driver.TRANSFORMERS:
            continue
        build = configuration.engines[engine_id].build
        if record.outcome is not Outcome.OK:
            found = not_testable(f"the probe ended as {record.outcome.value}: {record.reason}", "an engine that starts")
        else:
            offered = sorted(t for t in record.detail.get("spec_types", ()) if str(t).startswith("ngram"))
            found = (
                Judgement(Verdict.NO_LONGER_HOLDS, f"this build offers {', '.join(offered)}")
                if offered
                else Judgement(Verdict.HOLDS, "this build offers no n-gram speculation")
            )
        judged.append(replace(found, engine=engine_id, build=build))
    return judged or [not_testable("no engine was probed on this machine", f"snakemake --cores 1 {finding.attempt}")]


# --- PyTorch, memory, others -----------------------------------------------------------------------------------------


def judge_torch(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """`torch_supports` and `torch_dropped`: what the probed wheels carry that the finding speaks about."""
    plan = configuration.study.attempts.get(finding.attempt)
    judged = []
    for wheel_id in plan.torch_wheels if plan else ():
        record = host.get(f"torch/{wheel_id}.json")
        wheel = configuration.torch_wheels[wheel_id]
        if record is None or (wheel.cuda and not _speaks_about(finding, wheel.cuda)):
            continue
        answer = str(record.detail.get("sm_61", ""))
        told = f"torch {record.detail.get('version', wheel.version)} ({record.detail.get('channel', wheel.channel)})"
        if record.outcome is not Outcome.OK or answer not in ("carries", "dropped"):
            found = not_testable(
                f"{told} says nothing about CUDA architectures: {record.reason or answer or record.outcome.value}",
                "a CUDA build of PyTorch (a GPU is not needed to read its list)",
            )
        else:
            supports = answer == "carries"
            by = record.detail.get("by", "")
            says = f"carries code that runs on 6.1 ({by})" if supports else f"has no code that runs on 6.1 ({by})"
            holds = supports if finding.kind is FindingKind.TORCH_SUPPORTS else not supports
            found = Judgement(Verdict.HOLDS if holds else Verdict.NO_LONGER_HOLDS, f"{told} {says}")
        judged.append(replace(found, engine=wheel_id))
    # A build without CUDA says nothing about it; it is named only where there is nothing else.
    settled = [item for item in judged if item.verdict is not Verdict.NOT_TESTABLE]
    absent = not_testable("no PyTorch build was probed on this machine", finding.would_make_testable)
    return settled or judged or [absent]


def _speaks_about(finding: Finding, cuda: str) -> bool:
    """Whether a build for this CUDA toolkit is one that a finding is about."""
    version = Version(cuda)
    above = not finding.cuda_from or version >= Version(finding.cuda_from)
    return above and (not finding.cuda_to or version <= Version(finding.cuda_to))


def _published_wheels(
    configuration: Configuration, finding: Finding, mechanism: Sequence[Judgement]
) -> list[Judgement]:
    """What was found of the very builds that a finding names."""
    named = finding.scope.as_published.torch
    wheels = configuration.torch_wheels
    same = [item for item in mechanism if item.engine in wheels and wheels[item.engine].version in named]
    settled = [item for item in same if item.verdict is not Verdict.NOT_TESTABLE]
    absent = not_testable(f"none of {', '.join(named)} could be read here", finding.would_make_testable)
    return [replace(item, scope=AS_PUBLISHED) for item in settled or [absent]]


def judge_fit(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """`does_not_fit`: whether the pair ran out of memory when it was loaded with what the attempt allows it."""
    plan = configuration.study.attempts.get(finding.attempt)
    budgets = plan.memory_budgets_bytes if plan else ()
    allowed = f" within {min(budgets) / 2**20:.0f} MiB" if budgets else ""
    judged = []
    for engine_id in _engines_with(configuration, host, Kind.LOAD, finding.attempt):
        load = host.get(f"loads/{finding.attempt}/{engine_id}/{finding.arm}.json")
        if load is None:
            continue
        predicted = _predicted_memory(host.get(f"precheck/{finding.attempt}/{engine_id}/{finding.arm}.json"))
        if load.outcome is Outcome.OUT_OF_MEMORY:
            found = Judgement(Verdict.HOLDS, f"the pair does not fit{allowed}: {load.reason}{predicted}")
        elif load.outcome in (Outcome.OK, Outcome.NOT_ENGAGED):
            found = Judgement(Verdict.NO_LONGER_HOLDS, f"the pair was loaded{allowed} and answered{predicted}")
        else:
            found = not_testable(f"the load ended as {load.outcome.value}: {load.reason}", finding.would_make_testable)
        build = configuration.engines[engine_id].build
        judged.append(replace(found, engine=engine_id, build=build, arm=finding.arm))
    return judged or [not_testable("no pair was loaded on this machine", finding.would_make_testable)]


def _predicted_memory(prediction: Record | None) -> str:
    """What the headers said before the load, in words; empty where nothing was predicted."""
    memory = prediction.detail.get("fits") if prediction is not None else None
    if not memory or memory.get("fits") is None:
        return ""
    return f"; predicted from the headers: {'fits' if memory['fits'] else 'does not fit'}"


def judge_cause(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """`root_cause`: a drafter that has the named cause and nothing else; if it drafts all the same, that is not it."""
    if not finding.arm:
        return judge_nothing(configuration, finding, host)
    return _per_engine(configuration, finding, host, _engagement_verdict)


def judge_nothing(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """Claims that rest on published or imported evidence alone."""
    del configuration, host
    words = {
        FindingKind.ECOSYSTEM: "what the libraries above PyTorch need rests on published evidence alone",
        FindingKind.EXTERNAL: "somebody else's measurement on other hardware; shown with what became of it",
        FindingKind.ROOT_CAUSE: "a cause is not measured; see what the engine compares in the pre-check",
    }
    return [not_testable(words.get(finding.kind, "this study does not test it"), finding.would_make_testable)]


RULES: Mapping[FindingKind, Rule] = {
    FindingKind.DOES_NOT_PAY: judge_speed,
    FindingKind.PAYS: judge_speed,
    FindingKind.CANNOT_CONVERT: judge_conversion,
    FindingKind.CANNOT_LOAD: judge_loading,
    FindingKind.DOES_NOT_ENGAGE: judge_engagement,
    FindingKind.DOES_NOT_FIT: judge_fit,
    FindingKind.NOT_SHIPPED: judge_shipping,
    FindingKind.TORCH_SUPPORTS: judge_torch,
    FindingKind.TORCH_DROPPED: judge_torch,
    FindingKind.ECOSYSTEM: judge_nothing,
    FindingKind.EXTERNAL: judge_nothing,
    FindingKind.ROOT_CAUSE: judge_cause,
}


# --- scopes, builds, families ----------------------------------------------------------------------------------------


def with_flips(judged: Sequence[Judgement]) -> list[Judgement]:
    """Each judgement with the last build before the first failure for which the finding held, and that first failure.

    Builds that could not be tested are passed over. Where a later build holds again, no flip is claimed.
    """
    known = sorted(
        {
            (j.build, j.verdict)
            for j in judged
            if j.build is not None and j.verdict in (Verdict.HOLDS, Verdict.NO_LONGER_HOLDS)
        }
    )
    held = [build for build, verdict in known if verdict is Verdict.HOLDS]
    failed = [build for build, verdict in known if verdict is Verdict.NO_LONGER_HOLDS]
    last_held, first_failed = max(held, default=None), min(failed, default=None)
    if last_held is not None and first_failed is not None and last_held > first_failed:
        return list(judged)
    return [replace(j, holds_until_build=last_held, fails_since_build=first_failed) for j in judged]


def matches_published(scope: PublishedScope, host: Record | None, backends: Iterable[Backend]) -> tuple[bool, str]:
    """Whether this machine is one that the published finding speaks about; else what it would have to be."""
    gpus = list(host.detail.get("gpus", ())) if host is not None else []
    wanted = " or ".join(f"compute capability {c}" for c in scope.compute_capabilities)
    sizes = " or ".join(f"{size} GiB" for size in scope.vram_gib)
    needed = f"an NVIDIA GPU of {wanted}" + (f" with {sizes}" if sizes else "") if wanted else "the published hardware"
    if scope.backends and not set(scope.backends) & set(backends):
        return False, f"{needed}, and an engine for {' or '.join(scope.backends)}"
    for gpu in gpus:
        capable = not scope.compute_capabilities or str(gpu.get("compute_capability")) in scope.compute_capabilities
        memory = round(float(gpu.get("memory_bytes", 0)) / 2**30)
        if capable and (not scope.vram_gib or memory in scope.vram_gib):
            return True, ""
    return not scope.compute_capabilities and not scope.vram_gib, needed


def judge(configuration: Configuration, finding: Finding, host: HostRecords) -> list[Judgement]:
    """All judgements of one finding on one machine: the mechanism per engine, and the finding as published."""
    mechanism = with_flips(RULES[finding.kind](configuration, finding, host))
    scope = finding.scope.as_published
    if scope.torch:
        return [*mechanism, *_published_wheels(configuration, finding, mechanism)]
    backends = {
        configuration.engines[item.engine].backend for item in mechanism if item.engine in configuration.engines
    }
    here, needed = matches_published(scope, host.get("host.json"), backends)
    if configuration.study.as_published and here:
        return [*mechanism, *(replace(item, scope=AS_PUBLISHED) for item in mechanism)]
    if not finding.hardware_matters:
        return [*mechanism, *(replace(item, scope=AS_PUBLISHED) for item in mechanism)]
    reason = (
        f"study {configuration.study.id} does not use the published models"
        if not configuration.study.as_published
        else f"this machine is not one that the finding speaks about; it needs {needed}"
    )
    missing = finding.would_make_testable or f"study pascal on {needed}"
    return [*mechanism, replace(not_testable(reason, missing), scope=AS_PUBLISHED, arm=finding.arm)]


def settle_family(rows: Sequence[tuple[Finding, Judgement]], alpha: float) -> list[tuple[Finding, Judgement]]:
    """Holm's correction over the measured claims of a report: what does not survive it becomes inconclusive."""
    keys = {
        f"{finding.id}|{j.scope}|{j.engine}": j.decision.p_value
        for finding, j in rows
        if j.decision is not None and j.scope == MECHANISM
    }
    kept = holm(keys, alpha)
    settled = []
    for finding, j in rows:
        key = f"{finding.id}|{MECHANISM}|{j.engine}"
        settled_here = j.verdict in (Verdict.HOLDS, Verdict.NO_LONGER_HOLDS)
        if j.decision is not None and settled_here and not kept.get(key, True):
            j = replace(j, verdict=Verdict.INCONCLUSIVE, reason=f"{j.reason} Not kept under Holm's correction.")  # noqa: PLW2901
        settled.append((finding, j))
    return settled
