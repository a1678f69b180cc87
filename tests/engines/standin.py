"""A stand-in for a GPU: tensors on another device whose numbers lie in the CPU's memory.

Every operation is done by the CPU's kernel, after a look at what a GPU would not do: an operation
on tensors of two devices raises, as does a tensor's use as NumPy array. What makes the host wait
for the device (`.item()`, `if`, indices of unknown number) is counted. Torch's `lazy` device is
taken for it: it is in every build of torch, nobody uses it, and the package takes it for no CPU.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

GPU = torch.device("lazy", 0)
_aten = torch.ops.aten
COPIES = {_aten._to_copy.default, _aten.copy_.default, _aten.copy.default}
WAITS = {
    _aten._local_scalar_dense.default,
    _aten.equal.default,
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten.is_nonzero.default,
    _aten._unique2.default,
}


class Distant(Tensor):
    """A tensor on the stand-in; `near` has its numbers."""

    near: Tensor

    @staticmethod
    def __new__(cls, near: Tensor) -> Distant:
        made = Tensor._make_wrapper_subclass(
            cls, near.shape, strides=near.stride(), storage_offset=near.storage_offset(),
            dtype=near.dtype, layout=near.layout, device=GPU, requires_grad=False,
        )  # fmt: skip
        made.near = near
        return made

    def __repr__(self, **_: Any) -> str:
        return f"Distant({self.near!r})"

    def data_ptr(self) -> int:
        return self.near.data_ptr()

    @property
    def data(self) -> Tensor:  # type: ignore[override]
        return self.detach()

    @data.setter
    def data(self, value: Distant) -> None:
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.near = value.near

    def new_tensor(self, data: Any, **_: Any) -> Tensor:
        return torch.tensor(data, dtype=self.dtype).to(GPU)

    def numpy(self, **_: Any) -> Any:
        raise TypeError("can't convert a tensor of the stand-in to numpy: call .cpu() first")

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _done(func, args, kwargs or {})


class StandIn(TorchDispatchMode):
    """While it is on, tensors can be made on the stand-in; `waits` counts them by operation."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        distant = any(isinstance(leaf, Distant) for leaf in tree_leaves((args, given)))
        asked = given.get("device")
        comes_back = distant and (_comes_back(func, asked) or _by_mask(func, args))
        if (distant and func in WAITS) or comes_back or _goes_out(func, args, given):
            self.waits[str(func)] += 1
        if distant or (asked is not None and torch.device(asked).type == GPU.type):
            return _done(func, args, given)
        return func(*args, **given)


class Made(TorchFunctionMode):
    """Tensors from lists and arrays, which torch makes below the level of operations."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if func in (torch.tensor, torch.as_tensor) and given.get("device") == GPU:
            return func(*args, **(given | {"device": "cpu"})).to(GPU)
        if func in _ITEMS and isinstance(args[0], Distant):
            args = (args[0], _index(args[1]), *map(_number, args[2:]))
        return func(*args, **given)


_ITEMS = (Tensor.__getitem__, Tensor.__setitem__)


def _index(given: Any) -> Any:
    if isinstance(given, tuple):
        return tuple(map(_index, given))
    if not isinstance(given, range | list):
        return given
    return torch.tensor(list(given)).to(GPU, non_blocking=True)


def _number(given: Any) -> Any:
    return given if isinstance(given, Tensor) else torch.tensor(given).to(GPU, non_blocking=True)


@contextlib.contextmanager
def standing_in() -> Iterator[StandIn]:
    """Both modes."""
    with Made(), StandIn() as mode:
        yield mode


def _comes_back(func: object, device: object) -> bool:
    return func in COPIES and device is not None and torch.device(str(device)).type == "cpu"


def _goes_out(func: object, args: tuple[Any, ...], given: dict[str, Any]) -> bool:
    """A copy to the device that the host waits for, as it does but for pinned memory."""
    if func not in COPIES or given.get("non_blocking") or True in args[2:]:
        return False
    to_device = func is not _aten._to_copy.default and isinstance(args[0], Distant)
    asked = given.get("device")
    to_device |= asked is not None and torch.device(asked).type == GPU.type
    source = args[0] if func is _aten._to_copy.default else args[1]
    return to_device and isinstance(source, Tensor) and not isinstance(source, Distant)


def _by_mask(func: object, args: tuple[Any, ...]) -> bool:
    """How many entries a mask of booleans picks is known to the device alone."""
    picks = func in (_aten.index.Tensor, _aten.index_put_.default, _aten.index_put.default)
    return picks and any(one is not None and one.dtype == torch.bool for one in args[1])


def _done(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flat, form = tree_flatten((args, kwargs))
    tensors = [leaf for leaf in flat if isinstance(leaf, Tensor)]
    near = [t for t in tensors if not isinstance(t, Distant) and t.dim()]
    if near and func not in COPIES and len(near) < len(tensors):
        shapes = [(type(t).__name__, tuple(t.shape)) for t in tensors]
        raise RuntimeError(f"Expected all tensors to be on the same device: {func} {shapes}")
    to = kwargs.get("device")
    away = any(isinstance(t, Distant) for t in tensors)
    if to is not None:
        away = torch.device(to).type == GPU.type
    inner = [leaf.near if isinstance(leaf, Distant) else leaf for leaf in flat]
    inner_args, inner_kwargs = tree_unflatten(inner, form)
    if away and to is not None:
        inner_kwargs["device"] = torch.device("cpu")
    out = func(*inner_args, **inner_kwargs)
    if func is _aten.copy_.default:
        return args[0]
    if not away:
        return out
    wrapped = tree_map_only(Tensor, Distant, out)
    return return_and_correct_aliasing(func, args, kwargs, wrapped)
