"""May this network be audited? What a module's forward pass may not do, found out by calling it.

DP-SGD bounds what one example changes, so an example's output may depend on nothing but itself
and the parameters; and a pack must give the same scores again, so on no generator and no state.

Here one module is called on batches that differ. `selfcheck` then finds how many of it can be
computed at once; both compare by `relative_error` and part batches by `halves`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ...errors import SpecError

_FAR = 1e6  # an example so far from all others pulls any statistic of its batch
# Batches of other sizes may be summed in another order; the second in float32, and of tokens.
_IN_FLOAT64, _BOUND = 1e-9, 1e-4


def vet(module: nn.Module, x: Tensor, many: Tensor, thorough: bool = True) -> None:
    """Calls the module on `x` [B, ...], B of 2 or more, and on `many`, a batch of the training.

    Where it is not to be `thorough`, each thing is asked once. The module is in the dtype of `x`;
    its parameters and buffers are as they were afterwards.

    Raises:
        SpecError: it mixes examples, draws random numbers, or keeps state.
    """
    tensors = {name: tensor.detach().clone() for name, tensor in _tensors(module).items()}
    plain = _numbers(module)
    try:
        first = _watched(module, x)
        _check_shape(first.outputs, len(x))
        if first.drew is not None:
            raise _refusal(first.drew, "draws random numbers, which no pack's seed covers; take "
                           "them out, or set their probability to 0")  # fmt: skip
        now = _tensors(module)
        for name, before in tensors.items():
            if name not in now or relative_error(now[name], before) > 0:
                raise _keeping(name)
        numbers = _numbers(module)  # some are made by the first call
        _check_numbers(plain, numbers)
        again = _watched(module, x)
        if relative_error(again.outputs, first.outputs) > 0:
            where = _first_difference(first, again, slice(None), 0.0)
            raise _refusal(where, "gives another output when it is asked again: it draws random "
                           "numbers or keeps something from one batch to the next; take that "
                           "out")  # fmt: skip
        _check_numbers(numbers, _numbers(module))
        _check_other_last(module, x, first.outputs, thorough)
        if first.read is not None:
            raise _refusal(first.read, "decides by numbers that it reads from the batch (`if`, "
                           "`.item()`), so one example can change what happens to the others; "
                           "use torch.where on every example alone")  # fmt: skip
        for j in range(len(x) if thorough else 1):
            alone = _called(module, x[j : j + 1])
            _check_shape(alone, 1)
            _check_same(module, (x, first.outputs), (x[j : j + 1], alone), slice(j, j + 1))
        if len(many) > len(x):
            _check_halves(module, many, len(x))
            _check_copies(module, many)
    finally:
        with torch.no_grad():
            for name, tensor in _tensors(module).items():
                before = tensors.get(name, tensor)
                if before.shape == tensor.shape and relative_error(tensor, before) > 0:
                    tensor.copy_(before)


def relative_error(values: Tensor, expected: Tensor, least_scale: float = 0.0) -> float:
    """Returns the largest difference over the largest finite entry of `expected`.

    Infinite where shapes differ, or where something else than the same is not finite. The scale is
    no less than `least_scale`.
    """
    if values.shape != expected.shape:
        return math.inf
    if torch.equal(values, expected):
        return 0.0
    if not expected.is_floating_point():
        return math.inf
    finite = expected.isfinite()
    if not torch.equal(values.isfinite(), finite):
        return math.inf
    if not bool(finite.all()):
        if not torch.equal(values[~finite].nan_to_num(), expected[~finite].nan_to_num()):
            return math.inf
        values, expected = values[finite], expected[finite]
        if not expected.numel():
            return 0.0
    difference = float((values - expected).abs().amax())
    scale = max(float(expected.abs().amax()), least_scale)
    if difference == 0:
        return 0.0
    return difference / scale if scale > 0 else math.inf


def halves(batch: Tensor, few: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields indices of a batch [B, ...] in two parts, of the first part in two, down to so `few`.

    Drawn, so that no neighbours stay together. What begins at a size parts some pair.
    """
    generator, examples = torch.Generator().manual_seed(1), len(batch)
    while examples > few:
        rows = torch.randperm(examples, generator=generator).to(batch.device)
        examples = (examples + 1) // 2
        yield rows[:examples], rows[examples:]


def _check_shape(outputs: Any, rows: int) -> None:
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise SpecError("mechanism.model", f"gives a {kind}; it must give one tensor of scores")
    if outputs.dim() != 2 or len(outputs) != rows:
        raise SpecError(
            "mechanism.model",
            f"gives {tuple(outputs.shape[1:])} per example and {len(outputs)} rows for {rows} "
            "examples; it must give one row of scores for each",
        )


def _check_other_last(module: nn.Module, x: Tensor, outputs: Tensor, thorough: bool) -> None:
    """Whatever the last example is, the others' outputs stay."""
    last, real = x[-1:], x.is_floating_point()
    others = [torch.full_like(last, math.nan)] if real else []
    others += [x[:1]] if thorough else []
    others += [last + _FAR, last - _FAR] if thorough and real else []
    for example in others:
        other = torch.cat([x[:-1], example])
        try:
            outputs_then = _called(module, other)
        except Exception:  # noqa: BLE001 (a user's code may not take such values: no tokens)
            continue
        _check_same(module, (x, outputs), (other, outputs_then), slice(0, len(x) - 1))


def _check_halves(module: nn.Module, x: Tensor, few: int) -> None:
    """A batch of the training's size, in its halves, in halves of one, down to `few` rows."""
    outputs = _called(module, x)
    for parts in halves(x, few):
        of_parts = [_called(module, x[rows]) for rows in parts]
        for rows, part in zip(parts, of_parts, strict=True):
            _check_same(module, (x, outputs), (x[rows], part), rows)
        x, outputs = x[parts[0]], of_parts[0]


def _check_copies(module: nn.Module, x: Tensor) -> None:
    """One example as often as there are rows crowds whatever has room for some of them only."""
    copies = x[:1].expand_as(x)
    outputs, alone = _called(module, copies), _called(module, copies[:1])
    for j in range(len(copies)):
        _check_same(module, (copies, outputs), (copies[:1], alone), slice(j, j + 1))


def _called(module: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        return module(x.clone())


def _check_same(
    module: nn.Module, whole: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor],
    rows: slice | Tensor,
) -> None:  # fmt: skip
    """Refuses a module whose outputs for some rows of `whole` are not those of `other`.

    Both are a batch and its outputs; `other` has as many rows as `whole`, or only those.
    """
    bound = _IN_FLOAT64 if whole[0].dtype == torch.float64 else _BOUND
    outputs = other[1][rows] if len(other[0]) == len(whole[0]) else other[1]
    if relative_error(outputs, whole[1][rows]) <= bound:
        return
    seen = _watched(module, whole[0]), _watched(module, other[0])
    raise _refusal(_first_difference(*seen, rows, bound),
                   "gives an example another output when others in its batch change: "
                   "DP-SGD cannot bound what one example changes; treat every example alone, "
                   "with GroupNorm in place of statistics of the batch")  # fmt: skip


# A forward pass, watched: what every layer gave, drew and read ------------------------------------

Place = tuple[str, str]  # a layer's path, and its class
_READS = (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default)


@dataclasses.dataclass(frozen=True)
class _LayerCall:
    """The first tensors that a layer took and gave; `caller` is the layer that calls it."""

    place: Place
    caller: Place
    taken: Tensor | None
    given: Tensor | None


@dataclasses.dataclass
class _Watched:
    """Outputs, and calls of layers in the order in which they were done.

    `drew`: the first layer that took numbers from a global generator. `read`: the first that took
    a number out of what depends on the batch, by `if` or `.item()`.
    """

    outputs: Any = None
    calls: list[_LayerCall] = dataclasses.field(default_factory=list)
    drew: Place | None = None
    read: Place | None = None
    inside: list[tuple[Place, object, Tensor | None]] = dataclasses.field(default_factory=list)


def _watched(module: nn.Module, x: Tensor) -> _Watched:
    """Calls the module without gradients on a copy of `x`."""
    watched = _Watched()
    x = x.clone()
    reads = _Reads(x, watched)
    with _hooked(module, watched), reads, _OneHot(reads), torch.no_grad():
        watched.outputs = module(x)
    return watched


@contextlib.contextmanager
def _hooked(module: nn.Module, watched: _Watched) -> Iterator[None]:
    places = {layer: (path or "the model itself", type(layer).__name__)
              for path, layer in module.named_modules()}  # fmt: skip
    inside = watched.inside

    def enter(layer: nn.Module, inputs: object) -> None:
        inside.append((places[layer], _generator_states(), _first_tensor(inputs)))

    def leave(layer: nn.Module, _inputs: object, outputs: object) -> None:
        place, states, taken = inside.pop()
        if watched.drew is None and states != _generator_states():
            watched.drew = place
        caller = inside[-1][0] if inside else place
        watched.calls.append(_LayerCall(place, caller, taken, _first_tensor(outputs)))

    with contextlib.ExitStack() as handles:
        for layer in places:
            handles.callback(layer.register_forward_pre_hook(enter, prepend=True).remove)
            handles.callback(layer.register_forward_hook(leave).remove)
        yield


def _first_tensor(values: object) -> Tensor | None:
    """A copy: a layer may work in place."""
    tensors = (leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor))
    return next((tensor.clone() for tensor in tensors), None)


def _generator_states() -> tuple[object, ...]:
    """The states of all generators that anybody can use without owning one."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    key = numpy_state["state"]
    torch_state = torch.get_rng_state().numpy().tobytes()
    return torch_state, key["key"].tobytes(), key["pos"], random.getstate()


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Follows what depends on the batch, to see which layer takes a number out of it."""

    def __init__(self, x: Tensor, watched: _Watched) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._dependent: dict[int, Tensor] = {id(x): x}
        self._watched = watched
        self.allowed = False  # whether reading decides nothing

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Torch's compiler takes a second and more to import, and compiles nothing here."""
        return False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        result = func(*args, **(kwargs or {}))
        inputs = tree_leaves((args, dict(kwargs or {})))
        if any(id(leaf) in self._dependent for leaf in inputs if isinstance(leaf, Tensor)):
            watched = self._watched
            reads = func in _READS and not self.allowed
            if reads and watched.read is None and watched.inside:
                watched.read = watched.inside[-1][0]
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
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        named = dict(kwargs or {})
        before = self._reads.allowed
        if func is nn.functional.one_hot:
            classes = args[1] if len(args) > 1 else named.get("num_classes", -1)
            self._reads.allowed = int(classes) > 0
        try:
            return func(*args, **named)
        finally:
            self._reads.allowed = before


def _first_difference(
    whole: _Watched, other: _Watched, rows: slice | Tensor, bound: float
) -> Place:  # fmt: skip
    """The first layer, in order, whose outputs differ in these rows of the batch; or the model.

    Where its inputs differ as well, what calls it is to blame. `other` holds the same rows, or
    only those.
    """
    batch, part = len(whole.outputs), len(other.outputs)

    def same(a: Tensor | None, b: Tensor | None) -> bool:
        if a is None or b is None or not a.dim() or not b.dim():
            return True
        if (len(a), len(b)) != (batch, part):  # no row for each example
            return True
        return relative_error(b[rows] if part == batch else b, a[rows]) <= bound

    for a, b in zip(whole.calls, other.calls, strict=False):
        if not same(a.given, b.given):
            return a.place if same(a.taken, b.taken) else a.caller
    return whole.calls[-1].place


def _refusal(place: Place, problem: str) -> SpecError:
    return SpecError("mechanism.model", f"{place[0]} ({place[1]}) {problem}")


# What a module keeps from one call to the next ----------------------------------------------------


def _check_numbers(before: dict[str, object], after: dict[str, object]) -> None:
    for name, value in before.items():
        if after.get(name) != value:
            raise _keeping(name)


def _keeping(name: str) -> SpecError:
    return SpecError(
        "mechanism.model",
        f"changes its {name} when it is called, so a batch's outputs depend on those before it; "
        "keep nothing from one batch to the next",
    )


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _numbers(module: nn.Module) -> dict[str, object]:
    """Plain numbers and strings that layers have as attributes, by their path."""
    return {
        f"{path}.{name}".lstrip("."): value
        for path, layer in module.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, int | float | str)
    }
