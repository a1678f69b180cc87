"""One step looked into: how much noise it adds, and how far one example moves what it releases.

Numbers only, for `scripts.looks` to judge. All of them are of releases, so neither clipping bound
nor batch size is taken from what the code says: only their ratio to the noise counts.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from . import vectors
from .vectors import Release, Vector

_COORDINATES = 20_000  # of noise that are looked at per step, if that takes no more than
_DRAWS = (4, 64)
_SECONDS = 3.0  # for the draws of one step
_KEPT = 4096  # coordinates of each tensor whose noise is compared over steps and tensors

Released = Callable[[Any, int | None], Release]


class Noise:
    """Noise of steps that were looked at so far, as far as it is kept."""

    def __init__(self) -> None:
        self._steps: list[tuple[int, list[Vector]]] = []

    def compared(self, step: int, noise: Release, deviations: list[float]) -> list[dict[str, Any]]:
        """How the noise of `step` hangs together with that of steps before, and with itself.

        Tensors without noise, or of one number, say nothing; all others are brought to one scale.
        """
        parts = [
            one[:_KEPT] / deviation if deviation > 0 and len(one) > 1 else np.zeros(0)
            for one, deviation in zip(noise, deviations, strict=True)
        ]
        found = [
            {"what": "steps", "of": [before, step], **_correlation(np.concatenate(old), new)}
            for before, old in self._steps
            if 16 <= len(new := np.concatenate(parts)) == sum(map(len, old))
        ]
        for (i, first), (j, second) in itertools.combinations(enumerate(parts), 2):
            n = min(len(first), len(second))
            if n >= 16:
                pair = _correlation(first[:n], second[:n])
                found.append({"what": "tensors", "of": [i, j], **pair})
        for i, part in enumerate(parts):
            if len(part) >= 32:
                pair = _correlation(part[:-1], part[1:])
                found.append({"what": "neighbours", "of": [i, i], **pair})
        self._steps.append((step, parts))
        return _largest(found)


def examined(
    step: int,
    released: Released,
    changes: Iterable[tuple[str, Any]],
    nothing: Any,
    empty: Any | None,
    seen: Noise,
    seed: int,
) -> dict[str, Any]:
    """What one step shows.

    Args:
        step: its number.
        released: what it would release after a change, with generators as they are (None), or
            seeded.
        changes: of one example each, by what they are.
        nothing: the change that is none.
        empty: adds an example whose gradient is zero; None where that cannot be done.
        seen: the noise of steps before.
        seed: of all draws.
    """
    actual = released(nothing, None)
    again = released(nothing, None)
    found: dict[str, Any] = {"step": step, "sizes": [len(one) for one in actual]}
    if not vectors.equal(actual, again):
        return found | {"replays": False}
    draws, squares, mean, still = _drawn(released, nothing, actual, seed)
    noise = [-one for one in mean]  # of this step, as `actual` has it, less a mean of many
    found |= {"replays": True, "draws": draws, "squares": squares}
    found["norms"] = vectors.squares(actual)
    if sum(squares) > 0:
        deviations = [
            float(np.sqrt(square / ((draws - 1) * len(one)))) if draws > 1 else 0.0
            for square, one in zip(squares, actual, strict=True)
        ]
        found["pairs"] = seen.compared(step, noise, deviations)
        found["shape"] = _shape(noise, squares, draws)
    shifts, bare = [], set()
    for what, change in changes:
        moved = vectors.minus(released(change, None), actual)
        shifts.append({"what": what, "squares": vectors.squares(moved)})
        bare |= {i for i, one in enumerate(moved) if (still[i] & (one != 0)).any()}
    found["shifts"], found["bare"] = shifts, sorted(bare)
    if empty is not None:
        found["empty"] = vectors.squares(vectors.minus(released(empty, None), actual))
    return found


def _drawn(
    released: Released, nothing: Any, actual: Release, seed: int
) -> tuple[int, list[float], Release, list[npt.NDArray[np.bool_]]]:
    """Draws of the step's noise: how many, their squares around their mean, that mean, and which
    numbers no draw moved.

    Squares and mean of each tensor are of differences to `actual`.
    """
    size = max(1, sum(map(len, actual)))
    least, most = _DRAWS
    wanted = int(np.clip(-(-_COORDINATES // size), least, most))
    total = [np.zeros_like(one) for one in actual]
    squared = [0.0] * len(actual)
    still = [np.ones(len(one), dtype=np.bool_) for one in actual]
    began = time.monotonic()
    draws = 0
    while draws < wanted and (draws < least or time.monotonic() - began < _SECONDS):
        moved = vectors.minus(released(nothing, seed + draws), actual)
        for index, (one, square) in enumerate(zip(moved, vectors.squares(moved), strict=True)):
            total[index] += one
            squared[index] += square
            still[index] &= one == 0
        draws += 1
        if squared[-1] > 0 and len(actual[-1]) == 1:
            wanted = most  # one number alone is drawn each time
    mean = [one / draws for one in total]
    spread = [
        max(0.0, square - draws * float(np.dot(one, one)))
        for square, one in zip(squared, mean, strict=True)
    ]
    kept = [0.0 if s < 1e-12 * q else s for s, q in zip(spread, squared, strict=True)]
    return draws, kept, mean, still


def _correlation(first: Vector, second: Vector) -> dict[str, Any]:
    norm = float(np.sqrt(np.dot(first, first) * np.dot(second, second)))
    value = float(np.dot(first, second)) / norm if norm > 0 else 0.0
    return {"correlation": value, "n": len(first)}


def _largest(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each kind the pair that chance explains least, and how many there were."""
    kept = []
    for what in ("steps", "tensors", "neighbours"):
        own = [one for one in found if one["what"] == what]
        if own:
            worst = max(own, key=lambda one: abs(one["correlation"]) * one["n"] ** 0.5)
            kept.append(worst | {"pairs": len(own)})
    return kept


def _shape(noise: Release, squares: list[float], draws: int) -> dict[str, Any]:
    """The Kolmogorov distance of standardised noise from the normal law, over all tensors."""
    parts = []
    for one, square in zip(noise, squares, strict=True):
        if square > 0 and draws > 1:
            deviation = np.sqrt(square / ((draws - 1) * len(one)) * (1 + 1 / draws))
            parts.append(one[:_KEPT] / deviation)
    values = np.sort(np.concatenate(parts))
    below = special.ndtr(values)
    n = len(values)
    grid = np.arange(n + 1) / n
    distance = max(float(np.max(grid[1:] - below)), float(np.max(below - grid[:-1])))
    return {"distance": distance, "n": n, "distinct": len(np.unique(values)) / n}


def glanced(
    step: int, released: Released, change: tuple[str, Any], nothing: Any, seed: int
) -> dict[str, Any]:
    """What one step shows at a glance: one other draw of its noise, and one change."""
    actual = released(nothing, None)
    other = vectors.minus(released(nothing, seed), actual)
    moved = vectors.minus(released(change[1], None), actual)
    # Half of a difference's squares: as of two draws around their mean.
    return {
        "step": step, "sizes": [len(one) for one in actual], "replays": True, "draws": 2,
        "squares": [square / 2 for square in vectors.squares(other)],
        "norms": vectors.squares(actual),
        "shifts": [{"what": change[0], "squares": vectors.squares(moved)}], "bare": [],
    }  # fmt: skip
