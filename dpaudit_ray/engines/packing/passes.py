"""Forward and backward pass of a set of models through a network, and its clipped sums.

Every layer with parameters is a `Layer`, applied by its rule; in the backward pass it records the
rule's saved data and the gradient of its output. After the pass, rules compute per-sample norms and
then clipped sums from these records. All other code of the network runs as it is, through autograd.

Models go through in groups: a layer on the batch itself is applied once, for all groups. Code that
joins the batch with what follows from parameters (`x + layer(x)`) needs it once for each model.
"""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..rules.base import Rule, SampleGradients, by_model, repeated
from ..rules.losses import Loss, losses
from .memory import slices


@dataclass(frozen=True)
class Step:
    """A batch, its loss, the clip norm, and values of rules that depend on the examples alone."""

    x: Tensor
    y: Tensor
    clip_norm: float
    loss: Loss = losses
    cache: dict[object, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """Data that a rule saved for backward, and the gradient of its output."""

    rule: Rule
    saved: Any
    g: Tensor  # [n*B, ...]
    shared: bool  # whether all models of all groups have one input [B, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in memory for the models of the group."""
        saved_bytes = 0 if self.shared else self.saved.nbytes
        return int(self.g.nbytes + saved_bytes)


class Passes:
    """Takes models through `module`, whose layers belong to these passes; one pass at a time."""

    module: nn.Module
    by_loops = True  # whether layers that have compiled loops may take them
    repeats = False  # whether the module is given a copy of the batch for every model

    def __init__(self) -> None:
        self.records: list[Record] = []  # in the order of the backward pass
        self._applied: set[Rule] = set()
        self._shared: dict[Rule, tuple[Tensor, Any]] = {}

    def outputs(
        self,
        theta: Tensor,
        x: Tensor,
        at_once: int,
    ) -> list[Tensor]:
        """Returns outputs [models, B, c] of each group.

        Args:
            theta: parameters [n, p].
            x: examples [B, ...].
            at_once: number of models of a group.
        """
        outputs = []
        with torch.no_grad(), self._pass(theta, x):
            for models in slices(len(theta), at_once):
                self._enter(models)
                group_outputs = self.module(self._given(x))
                outputs.append(group_outputs.view(len(self.theta), len(x), -1))
        return outputs

    def clipped_sums(
        self, out: Tensor, theta: Tensor, step: Step, weights: Tensor, at_once: int
    ) -> None:  # fmt: skip
        """Writes Σ_j weights[:, j] · clip(gradient of sample j, C).

        Args:
            out: [n, p], to be written.
            theta: parameters [n, p].
            step: examples, labels, clip norm C and loss.
            weights: [n, B].
            at_once: number of models of a group.
        """
        gradients = self._gradients(theta, step, at_once)
        if math.isfinite(step.clip_norm):
            squares = torch.zeros_like(weights)
            for models, samples in gradients:
                squares[models] += samples.squared_norms()
            weights = step.clip_norm / squares.sqrt_().clamp_(min=step.clip_norm) * weights
        for models, samples in gradients:
            samples.weighted_sums(out[models], weights[models])

    def bytes_of_one(self, theta: Tensor, step: Step) -> int:
        """Returns the bytes that a pass of one model, theta [1, p], keeps until its sums."""
        with self._pass(theta, step.x):
            records = self._forward_and_backward(slice(0, 1), step)
            return sum(record.nbytes for record in records)

    def _gradients(
        self, theta: Tensor, step: Step, at_once: int
    ) -> list[tuple[slice, SampleGradients]]:
        """Returns per-sample gradients of every layer and group, each with its models."""
        gradients: list[tuple[slice, SampleGradients]] = []
        shared: list[list[Record]] = []  # by group
        with self._pass(theta, step.x):
            for models in slices(len(theta), at_once):
                records = self._forward_and_backward(models, step)
                for record in records:
                    if not record.shared:
                        samples = record.rule.samples(theta[models], record.saved, record.g)
                        gradients.append((models, samples))
                shared.append([record for record in records if record.shared])
        batch = len(step.x)
        for layer_records in zip(*shared, strict=True):  # of one layer, by group
            first = layer_records[0]
            parts = [by_model(record.g, len(record.g) // batch) for record in layer_records]
            samples = first.rule.samples_shared(theta, first.saved, parts, step.cache)
            gradients.append((slice(0, len(theta)), samples))
        return gradients

    def _forward_and_backward(self, models: slice, step: Step) -> list[Record]:
        """Returns the records of a group's layers. ValueError: outputs of another shape."""
        self._enter(models)
        with torch.enable_grad():
            outputs = self.module(self._given(step.x))
            labels = step.y.repeat(len(self.theta))
            if outputs.dim() != 2 or len(outputs) != len(labels):
                shape = tuple(outputs.shape)
                raise ValueError(f"{len(labels)} examples give scores of shape {shape}")
            torch.autograd.backward(step.loss(outputs, labels).sum())
        return list(self.records)

    def _given(self, x: Tensor) -> Tensor:
        """Returns what the module is called with for the models of the group."""
        return repeated(x, len(self.theta)) if self.repeats else x

    @contextlib.contextmanager
    def _pass(self, theta: Tensor, x: Tensor) -> Iterator[None]:
        """Begins a pass of these models on a batch; at its end, drops all but the last θ."""
        self._all, self.input = theta, x
        self._shared.clear()
        yield
        self.records.clear()
        self._shared.clear()

    def _enter(self, models: slice) -> None:
        """Begins the pass of one group."""
        self._models = models
        self.theta = self._all[models]
        # A leaf that needs a gradient, so that autograd visits the first layer too.
        self.anchor = self.theta.new_zeros(()).requires_grad_()
        self._applied.clear()
        self.records.clear()

    def layer_input(
        self,
        rule: Rule,
        x: Tensor,
    ) -> tuple[Tensor, bool]:
        """Returns a layer's input as its rule needs it, and whether all groups share it.

        Raises:
            ValueError: the layer is applied twice, or to other rows than those of the batch.
        """
        owner = rule.owner or rule
        if owner in self._applied:
            raise ValueError("a layer is applied twice")
        self._applied.add(owner)
        batch, models = self.input, len(self.theta)
        rows = x.shape[0] if x.dim() else 0
        # The batch itself, or a reshaping of each example without a copy.
        same_size = rows == len(batch) and 0 < x.numel() == batch.numel()
        if same_size and x.data_ptr() == batch.data_ptr():
            if rows == 1 or x.stride(0) == batch.stride(0):
                return x, True
            raise ValueError("a layer is given the batch the other way round")
        if rows == len(batch) and models > 1:  # the same for all models, but a new tensor
            return repeated(x, models), False
        if rows != models * len(batch):
            raise ValueError(f"a layer is given {rows} rows of {models * len(batch)}")
        return x, False

    def layer_output(
        self,
        rule: Rule,
        x: Tensor,
        shared: bool,
    ) -> tuple[Tensor, Any]:
        """Returns the group's output [n*B, ...] and what is saved; applied once if `shared`."""
        if not shared:
            return rule.forward(self.theta, x)
        if rule not in self._shared:
            self._shared[rule] = rule.forward_shared(self._all, x)
        y, saved = self._shared[rule]
        return y[self._models].flatten(0, 1), saved


class Layer(nn.Module):
    """A layer with parameters, applied by its rule."""

    def __init__(self, rule: Rule, passes: Passes) -> None:
        super().__init__()
        self.rule = rule
        self.passes = passes

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output [n*B, ...] of x [n*B, ...], or of the batch [B, ...] itself."""
        x, shared = self.passes.layer_input(self.rule, x)
        result: Tensor = _Apply.apply(x, self.passes.anchor, self, shared)
        return result


class Chain(nn.Sequential):
    """A Sequential whose call goes through `merged` layers; items are the layers themselves."""

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        merged: Sequence[nn.Module] | None = None,
    ) -> None:
        super().__init__(OrderedDict(layers))
        self.merged = tuple(self if merged is None else merged)  # None for a slice of a chain

    def forward(self, input: Any) -> Any:
        """Returns the output of the last of `merged`."""
        for layer in self.merged:
            input = layer(input)
        return input


class _Apply(torch.autograd.Function):
    """A `Layer` as an operation of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        _anchor: Tensor,
        layer: Layer,
        shared: bool,
    ) -> Tensor:
        ctx.layer = layer
        ctx.shared = shared
        y, ctx.saved = layer.passes.layer_output(layer.rule, x.detach(), shared)
        return y

    @staticmethod
    def backward(
        ctx: Any,
        g: Tensor,
    ) -> tuple[Tensor | None, None, None, None]:
        rule, passes = ctx.layer.rule, ctx.layer.passes
        passes.records.append(Record(rule, ctx.saved, g, ctx.shared))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return rule.input_gradient(passes.theta, ctx.saved, g), None, None, None
