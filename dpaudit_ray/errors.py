"""Every error that a user can meet, in one tree; each exits with 2 but where it says otherwise.

Messages are one line: what was wrong, the value, the bound, what to do.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator
from enum import IntEnum
from typing import ClassVar


class Exit(IntEnum):
    """Exit codes of the command line."""

    COMPLETE = 0
    VIOLATION = 1
    USAGE = 2
    FAILED_TRIALS = 3
    STOPPED = 4
    INCONCLUSIVE = 5
    BUG = 70  # none of the above may be returned by accident


_MIN_PART = 4  # characters of a name that is a part of another
_LONGEST = 300  # characters of somebody else's message


def first_line(error: BaseException) -> str:
    """The first line of a message, or the name of what has none; torch's may be of any length."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


_NO_MEMORY = re.compile(
    "out of memory|can(no|')t allocate memory"
    "|failed to map segment"  # the loader, of a library
    "|alloc(ation)?_failed",  # cuBLAS and cuDNN take memory past torch's allocator
    re.IGNORECASE,
)


def out_of_memory(error: BaseException | str) -> bool:
    """Whether memory ran out, by the class of Python's or torch's error, or a library's words."""
    kinds = {cls.__name__ for cls in type(error).__mro__}
    if kinds & {"MemoryError", "OutOfMemoryError"}:
        return True
    plain = isinstance(error, str | RuntimeError | OSError | ImportError | DpauditError)
    return plain and _NO_MEMORY.search(str(error)) is not None


class DpauditError(Exception):
    """Root of the tree: `exit_code` is the command line's; `details` go below the message."""

    exit_code: ClassVar[Exit] = Exit.USAGE

    def __init__(self, *args: object, details: tuple[str, ...] = ()) -> None:
        super().__init__(*args)
        self.details = details

    def _render_traceback_(self) -> list[str]:
        """Lines that a notebook shows instead of frames of this package."""
        return [f"{type(self).__name__}: {self}"]


REQUIRED = "is required"


class SpecError(DpauditError):
    """A sweep file that cannot be run. `key` is the dotted path of the offending entry."""

    meant: str | None = None  # of a key that nothing reads: the known one most like it, or empty

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.key, self.problem = key, problem

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}" if self.key else self.problem

    @property
    def problems(self) -> tuple[SpecError, ...]:
        """Every mistake that it tells of, each a line, in the order in which they are mended."""
        return (self,)

    def under(self, prefix: str) -> SpecError:
        """Returns the same error with `prefix` in front of its keys."""
        error = SpecError(f"{prefix}.{self.key}" if self.key else prefix, self.problem)
        error.meant = f"{prefix}.{self.meant}" if self.meant else self.meant
        return error


def unknown_key(key: str, names: Collection[str] = ()) -> SpecError:
    """The error about the last part of `key`, where only `names` are taken."""
    *parents, last = key.split(".")
    choice = f"{suggestion(last, names)}known: {', '.join(names)}" if names else ""
    error, meant = SpecError(key, f"unknown key{choice}"), closest(last, names)
    error.meant = ".".join([*parents, meant]) if meant else ""
    return error


class SweepError(SpecError):
    """Several mistakes of one sweep, told together; it has the key of the first."""

    problems: tuple[SpecError, ...] = ()

    def __init__(self, problems: tuple[SpecError, ...]) -> None:
        first = problems[0]
        super().__init__(first.key, first.problem)
        self.args, self.problems = (problems,), problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    def under(self, prefix: str) -> SpecError:
        return SweepError(tuple(problem.under(prefix) for problem in self.problems))


class Mistakes:
    """Collects all mistakes of a sweep, so that the user hears of them at once."""

    def __init__(self) -> None:
        self.errors: list[SpecError] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes a SpecError instead of raising it."""
        try:
            yield
        except SpecError as error:
            self.errors += error.problems

    def settle(self) -> None:
        """Raises the mistakes that were noted, if any were."""
        if self.errors:
            raise together(self.errors)


def together(errors: Iterable[SpecError]) -> SpecError:
    """One error for all: unknown keys first, each once, and none that a mended typo removes."""
    unique: dict[tuple[str, str], SpecError] = {}
    for error in sorted(errors, key=lambda error: error.meant is None):
        unique.setdefault((error.key, error.problem), error)
    meant = {error.meant for error in unique.values()}
    left = [e for e in unique.values() if not (e.problem.startswith(REQUIRED) and e.key in meant)]
    return left[0] if len(left) == 1 else SweepError(tuple(left))


# Names by which users of other libraries know an option.
_ALIASES = {
    "attack": "adversary",
    "attacker": "adversary",
    "canary": "adversary",
    "dataset": "data",
    "epochs": "steps",
    "iterations": "steps",
    "l2-norm-clip": "clip_norm",
    "lr": "learning_rate",
    "max-grad-norm": "clip_norm",
    "network": "model",
    "repetitions": "trials",
    "runs": "trials",
    "sigma": "noise_multiplier",
    "target-delta": "delta",
    "target-epsilon": "epsilon",
}


def closest(name: str, names: Iterable[str]) -> str:
    """The one of `names` that somebody who wrote `name` probably meant; empty for none."""
    import difflib

    by_lower = {n.lower().replace("_", "-"): n for n in names}
    wanted = name.lower().replace("_", "-")
    if (alias := _ALIASES.get(wanted)) and alias in by_lower.values():
        return alias
    longer = [lower for lower in by_lower if len(wanted) >= _MIN_PART and wanted in lower]
    matches = difflib.get_close_matches(wanted, by_lower, 1, 0.7)
    matches = matches or (longer if len(longer) == 1 else [])  # `noise` for noise_multiplier
    return by_lower[matches[0]] if matches else ""


def unknown_name(what: str, name: str, names: Iterable[str]) -> str:
    """The message about a name in a sweep file that nothing has."""
    names = sorted(names)
    return (
        f"unknown {what} {name!r}{suggestion(name, names)}known: {', '.join(names)}; one of your "
        "own is named package.module:Class"
    )


def suggestion(name: str, names: Iterable[str]) -> str:
    """The words between the problem and the names that are known."""
    meant = closest(name, names)
    return f"; did you mean {meant}? " if meant else "; "


class DataError(DpauditError):
    """A data set that is missing, unreadable or of the wrong shape."""


class RunDirectoryError(DpauditError):
    """A run directory that belongs to another sweep, is damaged, or cannot be written."""


class DamagedFileError(RunDirectoryError):
    """Scores, a part of a preparation or a checkpoint that is damaged: it can be made again."""


class MissingFileError(DamagedFileError):
    """Scores or a part of a preparation that storage has lost: a resumed run makes them again."""


class ScriptError(DpauditError):
    """A script of the user's that cannot be audited. `details` are the last lines it printed."""


class NoClusterError(DpauditError):
    """Nothing has started: no cluster there, no token for it, or one that can never run this."""


class StorageError(DpauditError):
    """Storage does not answer, or fails a running sweep, which can be resumed (exit 4)."""

    exit_code = Exit.STOPPED


class LeaseLostError(DpauditError):
    """Another driver took the run over, or its directory is gone (exit 4)."""

    exit_code = Exit.STOPPED


class ClusterError(DpauditError):
    """The cluster failed while the sweep ran, or lost too many workers; resumable (exit 4)."""

    exit_code = Exit.STOPPED


# Text of others as a terminal, a page and a figure may show it: nothing in it is a command -------

# Control characters, those that turn the direction of what follows, and halves of characters.
_OTHERS = "\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNPRINTABLE = re.compile(f"[\x00-\x0a{_OTHERS}]")
_BETWEEN_LINES = re.compile(f"[\x00-\x08{_OTHERS}]")


def printable(text: str) -> str:
    """`text` in one line: what is unprintable, ends of lines too, as Python writes it (\\x1b)."""
    return _UNPRINTABLE.sub(_written, text)


def lines(text: str) -> str:
    """`text` in its lines, with other such characters as Python would write them; tabs stay."""
    return _BETWEEN_LINES.sub(_written, text)


def _written(match: re.Match[str]) -> str:
    return match[0].encode("unicode_escape").decode("ascii")


_EXPONENT = re.compile(r"e\+?(-?)0*(?=\d)")


def plain(value: float, style: str = "g") -> str:
    """A number in a format such as `.3g`, its power of ten without padding: 1e-5, 2e6."""
    return _EXPONENT.sub(r"e\1", format(value, style))


def percent(share: float) -> str:
    """`95 %`, with the digits that it has."""
    return f"{100 * share:.6g} %"
