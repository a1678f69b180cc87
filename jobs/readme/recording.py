"""Records commands in a real terminal of 80 columns as an animated SVG.

Commands run in a pseudo-terminal, and pyte draws their output as a terminal does. The SVG shows
every picture of the screen as text. Waits are shortened, so that a minute plays in 20 seconds.
"""

from __future__ import annotations

import base64
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path

import pyte

COLUMNS, ROWS = 80, 24
_FONT_SIZE = 14
_CHARACTER = 8.43  # width in pixels of a monospaced character of that size
_LINE = 19
_MARGIN = 16
_TOGETHER = 0.15  # seconds within which parts of one picture are written
_LONGEST = 0.2  # seconds that a picture of a running command stays
_TICK = 0.03  # seconds if only its clock has advanced
_TYPED_AT_ONCE, _TYPING = 3, 0.15  # characters of a command, and the seconds they take
_READING = 4.0  # seconds to read what a command has printed
_END = 5.0  # seconds that the last picture stays
_BACKGROUND, _FOREGROUND = "#10151d", "#d6dde6"
# Names of pyte for the colours of a terminal.
_COLOURS = {
    "red": "#ff7b72",
    "green": "#7ee787",
    "brown": "#e3b341",
    "blue": "#79c0ff",
    "magenta": "#d2a8ff",
    "cyan": "#76e3ea",
    "brightblack": "#8b949e",
    "white": _FOREGROUND,
}

Row = tuple[tuple[str, str, bool], ...]  # runs of text with their colour, and whether it is bold


@dataclass(frozen=True)
class Picture:
    """The screen for a while.

    Attributes:
        rows: the lines of the screen.
        seconds: how long it stays.
    """

    rows: tuple[Row, ...]
    seconds: float


class Terminal:
    """Types commands into a terminal and keeps every picture of its screen.

    Args:
        folder: where the commands run.
        environment: variables in addition to those of this process.
    """

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = {**os.environ, "TERM": "xterm-256color", **environment}
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self.pictures: list[Picture] = []

    def types(self, command: str) -> None:
        """Types a command, runs it to its end, and stays on the result.

        Raises:
            subprocess.CalledProcessError: the command failed.
        """
        self._stream.feed(b"\x1b[2J\x1b[H\x1b[32m$\x1b[0m ")  # on a screen that is wiped
        for begin in range(0, len(command), _TYPED_AT_ONCE):
            self._stream.feed(command[begin : begin + _TYPED_AT_ONCE].encode())
            self._keep(_TYPING)
        self._stream.feed(b"\r\n")
        self._run(command)
        self._keep(_READING)

    def _run(self, command: str) -> None:
        """Feeds the screen with what the command prints while it runs."""
        master, slave = pty.openpty()
        size = struct.pack("HHHH", ROWS, COLUMNS, 0, 0)
        fcntl.ioctl(slave, termios.TIOCSWINSZ, size)
        with subprocess.Popen(
            command, shell=True, cwd=self._folder, env=self._environment,
            stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        ) as process:  # fmt: skip
            os.close(slave)
            for written in _output(master):
                self._keep(written.after)
                self._stream.feed(written.data)
        os.close(master)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)

    def _keep(self, seconds: float) -> None:
        """Appends the screen as it is; if nothing has changed, the last picture stays as long."""
        rows = tuple(_row(self._screen, y) for y in range(ROWS))
        if self.pictures:
            last = self.pictures[-1]
            if last.rows == rows:
                self.pictures.pop()
                seconds = max(last.seconds, seconds)
            elif _without_clock(last.rows) == _without_clock(rows):
                seconds = _TICK
        self.pictures.append(Picture(rows, seconds))


@dataclass(frozen=True)
class _Written:
    """Bytes that a command wrote, and the shortened wait before them in seconds."""

    data: bytes
    after: float


def _output(master: int) -> Iterator[_Written]:
    """Yields what is written to a terminal until no process has it open any more."""
    last = time.monotonic()
    while True:
        select.select([master], [], [])
        time.sleep(_TOGETHER)
        try:
            data = os.read(master, 1 << 16)
        except OSError:  # closed at the other end
            return
        if not data:
            return
        now = time.monotonic()
        yield _Written(data, after=min(now - last, _LONGEST))
        last = now


def _without_clock(rows: Sequence[Row]) -> str:
    """Returns the text of the screen without the seconds that a phase has taken so far."""
    lines = ("".join(text for text, _, _ in row) for row in rows)
    return re.sub(r"\d+s\b", "s", "\n".join(lines))


def _row(screen: pyte.Screen, y: int) -> Row:
    """Returns a line of the screen as runs of one colour, without blanks at its end."""
    cells = [screen.buffer[y][x] for x in range(COLUMNS)]
    while cells and cells[-1].data.isspace():
        cells.pop()
    runs = []
    for (colour, bold), same in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        runs.append(("".join(cell.data for cell in same), colour, bold))
    return tuple(runs)


def svg(pictures: Sequence[Picture], last: bytes, description: str) -> str:
    """Returns an SVG that plays the pictures over and over.

    Args:
        pictures: in their order.
        last: a PNG that is shown at the end, as wide as the terminal.
        description: what is shown, for readers who do not see it.
    """
    width = round(COLUMNS * _CHARACTER + 2 * _MARGIN)
    height = ROWS * _LINE + 2 * _MARGIN
    total = sum(picture.seconds for picture in pictures) + _END
    styles, shown, begin = [], [], 0.0
    for number, picture in enumerate(pictures):
        end = begin + picture.seconds
        styles.append(_visible(f"p{number}", begin / total, end / total))
        lines = "".join(_text(row, y) for y, row in enumerate(picture.rows) if row)
        shown.append(f'<g class="p" id="p{number}">{lines}</g>')
        begin = end
    styles.append(_visible("last", begin / total, 1))
    image = base64.b64encode(last).decode()
    shown.append(
        f'<image class="p" id="last" width="{width}" height="{height}" '
        f'preserveAspectRatio="xMidYMin slice" href="data:image/png;base64,{image}"/>'
    )
    colours = "".join(f".{name}{{fill:{value}}}" for name, value in _COLOURS.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" role="img"><title>{escape(description)}</title>'
        f"<style>text{{font:{_FONT_SIZE}px 'DejaVu Sans Mono',Menlo,Consolas,monospace;"
        f"fill:{_FOREGROUND};white-space:pre}}.b{{font-weight:bold}}{colours}"
        f".p{{visibility:hidden;animation:{total:.1f}s step-end infinite}}{''.join(styles)}"
        "@media (prefers-reduced-motion:reduce){.p{animation:none}#last{visibility:visible}}"
        f'</style><rect width="100%" height="100%" rx="8" fill="{_BACKGROUND}"/>'
        f"{''.join(shown)}</svg>\n"
    )


def _visible(name: str, begin: float, end: float) -> str:
    """Returns the style of an element that is visible for this part of the animation."""
    hidden = "visibility:hidden"
    first = "" if begin == 0 else f"0%{{{hidden}}}"
    return (
        f"#{name}{{animation-name:{name}}}@keyframes {name}{{{first}"
        f"{begin:.2%}{{visibility:visible}}{end:.2%}{{{hidden}}}}}"
    )


def _text(row: Row, y: int) -> str:
    """Returns a line of the screen as an element of SVG.

    Each run has its own x, so that columns stay in line with any font.
    """
    spans, column = [], 0
    for text, colour, bold in row:
        classes = [colour] if colour in _COLOURS else []
        classes += ["b"] if bold else []
        style = f' class="{" ".join(classes)}"' if classes else ""
        x = round(_MARGIN + column * _CHARACTER, 1)
        length = round(len(text) * _CHARACTER, 1)
        if not text.isspace():
            spans.append(f'<tspan x="{x}" textLength="{length}"{style}>{escape(text)}</tspan>')
        column += len(text)
    return f'<text y="{_MARGIN + (y + 1) * _LINE - 5}">{"".join(spans)}</text>'
