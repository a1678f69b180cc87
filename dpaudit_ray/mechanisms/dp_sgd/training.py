"""A training by DP-SGD: its public part, how data are split, and the loop over its steps."""

from __future__ import annotations

import dataclasses
import itertools
import math
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from ...adversaries.base import Canary, RecordCanary, SampleCanary
from ...data.base import Data, Dataset
from ...engines import gpu_settings
from ...engines.cpu.threads import ours
from ...engines.packing import memory
from ...engines.packing.packed import PackedModel
from ...engines.rules.base import slots_of, trained
from ...errors import SpecError
from ...models.base import Model, as_input, input_dtype
from ...seeds import derive
from .checkpointing import PackCheckpoints
from .network import loss_of, network, seeded
from .recipe import Recipe, check_like
from .sampling import Sizes
from .steps import Inserted, Insertion, OpacusSteps, PackedSteps, Steps, check_claim, sums_of_parts
from .updates import Noisy, State

_BODY_BATCH = 256  # examples that go through a frozen body together
_MEASURED_AT_ONCE = 256  # examples
_PAD = 4  # pixels that a view may be shifted by, for images of 32

# Called at every step: its number, θ before it, and the noisy mean that the optimizer then follows.
Watch = Callable[[int, Tensor, Tensor], None]


def draw_views(x: Tensor, count: int, seed: int, step: int) -> Tensor:
    """Augmentation multiplicity (De et al. 2022, section 3.2): random crops, mirrored or not.

    Of images x [B, C, H, W] as [B, count, C, H, W], drawn from the step, as batches are: known to
    all. Gradients of one example's views are averaged before they are clipped, so it is one record.
    """
    size, (height, width) = len(x) * count, x.shape[-2:]
    rng = np.random.default_rng(derive("views", seed, step))
    offsets = rng.integers(2 * _PAD + 1, size=(2, size))
    mirrored = rng.random(size) < 0.5
    columns = np.arange(width)[None] + offsets[1][:, None]
    columns[mirrored] = columns[mirrored][:, ::-1]
    rows = np.arange(height)[None] + offsets[0][:, None]
    down, across = (torch.from_numpy(index.copy()).to(x.device) for index in (rows, columns))
    owner = torch.arange(len(x), device=x.device).repeat_interleave(count)
    padded = F.pad(x, (_PAD,) * 4, mode="reflect").movedim(1, -1)
    views = padded[owner[:, None, None], down[:, :, None], across[:, None, :]]
    return views.movedim(-1, 1).reshape(len(x), count, *x.shape[1:])


def divide(
    recipe: Recipe, data: Dataset, seed: int
) -> tuple[Dataset, Dataset | None, Dataset | None]:
    """Records to train on, to measure models on and for adversaries, drawn from the sweep's seed.

    Their order stays. Raises SpecError where examples held out do not have one shape with the
    others, or have a class of their own, or too few are left.
    """
    count = len(data.y)
    left = recipe.trained_records(count)
    other = None
    if isinstance(recipe.held_out, Data):
        other = recipe.held_out.load()
        check_like(data, other, "mechanism.held_out", recipe.held_out.name)
    if left == count:
        return data, other, None
    rank = np.random.default_rng(derive("held out", seed, recipe.seed)).permutation(count)
    held = recipe.share_of("held_out", count)
    first, last = rank < held, rank >= held + left
    trained, held_out, reserved = (
        Dataset(data.x[rows], data.y[rows]) if rows.any() else None
        for rows in (~(first | last), first, last)
    )
    assert trained is not None
    return trained, other or held_out, reserved


@dataclasses.dataclass(frozen=True)
class DpSgdTraining:
    """The public part of DP-SGD, on one device; also what an adversary may know beforehand."""

    recipe: Recipe
    module: nn.Module
    model: PackedModel
    initial: Tensor  # [p]; zeros where every trial draws its own
    x: Tensor  # [N, ...]
    y: Tensor  # [N]
    batches: tuple[Tensor, ...]  # of the others, at each of T steps: indices [any number]
    classes: int
    loaded: Callable[[Dataset], tuple[Tensor, Tensor]]  # other data, as the model sees it
    held_out: tuple[Tensor, Tensor] | None = None  # x [m, ...], y [m] to measure models on
    reserved: tuple[Tensor, Tensor] | None = None  # x [m, ...] and y [m] that only adversaries have
    shadows: Tensor | None = None  # models [s, p] that an adversary trained on them
    views_seed: int = 0

    @classmethod
    def prepare(
        cls, recipe: Recipe, seed: int, gpu: bool, dtype: torch.dtype = torch.float32
    ) -> DpSgdTraining:
        """Loads the data, draws θ_0 and the mini-batches from (sweep seed, `recipe.seed`)."""
        device = gpu_settings.device(gpu)
        if gpu:
            gpu_settings.settle_in(tf32=recipe.precision == "tf32")
        else:
            memory.keep_heap()
        data = recipe.data.load()
        drawn = derive("initialization", seed, recipe.seed)
        with seeded(drawn):
            body = recipe.model.body(data.x.shape[1:])
        split, *others = divide(recipe, data, seed)
        features = _features(split, body, device, dtype)
        module = network(recipe.model, tuple(features.shape[1:]), data.classes, drawn)
        slots_of(module)  # refuses parameters that could not be moved as they are
        dtype_taken = input_dtype(module.to(device, dtype), features)
        features = as_input(features, dtype_taken)
        y = torch.from_numpy(split.y.copy()).to(device)

        def loaded(part: Dataset) -> tuple[Tensor, Tensor]:
            x = as_input(_features(part, body, device, dtype), dtype_taken)
            return x, torch.from_numpy(part.y.copy()).to(device)

        model = PackedModel(module, loss=loss_of(recipe.loss))
        batches = _batches(recipe, len(y), derive("batches", seed, recipe.seed), device)
        most = max(recipe.batch_size, *map(len, batches))
        most = min(most, recipe.physical_batch_size or most)
        # A user's code may do otherwise the next time, whatever its numbers are.
        native = recipe.model.name != "module" and ":" not in recipe.loss
        native &= type(recipe.model).__module__.startswith(Model.home)
        model.settle(features[:most], y[:most], remembered=native)
        held_out, reserved = (None if part is None else loaded(part) for part in others)
        initial = torch.zeros_like(model.initial) if recipe.hidden_start else model.initial
        public = (recipe, module, model, initial, features, y, batches, data.classes, loaded)
        return cls(*public, held_out, reserved, views_seed=derive("views", seed, recipe.seed))

    def elsewhere(self, x: Tensor, y: Tensor, seed: int) -> DpSgdTraining:
        """The same training on other records, with batches drawn from `seed`."""
        batches = _batches(self.recipe, len(y), seed, self.initial.device)
        return dataclasses.replace(self, x=x, y=y, batches=batches)

    def starting(self, initial: Tensor) -> DpSgdTraining:
        """The same training from another θ_0, float [p], which everybody knows."""
        self.recipe.check_known_start()
        return dataclasses.replace(self, initial=initial.to(self.initial))

    @property
    def clip_norm(self) -> float:
        """C."""
        return self.recipe.clip_norm

    @property
    def examples(self) -> int:
        """Number of training examples, N."""
        return len(self.y)

    @property
    def sizes(self) -> Sizes:
        """N and the expected |B|."""
        return Sizes(len(self.y), self.recipe.batch_size)

    def example(self, index: int) -> tuple[Tensor, Tensor]:
        """Training example `index` as x [1, ...] and y [1]."""
        if not 0 <= index < self.examples:
            last = self.examples - 1
            raise SpecError("adversary.example", f"is {index}, but the data ends at {last}")
        return self.x[index : index + 1].clone(), self.y[index : index + 1].clone()

    def simulate(
        self, runs: int, noisy: bool, seed: int, canary: SampleCanary | None = None, period: int = 1
    ) -> Iterator[Tensor]:
        """Yields θ_0, ..., θ_T of `runs` trainings, as `PublicKnowledge.simulate` grants them."""
        if noisy:
            everybody = torch.ones(runs, dtype=self.initial.dtype, device=self.initial.device)
            yield from (theta.clone() for theta in self.run(everybody, seed, canary, period))
            return
        theta = self.starts(runs, seed)
        yield theta.clone()
        state: State = {}
        for step in range(1, len(self.batches) + 1):
            sums = self.sums(theta, *self.batch(step))
            whole = Noisy(sums, self.recipe.batch_size, self.recipe.rate(step), step)
            self.recipe.optimizer.move(theta, whole, state)
            yield theta.clone()

    def sums(self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float = math.inf) -> Tensor:
        """Σ_j clip(∇ℓ(θ_i; x_j, y_j), C) for models `theta` [n, p], as a step computes it."""
        total, viewed = torch.zeros_like(theta), x.dim() > self.x.dim()
        for sums in sums_of_parts(self.model, self.recipe, theta, x, y, clip_norm, viewed):
            total += sums
        return total

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """The others' examples at `step`, from 1 on: x [B, ...], or [B, K, ...] of views, y [B]."""
        batch, count = self.batches[step - 1], self.recipe.augmentations
        with ours():
            x = self.x[batch]  # indexed by a list: a copy
            x = x if count == 1 else draw_views(x, count, self.views_seed, step)
            return x, self.y[batch]

    def starts(self, models: int, seed: int) -> Tensor:
        """θ_0 of every model, float [models, p]: one for all, or drawn from the pack's seed."""
        if not self.recipe.hidden_start:
            return self.initial.repeat(models, 1)
        shape, seeds = tuple(self.x.shape[1:]), (derive("start", seed, i) for i in range(models))
        modules = (network(self.recipe.model, shape, self.classes, drawn) for drawn in seeds)
        starts = [nn.utils.parameters_to_vector(trained(m).values()).detach() for m in modules]
        return torch.stack(starts).to(self.initial)

    def run(
        self,
        inside: Tensor,
        seed: int,
        canary: Canary | None,
        period: int,
        watch: Watch | None = None,
        checkpoints: PackCheckpoints | None = None,
    ) -> Iterator[Tensor]:
        """Yields θ_0, ..., θ_T [n, p], or from `checkpoints.step` on; the next changes the last.

        `inside` [n] is 1 where the canary is in, else 0; or [n, m] for each of m samples. It is
        added to the sum, or to the batch, at steps that `period` divides and where it is sampled.
        The pack's `seed` is of its noise and the canary's coins. `watch` is told of every step, in
        tensors of its own.
        """
        recipe, device = self.recipe, self.initial.device
        steps: Steps = PackedSteps(recipe, self.model, seed, device)
        if recipe.engine == "opacus":
            steps = OpacusSteps(recipe, self.module, seed, device, self.model.loss)
        theta, done = self.starts(len(inside), seed), 0
        if checkpoints is not None:
            theta, done = checkpoints.begin(steps, theta), checkpoints.step
        yield theta
        insertion, weights = None, None
        if isinstance(canary, RecordCanary):
            weights = inside.new_ones(len(inside), self.examples)
            weights[:, canary.indices] = inside
        elif canary is not None:
            # The coins depend on the pack alone: neither on a bit, nor on what other packs toss.
            rng = np.random.default_rng(derive("coins", seed))
            tossed = recipe.sampling.coins(self.sizes, tuple(inside.shape), rng)
            coins = itertools.islice(tossed, done, None)
            insertion = Insertion(canary, inside.cpu(), period, coins, recipe.clip_norm)
        for step in range(done + 1, len(self.batches) + 1):
            inserted = None if insertion is None else insertion.at(step, theta)
            if isinstance(canary, RecordCanary) and weights is not None:
                inserted = Inserted(canary, inside, weights[:, self.batches[step - 1]])
            before = None if watch is None else theta.clone()
            sums = steps.step(theta, *self.batch(step), inserted)
            if watch is not None and before is not None:
                watch(step, before, sums / recipe.batch_size)
            yield theta

    def measured(self, theta: Tensor) -> npt.NDArray[np.float64]:
        """`Recipe.measures` of models [n, p] on held-out records: [2 or 1, n], or NaN."""
        assert self.held_out is not None
        right = torch.zeros(len(theta), dtype=torch.float64, device=theta.device)
        total = torch.zeros_like(right)
        batches = (torch.split(part, _MEASURED_AT_ONCE) for part in self.held_out)
        for x, y in zip(*batches, strict=True):
            outputs = self.model.outputs(theta, x)
            chosen = outputs[..., 0] > 0 if outputs.shape[2] == 1 else outputs.argmax(2)
            right += (chosen == y).sum(1)
            losses = self.model.loss(outputs.flatten(0, 1), y.repeat(len(theta)))
            total += losses.view(len(theta), -1).sum(1, dtype=torch.float64)
            lost = ~outputs.isfinite().flatten(1).all(1)
            right[lost], total[lost] = math.nan, math.nan
        sums = [total] if self.y.is_floating_point() else [right, total]
        means: npt.NDArray[np.float64] = (torch.stack(sums) / len(self.held_out[1])).cpu().numpy()
        return means

    def check_claim(self, canary: Canary, coins: int = 1) -> None:
        """Raises SpecError for a canary that breaks the sensitivity of the claim."""
        check_claim(canary, len(self.initial), self.clip_norm, coins)


def _features(
    data: Dataset, body: nn.Module | None, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Examples as the trained part of the model sees them: a frozen body is applied once."""
    with warnings.catch_warnings():  # shared memory is read-only, and nothing here writes to it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        x = torch.from_numpy(data.x)
    if body is None:
        return x.to(device, dtype)
    body = body.to(device).eval()
    with torch.no_grad():
        return torch.cat([body(part.to(device)) for part in torch.split(x, _BODY_BATCH)]).to(dtype)


def _batches(recipe: Recipe, examples: int, seed: int, device: torch.device) -> tuple[Tensor, ...]:
    drawn = recipe.sampling.batches(Sizes(examples, recipe.batch_size), np.random.default_rng(seed))
    rows = list(itertools.islice(drawn, recipe.steps))
    return torch.split(torch.from_numpy(np.concatenate(rows)).to(device), list(map(len, rows)))
