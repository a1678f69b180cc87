"""One forward pass of a user's module, watched: what every layer gave, drew and read."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)
Place = tuple[str, str]  # a layer's path, and its class
Entered = tuple[Place, object, Tensor | None]


@dataclasses.dataclass(frozen=True)
class Layer:
    """The first tensors that a layer took and gave; `around` is what calls it."""

    place: Place
    around: Place
    taken: Tensor | None
    given: Tensor | None


@dataclasses.dataclass
class Seen:
    """Outputs, and those of every layer in the order in which they were done.

    `drew`: the first layer that took numbers from a global generator. `read`: the first that took
    a number out of what depends on the batch, by `if` or `.item()`.
    """

    outputs: Any = None
    layers: list[Layer] = dataclasses.field(default_factory=list)
    drew: Place | None = None
    read: Place | None = None


def watched(module: nn.Module, x: Tensor) -> Seen:
    """Calls the module without gradients on a copy of `x`."""
    seen = Seen()
    stack: list[Entered] = []
    x = x.clone()
    reads = _Reads(x, seen, stack)
    with _hooked(module, seen, stack), reads, _OneHot(reads), torch.no_grad():
        seen.outputs = module(x)
    return seen


@contextmanager
def _hooked(module: nn.Module, seen: Seen, stack: list[Entered]) -> Iterator[None]:
    places = {layer: (path or "the model itself", type(layer).__name__)
              for path, layer in module.named_modules()}  # fmt: skip

    def enter(layer: nn.Module, inputs: object) -> None:
        stack.append((places[layer], _generators(), _first(inputs)))

    def leave(layer: nn.Module, _inputs: object, outputs: object) -> None:
        place, before, taken = stack.pop()
        if seen.drew is None and before != _generators():
            seen.drew = place
        around = stack[-1][0] if stack else place
        seen.layers.append(Layer(place, around, taken, _first(outputs)))

    with ExitStack() as handles:
        for layer in places:
            handles.callback(layer.register_forward_pre_hook(enter, prepend=True).remove)
            handles.callback(layer.register_forward_hook(leave).remove)
        yield


def _first(values: object) -> Tensor | None:
    """A copy: a layer may work in place."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    return next((tensor.clone() for tensor in tensors), None)


def _generators() -> tuple[object, ...]:
    """The states of all generators that anybody can use without owning one."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    key = numpy_state["state"]
    torch_state = torch.get_rng_state().numpy().tobytes()
    return torch_state, key["key"].tobytes(), key["pos"], random.getstate()


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what depends on the batch, to see who takes a number out of it."""

    def __init__(self, x: Tensor, seen: Seen, stack: list[Entered]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dependent: dict[int, Tensor] = {id(x): x}
        self._seen, self._stack = seen, stack
        self.allowed = False  # whether reading decides nothing

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's compiler takes a second and more to import, and compiles nothing here."""
        return False

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        given = tree_leaves((args, dict(kwargs or {})))
        if any(id(leaf) in self._dependent for leaf in given if isinstance(leaf, Tensor)):
            reads = func in _READS and not self.allowed
            if reads and self._seen.read is None and self._stack:
                self._seen.read = self._stack[-1][0]
            for leaf in tree_leaves(result):
                if isinstance(leaf, Tensor):
                    self._dependent[id(leaf)] = leaf
        return result


class _OneHot(TorchFunctionMode):
    """Allows `one_hot` of a given number of classes to read: it only looks for one beyond them."""

    def __init__(self, reads: _Reads) -> None:
        super().__init__()
        self._reads = reads

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        before = self._reads.allowed
        if func is nn.functional.one_hot:
            classes = args[1] if len(args) > 1 else named.get("num_classes", -1)
            self._reads.allowed = int(classes) > 0
        try:
            return func(*args, **named)
        finally:
            self._reads.allowed = before
