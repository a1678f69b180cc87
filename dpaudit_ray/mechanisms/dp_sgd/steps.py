"""One DP-SGD step for n models: θ ← θ - η/|B| (Σ_j clip(g_j, C) + b g* + N(0, σ²C² I)).

The canary's part b g* joins the sum before θ is rounded: added to θ afterwards, a step below one
unit in the last place of θ would be lost, or doubled, in the trainings that have the canary only.
A batch may be empty, and |B| is the expected size whatever it holds. Both engines change the rows
of one matrix.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ...adversaries.base import Canary, ChangingCanary, GradientCanary, SampleCanary
from ...engines.cpu.threads import beside, ours
from ...engines.noise import noise_source
from ...engines.packing.packed import PackedModel
from ...engines.rules.base import trained
from ...engines.rules.losses import Loss, losses
from ...errors import SpecError, first_line, plain
from .network import generator
from .recipe import Recipe
from .sampling import Coins
from .updates import Noisy, State

Array = npt.NDArray[Any]
_LARGE = 1 << 16  # numbers whose noise is drawn beside the gradients: half a millisecond
_LARGEST = 1e15  # entry of a crafted example: squares and their sums must not overflow
_LARGEST_NORM = 1e30  # to clip to: Opacus multiplies it by a noise of 0
_OPTIMIZER = "optimizer."  # what names of an optimizer's moments begin with in a state


@dataclasses.dataclass(frozen=True)
class Inserted:
    """A canary at one step, and which models have it.

    `inside` is [n], 1 where it is in, else 0; or [n, m] for each of m examples or directions. It is
    on the CPU: a step that looks bits up on a GPU would wait for it.
    """

    canary: GradientCanary | SampleCanary
    inside: Tensor
    weights: Tensor | None = None  # [n, B]: 0 where private records themselves are out

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
    """A canary over a training: at steps that `period` divides, by coins tossed at every step."""

    canary: Canary
    inside: Tensor  # as in `Inserted`, before sampling
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
        some = canary.memoryless and self.inside.dim() == 1 and not coins.all()
        rows = torch.from_numpy(coins).nonzero()[:, 0].to(theta.device) if some else slice(None)
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
    """Raises SpecError for a canary that breaks the claim; each model has `coins` secret bits."""
    problem = ""
    if isinstance(canary, GradientCanary):
        shape = tuple(canary.direction.shape)
        fits = shape == (coins, parameters) if coins > 1 else shape[-1:] == (parameters,)
        if not fits:
            problem = f"crafted a gradient of shape {shape}; each bit takes {parameters} numbers"
        elif not (norm := _longest(canary.direction)) <= clip_norm * (1 + 1e-6):
            problem = f"crafted a gradient of norm {norm:.6g}, above the clip norm {clip_norm:g}"
    elif isinstance(canary, SampleCanary):
        rows = len(canary.x)
        if rows != coins or len(canary.y) != rows:
            problem = (
                f"crafted {rows} examples with {len(canary.y)} labels for {coins} secret "
                f"bit{'s' * (coins > 1)}; the claim covers one, with one label, for each"
            )
        elif not (largest := float(canary.x.abs().max())) <= _LARGEST:
            problem = (
                f"crafted an example with an entry of {plain(largest, '.3g')}, whose gradient has "
                f"no norm in float32; use at most {plain(_LARGEST)}"
            )
    if problem:
        raise SpecError("adversary.name", problem)


def check_apart(canary: Canary, bits: int) -> None:
    """Raises SpecError if canaries of different bits share a parameter; j is of bit j % `bits`."""
    shared = bits > 1
    if shared and isinstance(canary, GradientCanary):
        rows, places = canary.direction.to_sparse().coalesce().indices().cpu()
        owners = {*zip(places.tolist(), (rows % bits).tolist(), strict=True)}
        shared = len({place for place, _ in owners}) < len(owners)
    if shared:
        problem = "crafted canaries that share parameters, or no gradients; they are not `apart`"
        raise SpecError("adversary.name", problem)


def _longest(directions: Tensor) -> float:
    """The largest norm of a row, in float64 or float32: who scales by the latter is off by 7e-6."""
    if directions.is_sparse:
        sparse = directions.coalesce()
        squares = torch.zeros(len(directions), dtype=torch.float64, device=directions.device)
        squares.index_add_(0, sparse.indices()[0], sparse.values().double() ** 2)
        return float(squares.max().sqrt())
    norm, kinds = torch.linalg.vector_norm, (None, torch.float64)
    return min(float(norm(directions, dim=-1, dtype=kind).max()) for kind in kinds)


class PackedSteps:
    """Gradients of all models at once; noise from one stream for the whole pack.

    `state` has all but θ that later steps depend on, by name; `restore` goes on as if so many steps
    were taken, and raises KeyError for another engine's state.
    """

    def __init__(self, recipe: Recipe, model: PackedModel, seed: int, device: torch.device) -> None:
        self._recipe, self._model, self._device = recipe, model, device
        self._noise = noise_source(seed, device)
        self._update: Tensor | None = None
        self._state: State = {}
        self._taken = 0

    @ours()
    def step(self, theta: Tensor, x: Tensor, y: Tensor, inserted: Inserted | None) -> Tensor:
        """Changes `theta`, float [n, p], in place; returns the noisy sums, likewise.

        The next step may overwrite these. `x` [B, ...] and `y` [B] are a batch of any number;
        `inserted` is a canary that joins some of the models' sums.
        """
        recipe = self._recipe
        if self._update is None:
            self._update = torch.empty_like(theta)
        update = self._update
        # Drawn for the whole pack, so that how it is split for the gradients changes nothing.
        worth = update.device.type == "cpu" and update.numel() >= _LARGE
        drawn = beside(functools.partial(self._draw, update), worth)
        viewed = recipe.augmentations > 1
        how = recipe.clip_norm, viewed, None if inserted is None else inserted.weights
        for sums in sums_of_parts(self._model, recipe, theta, x, y, *how):
            drawn()
            update += sums
        drawn()
        if inserted is not None and inserted.weights is None:
            self._insert(update, theta, inserted)
        self._taken += 1
        noisy = Noisy(update, recipe.batch_size, recipe.rate(self._taken), self._taken)
        recipe.optimizer.move(theta, noisy, self._state)
        return update

    def _draw(self, update: Tensor) -> None:
        if self._recipe.noise == 0:
            update.zero_()
            return
        self._noise.fill(update)
        update *= self._recipe.noise * self._recipe.clip_norm

    def _insert(self, update: Tensor, theta: Tensor, inserted: Inserted) -> None:
        """Adds to the rows of models that have the canary; whatever it is, no other row changes."""
        canary, clip_norm = inserted.canary, self._recipe.clip_norm
        if isinstance(canary, GradientCanary) and inserted.inside.dim() > 1:
            update += summed(canary.direction, inserted.inside)
        elif isinstance(canary, GradientCanary):
            (rows,) = inserted.rows
            update[rows] += inserted.direction(rows)
        elif len(canary.y) <= len(theta):  # the canaries or the models: what takes fewer passes
            for j, rows in enumerate(inserted.rows):
                if len(rows):
                    x, y = canary.x[j : j + 1], canary.y[j : j + 1]
                    update[rows] += self._model.clipped_sums(theta[rows], x, y, clip_norm)
        else:
            for i, examples in enumerate(inserted.examples):
                if len(examples):
                    x, y = canary.x[examples], canary.y[examples]
                    update[i] += self._model.clipped_sums(theta[i : i + 1], x, y, clip_norm)[0]

    def state(self) -> dict[str, Array]:
        moments = {_OPTIMIZER + name: moment.cpu().numpy() for name, moment in self._state.items()}
        return self._noise.state() | moments

    def restore(self, state: Mapping[str, Array], taken: int) -> None:
        self._noise.restore(state)
        self._taken = taken
        for name, array in state.items():
            if name.startswith(_OPTIMIZER):
                self._state[name.removeprefix(_OPTIMIZER)] = tensor(array, self._device)


class OpacusSteps:
    """The reference: slow, and what a user of Opacus runs. Models take turns in one module."""

    def __init__(
        self, recipe: Recipe, module: nn.Module, seed: int, device: torch.device,
        loss: Loss = losses,
    ) -> None:  # fmt: skip
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        self._recipe, self._loss, self._taken = recipe, loss, 0
        try:
            self._module = GradSampleModule(copy.deepcopy(module).to(device))
        except NotImplementedError as error:
            problem = f"is opacus, which does not take this model ({first_line(error):.200})"
            raise SpecError("mechanism.engine", f"{problem}; use packed") from error
        self._parameters = list(trained(self._module).values())
        self._optimizer = DPOptimizer(
            recipe.optimizer.torch(self._parameters, recipe.learning_rate),
            noise_multiplier=recipe.noise,
            max_grad_norm=min(recipe.clip_norm, _LARGEST_NORM),
            expected_batch_size=recipe.batch_size,
            generator=generator(seed, device),
        )
        self._direction: Tensor | None = None  # of the model that takes its step
        self._optimizer.attach_step_hook(self._push)
        self._states: defaultdict[int, Any] = defaultdict(lambda: defaultdict(dict))

    def step(self, theta: Tensor, x: Tensor, y: Tensor, inserted: Inserted | None) -> Tensor:
        self._taken += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.rate(self._taken)
        return torch.stack([self._turn(i, theta, x, y, inserted) for i in range(len(theta))])

    def _turn(
        self, model: int, theta: Tensor, x: Tensor, y: Tensor, inserted: Inserted | None
    ) -> Tensor:
        """The step of one model, row `model` of `theta`; returns its noisy sum, float [p]."""
        x, self._direction = x.clone(), None  # a copy: a module may change its input in place
        if inserted is not None and inserted.weights is not None:
            x, y = x[inserted.weights[model] > 0], y[inserted.weights[model] > 0]
        elif inserted is not None and isinstance(canary := inserted.canary, SampleCanary):
            joining = inserted.examples[model]
            x, y = torch.cat([x, canary.x[joining]]), torch.cat([y, canary.y[joining]])
        elif inserted is not None and isinstance(canary, GradientCanary):
            if (inside := inserted.inside[model]).dim():
                self._direction = summed(canary.direction, inside[None])[0]
            elif inside:
                self._direction = inserted.direction(model)
        self._optimizer.state = self._states[model]
        nn.utils.vector_to_parameters(theta[model].clone(), self._parameters)
        *before, last = parts(len(y), self._recipe) or [slice(0, 0)]
        for part in before:
            self._optimizer.signal_skip_step(do_skip=True)
            self._part(x[part], y[part])
        self._part(x[last], y[last])
        theta[model] = nn.utils.parameters_to_vector(self._parameters).detach()
        gradient = torch.cat([p.grad.flatten() for p in self._parameters if p.grad is not None])
        return gradient * self._recipe.batch_size

    def _part(self, x: Tensor, y: Tensor) -> None:
        self._optimizer.zero_grad()
        with torch.enable_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hooks on inputs that need no gradient
            torch.autograd.backward(self._loss(self._module(x), y).mean())
        self._optimizer.step()

    def _push(self, _optimizer: object) -> None:
        """Called by the optimizer between noise and step."""
        if self._direction is None:
            return
        parts = torch.split(self._direction, [p.numel() for p in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            assert parameter.grad is not None
            parameter.grad += part.view(parameter.shape) / self._recipe.batch_size

    def state(self) -> dict[str, Array]:
        arrays = {"generator": self._optimizer.generator.get_state().numpy()}
        for model, remembered in self._states.items():
            for index, parameter in enumerate(self._parameters):
                for name, value in remembered[parameter].items():
                    if value is not None:
                        array = torch.as_tensor(value).cpu().numpy().copy()
                        arrays[f"{_OPTIMIZER}{model}.{index}.{name}"] = array
        return arrays

    def restore(self, state: Mapping[str, Array], taken: int) -> None:
        self._optimizer.generator.set_state(torch.from_numpy(state["generator"].copy()))
        self._taken = taken
        for key, array in state.items():
            if key.startswith(_OPTIMIZER):
                _, model, index, name = key.split(".", 3)
                parameter = self._parameters[int(index)]
                device = torch.device("cpu") if name == "step" else parameter.device
                self._states[int(model)][parameter][name] = tensor(array, device)


Steps = PackedSteps | OpacusSteps  # an engine at work on one pack, from its first step on


def tensor(array: Array, device: torch.device) -> Tensor:
    """A tensor with a copy of these numbers, aligned as torch has it: last bits depend on that."""
    return torch.tensor(np.array(array), device=device)


def sums_of_parts(  # noqa: PLR0913 (what a step knows)
    model: PackedModel, recipe: Recipe, theta: Tensor, x: Tensor, y: Tensor,
    clip_norm: float, viewed: bool, weights: Tensor | None = None,
) -> Iterator[Tensor]:  # fmt: skip
    """Clipped sums [n, p] of each part of a batch: of x [B, ...], or of views, [B, K, ...]."""
    sums = model.viewed_sums if viewed else model.clipped_sums
    for part in parts(len(y), recipe):
        share = [] if weights is None else [weights[:, part]]
        yield sums(theta, x[part], y[part], clip_norm, *share)


def parts(examples: int, recipe: Recipe) -> list[slice]:
    """A logical batch in parts of at most `physical_batch_size`; none of an empty one."""
    size = recipe.physical_batch_size or max(examples, 1)
    return [slice(start, start + size) for start in range(0, examples, size)]
