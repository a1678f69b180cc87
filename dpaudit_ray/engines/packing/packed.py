"""Gradients of n models at once: one forward and one backward pass over stacked parameters.

A `PackedModel` takes the way that `selfcheck` found right: compiled loops for the whole network,
rules layer by layer (`passes`), or every example alone (`samplewise`); `conversion` lists
which networks take which. This file decides how many models go together, and on which threads.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...errors import first_line, out_of_memory
from ..cpu.threads import count, spread, torchs
from ..rules.base import slots_of, trained
from ..rules.losses import Loss
from ..rules.losses import losses as losses_of_classes
from .conversion import (
    converted,
    find_loops,
    find_obstacle,
    obstacle_at,
    refuse_layers,
    warn_of_slow_way,
)
from .memory import Groups, one_model_too_large, slices, warn_of_short_memory
from .passes import Passes, Step
from .samplewise import Samplewise
from .selfcheck import Candidate, Way, fastest_right_way

if TYPE_CHECKING:
    from .conversion import Loops

_WAYS: dict[Hashable, Way] = {}  # a sweep's packs share few, and to find each takes up to seconds


class PackedModel:
    """A module whose parameters are a matrix: row i holds the flat parameters of model i.

    `module` stays as it is. `groups` is how many models are computed at once, found on the batches
    when left out. Raises SpecError for a layer that per-sample gradients cannot be had of.
    """

    def __init__(
        self, module: nn.Module, groups: Groups | None = None, loss: Loss = losses_of_classes
    ) -> None:
        self._source, self._groups, self.loss = module, groups, loss
        slots = slots_of(module)
        refuse_layers(module)
        self.size = sum(slot.stop - slot.start for slot in slots.values())
        self.initial = torch.cat([p.detach().flatten() for p in trained(module).values()])
        self._threads, self._workers = 1, [self]
        self._alone: Samplewise | None = None
        self._viewed: Samplewise | None = None
        self._settled, self._threaded = False, True
        self._rows: int | None = None  # the most that may go through together
        self._passes = Passes()
        self._loops: Loops | None = None  # of the whole network
        self._convolutions_in_loops = 0
        self._obstacle = find_obstacle(module)
        if self._obstacle is None:
            try:
                packed = converted(copy.deepcopy(module), slots, self._passes)
            except Exception as error:  # noqa: BLE001 (a user's module may not let itself be copied)
                why = f"cannot be packed ({first_line(error):.80})"
                self._obstacle = obstacle_at("", module, why)
                return
            self._passes.module = packed
            self._loops, self._convolutions_in_loops = find_loops(module, packed, slots)

    def settle(self, x: Tensor, y: Tensor, remembered: bool = False) -> None:
        """Finds, on a first batch, how the module can be packed, and keeps to it.

        Examples `x` [B, ...] have classes, or numbers, `y` [B]. What takes a slow way is said once.
        A way that an equal module took with these examples in this process may be `remembered`.
        Raises SpecError where the module mixes examples, draws random numbers or keeps state.
        """
        if self._settled:
            return
        has_loops = x.device.type == "cpu" and bool(self._loops or self._convolutions_in_loops)
        key = _key(self._source, x, y, (self.loss, has_loops)) if remembered else None
        way = _WAYS.get(key)
        if way is None:
            candidate = Candidate(self._source, self._obstacle or self._copy, x, y, self.loss)
            way = fastest_right_way(candidate, has_loops)
            if key is not None:
                _WAYS[key] = way
        self._settled = True
        if way.alone is not None:
            self._alone = Samplewise(self._source, self.loss, way.alone)
        if way.groups is not None:
            self._groups, self._rows = way.groups, way.rows
        if has_loops and not way.loops:
            self._loops, self._passes.by_loops = None, False
        if way.obstacle is not None:
            warn_of_slow_way(way.obstacle)
        if self._alone is None and x.device.type != "cpu":
            self.together(x, y)  # on a first batch that is the same in every try

    def _copy(self, groups: Groups | None, loops: bool) -> PackedModel:
        """Packs the module as it is now once more, unchecked; in compiled loops or without."""
        made = PackedModel(self._source, groups or self._groups, self.loss)
        made._settled = True
        made._loops, made._passes.by_loops = self._loops if loops else None, loops
        # Given groups are not shared out among threads: each thread would have one of its own.
        made._threaded = groups is None
        return made

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Returns the loss of every model on every example, float [n, m].

        Args:
            theta: parameters [n, p].
            x: examples [m, ...].
            y: classes, or numbers, [m].
        """
        outputs = self.outputs(theta, x)
        return self.loss(outputs.flatten(0, 1), y.repeat(len(theta))).view(len(theta), -1)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Returns the output of models theta [n, p] on examples x [m, ...]: float [n, m, c]."""
        self.settle(x, torch.zeros(len(x), dtype=torch.long, device=x.device))
        if self._alone is not None:
            return self._alone.outputs(theta, x)
        if self._rows is not None and len(x) > self._rows:
            return torch.cat([self.outputs(theta, part) for part in torch.split(x, self._rows)], 1)
        outputs: list[Tensor] = []

        def compute(models: slice, at_once: int) -> None:
            outputs.extend(self._passes.outputs(theta[models], x, at_once))

        self._by_groups(theta, compute)
        return torch.cat(outputs)

    def clipped_sums(
        self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float, weights: Tensor | None = None
    ) -> Tensor:
        """Returns Σ_j weights[i, j] · clip(∇ℓ(θ_i; x_j, y_j), C) for every model i: float [n, p].

        `theta` is float [n, p]; all models have the same examples `x` [B, ...], with classes, or
        numbers, `y` [B]. A C of infinity leaves gradients as they are; `weights` [n, B] are 1 when
        left out. Raises MemoryError where the batch does not fit for one model alone.
        """
        self.settle(x, y)
        if self._alone is not None:
            with torchs():
                return self._alone.clipped_sums(theta, x, y, clip_norm, weights)
        out = torch.zeros_like(theta)  # a layer that gets no gradient writes nothing
        weigh = theta.new_ones(len(theta), len(y)) if weights is None else weights
        if self._rows is not None and len(y) > self._rows:
            for part in slices(len(y), self._rows):
                out += self.clipped_sums(theta, x[part], y[part], clip_norm, weigh[:, part])
            return out

        def sums(thread: int, models: slice) -> None:
            step = Step(x, y, clip_norm, self.loss)
            self._workers[thread]._sums_into(out[models], theta[models], step, weigh[models])

        if theta.device.type == "cpu" and self._threaded:
            while len(self._workers) < count():  # every thread has passes of its own
                self._workers.append(self._copy(None, self._passes.by_loops))
            for worker in self._workers:
                worker._threads = count()
            spread(sums, len(theta))
        else:
            sums(0, slice(0, len(theta)))
        return out

    def viewed_sums(self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float) -> Tensor:
        """Returns `clipped_sums` of examples x [B, K, ...] with K views, by their mean loss."""
        self.settle(x[:, 0], y)
        if self._viewed is None:
            slow = Samplewise(self._source, self.loss, views=True)
            mapped = self._alone is None or self._alone.mapped > 0
            self._viewed = slow.mapped_if_right(theta[0], x[:2], y[:2]) if mapped else slow
        with torchs():
            return self._viewed.clipped_sums(theta, x, y, clip_norm, None)

    def _sums_into(self, out: Tensor, theta: Tensor, step: Step, weights: Tensor) -> None:
        loops = self._loops if theta.device.type == "cpu" else None
        loops = loops if loops is not None and loops.fits(theta, step.x) else None
        if self._groups is None:
            self._groups = self._fitted(loops, theta, step)

        def compute(models: slice, at_once: int) -> None:
            way = loops or self._passes
            way.clipped_sums(out[models], theta[models], step, weights[models], at_once)

        self._by_groups(theta, compute)

    def _by_groups(self, theta: Tensor, compute: Callable[[slice, int], None]) -> None:
        """Calls `compute` for groups of models; from where memory ends on, for half as many."""
        start = 0
        while start < len(theta):
            groups = self._groups or self._fast()
            models = slice(start, start + groups.outer)
            try:
                compute(models, groups.inner)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                self._groups = groups.halved()
                warn_of_short_memory(self._groups.outer)
                continue
            start = models.stop

    def together(self, x: Tensor, y: Tensor) -> int:
        """Returns the number of models that the module's code gets at once, on such a batch."""
        if self._groups is None:
            self._groups = self._fitted(None, self.initial[None], Step(x, y, 1.0, self.loss))
        return self._groups.inner

    def _fitted(self, loops: Loops | None, theta: Tensor, step: Step) -> Groups:
        if loops is not None:
            return self._fast().fitted(loops.bytes_of_one(step.x) * self._threads)
        try:
            pass_bytes = self._passes.bytes_of_one(theta[:1], step)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise one_model_too_large() from error
        if theta.device.type != "cpu":
            return Groups.for_gpu(pass_bytes)
        return self._fast().fitted(pass_bytes * self._threads)

    def _fast(self) -> Groups:
        return Groups.for_cpu(self._source, self._convolutions_in_loops)


def _key(module: nn.Module, x: Tensor, y: Tensor, options: Hashable) -> Hashable:
    """Returns a key that equal modules of the same code share; None if an instance has own code."""
    parts = list(module.modules())
    if any(
        "forward" in vars(part) or part._forward_hooks or part._forward_pre_hooks for part in parts
    ):
        return None
    code = tuple((type(part), type(part).forward, part.training) for part in parts)
    numbers = hashlib.sha256(repr(module).encode())
    for t in (*module.parameters(), *module.buffers(), x, y):
        numbers.update(repr((t.shape, t.dtype, t.device, t.requires_grad)).encode())
        numbers.update(t.detach().cpu().flatten().view(torch.uint8).numpy().data)
    return code, numbers.digest(), options
