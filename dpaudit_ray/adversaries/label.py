"""Labels from aggregated gradients (Yuan, Xue, Wang, Shen 2021), for `mechanism: label-gradient`.

    Algorithm 1   layer: any, neuron: all   by gradients of all weights of a layer
    Algorithm 3   layer: last               by the weights into the logit; here the same as 1
    Algorithm 4   layer: second-last        by weights into one neuron; its outgoing one is unknown
    Algorithm 5   layer: input, crafts      by weights into one neuron; the attacker makes records

If a factor is unknown, either the labels or all their opposites are right, and the prior decides.
"""

from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field

from ..errors import SpecError
from .base import Adversary

Floats = NDArray[np.float64]
Labels = NDArray[np.int8]


def _neuron(value: Any) -> Any:
    """Returns a neuron's number, or "all". Raises ValueError for other values."""
    if value == "all" or (type(value) is int and value >= 0):
        return value
    raise ValueError("must be the number of a neuron, from 0 on, or all")


class Label(Adversary):
    """Observes a noisy sum of gradients by the weights of one `layer`, and the batch's records.

    The weights into one `neuron` are observed, or into `all`. With `crafts` the records of
    each batch are made such that the first layer has the same output for all of them. One label is
    guessed, of a `random` record of each trial or of the record with the `largest` distance: by the
    record's `coefficient` in the sum (as published), or by the entire `gradient`, which is optimal.
    """

    attacks = "label-gradient"
    name: Literal["label"] = "label"
    layer: Literal["last", "second-last", "input"] = "last"  # the observed layer
    neuron: Annotated[int | Literal["all"], BeforeValidator(_neuron)] = 0  # of that layer
    crafts: bool = False  # whether the adversary also makes the batch's records
    positives: Literal["minority", "majority"] = "minority"  # the class that counts as 1
    statistic: Literal["coefficient", "gradient"] = "coefficient"  # the guess depends on it
    record: Literal["random", "largest"] = "random"  # the record whose label is guessed
    period: int = Field(default=1, ge=1, le=1)  # 1: the label is in one step

    @property
    def row(self) -> int | None:
        """The neuron; None for all."""
        return None if self.neuron == "all" else int(self.neuron)

    def check_widths(
        self,
        sizes: tuple[int, ...],
        batch_size: int,
    ) -> None:
        """Raises SpecError for a neuron that does not exist, or more records than equations.

        Args:
            sizes: widths of the network, from the input to the logit.
            batch_size: records whose labels are unknown.
        """
        index = self.layer_index(len(sizes) - 1)
        inputs, outputs = sizes[index : index + 2]  # neurons before the layer, and in it
        if self.row is not None and self.row >= outputs:
            raise SpecError(
                "adversary.neuron",
                f"is {self.row}, but the {self.layer} layer has {outputs} neurons, from 0 on; use "
                "one of them",
            )
        if self.crafts and self.layer != "input":
            raise SpecError("adversary.crafts", f"needs layer: input, not {self.layer}")
        # Each observed weight gives an equation for the labels. Crafted records differ by vectors
        # of the null space of the first layer's weights, which has inputs - outputs dimensions.
        equations = inputs
        kind = "observed weights"
        if self.crafts:
            equations = inputs - outputs
            kind = "features beyond those neurons"
        elif self.row is None:  # the weights of all neurons of the layer are observed
            equations = inputs * outputs
        if batch_size > equations:
            raise SpecError(
                "mechanism.training.batch_size",
                f"is {batch_size}, but there are {max(equations, 0)} {kind}, and labels of more "
                "records than that are not determined; use at most that",
            )

    def layer_index(self, layers: int) -> int:
        """Returns the number of the attacked layer, from 0, in a network with `layers`."""
        return {"last": layers - 1, "second-last": layers - 2, "input": 0}[self.layer]

    def labels(self, coefficients: Floats) -> Labels:
        """Returns labels [..., N] by the signs of coefficients; -1 if a label is not determined.

        If a hidden neuron is attacked, coefficients have a further factor, whose sign is unknown
        but the same for all records of a batch. So all labels are inverted if class 1 has a
        majority and `positives` is "minority", or the other way round.
        """
        labels = np.where(coefficients < 0, 1, 0)
        determined = np.isfinite(coefficients) & (coefficients != 0)
        if self.layer != "last" and self.row is not None:
            ones = np.sum(labels * determined, axis=-1)
            share_of_ones = ones / np.maximum(determined.sum(axis=-1), 1)
            inverted = share_of_ones < 0.5
            if self.positives == "minority":
                inverted = share_of_ones > 0.5
            labels = np.where(inverted[..., None], 1 - labels, labels)
        return np.where(determined, labels, -1).astype(np.int8)


def crafted_records(
    weights: Floats,
    count: int,
    rng: np.random.Generator,
) -> Floats:
    """Crafts records that give every neuron of the first layer the same value (Algorithm 5).

    The records solve W x = v for a random v: one solution, plus each vector of a basis of W's null
    space.

    Args:
        weights: W, float [out, in].
        count: number of records, at most in - out.
        rng: randomness of v.

    Returns:
        Linearly independent records, float64 [count, in].
    """
    outputs = len(weights)
    solution = np.linalg.pinv(weights) @ rng.normal(size=outputs)
    null_space = np.linalg.svd(weights)[2][outputs:]
    return np.asarray(solution + null_space[:count], dtype=float)
