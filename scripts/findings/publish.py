"""The document: docs/gemma-4-mtp-on-pascal.md, written from tables and configuration, the same bytes every time.

Templates hold words only. Whatever is a figure comes from the story (story.py) or the configuration, through the
functions of words.py; a test reads the template and finds no digit in it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from findings import words
from findings.config import Allowance
from findings.leakscan import Scanner, require_clean
from findings.records import write_text
from findings.story import AttemptStory, FindingStory, Story, VerdictLine
from findings.view import Scanned, attestation, helpers, mark, verdict_label

TEMPLATES = Path(__file__).parent / "templates"
TEMPLATE = "document.md.j2"
DIGEST_LENGTH = 12


def render_document(story: Story, figures: str, scanned: Scanned) -> str:
    """The document as Markdown; `figures` is the figures' folder as seen from the document."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701 - Markdown; text of other programs passes the filter `plain`
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {
        "prose": prose, "plain": plain, "cell": cell, "sentence": words.sentence, "spaced": words.spaced,
        "quoted": lambda text: f"“{text.rstrip('.')}”",
    }  # fmt: skip
    several = len(story.measured_hosts) > 1
    text = environment.get_template(TEMPLATE).render(
        **helpers(story),
        figures=figures,
        attestation=attestation(scanned),
        digest_length=DIGEST_LENGTH,
        digest_kind="sha256",
        cores=1,
        has_measured=any(item.panels for item in story.attempts),
        has_timeline=any(item.outcomes for item in story.attempts),
        heading=heading,
        statement=lambda finding, scope: getattr(finding.finding.statement, scope),
        since=since,
        measured=measured,
        tally=lambda scope: tally(story, scope),
        verdict_cell=lambda finding, scope: verdict_cell(finding, scope, several),
    )
    return tidy(text)


def tidy(text: str) -> str:
    """Markdown with one empty line around headings, tables, lists, images and code, and one newline at the end."""
    out: list[str] = []
    fenced = False
    for line in (raw.rstrip() for raw in text.splitlines()):
        if not fenced and out and out[-1] and line and _block(line) != _block(out[-1]):
            out.append("")
        if fenced or line or (out and out[-1]):
            out.append(line)
        if line.startswith("```"):
            fenced = not fenced
    return "\n".join(out).strip() + "\n"


def _block(line: str) -> str:
    """What kind of block a line belongs to; lines of different kinds are set apart."""
    for kind, start in (("heading", "#"), ("table", "|"), ("list", "- "), ("image", "!["), ("code", "```")):
        if line.startswith(start):
            return line if kind == "heading" else kind
    return "text"


def prose(text: str) -> str:
    """Our own text (from config/) on one line; its backticks are meant."""
    return " ".join(text.split())


def plain(text: str) -> str:
    """Another program's text on one line, so that none of it becomes markup."""
    text = re.sub(r"([\\`*\[\]<>~])", r"\\\1", " ".join(text.split()))
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def cell(text: str) -> str:
    """Text inside a table's cell."""
    return " ".join(text.split()).replace("|", "\\|")


def heading(item: AttemptStory) -> str:
    """An attempt's heading: `Attempt 1: its title`."""
    name = words.spaced(item.attempt.id).capitalize()
    title = prose(item.attempt.title)
    return title if title.lower().startswith(name.lower()) else f"{name}: {title}"


def since(line: VerdictLine) -> str:
    """Between which builds a finding stopped holding, where that is known."""
    if line.fails_since is None:
        return ""
    until = f", held until {words.build(line.holds_until)}" if line.holds_until is not None else ""
    return f" (not since {words.build(line.fails_since)}{until})"


def measured(line: VerdictLine) -> str:
    """The measured change with its interval and the engine, as a sentence; nothing where none was measured."""
    if line.change is None:
        return f" ({line.engine})" if line.engine else ""
    text = f" Measured: {words.percent(line.change.mean, 1)}"
    if line.change.low is not None and line.change.high is not None:
        text += f" (interval {words.percent(line.change.low, 1)} to {words.percent(line.change.high, 1)})"
    if line.blocks is not None:
        text += f", {words.count(line.blocks, 'block')}"
    group = f", prompts: {line.prompt_class}" if line.prompt_class else ""
    return f"{text}, arm {line.arm}{group}, {line.engine}."


def verdict_cell(finding: FindingStory, scope: str, several_hosts: bool) -> str:
    """A finding's verdict in one scope, per machine where machines differ."""
    lines = finding.of_scope(scope)
    if not lines:
        return "no verdict yet"
    said = {f"{mark(line.verdict)} {verdict_label(line.verdict)}{since(line)}" for line in lines}
    if len(said) == 1 or not several_hosts:
        return " / ".join(sorted(said))
    return "; ".join(f"{line.host}: {mark(line.verdict)} {verdict_label(line.verdict)}{since(line)}" for line in lines)


def tally(story: Story, scope: str) -> str:
    """How many findings got which verdict in a scope."""
    counts = story.counts[scope]
    found = [f"{counts[word]} {verdict_label(word)}" for word in counts]
    return words.listing(sorted(found, key=lambda text: text.split(" ", 1)[1])) if found else "no verdicts yet"


def publish(story: Story, tables: Sequence[Path], figures: Path, out: Path, allowances: Sequence[Allowance]) -> Scanned:
    """Write the document to `out`, once it and the files behind it were found free of private things.

    Raises LeakError; the old document then stays.
    """
    link = os.path.relpath(figures.resolve(), out.resolve().parent).replace(os.sep, "/")
    behind = [*sorted(figures.glob("*.svg")), *tables]
    return write_scanned(out, behind, allowances, lambda scanned: render_document(story, link, scanned))


def write_scanned(
    out: Path, behind: Sequence[Path], allowances: Sequence[Allowance], render: Callable[[Scanned], str]
) -> Scanned:
    """Scan the files behind a text, render it, scan it too, and only then write it. Raises LeakError at a hit."""
    scanner = Scanner(allowances)
    for path in behind:
        scanner.scan_path(path)
    result = scanner.result()
    require_clean(result)
    scanned = Scanned(result.files, result.lines, result.allowed)
    text = render(scanned)
    scanner.scan_text(out.name, text)
    require_clean(scanner.result())
    write_text(out, text)
    return scanned
