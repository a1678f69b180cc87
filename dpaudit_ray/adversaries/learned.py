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
CELLS = "cells"
_AUTO = (CELLS, "LogisticRegression", "HistGradientBoostingClassifier")
_SETTINGS: dict[str, dict[str, Any]] = {
    # Trees that are small, shrunk and stopped early: larger trees learn noise if ε is small, and
    # log odds without end if the worlds differ clearly.
    "HistGradientBoostingClassifier": {
        "max_iter": 150,
        "max_leaf_nodes": 6,
        "min_samples_leaf": 50,
        "l2_regularization": 10.0,
        "early_stopping": True,
    },
    "LogisticRegression": {"max_iter": 300},
}
_HELD_OUT = 3  # one in three of the own runs compares the models
_NUMBERS = 100  # numbers of guesses that are tried
_LEVEL = 1e-5  # error of the bound for each number, so that luck chooses no pair and no model
_FEW_RUNS = 8  # runs of a cell, on average, from which counts are estimates
_REACH = 10.0  # robust deviations beyond which a column is clipped
CLOSER = 16  # the surest in 16 runs is learned from again
CLOSER_RUNS = 50_000  # number of the surest runs
_DRAWN_AT_ONCE = 200_000  # runs of which the surest are kept
_LEAST = 1e-12  # probability; those nearer to 0 or 1 get the log odds of this one

Learn = Callable[[Floats, NDArray[np.bool_]], "Predict"]
Predict = Callable[[Floats], Floats]  # columns [n, k] to log odds of "in", [n]


@dataclass(frozen=True)
class _Stage:
    """A predictor of log odds, for outputs for which earlier stages have `least` or more."""

    least: float
    predict: Predict


class Learned(OutputAdversary):
    """Learns from `fit` runs that are not trials; scores by the log odds of the second input.

    `model` is a classifier of scikit-learn by its class's name, `cells` for counts of equal
    outputs, or `auto`: of cells, logistic regression and boosted trees, the model that shows the
    largest ε on held-out runs. `bits` adds the last bits of each number, which may leak where noise
    is drawn in floating point. `zoom` is for rare events: so many times, the adversary learns anew
    from the surest sixteenth of runs, for which it draws 16 times as many runs each time.
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
        """Returns the model. Raises ValueError unless it is a known name."""
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
            most_drawn = 2 * CLOSER_RUNS * CLOSER**depth
            x, y = _surest_runs(draw, encoder, stages, least, most_drawn, rng)
            if len(np.unique(y)) < 2:
                break
            closer = self._closer(stages, x, y, rng, delta)
            # If this depth gains nothing, the next one still may.
            if closer is not None:
                stages.append(_Stage(least, closer))

        def score(outputs: Outputs) -> Floats:
            """Returns log odds of the second input, float64 [n]."""
            return rounded(_log_odds(stages, encoder.columns(outputs)))

        return score

    def _closer(
        self,
        stages: Sequence[_Stage],
        x: Floats,
        y: NDArray[np.bool_],
        rng: Generator,
        delta: float,
    ) -> Predict | None:
        """Learns from the surest runs alone.

        Args:
            stages: predictors so far; the last one was sure of these runs.
            x: columns of the surest runs, float64 [n, k].
            y: whether each had the second input, bool [n].
            rng: randomness of classifiers.
            delta: δ of the claim.

        Returns:
            A predictor for such runs; None if it predicts held-out runs no better than `stages`.
        """
        learn, _ = self._best(x, y, rng, delta)
        held_out = len(y) // _HELD_OUT
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
        """Implements `OutputAdversary.promise`: the best result of a model on held-out runs.

        Each model is fitted to the other runs. Its result is the bound on ε, plus information.
        """
        _, x, y = self._own_runs(draw, self.search, rng)
        return self._best(x, y, rng, delta)[1]

    def _own_runs(
        self, draw: Draw, runs: int, rng: Generator
    ) -> tuple[Encoder, Floats, NDArray[np.bool_]]:
        """Returns an encoder and columns of runs of each world, shuffled, with their worlds.

        Args:
            draw: runs the mechanism.
            runs: number of runs, half of each world.
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
        """Returns the function that fits the best model on held-out runs, and this model's result.

        The result is the lower bound on ε, plus the information about y in nats, which is at most
        log 2: it ranks the models that have a bound of 0.

        Args:
            x: columns, float64 [runs, k].
            y: whether each run had the second input, bool [runs].
            rng: randomness of classifiers.
            delta: δ of the claim.
        """
        held_out = len(y) // _HELD_OUT
        y_held_out = y[:held_out]
        distinct_outputs = len(np.unique(_hashes(x)))
        seed = int(rng.integers(2**31))
        models = dict(self._models(distinct_outputs, len(y), seed))
        results = {}
        for name, learn in models.items():
            predict = learn(x[held_out:], y[held_out:])
            log_odds = predict(x[:held_out])
            bound = _shown(log_odds, y_held_out, delta)
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
                yield name, functools.partial(_learn, name, seed)
            elif cells * _FEW_RUNS <= runs or self.model == CELLS:
                yield name, _count


def _both_worlds(draw: Draw, runs: int, rng: Generator) -> tuple[Outputs, Outputs]:
    """Draws outputs for the first and for the second input, half of the runs each."""
    return draw(False, runs // 2, rng), draw(True, runs // 2, rng)


def _shuffled(
    encoder: Encoder, outside: Outputs, inside: Outputs, rng: Generator
) -> tuple[Floats, NDArray[np.bool_]]:
    """Returns the columns of outputs of both worlds in a random order, and their worlds."""
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
    """Draws runs until CLOSER_RUNS runs have log odds of at least `least`; returns only such runs.

    Args:
        draw: runs the mechanism.
        encoder: turns outputs into columns.
        stages: predictors so far.
        least: log odds from which on a run is sure.
        most_drawn: runs after which drawing stops, if sure runs are rarer than `stages` found.
        rng: randomness of runs and of their order.
    """
    kept_x = []
    kept_y = []
    for _ in range(0, most_drawn, _DRAWN_AT_ONCE):
        x, y = _shuffled(encoder, *_both_worlds(draw, _DRAWN_AT_ONCE, rng), rng)
        is_sure = np.abs(_log_odds(stages, x)) >= least
        kept_x.append(x[is_sure])
        kept_y.append(y[is_sure])
        if sum(map(len, kept_y)) >= CLOSER_RUNS:
            break
    return np.concatenate(kept_x), np.concatenate(kept_y)


def _log_odds(stages: Sequence[_Stage], columns: Floats) -> Floats:
    """Predicts log odds by the last stage that an output reaches, [n, k] to [n]."""
    log_odds = np.zeros(len(columns))
    for stage in stages:
        is_sure = np.abs(log_odds) >= stage.least
        if is_sure.any():
            log_odds[is_sure] = stage.predict(columns[is_sure])
    return log_odds


def _cross_entropy(log_odds: Floats, inside: NDArray[np.bool_]) -> float:
    """Returns the mean surprise at the true worlds, in nats."""
    log_odds_of_other = np.where(inside, -log_odds, log_odds)
    return float(np.logaddexp(0.0, log_odds_of_other).mean())


def _shown(
    log_odds: Floats,
    inside: NDArray[np.bool_],
    delta: float,
) -> float:
    """Estimates the ε at `delta` that guesses on the adversary's own runs show.

    The result is the largest of lower bounds by the k surest guesses, over some k. Here the bits
    choose k, which shows rarer events; a bound on trials may not choose k so.

    Args:
        log_odds: log odds of "in", float64 [n].
        inside: the worlds, bool [n].
        delta: δ of the claim.
    """
    runs = len(inside)
    surest = np.argsort(-np.abs(log_odds))
    is_right = (log_odds > 0) == inside
    right = np.cumsum(is_right[surest])
    guesses = np.unique(np.geomspace(1, runs, _NUMBERS).astype(np.int64))
    # In this number of runs at most, an event of probability δ reveals the world.
    revealed, _ = most_revealed(runs, delta, _LEVEL)
    # Revealed runs count as guessed correctly, and are left out.
    other_guesses = np.maximum(guesses - revealed, 1)
    other_right = np.maximum(right[guesses - 1] - revealed, 0)
    rates = clopper_pearson_lower(other_right, other_guesses, _LEVEL)
    return max(float(logit(rates).max()), 0.0)


def _joined(outside: Outputs, inside: Outputs) -> Outputs:
    """Joins outputs of both worlds: arrays to an array, if they have the same shape."""
    are_arrays = isinstance(outside, np.ndarray) and isinstance(inside, np.ndarray)
    if are_arrays and np.shape(outside)[1:] == np.shape(inside)[1:]:
        return np.concatenate([outside, inside])
    return [*outside, *inside]


def classifiers() -> list[str]:
    """Returns names of scikit-learn's classifiers that give probabilities."""
    from sklearn.utils import all_estimators

    return [name for name, cls in all_estimators("classifier") if hasattr(cls, "predict_proba")]


def _learn(
    name: str,
    seed: int,
    x: Floats,
    y: NDArray[np.bool_],
) -> Predict:
    """Fits a classifier of scikit-learn to columns that are robustly scaled and clipped.

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
        """Returns log odds by the fitted classifier, float64 [n]."""
        with threadpool_limits(1):
            inside = model.predict_proba(columns)[:, 1]
        clipped = np.clip(inside, _LEAST, 1 - _LEAST)
        return np.asarray(np.log(clipped) - np.log1p(-clipped))

    return predict


def _count(x: Floats, y: NDArray[np.bool_]) -> Predict:
    """Counts how often equal outputs had either input; outputs that were not counted get 0.

    Args:
        x: columns, float64 [n, k].
        y: whether each run had the second input, bool [n].
    """
    hash_of_cell, cell = np.unique(_hashes(x), return_inverse=True)
    in_cell = np.bincount(cell)
    inside = np.bincount(cell[y], minlength=len(hash_of_cell))
    log_odds = np.log(inside + 0.5) - np.log(in_cell - inside + 0.5)

    def predict(columns: Floats) -> Floats:
        """Returns the log odds of each row's cell; 0 for an output that was never counted."""
        hashes = _hashes(columns)
        # A hash above all others is compared with the first, which differs from it, too.
        nearest = np.searchsorted(hash_of_cell, hashes) % len(hash_of_cell)
        return np.where(hash_of_cell[nearest] == hashes, log_odds[nearest], 0.0)

    return predict


def _hashes(columns: Floats) -> NDArray[np.uint64]:
    """Returns a number for each row that only equal rows share, almost surely.

    Every entry is mixed, and multiplied by a random odd number; products are added modulo 2^64.

    Args:
        columns: float64 [n, k].
    """
    words = (columns + 0.0).view(np.uint64)  # -0 becomes 0
    factors = np.random.default_rng(0).integers(2**64, size=words.shape[1], dtype=np.uint64)
    mixed = words ^ (words >> np.uint64(32))
    return np.asarray((mixed * (factors | np.uint64(1))).sum(axis=1))
