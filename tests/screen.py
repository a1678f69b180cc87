"""A command in a pseudo-terminal, and what a user sees of it: pyte draws as a terminal does."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pyte

DPAUDIT = ("-m", "dpaudit_ray")


class Screen:
    """Runs `python ARGUMENTS` with a terminal of its own, which may be resized and closed.

    Args:
        errors: where standard error goes; to the terminal for None.
        hangups: False for what `nohup` does.
        drawn: columns of the picture, if longer lines than the terminal's are to be found.
        history: lines that stay, above the screen.
    """

    def __init__(
        self,
        *arguments: str | Path,
        size: tuple[int, int] = (80, 24),
        environment: Mapping[str, str] | None = None,
        errors: Path | None = None,
        hangups: bool = True,
        drawn: int | None = None,
        history: int = 1000,
    ) -> None:
        self._screen = pyte.HistoryScreen(*size, history=history, ratio=0.5)
        self._stream = pyte.ByteStream(self._screen)
        self._read_ahead: list[bytes] = []  # a picture each
        self._master, slave = pty.openpty()
        self.resize(*size)
        if drawn is not None:
            self._screen.resize(size[1], drawn)
        kept = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES", "NO_COLOR")}

        def own_terminal() -> None:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # a suite in the background ignores it
            if not hangups:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)

        with errors.open("wb") if errors else contextlib.nullcontext(slave) as err:
            self.process = subprocess.Popen(
                [sys.executable, *map(str, arguments)],
                stdin=slave,
                stdout=slave,
                stderr=err,
                start_new_session=True,
                preexec_fn=own_terminal,
                env={**kept, "TERM": "xterm-256color", **(environment or {})},
            )
        os.close(slave)

    @property
    def shown(self) -> list[str]:
        """The lines on the screen, without what is empty at their ends."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def lines(self) -> list[str]:
        """Returns the lines that were scrolled off, and those on the screen."""
        width = self._screen.columns
        gone = ["".join(row[x].data for x in range(width)) for row in self._screen.history.top]
        return [line.rstrip() for line in [*gone, *self._screen.display]]

    def colour(self, text: str) -> str:
        """Returns the colour of the first character of a text on the screen."""
        row = next(y for y, line in enumerate(self._screen.display) if text in line)
        return self._screen.buffer[row][self._screen.display[row].index(text)].fg

    def resize(self, columns: int, lines: int) -> None:
        """Changes the size of the window, as a user does by its corner."""
        self._screen.resize(lines, columns)
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, size)

    def until(self, seen: Callable[[list[str]], bool], timeout: float = 300) -> list[str]:
        """Reads on until a picture is as wanted; returns it."""
        end, open_ = time.monotonic() + timeout, True
        while not seen(self.shown):
            if self._read_ahead:
                self._stream.feed(self._read_ahead.pop(0))
            elif not open_ or time.monotonic() > end:
                raise AssertionError("never seen; last:\n" + "\n".join(self.shown))
            else:
                open_ = self._read()
        return self.shown

    def text(self, words: str, timeout: float = 300) -> list[str]:
        """Reads on until these words are on the screen."""
        return self.until(lambda lines: any(words in line for line in lines), timeout)

    def types(self, keys: bytes) -> None:
        """Sends keys as a user types them; b"\\x03" is Ctrl-C."""
        os.write(self._master, keys)

    def close(self) -> None:
        """Closes the window as a user does: its shell sends SIGHUP to all processes of the job."""
        os.close(self._master)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGHUP)

    def end(self, timeout: float = 300) -> int:
        """Reads to the end; returns the exit code."""
        end = time.monotonic() + timeout
        while time.monotonic() < end and self._read():
            pass
        self._stream.feed(b"".join(self._read_ahead))
        os.close(self._master)
        return self.process.wait(max(1.0, end - time.monotonic()))

    def _read(self) -> bool:
        """Takes what is written at once. False when nobody has the terminal open."""
        if not select.select([self._master], [], [], 0.1)[0]:
            return True
        written, open_ = b"", True
        while open_ and select.select([self._master], [], [], 0.02)[0]:
            try:
                data = os.read(self._master, 65536)
            except OSError:
                data = b""
            written += data
            open_ = bool(data)
        # On a busy machine several pictures come at once: each begins by wiping the one before.
        self._read_ahead += re.split(rb"(?=\r\x1b\[2K)", written)
        return open_
