"""A training by DP-SGD: its public part, the split of its data, and the loop over its steps."""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from numpy.typing import NDArray
from torch import Tensor, nn

from ...adversaries.base import Canary, RecordCanary, SampleCanary
from ...data.base import Data, Dataset
from ...engines import gpu_settings
from ...engines.cpu.threads import torch_on_one_thread
from ...engines.packing import memory
from ...engines.packing.finite import first_not_finite
from ...engines.packing.packed import PackedModel
from ...engines.packing.samplewise import Samplewise
from ...engines.rules.base import flat_parameters, slots_of
from ...errors import SpecError
from ...models.base import Model, as_input, input_dtype
from ...seeds import derive
from .checkpointing import PackCheckpoints
from .network import loss_of, network, seeded
from .recipe import Recipe, check_like
from .sampling import Sizes
from .steps import Inserted, Insertion, OpacusSteps, PackedSteps, Steps, check_claim, parts
from .units import GroupedModel
from .updates import Noisy, State

_BODY_BATCH = 256  # examples that go through a frozen body together
_MEASURED_AT_ONCE = 256  # held-out examples whose outputs are computed together
_SUSPICIOUS = 1e6  # size of a parameter that is named as a cause if gradients are not finite
_PAD = 4  # pixels by which a view may be shifted, a number for images of 32 x 32

Examples = tuple[Tensor, Tensor]  # x [m, ...], y [m]
# Called at every step: its number, θ before it, and the noisy mean gradient for the optimizer.
Watch = Callable[[int, Tensor, Tensor], None]


def draw_views(
    x: Tensor,
    view_count: int,
    seed: int,
    step: int,
) -> Tensor:
    """Draws random views of images, for augmentation multiplicity (De et al. 2022, section 3.2).

    Each view is a crop, mirrored or not, of the padded image. Views are public, as batches are. The
    gradients of one image's views are averaged before they are clipped, so an image remains one
    record.

    Args:
        x: images [B, C, H, W].
        view_count: number of views of each example.
        seed: seed of all views of a training.
        step: number of the step.

    Returns:
        The views, [B, view_count, C, H, W].
    """
    height, width = x.shape[-2:]
    total = len(x) * view_count
    rng = np.random.default_rng(derive("views", seed, step))
    offsets = rng.integers(2 * _PAD + 1, size=(2, total, 1))
    is_mirrored = rng.random(total) < 0.5
    rows = np.arange(height) + offsets[0]
    columns = np.arange(width) + offsets[1]
    columns[is_mirrored] = columns[is_mirrored, ::-1]
    images = np.repeat(np.arange(len(x)), view_count)
    # Three arrays that together index the pixels of all views, [views, height, width].
    pixels = images[:, None, None], rows[:, :, None], columns[:, None, :]
    indices = tuple(gpu_settings.copied_to(torch.from_numpy(index), x.device) for index in pixels)
    padded = F.pad(x, (_PAD,) * 4, mode="reflect")
    views = padded.movedim(1, -1)[indices].movedim(-1, 1)
    return views.reshape(len(x), view_count, *x.shape[1:])


def divide(
    recipe: Recipe, data: Dataset, seed: int
) -> tuple[Dataset, Dataset | None, Dataset | None]:
    """Splits records into those to train on, to measure models on, and for adversaries.

    The split is drawn from the sweep's `seed`; records stay in their order.

    Args:
        recipe: states the shares, or names other data to measure models on.
        data: all records.
        seed: seed of the sweep.

    Returns:
        Records to train on, held-out records, and reserved records; None if there are none.

    Raises:
        SpecError: held-out examples have another shape or a class of their own, or too few records
            remain to train on.
    """
    total = len(data.y)
    trained_count = recipe.trained_records(total)
    held_out = None
    if isinstance(recipe.held_out, Data):
        held_out = recipe.held_out.load()
        check_like(data, held_out, "mechanism.held_out", recipe.held_out.name)
    if trained_count == total:  # no share is split off
        return data, held_out, None
    rng = np.random.default_rng(derive("held out", seed, recipe.seed))
    ranks = rng.permutation(total)
    held_out_count = recipe.share_of("held_out", total)
    # 0 for records that are held out, 1 for those to train on, 2 for those in reserve.
    groups = np.digitize(ranks, [held_out_count, held_out_count + trained_count])
    held_out_part, trained, reserved = (
        Dataset(data.x[groups == number], data.y[groups == number]) for number in range(3)
    )
    if held_out is None and held_out_count:
        held_out = held_out_part
    return trained, held_out, reserved if len(reserved.y) else None


@dataclass(frozen=True)
class DpSgdTraining:
    """The public part of a training by DP-SGD, on one device; an adversary may know all of it.

    Attributes:
        recipe: the options, with their noise multiplier.
        module: the network; only its structure is used, as each model has its own parameters.
        model: the network, packed.
        initial: θ_0 [p]; zeros if every trial draws its own.
        x: examples [N, ...], or users or clients [N, records, ...].
        y: targets [N], or [N, records].
        batches: indices of the other records at each of T steps, [any number] each.
        classes: number of classes.
        loaded: function that returns other data as the model takes them.
        held_out: x [m, ...] and y [m] to measure models on; None if none are held out.
        reserved: x [m, ...] and y [m] that only adversaries have; None if none are reserved.
        shadows: models [s, p] that an adversary trained; None if it trains none.
        views_seed: seed of augmentations.
    """

    recipe: Recipe
    module: nn.Module
    model: PackedModel | GroupedModel
    initial: Tensor
    x: Tensor
    y: Tensor
    batches: tuple[Tensor, ...]
    classes: int
    loaded: Callable[[Dataset], Examples]
    held_out: Examples | None = None
    reserved: Examples | None = None
    shadows: Tensor | None = None
    views_seed: int = 0

    @classmethod
    def prepare(
        cls,
        recipe: Recipe,
        seed: int,
        gpu: bool,
        dtype: torch.dtype = torch.float32,
    ) -> "DpSgdTraining":
        """Loads the data, and draws θ_0 and the mini-batches from `seed` and the recipe's seed.

        Args:
            recipe: the options, with their noise multiplier.
            seed: seed of the sweep.
            gpu: whether to compute on the trainer's GPU.
            dtype: dtype of parameters and examples.
        """
        device = gpu_settings.device(gpu)
        if gpu:
            gpu_settings.fix_numerics(tf32=recipe.precision == "tf32")
        else:
            memory.keep_heap()
        data = recipe.data.load()
        initial_seed = derive("initialization", seed, recipe.seed)
        with seeded(initial_seed):
            body = recipe.model.body(data.x.shape[1:])
        trained_data, held_out, reserved = divide(recipe, data, seed)
        x = _features(trained_data, body, device, dtype)
        shape = tuple(x.shape[1:])
        module = network(recipe.model, shape, data.classes, initial_seed)
        slots_of(module)  # raises SpecError for parameters that noise cannot be added to
        input_type = input_dtype(module.to(device, dtype), x)

        def loaded(part: Dataset) -> Examples:
            """Returns other data on the device, as the model takes them."""
            part_x = _features(part, body, device, dtype)
            part_y = torch.from_numpy(part.y.copy())
            return as_input(part_x, input_type), part_y.to(device)

        def grouped(records: Examples) -> Examples:
            """Returns records [N, ...] by unit of privacy: unchanged, or [units, size, ...]."""
            features, labels = records
            return recipe.unit.grouped(features), recipe.unit.grouped(labels)

        x = as_input(x, input_type)
        y = torch.from_numpy(trained_data.y.copy()).to(device)
        packed = PackedModel(module, loss=loss_of(recipe.loss))
        units_x, units_y = grouped((x, y))
        batches_seed = derive("batches", seed, recipe.seed)
        batches = _batches(recipe, len(units_y), batches_seed, device)
        _choose_packing(packed, recipe, batches, (x, y))
        initial = recipe.unit.extended(packed.initial)
        return cls(
            recipe=recipe,
            module=module,
            model=recipe.unit.model(packed, recipe),
            initial=torch.zeros_like(initial) if recipe.hidden_start else initial,
            x=units_x,
            y=units_y,
            batches=batches,
            classes=data.classes,
            loaded=loaded,
            held_out=None if held_out is None else loaded(held_out),
            reserved=None if reserved is None else grouped(loaded(reserved)),
            views_seed=derive("views", seed, recipe.seed),
        )

    def elsewhere(self, x: Tensor, y: Tensor, seed: int) -> "DpSgdTraining":
        """Returns the same training on other records, with batches drawn from `seed`."""
        batches = _batches(self.recipe, len(y), seed, self.initial.device)
        return replace(self, x=x, y=y, batches=batches)

    def starting(self, initial: Tensor) -> "DpSgdTraining":
        """Returns the same training from another public θ_0, float [p]."""
        self.recipe.check_known_start()
        return replace(self, initial=initial.to(self.initial))

    @property
    def clip_norm(self) -> float:
        """C, the norm to which gradients are clipped."""
        return self.recipe.clip_norm

    @property
    def examples(self) -> int:
        """Number of training examples, N."""
        return len(self.y)

    @property
    def sizes(self) -> Sizes:
        """N and the expected |B|."""
        return Sizes(len(self.y), self.recipe.batch_size)

    def example(self, index: int) -> Examples:
        """Returns training example `index` as x [1, ...] and y [1]."""
        if not 0 <= index < self.examples:
            last = self.examples - 1
            raise SpecError("adversary.example", f"is {index}, but the data ends at {last}")
        rows = slice(index, index + 1)
        return self.x[rows].clone(), self.y[rows].clone()

    def simulate(
        self,
        runs: int,
        noisy: bool,
        seed: int,
        canary: SampleCanary | None = None,
        period: int = 1,
    ) -> Iterator[Tensor]:
        """Implements `PublicKnowledge.simulate`: yields θ_0, ..., θ_T of `runs` simulations.

        Each simulation with noise has the canary, if there is one. Without noise, `canary` and
        `period` are ignored.
        """
        if noisy:
            all_inside = self.initial.new_ones(runs)
            for theta in self.run(all_inside, seed, canary, period):
                yield theta.clone()
            return
        theta = self.starts(runs, seed)
        yield theta.clone()
        state: State = {}
        recipe = self.recipe
        for step in range(1, len(self.batches) + 1):
            sums = self.sums(theta, *self.batch(step))
            release = Noisy(sums, recipe.batch_size, recipe.rate(step), step)
            recipe.unit.move(recipe, theta, release, state)
            yield theta.clone()

    def sums(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        clip_norm: float = math.inf,
    ) -> Tensor:
        """Computes Σ_j clip(∇ℓ(θ_i; x_j, y_j), C) of models `theta`, as a step does: [n, p]."""
        has_views = x.dim() > self.x.dim()
        compute = self.model.viewed_sums if has_views else self.model.clipped_sums
        total = torch.zeros_like(theta)
        for part in parts(len(y), self.recipe):
            total += compute(theta, x[part], y[part], clip_norm)
        return total

    @torch_on_one_thread()
    def batch(self, step: int) -> Examples:
        """Returns the batch of the other records at `step`, from 1 on.

        Returns:
            x [B, ...], or [B, K, ...] of K views, and y [B], as copies.
        """
        records = self.batches[step - 1]
        x = self.x[records]
        if self.recipe.augmentations > 1:
            x = draw_views(x, self.recipe.augmentations, self.views_seed, step)
        return x, self.y[records]

    def starts(self, models: int, seed: int) -> Tensor:
        """Returns θ_0 of each model, float [models, p]: the same for all, or drawn from `seed`."""
        if not self.recipe.hidden_start:
            return self.initial.repeat(models, 1)
        shape = tuple(self.x.shape[1:])
        starts = []
        for index in range(models):
            start_seed = derive("start", seed, index)
            module = network(self.recipe.model, shape, self.classes, start_seed)
            starts.append(flat_parameters(module))
        return self.recipe.unit.extended(torch.stack(starts).to(self.initial))

    def run(
        self,
        inside: Tensor,
        seed: int,
        canary: Canary | None,
        period: int,
        watch: Watch | None = None,
        checkpoints: PackCheckpoints | None = None,
    ) -> Iterator[Tensor]:
        """Trains models; yields them as θ [n, p] before the first step and after each step.

        Every yield is the same tensor, which the next step changes in place. At first it has θ_0,
        or the models of a checkpoint.

        Args:
            inside: 1 if the canary is in, else 0: [n], or [n, m] for each of m canaries.
            seed: seed of the pack: of its noise and the canary's coins.
            canary: joins the sum, or the batch, at steps in which it is sampled; None for none.
            period: the canary may join every `period`-th step, see `Insertion`.
            watch: called at every step, with tensors that do not change later; None for none.
            checkpoints: training starts from `checkpoints.step`; None to start from θ_0.
        """
        recipe = self.recipe
        device = self.initial.device
        if recipe.engine == "opacus":
            steps: Steps = OpacusSteps(recipe, self.module, seed, device, self.model.loss)
        else:
            steps = PackedSteps(recipe, self.model, seed, device)
        theta = self.starts(len(inside), seed)
        steps_done = 0
        if checkpoints is not None:
            theta = checkpoints.begin(steps, theta)
            steps_done = checkpoints.step
        yield theta
        canary_at = self._canary_schedule(canary, inside, seed, period, steps_done)
        for step in range(steps_done + 1, len(self.batches) + 1):
            inserted = canary_at(step, theta)
            before = theta if watch is None else theta.clone()
            sums = steps.step(theta, *self.batch(step), inserted)
            if watch is not None:
                watch(step, before, sums / recipe.batch_size)
            yield theta

    def _canary_schedule(
        self,
        canary: Canary | None,
        inside: Tensor,
        seed: int,
        period: int,
        steps_done: int,
    ) -> Callable[[int, Tensor], Inserted | None]:
        """Returns a function of a step and θ before it: which canary joins which models.

        The function must be called for each step after `steps_done`, in order. Arguments are those
        of `run`.
        """
        if canary is None:
            return lambda step, theta: None
        if isinstance(canary, RecordCanary):
            # Batches have its records already: a weight of 0 takes a record out of a model's sum.
            weights = inside.new_ones(len(inside), self.examples)
            weights[:, canary.indices] = inside
            return lambda step, theta: Inserted(canary, inside, weights[:, self.batches[step - 1]])
        recipe = self.recipe
        # The coins depend on the pack alone: neither on a bit nor on other packs' coins.
        rng = np.random.default_rng(derive("coins", seed))
        all_coins = recipe.sampling.coins(self.sizes, tuple(inside.shape), rng)
        coins = islice(all_coins, steps_done, None)  # without those of finished steps
        return Insertion(
            canary, inside.cpu(), period, coins, recipe.clip_norm, recipe.noise.offset
        ).at

    def measured(self, theta: Tensor) -> NDArray[np.float64]:
        """Returns the accuracy and loss of models [n, p] on held-out records.

        Returns:
            Accuracy (only with classes) and mean loss, float64 [2 or 1, n], in the order of
            `Recipe.measures`; NaN for a model whose outputs are not finite.
        """
        assert self.held_out is not None
        has_classes = not self.y.is_floating_point()
        correct = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        loss = torch.zeros_like(correct)
        batches = (torch.split(part, _MEASURED_AT_ONCE) for part in self.held_out)
        for x, y in zip(*batches, strict=True):
            outputs = self.model.outputs(theta, x)  # [n, examples, classes or 1]
            if has_classes:
                is_logistic = outputs.shape[2] == 1
                predictions = outputs[..., 0] > 0 if is_logistic else outputs.argmax(2)
                correct += (predictions == y).sum(1)
            losses = self.model.loss(outputs.flatten(0, 1), y.repeat(len(theta)))
            loss += losses.view(len(theta), -1).sum(1, dtype=torch.float64)
            diverged = ~outputs.isfinite().flatten(1).all(1)
            correct[diverged] = math.nan
            loss[diverged] = math.nan
        sums = [correct, loss] if has_classes else [loss]
        means = torch.stack(sums) / len(self.held_out[1])
        return np.asarray(means.cpu())

    def not_finite(
        self,
        parameters: Tensor,
        step: int,
        canary: Canary | None,
    ) -> str:
        """Returns a clause that states what is not finite in a step of a model.

        Args:
            parameters: the model's parameters before the step [p].
            step: number of the step.
            canary: the canary that may join the batch; None for none.
        """
        largest = float(parameters.abs().max())
        cause = f", with parameters of up to {largest:.0e}" if largest > _SUSPICIOUS else ""
        x, y = self.batch(step)
        if y.dim() > 1:  # units of several records, whose examples are not tried one by one
            return f"an update of a {self.recipe.unit.protects} is not finite{cause}"
        views = self.recipe.augmentations > 1
        samplewise = Samplewise(self.module, self.model.loss, views=views)
        failure = first_not_finite(samplewise, parameters, x, y)
        if failure is not None:
            row, clause = failure
            return f"{clause} for example {int(self.batches[step - 1][row])}{cause}"
        if isinstance(canary, SampleCanary):
            samplewise = Samplewise(self.module, self.model.loss)
            failure = first_not_finite(samplewise, parameters, canary.x[:1], canary.y[:1])
            if failure is not None:
                return f"{failure[1]} for the canary{cause}"
        rate = self.recipe.rate(step)
        return f"gradients are finite, but not parameters after a step of {rate:g}{cause}"

    def check_claim(self, canary: Canary, coins: int = 1) -> None:
        """Raises SpecError for a canary that breaks the sensitivity of the claim."""
        check_claim(canary, len(self.initial), self.clip_norm, coins)


def _features(
    data: Dataset,
    body: nn.Module | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Tensor:
    """Returns examples as the trained part of the model takes them, after any frozen body.

    Args:
        data: examples.
        body: frozen layers before the trained ones; None without any.
        device: device of the result.
        dtype: dtype of the result.
    """
    with warnings.catch_warnings():  # shared memory is read-only, and nothing here writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        x = torch.from_numpy(data.x)
    if body is None:
        return x.to(device, dtype)
    body = body.to(device).eval()
    with torch.no_grad():
        batches = torch.split(x, _BODY_BATCH)
        features = torch.cat([body(batch.to(device)) for batch in batches])
    return features.to(dtype)


def _choose_packing(
    packed: PackedModel,
    recipe: Recipe,
    batches: Sequence[Tensor],
    records: Examples,
) -> None:
    """Chooses the way in which a model is packed, on a batch of the largest size.

    Args:
        packed: the model.
        recipe: options of the training.
        batches: indices of records at each step.
        records: all records that are trained on, x [N, ...] and y [N].
    """
    largest = max(recipe.batch_size, *map(len, batches))
    largest = min(largest, recipe.physical_batch_size or largest)
    # A choice is reused only if all code is of this package: a user's code may compute something
    # else the next time, though module and examples are equal.
    is_known_code = (
        recipe.model.name != "module"
        and ":" not in recipe.loss
        and type(recipe.model).__module__.startswith(Model.home)
    )
    x, y = records
    packed.choose_way(x[:largest], y[:largest], remembered=is_known_code)


def _batches(
    recipe: Recipe,
    examples: int,
    seed: int,
    device: torch.device,
) -> tuple[Tensor, ...]:
    """Draws the batches of all steps: indices [any number] each."""
    sizes = Sizes(examples, recipe.batch_size)
    sampled = recipe.sampling.batches(sizes, np.random.default_rng(seed))
    batches = list(islice(sampled, recipe.steps))
    records = torch.from_numpy(np.concatenate(batches)).to(device)
    return torch.split(records, list(map(len, batches)))
