"""A job's log as the user sees it: whole lines, each once, without what Ray says of itself."""

from __future__ import annotations

import re
from collections.abc import Callable

_OF_RAY = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\s+(INFO|DEBUG)\s+\S+\.py:\d+ -- ")


class JobLog:
    """Passes on to `write` what was not passed on before; the log may start anew at any time."""

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write
        self._passed = self._position = 0  # characters
        self._line = ""

    def rewind(self) -> None:
        """From here on, the log comes from its beginning once more."""
        self._position = 0

    def feed(self, text: str) -> None:
        """Takes the next piece of the log."""
        new = text[max(0, self._passed - self._position) :]
        self._position += len(text)
        self._passed = max(self._passed, self._position)
        *lines, self._line = (self._line + new).split("\n")
        for line in lines:
            self._pass_on(line + "\n")

    def close(self) -> None:
        """Passes on a last line that has no end."""
        rest, self._line = self._line, ""
        if rest:
            self._pass_on(rest)

    def _pass_on(self, line: str) -> None:
        if not _OF_RAY.match(line):
            self._write(line)
