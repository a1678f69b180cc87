"""Fully connected networks: with any widths, as in Cebere et al., and as in Nasr et al."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from ..plugins import Count
from .base import Model, Shape, outputs

if TYPE_CHECKING:
    from torch import nn


class Mlp(Model):
    """Fully connected layers of the widths in `hidden`, each with its `activation`; then outputs.

    `hidden: []` is a linear model: logistic regression, or softmax, where classes are learnt.
    """

    name: Literal["mlp"] = "mlp"
    hidden: list[Count] = Field(default=[64, 64])  # widths of layers
    activation: Literal["relu", "tanh", "gelu"] = "relu"  # after each

    @property
    def parameters(self) -> int:
        """Counts weights, as if there were as many inputs as neurons in the first hidden layer.

        The data are not read for it, so the number of inputs is not known.
        """
        widths = [*self.hidden[:1], *self.hidden]
        return sum(before * width for before, width in pairwise(widths))

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Builds the layers of the widths in `hidden`, and the outputs."""
        return perceptron(shape, self.hidden, self.activation, classes)


class Fcnn(Model):
    """d-3-8-1 for two classes, d-3-8-c beyond; ReLU between layers (Cebere et al.).

    The paper gives only the count, 68 parameters on Housing's 8 features; 8-6-2 would fit as well.
    """

    name: Literal["fcnn"] = "fcnn"

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Builds hidden layers of 3 and 8 neurons, and the outputs."""
        return perceptron(shape, [3, 8], "relu", classes)


class Mlp3(Model):
    """Three fully connected layers d-width-width-c with ReLU, for binary records as Purchase.

    Nasr et al. 2021, appendix A, do not give the widths; 128 is this project's choice.
    """

    name: Literal["mlp3"] = "mlp3"
    width: Count = 128  # of both hidden layers

    @property
    def parameters(self) -> int:
        """Counts the weights of two layers with `width` inputs; the data are not read for it."""
        return 2 * self.width**2

    def build(self, shape: Shape, classes: int) -> nn.Module:
        """Builds two hidden layers, and the outputs."""
        return perceptron(shape, [self.width] * 2, "relu", classes)


def perceptron(
    shape: Shape,
    hidden: list[int],
    activation: str,
    classes: int,
) -> nn.Module:
    """Returns a chain of linear layers on flattened examples, with the activation between them.

    Args:
        shape: shape of an example.
        hidden: widths of the hidden layers.
        activation: relu, tanh or gelu.
        classes: number of classes; 0 for regression.
    """
    from torch import nn

    kinds = {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU}
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [math.prod(shape), *hidden, outputs(classes)]
    for before, width in pairwise(widths):
        layers += [nn.Linear(before, width), kinds[activation]()]
    return nn.Sequential(*layers[:-1])  # no activation follows the outputs
