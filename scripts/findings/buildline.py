"""What each build answered to the cheap tests (convert, load, engage), as points for the figure over time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from findings.config import Configuration, Converter, Engine, Finding, FindingKind

COLUMNS = ("finding", "label", "build", "date", "outcome", "host", "tried")
NO_DRAFTS = "no_drafts"


LOADED = (FindingKind.CANNOT_LOAD, FindingKind.DOES_NOT_ENGAGE, FindingKind.DOES_NOT_FIT)
Row = Mapping[str, Any]
Point = tuple[str, str, int, str, str, str, str]


def build_points(configuration: Configuration, outcomes: Iterable[Row]) -> pd.DataFrame:
    """One row per finding, build and outcome; builds without a known date are left out.

    Findings about converting rest on conversions of drafters, those about loading and engaging on loads of their arms,
    those about shipping on probes. A load that ended well without one drafted token has the outcome `no_drafts`.
    """
    rows = [row for row in outcomes if row["evidence"] == "measured" and row["outcome"] != "not_run"]
    points: set[Point] = set()
    for finding in configuration.findings.values():
        if finding.kind is FindingKind.CANNOT_CONVERT:
            points |= _conversions(configuration, finding, rows)
        elif finding.kind is FindingKind.NOT_SHIPPED:
            points |= _probes(configuration, finding, rows)
        elif finding.kind in LOADED:
            points |= _loads(configuration, finding, rows)
    return pd.DataFrame(sorted(points), columns=list(COLUMNS))


def _conversions(configuration: Configuration, finding: Finding, rows: Iterable[Row]) -> set[Point]:
    found = set()
    for row in rows:
        converter = configuration.converters.get(str(row["converter"]))
        checkpoint = configuration.models.get(str(row["subject"]).split("/", maxsplit=1)[0])
        if row["kind"] != "conversion" or converter is None or not converter.date:
            continue
        if checkpoint is None or any(hint.startswith("drafter") for hint in checkpoint.role_hints):
            found.add(_point(finding, converter, row, str(row["outcome"]), str(row["subject"])))
    return found


def _loads(configuration: Configuration, finding: Finding, rows: Iterable[Row]) -> set[Point]:
    arms = set(finding.arms or ((finding.arm,) if finding.arm else ()))
    found = set()
    for row in rows:
        engine = configuration.engines.get(str(row["engine"]))
        ours = row["kind"] == "load" and row["attempt"] == finding.attempt and row["arm"] in arms
        if ours and engine is not None and engine.date:
            silent = row["outcome"] == "ok" and row["engagement"] == "engaged_without_drafts"
            found.add(_point(finding, engine, row, NO_DRAFTS if silent else str(row["outcome"]), str(row["arm"])))
    return found


def _probes(configuration: Configuration, finding: Finding, rows: Iterable[Row]) -> set[Point]:
    found = set()
    for row in rows:
        engine = configuration.engines.get(str(row["engine"] or row["subject"]))
        if row["kind"] != "probe" or engine is None or not engine.date:
            continue
        outcome = str(row["outcome"])
        offered = json.loads(row["detail_json"] or "{}").get("spec_types") or ()
        if outcome == "ok" and not any(str(word).startswith("ngram") for word in offered):
            outcome = "unsupported"
        found.add(_point(finding, engine, row, outcome, engine.id))
    return found


def _point(finding: Finding, tried: Engine | Converter, row: Row, outcome: str, subject: str) -> Point:
    return (finding.id, finding.title, tried.build, tried.date, outcome, str(row["host"]), subject)
