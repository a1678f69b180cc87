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
import numpy.typing as npt
from scipy import special

from .error_rates import in_unit
from .lower_bound import Estimate, Status, TradeOff

T = TypeVar("T")
Scores = npt.NDArray[np.float64]
Members = npt.NDArray[np.bool_]
_FALSE_ALARM = 1e-6  # where coins are fair
_AT_ONCE = 2**20  # trials of a stretch
_BEYOND = -float(special.ndtri(_FALSE_ALARM / 2))  # standard deviations, about 4.9
_LAGS = 8  # how many trials apart scores are correlated: up to so many training runs take turns
_REFUSED = 1e-4  # of independent trials, by all correlations of `check_apart` together
_APART = -float(special.ndtri(_REFUSED / (2 * _LAGS)))  # standard deviations, about 4.4


@dataclasses.dataclass
class Estimator(ABC):
    """Streaming state of one method. Fold trials in id order; any split gives the same bound.

    `planned` is the number of trials that the audit declared. `status` is that of estimates with
    default options: with `if-gaussian`, ε is read off a μ. A method whose ε takes something else
    for granted says in words what it `assumes`.
    """

    planned: int

    name: ClassVar[str]
    status: ClassVar[Status]
    assumes: ClassVar[str] = ""  # "the noise has a density", for which ε is certified then
    fair: ClassVar[bool] = True  # holds for fair coins only; else each world is judged by itself
    interim_valid: ClassVar[bool] = False  # may be read at any time, and may stop a run
    within_planned: ClassVar[bool] = False  # ... but up to the planned number of trials only
    one_run: ClassVar[bool] = False  # takes canaries of one training too, not only trainings
    by_run: ClassVar[bool] = False  # judges trainings of several canaries as wholes
    by_pair: ClassVar[bool] = False  # ... or pairs of trainings that share their noise
    needs_independence: ClassVar[bool] = False  # uses all trials at once
    learns = True  # guesses trials by the bits of earlier ones: then their order matters

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
        """Adds trials, bool [n], that were run and gave no output: each counts as a wrong guess."""
        self._miss(checked(np.full(len(members), math.nan), members)[1])

    def _miss(self, members: Members) -> None:
        """Folds scores that every threshold guesses wrongly by: NaN would be right to call out."""
        self._fold(np.where(members, -math.inf, math.inf), members)

    @abstractmethod
    def bound(self, delta: float, confidence: float) -> Estimate:
        """The lower bound that the folded trials support at (`delta`, `confidence`)."""

    def _estimate(
        self, epsilon: float, mu: float, level: tuple[float, float], trials: int,
        threshold: float = math.nan,
    ) -> Estimate:  # fmt: skip
        # By what was computed: nobody can declare a conversion certified.
        status = self._status_at(mu) if self.status.holds else self.status
        return Estimate(self.name, status, epsilon, mu, *level, trials, threshold)

    def _status_at(self, mu: float) -> Status:
        """The status of a bound that holds."""
        if self.assumes:
            return Status.IF_ASSUMED
        return Status.CERTIFIED if math.isnan(mu) else Status.IF_GAUSSIAN


# Bounds that assume no trade-off curve, the one first that speaks for an audit where it may.
_CURVE_FREE = ("one-run", "eps-delta", "eps-delta-anytime")


# Removed estimators, by name: what to use instead.
REPLACEMENTS = {
    "gdp": "it was removed: use accuracy, whose bounds are larger, or eps-delta for bits that are "
    "not fair coin flips"
}


def estimators() -> dict[str, type[Estimator]]:
    """Every estimator of this package, by the name that sweep files use."""
    home = f"{__package__}."
    inside = (cls for cls in subclasses(Estimator) if cls.__module__.startswith(home))
    return {cls.name: cls for cls in inside if "name" in vars(cls)}  # not a base of several


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

    `independent`: every score is of a training of its own; else `canaries` in a row are of one.
    """
    cls = _method_class(method)
    name, fields = cls.name, option_names(cls)
    if unknown := options.keys() - {*fields, *(["family"] if takes_family(cls) else [])}:
        takes = ", ".join(sorted(fields)) or "no options"
        raise ValueError(f"{name} does not take {', '.join(sorted(unknown))}; it takes {takes}")
    unset = dataclasses.MISSING
    required = {f.name for f in dataclasses.fields(cls) if f.default is f.default_factory is unset}
    if missing := (required & set(fields)) - options.keys():
        raise ValueError(f"{name} has no default for {', '.join(sorted(missing))}; give a value")
    if cls.one_run:
        options["independent"] = independent
    if cls.by_run:
        options["canaries"] = max(canaries, 2) if cls.by_pair else canaries
    return cls(planned=planned, **options)


def _method_class(method: str | type[Estimator]) -> type[Estimator]:
    if not isinstance(method, str):
        return method
    if method not in (methods := estimators()):
        if method in REPLACEMENTS:
            raise ValueError(f"unknown method {method!r}; {REPLACEMENTS[method]}")
        raise ValueError(f"unknown method {method!r}; known: {', '.join(sorted(methods))}")
    return methods[method]


def option_names(method: type[Estimator]) -> list[str]:
    """The fields that a user may set; what the trials are is for the caller to know."""
    by_caller = ("planned", "independent", "canaries", "family")
    fields = (field.name for field in dataclasses.fields(method) if field.init)
    return [name for name in fields if name not in by_caller]


def takes_family(method: type[Estimator]) -> bool:
    """Whether it can read what it certifies through a `family`, which the caller gives it."""
    return any(field.name == "family" for field in dataclasses.fields(method))


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
        confidence: its level, in (0, 1).
        method: one of `estimators()`, or a class of your own.
        runs: [R], which training run each score came from; `several-canaries` takes run after run,
            with as many scores from each. Without it each score counts as a run of its own, except
            to one-run methods, which take all scores for canaries of one run: a warning, and the
            estimate's `note`, say so. Correlated scores are refused without `runs`, and with it by
            methods that need independent runs.
        trade_off: `gaussian` states that the mechanism's trade-off curve is Gaussian, which
            certifies an ε that was converted from a μ; `claimed` that it is one of `family`.
        options: options of the method; `curve="claimed"` needs a `family` (`accounting.Family`).
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
    note = ""
    if independent and state.needs_independence:
        check_apart(values, bits, f"{state.name} uses all trials at once; {_BY_EARLIER}")
    elif runs is None and not state.one_run:
        check_apart(values, bits, _BY_RUNS)
    elif runs is None and len(values) > 1:
        taken = f"{state.name} takes the {len(values)} scores for canaries of one training run"
        note = f"{taken}; {_STATE}"
        warnings.warn(note, stacklevel=2)
    check_coins(bits, state)
    state.fold(values, bits)
    bound = state.bound(delta, confidence).given(TradeOff(trade_off))
    return dataclasses.replace(bound, note=note)


def checked(scores: npt.ArrayLike, members: npt.ArrayLike) -> tuple[Scores, Members]:
    """Returns float64 scores and boolean members of one length, or raises ValueError."""
    values = np.asarray(scores, dtype=np.float64)
    bits = np.asarray(members)
    if values.ndim != 1 or bits.shape != values.shape:
        raise ValueError(
            f"scores and members must be two 1-D arrays of one length, got shapes {values.shape} "
            f"and {bits.shape}; canaries of several trainings come one after the other, with runs="
        )
    if bits.dtype != np.bool_ and not np.all((bits == 0) | (bits == 1)):
        raise ValueError("members must be 0 or 1 (or booleans)")
    return values, bits.astype(np.bool_, copy=False)


def check_coins(members: Members, judge: Estimator) -> None:
    """Raises ValueError where bits have a share or (if `judge` learns) an order unlike coins'."""
    n, inside = len(members), int(members.sum())
    if judge.fair and 2 * special.bdtr(min(inside, n - inside), n, 0.5) < _FALSE_ALARM:
        spread = _BEYOND * math.sqrt(n) / 2
        raise ValueError(
            f"members must be fair coin flips, got {inside} of {n} inside, where fair coins give "
            f"{n / 2 - spread:.0f} to {n / 2 + spread:.0f}; draw each bit with chance 1/2, or "
            "use eps-delta, which judges each world separately"
        )
    runs, expected, ordered = _order(members)
    if judge.learns and ordered:
        raise ValueError(
            f"members come in an order that coins do not give: {runs} runs of equal bits in {n} "
            f"trials, where {expected:.0f} are expected; give the trials in the order in which "
            "their coins fell, or shuffle independent trainings"
        )


def _order(members: Members) -> tuple[int, float, bool]:
    """Runs of equal bits, how many are expected, whether that is too far (Wald, Wolfowitz 1940)."""
    n, inside = len(members), int(members.sum())
    expected = 1 + 2 * inside * (n - inside) / max(n, 1)
    variance = (expected - 1) * (expected - 2) / max(n - 1, 1)
    runs = 1 + int(np.count_nonzero(members[1:] != members[:-1]))
    far = variance > 0 and abs(runs - expected) > _BEYOND * math.sqrt(variance)
    return runs, expected, far


_STATE = (
    "state which it is: runs=numpy.zeros(len(scores)) for one run, runs=numpy.arange(len(scores)) "
    "for independent ones"
)
_BY_EARLIER = "take accuracy, which guesses each trial by earlier ones alone"
_BY_RUNS = (
    "pass runs=, which training run each score came from; if each is of a run of its own, "
    f"runs=numpy.arange(len(scores)), and {_BY_EARLIER}"
)


def check_apart(scores: Scores, members: Members, remedy: str) -> None:
    """Raises ValueError with a `remedy` where scores of nearby trials are correlated.

    So are scores of canaries of one training run, and of runs that continue earlier ones, in up to
    eight chains that take turns. Ranks of independent scores within each world are a random order,
    ties broken by lot, so one of their correlations is too large once in 10,000 audits; and so are
    those of ranks from the bit's own end, which find shared luck. Scores that drift are refused,
    too. What all scores share is not found, nor anything where bits were put in order.
    """
    n = len(scores)
    if n < 2 or _order(members)[2]:
        return
    ranks, lots = np.zeros(n), np.random.default_rng(0).random(n)
    for world in (np.flatnonzero(members), np.flatnonzero(~members)):
        places = np.linspace(-1, 1, len(world) + 2)[1:-1]
        ranks[world[np.lexsort((lots[world], scores[world]))]] = places
    limit = _APART / math.sqrt(n)
    for series in (ranks, np.where(members, ranks, -ranks)):
        total = max(float(series @ series), 1e-300)
        for lag in range(1, min(_LAGS, n - 1) + 1):
            alike = float(series[lag:] @ series[:-lag]) / total
            if alike > limit:
                raise ValueError(
                    "scores must be of independent training runs, got a correlation of "
                    f"{alike:.2f} between scores {lag} apart, where at most {limit:.2f} is chance; "
                    f"{remedy}"
                )


def check_runs(runs: npt.ArrayLike, scores: int, method: type[Estimator]) -> int:
    """Returns how many scores each training gave, 0 where that differs, or raises ValueError."""
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
    changes = np.count_nonzero(labels[1:] != labels[:-1])
    if method.by_run and (canaries == 0 or changes != len(trainings) - 1):
        raise ValueError(
            f"{method.name} takes as many scores from every training, one training after the "
            f"other, got {scores} scores from {len(trainings)}; sort them by training"
        )
    return canaries


def check_level(delta: float, confidence: float) -> None:
    """Raises ValueError unless 0 < delta < 1 and 0 < confidence < 1."""
    in_unit("delta", delta)
    in_unit("confidence", confidence)


def curve_free_method(time_uniform: bool = False) -> str:
    """The strongest method that assumes no curve, at any number of trials if `time_uniform`."""
    return "eps-delta-anytime" if time_uniform else "one-run"


def methods_after_a_look(by_run: bool, by_pair: bool) -> list[str]:
    """Names of time-uniform methods: the first bounds μ, the second assumes no curve."""
    if by_pair:
        return ["paired"]
    return ["several-canaries"] if by_run else ["anytime", "eps-delta-anytime"]


def curve_free(estimates: Iterable[Estimate]) -> Estimate | None:
    """The bound of an audit without a trade-off curve, chosen by method, not value; or None."""
    places = {name: place for place, name in enumerate(_CURVE_FREE)}
    free = (estimate for estimate in estimates if estimate.curve_free)
    return min(free, key=lambda e: places.get(e.method, len(places)), default=None)


def alike_in_a_row(flags: Members) -> Iterator[tuple[slice, bool]]:
    """Stretches of equal flags, bool [n], a million at most: where they are, and which flag."""
    changes = (np.flatnonzero(np.diff(flags)) + 1).tolist()
    ends = sorted({*range(0, len(flags), _AT_ONCE), *changes, len(flags)})
    for start, stop in itertools.pairwise(ends):
        yield slice(start, stop), bool(flags[start])


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

    The bound that reports show beside every other: `one-run`, on every audit. Arguments as of
    `estimate`; `planned` trials were declared, R unless given; `missed`, bool [R], gave no output.
    """
    values, bits = checked(scores, members)
    check_level(delta, confidence)
    lost = np.zeros(len(values), np.bool_) if missed is None else np.asarray(missed, np.bool_)
    if lost.shape != values.shape:
        raise ValueError(f"missed must be one flag per score, got shape {lost.shape}")
    state = make(curve_free_method(), len(values) if planned is None else planned, independent=True)
    check_coins(bits, state)
    check_apart(values, bits, f"{state.name} uses all trials at once; {_BY_EARLIER}")
    for rows, absent in alike_in_a_row(lost):
        if absent:
            state.miss(bits[rows])
        else:
            state.fold(values[rows], bits[rows])
    return state.bound(delta, confidence)
