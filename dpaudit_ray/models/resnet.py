"""Residual networks with GroupNorm: ResNet-18 for small images, and WRN-16-k."""

from typing import TYPE_CHECKING, Literal

from ..plugins import Count
from .base import Model, Shape, image, outputs

if TYPE_CHECKING:
    from torch import nn


class ResNet18(Model):
    """ResNet-18 (He et al. 2016) for CIFAR: 11,173,962 parameters with 10 classes.

    The stem is one 3x3 convolution of stride 1, without max-pooling. Every norm is a GroupNorm of
    `groups` groups; 32 is what Opacus' ModuleValidator puts in place of BatchNorm.
    """

    name: Literal["resnet18"] = "resnet18"
    groups: Literal[1, 2, 4, 8, 16, 32, 64] = 32  # of every GroupNorm

    @property
    def parameters(self) -> int:
        """Number of parameters for images of three channels and 10 classes."""
        return 11_173_962

    def build(self, shape: Shape, classes: int) -> "nn.Module":
        """Builds a convolution and four stages of two blocks, with GroupNorm."""
        from torch import nn

        from .networks.blocks import BasicBlock, conv3x3, residual_network, stages

        channels, _, _ = image(shape, self.name, least=8)
        layers = [
            conv3x3(channels, 64),
            nn.GroupNorm(self.groups, 64),
            nn.ReLU(),
            *stages(BasicBlock, 64, (64, 128, 256, 512), self.groups),
        ]
        return residual_network(layers, width=512, outputs=outputs(classes))


class Wrn16(Model):
    """WRN-16-k (Zagoruyko and Komodakis 2016): 2,748,890 parameters for k = 4, 10 classes.

    `width` is k. Every norm is a GroupNorm of `groups` groups, at most 16, as the first one has 16
    channels. The paper's BatchNorm has as many parameters.
    """

    name: Literal["wrn16"] = "wrn16"
    width: Count = 4  # k, the factor of all channels
    groups: Literal[1, 2, 4, 8, 16] = 16  # of every GroupNorm

    @property
    def parameters(self) -> int:
        """Number of parameters for images of three channels and 10 classes.

        Layers of 16 k, 32 k and 64 k channels follow each other: the number of weights between them
        is a multiple of k². The number of those that follow the first 16 channels, lead to the
        classes, or belong to norms is a multiple of k. The other 474 are the first convolution
        (432), the first norm (32) and the biases of the classes (10).
        """
        k = self.width
        count = 170_752 * k**2 + 4_096 * k + 474
        # At k = 1 the first stage keeps its 16 channels, so no 16 x 16 projection is needed.
        return count - 256 if k == 1 else count

    def build(self, shape: Shape, classes: int) -> "nn.Module":
        """Builds a convolution and three stages of pre-activation blocks, with GroupNorm."""
        from torch import nn

        from .networks.blocks import PreActivationBlock, conv3x3, residual_network, stages

        channels, _, _ = image(shape, self.name, least=8)
        k = self.width
        layers = [
            conv3x3(channels, 16),
            *stages(PreActivationBlock, 16, (16 * k, 32 * k, 64 * k), self.groups),
            nn.GroupNorm(self.groups, 64 * k),
            nn.ReLU(),
        ]
        return residual_network(layers, width=64 * k, outputs=outputs(classes))
