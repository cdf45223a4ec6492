"""Text that a program keeps up to date inside a document that people write: what stands between two markers."""

from __future__ import annotations


def with_marked(text: str, begin: str, end: str, content: str) -> str | None:
    """`text` with `content` between its first `begin` and the `end` after it, the markers kept; None without them."""
    before, found_begin, rest = text.partition(begin)
    _, found_end, after = rest.partition(end)
    return f"{before}{begin}{content}{end}{after}" if found_begin and found_end else None
