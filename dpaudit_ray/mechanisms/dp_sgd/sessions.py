"""A pack of trainings against one adversary, under what its threat model lets it see."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...adversaries.base import (
    Adversary,
    Canary,
    FinalModelAdversary,
    GradientCanary,
    SampleCanary,
    TrajectoryAdversary,
    TrajectoryObserver,
    UpdateObserver,
)
from ...engines.packing.packed import PackedModel
from ...errors import SpecError
from ..base import Checkpoints, Measured
from .keeping import Kept
from .knowledge import Known
from .shadowing import Shadows
from .training import DpSgdTraining
from .utility import Record

Scores = npt.NDArray[np.float64]
A = TypeVar("A", FinalModelAdversary[Any], TrajectoryAdversary[Any])


@dataclasses.dataclass(frozen=True)
class _Released:
    """Final models as a hidden-state adversary sees them: copies, of which it may make anything."""

    initial: Tensor
    final: Tensor
    model: PackedModel

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """Loss of every final model on examples x [m, ...], y [m]: float [n, m]."""
        return self.model.losses(self.final, x, y)

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of the summed loss of these examples under every final model, float [n, p]."""
        return self.model.clipped_sums(self.final, x, y, math.inf)


@dataclasses.dataclass(frozen=True)
class _Crafted(ABC, Generic[A]):
    """DP-SGD against one adversary, whose canary is crafted."""

    training: DpSgdTraining
    adversary: A
    canary: Canary
    shadowed: Shadows | None = None

    @classmethod
    def craft(
        cls, training: DpSgdTraining, adversary: A, seed: int, shadowed: Shadows | None = None
    ) -> Self:
        """Crafts the canary; refuses one that breaks the sensitivity of the claim."""
        rng = np.random.default_rng(seed)
        if isinstance(adversary, FinalModelAdversary):
            begin = adversary.begin(Known(training, shadowed), rng)
            training = training if begin is None else training.starting(begin)
        canary = adversary.craft(Known(training, shadowed), rng)
        training.check_claim(canary, adversary.canaries * (2 if adversary.replaces else 1))
        return cls(training, adversary, canary, shadowed)

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> Scores | Measured:
        """See `Session.run`."""
        return self.run_on(members, seed, horizons, None)

    def record(self, shape: tuple[int, int], kept: Kept) -> Record:
        """Of a pack of `shape`, [n, horizons], as far as it was `kept`."""
        training = self.training
        measured = None if training.held_out is None else (training.model, training.held_out)
        return Record(shape, self.adversary.canaries, measured, kept.known)

    @abstractmethod
    def run_on(
        self,
        members: npt.NDArray[np.bool_],
        seed: int,
        horizons: tuple[int, ...],
        checkpoints: Checkpoints | None,
    ) -> Scores | Measured:
        """See `LongSession`."""


class FinalModelSession(_Crafted[FinalModelAdversary[Any]]):
    """DP-SGD against an adversary that sees only where training ended."""

    def run_on(
        self,
        members: npt.NDArray[np.bool_],
        seed: int,
        horizons: tuple[int, ...],
        checkpoints: Checkpoints | None,
    ) -> Scores | Measured:
        """See `LongSession`. Every horizon is judged alone, from θ_0 and θ there."""
        training, kept = self.training, Kept(checkpoints, self.training.by, self.canary)
        inside = _coins(members, self.adversary.canaries).to(training.initial)
        record = self.record((len(members), len(horizons)), kept)
        column = {step: i for i, step in enumerate(horizons)}
        own = _copied(self.canary)
        placed = _placed(inside, self.adversary)
        path = training.run(placed, seed, own, self.adversary.period, kept=kept)
        for step, theta in enumerate(path, start=kept.step):
            if step == kept.step:
                continue
            if step in column:
                released = _Released(training.initial.clone(), theta.clone(), training.model)
                observed = self.adversary.score(self.canary, released)
                record.put(column[step], _checked(observed, inside, self.adversary), theta)
            kept.offer(step, theta, record.arrays)
            if step == horizons[-1]:
                break
        return record.result


class TrajectorySession(_Crafted[TrajectoryAdversary[Any]]):
    """DP-SGD against an adversary that watches every step."""

    def run_on(
        self,
        members: npt.NDArray[np.bool_],
        seed: int,
        horizons: tuple[int, ...],
        checkpoints: Checkpoints | None,
    ) -> Scores | Measured:
        """See `LongSession`. A score at a horizon is that of the steps up to there.

        The observer gets copies. Two of θ a step cost 1 % of a step of `fcnn`, less of others.
        """
        training = self.training
        inside = _coins(members, self.adversary.canaries).to(training.initial)
        known = Known(training, self.shadowed)
        observer = self.adversary.observer(self.canary, known, len(inside))
        kept = Kept(checkpoints, training.by, self.canary, observer)
        record = self.record((len(members), len(horizons)), kept)
        column = {step: i for i, step in enumerate(horizons)}
        own = _copied(self.canary)
        watch = observer.see_update if isinstance(observer, UpdateObserver) else None
        placed = _placed(inside, self.adversary)
        path = training.run(placed, seed, own, self.adversary.period, watch, kept)
        seeing = observer if isinstance(observer, TrajectoryObserver) else None
        for step, theta in _seen(path, seeing, kept.step):
            if step in column:
                record.put(column[step], _checked(observer.scores(), inside, observer), theta)
            kept.offer(step, theta, record.arrays)
            if step == horizons[-1]:
                break
        return record.result


def _seen(
    path: Iterator[Tensor], observer: TrajectoryObserver | None, start: int
) -> Iterator[tuple[int, Tensor]]:
    """Walks `path` from after step `start` on; yields each step and θ once it was seen."""
    last = next(path).clone()
    before, after = torch.empty_like(last), torch.empty_like(last)
    for step, theta in enumerate(path, start=start + 1):
        if observer is not None:
            observer.see(step, before.copy_(last), after.copy_(theta))
            last.copy_(theta)
        yield step, theta


def _copied(canary: Canary) -> Canary:
    """What is inserted, apart from what scorers hold. A changing canary is asked again anyway."""
    if isinstance(canary, GradientCanary):
        return GradientCanary(canary.direction.clone())
    if isinstance(canary, SampleCanary):
        return SampleCanary(canary.x.clone(), canary.y.clone())
    return canary


def _coins(members: npt.NDArray[np.bool_], canaries: int) -> Tensor:
    """[n], or [n, m] where each of n trainings has m canaries."""
    bits = torch.from_numpy(members)
    return bits if canaries == 1 else bits.view(-1, canaries)


def _placed(inside: Tensor, adversary: Adversary) -> Tensor:
    """What is inserted where the bits are `inside`; both of each pair where canaries replace."""
    if not adversary.replaces:
        return inside
    each = inside.view(len(inside), -1)
    return torch.cat([each, 1 - each], 1)


def _checked(scores: Any, inside: Tensor, whose: object) -> Scores:
    """A number for each bit, float64 [n m]; numbers that would be spread over models are none."""
    if not isinstance(scores, Tensor) or scores.shape != inside.shape:
        shape = f"shape {tuple(scores.shape)}" if hasattr(scores, "shape") else f"{scores!r:.40}"
        each = "canary" if inside.dim() > 1 else "model"
        raise SpecError(
            "adversary.name",
            f"the scores of {type(whose).__name__} are a {type(scores).__name__} of {shape}; they "
            f"must be a Tensor of shape {tuple(inside.shape)}, one for each {each}",
        )
    found: Scores = scores.double().flatten().cpu().numpy()
    return found
