"""How words of the study look in figures: a colour for those who see it, and a shape or hatch for everybody.

The colours are the eight of Okabe and Ito (2008), chosen to stay apart for the common kinds of colour blindness; no
two words of one family share a shape, so a print in black and white loses nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

BLACK = "#000000"
BLUE = "#0072B2"
SKY = "#56B4E9"
GREEN = "#009E73"
YELLOW = "#F0E442"
ORANGE = "#E69F00"
VERMILION = "#D55E00"
PURPLE = "#CC79A7"
GREY = "#6E6E6E"


@dataclass(frozen=True)
class Look:
    """Colour, marker (matplotlib's letters), hatch of bars, and the words of a legend."""

    colour: str
    marker: str
    hatch: str
    label: str


VERDICTS: dict[str, Look] = {
    "holds": Look(BLUE, "o", "", "holds"),
    "no_longer_holds": Look(VERMILION, "X", "xx", "no longer holds"),
    "inconclusive": Look(ORANGE, "D", "..", "inconclusive"),
    "not_testable": Look(GREY, "s", "//", "not testable here"),
}

OUTCOMES: dict[str, Look] = {
    "ok": Look(GREEN, "o", "", "ok"),
    "refused": Look(VERMILION, "X", "xx", "refused"),
    "unsupported": Look(PURPLE, "P", "++", "unsupported"),
    "no_drafts": Look(YELLOW, "h", "oo", "loads, drafted nothing"),
    "not_engaged": Look(ORANGE, "D", "..", "loads, does not speculate"),
    "out_of_memory": Look(BLUE, "v", "\\\\", "out of memory"),
    "timed_out": Look(SKY, "^", "oo", "timed out"),
    "crashed": Look(BLACK, "*", "**", "crashed"),
    "unavailable": Look(GREY, "s", "//", "unavailable"),
    "not_run": Look(GREY, "|", "||", "not run"),
}

BACKENDS: dict[str, Look] = {
    "cuda": Look(ORANGE, "s", "//", "CUDA"),
    "vulkan": Look(BLUE, "o", "", "Vulkan"),
    "metal": Look(GREEN, "^", "..", "Metal"),
    "cpu": Look(GREY, "D", "xx", "CPU"),
    "": Look("#BDBDBD", "P", "\\\\", "backend not stated"),
}

ARM_KINDS: dict[str, Look] = {
    "null": Look(GREY, "s", "", "null (the baseline again)"),
    "positive_control": Look(GREEN, "^", "", "positive control"),
    "candidate": Look(BLUE, "o", "", "candidate"),
}

EVIDENCE: dict[str, str] = {
    "published": "published by the study, not measured here",
    "measured": "measured by this pipeline",
    "imported": "imported from others' files",
}


def look(family: dict[str, Look], word: str) -> Look:
    """The look of `word`; a word that this version does not know is drawn, in grey, under its own name."""
    return family.get(word) or Look(GREY, "P", "--", word.replace("_", " "))
