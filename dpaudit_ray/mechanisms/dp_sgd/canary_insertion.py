"""Canary insertion: which canary joins which models at which step, and what a canary may be."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import torch
from torch import Tensor

from ...adversaries.base import Canary, ChangingCanary, GradientCanary, SampleCanary
from ...errors import SpecError
from .sampling import Coins

_LARGEST = 1e15  # entry of a crafted example: squares and their sums must not overflow


@dataclasses.dataclass(frozen=True)
class Inserted:
    """A canary at one step, and which models have it.

    `inside` is [n], 1 where it is in, else 0; or [n, m] for each of m examples or directions. It is
    on the CPU: a step that looks bits up on a GPU would wait for it.
    """

    canary: GradientCanary | SampleCanary
    inside: Tensor

    @functools.cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """The models that have it; for each of its examples, where it has several."""
        return self._places(self.inside.view(len(self.inside), -1).t())

    @functools.cached_property
    def examples(self) -> tuple[Tensor, ...]:
        """The numbers of its examples that each model has."""
        return self._places(self.inside.view(len(self.inside), -1))

    def _places(self, coins: Tensor) -> tuple[Tensor, ...]:
        canary = self.canary
        device = (canary.x if isinstance(canary, SampleCanary) else canary.direction).device
        return tuple(coin.nonzero()[:, 0].to(device) for coin in coins)

    def direction(self, models: Tensor | int) -> Tensor:
        """The gradient canary of some models that have it, float [p] or [k, p]."""
        assert isinstance(self.canary, GradientCanary)
        direction = self.canary.direction
        return direction if direction.dim() == 1 else direction[models]


def summed(directions: Tensor, inside: Tensor) -> Tensor:
    """Σ_j b_j g_j of canaries `directions` [m, p], perhaps sparse: [n, p] of bits [n, m]."""
    return (directions.t() @ inside.to(directions.device).t()).t()


@dataclasses.dataclass(frozen=True)
class Insertion:
    """A canary over a whole training: at steps that `period` divides, where its coins say so.

    `inside` is as in `Inserted`, before sampling. Coins are tossed at every step.
    """

    canary: Canary
    inside: Tensor
    period: int
    coins: Iterator[Coins]
    clip_norm: float

    def at(self, step: int, theta: Tensor) -> Inserted | None:
        """The canary that joins models `theta` [n, p] at `step`; to be called for each step."""
        coins, canary = next(self.coins), self.canary
        if step % self.period:
            return None
        if isinstance(canary, ChangingCanary):
            if canary.memoryless and not coins.any():
                return None
            canary = self._crafted(canary, step, theta, coins)
        elif coins.all():
            return self._everywhere
        return Inserted(canary, self.inside * torch.from_numpy(coins))

    def _crafted(
        self, canary: ChangingCanary, step: int, theta: Tensor, coins: Coins
    ) -> GradientCanary | SampleCanary:
        """The canary of this step: crafted for all models, or for those that may get it."""
        some = canary.memoryless and self.inside.dim() == 1 and not coins.all()
        place = torch.from_numpy(coins).nonzero()[:, 0].to(theta.device)
        rows = place if some else slice(None)
        crafted = canary.at(step, theta[rows].clone())
        bits = self.inside.shape[1] if self.inside.dim() > 1 else 1
        check_claim(crafted, theta.shape[1], self.clip_norm, bits)
        if not some or isinstance(crafted, SampleCanary) or crafted.direction.dim() == 1:
            return crafted
        whole = torch.zeros_like(theta)
        whole[rows] = crafted.direction
        return GradientCanary(whole)

    @functools.cached_property
    def _everywhere(self) -> Inserted:
        """The insertion where nothing is sampled; rows are looked up once for all steps."""
        assert not isinstance(self.canary, ChangingCanary)
        return Inserted(self.canary, self.inside)


def check_claim(canary: Canary, parameters: int, clip_norm: float, coins: int) -> None:
    """Raises SpecError for a canary that breaks the sensitivity of the claim.

    `coins`: the secret bits that each model has; every one stands for one example.
    """
    problem = ""
    if isinstance(canary, GradientCanary):
        shape = tuple(canary.direction.shape)
        fits = shape == (coins, parameters) if coins > 1 else shape[-1:] == (parameters,)
        if not fits:
            problem = (
                f"crafted a gradient of shape {shape} for {coins} secret bit{'s' * (coins > 1)}; "
                f"each bit must have one of the {parameters} parameters"
            )
        elif not (norm := _longest(canary.direction)) <= clip_norm * (1 + 1e-6):
            problem = (
                f"crafted a gradient of norm {norm:.6g}, above the clip norm {clip_norm:g}: the "
                "claim would not cover it"
            )
    elif isinstance(canary, SampleCanary):
        rows = len(canary.x)
        if rows != coins or len(canary.y) != rows:
            problem = (
                f"crafted {rows} examples with {len(canary.y)} labels for {coins} secret "
                f"bit{'s' * (coins > 1)}: together they may move the sum by {rows} clip norms, "
                "the claim covers one for each bit; craft one example with one label"
            )
        elif not (largest := float(canary.x.abs().max())) <= _LARGEST:
            problem = (
                f"crafted an example with an entry of {largest:.3g}, whose gradient has no norm in "
                f"float32; use at most {_LARGEST:g}"
            )
    if problem:
        raise SpecError("adversary.name", problem)


def _longest(directions: Tensor) -> float:
    """The largest norm of a row.

    By float64 or by float32: who scales by the latter is off by its rounding, 7e-6 in 200,000
    parameters.
    """
    if directions.is_sparse:
        sparse = directions.coalesce()
        squares = torch.zeros(len(directions), dtype=torch.float64, device=directions.device)
        squares.index_add_(0, sparse.indices()[0], sparse.values().double() ** 2)
        return float(squares.max().sqrt())
    norms = (torch.linalg.vector_norm(directions, dim=-1, dtype=kind)
             for kind in (None, torch.float64))  # fmt: skip
    return min(float(norm.max()) for norm in norms)
