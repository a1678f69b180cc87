"""A release, the noisy sum of clipped gradients, to an attacker of labels: bounds and trials."""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from ...adversaries.label import Label, crafted_records
from ...errors import SpecError
from ...stats import Estimate, Status, gdp
from ...stats import label as bounds
from ..base import Arrays, Measured
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
    def from_step(cls, target: Target, step: int, adversary: Label, noise: Noise) -> Release:
        """The release of a step as `adversary` sees it."""
        return cls.with_columns(target, step, adversary, noise)[0]

    @classmethod
    def with_columns(
        cls, target: Target, step: int, adversary: Label, noise: Noise
    ) -> tuple[Release, Floats]:
        """The same, and its columns by the attacked weights, [d, N]."""
        batch = target.batch(step)
        x = batch.x
        if adversary.crafts:
            x = crafted_records(batch.model.weights[0], len(x), target.crafting(step))
        derivatives = batch.model.run(x)
        columns = derivatives.columns(adversary.layer_index(len(derivatives.inputs)), adversary.row)
        norms = derivatives.norms if noise.whole else None
        gram = np.asarray(columns.T @ columns)
        probabilities = derivatives.probabilities
        return cls(gram, probabilities, batch.y, norms, noise, batch.records), columns

    def bounds(self, delta: float) -> bounds.LabelBounds:
        """Bounds of every record's label."""
        level = (self.noise.clip_norm, self.noise.multiplier, delta)
        labels = self.y.astype(np.float64)
        return bounds.bounds_of_gram(self.gram, self.probabilities, labels, *level, self.norms)

    def coefficients(self, y: npt.NDArray[np.int64]) -> Floats:
        """Coefficient of each record's column in the sum without noise, for labels `y` [..., N]."""
        norms = np.sqrt(np.diag(self.gram)) if self.norms is None else self.norms
        return bounds.clipped(norms, self.probabilities - y, self.noise.clip_norm)

    def sums(self, y: npt.NDArray[np.int64], rng: np.random.Generator) -> Floats:
        """Releases for labels `y` [n, N], as the attacker uses them: Cᵀ g, float64 [n, N].

        The noise on g [n, d] is drawn where it is used, in the span of the columns: Cᵀ z is
        N(0, s² CᵀC), and d is up to a thousand times N.
        """
        noise = rng.normal(size=(len(y), self._root.shape[1])) @ self._root.T
        return self.coefficients(y) @ self.gram + self.noise.scale * noise

    def solutions(self, sums: Floats) -> Floats:
        """The attacker's solutions [n, N]; NaN where the system does not determine one."""
        inverse, determined = self._solver
        return np.asarray(np.where(determined, sums @ inverse, np.nan))

    @functools.cached_property
    def _root(self) -> Floats:
        values, vectors = np.linalg.eigh(self.gram)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    @functools.cached_property
    def _solver(self) -> tuple[Floats, npt.NDArray[np.bool_]]:
        return bounds.solver(self.gram)


def closed_forms(
    prepared: Arrays, adversary: Label, noise: Noise, horizons: tuple[int, ...], delta: float
) -> dict[int, tuple[Estimate, ...]]:
    """Estimates at each number of batches, given the target's models: no trial is behind them.

    `exact`: the ε of the Gaussian pair that all releases make of one record's label, the largest
    over records. `closed-form`: Algorithm 2, the largest over records and batches; `complement`
    has the opposite answer too. `extrapolated`: what the first batch's is expected to become.

    They are those of releasing gradients at these models, which everybody knows. The models came of
    noise, too: over all that might have come of it, ε of the training may be less or more.
    """
    target = Target(prepared)
    estimates: dict[int, tuple[Estimate, ...]] = {}
    best, first = np.zeros(3), (0.0, 0)  # closed forms and μ; the first batch's, and its size
    squares: dict[int, float] = {}
    for step in range(1, target.steps + 1):
        release = Release.from_step(target, step - 1, adversary, noise)
        labels = release.bounds(delta)
        for record, mu in zip(release.records, labels.mu, strict=True):
            squares[int(record)] = squares.get(int(record), 0.0) + float(np.square(mu))
        both = np.fmax(labels.epsilon, labels.epsilon_complement)
        largest = [np.nanmax(values, initial=0.0) for values in (labels.epsilon, both)]
        best = np.maximum(best, [*largest, math.sqrt(max(squares.values()))])
        if step == 1:
            first = float(largest[0]), len(release.records)
        if step in horizons:
            grown = first[0] * bounds.growth(first[1], step)
            estimates[step] = _stated(best, grown, delta)
    return estimates


def distributions(
    prepared: Arrays, adversary: Label, noise: Noise, delta: float
) -> dict[str, Floats]:
    """Figures 3 and 4 of the paper: Algorithm 2's bound of every label in every batch that has one,
    and how large the entries of each batch's clipped mean gradient by the attacked weights are.
    """
    target, epsilons, entries = Target(prepared), [], []
    for step in range(target.steps):
        release, columns = Release.with_columns(target, step, adversary, noise)
        epsilon = release.bounds(delta).epsilon
        epsilons.append(epsilon[np.isfinite(epsilon)])
        entries.append(np.abs(columns @ release.coefficients(release.y)) / len(release.y))
    return {
        "ε of each label (Algorithm 2)": np.concatenate(epsilons),
        "size of a mean gradient's entries": np.concatenate(entries),
    }


def _stated(best: Floats, grown: float, delta: float) -> tuple[Estimate, ...]:
    def estimate(name: str, status: Status, epsilon: float) -> Estimate:
        return Estimate(name, status, float(epsilon), math.nan, delta, 1.0, 0)

    return (
        estimate("exact", Status.CERTIFIED, gdp.epsilon(best[2], delta)),
        estimate("closed-form", Status.CERTIFIED, best[0]),
        estimate("complement", Status.CERTIFIED, best[1]),
        estimate("extrapolated", Status.APPROXIMATE, grown),
    )


@dataclasses.dataclass(frozen=True)
class Trials:
    """A session of sampled trials: a batch, a record in it, its label turned or not, and the noise.

    `distances` [batches, N] are μ of each label, by what is seen; NaN where it is not determined.
    """

    adversary: Label
    releases: tuple[Release, ...]
    distances: Floats

    @classmethod
    def from_target(cls, prepared: Arrays, adversary: Label, noise: Noise) -> Trials:
        """Trials on all batches of a target.

        Raises:
            SpecError: no label is determined.
        """
        target = Target(prepared)
        steps = range(target.steps)
        releases = tuple(Release.from_step(target, step, adversary, noise) for step in steps)
        labels = [release.bounds(0.0) for release in releases]
        by_whole = adversary.statistic == "gradient"
        distances = np.stack([bound.mu if by_whole else bound.mu_direction for bound in labels])
        if not np.isfinite(distances).any():
            raise SpecError(
                "adversary.neuron",
                f"is {adversary.neuron}, which tells no label of any batch: it is dead, or records "
                "are alike; use another one, or all",
            )
        return cls(adversary, releases, distances)

    def run(self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]) -> Measured:
        """Scores [n, 1]; and the accuracy of all labels that are rebuilt, at every step alike."""
        rng = np.random.default_rng(seed)
        chosen = self._chosen(len(members), rng)
        scores, right, determined = (np.full(len(members), math.nan) for _ in range(3))
        for b in np.unique(chosen[0]):
            rows = np.flatnonzero(chosen[0] == b)
            release, records = self.releases[b], chosen[1][rows]
            y = np.tile(release.y, (len(rows), 1))
            trials = np.arange(len(rows))
            y[trials, records] ^= members[rows]
            sums = release.sums(y, rng)
            solved = release.solutions(sums)
            signs = 1 - 2 * release.y[records]  # of the coefficient, with the label as it is
            if self.adversary.statistic == "gradient":
                scores[rows] = self._ratio(b, records, members[rows], rng)
            else:
                scores[rows] = -signs * solved[trials, records] * self._scale(b)[records]
            named = self.adversary.labels(solved)
            count = (named >= 0).sum(axis=1)
            determined[rows] = (named >= 0).mean(axis=1)
            hits = ((named == y) & (named >= 0)).sum(axis=1)
            right[rows] = np.where(count > 0, hits / np.maximum(count, 1), np.nan)
        shape = (len(members), len(horizons))
        measured = {"accuracy": right, "determined": determined}
        utility = {k: np.broadcast_to(v[:, None], shape).copy() for k, v in measured.items()}
        return Measured(np.broadcast_to(scores[:, None], shape).copy(), utility)

    def _chosen(self, trials: int, rng: np.random.Generator) -> npt.NDArray[np.intp]:
        """A batch and a record for each trial, [2, trials]."""
        if self.adversary.record == "largest":
            largest = np.unravel_index(np.nanargmax(self.distances), self.distances.shape)
            return np.tile(np.array(largest)[:, None], (1, trials))
        able = np.argwhere(np.isfinite(self.distances))
        return able[rng.integers(len(able), size=trials)].T

    def _scale(self, batch: np.intp) -> Floats:
        """One over the standard deviation of each coefficient, from μ and how far worlds differ."""
        release = self.releases[batch]
        apart = np.abs(release.coefficients(1 - release.y) - release.coefficients(release.y))
        return np.asarray(self.distances[batch] / apart)

    def _ratio(
        self,
        batch: np.intp,
        records: npt.NDArray[np.intp],
        members: npt.NDArray[np.bool_],
        rng: np.random.Generator,
    ) -> Floats:
        """Log likelihood ratios of the whole release: along g_1 - g_0 it is N(b μ, 1), no more.

        Drawn along that direction, as far apart as the closed form has it: no check of that.
        """
        mu = self.distances[batch][records]
        return np.asarray(mu * (members * mu + rng.normal(size=len(mu))) - mu**2 / 2)
