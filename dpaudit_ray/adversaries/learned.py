"""A classifier of the outputs of two inputs, fitted to runs that are not trials."""

import functools
import logging
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray
from pydantic import Field, field_validator
from scipy.special import logit
from threadpoolctl import threadpool_limits

from ..errors import unknown_name
from ..stats.error_rates import Floats, clopper_pearson_lower
from ..stats.one_run import most_revealed
from .outputs import Encoder, Outputs
from .release import Draw, OutputAdversary, Scorer, rounded

_log = logging.getLogger(__name__)
CELLS = "cells"  # the model that counts equal outputs
_AUTO = (CELLS, "LogisticRegression", "HistGradientBoostingClassifier")
_SETTINGS: dict[str, dict[str, Any]] = {  # arguments of classifiers, by their class
    # Trees are small, regularized and stopped early: larger trees fit noise if ε is small, and
    # their log odds grow without end if the worlds differ clearly.
    "HistGradientBoostingClassifier": {
        "max_iter": 150,
        "max_leaf_nodes": 6,
        "min_samples_leaf": 50,
        "l2_regularization": 10.0,
        "early_stopping": True,
    },
    "LogisticRegression": {"max_iter": 300},
}
_RUNS_PER_HELD_OUT = 3  # one in three of the own runs is held out, to compare models
_GUESS_COUNTS = 100  # at most so many numbers of guesses are tried
_BOUND_ERROR = 1e-5  # of the bound for each number, so that luck chooses no pair and no model
_RUNS_PER_CELL = 8  # on average, at least: then the counts of a cell are good estimates
_REACH = 10.0  # robust deviations beyond which a column is clipped
CLOSER = 16  # one in 16 runs, the surest, is learned from again
CLOSER_RUNS = 50_000  # number of the surest runs that are learned from
_DRAWN_AT_ONCE = 200_000  # runs of which the surest are kept
_SMALLEST_PROBABILITY = 1e-12  # those nearer to 0 or 1 are rounded to it, or to 1 minus it

# Fits a model to columns [n, k] and the inputs that they came from, True for the second.
Learn = Callable[[Floats, NDArray[np.bool_]], "Predict"]
Predict = Callable[[Floats], Floats]  # columns [n, k] to log odds of the second input, [n]


@dataclass(frozen=True)
class _Stage:
    """A predictor for outputs whose log odds by the stages before it have a size of `least`."""

    least: float
    predict: Predict


class Learned(OutputAdversary):
    """Learns from `fit` runs that are not trials; scores by the log odds of the second input.

    `model` is the class of a classifier in scikit-learn, `cells` for counts of equal outputs, or
    `auto`: of cells, logistic regression and boosted trees, the model that shows the largest ε on
    held-out runs. `bits` adds the last bits of each number, which may leak if noise is drawn in
    floating point. `zoom` is for rare events: the adversary learns so many times more, each time
    from the surest sixteenth of runs alone, for which it draws 16 times as many runs as before.
    """

    searches = True

    name: Literal["learned"] = "learned"
    fit: int = Field(default=200_000, ge=100, le=10**8)  # runs to learn from
    search: int = Field(default=20_000, ge=100, le=10**8)  # runs for each pair, to choose a pair
    model: str = "auto"  # or cells, or a classifier of scikit-learn
    bits: bool = False  # learn from the last bits of each number, too
    zoom: int = Field(default=0, ge=0, le=4)  # rounds of learning from the surest runs alone

    @field_validator("model")
    @classmethod
    def _is_known(cls, model: str) -> str:
        """Returns the model's name. Raises ValueError if it is unknown."""
        if model not in ("auto", *_AUTO):
            names = classifiers()
            if model not in names:
                raise ValueError(unknown_name("model", model, ["auto", CELLS, *names]))
        return model

    def scorer(
        self,
        draw: Draw,
        pair: tuple[Any, Any],
        rng: Generator,
        delta: float = 0.0,
    ) -> Scorer:
        """Implements `OutputAdversary.scorer`: fits the best model to all own runs."""
        encoder, x, y = self._own_runs(draw, self.fit, rng)
        learn, _ = self._best(x, y, rng, delta)
        stages = [_Stage(0.0, learn(x, y))]
        for depth in range(1, self.zoom + 1):
            sureness = np.abs(_log_odds(stages, x))
            least = float(np.quantile(sureness, 1 - 1 / CLOSER))
            # Twice as many as are expected to be needed.
            most_drawn = 2 * CLOSER_RUNS * CLOSER**depth
            x, y = _surest_runs(draw, encoder, stages, least, most_drawn, rng)
            if len(np.unique(y)) < 2:  # all sure runs are of one world: nothing to learn
                break
            closer = self._fit_to_surest(stages, x, y, rng, delta)
            # If this depth gains nothing, the next one still may.
            if closer is not None:
                stages.append(_Stage(least, closer))

        def score(outputs: Outputs) -> Floats:
            """Returns log odds of the second input, float64 [n]."""
            return rounded(_log_odds(stages, encoder.columns(outputs)))

        return score

    def _fit_to_surest(
        self,
        stages: Sequence[_Stage],
        x: Floats,
        y: NDArray[np.bool_],
        rng: Generator,
        delta: float,
    ) -> Predict | None:
        """Fits a model to the surest runs alone.

        Args:
            stages: predictors so far; these runs are the surest by them.
            x: columns of the surest runs, float64 [n, k].
            y: whether each had the second input, bool [n].
            rng: randomness of classifiers.
            delta: δ of the claim.

        Returns:
            A predictor for such runs; None if it predicts held-out runs no better than `stages`.
        """
        learn, _ = self._best(x, y, rng, delta)
        held_out = len(y) // _RUNS_PER_HELD_OUT
        x_held_out, y_held_out = x[:held_out], y[:held_out]
        predict = learn(x[held_out:], y[held_out:])
        before = _cross_entropy(_log_odds(stages, x_held_out), y_held_out)
        after = _cross_entropy(predict(x_held_out), y_held_out)
        _log.info("of %d surest runs, nats fall from %.4f to %.4f", len(y), before, after)
        return learn(x, y) if after < before else None

    def promise(
        self,
        draw: Draw,
        rng: Generator,
        delta: float = 0.0,
    ) -> float:
        """Implements `OutputAdversary.promise` by the second value of `_best`: a model's result."""
        _, x, y = self._own_runs(draw, self.search, rng)
        return self._best(x, y, rng, delta)[1]

    def _own_runs(
        self, draw: Draw, runs: int, rng: Generator
    ) -> tuple[Encoder, Floats, NDArray[np.bool_]]:
        """Runs the mechanism on both inputs; returns the outputs as columns, in a random order.

        Args:
            draw: runs the mechanism.
            runs: number of runs, half on each input.
            rng: randomness of runs and of their order.

        Returns:
            The encoder; columns, float64 [runs, k]; whether each run had the second input, bool
            [runs].
        """
        outside, inside = _both_worlds(draw, runs, rng)
        encoder = Encoder(_joined(outside, inside), self.bits)
        return encoder, *_shuffled(encoder, outside, inside, rng)

    def _best(
        self,
        x: Floats,
        y: NDArray[np.bool_],
        rng: Generator,
        delta: float,
    ) -> tuple[Learn, float]:
        """Returns the function that fits the best model, and the model's result on held-out runs.

        Models are fitted to the other runs. A result is the lower bound on ε, plus the information
        about y in nats, which is at most log 2: it ranks the models that have a bound of 0.

        Args:
            x: columns, float64 [runs, k].
            y: whether each run had the second input, bool [runs].
            rng: randomness of classifiers.
            delta: δ of the claim.
        """
        held_out = len(y) // _RUNS_PER_HELD_OUT
        y_held_out = y[:held_out]
        distinct_outputs = len(np.unique(_hashes(x)))
        seed = int(rng.integers(2**31))
        models = dict(self._models(distinct_outputs, len(y), seed))
        results = {}
        for name, learn in models.items():
            predict = learn(x[held_out:], y[held_out:])
            log_odds = predict(x[:held_out])
            bound = _best_bound(log_odds, y_held_out, delta)
            results[name] = bound + math.log(2) - _cross_entropy(log_odds, y_held_out)
            _log.info("%s promises ε = %.3g", name, bound)
        best = max(results, key=results.__getitem__)
        return models[best], results[best]

    def _models(
        self,
        cells: int,
        runs: int,
        seed: int,
    ) -> Iterator[tuple[str, Learn]]:
        """Yields names of the models that are compared, with the functions that fit them.

        Args:
            cells: number of distinct outputs; counts need several runs for each.
            runs: number of own runs.
            seed: seed of classifiers.
        """
        names = _AUTO if self.model == "auto" else (self.model,)
        for name in names:
            if name != CELLS:
                yield name, functools.partial(_fit_classifier, name, seed)
            elif cells * _RUNS_PER_CELL <= runs or self.model == CELLS:
                yield name, _fit_counts


def _both_worlds(draw: Draw, runs: int, rng: Generator) -> tuple[Outputs, Outputs]:
    """Draws outputs for the first and for the second input, half of the runs each."""
    return draw(False, runs // 2, rng), draw(True, runs // 2, rng)


def _shuffled(
    encoder: Encoder, outside: Outputs, inside: Outputs, rng: Generator
) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns columns of outputs in a random order, and whether each is of the second input."""
    by_world = encoder.columns(outside), encoder.columns(inside)
    x = np.concatenate(by_world)
    y = np.arange(len(x)) >= len(outside)
    order = rng.permutation(len(x))
    return x[order], y[order]


def _surest_runs(
    draw: Draw,
    encoder: Encoder,
    stages: Sequence[_Stage],
    least: float,
    most_drawn: int,
    rng: Generator,
) -> tuple[Floats, NDArray[np.bool_]]:
    """Draws runs until CLOSER_RUNS of them are sure; returns only the sure ones.

    Args:
        draw: runs the mechanism.
        encoder: turns outputs into columns.
        stages: predictors so far.
        least: size of the log odds from which on a run is sure.
        most_drawn: runs after which drawing stops, if sure runs are rarer than they were before.
        rng: randomness of runs and of their order.

    Returns:
        Columns, float64 [n, k]; whether each run had the second input, bool [n].
    """
    sure_x = []
    sure_y = []
    for _ in range(0, most_drawn, _DRAWN_AT_ONCE):
        x, y = _shuffled(encoder, *_both_worlds(draw, _DRAWN_AT_ONCE, rng), rng)
        is_sure = np.abs(_log_odds(stages, x)) >= least
        sure_x.append(x[is_sure])
        sure_y.append(y[is_sure])
        if sum(map(len, sure_y)) >= CLOSER_RUNS:
            break
    return np.concatenate(sure_x), np.concatenate(sure_y)


def _log_odds(stages: Sequence[_Stage], columns: Floats) -> Floats:
    """Predicts log odds of outputs [n, k], each by the last stage that it reaches: [n]."""
    log_odds = np.zeros(len(columns))
    for stage in stages:
        reaches_stage = np.abs(log_odds) >= stage.least
        if reaches_stage.any():
            log_odds[reaches_stage] = stage.predict(columns[reaches_stage])
    return log_odds


def _cross_entropy(log_odds: Floats, inside: NDArray[np.bool_]) -> float:
    """Returns the mean of -log P(the true world), in nats."""
    log_odds_of_other = np.where(inside, -log_odds, log_odds)
    return float(np.logaddexp(0.0, log_odds_of_other).mean())


def _best_bound(
    log_odds: Floats,
    inside: NDArray[np.bool_],
    delta: float,
) -> float:
    """Estimates the ε at `delta` that guesses on the adversary's own runs show.

    The result is the largest of lower bounds by the k surest guesses, over some k. The correct
    guesses decide which k it is, so that rare events count, too. This is allowed as the result only
    compares models and pairs: a bound on trials may not choose k so.

    Args:
        log_odds: log odds of the second input, float64 [n].
        inside: whether each run had the second input, bool [n].
        delta: δ of the claim.
    """
    runs = len(inside)
    surest = np.argsort(-np.abs(log_odds))  # indices of runs, the surest first
    is_correct = (log_odds > 0) == inside
    correct = np.cumsum(is_correct[surest])
    guesses = np.unique(np.geomspace(1, runs, _GUESS_COUNTS).astype(np.int64))
    # In at most this number of runs, an event of probability δ reveals the world.
    revealed, _ = most_revealed(runs, delta, _BOUND_ERROR)
    # Revealed runs count as correct guesses, and are excluded.
    other_guesses = np.maximum(guesses - revealed, 1)
    other_correct = np.maximum(correct[guesses - 1] - revealed, 0)
    rates = clopper_pearson_lower(other_correct, other_guesses, _BOUND_ERROR)
    return max(float(logit(rates).max()), 0.0)


def _joined(outside: Outputs, inside: Outputs) -> Outputs:
    """Joins outputs of both inputs, as an array if both are arrays of outputs of the same shape."""
    are_arrays = isinstance(outside, np.ndarray) and isinstance(inside, np.ndarray)
    if are_arrays and np.shape(outside)[1:] == np.shape(inside)[1:]:
        return np.concatenate([outside, inside])
    return [*outside, *inside]


def classifiers() -> list[str]:
    """Returns names of scikit-learn's classifiers that give probabilities."""
    from sklearn.utils import all_estimators

    return [name for name, cls in all_estimators("classifier") if hasattr(cls, "predict_proba")]


def _fit_classifier(
    name: str,
    seed: int,
    x: Floats,
    y: NDArray[np.bool_],
) -> Predict:
    """Fits a classifier of scikit-learn to columns, which are first robustly scaled and clipped.

    Args:
        name: the classifier's class.
        seed: seed of the classifier.
        x: columns, float64 [n, k], NaN where missing.
        y: whether each run had the second input, bool [n].
    """
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer, RobustScaler
    from sklearn.utils import all_estimators

    cls = dict(all_estimators("classifier"))[name]
    classifier = cls(**_SETTINGS.get(name, {}))
    if hasattr(classifier, "random_state"):
        classifier.random_state = seed
    fill = SimpleImputer(
        strategy="constant", fill_value=0.0, add_indicator=True, keep_empty_features=True
    )
    clip = FunctionTransformer(np.clip, kw_args={"a_min": -_REACH, "a_max": _REACH})
    model = make_pipeline(fill, RobustScaler(), clip, classifier)
    # One thread: trainers share the cores, and threads that wait for a busy one spin.
    with threadpool_limits(1), warnings.catch_warnings():
        # A fit that stops early is as valid as any other, and the best model is chosen anyway.
        warnings.simplefilter("ignore")
        model.fit(x, y)

    def predict(columns: Floats) -> Floats:
        """Returns log odds of the second input by the fitted classifier, float64 [n]."""
        with threadpool_limits(1):
            inside = model.predict_proba(columns)[:, 1]
        clipped = np.clip(inside, _SMALLEST_PROBABILITY, 1 - _SMALLEST_PROBABILITY)
        return np.asarray(np.log(clipped) - np.log1p(-clipped))

    return predict


def _fit_counts(x: Floats, y: NDArray[np.bool_]) -> Predict:
    """Fits log odds to how often each distinct output came from the first and the second input.

    The log odds of an output that never came are 0.

    Args:
        x: columns, float64 [n, k].
        y: whether each run had the second input, bool [n].
    """
    hash_of_cell, cell = np.unique(_hashes(x), return_inverse=True)
    runs_of_cell = np.bincount(cell)
    from_second = np.bincount(cell[y], minlength=len(hash_of_cell))
    # Half a run is added to both counts, so that no log odds are infinite.
    log_odds = np.log(from_second + 0.5) - np.log(runs_of_cell - from_second + 0.5)

    def predict(columns: Floats) -> Floats:
        """Returns the log odds of each row's cell; 0 for an output that was never counted."""
        hashes = _hashes(columns)
        # searchsorted gives len for a hash above all others, which % turns into 0: such a hash is
        # compared with the first one, and differs from it.
        nearest = np.searchsorted(hash_of_cell, hashes) % len(hash_of_cell)
        return np.where(hash_of_cell[nearest] == hashes, log_odds[nearest], 0.0)

    return predict


def _hashes(columns: Floats) -> NDArray[np.uint64]:
    """Returns a number for each row; other numbers for unequal rows, almost surely.

    Every entry is mixed, and multiplied by a random odd number; products are added modulo 2^64.

    Args:
        columns: float64 [n, k].
    """
    words = (columns + 0.0).view(np.uint64)  # 0 is added since -0 then becomes 0, its equal
    factors = np.random.default_rng(0).integers(2**64, size=words.shape[1], dtype=np.uint64)
    mixed = words ^ (words >> np.uint64(32))
    return np.asarray((mixed * (factors | np.uint64(1))).sum(axis=1))
