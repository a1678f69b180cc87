"""Records what accountants count, what they state, and what the script was answered."""

import collections
import dataclasses
import time
from collections.abc import Sequence
from typing import Any

from ..protocol import AccountedStep, Claim, History, Report
from .loaders import ReleaseKey

_SECONDS = 5.0  # that an accountant may take for further δ


@dataclasses.dataclass
class Accountants:
    """Accountants of a run.

    Attributes:
        of_engines: the accountant of each engine.
        all: those of the script, whether an engine has them or not.
        has_engine: an engine made a network private.
        accounted: noise and rate of each release, as far as it was accounted.
        reports: ε that the script was given.
        answers: ε by a digest of the question, for later runs.
    """

    of_engines: list[Any] = dataclasses.field(default_factory=list)
    all: list[Any] = dataclasses.field(default_factory=list)
    has_engine: bool = False
    accounted: list[AccountedStep] = dataclasses.field(default_factory=list)
    reports: list[Report] = dataclasses.field(default_factory=list)
    answers: dict[str, float] = dataclasses.field(default_factory=dict)
    _counts: collections.Counter[tuple[int, float, float]] = dataclasses.field(
        default_factory=collections.Counter
    )
    _release: ReleaseKey | None = None

    def claiming(self) -> list[Any]:
        """Returns those whose claim is the script's: its engines', or its own without engine."""
        if self.has_engine:
            return self.of_engines  # others computed a noise multiplier or a plan
        return [accountant for accountant in self.all if accountant.history]

    def history(self) -> History:
        """Returns (σ, q, steps) of the claiming accountants, as they have it now."""
        events: History = ()
        for accountant in self.claiming():
            events += history_of(accountant)
        return events

    def settle(self, release: ReleaseKey | None) -> None:
        """Notes what accountants gained since the last release as that release's.

        A script may account after a step: `release`, about to be made, is settled by the next call.
        """
        counts: collections.Counter[tuple[int, float, float]] = collections.Counter()
        for index, accountant in enumerate(self.all):
            for noise, rate, steps in history_of(accountant):
                counts[index, noise, rate] += steps
        gained = counts - self._counts
        if self._release is not None and gained:
            _, noise, rate = min(gained)
            self.accounted.append(AccountedStep(*self._release, noise, rate))
        self._counts = counts
        self._release = release


def history_of(accountant: Any) -> History:
    """Returns an accountant's history as plain numbers."""
    return tuple((float(s), float(q), int(steps)) for s, q, steps in accountant.history)


def claims(accountants: Sequence[Any], deltas: Sequence[float], first: float) -> list[Claim]:
    """Asks each accountant for ε at each δ.

    One that is slow, as with noise that changes at every step, is asked for δ `first` only.
    """
    values = []
    for accountant in accountants:
        began = time.monotonic()
        epsilons: dict[float, float | None] = {}
        for delta in sorted(deltas, key=lambda delta: delta != first):
            is_slow = epsilons and time.monotonic() - began > _SECONDS
            epsilons[delta] = None if is_slow else _epsilon(accountant, delta)
        values.append(
            Claim(
                name=accountant.mechanism(),
                history=history_of(accountant),
                deltas=tuple(deltas),
                epsilons=tuple(epsilons[delta] for delta in deltas),
            )
        )
    return values


def _epsilon(accountant: Any, delta: float) -> float | None:
    """Returns ε of the steps so far; None if the accountant fails."""
    try:
        return float(accountant.get_epsilon(delta=delta)) if accountant.history else 0.0
    except Exception:  # noqa: BLE001 (the accountant may be the user's)
        return None
