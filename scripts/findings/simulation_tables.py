"""The simulation's results as the tables and sentences of docs/method.md.

Every number of that document which a simulation gave stands between a pair of markers and is written from the stored
JSON, so the two cannot drift apart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from scipy.special import stdtrit

from findings.inference import SequentialPlan

Results = Mapping[str, Any]
_MARKED: Final = re.compile(r"(<!-- simulation: (\w+) -->\n).*?(<!-- end of simulation -->)", re.DOTALL)


def write_into(text: str, results: Results) -> str:
    """`text` with every marked part written anew from `results`.

    Raises ValueError where a marker names no part, or a part has no marker.
    """
    seen = [match.group(2) for match in _MARKED.finditer(text)]
    wrong = sorted(set(seen) ^ set(PARTS))
    if wrong or len(set(seen)) != len(seen):
        raise ValueError(
            f"markers and parts of the simulation do not match: {', '.join(wrong) or 'one is there twice'}"
        )
    return _MARKED.sub(lambda match: f"{match.group(1)}{PARTS[match.group(2)](results)}\n{match.group(3)}", text)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _share(value: float) -> str:
    """A share as percent: one decimal, and `0` only where it never happened."""
    if value == 0:
        return "0"
    return "< 0.1" if value < 0.0005 else f"{100 * value:.1f}"


def _effect(value: float) -> str:
    return f"{100 * value:+.0f} %" if value else "0"


def setting(results: Results) -> str:
    """How the numbers were made."""
    looks = ", ".join(str(look) for look in results["plan"])
    longer = ", ".join(str(look) for look in results["long_plan"])
    return (
        f"{results['trials']:,} sessions per line, seed {results['seed']}. Default plan: looks after {looks} blocks. "
        f"Long plan: {longer}. A rate near 2 % is known to within about "
        f"{196 * (0.02 * 0.98 / results['trials']) ** 0.5:.1f} percentage points."
    )


def looks(results: Results) -> str:
    """What each look of the default plan may use, and how far from a bound the mean must be to clear it."""
    plan = SequentialPlan(looks=tuple(results["plan"]))
    rows = []
    for index, (look, share) in enumerate(zip(plan.looks, plan.shares(), strict=True)):
        row = [str(look), f"{100 * share:.0f} %"]
        for level in (plan.two_sided_level(index), plan.equivalence_level(index)):
            quantile = -float(stdtrit(look - 1, level))
            row += [f"{quantile:.2f}", f"{quantile / look**0.5:.2f} s"]
        rows.append(row)
    head = ["blocks", "share of the error rate", "t, interval", "half width", "t, equivalence", "half width"]
    return _table(head, rows)


def errors(results: Results) -> str:
    """False verdicts by noise."""
    rows = [
        [
            row["noise"],
            f"{row['sd']:.2f}",
            *(_share(row[key]) for key in ("no_longer_at_0", "no_longer_at_margin", "holds_at_margin")),
            *(_share(row[key]) for key in ("naive_no_longer_at_margin", "naive_holds_at_margin", "interval_misses")),
        ]
        for row in results["errors"]
    ]
    head = ["noise", "sd", "no longer holds, truth 0", "no longer holds, truth +5 %", "holds, truth +5 %"]
    return _table([*head, "uncorrected: no longer", "uncorrected: holds", "interval misses"], rows)


def order(results: Results) -> str:
    """A fixed order against a counterbalanced one under drift."""
    rows = [
        [
            f"{row['sd']:.2f}",
            f"{row['fixed_mean_percent']:+.1f} %",
            _share(row["fixed_loss"]),
            f"{row['counterbalanced_mean_percent'] + 0.0:+.1f} %",
            _share(row["counterbalanced_loss"]),
        ]
        for row in results["order"]
    ]
    head = ["sd", "fixed order: mean", "called a loss", "counterbalanced: mean", "called a loss"]
    return _table(head, rows)


def power(results: Results) -> str:
    """Verdicts and blocks by effect: one line per effect, three columns per noise."""
    sds = sorted({row["sd"] for row in results["power"]})
    effects = list(dict.fromkeys(row["effect"] for row in results["power"]))
    cells = {(row["effect"], row["sd"]): row for row in results["power"]}
    rows = []
    for effect in effects:
        line = [_effect(effect)]
        for sd in sds:
            row = cells[effect, sd]
            line.append(f"{_share(row['holds'])} / {_share(row['no_longer'])} / {row['mean_blocks']:.1f}")
        rows.append(line)
    return _table(["true effect", *(f"sd {sd:.2f}" for sd in sds)], rows)


def plans(results: Results) -> str:
    """What shorter plans and larger families can settle."""
    effects = [key for key in results["plans"][0] if key not in ("looks", "family", "sd")]
    rows = [
        [
            row["looks"],
            str(row["family"]),
            f"{row['sd']:.2f}",
            *(_share(row[effect]) for effect in effects),
        ]
        for row in results["plans"]
    ]
    return _table(["looks", "family", "sd", *(_effect(float(effect)) for effect in effects)], rows)


def costs(results: Results) -> str:
    """Blocks to a verdict."""
    rows = [
        [
            _effect(row["effect"]),
            str(row["fixed_for_this"]),
            str(row["fixed_for_study"]),
            str(row["fixed_for_any"]),
            f"{row['default_blocks']:.1f}",
            _share(row["default_true"]),
            f"{row['long_blocks']:.1f}",
            _share(row["long_true"]),
            f"{100 * row['long_blocks'] / row['fixed_for_any']:.0f} %",
        ]
        for row in results["costs"]
    ]
    head = ["true effect", "fixed, effect known", "fixed, for the study's effects", "fixed, for any effect"]
    return _table(
        [*head, "default plan: blocks", "verdict, %", "long plan: blocks", "verdict, %", "long plan / fixed for any"],
        rows,
    )


def families(results: Results) -> str:
    """Six findings together."""
    rows = []
    for row in results["families"]:
        one = f"{_share(row['unadjusted_false_no_longer'])} / {_share(row['unadjusted_false_holds'])}"
        rows.append([row["truth"], "1, without Holm", one, "", "", ""])
        for key, label in (("one", "1, Holm at the end"), ("six", "6, Holm at the end")):
            rows.append(
                [
                    "",
                    label,
                    f"{_share(row[f'{key}_false_no_longer'])} / {_share(row[f'{key}_false_holds'])}",
                    _share(row[f"{key}_settled"]),
                    _share(row[f"{key}_lost_by_holm"]),
                    f"{row[f'{key}_blocks']:.1f}",
                ]
            )
    head = ["truth", "plan's family", "any false: no longer / holds", "settled, %", "lost to Holm, %", "blocks each"]
    return _table(head, rows)


def gates(results: Results) -> str:
    """Gates: false alarms and detection."""
    rows = [
        [
            f"{row['sd']:.2f}",
            *(_share(row[key]) for key in ("null_false_alarm_none", "null_false_alarm_loss")),
            *(_share(row[f"null_finds_{bias}"]) for bias in (5, 10, 20)),
            *(_share(row[key]) for key in ("control_without_gain", "control_seen")),
            f"{row['control_blocks']:.1f}",
        ]
        for row in results["gates"]
    ]
    head = ["sd", "null: false alarm, 12 blocks", "null: false alarm, early stop", "finds a bias of 5 %", "of 10 %"]
    return _table([*head, "of 20 %", "control without gain passes", "control of +130 % passes", "after blocks"], rows)


def summary(results: Results) -> str:
    """The claims in sentences, with the worst number of the tables behind each."""
    covered = [row for row in results["errors"] if row["noise"] != "correlated blocks"]
    beyond = [row for row in results["errors"] if row["noise"] == "correlated blocks"]
    worst = {key: max(row[key] for row in covered) for key in covered[0] if key not in ("noise", "sd")}
    large = [row for row in results["costs"] if row["effect"] in (-0.73, -0.33, 0.47)]
    rest = [row for row in results["costs"] if row["effect"] in (-0.13, 0.27)]
    largest = results["costs"][0]["fixed_for_any"]
    lines = [
        f'False "no longer holds": at most {_share(worst["no_longer_at_margin"])} % where the truth is the margin, at '
        f'most {_share(worst["no_longer_at_0"])} % where there is no effect. False "holds" at the margin: at most '
        f"{_share(worst['holds_at_margin'])} %. Looking as often without correction: up to "
        f"{_share(worst['naive_no_longer_at_margin'])} % and {_share(worst['naive_holds_at_margin'])} %.",
        f"The interval misses the truth at one look or more in at most {_share(worst['interval_misses'])} % of "
        "sessions.",
        f"Large effects (-73 %, -33 %, +47 %) at noise 0.10 are settled after {_span(large, 'default_blocks')} blocks "
        f"on average with the default plan, {_span(large, 'long_blocks')} with the long one; -13 % and +27 % after "
        f"{_span(rest, 'default_blocks')} and {_span(rest, 'long_blocks')}. A design of fixed size that answers "
        f"whatever the effect is takes {largest} blocks every time.",
        f"Blocks that resemble the one before (correlation 0.5) are not covered: the errors rise to "
        f"{_share(max(row['no_longer_at_margin'] for row in beyond))} % and "
        f"{_share(max(row['holds_at_margin'] for row in beyond))} %.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def _span(rows: Sequence[Mapping[str, Any]], key: str) -> str:
    low, high = min(row[key] for row in rows), max(row[key] for row in rows)
    return f"{low:.1f}" if f"{low:.1f}" == f"{high:.1f}" else f"{low:.1f} to {high:.1f}"


PARTS: Final[Mapping[str, Callable[[Results], str]]] = {
    "looks": looks,
    "setting": setting,
    "summary": summary,
    "errors": errors,
    "order": order,
    "power": power,
    "plans": plans,
    "costs": costs,
    "families": families,
    "gates": gates,
}
