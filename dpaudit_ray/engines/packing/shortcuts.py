"""Whole networks, or runs of layers, that something computes faster than rule after rule.

What does so is imported when it is first wanted: numba takes half a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from torch import Tensor, nn

from ..rules.base import Slot
from ..rules.layers import Chain

if TYPE_CHECKING:
    from .fused import FusedMlp


class Loops(Protocol):
    """A whole network in compiled loops, on CPU."""

    def fits(self, theta: Tensor, x: Tensor) -> bool:
        """Whether they take these examples; else it is the rules' turn."""

    def bytes_of_one(self, x: Tensor) -> int:
        """What one model leaves behind on its way forth."""

    def clipped_sums(
        self, out: Tensor, theta: Tensor, batch: tuple[Tensor, Tensor], clip_norm: float,
        weights: Tensor | None, at_once: int,
    ) -> None:  # fmt: skip
        """As `PackedModel.clipped_sums`, into `out` [n, p], by so many models at a time."""


def chain_of(module: nn.Module, slots: dict[str, Slot]) -> FusedMlp | None:
    """The module, if it is a small chain of linear layers and ReLU."""
    from .fused import fused

    return fused(module, slots)


def loops_of(module: nn.Module) -> Loops | None:
    """A module whose layers have rules, if it is convolutions under pooling and linear layers."""
    from .convchain import conv_chain

    return conv_chain(module)


def merged_by_loops(module: nn.Module) -> int:
    """How many of its convolutions are pooled in loops on a CPU."""
    from ..rules.convpool import ConvPool

    chains = [part.merged for part in module.modules() if isinstance(part, Chain)]
    return sum(isinstance(part, ConvPool) for chain in chains for part in chain)
