"""Sampled trials: a batch, a record in it, its label turned or not, and the noise."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt

from ...adversaries.label import Label
from ...errors import SpecError
from ..base import Arrays, Measured
from .release import Floats, Noise, Release
from .target import Target


@dataclasses.dataclass(frozen=True)
class Trials:
    """`distances` [batches, N] are μ of each label, by what is seen; NaN where it cannot be."""

    adversary: Label
    releases: tuple[Release, ...]
    distances: Floats

    @classmethod
    def of(cls, prepared: Arrays, adversary: Label, noise: Noise) -> Trials:
        """All batches of a target.

        Raises:
            SpecError: no label can be told.
        """
        target = Target(prepared)
        steps = range(target.steps)
        releases = tuple(Release.of(target, step, adversary, noise) for step in steps)
        found = [release.bounds(0.0) for release in releases]
        by_whole = adversary.statistic == "gradient"
        distances = np.stack([each.mu if by_whole else each.mu_direction for each in found])
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
        scores, right, known = (np.full(len(members), math.nan) for _ in range(3))
        for b in np.unique(chosen[0]):
            rows = np.flatnonzero(chosen[0] == b)
            release, records = self.releases[b], chosen[1][rows]
            y = np.tile(release.y, (len(rows), 1))
            every = np.arange(len(rows))
            y[every, records] ^= members[rows]
            sums = release.sums(y, rng)
            solved = release.found(sums)
            signs = 1 - 2 * release.y[records]  # of the coefficient, with the label as it is
            if self.adversary.statistic == "gradient":
                scores[rows] = self._ratio(b, records, members[rows], rng)
            else:
                scores[rows] = -signs * solved[every, records] * self._scale(b)[records]
            named = self.adversary.labels(solved)
            told = named >= 0
            known[rows] = told.mean(axis=1)
            hits = ((named == y) & told).sum(axis=1)
            right[rows] = np.where(told.any(axis=1), hits / np.maximum(told.sum(axis=1), 1), np.nan)
        each = (len(members), len(horizons))
        utility = {"accuracy": right, "determined": known}
        shown = {name: np.broadcast_to(v[:, None], each).copy() for name, v in utility.items()}
        return Measured(np.broadcast_to(scores[:, None], each).copy(), shown)

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
