"""Closed forms: what every batch tells of every label, and the most over all of them so far."""

from __future__ import annotations

import math

import numpy as np

from ...adversaries.label import Label
from ...stats import Estimate, Status, gdp
from ...stats import label as bounds
from ..base import Arrays
from .release import Noise, Release
from .target import Target


def estimates(
    prepared: Arrays, adversary: Label, noise: Noise, horizons: tuple[int, ...], delta: float
) -> dict[int, tuple[Estimate, ...]]:
    """At each number of batches, given the target's models: no trial is behind it.

    `exact`: the ε of the Gaussian pair that all releases make of one record's label, the largest
    over records. `closed-form`: Algorithm 2, the largest over records and batches; `complement`
    has the opposite answer too. `extrapolated`: what the first batch's is expected to become.

    They are those of releasing gradients at these models, which everybody knows. The models came of
    noise, too: over all that might have come of it, ε of the training may be less or more.
    """
    target = Target(prepared)
    found: dict[int, tuple[Estimate, ...]] = {}
    best, first = np.zeros(3), (0.0, 0)  # closed forms and μ; the first batch's, and its size
    squares: dict[int, float] = {}
    for step in range(1, target.steps + 1):
        release = Release.of(target, step - 1, adversary, noise)
        each = release.bounds(delta)
        for record, mu in zip(release.records, each.mu, strict=True):
            squares[int(record)] = squares.get(int(record), 0.0) + float(np.square(mu))
        both = np.fmax(each.epsilon, each.epsilon_complement)
        largest = [np.nanmax(values, initial=0.0) for values in (each.epsilon, both)]
        best = np.maximum(best, [*largest, math.sqrt(max(squares.values()))])
        if step == 1:
            first = float(largest[0]), len(release.records)
        if step in horizons:
            grown = first[0] * bounds.growth(first[1], step)
            found[step] = _stated(best, grown, delta)
    return found


def distributions(
    prepared: Arrays, adversary: Label, noise: Noise, delta: float
) -> dict[str, bounds.Floats]:
    """Figures 3 and 4 of the paper: Algorithm 2's bound of every label in every batch that has one,
    and how large the entries of each batch's clipped mean gradient by the attacked weights are.
    """
    target, found, entries = Target(prepared), [], []
    for step in range(target.steps):
        release, columns = Release.seen(target, step, adversary, noise)
        epsilon = release.bounds(delta).epsilon
        found.append(epsilon[np.isfinite(epsilon)])
        entries.append(np.abs(columns @ release.coefficients(release.y)) / len(release.y))
    return {
        "ε of each label (Algorithm 2)": np.concatenate(found),
        "size of a mean gradient's entries": np.concatenate(entries),
    }


def _stated(best: bounds.Floats, grown: float, delta: float) -> tuple[Estimate, ...]:
    def one(name: str, status: Status, epsilon: float) -> Estimate:
        return Estimate(name, status, float(epsilon), math.nan, delta, 1.0, 0)

    return (
        one("exact", Status.CERTIFIED, gdp.epsilon(best[2], delta)),
        one("closed-form", Status.CERTIFIED, best[0]),
        one("complement", Status.CERTIFIED, best[1]),
        one("extrapolated", Status.APPROXIMATE, grown),
    )
