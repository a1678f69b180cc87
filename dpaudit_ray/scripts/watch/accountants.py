"""Records which steps accountants count, and which ε they state or return to the script."""

import collections
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..protocol import AccountedStep, History, Report
from .loaders import ReleaseKey

Counts = collections.Counter[tuple[int, float, float]]  # counts of steps, by accountant, σ and q
_SECONDS = 5.0  # time after which an accountant computes ε at no further δ


@dataclass
class Accountants:
    """Accountants of a run.

    Attributes:
        of_engines: the accountant of each engine that made a network private.
        all: all accountants of the script, whether an engine has them or not.
        accounted: noise and rate of each release, as far as it was accounted.
        reports: each call of the script for an ε: the accountant, and what it returned.
        answers: ε by a digest of the question, for later runs.
        loaded: histories that were loaded from checkpoints, by identity of the accountant.
    """

    of_engines: list[Any] = field(default_factory=list)
    all: list[Any] = field(default_factory=list)
    accounted: list[AccountedStep] = field(default_factory=list)
    reports: list[tuple[Any, Report]] = field(default_factory=list)
    answers: dict[str, float] = field(default_factory=dict)
    loaded: dict[int, History] = field(default_factory=dict)
    _counts: Counts = field(default_factory=Counts)
    _release: ReleaseKey | None = None

    def claiming(self) -> list[Any]:
        """Returns the accountants whose claim is the script's.

        They are those of the script's engines, or without engines all that counted steps.
        """
        if self.of_engines:
            return self.of_engines  # other accountants computed a noise multiplier or a plan
        return [accountant for accountant in self.all if accountant.history]

    def history(self) -> History:
        """Returns the (σ, q, steps) that the claiming accountants have counted so far."""
        events: History = ()
        for accountant in self.claiming():
            events += history_of(accountant)
        return events

    def note_gains(self, release: ReleaseKey | None) -> None:
        """Notes which noise and rate the release of the last call was accounted with.

        They are those of the steps that accountants counted since that call. A script may account
        for a step after it, so they are known only before the next release.

        Args:
            release: the release that is about to be made, which the next call is about; None at
                the end of the run.
        """
        step_counts = Counts()
        for index, accountant in enumerate(self.all):
            for noise, rate, steps in history_of(accountant):
                step_counts[index, noise, rate] += steps
        gained = step_counts - self._counts
        if self._release is not None and gained:
            _, noise, rate = min(gained)  # of the first accountant, the least noise
            self.accounted.append(AccountedStep(*self._release, noise, rate))
        self._counts = step_counts
        self._release = release

    def numbered_reports(self) -> tuple[Report, ...]:
        """Returns reports with the number of their accountant's claim, as `Report` has it."""
        numbers = {id(accountant): n for n, accountant in enumerate(self.claiming())}
        return tuple(
            replace(report, claim=numbers.get(id(accountant), -1 - self.all.index(accountant)))
            for accountant, report in self.reports
        )


def history_of(accountant: Any) -> History:
    """Returns an accountant's history as plain numbers."""
    return tuple((float(s), float(q), int(steps)) for s, q, steps in accountant.history)


def stated_epsilons(
    accountant: Any,
    deltas: Sequence[float],
    first: float,
) -> tuple[float | None, ...]:
    """Returns the ε that an accountant states at each δ; None where it fails.

    A slow accountant, as with noise that changes at every step, computes ε at δ `first` only.

    Args:
        accountant: accountant of the script.
        deltas: values of δ at which ε is computed.
        first: δ that is computed first.
    """
    end = time.monotonic() + _SECONDS
    epsilons: dict[float, float | None] = dict.fromkeys(deltas)
    for delta in sorted(deltas, key=lambda delta: delta != first):
        if not accountant.history:
            epsilons[delta] = 0.0
        elif time.monotonic() < end:
            with contextlib.suppress(Exception):  # the accountant may be the user's
                epsilons[delta] = float(accountant.get_epsilon(delta=delta))
    return tuple(epsilons.values())
