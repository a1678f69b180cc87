"""Records what accountants count, what they state, and which ε the script got from them."""

import collections
import functools
import hashlib
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ..protocol import AccountedStep, Claim, History, Report
from .hooks import around
from .loaders import ReleaseKey

_SECONDS = 5.0  # that an accountant may take for further δ
_QUESTIONS = ("get_epsilon", "get_privacy_spent")


@dataclass
class Accountants:
    """Accountants of a run.

    Attributes:
        of_engines: the accountant of each engine.
        all: those of the script, whether an engine has them or not.
        has_engine: an engine made a network private.
        accounted: noise and rate of each release, as far as it was accounted.
        reports: ε that the script got, by accountant.
        answers: ε by a digest of the question, for later runs.
        loaded: histories that were loaded, by identity of the accountant.
    """

    of_engines: list[Any] = field(default_factory=list)
    all: list[Any] = field(default_factory=list)
    has_engine: bool = False
    accounted: list[AccountedStep] = field(default_factory=list)
    reports: list[tuple[Any, Report]] = field(default_factory=list)
    answers: dict[str, float] = field(default_factory=dict)
    loaded: dict[int, History] = field(default_factory=dict)
    _counts: collections.Counter[tuple[int, float, float]] = field(
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

    def numbered_reports(self) -> tuple[Report, ...]:
        """Returns reports with the index of their accountant's claim; -1 if it has none."""
        numbers = {id(accountant): n for n, accountant in enumerate(self.claiming())}
        return tuple(
            replace(report, claim=numbers.get(id(accountant), -1))
            for accountant, report in self.reports
        )


class AccountantWatch:
    """Records accountants of any class from their first instance on.

    Args:
        accountants: where they are recorded.
        answers: ε that an earlier run got, by a digest of the question.
        report: called after the script got an ε: with the accountant, δ and ε.
    """

    def __init__(
        self,
        accountants: Accountants,
        answers: dict[str, float],
        report: Callable[[Any, float, float], None],
    ) -> None:
        self._accountants = accountants
        self._answers = answers
        self._report = report
        self._wrapped: set[tuple[type, str]] = set()
        self._is_answering = False

    def register(
        self,
        original: Any,
        accountant: Any,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Replaces `IAccountant.__init__` of each class."""
        original(accountant, *args, **kwargs)
        # Some are made by others, which compute with them.
        helps = _caller().startswith("opacus.accountants.analysis")
        if helps or any(accountant is other for other in self._accountants.all):
            return
        self._accountants.all.append(accountant)
        for kind in type(accountant).__mro__:
            wrappers: dict[str, Callable[..., Any]] = {"load_state_dict": self._load}
            for name in _QUESTIONS:
                wrappers[name] = functools.partial(self._answer, name)
            for name, wrapper in wrappers.items():
                if name in vars(kind) and (kind, name) not in self._wrapped:
                    self._wrapped.add((kind, name))
                    around(kind, name)(wrapper)

    def _load(
        self,
        original: Any,
        accountant: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        result = original(accountant, *args, **kwargs)
        self._accountants.loaded[id(accountant)] = history_of(accountant)
        return result

    def _answer(
        self,
        name: str,
        original: Any,
        accountant: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        # Accountants answer each other, and functions that search for a noise multiplier.
        is_internal = _caller().startswith(("opacus.accountants", "dpaudit_ray."))
        if self._is_answering or is_internal:
            return original(accountant, *args, **kwargs)
        # The same question in each run of an audit, and an answer may take a second.
        question = repr((type(accountant).__qualname__, accountant.history, args, kwargs))
        key = hashlib.blake2b(question.encode(), digest_size=16).hexdigest()
        self._is_answering = True
        try:
            if name == "get_epsilon" and key in self._answers:
                answer = np.float64(self._answers[key])
            else:
                answer = original(accountant, *args, **kwargs)
        finally:
            self._is_answering = False
        epsilon = float(answer[0] if isinstance(answer, tuple) else answer)
        self._accountants.answers[key] = epsilon
        delta = args[0] if args else kwargs["delta"]
        self._report(accountant, float(delta), epsilon)
        return answer


def _caller() -> str:
    """Returns the module that called a wrapped function."""
    frame = sys._getframe(3)  # behind the wrapper, and what `around` put in the function's place
    return str(frame.f_globals.get("__name__", ""))


def history_of(accountant: Any) -> History:
    """Returns an accountant's history as plain numbers."""
    return tuple((float(s), float(q), int(steps)) for s, q, steps in accountant.history)


def claims(
    accountants: Sequence[Any],
    deltas: Sequence[float],
    first: float,
) -> list[Claim]:
    """Computes what each accountant states: ε at each δ.

    One that is slow, as with noise that changes at every step, computes ε at δ `first` only.
    """
    values = []
    for accountant in accountants:
        began = time.monotonic()
        epsilons: dict[float, float | None] = {}
        for delta in sorted(deltas, key=lambda delta: delta != first):
            is_slow = epsilons and time.monotonic() - began > _SECONDS
            epsilons[delta] = None if is_slow else _epsilon(accountant, delta)
        claim = Claim(
            name=accountant.mechanism(),
            history=history_of(accountant),
            deltas=tuple(deltas),
            epsilons=tuple(epsilons[delta] for delta in deltas),
        )
        values.append(claim)
    return values


def _epsilon(accountant: Any, delta: float) -> float | None:
    """Returns ε of the steps so far; None if the accountant fails."""
    try:
        return float(accountant.get_epsilon(delta=delta)) if accountant.history else 0.0
    except Exception:  # noqa: BLE001 (the accountant may be the user's)
        return None
