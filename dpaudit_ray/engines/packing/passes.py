"""A set of models on its way forth and back through a network, and on to its clipped sums.

Every layer with parameters is a `Layer`, applied by its rule; on the way back it notes what its
rule has seen. When the pass is over, rules give per-sample norms and then clipped sums from that.
All else in the network runs as its own code, through autograd.

Models go through in groups: a layer that sees the batch itself is applied for all groups at once.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..rules.base import Rule, SampleGradients
from ..rules.losses import Loss, losses
from .memory import slices


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
    """What a rule kept on the way forth, and its output's gradient."""

    rule: Rule
    kept: Any
    g: Tensor  # [n*B, ...]
    shared: bool  # whether all models of all groups have one input [B, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that this holds for its models."""
        return int(self.g.nbytes + self.kept.nbytes * (not self.shared))


class Passes:
    """Takes models through `module`, whose layers were made for these passes; one at a time."""

    module: nn.Module
    by_loops = True  # whether layers that have compiled loops may take them

    def __init__(self) -> None:
        self.records: list[Record] = []  # what layers give on the way back
        self._applied: set[Rule] = set()
        self._shared: dict[Rule, tuple[Tensor, Any]] = {}

    def outputs(self, theta: Tensor, x: Tensor, at_once: int) -> list[Tensor]:
        """[n, B, c] of theta [n, p] and x [B, ...], in groups of so many models."""
        outputs = []
        with torch.no_grad(), self._pass(theta, x):
            for models in slices(len(theta), at_once):
                self._enter(models)
                outputs.append(self.module(x).view(len(self.theta), len(x), -1))
        return outputs

    def clipped_sums(
        self, out: Tensor, theta: Tensor, step: Step, weights: Tensor, at_once: int
    ) -> None:  # fmt: skip
        """Σ_j weights[:, j] · clip(gradient of sample j, C) into out [n, p]."""
        gradients = self._gradients(theta, step, at_once)
        if math.isfinite(step.clip_norm):
            squares = torch.zeros_like(weights)
            for models, samples in gradients:
                squares[models] += samples.squared_norms()
            weights = step.clip_norm / squares.sqrt_().clamp_(min=step.clip_norm) * weights
        for models, samples in gradients:
            samples.weighted_sums(out[models], weights[models])

    def bytes_of_one(self, theta: Tensor, step: Step) -> int:
        """Bytes that a pass of one model, theta [1, p], leaves behind."""
        with self._pass(theta, step.x):
            return sum(record.nbytes for record in self._forth_and_back(slice(0, 1), step))

    def _gradients(
        self, theta: Tensor, step: Step, at_once: int
    ) -> list[tuple[slice, SampleGradients]]:
        """Per-sample gradients of every layer and group, each with the models that it is of."""
        gradients: list[tuple[slice, SampleGradients]] = []
        shared: list[list[Record]] = []  # by group
        with self._pass(theta, step.x):
            for models in slices(len(theta), at_once):
                records = self._forth_and_back(models, step)
                gradients += [
                    (models, record.rule.samples(theta[models], record.kept, record.g))
                    for record in records
                    if not record.shared
                ]
                shared.append([record for record in records if record.shared])
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
        return list(self.records)

    @contextlib.contextmanager
    def _pass(self, theta: Tensor, x: Tensor) -> Iterator[None]:
        """Of these models on a batch; at its end all is forgotten but the last group's θ."""
        self._all, self.input = theta, x
        self._shared.clear()
        yield
        self.records.clear()
        self._shared.clear()

    def _enter(self, models: slice) -> None:
        self._models = models
        self.theta = self._all[models]
        # A leaf that needs a gradient, so that autograd visits the first layer too.
        self.anchor = self.theta.new_zeros(()).requires_grad_()
        self._applied.clear()
        self.records.clear()

    def layer_input(self, rule: Rule, x: Tensor) -> tuple[Tensor, bool]:
        """The layer's input as a rule wants it, and whether all groups share it.

        Raises ValueError where the layer is applied twice, or to something that is no batch.
        """
        if (rule.owner or rule) in self._applied:
            raise ValueError("a layer is applied twice")
        self._applied.add(rule.owner or rule)
        batch, models = self.input, len(self.theta)
        rows = x.shape[0] if x.dim() else 0
        # The batch itself, or a reshaping of each example that is no copy.
        whole = rows == len(batch) and 0 < x.numel() == batch.numel()
        if whole and x.data_ptr() == batch.data_ptr():
            if rows == 1 or x.stride(0) == batch.stride(0):
                return x, True
            raise ValueError("a layer is given the batch the other way round")
        if rows == len(batch) and models > 1:  # the same for all models, but a new tensor
            return x.repeat(models, *[1] * (x.dim() - 1)), False
        if rows != models * len(batch):
            raise ValueError(f"a layer is given {rows} rows of {models * len(batch)}")
        return x, False

    def layer_output(self, rule: Rule, x: Tensor, shared: bool) -> tuple[Tensor, Any]:
        """Outputs [n*B, ...] of these models, and what is kept; a `shared` x goes through once."""
        if not shared:
            return rule.forward(self.theta, x)
        if rule not in self._shared:
            self._shared[rule] = rule.forward_shared(self._all, x)
        of_all, kept = self._shared[rule]
        return of_all[self._models].flatten(0, 1), kept


class Layer(nn.Module):
    """A layer with parameters, applied by its rule."""

    def __init__(self, rule: Rule, passes: Passes) -> None:
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
        passes.records.append(Record(rule, ctx.kept, g, ctx.shared))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return rule.input_gradient(passes.theta, ctx.kept, g), None, None, None
