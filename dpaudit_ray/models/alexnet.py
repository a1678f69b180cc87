"""AlexNet, pre-trained: only its head is trained privately (Cebere et al., figure 13)."""

import os
import pickle
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from pydantic import model_validator

from ..data.base import existing_file
from ..errors import DataError, SpecError
from ..storage.files import reason
from .base import Model, Shape, image, outputs

if TYPE_CHECKING:
    from torch import Tensor, nn

_FEATURES = 4096  # outputs of the body for each image
_REMEDY = "write one with torch.save(torchvision.models.alexnet(...).state_dict(), path)"


class AlexNet(Model):
    """torchvision's AlexNet with all layers frozen but the last, which is trained from the start.

    The body runs once, on images [3, H, W] in 0..1; the head has 40,970 parameters for CIFAR-10.
    `weights: default` are torchvision's for ImageNet, downloaded once; `file` is a state dict at
    `path`; `none` are random weights.
    """

    locations = frozenset({"path"})

    name: Literal["alexnet"] = "alexnet"
    weights: Literal["default", "file", "none"] = "default"  # of the frozen body
    path: str | None = None  # the state dict, for `weights: file`

    @model_validator(mode="after")
    def _path_belongs_to_file(self) -> Self:
        """Raises SpecError unless `path` is given exactly for `weights: file`."""
        if (self.weights == "file") != (self.path is not None):
            raise SpecError("path", f"goes with weights: file, got weights: {self.weights}")
        return self

    def files(self) -> tuple[Path, ...]:
        """Returns the file of weights, if there is one."""
        return () if self.path is None else (Path(os.path.expanduser(self.path)),)

    def body(self, shape: Shape) -> "nn.Module":
        """Builds the frozen layers.

        Raises DataError if the weights are not available, or are another network's; SpecError for
        images that do not have three channels.
        """
        channels, _, _ = image(shape, self.name, least=1)
        if channels != 3:
            raise SpecError(
                "mechanism.model", f"{self.name} needs images of 3 channels, got {channels}"
            )
        from .networks.blocks import AlexNetBody

        state, source = self._state()
        try:
            return AlexNetBody(state)
        except RuntimeError as error:
            reason_given = " ".join(str(error).split())
            raise DataError(
                f"{source}: not AlexNet's weights ({reason_given:.300}); {_REMEDY}"
            ) from error

    def build(self, shape: Shape, classes: int) -> "nn.Module":
        """Makes the linear layer on the body's outputs. Raises SpecError for other inputs."""
        from torch import nn

        if shape != (_FEATURES,):
            raise SpecError(
                "mechanism.model",
                f"{self.name} trains on the {_FEATURES} outputs of its body, got {list(shape)}",
            )
        return nn.Sequential(nn.Flatten(), nn.Linear(_FEATURES, outputs(classes)))

    def _state(self) -> "tuple[dict[str, Tensor] | None, str]":
        """Returns the network's weights, and the name of their source for errors.

        The weights are None if they are to be random. Raises DataError if they cannot be read.
        """
        import torch
        from torchvision.models import AlexNet_Weights

        if self.weights == "none":
            return None, self.name
        if self.path is None:
            try:
                state = AlexNet_Weights.DEFAULT.get_state_dict(
                    progress=False, check_hash=True, weights_only=True
                )
                return dict(state), self.name
            except (OSError, RuntimeError, pickle.UnpicklingError) as error:
                raise DataError(
                    f"{self.name}: the weights are not in torch's cache and the download failed "
                    f"({reason(error)}); give a copy with weights: file and path"
                ) from error
        file = existing_file(self.path, self.name, _REMEDY)
        try:
            with warnings.catch_warnings():  # about foreign pickles, which the error below reports
                warnings.simplefilter("ignore")
                state = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:  # torch raises whatever it meets in a damaged or foreign file
            raise DataError(
                f"{file}: not a readable file of weights without code; {_REMEDY}"
            ) from error
        if not isinstance(state, dict):
            raise DataError(f"{file}: holds a {type(state).__name__}, no state dict; {_REMEDY}")
        return state, str(file)
