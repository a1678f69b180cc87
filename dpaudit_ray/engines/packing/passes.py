"""A set of models on its way forth and back through a network, and on to its clipped sums.

Every layer with parameters is a `Layer`, applied by its rule; on the way back it notes what its
rule has seen. When the pass is over, rules give per-sample norms and then clipped sums from that,
without any per-sample gradient of a large layer. All else in the network runs as its own code,
through autograd.

Models may go through in groups: a layer that sees the batch itself is then applied for all groups
at once, on the first group's way through.
"""

from __future__ import annotations

import dataclasses
import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..rules.base import Rule, SampleGradients
from ..rules.losses import Loss, losses
from .memory import slices

ModelGradients = tuple[slice, SampleGradients]  # of which models


@dataclasses.dataclass(frozen=True)
class Step:
    """A batch, its loss, how gradients are clipped, and what rules keep about its examples."""

    x: Tensor
    y: Tensor
    clip_norm: float
    loss: Loss = losses
    cache: dict[object, Tensor] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Record:
    """What a rule kept on the way forth, and its output's gradient.

    `shared`: the layer's input [B, ...] is the same for all models of all groups; else it is
    [n*B, ...] for this group's n models, as the gradient always is.
    """

    rule: Rule[Any]
    kept: Any
    g: Tensor
    shared: bool

    @property
    def nbytes(self) -> int:
        """Bytes that this holds for its models."""
        return int(self.g.nbytes + self.kept.nbytes * (not self.shared))


class Passes:
    """Takes models through `module`, whose layers were made for these passes; one at a time."""

    module: nn.Module
    by_loops = True  # whether layers that have compiled loops may take them

    def __init__(self) -> None:
        self._records: list[Record] = []
        self._applied: set[Rule[Any]] = set()
        self._shared: dict[Rule[Any], tuple[Tensor, Any]] = {}

    @property
    def batch(self) -> int:
        """Samples that every model sees."""
        return len(self._input)

    def outputs(self, theta: Tensor, x: Tensor, at_once: int) -> list[Tensor]:
        """[n, B, c] in groups of so many models, of theta [n, p] and a batch x [B, ...]."""
        outputs = []
        with torch.no_grad():
            self._begin(theta, x)
            for models in slices(len(theta), at_once):
                self._enter(models)
                count = len(range(*models.indices(len(theta))))
                outputs.append(self.module(x).view(count, len(x), -1))
            self._end()
        return outputs

    def clipped_sums(
        self, out: Tensor, theta: Tensor, step: Step, weights: Tensor | None, at_once: int
    ) -> None:  # fmt: skip
        """Σ_j weights[:, j] · clip(gradient of sample j, C) into out [n, p]."""
        gradients = self._gradients(theta, step, at_once)
        factors = torch.ones(len(out), len(step.y), dtype=out.dtype, device=out.device)
        if math.isfinite(step.clip_norm):
            squares = torch.zeros_like(factors)
            for models, samples in gradients:
                squares[models] += samples.squared_norms()
            factors = step.clip_norm / squares.sqrt_().clamp_(min=step.clip_norm)
        if weights is not None:
            factors = factors * weights
        for models, samples in gradients:
            samples.weighted_sums(out[models], factors[models])

    def bytes_of_one(self, theta: Tensor, step: Step) -> int:
        """Bytes that a pass of one model, theta [1, p], leaves behind."""
        self._begin(theta, step.x)
        records = self._forth_and_back(slice(0, 1), step)
        self._end()
        return sum(record.nbytes for record in records)

    def _gradients(self, theta: Tensor, step: Step, at_once: int) -> list[ModelGradients]:
        """Per-sample gradients of every layer and group of so many models."""
        gradients: list[ModelGradients] = []
        shared: list[list[Record]] = []  # by group
        self._begin(theta, step.x)
        for models in slices(len(theta), at_once):
            records = self._forth_and_back(models, step)
            gradients += [
                (models, record.rule.samples(theta[models], record.kept, record.g))
                for record in records
                if not record.shared
            ]
            shared.append([record for record in records if record.shared])
        self._end()
        for groups in zip(*shared, strict=True):  # of one layer
            first, parts = groups[0], [r.g.reshape(-1, len(step.x), *r.g.shape[1:]) for r in groups]
            samples = first.rule.samples_shared(theta, first.kept, parts, step.cache)
            gradients.append((slice(0, len(theta)), samples))
        return gradients

    def _forth_and_back(self, models: slice, step: Step) -> list[Record]:
        self._enter(models)
        with torch.enable_grad():
            outputs = self.module(step.x)
            count = len(self.theta)
            if outputs.dim() != 2 or len(outputs) != count * len(step.y):
                shape = tuple(outputs.shape)
                raise ValueError(f"{count * len(step.y)} examples give scores of shape {shape}")
            torch.autograd.backward(step.loss(outputs, step.y.repeat(count)).sum())
        return list(self._records)

    def _begin(self, theta: Tensor, x: Tensor) -> None:
        self._all = theta
        self._input = x
        self._shared.clear()

    def _enter(self, models: slice) -> None:
        """Starts one group of these models."""
        self._models = models
        self.theta = self._all[models]
        # A leaf that needs a gradient, so that autograd visits the first layer too.
        self.anchor = self.theta.new_zeros(()).requires_grad_()
        self._applied.clear()
        self._records.clear()

    def _end(self) -> None:
        """Forgets everything but the last group's parameters."""
        self._records.clear()
        self._shared.clear()

    def record(self, record: Record) -> None:
        """Takes what a layer gives on the way back."""
        self._records.append(record)

    def layer_input(self, rule: Rule[Any], x: Tensor) -> tuple[Tensor, bool]:
        """The layer's input as a rule wants it, and whether all groups share it.

        Raises ValueError where the layer is applied twice, or to something that is no batch.
        """
        if (owner := rule.owner or rule) in self._applied:
            raise ValueError("a layer is applied twice")
        self._applied.add(owner)
        batch, models = self._input, len(self.theta)
        rows = x.shape[0] if x.dim() else 0
        # The batch itself, or a reshaping of each example that is no copy.
        if _begins_with(x, batch) and x.numel() == batch.numel() and rows == len(batch):
            if rows == 1 or x.stride(0) == batch.stride(0):
                return x, True
            raise ValueError("a layer is given the batch the other way round")
        if rows == len(batch) and models > 1:  # the same for all models, but a new tensor
            return x.repeat(models, *[1] * (x.dim() - 1)), False
        if rows != models * len(batch):
            raise ValueError(f"a layer is given {rows} rows of {models * len(batch)}")
        return x, False

    def layer_output(self, rule: Rule[Any], x: Tensor, shared: bool) -> tuple[Tensor, Any]:
        """The output for the models that are passed now, [n*B, ...], and what the rule keeps of it.

        x is [n*B, ...], each model's own, or [B, ...] where it is `shared` by all models, as the
        batch itself: then the layer is computed once for all models, and kept for the next group.
        """
        if not shared:
            return rule.forward(self.theta, x)
        if rule not in self._shared:
            self._shared[rule] = rule.forward_shared(self._all, x)
        of_all, kept = self._shared[rule]
        return of_all[self._models].flatten(0, 1), kept


def _begins_with(x: Tensor, other: Tensor) -> bool:
    """Whether both begin at one place."""
    same = x.untyped_storage()._cdata == other.untyped_storage()._cdata
    return same and bool(x.storage_offset() == other.storage_offset())


class Layer(nn.Module):
    """A layer with parameters, applied by its rule."""

    def __init__(self, rule: Rule[Any], passes: Passes) -> None:
        super().__init__()
        self.rule = rule
        self.passes = passes

    def forward(self, x: Tensor) -> Tensor:
        """[n*B, ...], or [B, ...] where the input is still the same for all models."""
        x, shared = self.passes.layer_input(self.rule, x)
        result: Tensor = _Apply.apply(x, self.passes.anchor, self, shared)
        return result


class Chain(nn.Sequential):
    """A Sequential whose call goes through `merged` layers; indexing and iteration see its own."""

    def __init__(self, layers: nn.Sequential, merged: Sequence[nn.Module]) -> None:
        super().__init__(OrderedDict(layers._modules))
        self.merged = tuple(merged)

    def __getitem__(self, idx: slice | int) -> Any:
        if isinstance(idx, slice):
            return nn.Sequential(OrderedDict(list(self._modules.items())[idx]))
        return super().__getitem__(idx)

    def forward(self, input: Any) -> Any:
        """The output of the last of `merged`."""
        for layer in self.merged:
            input = layer(input)
        return input


class _Apply(torch.autograd.Function):
    """A `Layer` as an operation of autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _anchor: Tensor, layer: Layer, shared: bool) -> Tensor:
        ctx.layer, ctx.shared = layer, shared
        y, ctx.kept = layer.passes.layer_output(layer.rule, x.detach(), shared)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None]:
        rule, passes = ctx.layer.rule, ctx.layer.passes
        passes.record(Record(rule, ctx.kept, g, ctx.shared))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return rule.input_gradient(passes.theta, ctx.kept, g), None, None, None
