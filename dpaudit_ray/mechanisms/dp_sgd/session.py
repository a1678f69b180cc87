"""Sessions: a training by DP-SGD against one adversary, and what it prepares before any trial."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ...adversaries.base import (
    Adversary,
    Canary,
    CanaryAdversary,
    ChangingCanary,
    FrozenAdversary,
    SampleCanary,
    ShadowPlan,
    TrajectoryObserver,
    UpdateObserver,
)
from ...engines.packing.packed import PackedModel
from ...engines.packing.samplewise import Samplewise, placed
from ...engines.rules.base import trained
from ...errors import SpecError
from ...seeds import derive
from ..base import Arrays, Checkpoints, Measured, Members, ResumableSession, Scores, Session
from .checkpointing import PackCheckpoints
from .steps import check_apart
from .training import DpSgdTraining
from .updates import Constant

Values = dict[str, Tensor]  # parameters, by their names
_START = "start"  # the name of θ_0 among stored arrays, where the adversary chooses it
_NUMBERS = 1 << 24  # parameters of the models that are computed at once: 64 MiB of float32
_TOLERANCE = 1e-3  # how far torch.func may differ from autograd, by the scale of the gradient


class PublicView:
    """What `PublicKnowledge` grants, and describes: all as copies, to work on in place.

    Gradients of many models, each on an example of its own, go by `torch.func`. A module may reach
    parameters where `functional_call` does not put others, and then says nothing: so the first
    gradient is held against autograd on the module itself.
    """

    def __init__(self, training: DpSgdTraining) -> None:
        recipe, self._training, self._checked = training.recipe, training, False
        self.clip_norm, self.noise_multiplier = recipe.clip_norm, recipe.noise
        self.batch_size, self.rate = recipe.batch_size, recipe.rate
        self.classes, self.examples = training.classes, training.examples
        self.example, self.batch = training.example, training.batch
        self.losses, self.gradients = training.model.losses, training.sums
        self.simulate = training.simulate
        self.sample_rate = recipe.sampling.rate(training.sizes)

    @property
    def initial(self) -> Tensor:
        return self._training.initial.clone()

    @property
    def shadows(self) -> Tensor | None:
        shadows = self._training.shadows
        return None if shadows is None else shadows.clone()

    @property
    def outside(self) -> tuple[Tensor, Tensor] | None:
        records = self._training.reserved
        return None if records is None else (records[0].clone(), records[1].clone())

    def pretrained(self, steps: int, seed: int) -> Tensor:
        if (records := self.outside) is None:
            raise SpecError("mechanism.reserved", "is needed to pretrain on; give a share")
        recipe = self._training.recipe.model_copy(update={"steps": steps, "schedule": Constant()})
        elsewhere = dataclasses.replace(self._training, recipe=recipe).elsewhere(*records, seed)
        *_, last = elsewhere.simulate(1, noisy=False, seed=seed)
        return last[0]

    def input_gradient(
        self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        _check_floating(x)
        module, total = self._training.module, torch.zeros_like(x)
        factors = [1.0] * len(theta) if weights is None else weights
        for row, weight in zip(theta, factors, strict=True):
            with placed(module, row), torch.enable_grad():
                moved = x.clone().requires_grad_()
                loss = self._training.model.loss(module(moved), y).sum()
                total += weight * torch.autograd.grad(loss, moved)[0]
        return total / len(theta) if weights is None else total

    def own_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return self._of_each_model(self._gradient, theta, x, y)

    def look_ahead(
        self, theta: Tensor, x: Tensor, y: Tensor, query: SampleCanary, rate: float
    ) -> Tensor:
        """By double back-propagation."""
        _check_floating(x)

        def slope(row: Tensor, x: Tensor, y: Tensor) -> Tensor:
            values = self._named(row)

            def later(x: Tensor) -> Tensor:
                first: Values = grad(self._loss)(values, x, y)
                stepped = {name: value - rate * first[name] for name, value in values.items()}
                return self._loss(stepped, query.x[0], query.y[0])

            return cast(Tensor, grad(later)(x))

        return self._of_each_model(slope, theta, x, y)

    def _of_each_model(
        self, function: Callable[..., Tensor], theta: Tensor, x: Tensor, y: Tensor
    ) -> Tensor:
        """Calls `function` of θ [p], x [...] and y [] for all models, in small enough groups."""
        if not self._checked:
            self._check(x[:1], y[:1])
            self._checked = True
        size = max(1, _NUMBERS // theta.shape[1])
        parts = zip(*(torch.split(rows, size) for rows in (theta, x, y)), strict=True)
        return torch.cat([vmap(function)(*part) for part in parts]).detach()

    def _check(self, x: Tensor, y: Tensor) -> None:
        module = self._training.module
        row = nn.utils.parameters_to_vector(trained(module).values()).detach()
        try:
            mapped = vmap(self._gradient)(row[None], x, y)[0].detach()
            alone = Samplewise(module, self._training.model.loss).gradients(row, x, y)[0]
            right = float((mapped - alone).abs().max()) <= _TOLERANCE * float(alone.abs().max())
        except Exception:  # noqa: BLE001 (a user's module may raise anything under vmap)
            right = False
        if not right:
            problem = f"crafts by torch.func, which does not run {type(module).__name__} as it is"
            raise SpecError("adversary.name", f"{problem}; use static-poison")

    def _gradient(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        gradient: Values = grad(self._loss)(self._named(row), x, y)
        return torch.cat([part.flatten() for part in gradient.values()])

    def _named(self, row: Tensor) -> Values:
        named = trained(self._training.module)
        parts = torch.split(row, [p.numel() for p in named.values()])
        return {k: part.view(p.shape) for (k, p), part in zip(named.items(), parts, strict=True)}

    def _loss(self, values: Values, x: Tensor, y: Tensor) -> Tensor:
        # Torch does not put back what it ties in a layer that a module holds twice.
        inputs = (x[None].clone(),)
        outputs = functional_call(self._training.module, values, inputs, tie_weights=False)
        return self._training.model.loss(outputs, y[None]).sum()


def _check_floating(x: Tensor) -> None:
    if not x.is_floating_point():
        problem = "crafts by gradients, but the network takes whole numbers; use biased-dimension"
        raise SpecError("adversary.name", problem)


def open_session(
    training: DpSgdTraining, adversary: Adversary, seed: int, prepared: tuple[Arrays, ...] = ()
) -> Session:
    """A session with the `prepared` canary or shadows; crafts a canary that is not."""
    if adversary.frozen:
        return FrozenSession.craft(training, cast(FrozenAdversary, adversary), seed)
    attack = cast(CanaryAdversary[Any], adversary)
    if (plan := adversary.shadow_plan) is not None:
        theta = np.concatenate([part["theta"] for part in prepared])
        training = dataclasses.replace(
            training,
            shadows=torch.from_numpy(theta).to(training.initial),
            reserved=_shadow_records(training, plan),
        )
    elif prepared:
        device = training.initial.device
        tensors = {n: torch.from_numpy(np.array(a)).to(device) for n, a in prepared[0].items()}
        if _START in tensors:
            training = training.starting(tensors.pop(_START))
        (kind,) = (
            kind
            for kind in adversary.stored_canaries
            if {field.name for field in dataclasses.fields(kind)} == set(tensors)
        )
        canary = kind(**tensors)
        training.check_claim(canary)
        return DpSgdSession(training, attack, canary)
    return DpSgdSession.craft(training, attack, seed)


def craft_canary(training: DpSgdTraining, adversary: Adversary, seed: int) -> Arrays:
    """Crafts a canary; returns its tensors by name. Raises SpecError where it has more."""
    session = DpSgdSession.craft(training, cast(CanaryAdversary[Any], adversary), seed)
    canary = session.canary
    if isinstance(canary, ChangingCanary) or type(canary) not in adversary.stored_canaries:
        problem = f"crafts a {type(canary).__name__}, which is more than tensors"
        raise SpecError("adversary.name", f"{problem}; leave out crafted_once")
    tensors = {field.name: getattr(canary, field.name) for field in dataclasses.fields(canary)}
    if session.training is not training:
        tensors[_START] = session.training.initial
    return {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}


def train_shadows(training: DpSgdTraining, plan: ShadowPlan, part: int, seed: int) -> Arrays:
    """Trains one pack of shadows; returns their final models: theta, float [at most 16, p]."""
    elsewhere = training.elsewhere(*_shadow_records(training, plan), derive("shadow batches", seed))
    *_, last = elsewhere.run(training.initial.new_zeros(plan.models_of(part)), seed, None, 1)
    return {"theta": last.cpu().numpy().copy()}


def _shadow_records(training: DpSgdTraining, plan: ShadowPlan) -> tuple[Tensor, Tensor]:
    if plan.data is not None:
        return training.loaded(plan.data.load())
    if training.reserved is None:
        raise SpecError(
            "mechanism.reserved", "is needed by this adversary's shadow models; give a share"
        )
    return training.reserved


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
class DpSgdSession(ResumableSession):
    """DP-SGD against one adversary, whose canary is crafted.

    Without an observer it sees θ_0 and θ at a horizon, each judged alone; an observer is told of
    every step, and its scores at a horizon are of the steps up to there.
    """

    training: DpSgdTraining
    adversary: CanaryAdversary[Any]
    canary: Canary

    @classmethod
    def craft(cls, training: DpSgdTraining, adversary: CanaryAdversary[Any], seed: int) -> Self:
        """Crafts the canary; refuses one that breaks the sensitivity of the claim."""
        rng = np.random.default_rng(seed)
        if (start := adversary.begin(PublicView(training), rng)) is not None:
            training = training.starting(start)
        canary = adversary.craft(PublicView(training), rng)
        training.check_claim(canary, adversary.canaries * (2 if adversary.replaces else 1))
        if adversary.apart:
            check_apart(canary, adversary.canaries)
        return cls(training, adversary, canary)

    def run(
        self,
        members: Members,
        seed: int,
        horizons: tuple[int, ...],
        checkpoints: Checkpoints | None = None,
    ) -> Scores | Measured:
        training, adversary, canaries = self.training, self.adversary, self.adversary.canaries
        bits = torch.from_numpy(members).to(training.initial)
        bits = bits if canaries == 1 else bits.view(-1, canaries)
        inside = bits
        if adversary.replaces:  # one of each pair is always in
            rows = bits.view(len(bits), -1)
            inside = torch.cat([rows, 1 - rows], 1)
        inserted = self.canary
        if not isinstance(inserted, ChangingCanary):  # a copy of what scorers hold
            tensors: Any = {k: v.clone() for k, v in vars(inserted).items() if torch.is_tensor(v)}
            inserted = dataclasses.replace(inserted, **tensors)

        observer = adversary.observer(self.canary, PublicView(training), len(bits))
        trainer = f"{training.recipe.engine} on {training.initial.device.type}"
        saved = PackCheckpoints(checkpoints, trainer, self.canary, observer)
        names = ("scores", *(() if training.held_out is None else training.recipe.measures))
        fresh = np.full((len(members), len(horizons)), np.nan)  # where training has not come yet
        record = {name: np.array(saved.recorded.get(name, fresh)) for name in names}
        watch = observer.see_update if isinstance(observer, UpdateObserver) else None
        path = training.run(inside, seed, inserted, adversary.period, watch, saved)
        see = observer.see if isinstance(observer, TrajectoryObserver) else None
        before = next(path).clone()
        for step, theta in enumerate(path, start=saved.step + 1):
            if see is not None:  # in copies
                see(step, before, theta.clone())
                before = theta.clone()
            if step in horizons:
                if observer is None:
                    final = _FinalModels(training.initial.clone(), theta.clone(), training.model)
                    scores = adversary.score(self.canary, final)
                else:
                    scores = observer.scores()
                values = [_checked(scores, bits, observer or adversary)]
                if len(names) > 1:
                    values += [np.repeat(row, canaries) for row in training.measured(theta)]
                for name, column in zip(names, values, strict=True):
                    record[name][:, horizons.index(step)] = column
            saved.offer(step, theta, record)
            if step == horizons[-1]:
                break
        recorded = record.pop("scores")
        return Measured(recorded, record) if record else recorded


def _checked(scores: Any, bits: Tensor, scorer: object) -> Scores:
    """A number for each bit, float64 [n m]; numbers that would be spread over models are none."""
    if isinstance(scores, Tensor) and scores.shape == bits.shape:
        return cast(Scores, scores.double().flatten().cpu().numpy())
    shape = f"shape {tuple(scores.shape)}" if hasattr(scores, "shape") else f"{scores!r:.40}"
    given = f"the scores of {type(scorer).__name__} are a {type(scores).__name__} of {shape}"
    wanted = f"shape {tuple(bits.shape)}, one for each {'canary' if bits.dim() > 1 else 'model'}"
    raise SpecError("adversary.name", f"{given}; they must be a Tensor of {wanted}")


@dataclasses.dataclass(frozen=True)
class FrozenSession:
    """DP-SGD with a learning rate of zero: every step is taken at θ_0.

    Of what step t releases, Σ_j clip(g_j, C) + b c_t g* + Z_t, only the part along g* depends on
    the bit, and there the noise is N(0, σ²C²) whatever the model. The others' sum is the same in
    every trial, so a trial takes T normal numbers. The noise is drawn along g* only; that the
    engine's own is as claimed is what attacks on trainings that move are for.

    `others`: the part of the others' sums along the canary that scores do not take away, in units
    of C, float64 [T].
    """

    training: DpSgdTraining
    adversary: FrozenAdversary
    others: Scores

    @classmethod
    def craft(cls, training: DpSgdTraining, adversary: FrozenAdversary, seed: int) -> Self:
        """Has the records labelled, and sums up every batch once."""
        canary = adversary.craft(PublicView(training), np.random.default_rng(seed))
        training.check_claim(canary)
        theta, others = training.initial[None], np.zeros(training.recipe.steps)
        labels = adversary.relabel(lambda: training.model.outputs(theta, training.x)[0])
        if labels is not None:
            unit, clip_norm = canary.direction / training.clip_norm**2, training.clip_norm
            for step, batch in enumerate(training.batches):
                total = training.sums(theta, training.x[batch], labels[batch], clip_norm)
                others[step] = float(total[0] @ unit)
        return cls(training, adversary, others)

    def run(self, members: Members, seed: int, horizons: tuple[int, ...]) -> Scores:
        recipe, adversary, public = self.training.recipe, self.adversary, PublicView(self.training)
        noise = np.random.default_rng(derive("frozen", seed))
        tosses = np.random.default_rng(derive("coins", seed))
        coins = recipe.sampling.coins(self.training.sizes, (len(members),), tosses)
        total, scores = np.zeros(len(members)), []
        for step in range(1, horizons[-1] + 1):
            inside = next(coins) & members
            if step % adversary.period == 0:
                along = recipe.noise * noise.standard_normal(len(members))
                along += inside + self.others[step - 1]
                total += adversary.step_score(torch.from_numpy(along), public).numpy()
            if step in horizons:
                scores.append(total.copy())
        return np.stack(scores, axis=1)
