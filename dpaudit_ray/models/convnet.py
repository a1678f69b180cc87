"""The small convolutional networks of Cebere et al. and of Nasr et al."""

from typing import TYPE_CHECKING, Literal

from .base import Model, Shape, image, outputs

if TYPE_CHECKING:
    from torch import nn


class ConvNet(Model):
    """LeNet-like: 62,006 parameters on CIFAR-10 (Cebere et al., appendix D, table 2).

    conv 3-6 k5, pool 2, conv 6-16 k5, pool 2, then 400-120-84-10; max-pooling, ReLU. The paper
    gives only the count, which is that of LeNet-5 with full connections and three colours.
    """

    revision = 3  # convolutions under pooling sum in another order

    name: Literal["convnet"] = "convnet"

    def build(self, shape: Shape, classes: int) -> "nn.Module":
        """Builds two convolutions with pooling, and three linear layers."""
        from torch import nn

        channels, height, width = image(shape, self.name, least=16)
        # Each 5x5 convolution takes 4 pixels off a side; each pooling halves it.
        rows = ((height - 4) // 2 - 4) // 2
        columns = ((width - 4) // 2 - 4) // 2
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
    """The network of Opacus' MNIST example: 26,010 parameters on MNIST, 37,274 on CIFAR-10.

    conv 16 k8 stride 2 padding 3, pool 2 stride 1, conv 32 k4 stride 2, pool 2 stride 1, linear
    32, linear. Nasr et al. 2021, appendix A, state no more than "four layers".
    """

    revision = 3  # convolutions under pooling sum in another order

    name: Literal["cnn4"] = "cnn4"

    def build(self, shape: Shape, classes: int) -> "nn.Module":
        """Builds two convolutions with pooling, and two linear layers."""
        from torch import nn

        channels, height, width = image(shape, self.name, least=14)
        # Half a side by the first stride, one pixel less by its pooling; the same once more.
        rows = ((height - 2) // 2 - 4) // 2
        columns = ((width - 2) // 2 - 4) // 2
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
