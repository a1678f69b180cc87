"""Steps of DP-SGD for n models: θ ← θ - η/|B| (Σ_j clip(g_j, C) + b g* + N(0, σ²C² I)).

The canary's part b g* joins the sum before θ is rounded. If it were added to θ afterwards, a step
below one unit in the last place of θ would be lost, or doubled, in models with the canary only.
A batch may be empty; |B| is its expected size. Both engines have the models as rows of one matrix,
and change it in place.
"""

import copy
import math
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...adversaries.base import Canary, ChangingCanary, GradientCanary, SampleCanary
from ...engines.cpu.threads import start_in_background, torch_on_one_thread
from ...engines.gpu_settings import copied_to
from ...engines.noise import noise_source
from ...engines.packing.packed import PackedModel
from ...engines.rules.base import trained
from ...engines.rules.losses import Loss, classification_losses
from ...errors import SpecError, first_line, plain
from .network import generator
from .recipe import Recipe
from .sampling import Coins
from .units import GroupedModel
from .updates import Noisy, State

Array = NDArray[Any]
_FEWEST_FOR_THREAD = 1 << 16  # numbers whose noise takes half a millisecond: worth a thread
_LARGEST_ENTRY = 1e15  # of a crafted example: sums of squares must not overflow
_LARGEST_NORM = 1e30  # stands for no clipping, as Opacus multiplies the norm by a noise of 0
_OPTIMIZER = "optimizer."  # prefix of an optimizer's values among the names of a state
_NOISE = "noise."  # prefix of the earlier noise that correlated noise needs


@dataclass(frozen=True)
class Inserted:
    """A canary at one step, and the models that have it.

    Attributes:
        canary: the gradients, or the examples whose clipped gradients, join the models' sums.
        inside: 1 if the model has it, else 0: [n], or [n, m] for each of m examples or directions.
            On the CPU, as a step that reads bits from a GPU would wait for it.
        weights: weights of the batch's records [n, B], 0 for private records that are out; None
            for other canaries.
    """

    canary: GradientCanary | SampleCanary
    inside: Tensor
    weights: Tensor | None = None

    @cached_property
    def rows(self) -> tuple[Tensor, ...]:
        """Numbers of the models that have the canary, for each of its examples."""
        return self._indices(self._bits.t())

    @cached_property
    def examples(self) -> tuple[Tensor, ...]:
        """Numbers of the examples that a model has, for each model."""
        return self._indices(self._bits)

    @property
    def _bits(self) -> Tensor:
        """`inside` as [n, m], also if m is 1."""
        return self.inside.view(len(self.inside), -1)

    def _indices(self, bits: Tensor) -> tuple[Tensor, ...]:
        """Returns the numbers of the bits that are set, by row, on the canary's device."""
        canary = self.canary
        values = canary.x if isinstance(canary, SampleCanary) else canary.direction
        return tuple(copied_to(row.nonzero()[:, 0], values.device) for row in bits)

    def direction(self, model: int) -> Tensor | None:
        """Returns the gradient that joins the sum of this model, float [p]; None if it has none."""
        assert isinstance(self.canary, GradientCanary)
        directions = self.canary.direction
        inside = self.inside[model]
        if inside.dim():  # several canaries, a bit for each
            return summed(directions, inside[None])[0]
        if not inside:
            return None
        return directions if directions.dim() == 1 else directions[model]


def summed(directions: Tensor, inside: Tensor) -> Tensor:
    """Sums the canaries that each model has: Σ_j b_j g_j, float [n, p].

    Entries must be finite: 0 times NaN or infinity would be NaN. `check_claim` refuses others, as a
    finite C bounds the norm.

    Args:
        directions: gradients g_j of m canaries, float [m, p], may be sparse.
        inside: bits b [n, m].
    """
    bits = copied_to(inside, directions.device)
    return (directions.t() @ bits.t()).t()


@dataclass(frozen=True)
class Insertion:
    """The schedule of a canary in one training run of n models.

    The canary joins a model at each step t with t ≡ `offset` modulo `period`, if the model's bit
    and the step's coin are 1.
    """

    canary: Canary
    inside: Tensor  # membership as in `Inserted`, before sampling
    period: int
    coins: Iterator[Coins]  # coins of every step, of the shape of `inside`
    clip_norm: float
    offset: int = 0

    def at(self, step: int, theta: Tensor) -> Inserted | None:
        """Returns the canary that joins models at a step, if any.

        The method must be called for every step, in order: it draws the step's random bits.

        Args:
            step: number of the step, from 1.
            theta: the models before the step, float [n, p].
        """
        coins = next(self.coins)
        canary = self.canary
        if (step - self.offset) % self.period:
            return None
        if isinstance(canary, ChangingCanary):
            # A canary with a memory is crafted at every insertion, even if no model samples it.
            if canary.memoryless and not coins.any():
                return None
            canary = self._crafted(canary, step, theta, coins)
        elif coins.all():
            return self._into_all_models
        return Inserted(canary, self.inside * torch.from_numpy(coins))

    def _crafted(
        self, canary: ChangingCanary, step: int, theta: Tensor, coins: Coins
    ) -> GradientCanary | SampleCanary:
        """Crafts the canary of `step`; a memoryless canary only for models that sample it.

        Args:
            canary: crafted anew at each step.
            step: number of the step, from 1.
            theta: models before the step, float [n, p].
            coins: whether each model samples the canary, bool [n] or [n, m].
        """
        has_one_bit = self.inside.dim() == 1
        for_sampled = canary.memoryless and has_one_bit and not coins.all()
        rows: Any = slice(None)  # models that the canary is crafted for: all
        if for_sampled:
            rows = copied_to(torch.from_numpy(np.flatnonzero(coins)), theta.device)
        crafted = canary.at(step, theta[rows].clone())
        bits = 1 if has_one_bit else self.inside.shape[1]
        check_claim(crafted, theta.shape[1], self.clip_norm, bits)
        if for_sampled and isinstance(crafted, GradientCanary) and crafted.direction.dim() > 1:
            directions = torch.zeros_like(theta)  # the rows of other models are not used
            directions[rows] = crafted.direction
            return GradientCanary(directions)
        return crafted

    @cached_property
    def _into_all_models(self) -> Inserted:
        """The insertion at steps at which every model samples the canary.

        All these steps share one object, so `Inserted` finds the models with a canary once.
        """
        assert not isinstance(self.canary, ChangingCanary)
        return Inserted(self.canary, self.inside)


def check_claim(
    canary: Canary,
    parameters: int,
    clip_norm: float,
    bits: int,
) -> None:
    """Raises SpecError for a canary that breaks the claim.

    Args:
        canary: the canary; a changing one is not checked here, but at each step.
        parameters: number of parameters of the model.
        clip_norm: C, the largest norm of a gradient.
        bits: secret bits of each model, each for one canary.
    """
    problem = ""
    if isinstance(canary, GradientCanary):
        shape = tuple(canary.direction.shape)
        fits = shape[-1:] == (parameters,)
        if bits > 1:
            fits = shape == (bits, parameters)
        norm = _longest(canary.direction) if fits else math.nan
        if not fits:
            problem = f"crafted a gradient of shape {shape}; each bit takes {parameters} numbers"
        elif not norm <= clip_norm * (1 + 1e-6):  # float32 rounds; a norm of NaN fails, too
            problem = f"crafted a gradient of norm {norm:.6g}, above the clip norm {clip_norm:g}"
    elif isinstance(canary, SampleCanary):
        rows = len(canary.x)
        fits = rows == len(canary.y) == bits
        largest = float(canary.x.abs().max()) if fits else math.nan
        if not fits:
            noun = "bit" if bits == 1 else "bits"
            problem = (
                f"crafted {rows} examples with {len(canary.y)} labels for {bits} secret {noun}; "
                "the claim covers one, with one label, for each"
            )
        elif not largest <= _LARGEST_ENTRY:
            problem = (
                f"crafted an example with an entry of {plain(largest, '.3g')}, whose gradient has "
                f"no norm in float32; use at most {plain(_LARGEST_ENTRY)}"
            )
    if problem:
        raise SpecError("adversary.name", problem)


def check_apart(canary: Canary, bits: int) -> None:
    """Raises SpecError if canaries of different bits share a parameter.

    Args:
        canary: the gradients; number j belongs to bit j modulo `bits`.
        bits: secret bits of each model.
    """
    if bits == 1:
        return
    if isinstance(canary, GradientCanary):
        indices = canary.direction.to_sparse().coalesce().indices().cpu()
        canaries, parameters = (row.tolist() for row in indices)
        pairs = zip(canaries, parameters, strict=True)
        owners = {(parameter, canary_index % bits) for canary_index, parameter in pairs}
        if len(owners) == len(set(parameters)):  # each parameter has one owner
            return
    raise SpecError(
        "adversary.name",
        "crafted canaries that share parameters, or no gradients; they are not `apart`",
    )


def _longest(directions: Tensor) -> float:
    """Returns the largest norm of a row: its value in this precision or in float64, if smaller.

    Gradients that an adversary scales by their norm in float32 may be longer by 7e-6 in float64,
    and are not refused for that. Sparse rows are measured in float64 only.
    """
    if directions.is_sparse:
        sparse = directions.coalesce()
        values = sparse.values().double()
        rows, _ = sparse.indices()
        squares = values.new_zeros(len(directions)).index_add_(0, rows, values**2)
        return float(squares.max().sqrt())
    largest = []
    for dtype in (None, torch.float64):
        rows = torch.linalg.vector_norm(directions, dim=-1, dtype=dtype)
        largest.append(float(rows.max()))
    return min(largest)


class PackedSteps:
    """Steps of all models at once, with noise from one stream for the whole pack.

    `state` returns all that later steps depend on except θ, by name; `restore` continues from it,
    and raises KeyError for the state of another engine.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: PackedModel | GroupedModel,
        seed: int,
        device: torch.device,
    ) -> None:
        """Begins before the first step.

        Args:
            recipe: options of the training.
            model: computes clipped sums.
            seed: seed of the noise of the pack.
            device: device of parameters and examples.
        """
        self._recipe = recipe
        self._model = model
        self._device = device
        self._generator = noise_source(seed, device)
        self._update: Tensor | None = None  # noisy sums [n, p], allocated by the first step
        self._optimizer_state: State = {}
        self._earlier_noise: State = {}  # noise of earlier steps that correlated noise needs
        self._deviation = recipe.deviation  # standard deviation of the noise, over C
        self._steps_done = 0

    @torch_on_one_thread()
    def step(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        inserted: Inserted | None,
    ) -> Tensor:
        """Takes one step of all models.

        Args:
            theta: parameters, float [n, p], changed in place.
            x: the batch, [B, ...], or [B, K, ...] of K views; B may be 0.
            y: targets of the batch [B].
            inserted: a canary that joins some of the models' sums.

        Returns:
            The noisy sums, float [n, p]; the next step may overwrite them.
        """
        recipe = self._recipe
        if self._update is None:
            self._update = torch.empty_like(theta)
        update = self._update
        # `update` begins as noise, which is drawn while the first gradients are computed; then
        # gradients are added. Noise is drawn for the pack at once: parts cannot change it.
        is_worth_a_thread = update.device.type == "cpu" and update.numel() >= _FEWEST_FOR_THREAD
        wait_for_noise = start_in_background(partial(self._draw, update), is_worth_a_thread)
        weights = None if inserted is None else inserted.weights
        compute = self._model.viewed_sums if recipe.augmentations > 1 else self._model.clipped_sums
        for part in parts(len(y), recipe):
            options = {} if weights is None else {"weights": weights[:, part]}
            sums = compute(theta, x[part], y[part], recipe.clip_norm, **options)
            wait_for_noise()
            update += sums
        wait_for_noise()  # again, for an empty batch, which has no parts
        if inserted is not None and weights is None:  # else the batch has the canary already
            if isinstance(inserted.canary, SampleCanary):
                self._insert_examples(update, theta, inserted.canary, inserted)
            else:
                _add_gradient(update, inserted.canary.direction, inserted)
        self._steps_done += 1
        rate = recipe.rate(self._steps_done)
        noisy = Noisy(update, recipe.batch_size, rate, self._steps_done)
        # The optimizer changes `theta`.
        recipe.unit.move(recipe, theta, noisy, self._optimizer_state)
        return update

    def _draw(self, update: Tensor) -> None:
        """Fills `update` with the noise of one step; with zeros if there is no noise."""
        if self._deviation == 0:
            update.zero_()
            return
        self._generator.fill(update)
        update *= self._deviation * self._recipe.clip_norm
        self._recipe.noise.correlate(update, self._steps_done + 1, self._earlier_noise)

    def _insert_examples(
        self, update: Tensor, theta: Tensor, canary: SampleCanary, inserted: Inserted
    ) -> None:
        """Adds the clipped gradients of crafted examples to the sums of models that have them.

        Other rows are not written. Their gradients may be NaN, and NaN times a bit of 0 is NaN.

        Args:
            update: sums of gradients, float [n, p], changed in place.
            theta: the models, float [n, p].
            canary: the examples.
            inserted: which models have which examples.
        """
        compute = partial(self._model.clipped_sums, clip_norm=self._recipe.clip_norm)
        # One pass for each example, or one for each model, whichever takes fewer passes.
        if len(canary.y) <= len(theta):
            for example, rows in enumerate(inserted.rows):
                if len(rows):
                    x = canary.x[example, None]
                    y = canary.y[example, None]
                    update[rows] += compute(theta[rows], x, y)
        else:
            for model, examples in enumerate(inserted.examples):
                if len(examples):
                    row = slice(model, model + 1)
                    x = canary.x[examples]
                    y = canary.y[examples]
                    update[row] += compute(theta[row], x, y)

    def state(self) -> dict[str, Array]:
        """Returns the state of the noise and of the optimizer, as arrays by name."""
        arrays = self._generator.state()
        for name, values in self._optimizer_state.items():
            arrays[_OPTIMIZER + name] = values.cpu().numpy()
        for name, values in self._earlier_noise.items():
            arrays[_NOISE + name] = values.cpu().numpy()
        return arrays

    def restore(
        self,
        state: Mapping[str, Array],
        steps_done: int,
    ) -> None:
        """Continues from what `state` returned after `steps_done` steps.

        Raises:
            KeyError: an engine with another generator returned the state, so that the state of
                this generator is missing.
        """
        self._generator.restore(state)
        self._steps_done = steps_done
        for name, array in state.items():
            if name.startswith(_OPTIMIZER):
                self._optimizer_state[name.removeprefix(_OPTIMIZER)] = tensor(array, self._device)
            elif name.startswith(_NOISE):
                self._earlier_noise[name.removeprefix(_NOISE)] = tensor(array, self._device)


def _add_gradient(update: Tensor, directions: Tensor, inserted: Inserted) -> None:
    """Adds gradient canaries to the sums of models that have them.

    Args:
        update: sums of gradients, float [n, p], changed in place.
        directions: the canary's `GradientCanary.direction`, whose entries are finite.
        inserted: which models have which canaries.
    """
    if inserted.inside.dim() > 1:  # several canaries, a bit for each
        update += summed(directions, inserted.inside)
        return
    (rows,) = inserted.rows  # one canary: the models that have it
    update[rows] += directions if directions.dim() == 1 else directions[rows]


class OpacusSteps:
    """Steps by Opacus, one model after another in one module: slow, and the reference."""

    def __init__(
        self,
        recipe: Recipe,
        module: nn.Module,
        seed: int,
        device: torch.device,
        loss: Loss = classification_losses,
    ) -> None:
        """Begins before the first step.

        Args:
            recipe: options of the training.
            module: the network, which is copied.
            seed: seed of the noise of all models, one after another.
            device: device of parameters and examples.
            loss: the loss of each example.

        Raises:
            SpecError: Opacus does not take the network.
        """
        from opacus.grad_sample import GradSampleModule
        from opacus.optimizers import DPOptimizer

        self._recipe = recipe
        self._loss = loss
        self._steps_done = 0
        try:
            self._module = GradSampleModule(copy.deepcopy(module).to(device))
        except NotImplementedError as error:
            raise SpecError(
                "mechanism.engine",
                f"is opacus, which does not take this model ({first_line(error):.200}); use packed",
            ) from error
        self._parameters = list(trained(self._module).values())
        self._optimizer = DPOptimizer(
            recipe.optimizer.torch(self._parameters, recipe.learning_rate),
            noise_multiplier=recipe.multiplier,
            max_grad_norm=min(recipe.clip_norm, _LARGEST_NORM),
            expected_batch_size=recipe.batch_size,
            generator=generator(seed, device),
        )
        self._direction: Tensor | None = None  # gradient canary of the current model
        self._optimizer.attach_step_hook(self._add_direction)
        # Values that the optimizer keeps: by model, then by parameter, then by name.
        self._states: defaultdict[int, Any] = defaultdict(lambda: defaultdict(dict))

    def step(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        inserted: Inserted | None,
    ) -> Tensor:
        """Takes the step of one model after the other, by Opacus."""
        self._steps_done += 1
        for group in self._optimizer.param_groups:
            group["lr"] = self._recipe.rate(self._steps_done)
        models = range(len(theta))
        return torch.stack([self._step_of(model, theta, x, y, inserted) for model in models])

    def _step_of(
        self,
        model: int,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        inserted: Inserted | None,
    ) -> Tensor:
        """Takes the step of one model; returns its noisy sum, float [p].

        Args:
            model: number of the model, a row of `theta`.
            theta: parameters, float [n, p]; the row is changed in place.
            x: the batch, [B, ...].
            y: targets of the batch [B].
            inserted: a canary that joins some of the models' sums.
        """
        x = x.clone()  # a module may change its input in place
        self._direction = None
        if inserted is not None and inserted.weights is not None:
            is_in = inserted.weights[model] > 0  # weights are bits here
            x, y = x[is_in], y[is_in]
        elif inserted is not None and isinstance(inserted.canary, SampleCanary):
            examples = inserted.examples[model]
            x = torch.cat([x, inserted.canary.x[examples]])
            y = torch.cat([y, inserted.canary.y[examples]])
        elif inserted is not None:
            self._direction = inserted.direction(model)
        # The module and its optimizer serve all models: both get the state of this one.
        self._optimizer.state = self._states[model]
        nn.utils.vector_to_parameters(theta[model].clone(), self._parameters)
        # An empty batch is one empty part: the step then has noise only.
        *first_parts, last_part = parts(len(y), self._recipe) or [slice(0)]
        for part in first_parts:
            self._optimizer.signal_skip_step(do_skip=True)
            self._accumulate(x[part], y[part])
        self._accumulate(x[last_part], y[last_part])
        theta[model] = nn.utils.parameters_to_vector(self._parameters).detach()
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        # Opacus has left the noisy sum over |B| in them.
        return nn.utils.parameters_to_vector(gradients) * self._recipe.batch_size

    def _accumulate(self, x: Tensor, y: Tensor) -> None:
        """Adds the clipped gradients of a part of the batch to the current model's sum.

        Opacus also adds noise and changes the parameters, unless the caller has just called
        `signal_skip_step`: for all parts but the last.

        Args:
            x: examples of the part, [B, ...].
            y: targets of the examples [B].
        """
        self._optimizer.zero_grad()
        with torch.enable_grad(), warnings.catch_warnings():
            # PyTorch warns of Opacus' hooks on a module whose inputs need no gradient.
            warnings.simplefilter("ignore")
            losses = self._loss(self._module(x), y)
            # Opacus takes the loss to be a mean, and multiplies by the number of examples.
            torch.autograd.backward(losses.mean())
        self._optimizer.step()

    def _add_direction(self, _optimizer: object) -> None:
        """Adds the gradient canary: the optimizer calls it between noise and step."""
        if self._direction is None:
            return
        sizes = [parameter.numel() for parameter in self._parameters]
        pieces = torch.split(self._direction, sizes)
        for parameter, piece in zip(self._parameters, pieces, strict=True):
            assert parameter.grad is not None
            parameter.grad += piece.view(parameter.shape) / self._recipe.batch_size

    def state(self) -> dict[str, Array]:
        """Returns all that later steps depend on except θ, as arrays by name.

        "generator" is the state of the noise generator; "optimizer.MODEL.PARAMETER.NAME" is a value
        that the optimizer keeps, such as a moment, with the numbers of model and parameter.
        """
        arrays = {"generator": self._optimizer.generator.get_state().numpy()}
        for model, optimizer_state in self._states.items():
            for index, parameter in enumerate(self._parameters):
                for name, value in optimizer_state[parameter].items():
                    if value is not None:
                        # A copy: the next step changes the optimizer's own values in place.
                        array = torch.as_tensor(value).cpu().numpy().copy()
                        arrays[f"{_OPTIMIZER}{model}.{index}.{name}"] = array
        return arrays

    def restore(
        self,
        state: Mapping[str, Array],
        steps_done: int,
    ) -> None:
        """Continues from what `state` returned after `steps_done` steps.

        Raises:
            KeyError: the packed engine returned the state: it has no entry "generator".
        """
        generator_state = torch.from_numpy(state["generator"].copy())
        self._optimizer.generator.set_state(generator_state)
        self._steps_done = steps_done
        for key, array in state.items():
            if key.startswith(_OPTIMIZER):
                _, model, index, name = key.split(".", 3)
                parameter = self._parameters[int(index)]
                # torch's optimizers count steps on the CPU.
                device = torch.device("cpu") if name == "step" else parameter.device
                self._states[int(model)][parameter][name] = tensor(array, device)


Steps = PackedSteps | OpacusSteps  # an engine that trains one pack, from its first step on


def tensor(array: Array, device: torch.device) -> Tensor:
    """Returns a tensor with a copy of the numbers, which torch aligns: last bits depend on that."""
    return torch.tensor(np.array(array), device=device)


def parts(examples: int, recipe: Recipe) -> list[slice]:
    """Cuts a logical batch into parts of at most `physical_batch_size`; none if it is empty."""
    size = recipe.physical_batch_size or max(examples, 1)
    return [slice(start, start + size) for start in range(0, examples, size)]
