"""Finds the pair of neighbouring builds between which a finding stops holding, with as few trials as it takes."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from findings import plan
from findings.all_builds import converters_of_timeline, current_flip, engines_of_timeline, next_build
from findings.config import Configuration, Engine, Finding, FindingKind
from findings.environments import ensure_environment
from findings.inference import Verdict
from findings.job import Job
from findings.measure import load_once
from findings.records import read_record, write_record
from findings.sources import ensure_archive
from findings.verdicts import HostRecords, judge_conversion, judge_engagement, judge_loading, judge_shipping

Say = Callable[[str], None]
BY_ENGINE = (FindingKind.CANNOT_LOAD, FindingKind.DOES_NOT_ENGAGE, FindingKind.NOT_SHIPPED)
BISECTED = (*BY_ENGINE, FindingKind.CANNOT_CONVERT)


@dataclass(frozen=True)
class Bisection:
    """What was found for one finding: builds tried with their verdicts, and the flip if there is one.

    `available` are the builds that the sources offer, rising; a flip names neighbours among those that gave an answer.
    """

    finding: str
    available: tuple[int, ...]
    tried: Mapping[int, str]
    holds_until: int | None
    fails_since: int | None

    def as_json(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "finding": self.finding,
            "available": list(self.available),
            "tried": {str(build): verdict for build, verdict in sorted(self.tried.items())},
            "holds_until_build": self.holds_until,
            "fails_since_build": self.fails_since,
        }

    def sentence(self) -> str:
        """The result in words."""
        count = f"{len(self.tried)} of {len(self.available)} builds tried"
        if self.holds_until is not None and self.fails_since is not None:
            return f"holds at b{self.holds_until}, no longer holds at b{self.fails_since} ({count})"
        words = "; ".join(f"b{build}: {verdict}" for build, verdict in sorted(self.tried.items()))
        return f"no flip found ({count}: {words})"


def bisect_attempt(job: Job, attempt: str, say: Say) -> list[Bisection]:
    """Bisect every finding of an attempt that a build decides (converter, loading, engagement, shipping)."""
    findings = job.configuration.findings.values()
    return [bisect_finding(job, f, say) for f in findings if f.attempt == attempt and f.kind in BISECTED]


def bisect_finding(job: Job, finding: Finding, say: Say) -> Bisection:
    """Bisect one finding over all builds that the sources offer."""
    configuration = job.configuration
    if finding.kind is FindingKind.CANNOT_CONVERT:
        names = {item.build: item.id for item in converters_of_timeline(configuration)}
    else:
        names = {item.build: item.id for item in engines_of_timeline(configuration)}
    builds = sorted(names)
    known: dict[int, bool] = {}
    words: dict[int, str] = {}
    while (build := next_build([b for b in builds if words.get(b, "") != "no answer"], known)) is not None:
        say(f"{finding.id}: trying b{build} ({names[build]})")
        verdict = _try(job, finding, names[build])
        words[build] = verdict.value.replace("_", " ")
        if verdict in (Verdict.HOLDS, Verdict.NO_LONGER_HOLDS):
            known[build] = verdict is Verdict.HOLDS
        else:
            words[build] = "no answer"
        say(f"{finding.id}: b{build}: {words[build]}")
    flip = current_flip(builds, known)
    return Bisection(finding.id, tuple(builds), words, flip.holds_at if flip else None, flip.fails_at if flip else None)


def _try(job: Job, finding: Finding, name: str) -> Verdict:
    """Make the records that one build needs (those that are there already are taken) and judge them alone."""
    if finding.kind is FindingKind.CANNOT_CONVERT:
        paths = _convert(job, finding, name)
    else:
        paths = _run_engine(job, finding, job.configuration.engines[name])
    host = HostRecords(job.host, {path: read_record(job.records / path) for path in paths})
    rules = {
        FindingKind.CANNOT_CONVERT: judge_conversion,
        FindingKind.CANNOT_LOAD: judge_loading,
        FindingKind.DOES_NOT_ENGAGE: judge_engagement,
        FindingKind.NOT_SHIPPED: judge_shipping,
    }
    judged = rules[finding.kind](job.configuration, finding, host)
    return judged[0].verdict if judged else Verdict.NOT_TESTABLE


def _environment(job: Job, name: str) -> None:
    path = job.records / "environments" / f"{name}.json"
    if not path.exists():
        lock = job.configuration.root / "envs" / f"{name}.txt"
        write_record(path, replace(ensure_environment(name, lock, job.cache), host=job.host))


def _run_engine(job: Job, finding: Finding, engine: Engine) -> list[str]:
    _environment(job, engine.environment)
    probe_path = job.records / "probes" / f"{engine.id}.json"
    if not probe_path.exists():
        write_record(probe_path, job.site.probed(engine, job.host))
    paths = [f"probes/{engine.id}.json"]
    if finding.kind is FindingKind.NOT_SHIPPED:
        return paths
    for arm in finding.arms or (finding.arm,):
        path = f"loads/{finding.attempt}/{engine.id}/{arm}.json"
        if not (job.records / path).exists():
            write_record(job.records / path, load_once(job, finding.attempt, engine.id, arm))
        paths.append(path)
    return paths


def _convert(job: Job, finding: Finding, name: str) -> list[str]:
    converter = job.configuration.converters[name]
    _environment(job, converter.environment)
    source = job.records / "sources" / f"{name}.json"
    if not source.exists():
        write_record(source, replace(ensure_archive(converter.source, job.cache, name), host=job.host))
    paths = []
    for checkpoint in checkpoints_of(job.configuration, finding):
        path = f"conversions/{checkpoint}/{name}.json"
        if not (job.records / path).exists():
            _convert_once(job, checkpoint, name, job.records / path)
        paths.append(path)
    return paths


def checkpoints_of(configuration: Configuration, finding: Finding) -> list[str]:
    """Checkpoints of the drafters of a finding's arms."""
    roles = configuration.study.roles_of(finding.attempt)
    found: dict[str, None] = {}
    for arm in plan.paired_arms(configuration, finding.attempt):
        made = configuration.models[roles[arm.speculation.drafter]].converted_from
        if made is not None and (not finding.arms or arm.id in finding.arms):
            found[made.checkpoint] = None
    return list(found)


def _convert_once(job: Job, checkpoint: str, converter: str, record: Path) -> None:
    """The workflow's own conversion tool: one way to convert, whoever asks."""
    tool = Path(__file__).parent.parent / "convert.py"
    arguments: Sequence[str] = [
        sys.executable, str(tool), "--model", checkpoint, "--converter", converter, "--records", str(job.records),
        "--cache", str(job.cache), "--record", str(record),
    ]  # fmt: skip
    subprocess.run(arguments, check=True)
