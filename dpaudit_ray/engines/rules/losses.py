"""The loss on every example, and its gradient by the network's outputs."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

# Of outputs [N, c] and labels [N]: float [N], the loss of each example from its own row alone.
Loss = Callable[[Tensor, Tensor], Tensor]


def losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the logistic loss (c = 1) or cross-entropy of [N, c] for classes [N]: float [N]."""
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(
            outputs[:, 0], y.to(outputs.dtype), reduction="none"
        )
    return F.cross_entropy(outputs, y, reduction="none")


def squared_errors(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the squared error of the one output [N, 1] for every number in y [N]: float [N]."""
    return F.mse_loss(outputs[:, 0], y.to(outputs.dtype), reduction="none")


def output_gradients(outputs: Tensor, y: Tensor, loss: Loss = losses) -> Tensor:
    """Returns the gradient of every loss by its `outputs`, float [n, c, B], of n models.

    `y` [B] are classes, int64, or numbers. Of `losses` it is the closed form of what autograd
    gives: sigmoid or softmax less the indicator of the class.
    """
    if loss is not losses:
        rows = outputs.mT.flatten(0, 1).detach().requires_grad_()
        with torch.enable_grad():
            (g,) = torch.autograd.grad(loss(rows, y.repeat(len(outputs))).sum(), rows)
        return g.view(outputs.mT.shape).mT.contiguous()
    if outputs.shape[1] == 1:
        return torch.sigmoid(outputs).sub_(y.to(outputs.dtype))
    return torch.softmax(outputs, 1).sub_(F.one_hot(y, outputs.shape[1]).t().to(outputs.dtype))
