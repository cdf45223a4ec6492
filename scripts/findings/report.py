"""The report: one HTML page that opens offline and asks nobody for anything.

Style, script and figures are inside the page; its content security policy allows these two texts by their hashes and
images from data alone, so even a mistake in a template could not make it fetch or send something.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from findings import words
from findings.config import Allowance
from findings.disagreement import disagreements
from findings.publish import TEMPLATES, write_scanned
from findings.story import Story
from findings.view import Scanned, attestation, helpers

TEMPLATE = "report.html.j2"
POINTS_PER_PIXEL = 72 / 96


@dataclass(frozen=True)
class Image:
    """A figure inside the page: a data URI, its size in CSS pixels, a caption by paragraphs, a text in its place."""

    data: str
    width: int
    height: int
    caption: tuple[str, ...]
    alt: str


def load_images(figures: Path, captions: Path, names: Sequence[str]) -> dict[str, Image]:
    """The named SVG figures with their captions (`<name>.rst`), those that are there, in the order of `names`."""
    found = {}
    for name in names:
        path = figures / f"{name}.svg"
        if path.exists():
            found[name] = _image(path.read_bytes(), _caption(captions / f"{name}.rst"))
    return found


def _image(svg: bytes, caption: tuple[str, ...]) -> Image:
    """An SVG as a data URI. Raises ValueError for one without a size in points, as matplotlib writes it."""
    size = re.search(rb'<svg[^>]*?\bheight="([\d.]+)pt"[^>]*?\bwidth="([\d.]+)pt"', svg) or re.search(
        rb'<svg(?=[^>]*\bheight="([\d.]+)pt")(?=[^>]*\bwidth="([\d.]+)pt")', svg
    )
    if size is None:
        raise ValueError("a figure has no size in points; draw the figures again with scripts/figures.py")
    height, width = (round(float(value) / POINTS_PER_PIXEL) for value in size.groups())
    data = "data:image/svg+xml;base64," + base64.b64encode(svg).decode("ascii")
    return Image(data, width, height, caption, caption[0] if caption else "")


def _caption(path: Path) -> tuple[str, ...]:
    """The paragraphs of a caption file; none where there is no file."""
    if not path.exists():
        return ()
    parts = re.split(r"\n\s*\n", path.read_text(encoding="utf-8").strip())
    return tuple(" ".join(part.split()).replace("``", "`") for part in parts)


def prose(text: str) -> Markup:
    """Our own text: escaped, with `backticks` as code."""
    parts = re.split(r"`([^`]+)`", " ".join(str(text).split()))
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else escape(part) for number, part in enumerate(parts)
    )


def render_report(story: Story, images: Mapping[str, Image], scanned: Scanned) -> str:
    """The page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), undefined=StrictUndefined, autoescape=True, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters |= {"prose": prose, "spaced": words.spaced}
    style = (TEMPLATES / "report.css").read_text(encoding="utf-8")
    script = (TEMPLATES / "report.js").read_text(encoding="utf-8")
    leading = {line for finding in story.findings for line in finding.leading}
    known = {finding.finding.id for finding in story.findings}
    leading |= {line for line in story.verdicts if line.finding not in known}
    return environment.get_template(TEMPLATE).render(
        **helpers(story),
        title=story.configuration.published.document.title,
        images=images,
        leading=leading,
        disagreements=disagreements(line for line in story.verdicts if line in leading),
        unjudged=[finding.finding.title for finding in story.findings if not finding.lines],
        style=Markup(style),  # noqa: S704 - our own file, allowed by its hash
        script=Markup(script),  # noqa: S704
        style_hash=_hash(style),
        script_hash=_hash(script),
        attestation=attestation(scanned),
    )


def _hash(text: str) -> str:
    """A text's hash as a content security policy writes it."""
    return base64.b64encode(hashlib.sha256(text.encode()).digest()).decode("ascii")


def report(
    story: Story,
    tables: Sequence[Path],
    figures: Path,
    captions: Path,
    names: Sequence[str],
    out: Path,
    allowances: Sequence[Allowance],
) -> Scanned:
    """Write the page to `out`, once it and the files behind it were found free of private things (LeakError)."""
    images = load_images(figures, captions, names)
    behind = [*(figures / f"{name}.svg" for name in images), *tables]
    return write_scanned(out, behind, allowances, lambda scanned: render_report(story, images, scanned))
