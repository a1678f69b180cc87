"""Forward and backward pass of a set of models through a network, and its clipped sums.

Every layer with parameters is a `Layer`, applied by its rule; in the backward pass it records the
rule's saved data and the gradient of its output. After the pass, rules compute per-sample norms and
then clipped sums from these records. All other code of the network runs as it is, through autograd.

Models go through in groups: a layer on the batch itself is applied once, for all groups. Code that
joins the batch with what follows from parameters (`x + layer(x)`), or has parameters without a
rule, is mapped instead: `vmap` gives the module one example of one model at a time, and each
`Layer` on the way gets all of them at once. A parameter without a rule is copied for every example,
so that autograd has the gradient of each.
"""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import vmap
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode

from ..rules.base import Formed, Rule, SampleGradients, Slot, by_model, repeated
from ..rules.losses import Loss, classification_losses
from .memory import slices


@dataclass(frozen=True)
class Step:
    """A batch, with the loss and the clip norm for its gradients."""

    x: Tensor  # examples [B, ...]
    y: Tensor  # targets [B]
    clip_norm: float
    loss: Loss = classification_losses
    # Tensors that rules reuse for further models, as they depend on the examples alone.
    cache: dict[object, Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Record:
    """Data that a layer's rule saved for backward, and the gradient of the layer's output."""

    rule: Rule
    saved: Any
    g: Tensor  # [n*B, ...]
    shared: bool  # whether all models of all groups have one input [B, ...]

    @property
    def nbytes(self) -> int:
        """Bytes in memory for the models of the group."""
        saved_bytes = 0 if self.shared else self.saved.nbytes
        return int(self.g.nbytes + saved_bytes)


@dataclass(frozen=True)
class UnruledParameter:
    """A parameter that no rule computes: an attribute of a layer, which `vmap` replaces."""

    layer: nn.Module
    name: str
    slot: Slot


class Passes:
    """Takes models forward and backward through `module`, group by group, one pass at a time.

    The `Layer`s of the module belong to these passes: they find the group's parameters here.
    """

    module: nn.Module
    by_loops = True  # whether layers may use compiled loops
    mapped = False  # whether `vmap` gives the module one example of one model at a time

    def __init__(self) -> None:
        """Begins without a module, which is set once its layers are made."""
        self.unruled: list[UnruledParameter] = []
        self._leaves: list[Tensor] = []  # values of `unruled`, a copy for each example [n*B, ...]
        self.records: list[Record] = []  # records in the order of the backward pass
        self._applied: set[Rule] = set()  # rules applied to this group: each may be only once
        # Output and saved data of layers on the batch itself, which all groups share.
        self._shared: dict[Rule, tuple[Tensor, Any]] = {}

    def outputs(
        self,
        theta: Tensor,
        x: Tensor,
        group_size: int,
    ) -> list[Tensor]:
        """Returns outputs [models, B, c] of each group.

        Args:
            theta: parameters [n, p].
            x: examples [B, ...].
            group_size: number of models of a group.
        """
        outputs = []
        with torch.no_grad(), self._pass(theta, x):
            for models in slices(len(theta), group_size):
                self._begin_group(models)
                group_outputs = self._forward(x)
                outputs.append(group_outputs.view(len(self.theta), len(x), -1))
        return outputs

    def clipped_sums(
        self, out: Tensor, theta: Tensor, step: Step, weights: Tensor, group_size: int
    ) -> None:  # fmt: skip
        """Writes Σ_j weights[:, j] · clip(gradient of sample j, C).

        Args:
            out: [n, p], to be written.
            theta: parameters [n, p].
            step: examples, labels, clip norm C and loss.
            weights: [n, B].
            group_size: number of models of a group.
        """
        gradients = self._gradients(theta, step, group_size)
        if math.isfinite(step.clip_norm):
            # The norm of a sample's gradient is that over all layers, so it comes before any sum.
            squares = torch.zeros_like(weights)
            for models, samples in gradients:
                squares[models] += samples.squared_norms()
            norms = squares.sqrt_()
            clip_factors = step.clip_norm / norms.clamp_(min=step.clip_norm)
            weights = clip_factors * weights
        for models, samples in gradients:
            samples.weighted_sums(out[models], weights[models])

    def bytes_of_one(self, theta: Tensor, step: Step) -> int:
        """Returns the bytes that a pass of one model, theta [1, p], keeps until its sums."""
        with self._pass(theta, step.x):
            records = self._forward_and_backward(slice(0, 1), step)
            leaf_bytes = sum(leaf.nbytes for leaf in self._leaves)
            return leaf_bytes + sum(record.nbytes for record in records)

    def _gradients(
        self, theta: Tensor, step: Step, group_size: int
    ) -> list[tuple[slice, SampleGradients]]:
        """Returns per-sample gradients of every layer and group, each with its models.

        Args:
            theta: parameters [n, p].
            step: examples, labels and loss.
            group_size: number of models of a group.
        """
        gradients = []
        shared = []  # records of layers on the batch itself, by group
        with self._pass(theta, step.x):
            for models in slices(len(theta), group_size):
                records = self._forward_and_backward(models, step)
                for record in records:
                    if not record.shared:
                        samples = record.rule.samples(theta[models], record.saved, record.g)
                        gradients.append((models, samples))
                if self.unruled:  # some parameters have no rule
                    gradients.append((models, self._unruled_gradients()))
                shared.append([record for record in records if record.shared])
        batch = len(step.x)
        # A layer on the batch itself has a record in each group, but one input for all of them.
        for layer_records in zip(*shared, strict=True):
            first = layer_records[0]
            parts = [by_model(record.g, len(record.g) // batch) for record in layer_records]
            samples = first.rule.samples_shared(theta, first.saved, parts, step.cache)
            gradients.append((slice(0, len(theta)), samples))
        return gradients

    def _forward_and_backward(self, models: slice, step: Step) -> list[Record]:
        """Takes a group of models through the network and back; returns the records of its layers.

        Raises:
            ValueError: outputs are not a row of scores for each example.
        """
        self._begin_group(models)
        with torch.enable_grad():
            outputs = self._forward(step.x)
            labels = step.y.repeat(len(self.theta))
            if outputs.dim() != 2 or len(outputs) != len(labels):
                shape = tuple(outputs.shape)
                raise ValueError(f"{len(labels)} examples give scores of shape {shape}")
            torch.autograd.backward(step.loss(outputs, labels).sum())
        return list(self.records)

    def _forward(self, x: Tensor) -> Tensor:
        """Returns outputs [n*B, c] on examples x [B, ...]: all of the first model, then the next.

        If `mapped`, `vmap` gives the module one example of one model at a time.
        """
        if not self.mapped:
            outputs: Tensor = self.module(x)
            return outputs

        def output(example: Tensor, anchor: Tensor, values: Sequence[Tensor]) -> Tensor:
            """Returns the output of one model on one example, [c]."""
            # Each `Layer` that the pass goes through takes the anchor from here.
            self.anchor = anchor
            for parameter, value in zip(self.unruled, values, strict=True):
                setattr(parameter.layer, parameter.name, value)
            row: Tensor = self.module(example.unsqueeze(0))
            return row.squeeze(0)

        examples = repeated(x, len(self.theta))
        anchors = self.anchor.expand(len(examples))
        self._leaves = []
        for parameter in self.unruled:
            by_example = parameter.slot.of(self.theta).repeat_interleave(len(x), 0)
            self._leaves.append(by_example.requires_grad_())
        with _PlainAttention():
            mapped: Tensor = vmap(output)(examples, anchors, self._leaves)
        return mapped

    def _unruled_gradients(self) -> SampleGradients:
        """Returns per-sample gradients of parameters without a rule, after a backward pass.

        Each leaf holds a copy of its parameter for every example, so the gradient of the leaf has
        a row for every example. A leaf without a gradient did not enter the loss: it is skipped,
        which counts as zero.
        """
        parts = []
        for parameter, leaf in zip(self.unruled, self._leaves, strict=True):
            if leaf.grad is not None:
                # One row for each example of each model.
                gradients = by_model(leaf.grad.flatten(1), len(self.theta))
                parts.append((parameter.slot, gradients))
        return Formed(tuple(parts))

    @contextlib.contextmanager
    def _pass(self, theta: Tensor, x: Tensor) -> Iterator[None]:
        """Begins a pass of models theta [n, p] on a batch; at its end, drops the layers' records.

        The models are entered group by group.
        """
        self._all_theta = theta
        self.input = x
        self._shared.clear()
        yield
        self.records.clear()
        self._shared.clear()

    def _begin_group(self, models: slice) -> None:
        """Begins the pass of one group of models, given as a slice of all models."""
        self._group = models
        self.theta = self._all_theta[models]
        # A leaf that needs a gradient, so that autograd visits the first layer too.
        self.anchor = self.theta.new_zeros(()).requires_grad_()
        self._applied.clear()
        self.records.clear()

    def mark_applied(self, rule: Rule) -> None:
        """Notes that a rule is applied. Raises ValueError if its parameters were used before.

        The gradient of a parameter that is used twice has two records, whose norms do not add up.
        """
        owner = rule.owner or rule
        if owner in self._applied:
            raise ValueError("a layer is applied twice")
        self._applied.add(owner)

    def layer_input(
        self,
        rule: Rule,
        x: Tensor,
    ) -> tuple[Tensor, bool]:
        """Returns a layer's input as its rule needs it, and whether all groups share it.

        Args:
            rule: rule of the layer.
            x: the batch [B, ...] or a view of it, which all groups share; another tensor [B, ...],
                which is copied for each model of the group; or [n*B, ...], as the rule needs it.

        Raises:
            ValueError: the layer is applied twice, or to other rows than those of the batch.
        """
        self.mark_applied(rule)
        batch = self.input
        models = len(self.theta)
        rows = x.shape[0] if x.dim() else 0
        # Same memory: the batch itself, or a view that reshapes each example. If the view has
        # another stride, its rows are not the examples.
        same_size = rows == len(batch) and 0 < x.numel() == batch.numel()
        if same_size and x.data_ptr() == batch.data_ptr():
            if rows == 1 or x.stride(0) == batch.stride(0):
                return x, True
            raise ValueError("a layer is given the batch the other way round")
        if rows == len(batch) and models > 1:  # a new tensor, with one input for all models
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
        """Returns the group's output [n*B, ...], and the data that the rule saves for backward.

        Args:
            rule: rule of the layer.
            x: the layer's input.
            shared: whether `x` is the batch itself: then the rule is applied once for all groups.
        """
        if not shared:
            return rule.forward(self.theta, x)
        if rule not in self._shared:
            self._shared[rule] = rule.forward_shared(self._all_theta, x)
        y, saved = self._shared[rule]
        return y[self._group].flatten(0, 1), saved


class _PlainAttention(TorchFunctionMode):
    """Computes attention by products and a softmax, in place of torch's fused kernels.

    In these, `vmap` would loop over the examples. Torch's own switch, `sdpa_kernel`, would change
    all threads.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """Replaces the fused attention; calls every other function of torch as it is."""
        if func is scaled_dot_product_attention:
            return torch._scaled_dot_product_attention_math(*args, **(kwargs or {}))[0]
        return func(*args, **(kwargs or {}))


class Layer(nn.Module):
    """A layer with parameters, applied by its rule."""

    def __init__(self, rule: Rule, passes: Passes) -> None:
        """Makes the layer of a rule, applied in these passes only."""
        super().__init__()
        self.rule = rule
        self.passes = passes
        self.saved: Any = None  # saved by the forward pass, until autograd has taken it

    @property
    def weight(self) -> Tensor:
        """An empty weight, for a user's code that reads the dtype or the shape of a layer's."""
        shape = self.rule.weight.shape
        dtype = self.passes.theta.dtype
        return torch.empty(shape, dtype=dtype, device="meta")

    def forward(self, x: Tensor) -> Tensor:
        """Returns the output [n*B, ...] of x [n*B, ...], or of the batch [B, ...] itself."""
        shared = False
        if not self.passes.mapped:  # under `vmap`, x is one example, of one model
            x, shared = self.passes.layer_input(self.rule, x)
        result: Tensor = _Apply.apply(x, self.passes.anchor, self, shared)
        return result


class Chain(nn.Sequential):
    """A Sequential that applies `merged` layers when it is called; its items stay the layers."""

    def __init__(
        self,
        layers: Mapping[str, nn.Module],
        merged: Sequence[nn.Module] | None = None,
    ) -> None:
        """Makes the chain.

        Args:
            layers: the layers by name, as a Sequential has them.
            merged: layers that compute the same; None, as torch calls it for a slice of a chain,
                for the layers themselves.
        """
        super().__init__(OrderedDict(layers))
        self.merged = tuple(self if merged is None else merged)

    def forward(self, input: Any) -> Any:
        """Returns the output of the last of the `merged` layers."""
        for layer in self.merged:
            input = layer(input)
        return input


class _Apply(torch.autograd.Function):
    """A `Layer` as an operation of autograd."""

    @staticmethod
    def forward(
        x: Tensor,
        _anchor: Tensor,
        layer: Layer,
        shared: bool,
    ) -> Tensor:
        """Applies the rule; `_anchor` needs a gradient, so that `backward` is always called."""
        y, layer.saved = layer.passes.layer_output(layer.rule, x.detach(), shared)
        return y.detach()  # torch refuses changes in place (`y += x`) of a view

    @staticmethod
    def setup_context(
        ctx: Any,
        inputs: tuple[Tensor, Tensor, Layer, bool],
        output: Tensor,
    ) -> None:
        """Moves what the rule saved from the layer to autograd's node of this call."""
        _, _, ctx.layer, ctx.shared = inputs
        ctx.saved = ctx.layer.saved
        ctx.layer.saved = None

    @staticmethod
    def vmap(
        _info: Any,
        in_dims: Any,
        x: Tensor,
        anchor: Tensor,
        layer: Layer,
        _shared: bool,
    ) -> tuple[Tensor, int]:
        """Applies the layer to all examples of all models at once.

        Torch calls it within `vmap`. `in_dims` has, for each argument, the dimension over which it
        is mapped; None for an argument that is the same for every example.
        """
        is_shared = in_dims[0] is None
        x = x.expand(len(anchor), *x.shape) if is_shared else x.movedim(in_dims[0], 0)
        layer.passes.mark_applied(layer.rule)
        if x.shape[1:2] != (1,):  # not a batch of one example
            return _Apply.apply(x, anchor, layer, False), 0
        y = _Apply.apply(x.squeeze(1), anchor, layer, False)
        return y.unsqueeze(1), 0

    @staticmethod
    def backward(
        ctx: Any,
        g: Tensor,
    ) -> tuple[Tensor | None, None, None, None]:
        """Records the gradient of the output; computes that of the input only if it is needed."""
        rule = ctx.layer.rule
        passes = ctx.layer.passes
        passes.records.append(Record(rule, ctx.saved, g, ctx.shared))
        input_gradient = None
        if ctx.needs_input_grad[0]:
            input_gradient = rule.input_gradient(passes.theta, ctx.saved, g)
        return input_gradient, None, None, None  # the other arguments of `forward` have no gradient
