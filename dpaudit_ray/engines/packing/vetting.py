"""May this network be audited? What a module's forward pass may not do, found out by calling it.

DP-SGD bounds what one example changes, so an example's output may depend on nothing but itself
and the parameters; and a pack must give the same scores again, so on no generator and no state.

Here one module is called on batches that differ. `selfcheck` then finds how many of it can be
computed at once; both compare by `relative_error` and part batches by `halves`.
"""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from ...errors import SpecError

_FAR = 1e6  # an example so far from all others pulls any statistic of its batch
# Batches of other sizes may be summed in another order; the second in float32, and of tokens.
_IN_FLOAT64, _BOUND = 1e-9, 1e-4
_ANOTHER_OUTPUT = (
    "gives an example another output when others in its batch change: DP-SGD cannot bound what one "
    "example changes; treat every example alone, with GroupNorm in place of statistics of the batch"
)
_DRAWS = (
    "draws random numbers, which no pack's seed covers; take them out, or set their probability "
    "to 0"
)
_UNSTEADY = (
    "gives another output when it is asked again: it draws random numbers or keeps something from "
    "one batch to the next; take that out"
)
_READS_THE_BATCH = (
    "decides by numbers that it reads from the batch (`if`, `.item()`), so one example can change "
    "what happens to the others; use torch.where on every example alone"
)


def vet(module: nn.Module, x: Tensor, many: Tensor, thorough: bool = True) -> None:
    """Calls the module on `x` [B, ...], B of 2 or more, and on `many`, a batch of the training.

    Where it is not to be `thorough`, each thing is asked once. The module is in the dtype of `x`;
    its parameters and buffers are as they were afterwards. Raises SpecError where it mixes
    examples, draws random numbers, or keeps state.
    """
    before = _state(module)
    try:
        first = _watched(module, x)
        _check_shape(first.outputs, len(x))
        if first.drew is not None:
            raise _refusal(first.drew, _DRAWS)
        state = _check_state(module, before)  # some is made by the first call
        again = _watched(module, x)
        if relative_error(again.outputs, first.outputs) > 0:
            raise _refusal(_first_difference(first, again, slice(None), 0.0), _UNSTEADY)
        _check_state(module, state)
        whole = x, first.outputs
        _check_other_last(module, whole, thorough)
        if first.read is not None:
            raise _refusal(first.read, _READS_THE_BATCH)
        for j in range(len(x) if thorough else 1):
            _check_part(module, whole, slice(j, j + 1))
        if len(many) > len(x):
            whole = many, _called(module, many)
            for rows, others in halves(many, len(x)):
                part = whole[0][rows]
                _check_part(module, whole, others)
                whole = part, _check_part(module, whole, rows)
            # One example as often as there are rows crowds what has room for some of them only.
            copies = many[:1].expand_as(many)
            whole = copies, _called(module, copies)
            alone = copies[:1], _called(module, copies[:1])
            for j in range(len(copies)):
                _check_same(module, whole, alone, slice(j, j + 1))
    finally:
        with torch.no_grad():
            for name, tensor in _tensors(module).items():
                old = before.get(name)
                if isinstance(old, Tensor) and old.shape == tensor.shape and _differ(tensor, old):
                    tensor.copy_(old)


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


Batch = tuple[Tensor, Tensor]  # x [B, ...] and its outputs


def _check_other_last(module: nn.Module, whole: Batch, thorough: bool) -> None:
    """Whatever the last example is, the others' outputs stay."""
    x = whole[0]
    last, real = x[-1:], x.is_floating_point()
    others = [torch.full_like(last, math.nan)] if real else []
    others += [x[:1]] if thorough else []
    others += [last + _FAR, last - _FAR] if thorough and real else []
    for example in others:
        other = torch.cat([x[:-1], example])
        try:
            outputs = _called(module, other)
        except Exception:  # noqa: BLE001 (a user's code may not take such values: no tokens)
            continue
        _check_same(module, whole, (other, outputs), slice(0, len(x) - 1))


def _check_part(module: nn.Module, whole: Batch, rows: slice | Tensor) -> Tensor:
    """Outputs of some rows of a batch by themselves, which are those that they have in it."""
    part = whole[0][rows]
    outputs: Tensor = _called(module, part)
    _check_shape(outputs, len(part))
    _check_same(module, whole, (part, outputs), rows)
    return outputs


def _called(module: nn.Module, x: Tensor) -> Any:
    with torch.no_grad():
        return module(x.clone())


def _check_same(module: nn.Module, whole: Batch, other: Batch, rows: slice | Tensor) -> None:
    """Refuses a module whose outputs for some rows of `whole` are not the first ones of `other`."""
    bound = _IN_FLOAT64 if whole[0].dtype == torch.float64 else _BOUND
    expected = whole[1][rows]
    if relative_error(other[1][: len(expected)], expected) > bound:
        seen = _watched(module, whole[0]), _watched(module, other[0])
        raise _refusal(_first_difference(*seen, rows, bound), _ANOTHER_OUTPUT)


# A forward pass, watched: what every layer gave, drew and read ------------------------------------

Place = tuple[str, str]  # a layer's path, and its class
_READS = {torch.equal, torch.allclose, torch.is_nonzero} | {
    getattr(Tensor, name)
    for name in (
        "item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__bool__", "__int__",
        "__float__", "__index__", "__contains__",
    )
}  # fmt: skip


class _Watched(TorchFunctionMode):
    """A forward pass: its outputs, and calls of layers in the order in which they were done.

    Of a call there are the layer, the one that calls it, and the first tensors taken and given.
    `drew`: the first layer that took numbers from a global generator. `read`: the first that took
    a number out of what depends on the batch, by `if` or `.item()`.
    """

    outputs: Any = None
    drew: Place | None = None
    read: Place | None = None

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self.calls: list[tuple[Place, Place, Tensor | None, Tensor | None]] = []
        self.inside: list[tuple[Place, object, Tensor | None]] = []
        self._dependent = {id(x): x}  # kept, so that no other tensor takes an id

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        named = dict(kwargs or {})
        result = func(*args, **named)
        if any(id(leaf) in self._dependent for leaf in tree_leaves((args, named))):
            if func in _READS and self.read is None and self.inside:
                self.read = self.inside[-1][0]
            tensors = (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
            self._dependent.update((id(tensor), tensor) for tensor in tensors)
        return result


def _watched(module: nn.Module, x: Tensor) -> _Watched:
    """Calls the module without gradients on a copy of `x`."""
    x = x.clone()
    watched = _Watched(x)
    inside = watched.inside
    places = {
        layer: (path or "the model itself", type(layer).__name__)
        for path, layer in module.named_modules()
    }

    def enter(layer: nn.Module, inputs: object) -> None:
        inside.append((places[layer], _generator_states(), _first_tensor(inputs)))

    def leave(layer: nn.Module, _inputs: object, outputs: object) -> None:
        place, states, taken = inside.pop()
        if watched.drew is None and states != _generator_states():
            watched.drew = place
        caller = inside[-1][0] if inside else place
        watched.calls.append((place, caller, taken, _first_tensor(outputs)))

    with contextlib.ExitStack() as handles, torch.no_grad():
        for layer in places:
            handles.callback(layer.register_forward_pre_hook(enter, prepend=True).remove)
            handles.callback(layer.register_forward_hook(leave).remove)
        with watched:
            watched.outputs = module(x)
    return watched


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


def _first_difference(
    whole: _Watched, other: _Watched, rows: slice | Tensor, bound: float
) -> Place:  # fmt: skip
    """The first layer, in order, whose outputs for these rows are not the first ones of `other`.

    Where its inputs differ as well, what calls it is to blame; without any such, the model.
    """

    def same(a: Tensor | None, b: Tensor | None) -> bool:
        if a is None or b is None or not a.dim() or not b.dim():
            return True
        if (len(a), len(b)) != (len(whole.outputs), len(other.outputs)):  # no row for each example
            return True
        expected = a[rows]
        return relative_error(b[: len(expected)], expected) <= bound

    pairs = zip(whole.calls, other.calls, strict=False)
    for (place, caller, taken, given), (_, _, other_taken, other_given) in pairs:
        if not same(given, other_given):
            return place if same(taken, other_taken) else caller
    return whole.calls[-1][0]


def _refusal(place: Place, problem: str) -> SpecError:
    return SpecError("mechanism.model", f"{place[0]} ({place[1]}) {problem}")


# What a module keeps from one call to the next ----------------------------------------------------


def _check_state(module: nn.Module, before: Mapping[str, object]) -> dict[str, object]:
    """What the module keeps by now. Raises SpecError where something of `before` has changed."""
    now = _state(module)
    for name, value in before.items():
        if name not in now or _differ(now[name], value):
            raise SpecError(
                "mechanism.model",
                f"changes its {name} when it is called, so a batch's outputs depend on those "
                "before it; keep nothing from one batch to the next",
            )
    return now


def _differ(value: object, before: object) -> bool:
    if isinstance(value, Tensor) and isinstance(before, Tensor):
        return relative_error(value, before) > 0
    return value is not before and value != before


def _tensors(module: nn.Module) -> dict[str, Tensor]:
    return {**dict(module.named_parameters()), **dict(module.named_buffers())}


def _state(module: nn.Module) -> dict[str, object]:
    """Parameters, buffers, and plain numbers and strings that layers have, by their path."""
    plain = {
        f"{path}.{name}".lstrip("."): value
        for path, layer in module.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, int | float | str)
    }
    return plain | {name: tensor.detach().clone() for name, tensor in _tensors(module).items()}
