"""Label privacy from the gradients of a training (Yuan, Xue, Wang, Shen 2021), as a mechanism.

A release is the noisy sum of clipped gradients of a step. What an attacker knows of it is computed
here, in float64: the batch, the model before it, and the derivatives of its logit.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field
from scipy import special

from ..accounting import Adjacency
from ..adversaries.base import Adversary
from ..adversaries.label import Label, crafted_records
from ..errors import SpecError, plain
from ..plugins import Plugin, nested
from ..stats import Estimate, Status, TradeOff, gdp
from ..stats import label as bounds
from .base import (
    Arrays,
    Claimed,
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
from .dp_sgd.sampling import Fixed, Shuffle

if TYPE_CHECKING:
    from torch import nn

    from ..data.base import Dataset
    from .dp_sgd.training import DpSgdTraining

Floats = npt.NDArray[np.float64]
# Each with its derivative.
ACTIVATIONS: dict[str, tuple[Callable[[Floats], Floats], Callable[[Floats], Floats]]] = {
    "relu": (lambda z: np.maximum(z, 0.0), lambda z: np.asarray(z > 0, dtype=np.float64)),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "sigmoid": (special.expit, lambda z: np.asarray(special.expit(z) * special.expit(-z))),
}


class LabelGradient(Mechanism):
    """A release of each step of a training, from which one label of its batch is guessed.

    The target is trained once, by `training`; the first `batches` of its steps are attacked.
    `clipping: all` is that of DP-SGD; `attacked` clips and releases the attacked weights alone, as
    it is printed. `backend: sampled` runs trials, of a batch and a record with its label turned or
    not; `exact` has closed forms, one horizon for each batch. A turned label replaces a record, so
    that is what claims are of; `training.epsilon` sets the noise by that of adding one.
    """

    exact_estimators: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "exact": "",
            "closed-form": "by the published attack, in closed form",
            "complement": "",
            "extrapolated": "",
        }
    )
    attacked_as: ClassVar[str] = "label-gradient"
    adds_gaussian_noise: ClassVar[bool] = True

    name: Literal["label-gradient"] = "label-gradient"
    training: Annotated[Mechanism, nested(Mechanism)]  # the target, `dp-sgd`
    batches: int | None = Field(default=None, ge=1)  # steps that are attacked; null: all
    clipping: Literal["all", "attacked"] = "all"  # what is clipped and released
    backend: Literal["sampled", "exact"] = "sampled"  # run trials, or closed forms
    seed: int = Field(default=0, ge=0)  # of the trials

    @property
    def sampled(self) -> bool:
        return self.backend == "sampled"

    @property
    def target(self) -> DpSgd:
        """The training that is attacked."""
        if isinstance(self.training, DpSgd):
            return self.training
        raise SpecError("mechanism.training.name", f"is {self.training.name}; it must be dp-sgd")

    @property
    def steps(self) -> int:
        """Number of steps that are attacked."""
        return self.target.steps if self.batches is None else self.batches

    @property
    def measured(self) -> tuple[str, ...]:
        """The share of labels that are determined, and of those that are rebuilt as they were."""
        return ("accuracy", "determined") if self.sampled else ()

    def for_audit(self, delta: float, accountant: str) -> Self:
        return self.model_copy(update={"training": self.training.for_audit(delta, accountant)})

    def worked_out(self) -> Mapping[str, float]:
        return self.training.worked_out()

    def given(self, worked_out: Mapping[str, float]) -> Self:
        return self.model_copy(update={"training": self.training.given(worked_out)})

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        return (self.training, *self.training.claim_parts)

    @property
    def claim_reads_data(self) -> bool:
        """An epoch has as many batches as the records make."""
        return True

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The last batch; with `exact`, every one, or every `record_every`."""
        return (self.steps,) if self.sampled else recorded_steps(self.steps, record_every or 1)

    def check(self, adversary: Adversary) -> None:
        super().check(adversary)
        target = self.target
        required = {
            "sampling": (isinstance(target.sampling, Fixed | Shuffle), "fixed or shuffle"),
            "noise_multiplier": (target.noise_multiplier != 0, "above 0"),
            "loss": (target.loss == "cross-entropy", "cross-entropy: labels are classes"),
            "augmentations": (target.augmentations == 1, "1: a release is of records, not views"),
            "held_out": (target.held_out is None, "nothing: the target has no models to compare"),
            "model.initialization": (target.model.initialization == "fixed", "fixed"),
        }
        for key, (fits, wanted) in required.items():
            if not fits:
                raise SpecError(f"mechanism.training.{key}", f"must be {wanted}")
        if self.steps > target.steps:
            problem = f"is {self.steps}, but the training has {target.steps} steps; use so many"
            raise SpecError("mechanism.batches", problem)
        if not self.sampled and (self.seed or cast(Label, adversary).record != "random"):
            key = "mechanism.seed" if self.seed else "adversary.record"
            raise SpecError(key, "is for sampled trials, and backend is exact; leave it out")

    def datasets(self) -> Mapping[str, Dataset]:
        return self.training.datasets()

    def check_inputs(self) -> None:
        try:
            self.training.check_inputs()
        except SpecError as error:
            key = error.key.removeprefix("mechanism.")
            raise SpecError(f"mechanism.training.{key}", error.problem) from error
        data = self.target.data
        if (classes := data.load().classes) != 2:
            problem = f"{data.name} has {classes} classes; labels must be 0 or 1, told by a sign"
            raise SpecError("mechanism.training.data", problem)
        _ = self.shape

    def check_records(self, adversary: Adversary) -> None:
        cast(Label, adversary).check_widths(self.shape.sizes, self.target.batch_size)

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """The steps that can have one record: one in each epoch, where this project shuffles."""
        target, releases = self.target, 1
        if not self.sampled:
            shuffled = type(target.sampling) is Shuffle
            releases = -(-horizon // target.sizes.per_epoch) if shuffled else horizon
        return Claimed(target.noise, releases, adjacency=Adjacency.REPLACE)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Gaussian for trials of one record, in one batch, which is proved here.

        All but one label is known, so the release is N(g_0, s² I) or N(g_1, s² I) for known g_0
        and g_1, and both statistics are linear in it. Records that are drawn make a mixture, and so
        would models that are not given.
        """
        return TradeOff.GAUSSIAN if cast(Label, adversary).record == "largest" else TradeOff.UNKNOWN

    def preparation(self, adversary: Adversary) -> Preparation:
        """The target, once for all that attack it."""
        return Preparation(1, {"target": self.training.identity(), "steps": self.steps})

    def prepare_part(self, adversary: Adversary, part: int, seeds: PartSeeds, gpu: bool) -> Arrays:
        training = self.target.training(seeds.sweep, gpu)
        return Target.trained(training, self.shape, self.steps, seeds.part).arrays

    def open(
        self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool, prepared: Prepared = ()
    ) -> Session:
        return Trials.from_target(prepared[0], cast(Label, adversary), self.noise)

    def exact(
        self, adversary: Adversary, horizons: tuple[int, ...], delta: float, prepared: Prepared = ()
    ) -> dict[int, tuple[Estimate, ...]]:
        """For `backend: exact`, closed forms of all batches so far; nothing before the target."""
        if self.sampled or not prepared:
            return {}
        return closed_forms(prepared[0], cast(Label, adversary), self.noise, horizons, delta)

    def distributions(
        self, adversary: Adversary, delta: float, prepared: Prepared
    ) -> Mapping[str, Floats]:
        """For `backend: exact`, those of figures 3 and 4."""
        if self.sampled:
            return {}
        return distributions(prepared[0], cast(Label, adversary), self.noise, delta)

    @property
    def noise(self) -> Noise:
        """The noise of every step."""
        return Noise(self.target.clip_norm, self.target.noise, self.clipping == "all")

    @property
    def shape(self) -> Shape:
        """The shape of the target's network."""
        from .dp_sgd.network import network

        data = self.target.data.load()
        return Shape.from_module(network(self.target.model, data.x.shape[1:], data.classes, 0))


@dataclasses.dataclass(frozen=True)
class Shape:
    """Shape of a chain of layers: widths from the input to the logit, and the activation."""

    sizes: tuple[int, ...]
    activation: str

    @classmethod
    def from_module(cls, module: nn.Module) -> Shape:
        """Raises SpecError unless it is linear layers, one activation between them, a logit."""
        from torch import nn

        from ..engines.packing.conversion import find_obstacle

        kinds = {nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid"}
        layers = list(module._modules.values()) if type(module) is nn.Sequential else []
        layers = layers[1:] if layers and type(layers[0]) is nn.Flatten else layers
        linear = [p for p in layers[::2] if type(p) is nn.Linear and p.bias is not None]
        between = {kinds.get(type(layer), "") for layer in layers[1::2]}
        plain = find_obstacle(module) is None and len(layers) % 2 == 1
        plain &= len(linear) == len(layers[::2]) >= 2
        if not plain or len(between) != 1 or "" in between or linear[-1].out_features != 1:
            raise SpecError(
                "mechanism.training.model",
                "is not a chain of fully connected layers with one activation between them "
                "(ReLU, tanh or sigmoid) and one logit; use mlp3 or fcnn",
            )
        sizes = [linear[0].in_features, *(layer.out_features for layer in linear)]
        return cls(tuple(sizes), between.pop())

    def layers(self, theta: npt.NDArray[np.floating]) -> list[tuple[Floats, Floats]]:
        """Weights [out, in] and biases [out] of every layer, of parameters [p] in torch's order."""
        rest, layers = np.asarray(theta, dtype=np.float64), []
        for into, out in itertools.pairwise(self.sizes):
            weights, biases, rest = np.split(rest, [into * out, into * out + out])
            layers.append((weights.reshape(out, into), biases))
        return layers

    def run(self, theta: npt.NDArray[np.floating], x: npt.NDArray[np.floating]) -> Pass:
        """Runs records x [N, ...] forward and back under parameters [p], in float64."""
        values = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        activated, slope = ACTIVATIONS[self.activation]
        inputs, before, layers = [values], [], self.layers(theta)
        for weight, bias in layers:
            before.append(inputs[-1] @ weight.T + bias)
            inputs.append(activated(before[-1]))
        slopes = [np.ones_like(before[-1])]
        for (weight, _), z in zip(layers[:0:-1], before[-2::-1], strict=True):
            slopes.append((slopes[-1] @ weight) * slope(z))
        return Pass(tuple(inputs[:-1]), tuple(slopes[::-1]), special.expit(before[-1][:, 0]))


@dataclasses.dataclass(frozen=True)
class Pass:
    """A forward and backward pass of N records: `inputs` [N, in] of every layer, `derivatives`
    [N, out] of the logit by what it gives before its activation, `probabilities` [N] of label 1.
    """

    inputs: tuple[Floats, ...]
    derivatives: tuple[Floats, ...]
    probabilities: Floats

    def columns(self, layer: int, neuron: int | None) -> Floats:
        """Derivatives of logits by a layer's weights (eq. 1), or by a neuron's (eq. 4): [d, N]."""
        values, slopes = self.inputs[layer], self.derivatives[layer]
        if neuron is not None:
            return (slopes[:, neuron, None] * values).T
        return (slopes[:, :, None] * values[:, None, :]).reshape(len(values), -1).T

    @property
    def norms(self) -> Floats:
        """Norms of the derivatives by all parameters, biases too: float64 [N]."""
        squares = sum(
            (slopes**2).sum(axis=1) * ((values**2).sum(axis=1) + 1)
            for values, slopes in zip(self.inputs, self.derivatives, strict=True)
        )
        return np.asarray(np.sqrt(squares))


@dataclasses.dataclass(frozen=True)
class Target:
    """A trained target, as arrays: `theta` [steps, p], `x` [steps, N, d], `y`, `records`."""

    arrays: Arrays

    @classmethod
    def trained(cls, training: DpSgdTraining, shape: Shape, steps: int, seed: int) -> Target:
        """Keeps what `steps` need. Raises SpecError where it diverged, or a record is twice."""
        thetas: list[npt.NDArray[np.floating]] = []
        path = training.run(training.initial.new_zeros(1), seed, None, 1)
        for step, theta in enumerate(itertools.islice(path, steps)):
            thetas.append(theta[0].cpu().numpy().copy())
            if not np.isfinite(thetas[-1]).all():
                key, rate = "mechanism.training.learning_rate", training.recipe.learning_rate
                problem = f"is {plain(rate)}, with which the target has diverged before step"
                raise SpecError(key, f"{problem} {step + 1}; lower it")
        batches = [batch.cpu().numpy() for batch in training.batches[:steps]]
        size = training.recipe.batch_size
        if any(not len(np.unique(batch)) == len(batch) == size for batch in batches):
            raise SpecError(
                "mechanism.training.sampling",
                f"is {training.recipe.sampling.address}, which has batches with a record twice, or "
                f"of another size than {size}; use fixed or shuffle",
            )
        records = np.stack(batches)
        return cls(
            {
                "theta": np.stack(thetas),
                "x": training.x.cpu().numpy()[records],
                "y": training.y.cpu().numpy()[records],
                "records": records,
                "sizes": np.array(shape.sizes),
                "activation": np.array(list(ACTIVATIONS).index(shape.activation)),
                "seed": np.array(seed % 2**63),
            }
        )

    @property
    def steps(self) -> int:
        """Number of steps that are kept."""
        return len(self.arrays["theta"])

    @property
    def shape(self) -> Shape:
        """The shape of its network."""
        sizes = tuple(self.arrays["sizes"].tolist())
        return Shape(sizes, list(ACTIVATIONS)[int(self.arrays["activation"])])


@dataclasses.dataclass(frozen=True)
class Noise:
    """C, σ, and whether all parameters are clipped together, as DP-SGD does."""

    clip_norm: float
    multiplier: float
    whole: bool


@dataclasses.dataclass(frozen=True)
class Release:
    """Labels `y` [N] of `records`, their `probabilities`, and CᵀC of columns C by attacked weights:
    all that tells them apart. `norms`: None where these weights are clipped alone.
    """

    gram: Floats
    probabilities: Floats
    y: npt.NDArray[np.int64]
    norms: Floats | None
    noise: Noise
    records: npt.NDArray[np.int64]

    @classmethod
    def from_step(
        cls, target: Target, step: int, adversary: Label, noise: Noise
    ) -> tuple[Release, Floats]:
        """A step's release as `adversary` sees it; its columns by the attacked weights, [d, N]."""
        theta, x, y, records = (target.arrays[n][step] for n in ("theta", "x", "y", "records"))
        shape = target.shape
        if adversary.crafts:
            weights, _ = shape.layers(theta)[0]
            rng = np.random.default_rng([int(target.arrays["seed"]), step])  # the same on each call
            x = crafted_records(weights, len(x), rng)
        passed = shape.run(theta, x)
        columns = passed.columns(adversary.layer_index(len(passed.inputs)), adversary.row)
        norms, gram = passed.norms if noise.whole else None, np.asarray(columns.T @ columns)
        return cls(gram, passed.probabilities, y, norms, noise, records), columns

    def bounds(self, delta: float) -> bounds.LabelBounds:
        """Bounds of every record's label."""
        level = (self.noise.clip_norm, self.noise.multiplier, delta)
        labels = self.y.astype(np.float64)
        return bounds.bounds_of_gram(self.gram, self.probabilities, labels, *level, self.norms)

    def coefficients(self, y: npt.NDArray[np.int64]) -> Floats:
        """Coefficient of each record's column in the sum without noise, for labels `y` [..., N]."""
        norms = np.sqrt(np.diag(self.gram)) if self.norms is None else self.norms
        return bounds.clipped(norms, self.probabilities - y, self.noise.clip_norm)

    def sums(self, y: npt.NDArray[np.int64], rng: np.random.Generator) -> Floats:
        """Cᵀ g for labels `y` [n, N], float64 [n, N], with noise Cᵀ z, which is N(0, s² CᵀC)."""
        noise = rng.normal(size=(len(y), self._root.shape[1])) @ self._root.T
        scale = self.noise.clip_norm * self.noise.multiplier
        return self.coefficients(y) @ self.gram + scale * noise

    def solutions(self, sums: Floats) -> Floats:
        """The attacker's solutions [n, N]; NaN where the system does not determine one."""
        inverse, determined = self._solver
        return np.asarray(np.where(determined, sums @ inverse, np.nan))

    @functools.cached_property
    def _root(self) -> Floats:
        values, vectors = np.linalg.eigh(self.gram)
        return np.asarray(vectors * np.sqrt(np.maximum(values, 0.0)))

    @functools.cached_property
    def _solver(self) -> tuple[Floats, npt.NDArray[np.bool_]]:
        return bounds.solver(self.gram)


def closed_forms(
    prepared: Arrays, adversary: Label, noise: Noise, horizons: tuple[int, ...], delta: float
) -> dict[int, tuple[Estimate, ...]]:
    """Estimates at each number of batches, given the target's models: no trial is behind them.

    `exact`: the ε of the Gaussian pair that all releases make of one record's label, the largest
    over records. `closed-form`: Algorithm 2, the largest over records and batches; `complement`
    has the opposite answer too. `extrapolated`: what the first batch's is expected to become. The
    models came of noise, too: over all that might have come of it, ε may be less or more.
    """
    target = Target(prepared)
    estimates: dict[int, tuple[Estimate, ...]] = {}
    best, first = np.zeros(3), 0.0  # closed forms and μ; the first batch's closed form
    squares = collections.defaultdict[int, float](float)
    for step in range(1, target.steps + 1):
        release, _ = Release.from_step(target, step - 1, adversary, noise)
        labels = release.bounds(delta)
        for record, mu in zip(release.records.tolist(), labels.mu, strict=True):
            squares[record] += float(np.square(mu))
        both = np.fmax(labels.epsilon, labels.epsilon_complement)
        largest = [np.nanmax(values, initial=0.0) for values in (labels.epsilon, both)]
        best = np.maximum(best, [*largest, math.sqrt(max(squares.values()))])
        first = float(largest[0]) if step == 1 else first
        if step in horizons:
            grown = first * bounds.growth(len(release.records), step)
            values = (
                ("exact", Status.CERTIFIED, gdp.epsilon(best[2], delta)),
                ("closed-form", Status.CERTIFIED, best[0]),
                ("complement", Status.CERTIFIED, best[1]),
                ("extrapolated", Status.APPROXIMATE, grown),
            )
            estimates[step] = tuple(
                Estimate(name, status, float(value), math.nan, delta, 1.0, 0)
                for name, status, value in values
            )
    return estimates


def distributions(
    prepared: Arrays, adversary: Label, noise: Noise, delta: float
) -> dict[str, Floats]:
    """Figures 3 and 4: Algorithm 2's bound of every label, entries of attacked mean gradients."""
    target, epsilons, entries = Target(prepared), [], []
    for step in range(target.steps):
        release, columns = Release.from_step(target, step, adversary, noise)
        epsilon = release.bounds(delta).epsilon
        epsilons.append(epsilon[np.isfinite(epsilon)])
        entries.append(np.abs(columns @ release.coefficients(release.y)) / len(release.y))
    return {
        "ε of each label (Algorithm 2)": np.concatenate(epsilons),
        "size of a mean gradient's entries": np.concatenate(entries),
    }


@dataclasses.dataclass(frozen=True)
class Trials:
    """A session of trials. `distances` [batches, N]: μ of each label; NaN where not determined."""

    adversary: Label
    releases: tuple[Release, ...]
    distances: Floats

    @classmethod
    def from_target(cls, prepared: Arrays, adversary: Label, noise: Noise) -> Trials:
        """Raises SpecError where no label is determined."""
        steps = [(Target(prepared), step) for step in range(len(prepared["theta"]))]
        releases = tuple(Release.from_step(*step, adversary, noise)[0] for step in steps)
        labels = [release.bounds(0.0) for release in releases]
        by_whole = adversary.statistic == "gradient"
        distances = np.stack([bound.mu if by_whole else bound.mu_direction for bound in labels])
        if not np.isfinite(distances).any():
            problem = f"is {adversary.neuron}, which tells no label of any batch; use another one"
            raise SpecError("adversary.neuron", problem)
        return cls(adversary, releases, distances)

    def run(self, members: Members, seed: int, horizons: tuple[int, ...]) -> Measured:
        """Scores [n, 1]; and the accuracy of all labels that are rebuilt, at every step alike."""
        rng = np.random.default_rng(seed)
        if self.adversary.record == "largest":
            largest = np.unravel_index(np.nanargmax(self.distances), self.distances.shape)
            batches, places = np.tile(np.array(largest)[:, None], (1, len(members)))
        else:
            able = np.argwhere(np.isfinite(self.distances))
            batches, places = able[rng.integers(len(able), size=len(members))].T
        scores, right, determined = (np.full(len(members), math.nan) for _ in range(3))
        for b in np.unique(batches):
            rows = np.flatnonzero(batches == b)
            release, records = self.releases[b], places[rows]
            y = np.tile(release.y, (len(rows), 1))
            trials = np.arange(len(rows))
            y[trials, records] ^= members[rows]
            solved = release.solutions(release.sums(y, rng))
            signs = 1 - 2 * release.y[records]  # of the coefficient, with the label as it is
            if self.adversary.statistic == "gradient":
                # Log likelihood ratios of the whole release: along g_1 - g_0 it is N(b μ, 1), no
                # more. Drawn there, as far apart as the closed form has it: no check of that.
                mu = self.distances[b][records]
                scores[rows] = mu * (members[rows] * mu + rng.normal(size=len(mu))) - mu**2 / 2
            else:
                # Over the standard deviation of each coefficient, from μ and how far worlds differ.
                turned, kept = (release.coefficients(y) for y in (1 - release.y, release.y))
                scale = self.distances[b] / np.abs(turned - kept)
                scores[rows] = -signs * solved[trials, records] * scale[records]
            named = self.adversary.labels(solved)
            count = (named >= 0).sum(axis=1)
            determined[rows] = (named >= 0).mean(axis=1)
            hits = ((named == y) & (named >= 0)).sum(axis=1)
            right[rows] = np.where(count > 0, hits / np.maximum(count, 1), np.nan)
        scores, right, determined = (
            np.repeat(values[:, None], len(horizons), axis=1)
            for values in (scores, right, determined)
        )
        return Measured(scores, {"accuracy": right, "determined": determined})
