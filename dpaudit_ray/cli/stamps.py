"""Output whose lines begin with the time: that of a job, which nobody watches as it comes."""

from __future__ import annotations

import io
import os
import sys
import time

_OF_A_JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # Ray sets it for the driver of a job


class Stamped(io.TextIOWrapper):
    """A text stream onto a file descriptor, which stays open: local time before every line."""

    def __init__(self, descriptor: int) -> None:
        raw = open(descriptor, "wb", closefd=False)  # noqa: SIM115 (it stays open)
        super().__init__(raw, "utf-8", "replace", line_buffering=True)
        self._begins = True  # whether a line does

    def write(self, text: str) -> int:
        """Lines go out as they come; the first part of one has the stamp."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S ")
        *whole, rest = text.split("\n")
        for part in [*(line + "\n" for line in whole), *[rest] * bool(rest)]:
            super().write(stamp + part if self._begins else part)
            self._begins = part.endswith("\n")
        return len(text)


def stamp_a_job() -> None:
    """Puts the time before each line of this process when it is the driver of a Ray job."""
    if _OF_A_JOB in os.environ:
        sys.stdout.flush()
        sys.stdout, sys.stderr = Stamped(1), Stamped(2)
