"""Sessions: a training by DP-SGD against one adversary, under what its threat model lets it see.

A `FinalModelSession` shows where training ended, a `TrajectorySession` every step. A
`FrozenSession` takes all steps at θ_0, where the adversary chose the data so that nothing moves.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...adversaries.base import (
    Adversary,
    Canary,
    ChangingCanary,
    FinalModelAdversary,
    FrozenAdversary,
    GradientCanary,
    SampleCanary,
    TrajectoryAdversary,
    TrajectoryObserver,
    UpdateObserver,
)
from ...engines.packing.packed import PackedModel
from ...errors import SpecError
from ...seeds import derive
from ..base import Arrays, Checkpoints, Measured, ResumableSession, Session
from .checkpointing import PackCheckpoints
from .data_split import HeldOut
from .preparation import Shadows, load_shadows
from .public_view import PublicView
from .recipe import MEASURES
from .sampling import Sizes
from .training import DpSgdTraining

Scores = npt.NDArray[np.float64]
Members = npt.NDArray[np.bool_]
A = TypeVar("A", FinalModelAdversary[Any], TrajectoryAdversary[Any])
_START = "start"  # the name of θ_0 among stored arrays, where the adversary chooses it


def open_session(
    training: DpSgdTraining, adversary: Adversary, seed: int, prepared: tuple[Arrays, ...] = ()
) -> Session:
    """A session with the canary, or the shadow models, that were `prepared`.

    Where no canary was, it is crafted now.
    """
    if isinstance(adversary, FrozenAdversary):
        return FrozenSession.craft(training, adversary, seed)
    shadowed = None
    if (plan := adversary.shadow_plan) is not None:
        shadowed = load_shadows(training, plan, prepared)
    if shadowed is not None or not prepared:
        return _crafting_session(training, adversary, seed, shadowed)
    device = training.initial.device
    tensors = {n: torch.from_numpy(np.array(a)).to(device) for n, a in prepared[0].items()}
    if _START in tensors:
        training = training.starting(tensors.pop(_START))
    (kind,) = (k for k in adversary.stored_canaries if set(_fields(k)) == set(tensors))
    canary = kind(**tensors)
    training.check_claim(canary)
    session: Session = _kind_of_session(adversary)(training, adversary, canary)
    return session


def craft_canary(training: DpSgdTraining, adversary: Adversary, seed: int) -> Arrays:
    """Crafts a canary that is stored; returns its tensors by their names.

    Raises:
        SpecError: it is more than tensors.
    """
    session = _crafting_session(training, adversary, seed, None)
    canary = session.canary
    if isinstance(canary, ChangingCanary) or type(canary) not in adversary.stored_canaries:
        raise SpecError(
            "adversary.name",
            f"crafts a {type(canary).__name__}, which is more than tensors; leave out crafted_once",
        )
    tensors = {name: getattr(canary, name) for name in _fields(type(canary))}
    if session.training is not training:
        tensors[_START] = session.training.initial
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def _crafting_session(
    training: DpSgdTraining, adversary: Adversary, seed: int, shadowed: Shadows | None
) -> FinalModelSession | TrajectorySession:
    session: FinalModelSession | TrajectorySession
    session = _kind_of_session(adversary).craft(training, adversary, seed, shadowed)
    return session


def _kind_of_session(adversary: Adversary) -> Any:
    if isinstance(adversary, FinalModelAdversary):
        return FinalModelSession
    if isinstance(adversary, TrajectoryAdversary):
        return TrajectorySession
    raise TypeError(f"{adversary.name} passed no check() of this mechanism")


def _fields(kind: type[GradientCanary | SampleCanary]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


@dataclasses.dataclass(frozen=True)
class _FinalModels:
    """Final models as a hidden-state adversary sees them: copies, of which it may make anything."""

    initial: Tensor
    final: Tensor
    model: PackedModel

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model.losses(self.final, x, y)

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model.clipped_sums(self.final, x, y, math.inf)


@dataclasses.dataclass(frozen=True)
class _MovingSession(ResumableSession, Generic[A]):
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
            start = adversary.begin(PublicView(training, shadowed), rng)
            training = training if start is None else training.starting(start)
        canary = adversary.craft(PublicView(training, shadowed), rng)
        training.check_claim(canary, adversary.canaries * (2 if adversary.replaces else 1))
        return cls(training, adversary, canary, shadowed)

    @abstractmethod
    def run(
        self,
        members: Members,
        seed: int,
        horizons: tuple[int, ...],
        checkpoints: Checkpoints | None = None,
    ) -> Scores | Measured:
        """Trains a pack; see `Session.run`."""

    def _record(self, members: int, horizons: int, saved: PackCheckpoints) -> _Record:
        training = self.training
        measured = None if training.held_out is None else (training.model, training.held_out)
        return _Record((members, horizons), self.adversary.canaries, measured, saved.recorded)

    def _bits(self, members: Members) -> Tensor:
        """Secret bits [n], or [n, m] where each of n trainings has m canaries."""
        bits, canaries = torch.from_numpy(members), self.adversary.canaries
        return (bits if canaries == 1 else bits.view(-1, canaries)).to(self.training.initial)

    def _inside(self, bits: Tensor) -> Tensor:
        """What is inserted for these bits; both of each pair where canaries replace."""
        if not self.adversary.replaces:
            return bits
        rows = bits.view(len(bits), -1)
        return torch.cat([rows, 1 - rows], 1)

    def _inserted_canary(self) -> Canary:
        """A copy of the canary that scorers hold; a changing one is called anew anyway."""
        if isinstance(self.canary, GradientCanary):
            return GradientCanary(self.canary.direction.clone())
        if isinstance(self.canary, SampleCanary):
            return SampleCanary(self.canary.x.clone(), self.canary.y.clone())
        return self.canary


class FinalModelSession(_MovingSession[FinalModelAdversary[Any]]):
    """DP-SGD against an adversary that sees only where training ended.

    Every horizon is judged alone, from θ_0 and θ there.
    """

    def run(
        self,
        members: Members,
        seed: int,
        horizons: tuple[int, ...],
        checkpoints: Checkpoints | None = None,
    ) -> Scores | Measured:
        training, adversary = self.training, self.adversary
        saved = PackCheckpoints(checkpoints, training.trainer, self.canary)
        record = self._record(len(members), len(horizons), saved)
        column = {step: i for i, step in enumerate(horizons)}
        bits, canary = self._bits(members), self._inserted_canary()
        path = training.run(self._inside(bits), seed, canary, adversary.period, checkpoints=saved)
        for step, theta in enumerate(path, start=saved.step):
            if step == saved.step:
                continue
            if step in column:
                observed = _FinalModels(training.initial.clone(), theta.clone(), training.model)
                scores = adversary.score(self.canary, observed)
                record.put(column[step], _checked(scores, bits, adversary), theta)
            saved.offer(step, theta, record.arrays)
            if step == horizons[-1]:
                break
        return record.result


class TrajectorySession(_MovingSession[TrajectoryAdversary[Any]]):
    """DP-SGD against an adversary that watches every step.

    A score at a horizon is that of the steps up to there. The observer gets copies: two of θ a
    step cost 1 % of a step of `fcnn`, less of others.
    """

    def run(
        self,
        members: Members,
        seed: int,
        horizons: tuple[int, ...],
        checkpoints: Checkpoints | None = None,
    ) -> Scores | Measured:
        training, adversary = self.training, self.adversary
        bits, public = self._bits(members), PublicView(training, self.shadowed)
        observer = adversary.observer(self.canary, public, len(bits))
        saved = PackCheckpoints(checkpoints, training.trainer, self.canary, observer)
        record = self._record(len(members), len(horizons), saved)
        column = {step: i for i, step in enumerate(horizons)}
        canary, inside = self._inserted_canary(), self._inside(bits)
        watch = observer.see_update if isinstance(observer, UpdateObserver) else None
        path = training.run(inside, seed, canary, adversary.period, watch, saved)
        watcher = observer if isinstance(observer, TrajectoryObserver) else None
        for step, theta in _watched(path, watcher, saved.step):
            if step in column:
                record.put(column[step], _checked(observer.scores(), bits, observer), theta)
            saved.offer(step, theta, record.arrays)
            if step == horizons[-1]:
                break
        return record.result


def _watched(
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


def _checked(scores: Any, bits: Tensor, scorer: object) -> Scores:
    """A number for each bit, float64 [n m]; numbers that would be spread over models are none."""
    if not isinstance(scores, Tensor) or scores.shape != bits.shape:
        shape = f"shape {tuple(scores.shape)}" if hasattr(scores, "shape") else f"{scores!r:.40}"
        each = "canary" if bits.dim() > 1 else "model"
        raise SpecError(
            "adversary.name",
            f"the scores of {type(scorer).__name__} are a {type(scores).__name__} of {shape}; they "
            f"must be a Tensor of shape {tuple(bits.shape)}, one for each {each}",
        )
    flat: Scores = scores.double().flatten().cpu().numpy()
    return flat


class _Record:
    """Scores of a pack at its horizons and, with `held_out`, the utility of its models there.

    Float64 [n, horizons] each; NaN where training has not come yet. `arrays` has them by name, and
    goes on from those that are `saved`. `canaries` scores belong to each model.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        canaries: int,
        measured: tuple[PackedModel, HeldOut] | None,
        saved: Mapping[str, Scores],
    ) -> None:
        self._canaries, self._measured = canaries, measured
        names = ("scores", *(MEASURES if measured is not None else ()))
        self.arrays = {name: np.full(shape, np.nan) for name in names}
        for name, values in self.arrays.items():
            if name in saved:
                values[:] = saved[name]

    def put(self, column: int, scores: Scores, theta: Tensor) -> None:
        """Keeps scores [n] at horizon number `column`, and measures models, [n / canaries, p]."""
        self.arrays["scores"][:, column] = scores
        if self._measured is not None:
            model, held_out = self._measured
            utility = held_out.measured(model, theta)
            for name, values in zip(MEASURES, utility, strict=True):
                self.arrays[name][:, column] = np.repeat(values, self._canaries)

    @property
    def result(self) -> Scores | Measured:
        """What the pack came to: the scores alone where nothing else was measured."""
        if self._measured is None:
            return self.arrays["scores"]
        utility = {name: values for name, values in self.arrays.items() if name != "scores"}
        return Measured(self.arrays["scores"], utility)


@dataclasses.dataclass(frozen=True)
class FrozenSession:
    """DP-SGD with a learning rate of zero: every step is taken at θ_0.

    Of what step t releases, Σ_j clip(g_j, C) + b c_t g* + Z_t, only the part along g* depends on
    the bit, and there the noise is N(0, σ²C²) whatever the model. The others' sum is the same in
    every trial: one clipped sum per batch serves all of them. So a trial takes T normal numbers,
    and a million trials take minutes. The noise is drawn along g* only; that the engine's own is
    as claimed is what attacks on trainings that move are for.

    `others`: the part of the others' sums along the canary that scores do not take away, in units
    of C, float64 [T].
    """

    training: DpSgdTraining
    adversary: FrozenAdversary
    others: Scores

    @classmethod
    def craft(cls, training: DpSgdTraining, adversary: FrozenAdversary, seed: int) -> FrozenSession:
        """Has the records labelled, and sums up every batch once."""
        canary = adversary.craft(PublicView(training), np.random.default_rng(seed))
        training.check_claim(canary)
        theta, others = training.initial[None], np.zeros(training.recipe.steps)
        labels = adversary.relabel(lambda: training.model.outputs(theta, training.x)[0])
        if labels is not None:
            unit = canary.direction / training.clip_norm**2
            sums = (
                training.sums(theta, training.x[batch], labels[batch], training.clip_norm)
                for batch in training.batches
            )
            others = np.array([float(total[0] @ unit) for total in sums])
        return cls(training, adversary, others)

    def run(self, members: Members, seed: int, horizons: tuple[int, ...]) -> Scores:
        """Draws what each step shows along the canary; scores float64 [n, horizons]."""
        recipe, adversary, public = self.training.recipe, self.adversary, PublicView(self.training)
        noise = np.random.default_rng(derive("frozen", seed))
        tosses = np.random.default_rng(derive("coins", seed))
        sizes = Sizes(self.training.examples, recipe.batch_size)
        coins = recipe.sampling.coins(sizes, (len(members),), tosses)
        total = np.zeros(len(members))
        scores, column = np.empty((len(members), len(horizons))), 0
        for step in range(1, horizons[-1] + 1):
            inside = next(coins) & members
            if step % adversary.period == 0:
                along = recipe.noise * noise.standard_normal(len(members))
                along += inside + self.others[step - 1]
                total += adversary.step_score(torch.from_numpy(along), public).numpy()
            if step == horizons[column]:
                scores[:, column] = total
                column += 1
        return scores
