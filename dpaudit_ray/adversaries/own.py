"""The adversary of mechanisms whose code attacks itself, and returns the score."""

from typing import Literal

from .base import Adversary


class Own(Adversary):
    """Leaves the canary and the score to the function of `mechanism: function`."""

    attacks = "function"
    name: Literal["own"] = "own"
