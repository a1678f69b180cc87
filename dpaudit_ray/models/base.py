"""What a model is: a recipe for a `torch.nn.Module` from the data's shape."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from ..plugins import Plugin

if TYPE_CHECKING:
    from torch import nn


class Model(Plugin):
    """Base of all models. `initialization: fixed` gives all trials one θ_0, known to everybody."""

    kind: ClassVar[str] = "model"
    home: ClassVar[str] = "dpaudit_ray.models"

    initialization: Literal["fixed"] = "fixed"

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for examples of `shape`, initialised from torch's global generator.

        One output means a logistic loss on classes 0 and 1, more outputs a cross-entropy.
        """
