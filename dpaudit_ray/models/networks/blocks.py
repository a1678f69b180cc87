"""Residual blocks, and AlexNet's frozen body.

GroupNorm treats each example separately, as DP-SGD needs. No layer works in place, so that a
gradient can be taken at every layer.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

_SIDE = 224  # the size of the images that AlexNet's published weights were trained on
_CHUNK = 128  # images at a time: about 300 MB of activations
_HEAD_PREFIX = "classifier.6."  # of the names of the head's weights


def conv3x3(channels: int, out: int, stride: int = 1) -> nn.Conv2d:
    """Returns a 3x3 convolution with padding 1, without a bias: the norms have biases."""
    return nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)


def _two_convolutions(
    channels: int,
    out: int,
    stride: int,
    groups: int,
) -> list[nn.Module]:
    """Returns the layers convolution, norm, ReLU, convolution; the first one has the stride."""
    return [
        conv3x3(channels, out, stride),
        nn.GroupNorm(groups, out),
        nn.ReLU(),
        conv3x3(out, out),
    ]


class BasicBlock(nn.Module):
    """ReLU(F(x) + x), F two convolutions (He et al. 2016, figure 2 and table 1)."""

    def __init__(
        self,
        channels: int,
        out: int,
        stride: int,
        groups: int,
    ) -> None:
        """Makes the block.

        Args:
            channels: number of channels of the input.
            out: number of channels of the output.
            stride: stride of the first convolution, and of the shortcut.
            groups: number of groups of every GroupNorm.
        """
        super().__init__()
        layers = _two_convolutions(channels, out, stride, groups)
        self.residual = nn.Sequential(*layers, nn.GroupNorm(groups, out))
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != out:
            projection = nn.Conv2d(channels, out, 1, stride, bias=False)
            self.shortcut = nn.Sequential(projection, nn.GroupNorm(groups, out))
        self.activation = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        """Returns [B, out, H / stride, W / stride] for x [B, channels, H, W]."""
        result: Tensor = self.activation(self.residual(x) + self.shortcut(x))
        return result


class PreActivationBlock(nn.Module):
    """F(a) + x with a = ReLU(norm(x)), F two convolutions (Zagoruyko and Komodakis 2016, fig. 1c).

    If the numbers of channels or the sizes differ, a 1x1 convolution of a takes the place of x.
    """

    def __init__(
        self,
        channels: int,
        out: int,
        stride: int,
        groups: int,
    ) -> None:
        """Makes the block.

        Args:
            channels: number of channels of the input.
            out: number of channels of the output.
            stride: stride of the first convolution, and of the shortcut.
            groups: number of groups of every GroupNorm.
        """
        super().__init__()
        self.activation = nn.Sequential(nn.GroupNorm(groups, channels), nn.ReLU())
        self.residual = nn.Sequential(*_two_convolutions(channels, out, stride, groups))
        self.projection: nn.Module | None = None
        if stride != 1 or channels != out:
            self.projection = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Returns [B, out, H / stride, W / stride] for x [B, channels, H, W]."""
        active = self.activation(x)
        shortcut = x if self.projection is None else self.projection(active)
        result: Tensor = self.residual(active) + shortcut
        return result


def stages(
    block: type[BasicBlock | PreActivationBlock],
    channels: int,
    widths: tuple[int, ...],
    groups: int,
) -> list[nn.Module]:
    """Returns a stage of two blocks for each width; each stage but the first halves the image.

    Args:
        block: class of the blocks.
        channels: number of channels of the input.
        widths: channels of each stage's output.
        groups: number of groups of every GroupNorm.
    """
    blocks: list[nn.Module] = []
    for width in widths:
        stride = 2 if blocks else 1
        blocks += [
            block(channels, width, stride, groups),
            block(width, width, stride=1, groups=groups),
        ]
        channels = width
    return blocks


def residual_network(
    layers: list[nn.Module],
    width: int,
    outputs: int,
) -> nn.Sequential:
    """Returns the layers with a head: the mean of each channel, and a linear layer.

    Convolutions are initialised as by He et al.; all others keep torch's initialisation.

    Args:
        layers: all layers before the mean, in order.
        width: number of channels that they return.
        outputs: number of outputs of the network.
    """
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, outputs)]
    network = nn.Sequential(*layers, *head)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network


class AlexNetBody(nn.Module):
    """torchvision's AlexNet, frozen, without its head: images [B, 3, H, W] in 0..1 to [B, 4096]."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, state: dict[str, Tensor] | None) -> None:
        """Loads weights into the network.

        Args:
            state: torchvision's weights, by name; None for random ones.

        Raises:
            RuntimeError: weights are of another network, or are NaN or infinite.
        """
        from torchvision.models import alexnet

        super().__init__()
        # Parameters on "meta" have no storage: `assign` below replaces them by the loaded weights.
        with torch.device("meta" if state is not None else "cpu"):
            network = alexnet(weights=None)
        del network.classifier[-1]
        if state is not None:
            body = {
                name: value for name, value in state.items() if not name.startswith(_HEAD_PREFIX)
            }
            network.load_state_dict(body, assign=True)
            for name, value in body.items():
                if not value.isfinite().all():
                    raise RuntimeError(f"{name} has a NaN or infinite value")
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False  # hooks and torch.func need unchanged inputs
        self.network = network.float().requires_grad_(False)
        # Those of the pixels of ImageNet, by channel.
        mean = torch.tensor([0.485, 0.456, 0.406])
        deviation = torch.tensor([0.229, 0.224, 0.225])
        self.register_buffer("mean", mean.view(3, 1, 1))
        self.register_buffer("deviation", deviation.view(3, 1, 1))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """Returns features [B, 4096] of images x [B, 3, H, W] in 0..1."""
        return torch.cat([self._features(chunk) for chunk in torch.split(x, _CHUNK)])

    def _features(self, x: Tensor) -> Tensor:
        """Returns outputs of the body for images [N, 3, h, w], resized and normalised for it."""
        resized = functional.interpolate(x, (_SIDE, _SIDE), mode="bilinear", align_corners=False)
        result: Tensor = self.network((resized - self.mean) / self.deviation)
        return result
