"""Labels from aggregated gradients (Yuan, Xue, Wang, Shen 2021), for `mechanism: label-gradient`.

    Algorithm 1   layer: any, neuron: all   all weights of a layer, and the derivatives by them
    Algorithm 3   layer: last               the weights into the logit; the same as 1 there
    Algorithm 4   layer: second-last        those into one neuron, whose own weight is unknown
    Algorithm 5   layer: input, crafts      those into one neuron; the records are the attacker's

Where a factor is unknown, labels are known up to all of them turned, and the prior settles it.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BeforeValidator, Field

from ..errors import SpecError
from .base import Adversary

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int8]


def _neuron(value: Any) -> Any:
    if value == "all" or (type(value) is int and value >= 0):
        return value
    raise ValueError("must be the number of a neuron, from 0 on, or all")


class Label(Adversary):
    """Sees a noisy sum of gradients by the weights of one `layer`, and the batch's records.

    `neuron` is the one whose incoming weights are seen, or `all`. With `crafts` the records of
    each batch are made such that the first layer answers to all of them alike. What is guessed
    is one label, of a `record` drawn anew in each trial or of the one with the `largest`
    distance, by the record's `coefficient` in the sum (published), or by the whole `gradient`,
    which is the best there is.
    """

    attacks: ClassVar[str] = "label-gradient"
    name: Literal["label"] = "label"
    layer: Literal["last", "second-last", "input"] = "last"  # whose sum is seen
    neuron: Annotated[int | Literal["all"], BeforeValidator(_neuron)] = 0  # of it, or all of them
    crafts: bool = False  # make the batch's records, too
    positives: Literal["minority", "majority"] = "minority"  # the class that counts as 1
    statistic: Literal["coefficient", "gradient"] = "coefficient"  # what it guesses by
    record: Literal["random", "largest"] = "random"  # whose label is guessed
    period: int = Field(default=1, ge=1, le=1)  # 1: the label is in one step

    @property
    def row(self) -> int | None:
        """The neuron; None for all."""
        return None if self.neuron == "all" else int(self.neuron)

    def check_widths(self, sizes: tuple[int, ...], batch_size: int) -> None:
        """Raises SpecError for a neuron that there is not, or more records than equations."""
        into, out = sizes[self.layer_index(len(sizes) - 1) :][:2]
        if self.row is not None and self.row >= out:
            raise SpecError(
                "adversary.neuron",
                f"is {self.row}, but the {self.layer} layer has {out} neurons, from 0 on; use one "
                "of them",
            )
        if self.crafts and self.layer != "input":
            raise SpecError("adversary.crafts", f"needs layer: input, not {self.layer}")
        free = into - out if self.crafts else into if self.row is not None else into * out
        if batch_size > free:
            what = "features beyond those neurons" if self.crafts else "weights seen"
            raise SpecError(
                "mechanism.training.batch_size",
                f"is {batch_size}, but there are {max(free, 0)} {what}, and labels of more records "
                "than that are not determined; use at most that",
            )

    def layer_index(self, layers: int) -> int:
        """The number of the attacked layer, from 0, in a network of so many."""
        return {"last": layers - 1, "second-last": layers - 2, "input": 0}[self.layer]

    def labels(self, coefficients: Floats) -> Labels:
        """Labels [..., N] by the sign of coefficients; -1 where a coefficient is not determined."""
        labels = np.where(coefficients < 0, 1, 0)
        determined = np.isfinite(coefficients) & (coefficients != 0)
        if self.layer != "last" and self.row is not None:
            share = np.sum(labels * determined, axis=-1) / np.maximum(determined.sum(axis=-1), 1)
            turned = (share > 0.5) if self.positives == "minority" else (share < 0.5)
            labels = np.where(turned[..., None], 1 - labels, labels)
        return np.where(determined, labels, -1).astype(np.int8)


def crafted_records(weights: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Crafts records that give every neuron of the first layer the same value (Algorithm 5).

    Solutions of W x = v for a random v: one, plus independent vectors that W, float [out, in], does
    not see. `count`, at most in - out, are returned, float64 [count, in], linearly independent.
    """
    out = len(weights)
    solution = np.linalg.pinv(weights) @ rng.normal(size=out)
    unseen = np.linalg.svd(weights)[2][out:][:count]
    return np.asarray(solution + unseen, dtype=np.float64)
