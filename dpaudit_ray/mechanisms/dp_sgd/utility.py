"""What trained models are worth: accuracy and loss on examples that nobody trained on."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...engines.packing.packed import PackedModel
from ...engines.rules.losses import losses
from ..base import Measured
from .division import MEASURES

Floats = npt.NDArray[np.float64]
_AT_ONCE = 256  # examples


@dataclasses.dataclass(frozen=True)
class HeldOut:
    """Examples x [m, ...] with classes y [m]."""

    x: Tensor
    y: Tensor

    def measured(self, model: PackedModel, theta: Tensor) -> Floats:
        """Accuracy and mean loss of models `theta`, float [n, p]: [2, n] in the order of MEASURES.

        NaN for a model of which some output is not finite.
        """
        right = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        total = torch.zeros_like(right)
        for x, y in zip(torch.split(self.x, _AT_ONCE), torch.split(self.y, _AT_ONCE), strict=True):
            outputs = model.outputs(theta, x)
            chosen = outputs[..., 0] > 0 if outputs.shape[2] == 1 else outputs.argmax(2)
            right += (chosen == y).sum(1)
            each = losses(outputs.flatten(0, 1), y.repeat(len(theta))).view(len(theta), -1)
            total += each.sum(1, dtype=torch.float64)
            lost = ~outputs.isfinite().flatten(1).all(1)
            right[lost], total[lost] = math.nan, math.nan
        found: Floats = (torch.stack([right, total]) / len(self.y)).cpu().numpy()
        return found


class Record:
    """Scores of a pack at its horizons and, with `held_out`, what its models are worth there.

    Float64 [n, horizons] each; NaN where training has not come yet. `arrays` has them by name, and
    goes on from those that are `known`. `canaries` scores belong to each model.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        canaries: int,
        measured: tuple[PackedModel, HeldOut] | None,
        known: Mapping[str, Floats],
    ) -> None:
        self._canaries, self._measured = canaries, measured
        names = ("scores", *(MEASURES if measured is not None else ()))
        self.arrays = {name: np.full(shape, np.nan) for name in names}
        for name, values in self.arrays.items():
            if name in known:
                values[:] = known[name]

    def put(self, column: int, scores: Floats, theta: Tensor) -> None:
        """At horizon number `column`: scores [n], and models float [n / canaries, p]."""
        self.arrays["scores"][:, column] = scores
        if self._measured is not None:
            model, held_out = self._measured
            found = held_out.measured(model, theta)
            for name, values in zip(MEASURES, found, strict=True):
                self.arrays[name][:, column] = np.repeat(values, self._canaries)

    @property
    def result(self) -> Floats | Measured:
        """All of it: the scores alone where nothing else was measured."""
        if self._measured is None:
            return self.arrays["scores"]
        utility = {name: values for name, values in self.arrays.items() if name != "scores"}
        return Measured(self.arrays["scores"], utility)
