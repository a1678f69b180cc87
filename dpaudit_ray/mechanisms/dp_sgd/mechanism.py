"""The `dp-sgd` mechanism: claims and proofs for a recipe of DP-SGD, and its sessions."""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, Self

from ...accounting import Adjacency, Claim, Sampling, Training
from ...adversaries.base import Adversary
from ...data.base import Data, Dataset
from ...errors import SpecError
from ...plugins import Plugin, is_users
from ...stats import TradeOff
from ..base import (
    Arrays,
    Horizons,
    Mechanism,
    PartSeeds,
    Preparation,
    Prepared,
    Session,
    recorded_steps,
)
from .noise import Correlated
from .recipe import Recipe
from .sampling import Poisson

if TYPE_CHECKING:
    from .training import DpSgdTraining

# Accountants that prove the amplification by a draw of batches; `gaussian` proves none.
_ACCOUNTANTS = {Sampling.POISSON: "prv", Sampling.BALLS_AND_BINS: "allocation"}


class DpSgd(Recipe, Mechanism):
    """Trains by DP-SGD. `seed` varies θ_0 and the mini-batches, for repetitions.

    Both engines compute the same steps: `packed` for all models of a pack at once, `opacus` one by
    one through Opacus. `precision: tf32` lets NVIDIA GPUs round the factors of matrix products.

    `loss: cross-entropy` is for classes (logistic if the model has one output), `mse` for numbers.
    A user-defined one, `module:function`, takes outputs [N, c] and targets [N] and returns a loss
    for each example, [N].

    The batches of the other records are drawn once for a sweep and known to the adversary.
    `epsilon` at `delta`, by `accountant`, stands for the noise multiplier that has this claim over
    all steps. `augmentations` is the number of random crops, mirrored or not, of each image in each
    step; their gradients are averaged and then clipped. A canary's example is not augmented.
    Records that are `held_out`, or in reserve (`reserved`), are not trained on.

    Revision 2: the canary joins the sum before θ is rounded; θ_0 is keyed by all bits of a seed.
    """

    revision = 2
    several_gpus = False
    attacked_as = "dp-sgd"
    adds_gaussian_noise = True
    for_free = frozenset(
        {"learning_rate", "clip_norm", "noise_multiplier", "epsilon", "delta", "accountant", "seed"}
    )

    name: Literal["dp-sgd"] = "dp-sgd"

    @property
    def code_paths(self) -> tuple[str, ...]:
        """The path of a user-defined loss."""
        return (self.loss,) if ":" in self.loss else ()

    def precomputed(self) -> Mapping[str, float]:
        """Computes the noise multiplier of `epsilon`, which takes some accountants seconds."""
        return {} if self.epsilon is None else {"noise": self.multiplier}

    def with_precomputed(self, precomputed: Mapping[str, float]) -> Self:
        copy = self.model_copy()
        copy._noise = precomputed.get("noise")
        return copy

    @property
    def default_accountant(self) -> str:
        """The accountant that proves the amplification by the draw of batches, or the usual one."""
        claim = getattr(self.sampling, "claim", None)  # None for a sampler that is not imported
        if claim in _ACCOUNTANTS and not self.sampling.in_known_steps:
            return _ACCOUNTANTS[claim]
        return super().default_accountant

    @property
    def claim_reads_data(self) -> bool:
        """True if batches are sampled: the rate depends on N."""
        return not self.sampling.in_known_steps

    @property
    def private_records(self) -> int | None:
        return self.sizes.examples

    @property
    def measured(self) -> tuple[str, ...]:
        return self.measures

    def for_audit(self, delta: float, accountant: str) -> Self:
        """Returns a copy in which `epsilon` has a δ and an accountant: as set, or the audit's."""
        if self.epsilon is None:
            return self
        claim = {"delta": self.delta or delta, "accountant": self.accountant or accountant}
        return self.model_copy(update=claim)

    def against(self, adversary: Adversary) -> Self:
        """Returns a copy that reserves as many records as the adversary needs, unless it is set."""
        if self.reserved is not None or adversary.reserves is None:
            return self
        return self.model_copy(update={"reserved": adversary.reserves})

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        return (self.sampling, self.noise, self.unit)

    @property
    def auto_pack_size(self) -> int:
        """Models per pack for `pack_size: auto`, by the size of the model."""
        return self.model.pack_size

    def horizons(self, record_every: int | None) -> Horizons:
        return recorded_steps(self.steps, record_every or self.steps)

    def check(self, adversary: Adversary) -> None:
        super().check(adversary)
        self.check_adversary(adversary)

    def datasets(self) -> Mapping[str, Dataset]:
        options = (self.data, self.held_out)
        return {data.key: data.load() for data in options if isinstance(data, Data)}

    def check_inputs(self) -> None:
        """Loads the data, and checks its split, the unit, the views and the network."""
        from .training import divide

        data = self.data.load()
        _ = self.sizes  # raises SpecError for a batch size above the number of records
        recipe = self.recipe
        divide(recipe, data, seed=0)
        try:
            recipe.unit.check(recipe)  # again, with the noise multiplier of `epsilon`
        except SpecError as error:
            raise error.under("mechanism") from error
        self.check_views(data.x.shape[1:])
        self.check_model(data)

    def check_records(self, adversary: Adversary) -> None:
        """Checks that model and data are large enough, and the records of shadow models."""
        data = self.data.load()
        if type(adversary).check_size is not Adversary.check_size:
            adversary.check_size(self.check_model(data))
        reserved = self.share_of("reserved", len(data.y))
        if adversary.reserves is not None:
            adversary.check_reserve(reserved // self.unit.size)
        if (plan := adversary.shadow_plan) is not None:
            self.check_shadow_records(plan, data, reserved)
        if adversary.private_records:
            self.check_private_records(adversary)

    def claimed(self, adversary: Adversary, horizon: int) -> Claim:
        """Returns a release for each step that may have the canary: others are post-processing.

        With correlated noise, all steps together are one release. Its sensitivity is lower if the
        run ends early, or if the canary is in fewer steps.
        """
        adjacency = Adjacency.REPLACE if adversary.replaces else Adjacency.ADD_REMOVE
        protects = self.unit.protects
        if isinstance(self.noise, Correlated):
            sensitivity = self.noise.sensitivity(self.steps, horizon, adversary.period)
            # Standard deviation of z, in units of σ.
            noise_ratio = self.noise.scale(self.steps) / sensitivity
            noise = self.multiplier * noise_ratio
            return Training(noise, 1, 1.0, adjacency, unit=protects)
        releases = horizon // adversary.period
        if adversary.private_records:  # one release in each epoch, even in an incomplete last one
            releases = math.ceil(horizon / adversary.period)
        rate, sampling = self.sampled_at
        return Training(self.multiplier, releases, rate, adjacency, sampling, protects)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Returns Gaussian for a gradient canary of one direction in all steps: proved here.

        Batches are known. So given θ_{t-1}, the sum of clipped gradients is the same with and
        without the canary, and step t adds b g* + Z_t to it. The likelihood ratio of the complete
        trajectory is that of T releases of N(b g*, s² I), one Gaussian with μ = √T |g*| / s for the
        true deviation s of the noise. The adversary's view is part of the trajectory, so its μ is a
        lower bound on that one. The certified ε is that of releasing every step, which is what
        accountants claim. Optimizer and schedule only process releases.

        For a longer period, which audits the last model, no curve is known; nor for a gradient that
        depends on the model, or a canary that is sampled. But Poisson sampling is the claimed one:
        step t releases b c_t g* + Z_t, where c_t is a coin for the canary only. So the trajectory
        is that of T sampled Gaussian releases with a noise multiplier of s / |g*|.

        With users or clients, the sum is that of their clipped updates. θ_{t-1} determines these,
        too: if the clipping norm adapts, θ contains its logarithm, and the release its count
        (`units.Client`).

        With correlated noise C⁻¹ z, for any period: let π be 1 at the steps of the canary. Given
        the past, step t releases b π_t g* + (C⁻¹ z)_t in addition to a known sum. Multiplied by C,
        which is invertible and lower triangular, the releases of all steps are b Cπ g* + z. So the
        likelihood ratio of the trajectory is that of one Gaussian with μ = |Cπ| |g*| / s for the
        true deviation s of z.
        """
        if not adversary.fixed_gradient:
            return TradeOff.UNKNOWN
        if isinstance(self.noise, Correlated):
            return TradeOff.GAUSSIAN
        if adversary.period > 1:
            return TradeOff.UNKNOWN
        if isinstance(self.sampling, Poisson):
            return TradeOff.UNKNOWN if adversary.replaces else TradeOff.CLAIMED
        return TradeOff.GAUSSIAN if self.sampling.in_known_steps else TradeOff.UNKNOWN

    def independent_canaries(self, adversary: Adversary) -> bool:
        """Returns True for gradient canaries that share no parameter, which is proved here.

        Step t releases y_t = g_t + Σ_i b_i z_ti c_i + Z_t: clipped gradients of the other records;
        canaries that are in, |c_i| ≤ C, with entries at parameters K_i that no other canary has
        (-c_i for a bit of 0, with replacement); and noise, independent for each parameter and step.
        Let D_i be all b_i z_ti c_i + Z_t at K_i. It depends on one bit, on coins z_ti for canary i
        only, and on noise that nothing else has. So given the bits, the D_i are independent of each
        other, of the noise at other parameters, and of all else that is random: θ_0, the batches of
        the other records and their views.

        The transcript is a function of these, by induction: g_t is a function of y_1, ..., y_{t-1}
        and of all else that is random, since optimizer and schedule make θ_{t-1} of them, batches
        do not depend on bits, and a record is clipped by its own gradient. y_t is g_t, plus D_i at
        K_i, plus noise elsewhere. So g_t may contain what earlier steps reveal of any bit, and
        scores do not subtract it. D_i is what the claim counts: T releases along one direction,
        sampled or not. If they are μ-GDP, it is a randomised function of one number of N(±μ/2, 1)
        (Blackwell 1953). Correlated noise depends on earlier noise for the same parameter only.

        Coins of a user-defined sampling scheme may be dependent. So are canaries that share a
        parameter (refused once crafted), records, and gradients that follow the model.
        """
        independent_coins = self.sampling.in_known_steps or not is_users(self.sampling)
        return adversary.fixed_gradient and adversary.apart and independent_coins

    def training(self, seed: int, gpu: bool) -> "DpSgdTraining":
        """Loads the data and draws everything public about the training: θ_0 and batches.

        Args:
            seed: seed of the sweep.
            gpu: whether to compute on the trainer's GPU.
        """
        from .training import DpSgdTraining

        return DpSgdTraining.prepare(self.recipe, seed, gpu)

    def open(
        self,
        adversary: Adversary,
        seed: int,
        craft_seed: int,
        gpu: bool,
        prepared: Prepared = (),
    ) -> Session:
        """Implements `Mechanism.open`."""
        from . import session

        return session.open_session(self.training(seed, gpu), adversary, craft_seed, prepared)

    def preparation(self, adversary: Adversary) -> Preparation | None:
        """Returns packs of shadow models, or the canary if it is crafted once; None for neither."""
        settings = {"mechanism": self.identity()}
        plan = adversary.shadow_plan
        if plan is not None:
            return Preparation(plan.parts, settings | plan.identity)
        if not adversary.crafted_once:
            return None
        return Preparation(1, settings | {"adversary": adversary.identity()})

    def prepare_part(
        self,
        adversary: Adversary,
        part: int,
        seeds: PartSeeds,
        gpu: bool,
    ) -> Arrays:
        """Trains one pack of shadow models, or crafts the canary; returns arrays by name."""
        from . import session

        training = self.training(seeds.sweep, gpu)
        if (plan := adversary.shadow_plan) is not None:
            return session.train_shadows(training, plan, part, seeds.part)
        return session.craft_canary(training, adversary, seeds.part)
