"""The `label-gradient` mechanism: label privacy of gradients (Yuan, Xue, Wang, Shen 2021).

A release is the noisy sum of the clipped gradients of one training step. The attacker guesses a
label of the batch from it. All that the attacker knows is computed here, in float64: the batch, the
model before the step, and the derivatives of its logit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import NonNegativeInt
from scipy.special import expit

from ..accounting import Adjacency, Training
from ..adversaries.base import Adversary
from ..adversaries.label import Label, crafted_records
from ..errors import SpecError, plain
from ..plugins import Count, Plugin, nested
from ..stats import Estimate, Status, TradeOff, gdp
from ..stats import label as bounds
from .base import (
    Arrays,
    Horizons,
    Measured,
    Mechanism,
    Members,
    PartSeeds,
    Preparation,
    Prepared,
    Session,
    recorded_steps,
)
from .dp_sgd import DpSgd
from .dp_sgd.noise import Independent
from .dp_sgd.sampling import Fixed, Shuffle
from .dp_sgd.units import Record

if TYPE_CHECKING:
    from torch import nn

    from ..data.base import Dataset
    from .dp_sgd.training import DpSgdTraining

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
AnyFloats = NDArray[np.floating]
Function = Callable[[Floats], Floats]
# Functions by name, each with its derivative.
ACTIVATIONS: dict[str, tuple[Function, Function]] = {
    "relu": (lambda z: np.maximum(z, 0.0), lambda z: np.asarray(z > 0, dtype=float)),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "sigmoid": (expit, lambda z: np.asarray(expit(z) * expit(-z))),
}


class LabelGradient(Mechanism):
    """Audits the labels of a training: one label of a batch is guessed from the step's release.

    The target is trained once, by `training`; the first `batches` of its steps are attacked.
    `clipping: all` is the clipping of DP-SGD; `attacked` clips and releases the attacked weights
    only, as in the paper. `backend: sampled` runs trials, each with one batch in which the label of
    one record is flipped or not; `exact` computes closed forms, with one horizon for each batch.
    A flipped label replaces a record, so claims are for replacement; `training.epsilon` sets the
    noise by its claim for adding or removing a record.
    """

    exact_estimators: ClassVar[Mapping[str, str]] = {
        "exact": "",
        "closed-form": "by the published attack, in closed form",
        "complement": "",
        "extrapolated": "",
    }
    attacked_as = "label-gradient"
    adds_gaussian_noise = True

    name: Literal["label-gradient"] = "label-gradient"
    training: Annotated[Mechanism, nested(Mechanism)]  # the target, `dp-sgd`
    batches: Count | None = None  # steps that are attacked; null: all
    clipping: Literal["all", "attacked"] = "all"  # what is clipped and released
    backend: Literal["sampled", "exact"] = "sampled"  # run trials, or closed forms
    seed: NonNegativeInt = 0  # seed of the trials

    @property
    def sampled(self) -> bool:
        return self.backend == "sampled"

    @property
    def target(self) -> DpSgd:
        """The training that is attacked. Raises SpecError unless it is `dp-sgd`."""
        if isinstance(self.training, DpSgd):
            return self.training
        raise SpecError("mechanism.training.name", f"is {self.training.name}; it must be dp-sgd")

    @property
    def steps(self) -> int:
        """Number of steps that are attacked."""
        return self.target.steps if self.batches is None else self.batches

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of two shares: correct labels among the determined ones, and determined labels."""
        return ("accuracy", "determined") if self.sampled else ()

    def for_audit(self, delta: float, accountant: str) -> Self:
        training = self.training.for_audit(delta, accountant)
        return self.model_copy(update={"training": training})

    def precomputed(self) -> Mapping[str, float]:
        return self.training.precomputed()

    def with_precomputed(self, precomputed: Mapping[str, float]) -> Self:
        return self.model_copy(update={"training": self.training.with_precomputed(precomputed)})

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        return (self.training, *self.training.claim_parts)

    @property
    def claim_reads_data(self) -> bool:
        """True: the number of records decides how many batches an epoch has."""
        return True

    def horizons(self, record_every: int | None) -> Horizons:
        """Returns the last step; with `backend: exact` each `record_every`-th one, or all."""
        if self.sampled:
            return (self.steps,)
        return recorded_steps(self.steps, record_every or 1)

    def check(self, adversary: Adversary) -> None:
        """Checks that the attack can read the gradients that the target's training releases."""
        super().check(adversary)
        target = self.target
        required = {  # by option: whether its value fits, and what it must be
            "sampling": (isinstance(target.sampling, Fixed | Shuffle), "fixed or shuffle"),
            "noise": (isinstance(target.noise, Independent), "independent"),
            "unit": (isinstance(target.unit, Record), "record"),
            "noise_multiplier": (target.noise_multiplier != 0, "above 0"),
            "loss": (target.loss == "cross-entropy", "cross-entropy: labels are classes"),
            "augmentations": (target.augmentations == 1, "1: a release is of records, not views"),
            "held_out": (target.held_out is None, "nothing: the target has no models to compare"),
            "model.initialization": (target.model.initialization == "fixed", "fixed"),
        }
        for key, (fits, requirement) in required.items():
            if not fits:
                raise SpecError(f"mechanism.training.{key}", f"must be {requirement}")
        if self.steps > target.steps:
            raise SpecError(
                "mechanism.batches",
                f"is {self.steps}, but the training has {target.steps} steps; use so many",
            )
        is_sampling_option = self.seed > 0 or cast(Label, adversary).record != "random"
        if is_sampling_option and not self.sampled:
            key = "mechanism.seed" if self.seed else "adversary.record"
            raise SpecError(key, "is for sampled trials, and backend is exact; leave it out")

    def datasets(self) -> Mapping[str, Dataset]:
        return self.training.datasets()

    def check_inputs(self) -> None:
        """Checks the target's data and network: two classes, and layers of known shapes."""
        try:
            self.training.check_inputs()
        except SpecError as error:
            key = error.key.removeprefix("mechanism.")
            raise SpecError(f"mechanism.training.{key}", error.problem) from error
        data = self.target.data
        classes = data.load().classes
        if classes != 2:
            raise SpecError(
                "mechanism.training.data",
                f"{data.name} has {classes} classes; only labels 0 and 1 follow from a sign",
            )
        _ = self.shape  # raises SpecError for other networks

    def check_records(self, adversary: Adversary) -> None:
        """Raises SpecError if the adversary's neuron or batch does not fit the network."""
        cast(Label, adversary).check_widths(self.shape.sizes, self.target.batch_size)

    def claimed(self, adversary: Adversary, horizon: int) -> Training:
        """Counts the steps that may have one record: with `shuffle`, one in each epoch."""
        releases = 1
        if not self.sampled:
            shuffled = type(self.target.sampling) is Shuffle
            epochs = math.ceil(horizon / self.target.sizes.per_epoch)
            releases = epochs if shuffled else horizon
        return Training(self.target.multiplier, releases, adjacency=Adjacency.REPLACE)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Returns Gaussian for trials of one record in one batch, which is proved here.

        All labels but one are known, so the release is N(g_0, s² I) or N(g_1, s² I) for known g_0
        and g_1, and both statistics are linear in it. Records that are sampled make a mixture, and
        so would models that are not known.
        """
        fixed_record = cast(Label, adversary).record == "largest"
        return TradeOff.GAUSSIAN if fixed_record else TradeOff.UNKNOWN

    def preparation(self, adversary: Adversary) -> Preparation:
        """Returns one part: the target, trained once for all adversaries that attack it."""
        identity = {"target": self.training.identity(), "steps": self.steps}
        return Preparation(parts=1, identity=identity)

    def prepare_part(
        self,
        adversary: Adversary,
        part: int,
        seeds: PartSeeds,
        gpu: bool,
    ) -> Arrays:
        """Trains the target; returns its models and batches as arrays (`Target`)."""
        training = self.target.training(seeds.sweep, gpu)
        return Target.trained(training, self.shape, self.steps, seeds.part).arrays

    def open(
        self,
        adversary: Adversary,
        seed: int,
        craft_seed: int,
        gpu: bool,
        prepared: Prepared = (),
    ) -> Session:
        """Opens trials against the stored target."""
        return Trials.from_target(prepared[0], cast(Label, adversary), self.noise)

    def exact(
        self,
        adversary: Adversary,
        horizons: Horizons,
        delta: float,
        prepared: Prepared = (),
    ) -> dict[int, tuple[Estimate, ...]]:
        """Returns closed forms of all batches up to each horizon, for `backend: exact`.

        `exact` is the ε of the Gaussian pair that all releases make of one record's label, the
        largest over records. `closed-form` is Algorithm 2, the largest over records and batches;
        `complement` also has the opposite answer. `extrapolated` is the value to which the first
        batch's closed form is expected to grow. All are for the models of the one target that was
        trained. These depend on its noise: with other models, ε may be less or more.
        """
        estimates: dict[int, tuple[Estimate, ...]] = {}
        if self.sampled or not prepared:
            return estimates
        closed_forms = []  # the largest ε of each batch, by Algorithm 2
        complements = []  # the same, by the published answer or the opposite one
        target = Target(prepared[0])
        # Sum of μ² over the batches so far, by record: releases of Gaussian pairs compose so.
        squared_mu = np.zeros(target.arrays["records"].max() + 1)
        for step in range(1, target.steps + 1):
            release, _ = target.release(step - 1, cast(Label, adversary), self.noise)
            labels = release.bounds(delta)
            squared_mu[release.records] += labels.mu**2
            both_answers = np.fmax(labels.epsilon, labels.epsilon_complement)
            closed_forms.append(np.nanmax(labels.epsilon, initial=0.0))
            complements.append(np.nanmax(both_answers, initial=0.0))
            if step in horizons:
                growth = bounds.growth(len(release.records), step)
                values = {
                    "exact": gdp.epsilon(math.sqrt(squared_mu.max()), delta),
                    "closed-form": max(closed_forms),
                    "complement": max(complements),
                    "extrapolated": closed_forms[0] * growth,
                }
                estimates[step] = tuple(
                    Estimate(
                        name,
                        Status.APPROXIMATE if name == "extrapolated" else Status.CERTIFIED,
                        float(value),
                        math.nan,  # no μ is stated
                        delta,
                        confidence=1.0,  # no trial is involved
                        trials=0,
                    )
                    for name, value in values.items()
                )
        return estimates

    def distributions(
        self, adversary: Adversary, delta: float, prepared: Prepared
    ) -> Mapping[str, Floats]:
        """Returns the numbers of the paper's figures 3 and 4, for `backend: exact`.

        Args:
            adversary: a `Label`, which guesses one label at a time.
            delta: δ of the bounds.
            prepared: the trained target, the only part of the preparation.

        Returns:
            By title: the ε of each label at each step, without infinite ones, which no histogram
            can show; and the absolute entries of each step's mean gradient.
        """
        if self.sampled:
            return {}
        target = Target(prepared[0])
        epsilons = []
        entries = []
        for step in range(target.steps):
            release, columns = target.release(step, cast(Label, adversary), self.noise)
            epsilon = release.bounds(delta).epsilon
            epsilons.append(epsilon[np.isfinite(epsilon)])
            # A clipped gradient is the record's column, a derivative of the logit, times a number.
            gradient_sum = columns @ release.coefficients(release.y)
            entries.append(np.abs(gradient_sum) / len(release.y))
        return {
            "ε of each label (Algorithm 2)": np.concatenate(epsilons),
            "size of a mean gradient's entries": np.concatenate(entries),
        }

    @property
    def noise(self) -> Noise:
        """The clipping and noise of every step."""
        return Noise(self.target.clip_norm, self.target.multiplier, self.clipping == "all")

    @property
    def shape(self) -> Shape:
        """The shape of the target's network. Raises SpecError unless it is a chain of layers."""
        from .dp_sgd.network import network

        data = self.target.data.load()
        shape = data.x.shape[1:]
        module = network(self.target.model, shape, data.classes, seed=0)
        return Shape.from_module(module)


@dataclass(frozen=True)
class Shape:
    """Shape of a chain of layers: widths from the input to the logit, and the activation."""

    sizes: tuple[int, ...]
    activation: str

    @classmethod
    def from_module(cls, module: nn.Module) -> Shape:
        """Reads the shape of a chain: linear layers with biases, one activation, one logit.

        Raises SpecError for any other network.
        """
        from torch import nn

        from ..engines.packing.conversion import find_obstacle

        layers: list[Any] = []
        if type(module) is nn.Sequential:
            layers = list(module._modules.values())
        if layers and type(layers[0]) is nn.Flatten:
            layers = layers[1:]
        linear = layers[::2]  # linear layers and activations alternate
        activations = {type(layer) for layer in layers[1::2]}
        names = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
        is_chain = (
            find_obstacle(module) is None
            and all(p.requires_grad for p in module.parameters())
            and len(layers) % 2 == 1
            and all(type(layer) is nn.Linear and layer.bias is not None for layer in linear)
            and len(activations) == 1
            and activations <= names.keys()
            and linear[-1].out_features == 1
        )
        if not is_chain:
            raise SpecError(
                "mechanism.training.model",
                "is not a chain of fully connected layers with one activation between them "
                "(ReLU, tanh or sigmoid) and one logit; use mlp3 or fcnn",
            )
        widths = [layer.out_features for layer in linear]
        return cls((linear[0].in_features, *widths), names[activations.pop()])

    def layers(self, theta: AnyFloats) -> list[tuple[Floats, Floats]]:
        """Returns weights [out, in] and biases [out] of each layer, in float64.

        Args:
            theta: parameters [p], in torch's order.
        """
        remaining = np.asarray(theta, dtype=float)
        layers = []
        for inputs, outputs in itertools.pairwise(self.sizes):
            ends = [inputs * outputs, (inputs + 1) * outputs]  # of weights, and of biases
            weights, biases, remaining = np.split(remaining, ends)
            layers.append((weights.reshape(outputs, inputs), biases))
        return layers

    def run(self, theta: AnyFloats, x: AnyFloats) -> Pass:
        """Computes the forward and backward pass of records x [N, ...] for θ [p], in float64."""
        function, derivative = ACTIVATIONS[self.activation]
        layers = self.layers(theta)
        records = np.asarray(x, dtype=float)
        inputs = [records.reshape(len(x), -1)]
        sums = []  # sums of each layer, before its activation
        for weight, bias in layers:
            sums.append(inputs[-1] @ weight.T + bias)
            inputs.append(function(sums[-1]))
        slopes = [np.ones_like(sums[-1])]  # slopes of the logit by `sums`, last layer first
        for index in reversed(range(1, len(layers))):
            weight, _ = layers[index]
            slopes_by_inputs = slopes[-1] @ weight
            slopes.append(slopes_by_inputs * derivative(sums[index - 1]))
        probabilities = expit(sums[-1][:, 0])
        slopes.reverse()
        return Pass(tuple(inputs[:-1]), tuple(slopes), probabilities)


@dataclass(frozen=True)
class Pass:
    """A forward and backward pass of N records.

    Attributes:
        inputs: float [N, in] of each layer.
        derivatives: derivatives of the logit by each layer's sums before activation, [N, out].
        probabilities: probabilities of label 1, float [N].
    """

    inputs: tuple[Floats, ...]
    derivatives: tuple[Floats, ...]
    probabilities: Floats

    def columns(self, layer: int, neuron: int | None) -> Floats:
        """Returns derivatives of the logits by the d attacked weights, float [d, N].

        Args:
            layer: number of the attacked layer, from 0.
            neuron: the neuron whose incoming weights are attacked (eq. 4); None for all (eq. 1).
        """
        inputs = self.inputs[layer]
        slopes = self.derivatives[layer]
        if neuron is not None:
            return (slopes[:, neuron, None] * inputs).T
        products = slopes[:, :, None] * inputs[:, None, :]
        return products.reshape(len(inputs), -1).T

    @property
    def norms(self) -> Floats:
        """Norm of each record's derivatives by all parameters, biases included: float64 [N]."""
        squares = np.zeros(len(self.probabilities))
        for inputs, slopes in zip(self.inputs, self.derivatives, strict=True):
            squared_inputs = (inputs**2).sum(axis=1) + 1  # a bias has the input 1
            squares += (slopes**2).sum(axis=1) * squared_inputs
        return np.sqrt(squares)


@dataclass(frozen=True)
class Target:
    """A trained target, as arrays that can be stored.

    They are `theta` [steps, p] before each step; `x` [steps, N, d], `y` and `records` [steps, N] of
    its batch; `sizes` and `activation` of the network's shape; and the `seed` of crafted records.
    """

    arrays: Arrays

    @classmethod
    def trained(
        cls,
        training: DpSgdTraining,
        shape: Shape,
        steps: int,
        seed: int,
    ) -> Target:
        """Trains `steps` steps; stores the model before each, and its batch.

        Raises SpecError if training diverges, or if a batch has a record twice or another size.

        Args:
            training: the public part of the training.
            shape: shape of the network.
            steps: number of steps that are stored.
            seed: seed of the noise.
        """
        recipe = training.recipe
        models = []
        path = training.run(training.initial.new_zeros(1), seed, canary=None, period=1)
        for step in range(1, steps + 1):
            (theta,) = next(path)  # one model, before this step
            models.append(theta.cpu().numpy().copy())
            if not np.isfinite(models[-1]).all():
                raise SpecError(
                    "mechanism.training.learning_rate",
                    f"is {plain(recipe.learning_rate)}, with which the target has diverged before "
                    f"step {step}; lower it",
                )
        batches = [batch.cpu().numpy() for batch in training.batches[:steps]]
        size = recipe.batch_size
        are_full = (len(np.unique(batch)) == len(batch) == size for batch in batches)
        if not all(are_full):
            raise SpecError(
                "mechanism.training.sampling",
                f"is {recipe.sampling.address}, which has batches with a record twice, or of "
                f"another size than {size}; use fixed or shuffle",
            )
        records = np.stack(batches)
        return cls(
            {
                "theta": np.stack(models),
                "x": training.x.cpu().numpy()[records],
                "y": training.y.cpu().numpy()[records],
                "records": records,
                "sizes": np.array(shape.sizes),
                "activation": np.array(list(ACTIVATIONS).index(shape.activation)),
                "seed": np.array(seed % 2**63),  # fits into int64
            }
        )

    @property
    def steps(self) -> int:
        """Number of steps that are stored."""
        return len(self.arrays["theta"])

    @property
    def shape(self) -> Shape:
        """The shape of its network."""
        sizes = tuple(self.arrays["sizes"].tolist())
        activation = list(ACTIVATIONS)[self.arrays["activation"]]
        return Shape(sizes, activation)

    def release(
        self,
        step: int,
        adversary: Label,
        noise: Noise,
    ) -> tuple[Release, Floats]:
        """Computes the release of one step, as the adversary observes it.

        Args:
            step: number of the step, from 0.
            adversary: names the attacked layer and neuron, and may craft the records.
            noise: clipping and noise of the step.

        Returns:
            The release, and the logits' derivatives by the attacked weights, float64 [d, N].
        """
        theta = self.arrays["theta"][step]
        x = self.arrays["x"][step]
        shape = self.shape
        if adversary.crafts:
            weights, _ = shape.layers(theta)[0]
            seeds = [int(self.arrays["seed"]), step]  # the same records on each call
            x = crafted_records(weights, len(x), np.random.default_rng(seeds))
        computed = shape.run(theta, x)
        layer = adversary.layer_index(len(computed.inputs))
        columns = computed.columns(layer, adversary.row)
        release = Release(
            gram=columns.T @ columns,
            probabilities=computed.probabilities,
            y=self.arrays["y"][step],
            norms=computed.norms if noise.clips_all else None,
            noise=noise,
            records=self.arrays["records"][step],
        )
        return release, columns


@dataclass(frozen=True)
class Noise:
    """Clipping and noise of a step: C, σ, and whether all parameters are clipped together."""

    clip_norm: float
    multiplier: float
    clips_all: bool


@dataclass(frozen=True)
class Release:
    """The parts of a step's release that depend on labels.

    Attributes:
        gram: CᵀC, float64 [N, N], where column j of C has the derivatives of logit j by the
            attacked weights.
        probabilities: probabilities of label 1, float64 [N].
        y: labels [N].
        norms: norm of each record's derivatives by all parameters, float64 [N]; None if the
            attacked weights are clipped alone.
        noise: the norm to which gradients are clipped, and the noise of their sum.
        records: numbers of the records in the data [N].
    """

    gram: Floats
    probabilities: Floats
    y: Integers
    norms: Floats | None
    noise: Noise
    records: Integers

    def bounds(self, delta: float) -> bounds.LabelBounds:
        """Returns bounds for the label of each record, with ε at `delta`."""
        return bounds.bounds_of_gram(
            self.gram,
            self.probabilities,
            self.y.astype(float),
            self.noise.clip_norm,
            self.noise.multiplier,
            delta,
            self.norms,
        )

    def coefficients(self, y: Integers) -> Floats:
        """Returns the coefficient of each record's column in the sum without noise, [..., N].

        It is (p - y), clipped so that the record's gradient has at most the norm C.

        Args:
            y: labels [..., N].
        """
        norms = self.norms
        if norms is None:
            norms = np.sqrt(np.diag(self.gram))
        return bounds.clipped(norms, self.probabilities - y, self.noise.clip_norm)

    def sums(self, y: Integers, rng: np.random.Generator) -> Floats:
        """Draws the released sums of n trials, multiplied by Cᵀ, float64 [n, N].

        The noise Cᵀ z is N(0, s² CᵀC), as z is N(0, s² I).

        Args:
            y: labels of the batch in each trial, [n, N].
            rng: generator of the noise.
        """
        unit_noise = rng.normal(size=y.shape) @ self._root.T
        deviation = self.noise.clip_norm * self.noise.multiplier
        return self.coefficients(y) @ self.gram + deviation * unit_noise

    def solutions(self, sums: Floats) -> Floats:
        """Solves for the coefficient of each record, [n, N]; NaN if it is not determined.

        Args:
            sums: released sums as `sums` draws them, [n, N].
        """
        inverse, determined = self._solver
        return np.where(determined, sums @ inverse, np.nan)

    @cached_property
    def _root(self) -> Floats:
        """R with R Rᵀ = CᵀC, float64 [N, N]."""
        values, vectors = np.linalg.eigh(self.gram)
        root: Floats = vectors * np.sqrt(
            np.maximum(values, 0.0)
        )  # rounding may give values below 0
        return root

    @cached_property
    def _solver(self) -> tuple[Floats, NDArray[np.bool_]]:
        """The inverse of `gram`, float64 [N, N], and which labels it determines, bool [N]."""
        return bounds.solver(self.gram)


@dataclass(frozen=True)
class Trials:
    """A session of trials, each of which guesses the label of one record in one batch.

    Attributes:
        adversary: chooses the record, and the statistic that its guess depends on.
        releases: the release of each batch.
        distances: μ of each label, float64 [batches, N]; NaN if the label is not determined.
    """

    adversary: Label
    releases: tuple[Release, ...]
    distances: Floats

    @classmethod
    def from_target(cls, prepared: Arrays, adversary: Label, noise: Noise) -> Trials:
        """Opens a session against a stored target. Raises SpecError if it determines no label.

        Args:
            prepared: arrays of the target.
            adversary: names the attacked layer and neuron.
            noise: clipping and noise of each step.
        """
        target = Target(prepared)
        releases = []
        mus = []
        for step in range(target.steps):
            release, _ = target.release(step, adversary, noise)
            labels = release.bounds(delta=0.0)
            releases.append(release)
            mus.append(labels.mu if adversary.statistic == "gradient" else labels.mu_direction)
        distances = np.stack(mus)
        if not np.isfinite(distances).any():
            raise SpecError(
                "adversary.neuron",
                f"is {adversary.neuron}, which determines no label of any batch; use another one",
            )
        return cls(adversary, tuple(releases), distances)

    def run(self, members: Members, seed: int, horizons: Horizons) -> Measured:
        """Scores trials in which the label of one record is flipped for members only.

        Args:
            members: bool [n], True if the label is flipped.
            seed: seed of the choice of records and of the noise.
            horizons: the last batch only.

        Returns:
            Scores [n, 1]. As utility, "determined" is the share of the batch's labels that a trial
            determines, and "accuracy" the share of correct ones among these; [n, 1] each.
        """
        rng = np.random.default_rng(seed)
        # Each trial attacks a pair: a batch, and the position of a record in it.
        determined = np.argwhere(np.isfinite(self.distances))
        if self.adversary.record == "largest":
            largest = np.argwhere(self.distances == np.nanmax(self.distances))[0]
            pairs = np.tile(largest, (len(members), 1))
        else:
            chosen = rng.integers(len(determined), size=len(members))
            pairs = determined[chosen]
        scores = np.empty(len(members))
        accuracy = np.empty(len(members))
        determined_share = np.empty(len(members))
        for batch in np.unique(pairs[:, 0]):
            rows = np.flatnonzero(pairs[:, 0] == batch)
            release = self.releases[batch]
            records = pairs[rows, 1]
            trials = np.arange(len(rows))
            y = np.tile(release.y, (len(rows), 1))
            y[trials, records] ^= members[rows]  # flips the attacked label of members
            solutions = release.solutions(release.sums(y, rng))
            mu = self.distances[batch]
            if self.adversary.statistic == "gradient":
                # Log likelihood ratios of the complete release: along g_1 - g_0 it is N(b μ, 1),
                # and constant otherwise. They are drawn from the closed form, so do not check it.
                mu = mu[records]
                projections = members[rows] * mu + rng.normal(size=len(mu))
                scores[rows] = mu * projections - mu**2 / 2
            else:
                # The score is the solution in standard deviations. A flip changes a coefficient by
                # μ standard deviations, which gives the scale.
                flipped = release.coefficients(1 - release.y)
                scale = mu / np.abs(flipped - release.coefficients(release.y))
                # A flip lowers the coefficient of a label 0 and raises that of a label 1.
                unflipped_signs = 1 - 2 * release.y[records]
                scores[rows] = -unflipped_signs * solutions[trials, records] * scale[records]
            guesses = self.adversary.labels(solutions)
            guessed = guesses >= 0
            correct = ((guesses == y) & guessed).sum(axis=1)
            with np.errstate(invalid="ignore"):  # 0 / 0 if a trial determines no label
                accuracy[rows] = correct / guessed.sum(axis=1)
            determined_share[rows] = guessed.mean(axis=1)
        utility = {"accuracy": accuracy[:, None], "determined": determined_share[:, None]}
        return Measured(scores[:, None], utility)
