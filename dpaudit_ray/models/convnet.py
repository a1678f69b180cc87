"""The small convolutional networks of Cebere et al. and of Nasr et al."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from .base import Model, image, outputs

if TYPE_CHECKING:
    from torch import nn


class ConvNet(Model):
    """LeNet-like: 62,006 parameters on CIFAR-10 (Cebere et al., appendix D, table 2).

    conv 3-6 k5, pool 2, conv 6-16 k5, pool 2, then 400-120-84-10; max-pooling, ReLU. The paper
    gives only the count, which is that of LeNet-5 with full connections and three colours.
    """

    revision: ClassVar[int] = 3  # convolutions under pooling sum in another order

    name: Literal["convnet"] = "convnet"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        channels, height, width = image(shape, self.name, least=16)
        rows, columns = (((side - 4) // 2 - 4) // 2 for side in (height, width))
        return nn.Sequential(
            nn.Conv2d(channels, 6, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(16 * rows * columns, 120),
            nn.ReLU(),
            nn.Linear(120, 84),
            nn.ReLU(),
            nn.Linear(84, outputs(classes)),
        )


class Cnn4(Model):
    """Four layers: 26,010 parameters on MNIST, 37,274 on CIFAR-10; of Opacus' MNIST example.

    conv 16 k8 stride 2 padding 3, pool 2 stride 1, conv 32 k4 stride 2, pool 2 stride 1, linear
    32, linear. Nasr et al. 2021, appendix A, say only "four layers".
    """

    revision: ClassVar[int] = 3  # convolutions under pooling sum in another order

    name: Literal["cnn4"] = "cnn4"

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        channels, height, width = image(shape, self.name, least=14)
        rows, columns = (((side - 2) // 2 - 4) // 2 for side in (height, width))
        return nn.Sequential(
            nn.Conv2d(channels, 16, 8, stride=2, padding=3),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
            nn.Conv2d(16, 32, 4, stride=2),
            nn.ReLU(),
            nn.MaxPool2d(2, stride=1),
            nn.Flatten(),
            nn.Linear(32 * rows * columns, 32),
            nn.ReLU(),
            nn.Linear(32, outputs(classes)),
        )
