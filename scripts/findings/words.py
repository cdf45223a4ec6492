"""Numbers and words of the study as text: one way to write each, in the document, the report and the captions.

Every function is pure and knows no locale: the same value gives the same text on every machine.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from findings.config import Arm, Model, SpeculationType

NOTHING = "–"
MINUS = "−"

_SPECULATION = {
    SpeculationType.NONE: "no speculation",
    SpeculationType.DRAFT_SIMPLE: "a draft model",
    SpeculationType.DRAFT_MTP: "an MTP drafter",
    SpeculationType.NGRAM_SIMPLE: "n-grams of the text so far (simple)",
    SpeculationType.NGRAM_MAP_K: "n-grams of the text so far (map by key)",
    SpeculationType.NGRAM_MAP_K4V: "n-grams of the text so far (map, four values a key)",
    SpeculationType.NGRAM_MOD: "n-grams of the text so far (hashed)",
    SpeculationType.NGRAM_CACHE: "n-grams of the text so far (cache)",
}
_LENGTHS = (
    ("n_max", "at most {} tokens a round"),
    ("n_min", "at least {}"),
    ("p_min", "p_min {}"),
    ("ngram_n", "n {}"),
    ("ngram_m", "m {}"),
    ("ngram_min_hits", "min hits {}"),
    ("gpu_layers_draft", "{} drafter layers on the GPU"),
)
_SCOPES = {"as_published": "as published", "mechanism": "mechanism"}
_KINDS = {
    "cannot_convert": "cannot be converted",
    "cannot_load": "cannot be loaded",
    "does_not_engage": "does not engage",
    "does_not_fit": "does not fit",
    "does_not_pay": "does not pay",
    "pays": "pays",
}


def number(value: float, decimals: int) -> str:
    """`value` with exactly `decimals` digits after the point and a true minus sign; never a negative zero."""
    text = f"{abs(value):.{decimals}f}"
    negative = value < 0 and float(text) != 0
    return (MINUS if negative else "") + text


def percent(value: float | None, decimals: int = 0) -> str:
    """A change in percent with its sign: -13.08 -> `−13 %`; a dash for None."""
    if value is None or math.isnan(value):
        return NOTHING
    text = number(value, decimals)
    plain = text.lstrip(MINUS)
    sign = "" if text.startswith(MINUS) else ("±" if float(plain) == 0 else "+")
    return f"{sign}{text} %"


def share(value: float | None, decimals: int = 0) -> str:
    """A share of 1 as a percentage without a sign: 0.66 -> `66 %`; a dash for None."""
    return NOTHING if value is None or math.isnan(value) else f"{number(value * 100, decimals)} %"


def speed(value: float | None, decimals: int = 1) -> str:
    """A generation speed: `25.3 tokens/s`; a dash for None."""
    return NOTHING if value is None or math.isnan(value) else f"{number(value, decimals)} tokens/s"


def build(value: int | None) -> str:
    """A llama.cpp build as its release names it: `b9538`; a dash for None."""
    return NOTHING if value is None else f"b{value}"


def size(value: int | None) -> str:
    """Bytes with a binary unit: `241.4 MiB`; a dash for None."""
    if value is None:
        return NOTHING
    amount = float(value)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if amount < 1024 or unit == "GiB":
            return f"{amount:.0f} {unit}" if unit == "bytes" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def count(value: int, thing: str, things: str = "") -> str:
    """`1 block`, `6 blocks`."""
    return f"{value} {thing if value == 1 else things or thing + 's'}"


def listing(items: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`; a dash for none."""
    if not items:
        return NOTHING
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} {last} {items[-1]}"


def spaced(word: str) -> str:
    """An identifier's underscores as spaces."""
    return word.replace("_", " ")


def scope(word: str) -> str:
    """The name of a scope."""
    return _SCOPES.get(word, spaced(word))


def finding_kind(word: str) -> str:
    """What a finding of that kind claims."""
    return _KINDS.get(word, spaced(word))


def speculation(arm: Arm, drafter: Model | None) -> str:
    """What an arm does, with every length that it fixes: `a draft model (SmolLM2 ...), at most 3 tokens a round`."""
    plan = arm.speculation
    text = _SPECULATION.get(plan.type, spaced(str(plan.type)))
    if drafter is not None:
        text += f" ({drafter.title})"
    elif plan.drafter:
        text += f" ({spaced(plan.drafter)})"
    values = [(words, getattr(plan, name)) for name, words in _LENGTHS]
    return ", ".join([text, *(words.format(value) for words, value in values if value is not None)])


def said(text: str) -> str:
    """Another program's words on one line, unchanged; a dash for none."""
    return " ".join(text.split()) or NOTHING


def true_minus(text: str) -> str:
    """`text` with a true minus sign before numbers, for texts that were written with a hyphen."""
    return re.sub(r"(?<![\w.])-(?=\d)", MINUS, text)


def sentence(text: str) -> str:
    """`text` with a capital first letter and a full stop, for a reason shown on its own; a dash for nothing.

    A first word that is a name (llama.cpp, convert_hf_to_gguf.py) keeps its letters.
    """
    text = " ".join(text.split())
    if not text:
        return NOTHING
    first = text.split(" ", 1)[0].rstrip(",:;")
    head = text[0].upper() if first.replace("-", "").replace("'", "").isalpha() else text[0]
    return head + text[1:] + ("" if text[-1] in ".!?:" else ".")
