"""Gradients of n models at once: one forward and one backward pass over stacked parameters.

The layers with parameters are replaced by their rules; everything between them (activations,
flattening, sums) runs as the module's own code, through autograd. The backward pass hands every
rule the gradient of its output; per-sample norms, and then clipped sums, follow from that
without any per-sample gradient of the parameters.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from ..errors import SpecError
from .rules import RULES, LayerRule, Slot

# Models whose activations are computed together. 64 small networks on a batch of 400 stay in a
# core's cache: 22 us a model-step (one core) against 34 with 16 and 28 with 256. Fixed, so that
# scores are too.
CHUNK = 64


class PackedModel:
    """A module whose parameters are a matrix: row i holds the flat parameters of model i."""

    def __init__(self, module: nn.Module) -> None:
        self._slots = _slots(module)
        self._pass = _Pass()
        self._module = _replace(copy.deepcopy(module), self._slots, self._pass, "")
        self.size = sum(slot.stop - slot.start for slot in self._slots.values())
        self.initial = torch.cat([p.detach().flatten() for p in module.parameters()])

    def losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Loss of every model on every example, float [n, m]; theta [n, p], x [m, ...], y [m]."""
        with torch.no_grad():
            return torch.cat([self._losses(part, x, y) for part in torch.split(theta, CHUNK)])

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
        """
        out = torch.empty_like(theta)
        for start in range(0, len(theta), CHUNK):
            rows = slice(start, start + CHUNK)
            part = None if weights is None else weights[rows]
            self._clipped_sums(out[rows], theta[rows], (x, y), clip_norm, part)
        return out

    def _clipped_sums(
        self,
        out: Tensor,
        theta: Tensor,
        batch: tuple[Tensor, Tensor],
        clip_norm: float,
        weights: Tensor | None,
    ) -> None:
        n, size = len(theta), len(batch[0])
        losses = self._losses(theta, *batch)
        self._pass.tape.clear()
        torch.autograd.backward(losses.sum())
        tape = list(self._pass.tape)
        self._pass.tape.clear()
        factors = theta.new_ones(n, size)
        if math.isfinite(clip_norm):
            squares = sum(tap.rule.squared_norms(n, tap.x, tap.g, tap.shared) for tap in tape)
            factors = clip_norm / torch.as_tensor(squares).sqrt_().clamp_(min=clip_norm)
        if weights is not None:
            factors = factors * weights
        for tap in tape:
            tap.rule.weighted_sums(out, tap.x, tap.g, factors, tap.shared)

    def _losses(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        n, batch = len(theta), len(x)
        self._pass.begin(theta, batch)
        outputs = self._module(x)
        labels = y.repeat(n)
        if outputs.shape[1] == 1:
            losses = F.binary_cross_entropy_with_logits(
                outputs[:, 0], labels.to(outputs.dtype), reduction="none"
            )
        else:
            losses = F.cross_entropy(outputs, labels, reduction="none")
        return losses.view(n, batch)


@dataclasses.dataclass(frozen=True)
class _Tap:
    """What a rule saw in one pass: its input and the gradient of its output."""

    rule: LayerRule
    x: Tensor
    g: Tensor
    shared: bool


class _Pass:
    """State of the pass that is running, shared by all tapped layers of one model."""

    def __init__(self) -> None:
        self.tape: list[_Tap] = []
        self._applied: set[int] = set()

    def begin(self, theta: Tensor, batch: int) -> None:
        self.theta = theta
        self.batch = batch
        # A leaf that needs a gradient, so that autograd visits the first layer too.
        self.anchor = torch.zeros((), dtype=theta.dtype, device=theta.device, requires_grad=True)
        self._applied.clear()

    def enter(self, rule: LayerRule) -> None:
        if id(rule) in self._applied:
            raise SpecError("mechanism.model", "a layer is applied twice; give each use its own")
        self._applied.add(id(rule))


class _Tapped(nn.Module):
    def __init__(self, rule: LayerRule, shared_pass: _Pass) -> None:
        super().__init__()
        self._rule = rule
        self._pass = shared_pass

    def forward(self, x: Tensor) -> Tensor:
        self._pass.enter(self._rule)
        result: Tensor = _Apply.apply(x, self._pass.anchor, self._rule, self._pass)
        return result


class _Apply(torch.autograd.Function):
    """Applies a rule and, on the way back, puts what clipping needs on the tape."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, _anchor: Tensor, rule: LayerRule, run: _Pass) -> Tensor:
        ctx.x, ctx.rule, ctx.run, ctx.theta = x.detach(), rule, run, run.theta
        ctx.shared = x.shape[0] == run.batch
        return rule.forward(run.theta, x, ctx.shared)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None]:
        ctx.run.tape.append(_Tap(ctx.rule, ctx.x, g, ctx.shared))
        if not ctx.needs_input_grad[0]:
            return None, None, None, None
        return ctx.rule.input_gradient(ctx.theta, g), None, None, None


def _slots(module: nn.Module) -> dict[str, Slot]:
    """Every parameter's place in the flat vector, in the order of `module.parameters()`."""
    slots: dict[str, Slot] = {}
    seen: dict[int, str] = {}
    start = 0
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if (other := seen.setdefault(id(parameter), name)) != name:
            raise SpecError(
                "mechanism.model",
                f"{name} and {other} are one parameter; the packed engine needs one for each use",
            )
        slots[name] = Slot(start, tuple(parameter.shape))
        start += parameter.numel()
    return slots


def _replace(module: nn.Module, slots: dict[str, Slot], run: _Pass, path: str) -> nn.Module:
    own = {name: slots[f"{path}{name}"] for name, _ in module.named_parameters(recurse=False)}
    if own:
        rule = RULES.get(type(module))
        if rule is None:
            known = ", ".join(layer.__name__ for layer in RULES)
            where = path.rstrip(".") or "the model itself"
            raise SpecError(
                "mechanism.model",
                f"{where} is a {type(module).__name__}, for which the packed engine has no rule; "
                f"known: {known}",
            )
        return _Tapped(rule(module, own), run)
    for name, child in module.named_children():
        setattr(module, name, _replace(child, slots, run, f"{path}{name}."))
    return module
