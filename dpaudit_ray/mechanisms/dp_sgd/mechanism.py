"""`mechanism: dp-sgd`: a recipe of DP-SGD as something to audit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from ...accounting import Adjacency, Sampling
from ...adversaries.base import Adversary
from ...data.base import Data, Dataset
from ...plugins import Plugin, is_users
from ...stats import TradeOff
from ..base import Claimed, Mechanism, Preparation, recorded_steps
from .recipe import Recipe
from .sampling import Poisson

if TYPE_CHECKING:
    from ..base import Arrays, PartSeeds, Prepared, Session
    from .training import DpSgdTraining


class DpSgd(Recipe, Mechanism):
    """The options of DP-SGD. `seed` varies θ_0 and the mini-batches, for repetitions.

    `engine` computes the same steps: `packed` for all models of a pack at once, `opacus` one by
    one through Opacus. `precision: tf32` lets NVIDIA GPUs round what they multiply.

    `loss: cross-entropy` learns classes (logistic where the model has one output), `mse` numbers.
    Any other is a function of yours, `module:function`, of outputs [N, c] and targets [N], that
    gives each example a loss: [N].

    The others' batches are drawn once for a sweep and known to the adversary. `epsilon` at `delta`,
    by `accountant`, stands for the noise multiplier that keeps it over all steps. With
    `augmentations` an image has so many random crops, mirrored or not, in each step, whose
    gradients are averaged and then clipped; a canary's example has one, itself. What is `held_out`,
    or in reserve (`reserved`), is not trained on.

    Revision 2: the canary joins the sum before θ is rounded; θ_0 is keyed by a whole seed.
    """

    revision: ClassVar[int] = 2
    several_gpus: ClassVar[bool] = False
    attacked_as: ClassVar[str] = "dp-sgd"
    adds_gaussian_noise: ClassVar[bool] = True
    for_free: ClassVar[frozenset[str]] = frozenset(
        {"learning_rate", "clip_norm", "noise_multiplier", "epsilon", "delta", "accountant", "seed"}
    )

    name: Literal["dp-sgd"] = "dp-sgd"

    def named_modules(self) -> tuple[str, ...]:
        """The module of a loss of the user's, too."""
        module, colon, _ = self.loss.partition(":")
        return (*super().named_modules(), *[module] * bool(colon))

    def worked_out(self) -> Mapping[str, float]:
        """The noise that keeps `epsilon`: seconds, for some accountants."""
        return {} if self.epsilon is None else {"noise": self.noise}

    def given(self, worked_out: Mapping[str, float]) -> Self:
        copy = self.model_copy()
        copy._noise = worked_out.get("noise")
        return copy

    @property
    def default_accountant(self) -> str:
        """Returns `allocation` for balls and bins, whose amplification it proves."""
        sampled = not self.sampling.in_known_steps
        claim = getattr(self.sampling, "claim", None)  # of one that was not imported: not known
        if sampled and claim is Sampling.BALLS_AND_BINS:
            return "allocation"
        return super().default_accountant

    @property
    def claim_reads_data(self) -> bool:
        """True where batches are sampled: the rate depends on N."""
        return not self.sampling.in_known_steps

    @property
    def private_records(self) -> int | None:
        return self.sizes.examples

    @property
    def measured(self) -> tuple[str, ...]:
        return () if self.held_out is None else self.measures

    def for_audit(self, delta: float, accountant: str) -> Self:
        """With the δ and the accountant that `epsilon` is meant at, where it does not say."""
        if self.epsilon is None:
            return self
        named = {"delta": self.delta or delta, "accountant": self.accountant or accountant}
        return self.model_copy(update=named)

    def against(self, adversary: Adversary) -> Self:
        """With records in reserve where the adversary needs some, and nothing says how many."""
        if self.reserved is not None or adversary.reserves is None:
            return self
        return self.model_copy(update={"reserved": adversary.reserves})

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        return (self.sampling,)

    @property
    def auto_pack_size(self) -> int:
        """Trainings to a pack where the sweep gives no number: what suits the model's size."""
        return self.model.pack_size

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        return recorded_steps(self.steps, record_every or self.steps)

    def check(self, adversary: Adversary) -> None:
        super().check(adversary)
        self.check_adversary(adversary)

    def datasets(self) -> Mapping[str, Dataset]:
        used = [self.data, *([self.held_out] if isinstance(self.held_out, Data) else [])]
        return {data.key: data.load() for data in used}

    def check_inputs(self) -> None:
        from .training import divide

        data, _ = self.data.load(), self.sizes
        divide(self.recipe, data, 0)
        self.check_views(data.x.shape[1:])
        self.check_model(data)

    def check_records(self, adversary: Adversary) -> None:
        data = self.data.load()
        if type(adversary).check_size is not Adversary.check_size:
            adversary.check_size(self.check_model(data))
        reserved = self.share_of("reserved", len(data.y))
        if adversary.reserves is not None:
            adversary.check_reserve(reserved)
        if (plan := adversary.shadow_plan) is not None:
            self.check_shadow_records(plan, data, reserved)
        if adversary.private_records:
            self.check_private_records(adversary)

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """Counts the steps that may have the canary; the others are post-processing."""
        kind = Adjacency.REPLACE if adversary.replaces else Adjacency.ADD_REMOVE
        epochs = adversary.private_records  # one release in each, also in one that is not whole
        releases = -(-horizon // adversary.period) if epochs else horizon // adversary.period
        return Claimed(self.noise, releases, *self.sampled_at, kind)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Gaussian for a gradient canary of one direction in every step, which is proved here.

        Batches are known, so given θ_{t-1} both worlds have the same sum of clipped gradients,
        whatever it is: step t shows b g* + Z_t, and no more. The likelihood ratio of the whole
        trajectory is that of T releases of N(b g*, s² I), one Gaussian with μ = √T |g*| / s for
        the true deviation s of the noise. The adversary's view is part of the trajectory, so its
        μ is a bound on that one. The certified ε is that of releasing every step, which is what
        accountants claim. Optimizer and schedule only process what steps show.

        Of a longer period, which asks about the last model, no curve is known; nor of a gradient
        that depends on the model, or a canary that is sampled. But Poisson sampling is the claimed
        one: step t shows b c_t g* + Z_t with a coin c_t of the canary's own, so the trajectory is
        that of T sampled Gaussian releases with a noise multiplier of s / |g*|.
        """
        if not adversary.fixed_gradient or adversary.period > 1:
            return TradeOff.UNKNOWN
        if isinstance(self.sampling, Poisson):
            return TradeOff.UNKNOWN if adversary.replaces else TradeOff.CLAIMED
        return TradeOff.GAUSSIAN if self.sampling.in_known_steps else TradeOff.UNKNOWN

    def independent_canaries(self, adversary: Adversary) -> bool:
        """True for gradient canaries along parameters of their own, which is proved here.

        Step t releases y_t = g_t + Σ_i b_i z_ti c_i + Z_t: the others' clipped gradients; canaries
        that are in, |c_i| ≤ C, whose entries are at places K_i that no other canary has (-c_i for
        a bit of 0, with replacement); and noise, drawn anew for each parameter and step. Let D_i be
        all b_i z_ti c_i + Z_t at K_i. It takes one bit, coins z_ti of canary i's own, and noise
        that nothing else has. So given the bits the D_i are independent of each other, of the noise
        elsewhere, and of what else is drawn: θ_0, the others' batches and views of them.

        The transcript is a function of these, by induction: g_t is one of y_1, ..., y_{t-1} and of
        what else is drawn, since optimizer and schedule make θ_{t-1} of them, batches do not depend
        on bits, and a record is clipped by its own gradient. y_t is g_t, plus D_i at K_i, plus
        noise elsewhere. So g_t may hold what earlier steps showed of any bit, and scores leave it
        in. D_i is what the claim counts: T releases along one direction, sampled or not. Where they
        are μ-GDP, it is a randomised function of one number of N(±μ/2, 1) (Blackwell 1953).

        Coins of a user's sampling scheme may hang together. Canaries that share a place do; they
        are refused once crafted. So do records; and gradients that follow the model.
        """
        own_coins = self.sampling.in_known_steps or not is_users(self.sampling)
        return adversary.fixed_gradient and adversary.apart and own_coins

    def training(self, seed: int, gpu: bool) -> DpSgdTraining:
        """Everything public about the training: data, θ_0, batches, and the engine."""
        from .training import DpSgdTraining

        return DpSgdTraining.prepare(self.recipe, seed, gpu)

    def open(
        self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool, prepared: Prepared = ()
    ) -> Session:
        from . import session

        return session.open_session(self.training(seed, gpu), adversary, craft_seed, prepared)

    def preparation(self, adversary: Adversary) -> Preparation | None:
        if (plan := adversary.shadow_plan) is not None:
            return Preparation(plan.parts, {"mechanism": self.identity(), **plan.identity})
        if not adversary.crafted_once:
            return None
        return Preparation(1, {"mechanism": self.identity(), "adversary": adversary.identity()})

    def prepare_part(self, adversary: Adversary, part: int, seeds: PartSeeds, gpu: bool) -> Arrays:
        from . import session

        training = self.training(seeds.sweep, gpu)
        if (plan := adversary.shadow_plan) is not None:
            return session.train_shadows(training, plan, part, seeds.part)
        return session.craft_canary(training, adversary, seeds.part)
