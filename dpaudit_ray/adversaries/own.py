"""No adversary: the mechanism's own code attacks, and returns the score."""

from __future__ import annotations

from typing import ClassVar, Literal

from .base import Adversary


class Own(Adversary):
    """For `mechanism: function`, whose function inserts its canary and scores the result."""

    attacks: ClassVar[str] = "function"
    name: Literal["own"] = "own"
