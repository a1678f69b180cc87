"""Residual blocks with GroupNorm, which treats every example alone, as DP-SGD needs.

Nothing works in place, so that gradients can be taken at every layer.
"""

from __future__ import annotations

from torch import Tensor, nn


def conv3x3(channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size at stride 1; a norm follows, so it has no bias."""
    return nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """ReLU(F(x) + x), F two convolutions (He et al. 2016, figure 2 and table 1)."""

    def __init__(self, channels: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            conv3x3(channels, out, stride),
            nn.GroupNorm(groups, out),
            nn.ReLU(),
            conv3x3(out, out),
            nn.GroupNorm(groups, out),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            projection = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(groups, out))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, H, W] to [B, out, H / stride, W / stride]."""
        result: Tensor = self.activation(self.residual(x) + self.shortcut(x))
        return result


class PreActivationBlock(nn.Module):
    """F(a) + x with a = ReLU(norm(x)), or F(a) + W a where the width changes.

    Zagoruyko and Komodakis 2016, figure 1(c), and their published code for the shortcut.
    """

    def __init__(self, channels: int, out: int, stride: int, groups: int) -> None:
        super().__init__()
        self.activation = nn.Sequential(nn.GroupNorm(groups, channels), nn.ReLU())
        self.residual = nn.Sequential(
            conv3x3(channels, out, stride),
            nn.GroupNorm(groups, out),
            nn.ReLU(),
            conv3x3(out, out),
        )
        self.projection: nn.Module | None = None
        if stride != 1 or channels != out:
            self.projection = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, H, W] to [B, out, H / stride, W / stride]."""
        active = self.activation(x)
        kept = x if self.projection is None else self.projection(active)
        result: Tensor = self.residual(active) + kept
        return result


def initialized(network: nn.Sequential) -> nn.Sequential:
    """`network` with normal weights of variance 2 / fan-out in every convolution (He et al.)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network
