"""Gradients of n models at once: one forward and one backward pass over stacked parameters.

Here is decided what way a network takes, how many models go together and on which threads;
`passes` has the way that most take.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ...errors import first_line
from ..cpu.memory import Groups, no_room, out_of_memory, warn_of_groups
from ..cpu.threads import count, spread, torchs
from ..rules.base import trained
from ..rules.layers import Odd, refuse, replaced, slots_of, unpackable
from ..rules.losses import losses as losses_of
from .fallback import warn
from .footprint import Footprint, What
from .passes import Passes, Step
from .samplewise import Samplewise, cast
from .selfcheck import settled
from .shortcuts import chain_of, loops_of, merged_by_loops

if TYPE_CHECKING:
    from .shortcuts import Loops


class PackedModel:
    """A module whose parameters are a matrix: row i holds the flat parameters of model i.

    Args:
        module: the network; stays as it is.
        groups: how many models are computed at once; found on the batches when left out.
        compute: dtype of activations and gradients, that of the parameters when left out.

    Raises:
        SpecError: the module has a layer that per-sample gradients cannot be had of.

    On its first batch it is held against autograd, and takes a slower way where rules are wrong:
    see `selfcheck`. `settle` does so before there is a batch to compute.
    """

    def __init__(
        self, module: nn.Module, groups: Groups | None = None, compute: torch.dtype | None = None
    ) -> None:
        self._source, self._groups, self._compute = module, groups, compute
        self._slots = slots_of(module)
        refuse(module)
        self.size = sum(slot.stop - slot.start for slot in self._slots.values())
        self.initial = torch.cat([p.detach().flatten() for p in trained(module).values()])
        self._threads, self._workers = 1, [self]
        self._alone: Samplewise | None = None
        self._viewed: Samplewise | None = None
        self._settled, self._threaded = False, True
        self._rows: int | None = None  # that may go through together
        self.footprint = Footprint(self._on_meta)
        self._passes = Passes()
        self._loops: Loops | None = None
        self._merged = 0  # convolutions that have their own
        self._odd: list[Odd] = []
        self._no_rules = unpackable(module) or self._replace()

    def _replace(self) -> Odd | None:
        """A copy of the module with rules for layers; what is odd where there can be none."""
        try:
            own = copy.deepcopy(self._source)
            for parameter in own.parameters():
                if not parameter.requires_grad:
                    parameter.data = cast(parameter.data, self._compute)
            self._odd.clear()
            self._passes.module = replaced(own, self._slots, self._passes, self._odd)
        except Exception as error:  # noqa: BLE001 (a user's module may not let itself be copied)
            reason = first_line(error)
            return Odd.of(self._source, "", f"cannot be packed ({reason:.80})")
        self._merged = merged_by_loops(self._passes.module)
        whole = chain_of(self._source, self._slots) or loops_of(self._passes.module)
        self._loops = None if self._compute is not None else whole
        return None

    def settle(self, x: Tensor, y: Tensor) -> None:
        """Finds, on the first examples of a batch, how the module can be packed, and keeps to it.

        What takes a slow way is said once.

        Raises:
            SpecError: the module mixes examples, draws random numbers or keeps state.
        """
        if self._settled:
            return
        compiled = self._compute is None and (self._loops is not None or self._merged > 0)
        has_loops = compiled and x.device.type == "cpu"
        packed = self._no_rules or self._copy
        way = settled(self._source, self._slots, packed, (x, y), has_loops)
        self._settled = True
        if way.alone is not None:
            self._alone = dataclasses.replace(way.alone, compute=self._compute)
        if way.groups is not None:
            self._groups, self._rows = way.groups, way.rows
        if has_loops and not way.loops:
            self._loops, self._passes.by_loops = None, False
        for odd in self._odd if way.odd is None else [way.odd]:
            warn(odd.where, odd.kind, odd.why, odd.whole)

    def _copy(self, groups: Groups | None, loops: bool) -> PackedModel:
        """Of the module as it is now; taken as it comes."""
        made = PackedModel(self._source, groups or self._groups)
        made._settled = True
        made._loops, made._passes.by_loops = made._loops if loops else None, loops
        made._threaded = groups is None  # else each thread would have a group of its own
        return made

    def _on_meta(self, groups: Groups) -> PackedModel:
        made = PackedModel(copy.deepcopy(self._source).to("meta"), groups, self._compute)
        made._settled = True
        return made

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Loss of every model on every example, float [n, m]; theta [n, p], x [m, ...], y [m]."""
        outputs = self.outputs(theta, x)
        return losses_of(outputs.flatten(0, 1), y.repeat(len(theta))).view(len(theta), -1)

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Output of every model on every example, float [n, m, c]; theta [n, p], x [m, ...]."""
        self.settle(x, torch.zeros(len(x), dtype=torch.long, device=x.device))
        if self._alone is not None:
            return self._alone.outputs(theta, x)
        if self._rows is not None and len(x) > self._rows:
            return torch.cat([self.outputs(theta, part) for part in torch.split(x, self._rows)], 1)
        found, x, start = [], self._cast(x), 0
        while start < len(theta):
            groups = self._chosen("outputs", theta, x)
            own = self._cast(theta[start : start + groups.outer])
            try:
                found += self._passes.outputs(own, x, groups.inner)
            except RuntimeError as error:
                self._halve("outputs", x, error)
                continue
            start += len(own)
        return torch.cat(found).to(theta.dtype)

    def clipped_sums(
        self,
        theta: Tensor,
        x: Tensor,
        y: Tensor,
        clip_norm: float,
        weights: Tensor | None = None,
    ) -> Tensor:
        """Σ_j weights[i, j] · clip(∇ℓ(θ_i; x_j, y_j), C) for every model i: float [n, p].

        Args:
            theta: float [n, p].
            x: examples [B, ...], the same for all models.
            y: classes [B].
            clip_norm: C; infinity leaves the gradients as they are.
            weights: [n, B], 1 everywhere when left out.

        Raises:
            MemoryError: the batch does not fit for one model alone.
        """
        self.settle(x, y)
        if self._alone is not None:
            with torchs():
                return self._alone.clipped_sums(theta, x, y, clip_norm, weights)
        if self._rows is not None and len(y) > self._rows:
            total = torch.zeros_like(theta)
            for part in (slice(i, i + self._rows) for i in range(0, len(y), self._rows)):
                own = None if weights is None else weights[:, part]
                total += self.clipped_sums(theta, x[part], y[part], clip_norm, own)
            return total
        inputs: tuple[Tensor, ...] = (theta, self._cast(x), y)
        if weights is not None:
            inputs += (weights,)
        return self._sums(inputs, clip_norm)

    def _sums(self, inputs: tuple[Tensor, ...], clip_norm: float) -> Tensor:
        """`clipped_sums` of theta, x, y and weights, or without these."""
        theta, x, y, *weighing = inputs
        out = torch.zeros_like(theta)  # a layer that gets no gradient writes nothing

        def sums(thread: int, rows: slice) -> None:
            step = Step(x, y, clip_norm, {})
            part = weighing[0][rows] if weighing else None
            self._workers[thread]._sums_into(out[rows], theta[rows], step, part)

        if theta.device.type == "cpu" and self._threaded:
            self._hire(count())
            spread(sums, len(theta))
        else:
            sums(0, slice(0, len(theta)))
        return out

    def viewed_sums(self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float) -> Tensor:
        """`clipped_sums` of examples x [B, K, ...] with K views each, by the mean of their losses.

        The views of an example have one gradient, so its norm follows from none of theirs: every
        example is computed alone.
        """
        self.settle(x[:, 0], y)
        if self._viewed is None:
            slow = Samplewise(self._source, False, self._compute, views=True)
            mapped = self._alone is None or self._alone.mapped
            self._viewed = slow.mapped_if_right(theta[0], x[:2], y[:2]) if mapped else slow
        with torchs():
            return self._viewed.clipped_sums(theta, x, y, clip_norm, None)

    def _hire(self, threads: int) -> None:
        """Every thread needs passes of its own."""
        while len(self._workers) < threads:
            worker = PackedModel(self._source, self._groups, self._compute)
            worker._loops, worker._settled = self._loops, True
            worker._passes.by_loops = self._passes.by_loops
            self._workers.append(worker)
        for worker in self._workers:
            worker._threads = threads

    def _sums_into(self, out: Tensor, theta: Tensor, step: Step, weights: Tensor | None) -> None:
        on_cpu = theta.device.type == "cpu"
        batch = (step.x, step.y)
        fits = self._loops is not None and on_cpu and self._loops.fits(theta, step.x)
        loops = self._loops if fits else None
        if self._groups is None and on_cpu:
            self._groups = self._fitted(loops, theta, step)
        start = 0
        while start < len(theta):
            groups = self._chosen("sums", theta, step.x)
            rows = slice(start, start + groups.outer)
            part = None if weights is None else weights[rows]
            own, found, inner = theta[rows], out[rows], groups.inner
            try:
                if loops is not None:
                    loops.clipped_sums(found, own, batch, step.clip_norm, part, inner)
                else:
                    self._passes.clipped_sums(found, own, step, part, inner, self._cast(own))
            except RuntimeError as error:
                self._halve("sums", step.x, error)
                continue
            start = rows.stop

    def _chosen(self, what: What, theta: Tensor, x: Tensor) -> Groups:
        if self._groups is not None:
            return self._groups
        return self._fast() if theta.device.type == "cpu" else self.footprint.groups(what, x)

    def _halve(self, what: What, x: Tensor, error: RuntimeError) -> None:
        """Fewer models at a time from here on, if memory ran out; else raises `error`."""
        if not out_of_memory(error):
            raise error
        if self._groups is not None or x.device.type == "cpu":
            self._groups = (self._groups or self._fast()).halved()
            warn_of_groups(self._groups.outer)
        else:
            self.footprint.halve(what, x)

    def together(self, x: Tensor, y: Tensor) -> int:
        """How many models go through the module's own code at once, on a batch like this."""
        if self._groups is None and x.device.type == "cpu":
            self._groups = self._fitted(None, self.initial[None], Step(self._cast(x), y, 1.0, {}))
        return self._chosen("sums", self.initial[None], x).inner

    def _fitted(self, loops: Loops | None, theta: Tensor, step: Step) -> Groups:
        """Groups that fit on a CPU, from what one model's pass leaves behind."""
        if loops is not None:
            return self._fast().fitted(loops.bytes_of_one(step.x) * self._threads)
        try:
            held = self._passes.bytes_of_one(self._cast(theta[:1]), step)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            raise no_room() from error
        return self._fast().fitted(held * self._threads)

    def _fast(self) -> Groups:
        return Groups.of(self._source, 0 if self._compute is not None else self._merged)

    def _cast(self, values: Tensor) -> Tensor:
        return cast(values, self._compute)
