"""Sessions of DP-SGD against one adversary, and the parts of a preparation before any trial."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self, cast

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from ...adversaries.base import (
    Adversary,
    Canary,
    CanaryAdversary,
    ChangingCanary,
    FrozenAdversary,
    Observer,
    SampleCanary,
    ShadowPlan,
    TrajectoryObserver,
    UpdateObserver,
)
from ...engines.packing.memory import slices
from ...engines.packing.packed import PackedModel
from ...engines.packing.samplewise import Samplewise, with_parameters
from ...engines.rules.base import flat_parameters, parameters_of
from ...errors import SpecError
from ...seeds import derive
from ..base import (
    Arrays,
    Checkpoints,
    Horizons,
    Measured,
    Members,
    ResumableSession,
    Scores,
    Session,
)
from .checkpointing import PackCheckpoints
from .noise import Matrix
from .steps import check_apart, tensor
from .training import DpSgdTraining, Examples
from .units import GroupedModel
from .updates import Constant

_START = "start"  # name of θ_0 among stored arrays, if the adversary chose it
_MOST_NUMBERS = 1 << 24  # parameters of all models of a call of `vmap`: 64 MiB of float32
# Difference of torch.func's gradient from autograd's, relative to the largest entry.
_TOLERANCE = 1e-3


class PublicView:
    """Implements `PublicKnowledge` for a training; adversaries get copies, to work on in place.

    Gradients of many models, each on another example, are computed by `torch.func`. A module
    may reach its parameters in ways that `functional_call` does not replace, which raises nothing.
    So the first gradient is compared with autograd on the module itself.
    """

    def __init__(self, training: DpSgdTraining) -> None:
        """Provides the public part of a training under the names of `PublicKnowledge`."""
        recipe = training.recipe
        self._training = training
        self._samplewise = Samplewise(training.module, training.model.loss)
        self._is_checked = False
        self.clip_norm = recipe.clip_norm
        self.noise_multiplier = recipe.deviation
        self.batch_size = recipe.batch_size
        self.rate = recipe.rate
        self.classes = training.classes
        self.examples = training.examples
        self.example = training.example
        self.batch = training.batch
        self.losses = training.model.losses
        self.gradients = training.sums
        self.simulate = training.simulate
        self.offset = recipe.noise.offset
        self.sample_rate = recipe.sampling.rate(training.sizes)

    @property
    def strategy(self) -> Matrix | None:
        recipe = self._training.recipe
        return recipe.noise.strategy(recipe.steps)

    @property
    def initial(self) -> Tensor:
        return self._training.initial.clone()

    @property
    def shadows(self) -> Tensor | None:
        shadows = self._training.shadows
        return None if shadows is None else shadows.clone()

    @property
    def outside(self) -> Examples | None:
        """Copies of the reserved examples, x and y; None if no examples are reserved."""
        if self._training.reserved is None:
            return None
        x, y = self._training.reserved
        return x.clone(), y.clone()

    def pretrained(self, steps: int, seed: int) -> Tensor:
        """Trains on the reserved examples for some steps without noise; returns the parameters.

        The learning rate is constant. `seed` determines the initial parameters and the batches.

        Raises:
            SpecError: the mechanism reserves no examples.
        """
        if self.outside is None:
            raise SpecError("mechanism.reserved", "is needed to pretrain on; give a share")
        options = {"steps": steps, "schedule": Constant()}
        recipe = self._training.recipe.model_copy(update=options)
        training = replace(self._training, recipe=recipe)
        public_training = training.elsewhere(*self.outside, seed)
        *_, final_models = public_training.simulate(1, noisy=False, seed=seed)
        return final_models[0]

    def input_gradient(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Implements `PublicKnowledge.input_gradient`, one model at a time, by autograd."""
        _check_floating(x)
        module = self._training.module
        total = torch.zeros_like(x)
        factors = [1.0] * len(theta) if weights is None else weights
        for parameters, factor in zip(theta, factors, strict=True):
            with with_parameters(module, parameters), torch.enable_grad():
                inputs = x.clone().requires_grad_()
                losses = self._training.model.loss(module(inputs), y)
                (gradient,) = torch.autograd.grad(losses.sum(), inputs)
            total += factor * gradient
        return total / len(theta) if weights is None else total

    def own_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Implements `PublicKnowledge.own_gradients`."""
        return self._map_models(self._gradient, theta, x, y)

    def look_ahead(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        query: SampleCanary,
        rate: float,
    ) -> Tensor:
        """Implements `PublicKnowledge.look_ahead`: differentiates through the step by torch.func.

        Arguments are those of `PublicKnowledge.look_ahead`.
        """
        _check_floating(x)

        def gradient_by_example(row: Tensor, example: Tensor, label: Tensor) -> Tensor:
            """Returns the gradient for model `row` [p], of the shape of its example [...]."""
            before = parameters_of(self._training.module, row)

            def query_loss(changed: Tensor) -> Tensor:
                """Returns the query's loss after a plain step of this model on (changed, label)."""
                gradients = grad(self._loss)(before, changed, label)
                after = {name: value - rate * gradients[name] for name, value in before.items()}
                return self._loss(after, query.x[0], query.y[0])

            return cast(Tensor, grad(query_loss)(example))

        return self._map_models(gradient_by_example, theta, x, y)

    def _map_models(
        self,
        function: Callable[..., Tensor],
        theta: Tensor,
        x: Tensor,
        y: Tensor,
    ) -> Tensor:
        """Calls a function for all models, by `vmap`; returns the joined results, [n, ...].

        Models are computed in groups that have at most `_MOST_NUMBERS` parameters together.

        Args:
            function: takes θ [p], x [...] and y [] of one model.
            theta: models, float [n, p].
            x: an example for each model, [n, ...].
            y: labels of these examples, [n].
        """
        if not self._is_checked:
            self._check_torch_func(x[:1], y[:1])
            self._is_checked = True
        most_models = max(1, _MOST_NUMBERS // theta.shape[1])
        results = [
            vmap(function)(theta[models], x[models], y[models])
            for models in slices(len(theta), most_models)
        ]
        return torch.cat(results).detach()

    def _check_torch_func(self, x: Tensor, y: Tensor) -> None:
        """Raises SpecError if torch.func and autograd differ on one example, x [1, ...], y [1]."""
        module = self._training.module
        row = flat_parameters(module)
        try:
            mapped = vmap(self._gradient)(row[None], x, y).detach()
            expected = self._samplewise.gradients(row, x, y)
            difference = float((mapped - expected).abs().max())
            is_right = difference <= _TOLERANCE * float(expected.abs().max())
        except Exception:  # noqa: BLE001 (a user's module may raise anything under vmap)
            is_right = False
        if not is_right:
            raise SpecError(
                "adversary.name",
                f"crafts by torch.func, which does not run {type(module).__name__} as it is; "
                "use static-poison",
            )

    def _gradient(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the gradient of one example at parameters `row` [p], float [p]."""
        parameters = parameters_of(self._training.module, row)
        gradients = grad(self._loss)(parameters, x, y)
        return torch.cat([part.flatten() for part in gradients.values()])

    def _loss(self, parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of example x [...] of class y []; a module may change only a copy."""
        return self._samplewise.example_loss(parameters, x.clone(), y)


def _check_floating(x: Tensor) -> None:
    """Raises SpecError if examples are tokens, which have no gradient."""
    if not x.is_floating_point():
        raise SpecError(
            "adversary.name",
            "crafts by gradients, but the network takes whole numbers; use biased-dimension",
        )


def open_session(
    training: DpSgdTraining,
    adversary: Adversary,
    seed: int,
    prepared: tuple[Arrays, ...] = (),
) -> Session:
    """Opens a session, with the canary as it was prepared, or crafted now.

    Args:
        training: the public part of the training.
        adversary: the adversary.
        seed: seed of the adversary's choices.
        prepared: the stored canary, or all packs of shadow models, with which the canary is
            crafted; empty if nothing is prepared.
    """
    if adversary.frozen:
        return FrozenSession.craft(training, cast(FrozenAdversary, adversary), seed)
    attack = cast(CanaryAdversary[Any], adversary)
    plan = adversary.shadow_plan
    if plan is None and prepared:
        return _with_stored_canary(training, attack, prepared[0])
    if plan is not None:
        theta = np.concatenate([part["theta"] for part in prepared])
        training = replace(
            training,
            shadows=torch.from_numpy(theta).to(training.initial),
            reserved=_shadow_records(training, plan),
        )
    return DpSgdSession.craft(training, attack, seed)


def _with_stored_canary(
    training: DpSgdTraining, adversary: CanaryAdversary[Any], stored: Arrays
) -> "DpSgdSession":
    """Opens a session with the arrays of `craft_canary`.

    Args:
        training: the public part of the training.
        adversary: the adversary that crafted the canary.
        stored: tensors of the canary by name, and θ_0 if the adversary chose it.
    """
    tensors = {name: tensor(array, training.initial.device) for name, array in stored.items()}
    if _START in tensors:
        training = training.starting(tensors.pop(_START))
    # The arrays are named by the fields of the canary's class, which are different for each class.
    classes = {frozenset(cls.__dataclass_fields__): cls for cls in adversary.stored_canaries}
    canary = classes[frozenset(tensors)](**tensors)
    training.check_claim(canary)
    return DpSgdSession(training, adversary, canary)


def craft_canary(training: DpSgdTraining, adversary: Adversary, seed: int) -> Arrays:
    """Crafts a canary and returns its tensors by name, with θ_0 if the adversary chooses it.

    Raises SpecError unless the canary's class is one of the adversary's `stored_canaries`.

    Args:
        training: the public part of the training.
        adversary: the adversary that crafts.
        seed: seed of its choices.
    """
    session = DpSgdSession.craft(training, cast(CanaryAdversary[Any], adversary), seed)
    canary = session.canary
    if type(canary) not in adversary.stored_canaries:
        raise SpecError(
            "adversary.name",
            f"crafts a {type(canary).__name__}, which is more than tensors; leave out crafted_once",
        )
    tensors = dict(vars(canary))
    if session.training is not training:  # the adversary chose where training starts
        tensors[_START] = session.training.initial
    return {name: values.detach().cpu().numpy() for name, values in tensors.items()}


def train_shadows(
    training: DpSgdTraining,
    plan: ShadowPlan,
    part: int,
    seed: int,
) -> Arrays:
    """Trains one pack of shadow models; returns them as "theta", float [at most 16, p].

    Args:
        training: the audited training; shadow models are trained with the same options.
        plan: the data and the number of shadow models.
        part: number of the pack, from 0.
        seed: seed of the pack.
    """
    x, y = _shadow_records(training, plan)
    shadow_training = training.elsewhere(x, y, derive("shadow batches", seed))
    canary_bits = training.initial.new_zeros(plan.models_of(part))
    *_, final_models = shadow_training.run(canary_bits, seed, canary=None, period=1)
    return {"theta": final_models.cpu().numpy().copy()}


def _shadow_records(training: DpSgdTraining, plan: ShadowPlan) -> Examples:
    """Returns the records to train shadow models on: those of the plan, or else reserved ones."""
    if plan.data is not None:
        return training.loaded(plan.data.load())
    if training.reserved is None:
        raise SpecError(
            "mechanism.reserved", "is needed by this adversary's shadow models; give a share"
        )
    return training.reserved


@dataclass(frozen=True)
class _FinalModels:
    """Final models as a hidden-state adversary gets them: copies, which it may change in place."""

    initial: Tensor
    final: Tensor
    model: PackedModel | GroupedModel

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model.losses(self.final, x, y)

    def gradients(self, x: Tensor, y: Tensor) -> Tensor:
        return self.model.clipped_sums(self.final, x, y, math.inf)


@dataclass(frozen=True)
class DpSgdSession(ResumableSession):
    """DP-SGD against one adversary, whose canary is crafted.

    An adversary without an observer gets θ_0 and θ at a recorded step, and each recorded step is
    judged separately. An observer gets every step; its scores at a recorded step are for all steps
    up to that one.
    """

    training: DpSgdTraining
    adversary: CanaryAdversary[Any]
    canary: Canary

    @classmethod
    def craft(
        cls,
        training: DpSgdTraining,
        adversary: CanaryAdversary[Any],
        seed: int,
    ) -> Self:
        """Crafts the canary. Raises SpecError if it has a larger sensitivity than claimed.

        Args:
            training: the public part of the training.
            adversary: the adversary that crafts the canary.
            seed: seed of the adversary's choices.
        """
        rng = np.random.default_rng(seed)
        initial = adversary.begin(PublicView(training), rng)
        if initial is not None:
            training = training.starting(initial)
        canary = adversary.craft(PublicView(training), rng)
        worlds = 2 if adversary.replaces else 1  # a canary for each value of a bit
        training.check_claim(canary, adversary.canaries * worlds)
        if adversary.apart:
            check_apart(canary, adversary.canaries)
        return cls(training, adversary, canary)

    def run(
        self,
        members: Members,
        seed: int,
        horizons: Horizons,
        checkpoints: Checkpoints | None = None,
    ) -> Scores | Measured:
        """Trains all models of a pack: one for each trial, or for all trials of one training run.

        Scores are recorded at the horizons, together with measures of utility, if any. After an
        interruption, training continues from the latest checkpoint. Arguments are those of
        `ResumableSession.run`.
        """
        training = self.training
        adversary = self.adversary
        canaries = adversary.canaries
        bits = torch.from_numpy(members).to(training.initial)
        if canaries > 1:
            bits = bits.view(-1, canaries)
        inside = bits  # whether each canary is in each model
        if adversary.replaces:  # one canary of each pair is in; m are for bit 1, then m for bit 0
            bits_by_model = bits.view(len(bits), -1)
            inside = torch.cat([bits_by_model, 1 - bits_by_model], dim=1)
        observer = adversary.observer(self.canary, PublicView(training), len(bits))
        trainer = f"{training.recipe.engine} on {training.initial.device.type}"
        saved = PackCheckpoints(checkpoints, trainer, self.canary, observer)
        measures = training.recipe.measures
        # NaN until training reaches a horizon.
        unknown = np.full((len(members), len(horizons)), np.nan)
        record = {  # scores and measures by name, float64 [trials, horizons] each
            name: np.array(saved.recorded.get(name, unknown)) for name in ("scores", *measures)
        }
        # An observer may follow updates, or models, or both.
        watch = observer.see_update if isinstance(observer, UpdateObserver) else None
        see = observer.see if isinstance(observer, TrajectoryObserver) else None
        inserted = self._copied_canary()
        path = training.run(inside, seed, inserted, adversary.period, watch, saved)
        before = next(path).clone()  # a copy, as every step changes the same tensor
        for step, theta in enumerate(path, start=saved.step + 1):
            if see is not None:
                see(step, before, theta.clone())
                before = theta.clone()
            if step in horizons:
                column = horizons.index(step)
                record["scores"][:, column] = self._scores(theta, observer, bits)
                utilities = training.measured(theta) if measures else ()
                for name, values in zip(measures, utilities, strict=True):
                    record[name][:, column] = np.repeat(values, canaries)  # by trial
            saved.offer(step, theta, record)
            if step == horizons[-1]:
                break
        scores = record.pop("scores")
        diverged = np.flatnonzero(~np.isfinite(scores[:, -1]))
        if not len(diverged):
            return Measured(scores, record) if record else scores  # measures remain in `record`
        trial = int(diverged[0])  # one reason is enough for a pack
        reason = self._why_diverged(inside, seed, trial // canaries, horizons[-1])
        return Measured(scores, record, diverged={trial: reason})

    def _copied_canary(self) -> Canary:
        """Returns a copy of the canary, since scorers may change a canary in place."""
        if isinstance(self.canary, ChangingCanary):
            return self.canary
        copies: dict[str, Any] = {}
        for name, value in vars(self.canary).items():
            if torch.is_tensor(value):
                copies[name] = value.clone()
        return replace(self.canary, **copies)

    def _why_diverged(
        self,
        inside: Tensor,
        seed: int,
        model: int,
        steps: int,
    ) -> str:
        """Trains a pack again, up to the first step after which one of its models is not finite.

        Args:
            inside: the same as in `DpSgdTraining.run`.
            seed: seed of the pack.
            model: row of the model.
            steps: number of steps of the training.

        Returns:
            The step, and what is not finite there, in words.
        """
        inserted = self._copied_canary()
        path = self.training.run(inside, seed, inserted, self.adversary.period)
        before = next(path).clone()
        for step, theta in enumerate(path, start=1):
            if not theta[model].isfinite().all():
                reason = self.training.not_finite(before[model], step, self.canary)
                return f"at step {step}: {reason}"
            if step == steps:
                break
            before = theta.clone()
        return f"its parameters are finite at step {steps}, its score is not"

    def _scores(
        self,
        theta: Tensor,
        observer: Observer | None,
        bits: Tensor,
    ) -> Scores:
        """Scores models `theta` [n, p]: one number for each of `bits`, float64 [n m].

        Raises SpecError for scores of another shape, which numpy would repeat over models.

        Args:
            theta: models at a recorded step, float [n, p].
            observer: observer of all steps so far; None if only final models are observed.
            bits: secret bits of each model, [n], or [n, m] for m canaries.
        """
        if observer is None:
            initial = self.training.initial.clone()
            final = _FinalModels(initial, theta.clone(), self.training.model)
            scores = self.adversary.score(self.canary, final)
        else:
            scores = observer.scores()
        if isinstance(scores, Tensor) and scores.shape == bits.shape:
            return cast(Scores, scores.double().flatten().cpu().numpy())
        shape = f"shape {tuple(scores.shape)}" if hasattr(scores, "shape") else f"{scores!r:.40}"
        scorer = type(observer or self.adversary).__name__
        owner = "canary" if bits.dim() > 1 else "model"
        raise SpecError(
            "adversary.name",
            f"the scores of {scorer} are a {type(scores).__name__} of {shape}; they must be a "
            f"Tensor of shape {tuple(bits.shape)}, one for each {owner}",
        )


@dataclass(frozen=True)
class FrozenSession:
    """DP-SGD with a learning rate of zero: every step is taken at θ_0.

    Step t releases Σ_j clip(g_j, C) + b c_t g* + Z_t, with c_t = 1 if the canary is sampled, else
    0. Only its part along g* depends on the bit, and there the noise is N(0, σ²C²) for any model.
    The sum over the other records is the same in every trial, so a trial takes only T normal
    numbers. These do not come from the engine, so this session does not check the engine's noise;
    attacks on a training that changes θ do.

    Attributes:
        other_sums: the part of the other records' sums along the canary that scores do not
            subtract, in units of C, float64 [T].
    """

    training: DpSgdTraining
    adversary: FrozenAdversary
    other_sums: Scores

    @classmethod
    def craft(cls, training: DpSgdTraining, adversary: FrozenAdversary, seed: int) -> Self:
        """Lets the adversary craft and label, and computes each batch's part of `other_sums`.

        Args:
            training: the public part of the training.
            adversary: crafts the canary, and may label the records.
            seed: seed of the adversary's choices.
        """
        canary = adversary.craft(PublicView(training), np.random.default_rng(seed))
        training.check_claim(canary)
        theta = training.initial[None]
        other_sums = np.zeros(training.recipe.steps)
        labels = adversary.relabel(lambda: training.model.outputs(theta, training.x)[0])
        if labels is not None:
            clip_norm = training.clip_norm
            # The direction has norm C: divided by C², its products are projections in units of C.
            scaled_direction = canary.direction / clip_norm**2
            for step, batch in enumerate(training.batches):
                x = training.x[batch]
                (batch_sum,) = training.sums(theta, x, labels[batch], clip_norm)
                other_sums[step] = float(batch_sum @ scaled_direction)
        return cls(training, adversary, other_sums)

    def run(self, members: Members, seed: int, horizons: Horizons) -> Scores:
        """Draws noise along the canary only: no model changes, so none is trained.

        In units of C, the projection of a step's release on the canary is a sum of three: 1 if the
        canary is in and sampled, the part of the other records, and noise N(0, σ²). Arguments and
        result are those of `Session.run`.
        """
        recipe = self.training.recipe
        adversary = self.adversary
        public = PublicView(self.training)
        noise_rng = np.random.default_rng(derive("frozen", seed))
        coin_rng = np.random.default_rng(derive("coins", seed))
        coins = recipe.sampling.coins(self.training.sizes, members.shape, coin_rng)
        total = np.zeros(len(members))
        scores = []
        for step in range(1, horizons[-1] + 1):
            inside = next(coins) & members
            if step % adversary.period == 0:
                projection = recipe.multiplier * noise_rng.standard_normal(len(members))
                projection += inside + self.other_sums[step - 1]
                total += adversary.step_score(torch.from_numpy(projection), public).numpy()
            if step in horizons:
                scores.append(total.copy())
        return np.stack(scores, axis=1)
