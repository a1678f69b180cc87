"""What a module's forward pass may not do, found out by asking it a few times.

DP-SGD bounds what one example changes, so an example's output may depend on nothing but itself
and the parameters; and a pack must give the same scores again, so on no generator and no state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import SpecError
from .watch import Place, Seen, watched

_LARGE = 1e6  # an example so far from all others pulls any statistic of its batch


def vet(module: nn.Module, x: Tensor, many: Tensor, thorough: bool = True) -> None:
    """Asks the module for its outputs on `x` [B, ...], B of 2 or more, and on `many` of a training.

    Where it is not to be `thorough`, each thing is asked once. The module is in the dtype of `x`;
    its parameters and buffers are as they were afterwards.

    Raises:
        SpecError: it mixes examples, draws random numbers, or keeps state.
    """
    kept = _State(module)
    try:
        first = watched(module, x)
        _check_rows(first.outputs, len(x))
        if first.drew is not None:
            raise _refused(first.drew, "draws random numbers, which no pack's seed covers; take "
                           "them out, or set their probability to 0")  # fmt: skip
        kept.check()
        warm = dict(_numbers(module))  # some are made by the first call
        _check_again(first, watched(module, x))
        _check_numbers(warm, dict(_numbers(module)))
        _check_others(module, x, first, thorough)
        if first.read is not None:
            raise _refused(first.read, "decides by numbers that it reads from the batch (`if`, "
                           "`.item()`), so one example can change what happens to the others; "
                           "use torch.where on every example alone")  # fmt: skip
        _check_alone(module, x, first, thorough)
        if len(many) > len(x):
            _check_many(module, many, len(x))
            _check_crowd(module, many)
    finally:
        kept.restore()


def _check_rows(outputs: Any, rows: int) -> None:
    if not isinstance(outputs, Tensor):
        kind = type(outputs).__name__
        raise SpecError("mechanism.model", f"gives a {kind}; it must give one tensor of scores")
    if outputs.dim() != 2 or len(outputs) != rows:
        raise SpecError(
            "mechanism.model",
            f"gives {tuple(outputs.shape[1:])} per example and {len(outputs)} rows for {rows} "
            "examples; it must give one row of scores for each",
        )


def _check_again(first: Seen, again: Seen) -> None:
    if not _close(first.outputs, again.outputs, 0.0):
        raise _refused(_differing(first, again, slice(None), 0.0), "gives another output when it "
                       "is asked again: it draws random numbers or keeps something from one batch "
                       "to the next; take that out")  # fmt: skip


def _check_others(module: nn.Module, x: Tensor, first: Seen, thorough: bool) -> None:
    """Whatever the last example is, the others' outputs stay."""
    others = slice(0, len(x) - 1)
    for last in _extremes(x, thorough):
        try:
            seen = watched(module, torch.cat([x[:-1], last]))
        except Exception:  # noqa: BLE001 (a user's code may not take such values: no tokens)
            continue
        if not _close(first.outputs[others], seen.outputs[others], _bound(x)):
            raise _mixing(_differing(first, seen, others, _bound(x)))


def _extremes(x: Tensor, thorough: bool) -> Iterator[Tensor]:
    last = x[-1:]
    if x.is_floating_point():
        yield torch.full_like(last, math.nan)
    if thorough:
        yield x[:1]
    if thorough and x.is_floating_point():
        yield last + _LARGE
        yield last - _LARGE


def _check_alone(module: nn.Module, x: Tensor, first: Seen, thorough: bool) -> None:
    for j in range(len(x) if thorough else 1):
        alone = watched(module, x[j : j + 1])
        _check_rows(alone.outputs, 1)
        if not _close(first.outputs[j : j + 1], alone.outputs, _bound(x)):
            raise _mixing(_differing(first, alone, slice(j, j + 1), _bound(x)))


def halves(batch: Tensor, few: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Indices of a batch [B, ...] in two parts, of the first part in two, down to so `few`.

    Drawn, so that no neighbours stay together. What begins at a size parts some pair.
    """
    generator, examples = torch.Generator().manual_seed(1), len(batch)
    while examples > few:
        rows = torch.randperm(examples, generator=generator).to(batch.device)
        examples = (examples + 1) // 2
        yield rows[:examples], rows[examples:]


def _check_many(module: nn.Module, many: Tensor, few: int) -> None:
    with torch.no_grad():
        together = module(many.clone())
        for parts in halves(many, few):
            outputs = [module(many[rows]) for rows in parts]
            for rows, alone in zip(parts, outputs, strict=True):
                if not _close(together[rows], alone, _bound(many)):
                    seen = watched(module, many), watched(module, many[rows])
                    raise _mixing(_differing(*seen, rows, _bound(many)))
            together, many = outputs[0], many[parts[0]]


def _check_crowd(module: nn.Module, many: Tensor) -> None:
    """One example as often as there are rows crowds whatever has room for some of them only."""
    crowd, bound = many[:1].expand_as(many), _bound(many)
    with torch.no_grad():
        alone, together = module(crowd[:1].clone()), module(crowd.clone())
    for j in range(len(crowd)):
        if not _close(together[j : j + 1], alone, bound):
            seen = watched(module, crowd), watched(module, crowd[:1])
            raise _mixing(_differing(*seen, slice(j, j + 1), bound))


def _differing(one: Seen, other: Seen, rows: slice | Tensor, bound: float) -> Place:
    """The first layer, in order, whose outputs differ in these rows of the batch; or the model.

    Where its inputs differ as well, what calls it is to blame. `other` holds the same rows, or
    only those.
    """
    batch, alone = len(one.outputs), len(other.outputs)

    def same(a: Tensor | None, b: Tensor | None) -> bool:
        if a is None or b is None or not a.dim() or not b.dim():
            return True
        batched = (len(a), len(b)) == (batch, alone)
        return not batched or _close(a[rows], b[rows] if alone == batch else b, bound)

    for a, b in zip(one.layers, other.layers, strict=False):
        if not same(a.given, b.given):
            return a.place if same(a.taken, b.taken) else a.around
    return one.layers[-1].place


def _close(a: Tensor, b: Tensor, bound: float) -> bool:
    if a.shape != b.shape:
        return False
    if torch.equal(a, b):
        return True
    if not a.is_floating_point():
        return False
    finite = a[a.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(a, b, rtol=0, atol=bound * scale, equal_nan=True)


def _bound(x: Tensor) -> float:
    """Batches of other sizes may be summed in another order."""
    return 1e-9 if x.dtype == torch.float64 else 1e-4


def _mixing(place: Place) -> SpecError:
    return _refused(place, "gives an example another output when others in its batch change: "
                    "DP-SGD cannot bound what one example changes; treat every example alone, "
                    "with GroupNorm in place of statistics of the batch")  # fmt: skip


def _refused(place: Place, problem: str) -> SpecError:
    return SpecError("mechanism.model", f"{place[0]} ({place[1]}) {problem}")


class _State:
    """Parameters, buffers and plain numbers of a module, before it is called."""

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._tensors = {name: t.detach().clone() for name, t in _tensors(module)}
        self._numbers = dict(_numbers(module))

    def check(self) -> None:
        """Raises SpecError for what has changed since."""
        now = dict(_tensors(self._module))
        changed = [name for name, kept in self._tensors.items() if not _same(now.get(name), kept)]
        if changed:
            raise _keeping(changed[0])
        _check_numbers(self._numbers, dict(_numbers(self._module)))

    def restore(self) -> None:
        """Puts tensors back that were changed in place."""
        with torch.no_grad():
            for name, tensor in _tensors(self._module):
                kept = self._tensors.get(name)
                if kept is not None and kept.shape == tensor.shape and not _same(tensor, kept):
                    tensor.copy_(kept)


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


def _same(tensor: Tensor | None, kept: Tensor) -> bool:
    return tensor is not None and tensor.shape == kept.shape and _close(kept, tensor, 0.0)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters()
    yield from module.named_buffers()


def _numbers(module: nn.Module) -> Iterator[tuple[str, object]]:
    for path, layer in module.named_modules():
        for name, value in vars(layer).items():
            if isinstance(value, int | float | str):
                yield f"{path}.{name}".lstrip("."), value
