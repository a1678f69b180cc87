"""A user's own network, named by its import path."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, field_validator

from .. import imports
from ..errors import SpecError, first_line
from .base import Model, input_dtype, outputs, unchanged

if TYPE_CHECKING:
    from torch import nn

_KEY = "mechanism.model"


class UserModule(Model):
    """Any `nn.Module` class, or function that returns one, called with `options`.

    `path` is `package.module:name`. The module takes examples [B, ...] of the data and returns
    logits [B, classes]; [B, 1] for two classes means a logistic loss.
    """

    revision: ClassVar[int] = 3  # convolutions under pooling sum in another order

    name: Literal["module"] = "module"
    path: str
    options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("path")
    @classmethod
    def _import_path(cls, path: str) -> str:
        if not re.fullmatch(r"[\w.]+:[\w.]+", path):
            raise ValueError("must be package.module:name")
        return imports.check(path, "path")

    def named_modules(self) -> tuple[str, ...]:
        """The module that `path` names."""
        return (*super().named_modules(), self.path.partition(":")[0])

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        """Imports, calls and tries it on two examples of zeros.

        Raises:
            SpecError: it cannot be imported or made, or does not fit the data.
        """
        from torch import nn

        factory = imports.network(self.path, f"{_KEY}.path")
        try:
            network = factory(**self.options)
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            raise SpecError(
                f"{_KEY}.options", f"{self.path} does not take them ({first_line(error)})"
            ) from error
        if not isinstance(network, nn.Module):
            raise SpecError(
                f"{_KEY}.path", f"{self.path} gives a {type(network).__name__}, no torch.nn.Module"
            )
        self._try(network, shape, classes)
        return network

    def _try(self, network: nn.Module, shape: tuple[int, ...], classes: int) -> None:
        import torch

        parameter = next(network.parameters(), None)
        if parameter is None:
            raise SpecError(f"{_KEY}.path", f"{self.path} has no parameters to train")
        modes = {module: module.training for module in network.modules()}
        network.eval()
        try:
            with torch.no_grad(), unchanged(network):
                zeros = torch.zeros(2, *shape, dtype=parameter.dtype)
                logits = network(zeros.to(input_dtype(network, zeros))).shape
        except Exception as error:  # a user's code may raise anything
            raise SpecError(
                f"{_KEY}.path",
                f"{self.path} fails on examples of shape {list(shape)} ({first_line(error)})",
            ) from error
        for module, training in modes.items():
            module.training = training
        if tuple(logits) not in {(2, classes), (2, outputs(classes))}:
            raise SpecError(
                f"{_KEY}.path",
                f"{self.path} returns {list(logits)} for 2 examples of {classes} classes; must be "
                f"[2, {outputs(classes)}]",
            )
