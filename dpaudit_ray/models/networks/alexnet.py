"""torchvision's AlexNet up to its last layer, frozen."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models import alexnet

_SIDE = 224  # the size of the images that the published weights were trained on
_CHUNK = 128  # images at a time: about 300 MB of activations
_LAST = "classifier.6."


class AlexNetBody(nn.Module):
    """Images [B, 3, H, W] in 0..1 to the input of AlexNet's last layer, [B, 4096].

    Images are resized to 224 x 224 pixels and normalised with ImageNet's mean and deviation.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, state: dict[str, Tensor] | None) -> None:
        """`state` as from `state_dict()` of `features` and `classifier`; None draws one."""
        super().__init__()
        with torch.device("meta" if state is not None else "cpu"):
            network = alexnet(weights=None)
        del network.classifier[-1]
        if state is not None:
            network.load_state_dict(state, assign=True)
        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.inplace = False
        self.network = network.float().requires_grad_(False)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("deviation", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))
        self.eval()

    def forward(self, x: Tensor) -> Tensor:
        """See the class; works through the images in small parts."""
        return torch.cat([self._features(part) for part in torch.split(x, _CHUNK)])

    def _features(self, x: Tensor) -> Tensor:
        resized = functional.interpolate(x, (_SIDE, _SIDE), mode="bilinear", align_corners=False)
        result: Tensor = self.network((resized - self.mean) / self.deviation)
        return result


def body_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The part of AlexNet's `state` that the body needs, last layer left out.

    Raises:
        ValueError: an entry is missing or of another shape, or has a NaN or infinite value.
    """
    with torch.device("meta"):
        expected = alexnet(weights=None).state_dict()
    needed = {}
    for name, like in expected.items():
        if name.startswith(_LAST):
            continue
        found = state.get(name)
        if not isinstance(found, Tensor):
            raise ValueError(f"{name} is missing")
        if found.shape != like.shape:
            raise ValueError(f"{name} has shape {list(found.shape)}, not {list(like.shape)}")
        if not torch.isfinite(found).all():
            raise ValueError(f"{name} has a NaN or infinite value")
        needed[name] = found
    return needed
