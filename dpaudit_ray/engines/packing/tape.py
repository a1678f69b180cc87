"""One forward and backward pass, and what the layers' rules need to remember of it.

The backward pass hands every rule the gradient of its output; that goes on a tape together with
the layer's input. Models may go through the module in groups: a layer that sees the batch itself
is then applied for all groups at once, on the first group's way through.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from ..rules.base import Backward, Rule


@dataclasses.dataclass(frozen=True)
class Tap:
    """What a rule saw: the layer's input and its output's gradient.

    `shared`: the input [B, ...] is the same for all models of all groups; else both are
    [n*B, ...] for this group's n models.
    """

    rule: Backward
    x: Tensor
    g: Tensor
    shared: bool


class Pass:
    """State of the pass that is running, shared by all tapped layers of one model."""

    def __init__(self) -> None:
        self.tape: list[Tap] = []
        self._applied: set[Rule] = set()
        self._outputs: dict[Rule, tuple[Tensor, Backward]] = {}

    @property
    def batch(self) -> int:
        """Samples that every model sees."""
        return len(self._input)

    def begin(self, theta: Tensor, x: Tensor) -> None:
        """Starts a set of models `theta` [n, p] on the batch `x` [B, ...]."""
        self._all = theta
        self._input = x
        self._outputs.clear()

    def enter(self, models: slice) -> None:
        """Starts one group of these models."""
        self._models = models
        self.theta = self._all[models]
        # A leaf that needs a gradient, so that autograd visits the first layer too.
        self.anchor = self.theta.new_zeros(()).requires_grad_()
        self._applied.clear()
        self.tape.clear()

    def end(self) -> None:
        """Forgets everything but the last group's parameters."""
        self.tape.clear()
        self._outputs.clear()

    def spread(self, rule: Rule, x: Tensor) -> tuple[Tensor, bool]:
        """The layer's input as a rule wants it, and whether all groups share it.

        Raises:
            ValueError: the layer is applied twice, or to something that is no batch.
        """
        if (owner := rule.owner or rule) in self._applied:
            raise ValueError("a layer is applied twice")
        self._applied.add(owner)
        own, models = self._input, len(self.theta)
        rows = x.shape[0] if x.dim() else 0
        # The batch itself, or a reshaping of each example that is no copy.
        if x.data_ptr() == own.data_ptr() and x.numel() == own.numel() and rows == len(own):
            if rows == 1 or x.stride(0) == own.stride(0):
                return x, True
            raise ValueError("a layer is given the batch the other way round")
        if rows == len(own) and models > 1:  # the same for all models, but a new tensor
            return x.repeat(models, *[1] * (x.dim() - 1)), False
        if rows != models * len(own):
            raise ValueError(f"a layer is given {rows} rows of {models * len(own)}")
        return x, False

    def output(self, rule: Rule, x: Tensor, shared: bool) -> tuple[Tensor, Backward]:
        """The layer's output for this group's models, [n*B, ...], and the way back from it."""
        if not shared:
            return rule.applied(self.theta, x)
        if rule not in self._outputs:
            self._outputs[rule] = rule.applied_shared(self._all, x)
        of_all, back = self._outputs[rule]
        return of_all[self._models].flatten(0, 1), back


class Tapped(nn.Module):
    """A layer, applied by its rule."""

    def __init__(self, rule: Rule, run: Pass) -> None:
        super().__init__()
        self.rule = rule
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        """[n*B, ...], or [B, ...] where the input is still the same for all models."""
        x, shared = self.run.spread(self.rule, x)
        result: Tensor = _Apply.apply(x, self.run.anchor, self.rule, self.run, shared)
        return result


class _Apply(torch.autograd.Function):
    """Applies a rule and, on the way back, puts what clipping needs on the tape."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, _anchor: Tensor, rule: Rule, run: Pass, shared: bool
    ) -> Tensor:
        ctx.x, ctx.run, ctx.shared = x.detach(), run, shared
        y, ctx.rule = run.output(rule, x.detach(), shared)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        g = ctx.rule.laid_out(g)
        ctx.run.tape.append(Tap(ctx.rule, ctx.x, g, ctx.shared))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        return ctx.rule.input_gradient(ctx.run.theta, ctx.x, g), None, None, None, None
