"""Any other layer of one input and one output, through `torch.func`: exact, and slow."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping

from torch import Tensor, nn
from torch.func import functional_call, vjp, vmap

from .base import Formed, InputRule, SampleGradients, Slot, by_model

Parameters = dict[str, Tensor]


class FunctionalRule(InputRule):
    """Per-sample gradients of a layer without a rule of its own, by one vjp per sample."""

    def __init__(self, layer: nn.Module, slots: Mapping[str, Slot]) -> None:
        self._layer = copy.deepcopy(layer)
        self._slots = dict(slots)

    def forward(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        wide = by_model(x, len(theta))
        result: Tensor = vmap(self._call)(self._parameters(theta), wide)
        return result.flatten(0, 1), x

    def forward_shared(self, theta: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        result: Tensor = vmap(self._call, in_dims=(0, None))(self._parameters(theta), x)
        return result, x

    def input_gradient(self, theta: Tensor, x: Tensor, g: Tensor) -> Tensor:
        def one_model(parameters: Parameters, of_x: Tensor, of_g: Tensor) -> Tensor:
            back: Callable[[Tensor], tuple[Tensor]] = vjp(
                lambda v: self._call(parameters, v), of_x
            )[1]
            return back(of_g)[0]

        n = len(theta)
        wide = (by_model(x, n), by_model(g, n))
        result: Tensor = vmap(one_model)(self._parameters(theta), *wide)
        return result.flatten(0, 1)

    def samples(self, theta: Tensor, x: Tensor, g: Tensor) -> SampleGradients:
        def one_sample(parameters: Parameters, of_x: Tensor, of_g: Tensor) -> Parameters:
            back: Callable[[Tensor], tuple[Parameters]] = vjp(
                lambda p: self._call(p, of_x.unsqueeze(0)), parameters
            )[1]
            return back(of_g.unsqueeze(0))[0]

        n = len(theta)
        wide = (by_model(x, n), by_model(g, n))
        formed = vmap(vmap(one_sample, in_dims=(None, 0, 0)))(self._parameters(theta), *wide)
        parts = ((slot, formed[name].flatten(2)) for name, slot in self._slots.items())
        return Formed(tuple(parts))

    def _parameters(self, theta: Tensor) -> Parameters:
        return {name: slot.of(theta) for name, slot in self._slots.items()}

    def _call(self, parameters: Parameters, x: Tensor) -> Tensor:
        result: Tensor = functional_call(self._layer, parameters, (x,))
        return result
