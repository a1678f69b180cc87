"""One example for each of n models: its gradient, and where a step on it would lead.

By `torch.func` for all models at once, where the module allows it and gives what plain autograd on
the module itself does: tried on the first example. Else by that, one model after another.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ...adversaries.base import SampleCanary
from ...engines.packing.samplewise import Samplewise, in_dtype, placed
from ...engines.rules.base import trained
from ...engines.rules.losses import losses
from .shadowing import check_floating

_log = logging.getLogger("dpaudit")
_NUMBERS = 1 << 24  # parameters of the models that are computed at once: 64 MiB of float32
_BOUND = 1e-3  # how far both ways may differ, by the scale of what they compute

Values = dict[str, Tensor]  # parameters, by their names
Own = Callable[[Tensor, Tensor, Tensor], Tensor]  # of one model [p], its x [...] and its y []


class OneEach:
    """Gradients of models of one architecture, each on an example of its own.

    `mapped`: all at once or one after another; found out on the first example when left out. A
    module may reach parameters where `functional_call` does not put others, and then says nothing.
    """

    def __init__(self, module: nn.Module, mapped: bool | None = None) -> None:
        self._module, self._mapped = module, mapped

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """∇_θ ℓ(θ_i; x_i, y_i), float [n, p]; theta [n, p], x [n, ...], y [n]."""
        mapped = self._settled(theta, SampleCanary(x[:1], y[:1]), 1.0)
        own = _gradient if mapped else _gradient_alone
        return _spread(functools.partial(own, self._module), mapped, (theta, x, y))

    def ahead(
        self, theta: Tensor, x: Tensor, y: Tensor, query: SampleCanary, rate: float
    ) -> Tensor:
        """∇_{x_i} ℓ(θ_i - rate ∇_θ ℓ(θ_i; x_i, y_i); query), shaped as x is, [n, ...].

        Theta is float [n, p], y [n]; the query one example. Double back-propagation.
        """
        check_floating(x)
        mapped = self._settled(theta, query, rate)
        own = functools.partial(_ahead if mapped else _ahead_alone, self._module, query, rate)
        return _spread(own, mapped, (theta, x, y))

    def _settled(self, theta: Tensor, query: SampleCanary, rate: float) -> bool:
        if self._mapped is None:
            self._mapped = _maps(self._module, (theta[:1], query, rate))
            if not self._mapped:
                kind = type(self._module).__name__
                _log.warning("%s does not run under torch.func: crafted one by one, slowly", kind)
        return self._mapped


def _maps(module: nn.Module, of: tuple[Tensor, SampleCanary, float]) -> bool:
    """Whether both ways agree on the query in one model, [1, p]; in float64 where that is allowed.

    In float32 a step on the query may leave nothing of its loss but rounding.
    """
    for dtype in (torch.float64, torch.float32):
        try:
            with in_dtype(module, dtype):
                return _agree(module, of, dtype)
        except Exception:  # noqa: BLE001 (a user's module may raise anything under vmap)
            continue
    return False


def _agree(module: nn.Module, of: tuple[Tensor, SampleCanary, float], dtype: torch.dtype) -> bool:
    theta, query, rate = of
    x = query.x[:1].to(dtype) if query.x.is_floating_point() else query.x[:1]
    own, same = (theta.to(dtype), x, query.y[:1]), SampleCanary(x, query.y[:1])
    alone, mapped = (OneEach(module, way) for way in (False, True))
    pairs = [
        (mapped.ahead(*own, same, rate), alone.ahead(*own, same, rate)),
        (mapped.gradients(*own), alone.gradients(*own)),
    ]
    return all(float((a - b).abs().max()) <= _BOUND * float(b.abs().max()) for a, b in pairs)


def _spread(own: Own, mapped: bool, of: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """`own` of every model, in groups that are small enough, or one by one."""
    theta, x, y = of
    if not mapped:
        return torch.stack([own(*each) for each in zip(theta, x, y, strict=True)])
    size = max(1, _NUMBERS // theta.shape[1])
    parts = zip(*(torch.split(each, size) for each in (theta, x, y)), strict=True)
    return torch.cat([vmap(own)(*part) for part in parts]).detach()


def _gradient(module: nn.Module, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    values = _named(module, row)
    found: Values = grad(_loss, argnums=1)(module, values, x, y)
    return torch.cat([found[name].flatten() for name in values])


def _gradient_alone(module: nn.Module, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
    return Samplewise(module).gradients(row, x[None], y[None])[0]


def _ahead(
    module: nn.Module, query: SampleCanary, rate: float, row: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    values = _named(module, row)

    def later(x: Tensor) -> Tensor:
        first: Values = grad(_loss, argnums=1)(module, values, x, y)
        stepped = {name: value - rate * first[name] for name, value in values.items()}
        return _loss(module, stepped, query.x[0], query.y[0])

    found: Tensor = grad(later)(x)
    return found


def _ahead_alone(
    module: nn.Module, query: SampleCanary, rate: float, row: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """By the chain rule: -rate ∇_x ⟨∇_θ ℓ(θ; x), v⟩, with v the query's gradient after the step."""
    stepped = row - rate * _gradient_alone(module, row, x, y)
    v = _gradient_alone(module, stepped, query.x[0], query.y[0])
    with placed(module, row) as parameters, torch.enable_grad():
        moved = x[None].clone().requires_grad_()
        loss = losses(module(moved.clone()), y[None]).sum()
        found = torch.autograd.grad(loss, parameters, create_graph=True, allow_unused=True)
        parts = torch.split(v, [p.numel() for p in parameters])
        pairs = [(g, part) for g, part in zip(found, parts, strict=True) if g is not None]
        along = sum(((g.flatten() * part).sum() for g, part in pairs), start=x.new_zeros(()))
        slope = None
        if along.requires_grad:  # else it is the same whatever the example is
            (slope,) = torch.autograd.grad(along, moved, allow_unused=True)
    return torch.zeros_like(x) if slope is None else -rate * slope[0]


def _named(module: nn.Module, row: Tensor) -> Values:
    """The parameters `row` [p] by their names."""
    named = trained(module)
    parts = torch.split(row, [p.numel() for p in named.values()])
    return {k: part.view(p.shape) for (k, p), part in zip(named.items(), parts, strict=True)}


def _loss(module: nn.Module, values: Values, x: Tensor, y: Tensor) -> Tensor:
    """Of one example x [...], y []."""
    # Torch does not put back what it ties in a layer that a module holds twice.
    outputs = functional_call(module, values, (x[None].clone(),), tie_weights=False)
    return losses(outputs, y[None]).sum()
