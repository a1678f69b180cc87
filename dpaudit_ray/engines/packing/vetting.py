"""May this network be audited? What a module's forward pass may not do, found out by calling it.

DP-SGD bounds what one example changes, so an example's output may depend on nothing but itself
and the parameters; and a pack must give the same scores again, so on no generator and no state.
"""

from __future__ import annotations

import itertools
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
_MIXES = (
    "gives an example another output when others in its batch change: DP-SGD cannot bound what one "
    "example changes; treat every example alone, with GroupNorm in place of statistics of the "
    "batch, batch_first=True, and no softmax over dimension 0"
)
_DRAWS = "draws random numbers, which no pack's seed covers; take them out, or set p to 0"
_UNSTEADY = (
    "gives another output when it is asked again: it draws random numbers or keeps something from "
    "one batch to the next; take that out"
)
_READS = (
    "decides by numbers that it reads from the batch (`if`, `.item()`), so one example can change "
    "what happens to the others; use torch.where on every example alone"
)


def vet(module: nn.Module, x: Tensor, many: Tensor, thorough: bool = True) -> None:
    """Calls the module on `x` [B, ...], B of 2 or more, and on `many`, a batch of the training.

    Where it is not to be `thorough`, each thing is asked once. The module is in the dtype of `x`.
    Raises SpecError where it mixes examples, draws random numbers, or keeps state.
    """
    bound = _IN_FLOAT64 if x.dtype == torch.float64 else _BOUND

    def check(outputs: Tensor, expected: Tensor) -> None:
        if relative_error(outputs[: len(expected)], expected) > bound:
            raise _refusal(_MIXES)

    def part(rows: slice | Tensor, batch: Tensor, whole: Tensor) -> Tensor:
        outputs = _called(module, batch[rows])
        check(outputs, whole[rows])
        return outputs

    before, generators = _state(module), _generator_states()
    with _Reads(x) as reads:
        whole = _called(module, x)
    if generators != _generator_states():
        raise _refusal(_DRAWS)
    state = _check_state(module, before)  # some is made by the first call
    if relative_error(_called(module, x), whole) > 0:
        raise _refusal(_UNSTEADY)
    _check_state(module, state)
    for example in _other_examples(x, thorough):
        try:
            outputs = _called(module, torch.cat([x[:-1], example]))
        except Exception:  # noqa: BLE001 (a user's code may not take such values: no tokens)
            continue
        check(outputs, whole[:-1])
    if reads.happened:
        raise _refusal(_READS)
    for j in range(len(x) if thorough else 1):
        part(slice(j, j + 1), x, whole)
    if len(many) > len(x):
        # One example as often as there are rows crowds what has room for some of them only.
        copied = _called(module, many[:1].expand_as(many))
        check(copied, _called(module, many[:1]).expand_as(copied))
        whole = _called(module, many)
        for rows, others in halves(many, len(x)):
            part(others, many, whole)
            many, whole = many[rows], part(rows, many, whole)


def relative_error(values: Tensor, expected: Tensor, least_scale: float = 0.0) -> float:
    """Returns the largest difference over the largest finite entry of `expected`, or `least_scale`.

    Infinite where shapes differ, or where something else than the same is not finite.
    """
    if values.shape != expected.shape:
        return math.inf
    finite = expected.isfinite()
    if not torch.equal(values.isfinite(), finite):
        return math.inf
    if not torch.equal(values[~finite].nan_to_num(), expected[~finite].nan_to_num()):
        return math.inf
    values, expected = values[finite], expected[finite]
    if torch.equal(values, expected):
        return 0.0
    if not expected.is_floating_point():
        return math.inf
    scale = max(float(expected.abs().amax()), least_scale)
    return float((values - expected).abs().amax()) / scale if scale > 0 else math.inf


def halves(batch: Tensor, few: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yields indices of a batch [B, ...] in two parts, of the first part in two, down to so `few`.

    Drawn, so that no neighbours stay together. What begins at a size parts some pair.
    """
    generator, examples = torch.Generator().manual_seed(1), len(batch)
    while examples > few:
        rows = torch.randperm(examples, generator=generator).to(batch.device)
        examples = (examples + 1) // 2
        yield rows[:examples], rows[examples:]


def _refusal(problem: str) -> SpecError:
    return SpecError("mechanism.model", problem)


def _other_examples(x: Tensor, thorough: bool) -> list[Tensor]:
    """What the last example may be: the outputs of those before it stay."""
    last, real = x[-1:], x.is_floating_point()
    others = [torch.full_like(last, math.nan)] if real else []
    others += [x[:1]] if thorough else []
    return others + ([last + _FAR, last - _FAR] if thorough and real else [])


def _called(module: nn.Module, x: Tensor) -> Tensor:
    """Outputs of a copy of `x`. Raises SpecError where they are no row of scores for each."""
    with torch.no_grad():
        outputs = module(x.clone())
    if not isinstance(outputs, Tensor):
        raise _refusal(f"gives a {type(outputs).__name__}; it must give one tensor of scores")
    if outputs.dim() != 2 or len(outputs) != len(x):
        raise _refusal(
            f"gives {tuple(outputs.shape[1:])} per example and {len(outputs)} rows for {len(x)} "
            "examples; it must give one row of scores for each"
        )
    return outputs


_READING = {torch.equal, torch.allclose, torch.is_nonzero} | {
    getattr(Tensor, name)
    for name in (
        "item", "tolist", "numpy", "equal", "allclose", "is_nonzero", "__bool__", "__int__",
        "__float__", "__index__", "__contains__",
    )
}  # fmt: skip


class _Reads(TorchFunctionMode):
    """Whether a number was taken out of what depends on the batch, by `if` or `.item()`."""

    happened = False

    def __init__(self, x: Tensor) -> None:
        super().__init__()
        self._dependent = {id(x): x}  # kept, so that no other tensor takes an id

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        named = dict(kwargs or {})
        result = func(*args, **named)
        if any(id(leaf) in self._dependent for leaf in tree_leaves((args, named))):
            self.happened |= func in _READING
            tensors = (leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
            self._dependent.update((id(tensor), tensor) for tensor in tensors)
        return result


def _generator_states() -> tuple[object, ...]:
    """The states of all generators that anybody can use without owning one."""
    numpy_state = np.random.get_state(legacy=False)
    assert isinstance(numpy_state, dict)
    key = numpy_state["state"]
    torch_state = torch.get_rng_state().numpy().tobytes()
    return torch_state, key["key"].tobytes(), key["pos"], random.getstate()


def _state(module: nn.Module) -> dict[str, object]:
    """Parameters, buffers, and plain numbers and strings that layers have, by their path."""
    plain = {
        f"{path}.{name}".lstrip("."): value
        for path, layer in module.named_modules()
        for name, value in vars(layer).items()
        if isinstance(value, int | float | str)
    }
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    return plain | {name: tensor.detach().clone() for name, tensor in tensors}


def _check_state(module: nn.Module, before: Mapping[str, object]) -> dict[str, object]:
    """What the module keeps by now. Raises SpecError where something of `before` has changed."""
    now = _state(module)
    for name, value in before.items():
        if name not in now or _differ(now[name], value):
            raise _refusal(
                f"changes its {name} when it is called, so a batch's outputs depend on those "
                "before it; keep nothing from one batch to the next"
            )
    return now


def _differ(value: object, before: object) -> bool:
    if isinstance(value, Tensor) and isinstance(before, Tensor):
        return relative_error(value, before) > 0
    return value is not before and value != before
