"""The split of a data set: records to train on, to measure models on, and for the adversary.

Utility is accuracy and loss of trained models on the records that are held out.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...data.base import Data, Dataset
from ...engines.packing.packed import PackedModel
from ...seeds import derive
from .recipe import Recipe
from .validation import check_like

Floats = npt.NDArray[np.float64]
_AT_ONCE = 256  # examples


@dataclasses.dataclass(frozen=True)
class Split:
    """Records that are trained on, that are held out to measure on, and that adversaries have."""

    trained: Dataset
    held_out: Dataset | None
    reserved: Dataset | None


def divide(recipe: Recipe, data: Dataset, seed: int) -> Split:
    """Splits the data as drawn from the sweep's seed; the order of the records stays.

    Raises SpecError where examples held out do not have one shape with the others, or have a class
    of their own, or too few are left.
    """
    count = len(data.y)
    left = recipe.trained_records(count)
    other = None
    if isinstance(recipe.held_out, Data):
        other = recipe.held_out.load()
        check_like(data, other, "mechanism.held_out", recipe.held_out.name)
    if left == count:
        return Split(data, other, None)
    rng = np.random.default_rng(derive("held out", seed, recipe.seed))
    rank = rng.permutation(count)
    held = recipe.share_of("held_out", count)
    first, last = rank < held, rank >= held + left
    held_out, reserve = (_rows(data, rows) if rows.any() else None for rows in (first, last))
    return Split(_rows(data, ~(first | last)), other or held_out, reserve)


def _rows(data: Dataset, rows: np.ndarray) -> Dataset:
    return Dataset(data.x[rows], data.y[rows])


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Examples x [m, ...] with classes, or numbers, y [m]."""

    x: Tensor
    y: Tensor

    def measured(self, model: PackedModel, theta: Tensor) -> Floats:
        """`Recipe.measures` of models `theta`, float [n, p]: accuracy and mean loss, [2 or 1, n].

        NaN for a model of which some output is not finite.
        """
        right = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        total = torch.zeros_like(right)
        for x, y in zip(torch.split(self.x, _AT_ONCE), torch.split(self.y, _AT_ONCE), strict=True):
            outputs = model.outputs(theta, x)
            chosen = outputs[..., 0] > 0 if outputs.shape[2] == 1 else outputs.argmax(2)
            right += (chosen == y).sum(1)
            batch = model.loss(outputs.flatten(0, 1), y.repeat(len(theta))).view(len(theta), -1)
            total += batch.sum(1, dtype=torch.float64)
            lost = ~outputs.isfinite().flatten(1).all(1)
            right[lost], total[lost] = math.nan, math.nan
        measured = [total] if self.y.is_floating_point() else [right, total]
        means: Floats = (torch.stack(measured) / len(self.y)).cpu().numpy()
        return means
