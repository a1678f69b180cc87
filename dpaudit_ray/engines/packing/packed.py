"""Gradients of n models at once: one forward and one backward pass over stacked parameters.

A `PackedModel` takes the way that `selfcheck` found right: compiled loops for the whole network,
rules layer by layer (`passes`), or every example alone (`samplewise`); `conversion` lists
which networks take which. This file decides how many models go together, and on which threads.
"""

import copy
import hashlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...errors import first_line, out_of_memory
from ..cpu.threads import run_on_threads, thread_count, torch_on_all_threads
from ..rules.base import flat_parameters, slots_of
from ..rules.losses import Loss, classification_losses
from .conversion import (
    converted,
    find_loops,
    find_obstacle,
    obstacle_at,
    refuse_layers,
    warn_of_slow_way,
)
from .memory import Groups, one_model_too_large, warn_of_short_memory
from .passes import Passes, Step
from .samplewise import Samplewise
from .selfcheck import Candidate, Way, fastest_right_way

if TYPE_CHECKING:
    from .conversion import Loops

# Ways that were found, by `_key`: a search takes up to seconds, and the packs of a sweep share few.
_WAYS: dict[Hashable, Way] = {}


class PackedModel:
    """A module whose parameters are a matrix: row i holds the flat parameters of model i.

    Args:
        module: stays as it is.
        groups: how many models are computed at once; if None, it is chosen on a first batch.
        loss: loss of each example.

    Raises:
        SpecError: A layer has no per-sample gradients.
    """

    def __init__(
        self,
        module: nn.Module,
        groups: Groups | None = None,
        loss: Loss = classification_losses,
    ) -> None:
        """Converts a copy of the module, if no layer keeps it from being packed."""
        self._source = module
        self._groups = groups
        self.loss = loss
        slots = slots_of(module)
        refuse_layers(module)
        self.initial = flat_parameters(module)
        self.size = len(self.initial)
        self._threads = 1  # number of threads that share the memory
        self._workers = [self]  # a packed copy for each thread, by the thread's number
        self.single = False  # whether every example goes through the module alone
        # Computes every example alone, by the user's module; None if the module is packed.
        self._alone: Samplewise | None = None
        self._viewed: Samplewise | None = None  # computes examples with several views
        self._way_chosen = False
        self._threaded = True  # whether models are divided among threads
        self._passes = Passes()
        self._passes.by_loops = self.initial.device.type == "cpu"  # compiled loops are for a CPU
        self._loops: Loops | None = None  # loops for the whole network
        self._convolutions_in_loops = 0
        self._obstacle = find_obstacle(module)
        if self._obstacle is not None:
            return
        try:
            packed = converted(copy.deepcopy(module), slots, self._passes)
        except Exception as error:  # noqa: BLE001 (a user's module may not let itself be copied)
            problem = f"cannot be packed ({first_line(error):.80})"
            self._obstacle = obstacle_at("", module, problem)
            return
        self._passes.module = packed
        if self._passes.by_loops:
            self._loops, self._convolutions_in_loops = find_loops(module, packed, slots)

    def choose_way(
        self,
        x: Tensor,
        y: Tensor,
        remembered: bool = False,
    ) -> None:
        """Chooses, on a first batch, how the module is packed; warns once of a slow way.

        Args:
            x: examples [B, ...].
            y: classes, or numbers, [B].
            remembered: whether to reuse the choice that this process made for an equal module and
                the same examples.

        Raises:
            SpecError: The module mixes examples, draws random numbers or keeps state.
        """
        if self._way_chosen:
            return
        on_cpu = x.device.type == "cpu"
        has_loops = on_cpu and bool(self._loops or self._convolutions_in_loops)
        key = _key(self._source, x, y, (self.loss, has_loops)) if remembered else None
        way = _WAYS.get(key)  # nothing is stored under None
        if way is None:
            packed = self._obstacle or self._copy
            candidate = Candidate(self._source, packed, x, y, self.loss)
            way = fastest_right_way(candidate, has_loops)
            if key is not None:
                _WAYS[key] = way
        self._way_chosen = True
        self.single = way.single
        if way.alone is not None:
            self._alone = Samplewise(self._source, self.loss, way.alone, way.single)
        if has_loops and not way.loops:
            self._loops = None
            self._passes.by_loops = False
        self._passes.mapped = way.mapped
        if way.obstacle is not None:
            warn_of_slow_way(way.obstacle)
        if self._alone is None and not on_cpu:
            self.models_together(x, y)  # sizes groups by a batch that is the same in every attempt

    def _copy(self, groups: Groups | None, loops: bool, mapped: bool) -> "PackedModel":
        """Packs the module once more, unchecked.

        Args:
            groups: how many models are computed at once; None for the groups of this model.
            loops: whether compiled loops compute layers that have some.
            mapped: whether `vmap` gives the module one example at a time.
        """
        packed = PackedModel(self._source, groups or self._groups, self.loss)
        packed._way_chosen = True
        packed._passes.by_loops = loops
        packed._passes.mapped = mapped
        packed._loops = self._loops if loops else None
        # Fixed groups are not divided among threads: each thread would have one group.
        packed._threaded = groups is None
        return packed

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of every model on every example, float [n, m].

        Args:
            theta: parameters [n, p].
            x: examples [m, ...].
            y: classes, or numbers, [m].
        """
        n = len(theta)
        outputs = self.outputs(theta, x).flatten(0, 1)
        return self.loss(outputs, y.repeat(n)).view(n, -1)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Returns the output of models theta [n, p] on examples x [m, ...]: float [n, m, c]."""
        # Without labels, any class serves to choose a way of packing.
        self.choose_way(x, x.new_zeros(len(x), dtype=torch.long))
        if self._alone is not None:  # the network has an obstacle, or fails its self-check
            return self._alone.outputs(theta, x)
        outputs = []

        def compute(models: slice, group_size: int) -> None:
            """Adds the outputs of a group of models, `group_size` models in each pass."""
            outputs.extend(self._passes.outputs(theta[models], x, group_size))

        self._by_groups(theta, compute)
        return torch.cat(outputs)

    def clipped_sums(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        clip_norm: float,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Returns Σ_j weights[i, j] · clip(∇ℓ(θ_i; x_j, y_j), C) for every model i: float [n, p].

        Args:
            theta: parameters [n, p].
            x: examples of all models [B, ...].
            y: classes, or numbers, [B].
            clip_norm: C; infinity for no clipping.
            weights: [n, B]; 1 if None.

        Raises:
            MemoryError: The batch does not fit for one model alone.
        """
        self.choose_way(x, y)
        if self._alone is not None:
            with torch_on_all_threads():
                return self._alone.clipped_sums(theta, x, y, clip_norm, weights)
        out = torch.zeros_like(theta)  # a layer that gets no gradient writes nothing
        n = len(theta)
        if weights is None:
            weights = theta.new_ones(n, len(y))

        def write_sums(thread: int, models: slice) -> None:
            """Writes the sums of a group of models, by the packed copy of this thread."""
            step = Step(x, y, clip_norm, self.loss)
            worker = self._workers[thread]
            worker._write_sums(out[models], theta[models], step, weights[models])

        if theta.device.type == "cpu" and self._threaded:
            while len(self._workers) < thread_count():  # every thread has passes of its own
                passes = self._passes
                self._workers.append(self._copy(None, passes.by_loops, passes.mapped))
            for worker in self._workers:
                worker._threads = thread_count()
            run_on_threads(write_sums, n)
        else:
            write_sums(0, slice(0, n))
        return out

    def viewed_sums(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        clip_norm: float,
    ) -> Tensor:
        """Returns `clipped_sums` of examples with K views each, by their mean loss.

        Args:
            theta: parameters [n, p].
            x: examples [B, K, ...].
            y: classes, or numbers, [B].
            clip_norm: C; infinity for no clipping.
        """
        self.choose_way(x[:, 0], y)
        if self._viewed is None:  # the first batch with views
            self._viewed = Samplewise(self._source, self.loss, views=True)
            if self._alone is None or self._alone.mapped > 0:
                self._viewed = self._viewed.mapped_if_right(theta[0], x[:2], y[:2])
        with torch_on_all_threads():
            return self._viewed.clipped_sums(theta, x, y, clip_norm, None)

    def _write_sums(
        self,
        out: Tensor,
        theta: Tensor,
        step: Step,
        weights: Tensor,
    ) -> None:
        """Writes clipped sums of this thread's models, by compiled loops if they fit, or by passes.

        Args:
            out: [n, p], to be written.
            theta: parameters [n, p].
            step: batch, loss and clip norm.
            weights: weights of the examples in each model, [n, B].
        """
        loops = self._loops if theta.device.type == "cpu" else None
        if loops is not None and not loops.fits(theta, step.x):
            loops = None
        if self._groups is None:  # the first batch decides, by the memory that it takes
            self._groups = self._fitting_groups(loops, theta, step)

        def compute(models: slice, group_size: int) -> None:
            """Writes the sums of a group of models, `group_size` models in each pass."""
            way = loops or self._passes
            way.clipped_sums(out[models], theta[models], step, weights[models], group_size)

        self._by_groups(theta, compute)

    def _by_groups(
        self,
        theta: Tensor,
        compute: Callable[[slice, int], None],
    ) -> None:
        """Calls `compute` for each group of models in turn.

        If memory runs out, groups are halved from there on, and the same models are tried again.

        Args:
            theta: parameters [n, p].
            compute: takes the models of a group, and how many of them each pass may have.
        """
        start = 0
        while start < len(theta):
            groups = self._groups or self._fastest_groups()
            models = slice(start, start + groups.outer)
            try:
                compute(models, groups.inner)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                self._groups = groups.halved()
                warn_of_short_memory(self._groups.outer)
                continue  # with the same models, in a smaller group
            start = models.stop

    def models_together(self, x: Tensor, y: Tensor) -> int:
        """Returns the number of models that go through the module together on a batch like this."""
        if self._groups is None:
            step = Step(x, y, clip_norm=1.0, loss=self.loss)
            self._groups = self._fitting_groups(None, self.initial[None], step)
        return self._groups.inner

    def _fitting_groups(self, loops: "Loops | None", theta: Tensor, step: Step) -> Groups:
        """Returns groups whose pass fits into memory, by the bytes that one model takes.

        Args:
            loops: compiled loops that take the batch; None for passes.
            theta: parameters of one model or more, [n, p].
            step: the batch.

        Raises:
            MemoryError: the batch does not fit for one model alone.
        """
        if loops is not None:
            return self._fastest_groups().that_fit(loops.bytes_of_one(step.x) * self._threads)
        try:
            pass_bytes = self._passes.bytes_of_one(theta[:1], step)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise one_model_too_large() from error
        if theta.device.type != "cpu":
            return Groups.for_gpu(pass_bytes)
        return self._fastest_groups().that_fit(pass_bytes * self._threads)

    def _fastest_groups(self) -> Groups:
        """Returns groups of the size that is fastest on a CPU, whatever the memory."""
        return Groups.for_cpu(self._source, self._convolutions_in_loops)


def _key(
    module: nn.Module,
    x: Tensor,
    y: Tensor,
    options: Hashable,
) -> Hashable:
    """Returns a key under which the way of packing a module is remembered.

    Modules with the same classes, parameters and buffers have the same key on the same batch.

    Args:
        module: the user's module.
        x: examples of a batch.
        y: targets of the examples.
        options: further parts of the key.

    Returns:
        The key; None if a layer has hooks, or a `forward` that its class does not have.
    """
    code = []
    for part in module.modules():
        if "forward" in vars(part) or part._forward_hooks or part._forward_pre_hooks:
            return None
        code.append((type(part), type(part).forward, part.training))
    numbers_hash = hashlib.sha256(repr(module).encode())
    for t in (*module.parameters(), *module.buffers(), x, y):
        description = repr((t.shape, t.dtype, t.device, t.requires_grad))
        numbers_hash.update(description.encode())
        data = t.detach().cpu().flatten().view(torch.uint8)
        numbers_hash.update(data.numpy().data)
    return tuple(code), numbers_hash.digest(), options
