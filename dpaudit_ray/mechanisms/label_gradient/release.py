"""One noisy sum of clipped gradients, as an attacker of labels sees it."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from ...adversaries.label import Label, crafted
from ...stats import label as bounds
from .target import Target

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class Noise:
    """C, σ, and whether all parameters are clipped together, as DP-SGD does."""

    clip_norm: float
    multiplier: float
    whole: bool

    @property
    def scale(self) -> float:
        """Standard deviation of the noise on the sum."""
        return self.clip_norm * self.multiplier


@dataclasses.dataclass(frozen=True)
class Release:
    """Labels `y` [N] of `records`, the `probabilities` that the model gives them, and CᵀC of their
    columns C by the attacked weights: all that tells them apart, however many weights there are.

    `norms` of all parameters' derivatives; None where the attacked weights are clipped alone.
    Everything in it is what the attacker knows but for the label that is guessed.
    """

    gram: Floats
    probabilities: Floats
    y: npt.NDArray[np.int64]
    norms: Floats | None
    noise: Noise
    records: npt.NDArray[np.int64]

    @classmethod
    def of(cls, target: Target, step: int, adversary: Label, noise: Noise) -> Release:
        """What `adversary` sees of a step."""
        return cls.seen(target, step, adversary, noise)[0]

    @classmethod
    def seen(
        cls, target: Target, step: int, adversary: Label, noise: Noise
    ) -> tuple[Release, Floats]:
        """The same, and its columns [d, N]."""
        batch = target.batch(step)
        x = batch.x
        if adversary.crafts:
            x = crafted(batch.model.weights[0], len(x), target.crafting(step))
        passed = batch.model.passed(x)
        columns = passed.columns(adversary.at(len(passed.inputs)), adversary.row)
        norms = passed.norms if noise.whole else None
        gram = np.asarray(columns.T @ columns)
        known = (gram, passed.probabilities, batch.y, norms, noise, batch.records)
        return cls(*known), columns

    def bounds(self, delta: float) -> bounds.LabelBounds:
        """Of every record's label."""
        level = (self.noise.clip_norm, self.noise.multiplier, delta)
        labels = self.y.astype(np.float64)
        return bounds.bounds_of_gram(self.gram, self.probabilities, labels, *level, self.norms)

    def coefficients(self, y: npt.NDArray[np.int64]) -> Floats:
        """Of each record's column in the sum without noise, if labels were `y`, [..., N]."""
        norms = np.sqrt(np.diag(self.gram)) if self.norms is None else self.norms
        return bounds.clipped(norms, self.probabilities - y, self.noise.clip_norm)

    def sums(self, y: npt.NDArray[np.int64], rng: np.random.Generator) -> Floats:
        """What is released for labels `y` [n, N], as the attacker uses it: Cᵀ g, float64 [n, N].

        The noise on g [n, d] is drawn where it is used, in the span of the columns: Cᵀ z is
        N(0, s² CᵀC), and d is up to a thousand times N.
        """
        noise = rng.normal(size=(len(y), self._root.shape[1])) @ self._root.T
        return self.coefficients(y) @ self.gram + self.noise.scale * noise

    def found(self, sums: Floats) -> Floats:
        """The attacker's solutions [n, N]; NaN where the system does not determine one."""
        inverse, kept = self._solver
        return np.asarray(np.where(kept, sums @ inverse, np.nan))

    @functools.cached_property
    def _root(self) -> Floats:
        values, vectors = np.linalg.eigh(self.gram)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    @functools.cached_property
    def _solver(self) -> tuple[Floats, npt.NDArray[np.bool_]]:
        return bounds.solver(self.gram)
