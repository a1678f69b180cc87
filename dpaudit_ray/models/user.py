"""A user-defined network, named by its import path."""

import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, field_validator

from .. import imports
from ..errors import SpecError, first_line
from .base import Model, Shape

if TYPE_CHECKING:
    from torch import nn

_KEY = "mechanism.model"


class UserModule(Model):
    """Calls an `nn.Module` class, or a function that returns a module, with `options`.

    `path` is `package.module:name`. The module takes examples [B, ...] of the data and returns
    logits [B, classes]; [B, 1] for two classes means a logistic loss.
    """

    revision = 3  # convolutions under pooling sum in another order

    name: Literal["module"] = "module"
    path: str  # package.module:name of the class or function
    options: dict[str, Any] = Field(default_factory=dict)  # arguments that it is called with

    @field_validator("path")
    @classmethod
    def _import_path(cls, path: str) -> str:
        """Checks that `path` is package.module:name, and that its module is trusted."""
        if not re.fullmatch(r"[\w.]+:[\w.]+", path):
            raise ValueError("must be package.module:name, without folders and .py")
        return imports.require_importable(path, "path")

    @property
    def code_paths(self) -> tuple[str, ...]:
        """The import path of the user's class or function."""
        return (self.path,)

    def build(self, shape: Shape, classes: int) -> "nn.Module":
        """Calls `path`. Raises SpecError if the call fails or returns no module."""
        from torch import nn

        factory = imports.network(self.path, f"{_KEY}.path")
        try:
            network = factory(**self.options)
        except (Exception, SystemExit) as error:  # a user's code may raise anything
            raise SpecError(
                f"{_KEY}.options",
                f"{self.path} does not take them ({first_line(error)}), got {self.options}",
            ) from error
        if not isinstance(network, nn.Module):
            raise SpecError(
                f"{_KEY}.path", f"{self.path} gives a {type(network).__name__}, no torch.nn.Module"
            )
        return network
