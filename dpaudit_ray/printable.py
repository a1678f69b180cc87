"""Text of others as a terminal, a page and a figure may show it: nothing in it is a command."""

from __future__ import annotations

import re

# Control characters, those that turn the direction of what follows, and halves of characters: they
# can hide what is said, or cannot be said at all.
_OTHERS = "\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNPRINTABLE = re.compile(f"[\x00-\x0a{_OTHERS}]")
_BETWEEN_LINES = re.compile(f"[\x00-\x08{_OTHERS}]")


def printable(text: str) -> str:
    """`text` in one line, with every such character as Python would write it: \\x1b for escape."""
    return _UNPRINTABLE.sub(_written, text)


def lines(text: str) -> str:
    """`text` in its lines, with other such characters as Python would write them; tabs stay."""
    return _BETWEEN_LINES.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")
