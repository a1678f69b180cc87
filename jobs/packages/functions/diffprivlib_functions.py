"""Functions of diffprivlib, n outputs each. Mechanisms draw from seeds of `rng`."""

from typing import Any

import numpy as np
from diffprivlib import mechanisms, models, tools
from numpy.random import Generator


def _seeds(rng: Generator, n: int) -> list[int]:
    return [int(seed) for seed in rng.integers(2**31, size=n)]


def tool(data: Any, rng: Generator, n: int, name: str, **arguments: Any) -> Any:
    """Calls a statistic of `diffprivlib.tools`."""
    function = getattr(tools, name)
    array = np.array(data)
    return [function(array, random_state=seed, **arguments) for seed in _seeds(rng, n)]


def histogram(data: Any, rng: Generator, n: int, **arguments: Any) -> Any:
    """Returns the counts of a histogram."""
    array = np.array(data)
    return [tools.histogram(array, random_state=seed, **arguments)[0] for seed in _seeds(rng, n)]


def mechanism(data: Any, rng: Generator, n: int, name: str, **arguments: Any) -> Any:
    """Calls a mechanism of `diffprivlib.mechanisms` on a value."""
    made = getattr(mechanisms, name)(random_state=_seeds(rng, 1)[0], **arguments)
    return [made.randomise(data) for _ in range(n)]


def selection(data: Any, rng: Generator, n: int, name: str, **arguments: Any) -> Any:
    """Selects the index of one of several utilities."""
    seed = _seeds(rng, 1)[0]
    made = getattr(mechanisms, name)(random_state=seed, utility=list(data), **arguments)
    return [made.randomise() for _ in range(n)]


def binary(data: Any, rng: Generator, n: int, epsilon: float) -> Any:
    """Randomises the answer to a question of yes or no."""
    seed = _seeds(rng, 1)[0]
    made = mechanisms.Binary(epsilon=epsilon, value0="no", value1="yes", random_state=seed)
    return [made.randomise(data) == "yes" for _ in range(n)]


def linear_regression(data: Any, rng: Generator, n: int, **arguments: Any) -> Any:
    """Fits a line; the first column of data is x, the second is y."""
    array = np.array(data)
    outputs = []
    for seed in _seeds(rng, n):
        model = models.LinearRegression(random_state=seed, **arguments)
        model.fit(array[:, :1], array[:, 1])
        outputs.append([float(model.coef_[0]), float(model.intercept_)])
    return outputs


def naive_bayes(data: Any, rng: Generator, n: int, **arguments: Any) -> Any:
    """Fits a Gaussian naive Bayes classifier; the last column of data is the class."""
    array = np.array(data)
    outputs = []
    for seed in _seeds(rng, n):
        model = models.GaussianNB(random_state=seed, **arguments)
        model.fit(array[:, :-1], array[:, -1])
        outputs.append([*model.theta_.ravel(), *model.var_.ravel(), *model.class_count_])
    return outputs


def scaler(data: Any, rng: Generator, n: int, **arguments: Any) -> Any:
    """Fits a scaler of one column."""
    array = np.array(data)[:, None]
    outputs = []
    for seed in _seeds(rng, n):
        model = models.StandardScaler(random_state=seed, **arguments).fit(array)
        outputs.append([model.mean_[0], model.var_[0]])
    return outputs


def logistic_regression(data: Any, rng: Generator, n: int, **arguments: Any) -> Any:
    """Fits a classifier; the last column of data is the class."""
    array = np.array(data)
    outputs = []
    for seed in _seeds(rng, n):
        model = models.LogisticRegression(random_state=seed, **arguments)
        model.fit(array[:, :-1], array[:, -1])
        outputs.append([*model.coef_.ravel(), *model.intercept_])
    return outputs
