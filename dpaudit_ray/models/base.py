"""What a model is: a recipe for a `torch.nn.Module` from the data's shape."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Literal

from ..plugins import Plugin

if TYPE_CHECKING:
    from torch import nn


class Model(Plugin):
    """Base of all models.

    `initialization: fixed` gives all trials one θ_0, known to everybody; `random` draws one per
    trial, which the adversary does not know. `scheme` draws it: `default` is the network's own
    way, `kaiming` and `xavier` draw all weights from those normal distributions, with biases 0.
    """

    kind: ClassVar[str] = "model"
    home: ClassVar[str] = "dpaudit_ray.models"

    pack_size: ClassVar[int] = 256  # for `pack_size: auto`; smaller for large networks

    initialization: Literal["fixed", "random"] = "fixed"
    scheme: Literal["default", "kaiming", "xavier"] = "default"

    @abstractmethod
    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """The network for examples of `shape`, initialised from torch's global generator.

        One output means a logistic loss on classes 0 and 1, more outputs a cross-entropy.
        """

    def body(self, shape: tuple[int, ...]) -> nn.Module | None:
        """A frozen part for examples of `shape`, applied once to the data, before training.

        `build` then gets the shape of its output. Drawn, where it is random, before `build`. None:
        the data is trained on as it is.
        """
        return None
