"""Every example alone, by autograd on the user's own module: right for any network, and slow.

The module itself is used, never a copy: what its code reaches through closures and lists would
stay behind. Its parameters hold a model's values while that model is computed.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..rules.losses import losses

# Gradients of one model that exist at once: 64 MiB of float32, or 2 GiB on a GPU.
_NUMBERS, _ON_GPU = 1 << 24, 1 << 29


@dataclasses.dataclass(frozen=True)
class Samplewise:
    """Clipped sums as `PackedModel` gives them, by one backward pass per model and example.

    `mapped`: by `torch.func.vmap` over the examples, which some modules do not allow.
    `views`: an example is several inputs [K, ...] of one class, and its loss is the mean of theirs.
    `compute`: dtype of activations and gradients, that of the parameters when left out.
    """

    module: nn.Module
    mapped: bool = False
    compute: torch.dtype | None = None
    views: bool = False

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """See `PackedModel.outputs`."""
        found = []
        for row in self._cast(theta):
            with placed(self.module, row), torch.no_grad():
                found.append(self.module(self._cast(x).clone()).flatten(1))
        return torch.stack(found).to(theta.dtype)

    def clipped_sums(
        self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float, weights: Tensor | None
    ) -> Tensor:
        """See `PackedModel.clipped_sums`."""
        out = torch.zeros_like(theta)
        for i, row in enumerate(theta):
            for part in self._chunks(len(y), theta):
                gradients = self.gradients(row, x[part], y[part]).to(theta.dtype)
                norms = torch.linalg.vector_norm(gradients, dim=1)
                factors = clip_norm / norms.clamp(min=clip_norm)
                factors = torch.ones_like(norms) if clip_norm == float("inf") else factors
                if weights is not None:
                    factors = factors * weights[i, part]
                out[i] += factors @ gradients
        return out

    def gradients(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Gradient of every example's loss, float [B, p], under the parameters `row` [p]."""
        row, x = self._cast(row), self._cast(x)
        if self.mapped:
            return self._mapped(row, x, y)
        with placed(self.module, row) as parameters:
            found = row.new_empty(len(y), len(row))
            for j, into in enumerate(found):
                self._alone(parameters, x[j : j + 1], y[j : j + 1], into)
        return found

    def mapped_if_right(self, row: Tensor, x: Tensor, y: Tensor) -> Samplewise:
        """The same by `vmap` where that gives what backward passes give, on these examples."""
        fast, few = dataclasses.replace(self, mapped=True), (row, x, y)
        try:
            agree = torch.allclose(fast.gradients(*few), self.gradients(*few), rtol=1e-3, atol=1e-5)
        except RuntimeError:  # of operations that `torch.func` does not take
            return self
        return fast if agree else self

    def _alone(self, parameters: Sequence[Tensor], x: Tensor, y: Tensor, into: Tensor) -> None:
        for parameter in parameters:
            parameter.grad = None
        with torch.enable_grad():
            x, y = (x[0], y.expand(x.shape[1])) if self.views else (x, y)
            loss = losses(self.module(x.clone()), y).mean()
            if loss.requires_grad:
                torch.autograd.backward(loss)
        torch.cat([_dense(parameter) for parameter in parameters], out=into)

    def _mapped(self, row: Tensor, x: Tensor, y: Tensor) -> Tensor:
        named = dict(self.module.named_parameters())
        sizes = [p.numel() for p in named.values()]
        parts = zip(named.items(), torch.split(row, sizes), strict=True)
        values = {name: part.view(p.shape) for (name, p), part in parts}

        def loss(values: dict[str, Tensor], of_x: Tensor, of_y: Tensor) -> Tensor:
            # Torch does not put back what it ties in a layer that a module holds twice.
            of_x = of_x if self.views else of_x.unsqueeze(0)
            outputs = functional_call(self.module, values, (of_x,), tie_weights=False)
            return losses(outputs, of_y.expand(len(of_x))).mean()

        found: dict[str, Tensor] = vmap(grad(loss), in_dims=(None, 0, 0))(values, x, y)
        return torch.cat([found[name].flatten(1) for name in named], 1)

    def _chunks(self, examples: int, theta: Tensor) -> Iterator[slice]:
        numbers = _NUMBERS if theta.device.type == "cpu" else _ON_GPU
        step = max(1, numbers // theta.shape[1])
        return (slice(start, start + step) for start in range(0, examples, step))

    def _cast(self, values: Tensor) -> Tensor:
        return cast(values, self.compute)


@contextlib.contextmanager
def placed(module: nn.Module, row: Tensor) -> Iterator[list[nn.Parameter]]:
    """The module with the flat parameters `row` [p] in place; as it was afterwards."""
    parameters = list(module.parameters())
    before = [(p.data, p.grad) for p in parameters]
    parts = torch.split(row.clone(), [p.numel() for p in parameters])
    try:
        for parameter, part in zip(parameters, parts, strict=True):
            parameter.grad = None
            parameter.data = part.view(parameter.shape)
        yield parameters
    finally:
        for parameter, (data, gradient) in zip(parameters, before, strict=True):
            parameter.grad = None
            parameter.data = data
            parameter.grad = gradient


@contextlib.contextmanager
def in_dtype(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """The module with its floating parameters and buffers in `dtype`; as it was afterwards."""
    parameters = [(p, p.data) for p in module.parameters()]
    buffers = [(m, name, b) for m in module.modules() for name, b in m._buffers.items()]
    try:
        for parameter, data in parameters:
            parameter.data = cast(data, dtype)
        for owner, name, buffer in buffers:
            owner._buffers[name] = None if buffer is None else cast(buffer.clone(), dtype)
        yield
    finally:
        for parameter, data in parameters:
            parameter.grad = None
            parameter.data = data
        for owner, name, buffer in buffers:
            owner._buffers[name] = buffer


def cast(values: Tensor, dtype: torch.dtype | None) -> Tensor:
    """Floating numbers in `dtype`; None leaves them as they are."""
    return values.to(dtype) if dtype is not None and values.is_floating_point() else values


def _dense(parameter: Tensor) -> Tensor:
    gradient = parameter.grad
    if gradient is None:
        return torch.zeros_like(parameter).detach().flatten()
    return (gradient.to_dense() if gradient.is_sparse else gradient).flatten()
