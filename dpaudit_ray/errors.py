"""Errors that a user can meet, in one tree, and the words of their messages.

The command line exits with 2 after them, unless their docstring names another code. Messages are
one line: what was wrong, the value, the bound, what to do.
"""

import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
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


_MIN_PART = 4  # characters of an unknown name that counts as a part of a known one
_LONGEST = 300  # characters of another library's message


def first_line(error: BaseException) -> str:
    """Returns the first line of a message, shortened, or the class of an error that has none."""
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}..."


_NO_MEMORY = re.compile(
    "out of memory|can(no|')t allocate memory"
    "|failed to map segment"  # the loader, of a library
    "|alloc(ation)?_failed",  # cuBLAS and cuDNN, which do not use torch's allocator
    re.IGNORECASE,
)


def out_of_memory(error: BaseException | str) -> bool:
    """Returns whether memory ran out, by the class of an error, or by its text."""
    classes = {cls.__name__ for cls in type(error).__mro__}
    if classes & {"MemoryError", "OutOfMemoryError"}:
        return True
    has_words = isinstance(error, str | RuntimeError | OSError | ImportError | DpauditError)
    return has_words and _NO_MEMORY.search(str(error)) is not None


class DpauditError(Exception):
    """Root of the tree: `exit_code` is the command line's; `details` are more lines."""

    exit_code: ClassVar[Exit] = Exit.USAGE

    def __init__(
        self,
        *args: object,
        details: tuple[str, ...] = (),
    ) -> None:
        """Takes the message, and lines that are printed below it."""
        super().__init__(*args)
        self.details = details

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that a notebook shows instead of frames of this package."""
        return [f"{type(self).__name__}: {self}"]


REQUIRED = "is required"


class SpecError(DpauditError):
    """A sweep file that cannot be run.

    Attributes:
        key: dotted path of the offending entry.
        problem: the rest of the message.
        meant: the known key that is most like an unknown one, or empty; None if it is known.
    """

    meant: str | None = None

    def __init__(self, key: str, problem: str) -> None:
        """Takes the key, which may be "", and the rest of the message."""
        super().__init__(key, problem)
        self.key = key
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.key}: {self.problem}" if self.key else self.problem

    @property
    def problems(self) -> "tuple[SpecError, ...]":
        """All mistakes that the error names, a line each, in the order in which to fix them."""
        return (self,)

    def under(self, prefix: str) -> "SpecError":
        """Returns the same error with `prefix` in front of its keys."""
        error = SpecError(f"{prefix}.{self.key}" if self.key else prefix, self.problem)
        error.meant = f"{prefix}.{self.meant}" if self.meant else self.meant
        return error


def unknown_key(key: str, names: Collection[str]) -> SpecError:
    """Returns the error about the last part of `key`, which is not among the known `names`."""
    *parents, last = key.split(".")
    choice = f"{suggestion(last, names)}known: {', '.join(names)}" if names else ""
    error = SpecError(key, f"unknown key{choice}")
    meant = closest(last, names)
    error.meant = ".".join([*parents, meant]) if meant else ""
    return error


class SweepError(SpecError):
    """Several mistakes of one sweep, a line each; it has the key of the first."""

    problems: tuple[SpecError, ...] = ()

    def __init__(self, problems: tuple[SpecError, ...]) -> None:
        """Takes at least one mistake."""
        first = problems[0]
        super().__init__(first.key, first.problem)
        self.args = (problems,)
        self.problems = problems

    def __str__(self) -> str:
        return "\n".join(map(str, self.problems))

    def under(self, prefix: str) -> SpecError:
        return SweepError(tuple(problem.under(prefix) for problem in self.problems))


class Mistakes:
    """Collects all mistakes of a sweep, to report them together."""

    def __init__(self) -> None:
        """Begins without a mistake."""
        self.errors: list[SpecError] = []

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Notes a SpecError instead of raising it."""
        try:
            yield
        except SpecError as error:
            self.errors += error.problems

    def raise_if_any(self) -> None:
        """Raises one error for all mistakes that were noted, if there are any."""
        if self.errors:
            raise together(self.errors)


def together(errors: Iterable[SpecError]) -> SpecError:
    """Returns one error for all: unknown keys first, each mistake once.

    A required key that is only misspelt is not reported as missing.
    """
    unique: dict[tuple[str, str], SpecError] = {}
    for error in sorted(errors, key=lambda error: error.meant is None):
        unique.setdefault((error.key, error.problem), error)
    meant = {error.meant for error in unique.values()}
    remaining = [
        error
        for error in unique.values()
        if not (error.problem.startswith(REQUIRED) and error.key in meant)
    ]
    return remaining[0] if len(remaining) == 1 else SweepError(tuple(remaining))


# Names by which users of Opacus, JAX Privacy and TensorFlow Privacy know an option.
_ALIASES = {
    "adversary": "attack attacker canary threat-model",
    "batch_size": "batch expected-batch-size lot-size",
    "clip_norm": "clip clipping clipping-norm l2-clip-norm l2-norm-clip max-grad-norm max-norm",
    "confidence": "alpha confidence-level significance",
    "data": "data-loader dataset",
    "delta": "target-delta",
    "epsilon": "target-epsilon",
    "learning_rate": "eta lr step-size",
    "mechanism": "algorithm",
    "model": "architecture net network",
    "noise_multiplier": "noise noise-scale noise-std sigma std stddev",
    "num_cpus": "cpus",
    "num_gpus": "gpus",
    "optimizer": "optim",
    "sampling": "poisson-sampling sampler",
    "schedule": "lr-scheduler scheduler",
    "seed": "random-seed random-state",
    "steps": "epochs iterations max-steps n-steps num-epochs num-iterations num-steps",
    "trials": "n-trials num-trials repetitions runs shadow-models",
}


def closest(name: str, names: Iterable[str]) -> str:
    """Returns the one of `names` that a user who wrote `name` probably meant; "" for none."""
    import difflib

    by_lower = {option.lower().replace("_", "-"): option for option in names}
    lower = name.lower().replace("_", "-")
    for option, aliases in _ALIASES.items():
        if option in by_lower.values() and lower in aliases.split():
            return option
    matches = difflib.get_close_matches(lower, by_lower, 1, 0.7)
    if not matches and len(lower) >= _MIN_PART:
        # A part of a known name was written, such as `noise` for noise_multiplier.
        matches = [option for option in by_lower if lower in option]
    return by_lower[matches[0]] if len(matches) == 1 else ""


def unknown_name(
    what: str,
    name: str,
    names: Iterable[str],
) -> str:
    """Returns the message about a name in a sweep file that no plug-in has.

    Args:
        what: the kind of plug-in.
        name: the unknown name.
        names: the known ones.
    """
    names = sorted(names)
    return (
        f"unknown {what} {name!r}{suggestion(name, names)}known: {', '.join(names)}; one of your "
        "own is named package.module:Class"
    )


def suggestion(name: str, names: Iterable[str]) -> str:
    """Returns the words between an unknown name and the list of known `names`."""
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
    """A script that cannot be audited. `details` are the last lines that it printed."""


class NoClusterError(DpauditError):
    """A cluster that does not answer, refuses its token, or can never run this sweep."""


class StorageError(DpauditError):
    """Storage does not answer, or fails a running sweep, which can be resumed (exit 4)."""

    exit_code = Exit.STOPPED


class LeaseLostError(DpauditError):
    """Another driver took the run over, or its directory is gone (exit 4)."""

    exit_code = Exit.STOPPED


class ClusterError(DpauditError):
    """The cluster failed while the sweep ran, or lost too many workers; resumable (exit 4)."""

    exit_code = Exit.STOPPED


# Text of strangers as a terminal, a page and a figure may show it: nothing in it is a command -----

# Control characters, those that turn the direction of the text after them, and half characters.
_OTHER_UNPRINTABLE = "\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff"
_UNPRINTABLE = re.compile(f"[\x00-\x0a{_OTHER_UNPRINTABLE}]")
_BETWEEN_LINES = re.compile(f"[\x00-\x08{_OTHER_UNPRINTABLE}]")


def printable(text: str) -> str:
    """Returns `text` in one line: unprintable characters and ends of lines are escaped (\\x1b)."""
    return _UNPRINTABLE.sub(_escape, text)


def lines(text: str) -> str:
    """Returns `text` in its lines, with other unprintable characters escaped; tabs stay."""
    return _BETWEEN_LINES.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    """Returns the matched characters as escapes of Python, such as \\x1b."""
    return match[0].encode("unicode_escape").decode("ascii")


_EXPONENT = re.compile(r"e\+?(-?)0*(?=\d)")


def plain(value: float, style: str = "g") -> str:
    """Formats a number in a style such as `.3g`, its power of ten without padding: 1e-5, 2e6."""
    return _EXPONENT.sub(r"e\1", format(value, style))


def percent(share: float) -> str:
    """Formats a share as `95 %`, with up to six significant digits."""
    return f"{100 * share:.6g} %"


def and_more(items: Sequence[str]) -> str:
    """Returns the first item, and the number of those after it: `a and 3 more`."""
    first, *later = items
    return f"{first} and {len(later)} more" if later else first
