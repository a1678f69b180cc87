"""The loss of a classifier on every example, and its gradient by the network's outputs.

A network with one output is trained with the logistic loss on classes 0 and 1, one with more
outputs with the cross-entropy of its softmax.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor


def losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the loss of every output [N, c] for its class in y [N]: float [N].

    Logistic with one output, cross-entropy with more.
    """
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(
            outputs[:, 0], y.to(outputs.dtype), reduction="none"
        )
    return F.cross_entropy(outputs, y, reduction="none")


def output_gradients(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the gradient of every loss by its outputs, float [n, c, B].

    The closed form of what autograd gives: sigmoid or softmax less the indicator of the class.

    Args:
        outputs: float [n, c, B], of n models on B examples.
        y: classes, int64 [B].
    """
    if outputs.shape[1] == 1:
        return torch.sigmoid(outputs).sub_(y.to(outputs.dtype))
    of_class = F.one_hot(y, outputs.shape[1]).t().to(outputs.dtype)
    return torch.softmax(outputs, 1).sub_(of_class)
