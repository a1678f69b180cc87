"""Residual networks with GroupNorm: ResNet-18 for small images, and WRN-16-k."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from .base import Model, image, outputs

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
        return 11_173_962

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from .networks.blocks import BasicBlock, conv3x3, residual_network, stages

        channels, _, _ = image(shape, self.name, least=8)
        stem = conv3x3(channels, 64), nn.GroupNorm(self.groups, 64), nn.ReLU()
        layers = (*stem, *stages(BasicBlock, 64, (64, 128, 256, 512), self.groups))
        return residual_network(*layers, width=512, outputs=outputs(classes))


class Wrn16(Model):
    """WRN-16-k (Zagoruyko and Komodakis 2016): 2,748,890 parameters for k = 4, 10 classes.

    `width` is k. Every norm is a GroupNorm of `groups` groups, at most 16, as the first one has 16
    channels. The paper's BatchNorm has as many parameters.
    """

    name: Literal["wrn16"] = "wrn16"
    width: int = Field(default=4, ge=1)  # k, the factor of all channels
    groups: Literal[1, 2, 4, 8, 16] = 16  # of every GroupNorm

    @property
    def parameters(self) -> int:
        count, before = 9 * 3 * 16, 16
        for width in (16 * self.width, 32 * self.width, 64 * self.width):
            count += 9 * before * width + 3 * 9 * width * width
            count += before * width if before != width else 0
            count += 2 * (before + 3 * width)
            before = width
        return count + 2 * before + 10 * before + 10

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        from torch import nn

        from .networks.blocks import PreActivationBlock, conv3x3, residual_network, stages

        channels, _, _ = image(shape, self.name, least=8)
        widths = (16 * self.width, 32 * self.width, 64 * self.width)
        first, last = conv3x3(channels, 16), 64 * self.width
        blocks = stages(PreActivationBlock, 16, widths, self.groups)
        layers = (first, *blocks, nn.GroupNorm(self.groups, last), nn.ReLU())
        return residual_network(*layers, width=last, outputs=outputs(classes))
