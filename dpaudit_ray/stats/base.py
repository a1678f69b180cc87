"""Estimators: states that fold scores in trial order and give a lower bound on demand.

An estimator is one dataclass in one file of this package. Its fields are its options, `name` is
what a sweep file calls it, and subclassing `Estimator` is all the registration it needs.
"""

import dataclasses
import itertools
import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import bdtr, ndtri

from .error_rates import as_floats, in_unit
from .lower_bound import Estimate, Status, TradeOff

T = TypeVar("T")
Scores = NDArray[np.float64]
Members = NDArray[np.bool_]
_FALSE_ALARM = 1e-6  # probability that `check_coins` refuses fair coins
_LONGEST_STRETCH = 2**20  # trials at most that `stretches_of_equal` yields together
# Standard deviations beyond which coins are refused, about 4.9.
_COIN_DEVIATIONS = -float(ndtri(_FALSE_ALARM / 2))
_LAGS = 8  # so many training runs may take turns: then scores so many trials apart are correlated
_FALSE_REFUSAL = 1e-4  # probability that `check_apart` refuses independent trials
# Standard deviations beyond which a correlation is refused, about 4.4: two series have _LAGS each.
_CORRELATION_DEVIATIONS = -float(ndtri(_FALSE_REFUSAL / (2 * _LAGS)))


@dataclasses.dataclass
class Estimator(ABC):
    """Streaming state of one method. Fold trials in id order; any split gives the same bound.

    `planned` is the number of trials that the audit declared. `status` is that of estimates with
    default options: with `if-gaussian`, ε is converted from a μ. If ε depends on another
    assumption, `assumes` states it.
    """

    planned: int

    name: ClassVar[str]
    status: ClassVar[Status]
    assumes: ClassVar[str] = ""  # the assumption under which ε is certified: "noise has a density"
    fair: ClassVar[bool] = True  # the secret bits must be fair; False: each world has its own bound
    interim_valid: ClassVar[bool] = False  # the bound may be read at any time, and may stop a run
    # Bounds are `interim_valid` up to the planned trials only.
    within_planned: ClassVar[bool] = False
    one_run: ClassVar[bool] = False  # the method also takes canaries of one training run
    by_run: ClassVar[bool] = False  # a training run of several canaries has one outcome
    by_pair: ClassVar[bool] = False  # as `by_run`, for pairs of runs that share their noise
    # The method uses all trials at once: no two may share a run.
    needs_independence: ClassVar[bool] = False
    learns = True  # trials are guessed by the bits of earlier trials, so their order matters

    @classmethod
    def time_uniform(cls) -> bool:
        """Returns whether the bound holds at every number of trials, declared or not."""
        return cls.interim_valid and not cls.within_planned

    def fold(self, scores: Scores, members: Members) -> None:
        """Adds trials in order.

        Args:
            scores: float64 [n], higher = more "in"; not finite where a training run diverged.
            members: the secret bits, bool [n].
        """
        self._fold(*checked(scores, members))

    @abstractmethod
    def _fold(self, scores: Scores, members: Members) -> None: ...

    def miss(self, members: Members) -> None:
        """Adds trials, bool [n], that were run and gave no output: each counts as a wrong guess."""
        _, bits = checked(np.full(len(members), math.nan), members)
        self._miss(bits)

    def _miss(self, members: Members) -> None:
        """Folds scores that every threshold guesses wrong; NaN might be guessed correctly."""
        self._fold(np.where(members, -math.inf, math.inf), members)

    @abstractmethod
    def bound(self, delta: float, confidence: float) -> Estimate:
        """Returns the lower bound of the folded trials.

        Args:
            delta: δ at which ε is bounded, in [0, 1).
            confidence: level of the bound, in (0, 1).
        """

    def _estimate(
        self, epsilon: float, mu: float, level: tuple[float, float], trials: int,
        threshold: float = math.nan,
    ) -> Estimate:  # fmt: skip
        """Makes the estimate of this method.

        Args:
            epsilon: bound on ε.
            mu: bound on μ that was converted to ε; NaN if none was.
            level: δ and confidence of the bound.
            trials: number of trials that were folded.
            threshold: score from which a trial is guessed "in"; NaN without a threshold.
        """
        # The status follows from whether a μ was converted: no class can declare that certified.
        status = self._status_at(mu) if self.status.holds else self.status
        return Estimate(self.name, status, epsilon, mu, *level, trials, threshold)

    def _status_at(self, mu: float) -> Status:
        """Returns the status of a bound that is valid at its level; `mu` is NaN if it used no μ."""
        if self.assumes:
            return Status.IF_ASSUMED
        return Status.CERTIFIED if math.isnan(mu) else Status.IF_GAUSSIAN


# Methods that assume no trade-off curve: of an audit's bounds, the first one of these is quoted.
_CURVE_FREE = ("one-run", "eps-delta", "eps-delta-anytime")


# Removed estimators, by name: what to use instead.
REPLACEMENTS = {
    "gdp": "it was removed: use accuracy, whose bounds are larger, or eps-delta for bits that are "
    "not fair coin flips"
}


def estimators() -> dict[str, type[Estimator]]:
    """Returns every estimator of this package, by the name that sweep files use."""
    named = {}
    for cls in subclasses(Estimator):
        is_base = "name" not in vars(cls)
        if cls.__module__.startswith(f"{__package__}.") and not is_base:
            named[cls.name] = cls
    return named


def subclasses(cls: type[T]) -> Iterator[type[T]]:
    """Yields all classes that are derived from `cls`, at any depth."""
    for child in cls.__subclasses__():
        yield child
        yield from subclasses(child)


def make(
    method: str | type[Estimator],
    planned: int,
    *,
    independent: bool = False,
    canaries: int = 1,
    log_odds: bool = False,
    **options: Any,
) -> Estimator:
    """Builds the streaming state of a method.

    Args:
        method: one of `estimators()`, or a class of your own.
        planned: declared number of trials.
        independent: whether each score is of another training run.
        canaries: successive scores of one training run, if not `independent`.
        log_odds: whether scores are log odds of the bit, by which some methods place thresholds.
        options: options of the method, and a `family` if it takes one.
    """
    cls = _method_class(method)
    names = sorted(option_names(cls))
    unknown = options.keys() - {*names}
    if takes_family(cls):
        unknown.discard("family")
    if unknown:
        takes = ", ".join(names) or "no options"
        raise ValueError(f"{cls.name} does not take {', '.join(sorted(unknown))}; it takes {takes}")
    unset = dataclasses.MISSING
    required = {f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is unset}
    missing = required.intersection(names) - options.keys()
    if missing:
        listed = ", ".join(sorted(missing))
        raise ValueError(f"{cls.name} has no default for {listed}; give a value")
    fields = {field.name for field in dataclasses.fields(cls)}
    if cls.one_run:
        options["independent"] = independent
    if log_odds and "log_odds" in fields:
        options["log_odds"] = True
    if cls.by_run:
        options["canaries"] = max(canaries, 2) if cls.by_pair else canaries
    return cls(planned=planned, **options)


def _method_class(method: str | type[Estimator]) -> type[Estimator]:
    """Returns the class of a method. Raises ValueError for an unknown name."""
    if not isinstance(method, str):
        return method
    methods = estimators()
    if method not in methods:
        names = ", ".join(sorted(methods))
        remedy = REPLACEMENTS.get(method, f"known: {names}")
        raise ValueError(f"unknown method {method!r}; {remedy}")
    return methods[method]


def option_names(method: type[Estimator]) -> list[str]:
    """Returns the fields that a user may set; the caller sets fields that describe the trials."""
    by_caller = ("planned", "independent", "canaries", "family", "log_odds")
    fields = (field.name for field in dataclasses.fields(method) if field.init)
    return [name for name in fields if name not in by_caller]


def takes_family(method: type[Estimator]) -> bool:
    """Returns whether a method can convert its bound through a `family`, given by the caller."""
    return any(field.name == "family" for field in dataclasses.fields(method))


def estimate(
    scores: ArrayLike,
    members: ArrayLike,
    delta: float,
    confidence: float,
    method: str | type[Estimator] = "accuracy",
    *,
    runs: ArrayLike | None = None,
    trade_off: str = TradeOff.UNKNOWN,
    **options: Any,
) -> Estimate:
    """Computes a bound from one score per independently trained model, or per canary of `runs`.

    Args:
        scores: float [R], in trial order, higher = more "in". NaN and ±inf mark diverged
            training runs: a third outcome, guessed by earlier ones.
        members: bool [R], the secret bits; must be fair and independent coin flips. Methods refuse
            a share or an order of ones that coins do not give, if it would mislead them.
        delta: δ of the bound, in [0, 1); 0 for methods that assume no curve.
        confidence: level of the bound, in (0, 1).
        method: one of `estimators()`, or a class of your own.
        runs: [R], which training run each score came from; `several-canaries` takes run after run,
            with as many scores from each. If None, each score counts as another run, except for
            one-run methods, which take all scores for canaries of one run, with a warning and a
            `note` of the estimate. Correlated scores are refused without `runs`, and with
            `runs` by methods that need independent ones.
        trade_off: `gaussian` states that the mechanism's trade-off curve is Gaussian, which
            certifies an ε that was converted from a μ; `claimed` that it is one of `family`.
        options: options of the method; `curve="claimed"` needs a `family` (`accounting.Family`).

    Raises:
        ValueError: an argument is invalid, or the scores or bits are not as the method needs them.
    """
    values, bits = checked(scores, members)
    check_level(delta, confidence)
    if trade_off not in tuple(TradeOff):
        raise ValueError(f"trade_off must be one of {', '.join(TradeOff)}, got {trade_off!r}")
    trials = len(values)
    canaries = 1
    if runs is not None:
        canaries = check_runs(runs, trials, _method_class(method))
    independent = runs is not None and canaries == 1 < trials
    state = make(method, trials, independent=independent, canaries=canaries, **options)
    if delta == 0:
        check_pure(state)
    note = ""
    if independent and state.needs_independence:
        check_apart(values, bits, f"{state.name} uses all trials at once; {_USE_ACCURACY}")
    elif runs is None and not state.one_run:
        check_apart(values, bits, _PASS_RUNS)
    elif runs is None and trials > 1:
        note = f"{state.name} takes the {trials} scores for canaries of one training run; {_STATE}"
        warnings.warn(note, stacklevel=2)
    check_coins(bits, state)
    state.fold(values, bits)
    bound = state.bound(delta, confidence).given(TradeOff(trade_off))
    return dataclasses.replace(bound, note=note)


def checked(scores: ArrayLike, members: ArrayLike) -> tuple[Scores, Members]:
    """Returns scores and bits as arrays, float64 [n] and bool [n].

    Raises:
        ValueError: they are not 1-D and of one length, or a bit is neither 0 nor 1.
    """
    values = as_floats(scores)
    bits = np.asarray(members)
    if values.ndim != 1 or bits.shape != values.shape:
        raise ValueError(
            f"scores and members must be two 1-D arrays of one length, got shapes {values.shape} "
            f"and {bits.shape}; canaries of several runs come one after the other, with runs="
        )
    if bits.dtype != np.bool_ and not np.all((bits == 0) | (bits == 1)):
        raise ValueError("members must be 0 or 1 (or booleans)")
    return values, bits.astype(bool, copy=False)


def check_coins(members: Members, estimator: Estimator) -> None:
    """Raises ValueError if bits do not look like flips of a fair coin, as an estimator needs them.

    Args:
        members: the secret bits, bool [n].
        estimator: takes the bits. If it is `fair`, the share of ones is tested; if it `learns` from
            earlier bits, their order.
    """
    n = len(members)
    inside = int(members.sum())
    p_value = 2 * bdtr(min(inside, n - inside), n, 0.5)  # two-sided: P(Bin(n, 1/2) so far off)
    if estimator.fair and p_value < _FALSE_ALARM:
        spread = _COIN_DEVIATIONS * math.sqrt(n) / 2
        raise ValueError(
            f"members must be fair coin flips, got {inside} of {n} inside, where fair coins give "
            f"{n / 2 - spread:.0f} to {n / 2 + spread:.0f}; draw each bit with chance 1/2, or "
            "use eps-delta, which judges each world separately"
        )
    runs, expected, is_ordered = _runs_test(members)
    if estimator.learns and is_ordered:
        raise ValueError(
            f"members come in an order that coins do not give: {runs} runs of equal bits in {n} "
            f"trials, where {expected:.0f} are expected; give the trials in the order in which "
            "their coins fell, or shuffle independent runs"
        )


def _runs_test(members: Members) -> tuple[int, float, bool]:
    """Tests the order of bits by the number of runs of equal ones (Wald, Wolfowitz 1940).

    Returns:
        The number of runs, the number that fair coins give on average, and whether the two differ
        by more than chance.
    """
    n = len(members)
    inside = int(members.sum())
    # Mean and variance of the number of runs, given how many of the n bits are 1.
    expected = 1 + 2 * inside * (n - inside) / max(n, 1)
    variance = (expected - 1) * (expected - 2) / max(n - 1, 1)
    runs = 1 + int(np.count_nonzero(members[1:] != members[:-1]))
    is_ordered = variance > 0 and abs(runs - expected) > _COIN_DEVIATIONS * math.sqrt(variance)
    return runs, expected, is_ordered


# What a user can do, as parts of messages.
_STATE = (
    "state which it is: runs=numpy.zeros(len(scores)) for one run, runs=numpy.arange(len(scores)) "
    "for independent ones"
)
_USE_ACCURACY = "take accuracy, which guesses each trial by earlier ones alone"
_PASS_RUNS = (
    "pass runs=, which training run each score came from; if each is of a separate run, "
    f"runs=numpy.arange(len(scores)), and {_USE_ACCURACY}"
)


def check_apart(scores: Scores, members: Members, remedy: str) -> None:
    """Raises ValueError with a `remedy` if scores of nearby trials are correlated.

    They are if canaries share a training run, or if runs continue earlier runs, in up to eight
    chains that take turns. Scores are replaced by their ranks within their world, ties broken at
    random. Ranks of independent scores are in random order, so that one of their correlations is
    too large once in 10,000 audits. Ranks counted from the top in one world and from the bottom in
    the other are also tested: they show whether neighbouring guesses succeed together. Scores that
    drift are refused, too. A term that all scores share is not detected; if the bits are in order,
    nothing is.

    Args:
        scores: float64 [n], in trial order.
        members: the secret bits, bool [n].
        remedy: what the user can do, for the message.
    """
    n = len(scores)
    in_order = n < 2 or _runs_test(members)[2]
    if in_order:  # as if all of one world came first: then drift looks like the bits' effect
        return
    ranks = np.zeros(n)
    tie_breakers = np.random.default_rng(0).random(n)
    for world in (np.flatnonzero(members), np.flatnonzero(~members)):
        rising = np.lexsort((tie_breakers[world], scores[world]))
        ranks[world[rising]] = np.linspace(-1, 1, len(world) + 2)[1:-1]
    limit = _CORRELATION_DEVIATIONS / math.sqrt(n)
    for series in (ranks, np.where(members, ranks, -ranks)):
        # A constant series has no correlation; the tiny number prevents 0 / 0.
        total = max(float(series @ series), 1e-300)
        for lag in range(1, min(_LAGS, n - 1) + 1):
            correlation = float(series[lag:] @ series[:-lag]) / total
            if correlation > limit:
                raise ValueError(
                    f"scores must be of independent training runs, got a correlation of "
                    f"{correlation:.2f} between scores {lag} apart, where at most {limit:.2f} is "
                    f"chance; {remedy}"
                )


def check_runs(
    runs: ArrayLike,
    scores: int,
    method: type[Estimator],
) -> int:
    """Returns the number of scores of each training run; 0 if runs have different numbers.

    Args:
        runs: the training run of each score.
        scores: number of scores.
        method: class of the estimator.

    Raises:
        ValueError: The method does not take such runs.
    """
    labels = np.asarray(runs)
    if labels.shape != (scores,):
        raise ValueError(f"runs must name one training run per score, got shape {labels.shape}")
    distinct_runs, sizes = np.unique(labels, return_counts=True)
    if not (method.one_run or method.by_run) and len(distinct_runs) < scores:
        raise ValueError(
            f"{method.name} takes independent training runs, got {scores} scores "
            f"from {len(distinct_runs)}; use one-run or several-canaries"
        )
    canaries = int(sizes[0]) if len(set(sizes)) == 1 else 0
    changes = np.count_nonzero(labels[1:] != labels[:-1])
    if method.by_run and (canaries == 0 or changes != len(distinct_runs) - 1):
        raise ValueError(
            f"{method.name} takes as many scores from every training run, one run after the "
            f"other, got {scores} scores from {len(distinct_runs)}; sort them by training"
        )
    return canaries


def check_level(delta: float, confidence: float) -> None:
    """Raises ValueError unless 0 <= delta < 1 and 0 < confidence < 1."""
    if delta != 0:
        in_unit("delta", delta)
    in_unit("confidence", confidence)


def check_pure(state: Estimator) -> None:
    """Raises ValueError if an estimator converts through a curve: it has no ε at δ = 0."""
    if state.status is not Status.CERTIFIED and getattr(state, "curve", "") != "any":
        raise ValueError(
            f"{state.name} converts its bound through a curve whose ε at δ = 0 is infinite; "
            f"use {', '.join(_CURVE_FREE)}, or a delta above 0"
        )


def curve_free_method(time_uniform: bool = False) -> str:
    """Returns the best method without a trade-off curve; valid at any time if `time_uniform`."""
    return "eps-delta-anytime" if time_uniform else "one-run"


def default_time_uniform_methods(shared_run: bool, paired: bool) -> list[str]:
    """Returns the methods that a sweep uses by default if bounds may be read after any trial.

    The first is the one that is shown while the sweep runs. For independent runs there are two:
    `anytime` bounds μ, and `eps-delta-anytime` assumes no trade-off curve.

    Args:
        shared_run: several canaries share a training run.
        paired: training runs come in pairs that share their noise; one run of each has the canary.
    """
    if paired:
        return ["paired"]
    return ["several-canaries"] if shared_run else ["anytime", "eps-delta-anytime"]


def curve_free(estimates: Iterable[Estimate]) -> Estimate | None:
    """Returns an audit's bound without a trade-off curve; None if it has none.

    Of several bounds, the method decides, not the value.
    """
    ranks = {name: rank for rank, name in enumerate(_CURVE_FREE)}
    free = (bound for bound in estimates if bound.curve_free)
    return min(free, key=lambda bound: ranks.get(bound.method, len(ranks)), default=None)


def stretches_of_equal(flags: Members) -> Iterator[tuple[slice, bool]]:
    """Yields stretches of successive trials with equal flags, each with its flag.

    A stretch has a million trials at most.

    Args:
        flags: bool [n].
    """
    changes = (np.flatnonzero(np.diff(flags)) + 1).tolist()
    ends = sorted({*range(0, len(flags), _LONGEST_STRETCH), *changes, len(flags)})
    for start, stop in itertools.pairwise(ends):
        yield slice(start, stop), bool(flags[start])


def assumption_free(
    scores: ArrayLike,
    members: ArrayLike,
    delta: float,
    confidence: float,
    *,
    planned: int | None = None,
    missed: ArrayLike | None = None,
) -> Estimate:
    """Computes a certified (ε, δ) bound from independent training runs, without any assumption.

    Reports show this bound, by `one-run`, for every audit.

    Args:
        scores: float [R], as of `estimate`.
        members: bool [R], the secret bits.
        delta: δ of the bound, in [0, 1).
        confidence: level of the bound, in (0, 1).
        planned: declared number of trials; R if None.
        missed: bool [R], whether a trial had no output; None if all had one.
    """
    values, bits = checked(scores, members)
    check_level(delta, confidence)
    without_output = np.zeros(len(values), bool)
    if missed is not None:
        without_output = np.asarray(missed, bool)
    if without_output.shape != values.shape:
        raise ValueError(f"missed must be one flag per score, got shape {without_output.shape}")
    if planned is None:
        planned = len(values)
    state = make(curve_free_method(), planned, independent=True)
    check_coins(bits, state)
    check_apart(values, bits, f"{state.name} uses all trials at once; {_USE_ACCURACY}")
    for rows, is_missed in stretches_of_equal(without_output):
        if is_missed:
            state.miss(bits[rows])
        else:
            state.fold(values[rows], bits[rows])
    return state.bound(delta, confidence)
