"""Search for gradients that float32 cannot hold: a training with such a gradient ends in NaN."""

import torch
from torch import Tensor

from ..rules.base import slots_of
from .samplewise import Samplewise


def first_not_finite(
    alone: Samplewise,
    parameters: Tensor,
    x: Tensor,
    y: Tensor,
) -> tuple[int, str] | None:
    """Finds the first example whose gradient, or whose gradient's norm, is not finite.

    Args:
        alone: computes the gradient of one example.
        parameters: parameters of the model [p].
        x: examples [B, ...].
        y: targets [B].

    Returns:
        The number of the example, and a clause on its gradient; None if all are finite.
    """
    for j in range(len(y)):
        example = slice(j, j + 1)
        (gradient,) = alone.gradients(parameters, x[example], y[example])
        if not gradient.isfinite().all():
            for name, slot in slots_of(alone.module).items():
                part = gradient[slot.start : slot.stop]
                if not part.isfinite().all():
                    return j, f"the gradient of {name} is not finite"
        if not torch.linalg.vector_norm(gradient).isfinite():
            return j, f"the norm of the gradient is more than {gradient.dtype} holds"
    return None
