"""Gradients of n models at once: one forward and one backward pass over stacked parameters.

The layers with parameters are replaced by their rules; everything between them (activations,
pooling, flattening, sums) runs as the module's own code, through autograd. Per-sample norms, and
then clipped sums, follow from what the passes leave on the tape, without any per-sample gradient
of a large layer.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ..cpu.memory import Groups, out_of_memory
from ..cpu.threads import spread
from ..rules.base import SampleGradients, Slot
from ..rules.layers import Chain, Odd, refuse, replaced, slots_of, unpackable
from ..rules.losses import losses as losses_of
from .fallback import warn
from .samplewise import Samplewise
from .selfcheck import settled
from .tape import Pass, Tap, Tapped

if TYPE_CHECKING:
    from .fused import FusedMlp

Found = tuple[slice, SampleGradients]  # of which models


@dataclasses.dataclass(frozen=True)
class _Step:
    """A batch, how its gradients are clipped, and what rules keep about its examples."""

    x: Tensor
    y: Tensor
    clip_norm: float
    cache: dict[object, Tensor]


class PackedModel:
    """A module whose parameters are a matrix: row i holds the flat parameters of model i.

    Args:
        module: the network; stays as it is.
        groups: how many models are computed at once; found on the first batch when left out.
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
        self.initial = torch.cat([p.detach().flatten() for p in module.parameters()])
        self._threads, self._workers = 1, [self]
        self._alone: Samplewise | None = None
        self._settled = False
        self._run = Pass()
        self._loops: FusedMlp | None = None
        self._odd: list[Odd] = []
        self._no_rules = unpackable(module) or self._replace()

    def _replace(self) -> Odd | None:
        """A copy of the module with rules for layers; what is odd where there can be none."""
        try:
            own = copy.deepcopy(self._source)
            tap = functools.partial(Tapped, run=self._run)
            self._module = replaced(own, self._slots, tap, self._odd)
        except Exception as error:  # noqa: BLE001 (a user's module may not let itself be copied)
            reason = (str(error) or type(error).__name__).splitlines()[0]
            return Odd.of(self._source, "", f"cannot be packed ({reason:.80})")
        self._merged = _merged(self._module)
        self._loops = None if self._compute is not None else _loops(self._source, self._slots)
        return None

    def settle(self, x: Tensor, y: Tensor) -> None:
        """Finds, on the first examples of a batch, how the module can be packed, and keeps to it.

        What takes a slow way is said once.

        Raises:
            SpecError: the module mixes examples, draws random numbers or keeps state.
        """
        if self._settled:
            return
        way = settled(self._source, self._slots, self._no_rules or self._copy, (x, y))
        self._settled = True
        if way.alone is not None:
            self._alone = dataclasses.replace(way.alone, compute=self._compute)
        if way.groups is not None:
            self._groups, self._loops = way.groups, None
        for odd in self._odd if way.odd is None else [way.odd]:
            warn(odd.where, odd.kind, odd.why, odd.whole)

    def _copy(self, groups: Groups | None, loops: bool) -> PackedModel:
        """Of the module as it is now, in the dtype of the parameters; taken as it comes."""
        made = PackedModel(self._source, groups or self._groups)
        made._settled = True
        made._loops = made._loops if loops else None
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
        found, x = [], self._cast(x)
        groups = self._groups or self._fast(theta.device)
        with torch.no_grad():
            for own in torch.split(self._cast(theta), groups.outer):
                self._run.begin(own, x)
                for models in _slices(len(own), groups.inner):
                    self._run.enter(models)
                    count = len(range(*models.indices(len(own))))
                    found.append(self._module(x).view(count, len(x), -1))
                self._run.end()
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
            return self._alone.clipped_sums(theta, x, y, clip_norm, weights)
        out = torch.zeros_like(theta)  # a layer that gets no gradient writes nothing
        x = self._cast(x)

        def sums(thread: int, rows: slice) -> None:
            step = _Step(x, y, clip_norm, {})
            part = None if weights is None else weights[rows]
            self._workers[thread]._sums_into(out[rows], theta[rows], step, part)

        if theta.device.type == "cpu":
            self._hire(torch.get_num_threads())
            spread(sums, len(theta))
        else:
            sums(0, slice(0, len(theta)))
        return out

    def _hire(self, threads: int) -> None:
        """Every thread needs a tape of its own."""
        while len(self._workers) < threads:
            worker = PackedModel(self._source, self._groups, self._compute)
            worker._loops, worker._settled = self._loops, True
            self._workers.append(worker)
        for worker in self._workers:
            worker._threads = threads

    def _sums_into(self, out: Tensor, theta: Tensor, step: _Step, weights: Tensor | None) -> None:
        on_cpu = theta.device.type == "cpu"
        if self._loops is not None and on_cpu and self._loops.fits(theta, step.x):
            self._loops.clipped_sums(out, theta, (step.x, step.y), step.clip_norm, weights)
            return
        if self._groups is None:
            self._groups = self._fitted(theta, step)
        start = 0
        while start < len(theta):
            rows = slice(start, start + self._groups.outer)
            part = None if weights is None else weights[rows]
            try:
                self._clipped_sums(out[rows], theta[rows], step, part)
            except RuntimeError as error:
                if not out_of_memory(error):
                    raise
                self._groups = self._groups.halved()
                continue
            start = rows.stop

    def _clipped_sums(
        self, out: Tensor, theta: Tensor, step: _Step, weights: Tensor | None
    ) -> None:
        gradients = self._gradients(theta, step)
        factors = torch.ones(len(out), len(step.y), dtype=out.dtype, device=out.device)
        if math.isfinite(step.clip_norm):
            squares = torch.zeros_like(factors)
            for models, found in gradients:
                squares[models] += found.squared_norms()
            factors = step.clip_norm / squares.sqrt_().clamp_(min=step.clip_norm)
        if weights is not None:
            factors = factors * weights
        for models, found in gradients:
            found.weighted_sums(out[models], factors[models])

    def _gradients(self, theta: Tensor, step: _Step) -> list[Found]:
        """Per-sample gradients of every layer and group of models.

        In the dtype of `theta`: gradients rounded to less would be longer than C once clipped.
        """
        assert self._groups is not None
        wide = functools.partial(_widened, dtype=theta.dtype)
        found: list[Found] = []
        first: list[list[Tap]] = []
        self._run.begin(self._cast(theta), step.x)
        for models in _slices(len(theta), self._groups.inner):
            taps = self._backward(models, step)
            found += [
                (models, tap.rule.samples(theta[models], wide(tap.x), wide(tap.g)))
                for tap in taps
                if not tap.shared
            ]
            first.append([tap for tap in taps if tap.shared])
        self._run.end()
        for group in zip(*first, strict=True):  # one layer, all groups
            parts = [wide(tap.g).reshape(-1, len(step.x), *tap.g.shape[1:]) for tap in group]
            samples = group[0].rule.samples_shared(theta, wide(group[0].x), parts, step.cache)
            found.append((slice(0, len(theta)), samples))
        return found

    def _backward(self, models: slice, step: _Step) -> list[Tap]:
        self._run.enter(models)
        with torch.enable_grad():
            outputs = self._module(step.x)
            count = len(self._run.theta)
            if outputs.dim() != 2 or len(outputs) != count * len(step.y):
                shape = tuple(outputs.shape)
                raise ValueError(f"{count * len(step.y)} examples give scores of shape {shape}")
            labels = step.y.repeat(count)
            torch.autograd.backward(losses_of(outputs, labels).sum())
        return list(self._run.tape)

    def _fitted(self, theta: Tensor, step: _Step) -> Groups:
        """Groups that fit, from what one model leaves on its tape."""
        groups = self._fast(theta.device)
        self._run.begin(self._cast(theta[:1]), step.x)
        taps = self._backward(slice(0, 1), step)
        self._run.end()
        held = sum(t.x.nbytes * (not t.shared) + t.g.nbytes for t in taps)
        return groups.fitted(held * self._threads, theta.device)

    def _fast(self, device: torch.device) -> Groups:
        return Groups.of(self._source, device, 0 if self._compute is not None else self._merged)

    def _cast(self, values: Tensor) -> Tensor:
        floating = values.is_floating_point() and self._compute is not None
        return values.to(self._compute) if floating else values


def _widened(values: Tensor, dtype: torch.dtype) -> Tensor:
    return values.to(dtype) if values.is_floating_point() else values


def _loops(module: nn.Module, slots: dict[str, Slot]) -> FusedMlp | None:
    from .fused import fused  # numba takes half a second to import

    return fused(module, slots)


def _merged(module: nn.Module) -> int:
    from ..rules.convpool import ConvPool  # numba takes half a second to import

    chains = [part.merged for part in module.modules() if isinstance(part, Chain)]
    return sum(isinstance(part, ConvPool) for chain in chains for part in chain)


def _slices(n: int, size: int) -> Iterator[slice]:
    return (slice(start, min(start + size, n)) for start in range(0, n, size))
