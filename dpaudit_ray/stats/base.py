"""Estimators: states that fold scores in trial order and give a lower bound on demand.

An estimator is one dataclass in one file of this package. Its fields are its options, `name` is
what a sweep file calls it, its class attributes say when its bound holds, and subclassing
`Estimator` is all the registration it needs.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt
from scipy import special

from .error_rates import in_unit
from .lower_bound import Estimate, Status, TradeOff

T = TypeVar("T")
Scores = npt.NDArray[np.float64]
Members = npt.NDArray[np.bool_]
_FALSE_ALARM = 1e-6  # where coins are fair, or trainings independent
_BEYOND = -float(special.ndtri(_FALSE_ALARM / 2))  # standard deviations, about 4.9


@dataclasses.dataclass
class Estimator(ABC):
    """Streaming state of one method. Fold trials in id order; any split gives the same bound.

    `status` is that of its estimates with default options. Those of a method that reads ε off a
    μ are `if-gaussian`, unless an option (`curve: any`) makes it bound ε without a μ. A method
    whose ε takes something else for granted says in words what it `assumes`: they are `if-assumed`.

    `planned` is the number of trials the audit declared; methods that look at the horizon (a
    calibration share, an alpha-spending plan) read it, others ignore it.
    """

    planned: int

    name: ClassVar[str]
    # What it bounds, and given what.
    status: ClassVar[Status]
    assumes: ClassVar[str] = ""  # "the noise has a density", for which ε is certified then
    fair: ClassVar[bool] = True  # holds for fair coins only; else each world is judged by itself
    # When it may be read.
    interim_valid: ClassVar[bool] = False  # may be read at any time, and may stop a run
    within_planned: ClassVar[bool] = False  # ... but up to the planned number of trials only
    # Which scores it takes.
    one_run: ClassVar[bool] = False  # takes canaries of one training too, not only trainings
    by_run: ClassVar[bool] = False  # judges trainings of several canaries as wholes

    # Whether trials are guessed by the bits of earlier ones: then their order matters.
    learns = True

    @classmethod
    def time_uniform(cls) -> bool:
        """Whether its bound holds at every number of trials, declared or not."""
        return cls.interim_valid and not cls.within_planned

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials. `scores` float64 [n], higher = more "in"; `members` bool [n]."""
        self._fold(*checked(scores, members))

    @abstractmethod
    def _fold(self, scores: Scores, members: Members) -> None: ...

    def miss(self, members: Members) -> None:
        """Adds trials that were run and gave no output: each counts as a wrong guess.

        `members` bool [n]. A trial whose training raised is one: its bit was drawn, so it may not
        be left out, and nothing is known that could be bet on.
        """
        self._miss(checked(np.full(len(members), math.nan), members)[1])

    def _miss(self, members: Members) -> None:
        """Folds the scores that every threshold guesses wrongly by; NaN would be right to call out.

        A method that learns from diverged trials must tell them from these.
        """
        self._fold(np.where(members, -math.inf, math.inf), members)

    @abstractmethod
    def bound(self, delta: float, confidence: float) -> Estimate:
        """The lower bound that the folded trials support at (`delta`, `confidence`)."""

    def _estimate(
        self, epsilon: float, mu: float, level: tuple[float, float], trials: int,
        threshold: float = math.nan,
    ) -> Estimate:  # fmt: skip
        status = self.status
        if status.holds:  # by what was computed: nobody can declare a conversion certified
            status = self._worded(mu)
        return Estimate(self.name, status, epsilon, mu, *level, trials, threshold)

    def _worded(self, mu: float) -> Status:
        """The status of a bound that holds."""
        if self.assumes:
            return Status.IF_ASSUMED
        return Status.CERTIFIED if math.isnan(mu) else Status.IF_GAUSSIAN


# Bounds that assume no trade-off curve, the one first that speaks for an audit where it may.
_CURVE_FREE = ("one-run", "eps-delta", "eps-delta-anytime")


def estimators() -> dict[str, type[Estimator]]:
    """Every estimator of this package, by the name that sweep files use."""
    home = f"{__package__}."
    return {
        cls.name: cls
        for cls in subclasses(Estimator)
        if cls.__module__.startswith(home) and "name" in vars(cls)  # not a base of several
    }


def subclasses(cls: type[T]) -> Iterator[type[T]]:
    """All classes that are derived from `cls`, at any depth."""
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def make(
    method: str | type[Estimator],
    planned: int,
    *,
    independent: bool = False,
    canaries: int = 1,
    **options: Any,
) -> Estimator:
    """Builds the streaming state of `method`, one of `estimators()` or a class of one's own.

    `independent` says that every score comes from a training of its own. Methods for canaries of
    one training then judge by what independence allows; all others take it for granted.
    `canaries` is for methods that judge whole trainings: so many scores in a row are of one.
    Raises ValueError for an unknown method or option, or an option outside its bounds.
    """
    cls = _method_class(method)
    name, fields = cls.name, option_names(cls)
    if unknown := options.keys() - {*fields, *(("family",) if takes_family(cls) else ())}:
        takes = ", ".join(sorted(fields)) or "no options"
        raise ValueError(f"{name} does not take {', '.join(sorted(unknown))}; it takes {takes}")
    required = {
        field.name
        for field in dataclasses.fields(cls)
        if field.default is field.default_factory is dataclasses.MISSING
    }
    if missing := (required & set(fields)) - options.keys():
        raise ValueError(
            f"{', '.join(sorted(missing))} must be given; {name} has no default for it"
        )
    if cls.one_run:
        options["independent"] = independent
    if cls.by_run:
        options["canaries"] = canaries
    return cls(planned=planned, **options)


def _method_class(method: str | type[Estimator]) -> type[Estimator]:
    methods = estimators()
    if not isinstance(method, str):
        return method
    if method not in methods:
        raise ValueError(f"unknown method {method!r}; known: {', '.join(sorted(methods))}")
    return methods[method]


def option_names(method: type[Estimator]) -> list[str]:
    """The fields that a user may set; what the trials are is for the caller to know."""
    by_caller = ("planned", "independent", "canaries", "family")
    return [name for name in _fields(method) if name not in by_caller]


def takes_family(method: type[Estimator]) -> bool:
    """Whether it can read what it certifies through a `family`, which the caller gives it."""
    return "family" in _fields(method)


def _fields(method: type[Estimator]) -> list[str]:
    return [field.name for field in dataclasses.fields(method) if field.init]


def estimate(
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    delta: float,
    confidence: float,
    method: str | type[Estimator] = "accuracy",
    *,
    runs: npt.ArrayLike | None = None,
    trade_off: str = TradeOff.UNKNOWN,
    **options: Any,
) -> Estimate:
    """Lower bound from one score per independently trained model, or per canary of known `runs`.

    Args:
        scores: float [R], in trial order, higher = more "in". NaN and ±inf mark diverged
            trainings: a third outcome, guessed as earlier ones teach.
        members: bool [R], the secret bits; must be fair and independent coin flips. A share or
            an order that coins do not give is refused by the methods that it would mislead.
        delta: δ of the bound, in (0, 1).
        confidence: level of the bound, in (0, 1).
        method: one of `estimators()`, or a class of your own.
        runs: [R], which training each score came from. When given, canaries of one training are
            refused by methods for many, and one-run methods use that trainings are independent,
            where each has one score. `several-canaries` reads the canaries of a training from it:
            training after training, as many scores from each. Without it each score counts as a
            training of its own, except to one-run methods; scores that hang together are refused.
        trade_off: `gaussian` states that the mechanism's trade-off curve is Gaussian, which
            certifies an ε that was converted from a μ; `unknown` leaves it `if-gaussian`. With
            `claimed` it is one of `family`, which certifies what was read through that.
        options: options of the method; `curve="claimed"` needs a `family`
            (`accounting.Family`) beside it.

    Raises ValueError for an argument outside its bounds; the message names value and bound.
    """
    values, bits = checked(scores, members)
    check_level(delta, confidence)
    if trade_off not in tuple(TradeOff):
        raise ValueError(f"trade_off must be one of {', '.join(TradeOff)}, got {trade_off!r}")
    independent, canaries = False, 1
    if runs is not None:
        canaries = check_runs(runs, len(values), _method_class(method))
        independent = canaries == 1 < len(values)
    state = make(method, len(values), independent=independent, canaries=canaries, **options)
    if runs is None and not state.one_run:
        check_apart(values, bits)
    check_coins(bits, state)
    state.fold(values, bits)
    return state.bound(delta, confidence).given(TradeOff(trade_off))


def checked(scores: npt.ArrayLike, members: npt.ArrayLike) -> tuple[Scores, Members]:
    """Returns float64 scores and boolean members of one length, or raises ValueError."""
    values = np.asarray(scores, dtype=np.float64)
    bits = np.asarray(members)
    if values.ndim != 1 or bits.shape != values.shape:
        raise ValueError(
            f"scores and members must be two 1-D arrays of one length, got shapes {values.shape} "
            f"and {bits.shape}; canaries of several trainings come one after the other, with runs="
        )
    if bits.dtype != np.bool_:
        if not np.all((bits == 0) | (bits == 1)):
            raise ValueError("members must be 0 or 1 (or booleans)")
        bits = bits.astype(np.bool_)
    return values, bits


def check_coins(members: Members, judge: Estimator) -> None:
    """Raises ValueError where the bits are not such as `judge` takes coins to give.

    Their share is held against fair coins, their order against any. Fair coins are refused twice
    in a million.
    """
    n, inside = len(members), int(members.sum())
    if judge.fair and 2 * special.bdtr(min(inside, n - inside), n, 0.5) < _FALSE_ALARM:
        spread = _BEYOND * math.sqrt(n) / 2
        raise ValueError(
            f"members must be fair coin flips, got {inside} of {n} inside, where fair coins give "
            f"{n / 2 - spread:.0f} to {n / 2 + spread:.0f}; draw each bit with chance 1/2, or "
            "take gdp or eps-delta, which judge each world by itself"
        )
    runs, expected, ordered = _order(members)
    if judge.learns and ordered:
        raise ValueError(
            f"members come in an order that coins do not give: {runs} runs of equal bits in {n} "
            f"trials, where {expected:.0f} are expected; give the trials in the order in which "
            "their coins fell, or shuffle independent trainings"
        )


def _order(members: Members) -> tuple[int, float, bool]:
    """Runs of equal bits, how many are expected, and whether these are others than coins give.

    Wald, Wolfowitz 1940; coins of any share do once in a million.
    """
    n, inside = len(members), int(members.sum())
    expected = 1 + 2 * inside * (n - inside) / max(n, 1)
    variance = (expected - 1) * (expected - 2) / max(n - 1, 1)
    runs = 1 + int(np.count_nonzero(members[1:] != members[:-1]))
    far = variance > 0 and abs(runs - expected) > _BEYOND * math.sqrt(variance)
    return runs, expected, far


def check_apart(scores: Scores, members: Members) -> None:
    """Raises ValueError where neighbours' scores hang together, as canaries of one training do.

    Ranks of independent scores within each world are a random order, ties broken by lot, so a
    correlation of neighbours is refused once in a million: of the ranks, and of ranks that count
    from the bit's own end, which finds shared luck. What all scores share is not found, as where
    they are canaries of a single training; nor is anything where bits were put in order.
    """
    n = len(scores)
    if n < 2 or _order(members)[2]:
        return
    ranks, lots = np.zeros(n), np.random.default_rng(0).random(n)
    for world in (np.flatnonzero(members), np.flatnonzero(~members)):
        places = np.linspace(-1, 1, len(world) + 2)[1:-1]
        ranks[world[np.lexsort((lots[world], scores[world]))]] = places
    for series in (ranks, np.where(members, ranks, -ranks)):
        alike = float(series[1:] @ series[:-1]) / max(float(series @ series), 1e-300)
        if alike * math.sqrt(n) > _BEYOND:
            raise ValueError(
                f"scores must be of independent trainings, got neighbours with a correlation of "
                f"{alike:.2f}, where at most {_BEYOND / math.sqrt(n):.2f} is chance; pass runs=, "
                "which training each score came from, or runs=numpy.arange(len(scores)) where "
                "each score is a training of its own"
            )


def check_runs(runs: npt.ArrayLike, scores: int, method: type[Estimator]) -> int:
    """How many scores each training gave; 0 where trainings differ in that.

    Raises ValueError where `method` may not be used on scores that came from these trainings.
    Canaries of one training are not independent trials, however many they are.
    """
    labels = np.asarray(runs)
    if labels.shape != (scores,):
        raise ValueError(f"runs must name one training per score, got shape {labels.shape}")
    trainings, sizes = np.unique(labels, return_counts=True)
    if not (method.one_run or method.by_run) and len(trainings) < scores:
        raise ValueError(
            f"{method.name} takes independent trainings, got {scores} scores "
            f"from {len(trainings)}; use one-run or several-canaries"
        )
    canaries = int(sizes[0]) if len(set(sizes)) == 1 else 0
    if method.by_run and (
        canaries == 0 or np.count_nonzero(labels[1:] != labels[:-1]) != len(trainings) - 1
    ):
        raise ValueError(
            f"{method.name} takes as many scores from every training, one training after the "
            f"other, got {scores} scores from {len(trainings)}; sort them by training"
        )
    return canaries


def check_level(delta: float, confidence: float) -> None:
    """Raises ValueError unless 0 < delta < 1 and 0 < confidence < 1."""
    in_unit("delta", delta)
    in_unit("confidence", confidence)


def curve_free_method(one_run: bool = False, time_uniform: bool = False) -> str:
    """The strongest method that assumes no trade-off curve, by its name in sweep files.

    With `one_run` it takes the canaries of one training, with `time_uniform` its bound holds at
    every number of trials.
    """
    fitting = (
        name
        for name in _CURVE_FREE
        if (cls := estimators()[name]).one_run >= one_run and cls.time_uniform() >= time_uniform
    )
    return next(fitting)


def methods_after_a_look(by_run: bool) -> list[str]:
    """Names of the time-uniform methods that an audit gets whose trials are looked at.

    A bound on μ comes first, one without assumption second: these take over where a bound for a
    declared number of trials no longer holds. With `by_run`, for trainings of several canaries.
    """
    return ["several-canaries"] if by_run else ["anytime", "eps-delta-anytime"]


def curve_free(estimates: Iterable[Estimate]) -> Estimate | None:
    """The bound that speaks for an audit when nothing is assumed about its trade-off curve.

    Of `estimates` of one audit; None where all assume a curve. The choice is by method, made before
    any trial is seen: the larger of two bounds that hold at 95 % each holds at 90 %.
    """
    free = [estimate for estimate in estimates if estimate.curve_free]
    # Others come last; of equals, the one that is listed first.
    places = {name: place for place, name in enumerate(_CURVE_FREE)}
    return min(free, key=lambda e: places.get(e.method, len(places)), default=None)


def assumption_free(
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    delta: float,
    confidence: float,
    *,
    planned: int | None = None,
    missed: npt.ArrayLike | None = None,
) -> Estimate:
    """Certified (ε, δ) bound from independent trainings, whatever their trade-off curve.

    This is the bound that reports show beside every bound that assumes something. The method is the
    same on every audit, so nothing is chosen by what it shows: `one-run` for independent trainings,
    which learns on early trials whether one-sided guesses show more.

    Args:
        scores: float [R], in trial order, one per training, higher = more "in". NaN and ±inf mark
            diverged trainings, which are an outcome to bet on.
        members: bool [R], the secret bits; must be fair and independent coin flips.
        delta: δ of the bound, in (0, 1).
        confidence: level of the bound, in (0, 1).
        planned: trials that the audit declared; the R at hand unless given.
        missed: bool [R], trials that were run and gave no output; wrong guesses, whatever their
            score. None unless given.

    Raises ValueError for an argument outside its bounds; the message names value and bound.
    """
    values, bits = checked(scores, members)
    check_level(delta, confidence)
    lost = np.zeros(len(values), np.bool_) if missed is None else np.asarray(missed, np.bool_)
    if lost.shape != values.shape:
        raise ValueError(f"missed must be one flag per score, got shape {lost.shape}")
    state = make(curve_free_method(), len(values) if planned is None else planned, independent=True)
    check_coins(bits, state)
    cuts = np.flatnonzero(np.diff(lost)) + 1
    for part in np.split(np.arange(len(values)), cuts):
        if len(part) and lost[part[0]]:
            state.miss(bits[part])
        else:
            state.fold(values[part], bits[part])
    return state.bound(delta, confidence)
