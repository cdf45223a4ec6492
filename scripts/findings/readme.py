"""The README's table of verdicts, written between its markers from the same story as the document."""

from __future__ import annotations

from findings.marked import with_marked
from findings.publish import cell, verdict_cell
from findings.story import Story

BEGIN = "<!-- verdicts:begin (made by snakemake --cores 1 publish) -->"
END = "<!-- verdicts:end -->"


class ReadmeError(ValueError):
    """A README without the markers; the message names what is missing."""


def verdict_table(story: Story) -> str:
    """A Markdown table: finding, verdict as published, verdict of the mechanism."""
    several = len(story.measured_hosts) > 1
    lines = ["| finding | as published | mechanism |", "|---|---|---|"]
    for item in story.findings:
        published, mechanism = (verdict_cell(item, scope, several) for scope in ("as_published", "mechanism"))
        lines.append(f"| {cell(item.finding.title)} | {published} | {mechanism} |")
    return "\n".join(lines)


def with_verdicts(readme: str, story: Story) -> str:
    """The README with today's table between its markers. Raises ReadmeError where a marker is missing."""
    changed = with_marked(readme, BEGIN, END, f"\n\n{verdict_table(story)}\n\n")
    if changed is None:
        raise ReadmeError(f"README.md: the markers {BEGIN} and {END} are needed around the table of verdicts")
    return changed
