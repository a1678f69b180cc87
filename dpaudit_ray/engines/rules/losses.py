"""The loss of each example, and its gradient by the network's outputs."""

from collections.abc import Callable

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor

# From outputs [N, c] and labels [N]: float [N], the loss of each example from its own row alone.
Loss = Callable[[Tensor, Tensor], Tensor]


def classification_losses(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the logistic loss (c = 1) or cross-entropy of [N, c] for classes [N]: float [N]."""
    if outputs.shape[1] == 1:
        labels = y.to(outputs.dtype)
        return F.binary_cross_entropy_with_logits(outputs[:, 0], labels, reduction="none")
    return F.cross_entropy(outputs, y, reduction="none")


def squared_errors(outputs: Tensor, y: Tensor) -> Tensor:
    """Returns the squared error of the one output [N, 1] for every number in y [N]: float [N]."""
    return F.mse_loss(outputs[:, 0], y.to(outputs.dtype), reduction="none")


def output_gradients(outputs: Tensor, y: Tensor, loss: Loss) -> Tensor:
    """Returns the gradient of every loss by the outputs of n models, float [n, c, B].

    For `classification_losses` it has a closed form: sigmoid or softmax minus the indicator of the
    class. For any other loss, autograd computes it.

    Args:
        outputs: [n, c, B].
        y: labels [B], int64 for classes, else numbers.
        loss: the loss of each example.
    """
    models, classes, batch = outputs.shape
    if loss is not classification_losses:
        rows = outputs.mT.flatten(0, 1).detach().requires_grad_()
        with torch.enable_grad():
            total = loss(rows, y.repeat(models)).sum()
            (g,) = torch.autograd.grad(total, rows)
        return g.view(models, batch, classes).mT.contiguous()
    if classes == 1:
        return torch.sigmoid(outputs).sub_(y.to(outputs.dtype))
    indicators = F.one_hot(y, classes).t().to(outputs.dtype)
    return torch.softmax(outputs, 1).sub_(indicators)
