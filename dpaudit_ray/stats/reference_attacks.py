"""Membership attacks by reference models: scores of records, from what other trainings gave them.

A matrix [trainings, records] has the logit s = log(p / (1 - p)) of each record's label, of chance
p, in each model. The first trainings calibrate an attack, and the others are judged by it: so these
are independent given the calibration, and intervals may count them.

Sources: `loss` Yeom et al. 2018; `calibrated` Watson et al. 2022, by the mean of models without the
record; `lira` Carlini et al. 2022, Algorithm 1; `rmia` Zarifzadeh et al. 2024, its likelihood ratio
and its line for models that are missing offline, with all records as the population; `quantile`
Bertran et al. 2023, its normal distribution, of which mean and log variance are linear here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Members, Scores
from .error_rates import Floats
from .membership import Membership

Attack = Literal["loss", "calibrated", "lira", "rmia", "quantile"]
Variance = Literal["record", "global"]
_TURNS = 30
_BLOCK = 2**21  # logits that are calibrated on at once: 16 MiB


def membership(  # noqa: PLR0913 (options of attacks go by name)
    logits: npt.ArrayLike,
    members: npt.ArrayLike,
    attack: Attack = "lira",
    *,
    online: bool = True,
    variance: Variance = "record",
    gamma: float = 2.0,
    slope: float = 0.3,
    features: npt.ArrayLike | None = None,
    calibrating: int | None = None,
    confidence: float = 0.95,
) -> Membership:
    """What an attack by reference models finds in the trainings that did not calibrate it.

    `logits`, float [trainings, records], are log(p / (1 - p)) of each record's label; `members`,
    bool likewise, whether the training had the record, by a fair coin of each. The first half of
    the trainings calibrates, or `calibrating` of them. The `attack` is `loss`, log p; `calibrated`,
    log p above its mean without the record; `lira`, log N(s; in) - log N(s; out), offline (s - μ) /
    σ of those without, of which Φ is the paper's test; `rmia`, the share of records whose ratio
    p / p̄ is exceeded `gamma` times; or `quantile`, (s - μ) / σ as other records without which are
    like it in `features`, float [records, any], let expect: for one calibrating training or few.
    `online`: whether there are models with the record; else `rmia` gives these slope * p + 1 -
    slope. `variance`: of each "record", or "global" for few models.

    Returns the judged trainings' attack scores with their bits. Raises ValueError for other values,
    NaN, or a record that is in, or out, of too few calibrating trainings.
    """
    values, bits = np.asarray(logits), np.asarray(members)
    if values.ndim != 2 or bits.shape != values.shape:
        shapes = f"{values.shape} and {bits.shape}"
        raise ValueError(f"logits and members must be [trainings, records], got shapes {shapes}")
    for name, value, kinds in (("attack", attack, Attack), ("variance", variance, Variance)):
        if value not in (choices := get_args(kinds)):
            raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    if np.isnan(values).any():
        raise ValueError("logits must be numbers, got NaN; leave that training out")
    if not gamma > 0:
        raise ValueError(f"gamma must be above 0, got {gamma}")
    first = len(values) // 2 if calibrating is None else calibrating
    if not 0 < first < len(values):
        most = len(values) - 1
        raise ValueError(f"calibrating must lie in 1..{most}, got {first}; the others are judged")
    least = 2 if (attack, variance) == ("lira", "record") else int(attack != "quantile")
    read, sides = _READ[attack], list[_Side]()
    without = attack in ("calibrated", "quantile")
    for inside in () if attack == "loss" else (False,) if without else (False, True)[: 1 + online]:
        sides.append(_Side.calibrated(values[:first], bits[:first], inside, read, least))
    mean, deviation = sides[0].like(features) if attack == "quantile" else (0.0, 1.0)
    scores = np.empty((len(values) - first, values.shape[1]))
    for row, judged in zip(scores, values[first:], strict=True):
        logit = judged.astype(np.float64)
        shown = read(logit)
        if attack == "lira":
            row[:] = _lira(shown, sides, variance)
        elif attack == "rmia":
            row[:] = _rmia(logit, sides, gamma, slope)
        elif attack == "quantile":
            row[:] = (shown - mean) / deviation
        else:
            row[:] = shown - (sides[0].mean if sides else 0)
    return Membership(scores, bits[first:], confidence)


@dataclasses.dataclass(frozen=True)
class _Side:
    """Of calibrating models with a record, or without: count, mean, squares around it, [m]."""

    count: npt.NDArray[np.int64]
    mean: Floats
    squares: Floats

    @classmethod
    def calibrated(
        cls, logits: npt.NDArray[Any], members: npt.NDArray[Any], inside: bool,
        read: Callable[[Floats], Floats], least: int,
    ) -> _Side:  # fmt: skip
        n, m = logits.shape
        parts, size = list[Floats](), max(_BLOCK // n, 1)
        for start in range(0, m, size):
            part = slice(start, start + size)
            values = read(np.asarray(logits[:, part], np.float64))
            chosen: Members = members[:, part].astype(np.bool_) == inside
            count = chosen.sum(axis=0)
            if (few := int(count.min())) < least:
                raise ValueError(
                    f"each record must be {'in' if inside else 'out'} of {least} or more "
                    f"calibrating trainings, got {few} of {n}; take more, or online=False"
                )
            mean = np.where(chosen, values, 0.0).sum(axis=0) / np.maximum(count, 1)
            squares = (np.where(chosen, values - mean, 0.0) ** 2).sum(axis=0)
            parts.append(np.stack([count, mean, squares]))
        return cls(*np.concatenate(parts, axis=1))

    def deviation(self, variance: Variance) -> Floats:
        """Of each record, [m], or the one that all share; never 0."""
        shared = math.sqrt(self.squares.sum() / max(self.count.sum() - len(self.count), 1))
        records = np.sqrt(self.squares / self.count)
        return np.maximum(records if variance == "record" else shared, 1e-6 * shared + 1e-12)

    def like(self, features: npt.ArrayLike | None) -> tuple[Floats, Floats]:
        """Mean and deviation, [m] each, of the likeliest normal distribution by features [m, d]."""
        given = np.asarray(features, np.float64)
        if given.ndim != 2 or len(given) != len(self.count) or not np.isfinite(given).all():
            problem = f"features must be finite numbers [{len(self.count)} records, any number]"
            raise ValueError(f"{problem}, got shape {given.shape}")
        spread = given.std(axis=0)
        centred = (given - given.mean(axis=0))[:, spread > 0] / spread[spread > 0]
        design = np.column_stack([np.ones(len(given)), centred])
        counts, log_variance = self.count.astype(np.float64), np.zeros(len(given))

        def fitted(target: Floats, weights: Floats) -> Floats:
            weighed = design.T * weights
            coefficients = np.linalg.lstsq(weighed @ design, weighed @ target, rcond=1e-10)[0]
            return np.asarray(design @ coefficients)

        for turn in range(_TURNS):  # the mean given the variance, then a step of the log variance
            mean = fitted(self.mean, counts * np.exp(-log_variance))
            squares = (self.squares + counts * (self.mean - mean) ** 2) / np.maximum(counts, 1)
            if turn == 0:
                log_variance += math.log(float(counts @ squares) / counts.sum() + 1e-12)
            step = fitted(squares * np.exp(-log_variance) - 1, counts)
            log_variance += step / max(1.0, float(np.abs(step).max()))
        return mean, np.exp(log_variance / 2)


def _lira(logits: Floats, sides: list[_Side], variance: Variance) -> Scores:
    deviations = [side.deviation(variance) for side in sides]
    far, *near = ((logits - side.mean) / d for side, d in zip(sides, deviations, strict=True))
    if not near:
        return np.asarray(far)
    return np.asarray((far**2 - near[0] ** 2) / 2 + np.log(deviations[0] / deviations[1]))


def _rmia(logits: Floats, sides: list[_Side], gamma: float, slope: float) -> Scores:
    without = sides[0].mean
    given = sides[1].mean if len(sides) > 1 else slope * without + 1 - slope
    ratios = special.log_expit(logits) - np.log(np.maximum((given + without) / 2, 1e-300))
    below = np.searchsorted(np.sort(ratios), ratios - math.log(gamma), "right")
    return np.asarray(below / len(ratios))


_READ: dict[str, Callable[[Floats], Floats]] = {  # what is calibrated
    "loss": special.log_expit,
    "calibrated": special.log_expit,
    "lira": lambda logits: logits,
    "quantile": lambda logits: logits,
    "rmia": special.expit,
}
