"""How a module can be packed so that its clipped sums are those of autograd: tried, not assumed.

Before anything is trained, a few models take a few examples through each way of packing, in
float64 (float32 where a module allows nothing else), with the groups that a CPU and a GPU use and
with weights as a canary's examples have them. Every example alone, by autograd on the user's own
module, is what they are held against.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ...errors import SpecError, first_line
from ..cpu.memory import GPU_MOST, Groups
from ..rules.base import Slot, trained
from ..rules.layers import Odd
from .samplewise import Samplewise, in_dtype
from .vetting import halves, vet

Make = Callable[[Groups | None, bool], "Packed"]  # by groups, and whether by compiled loops

ONE_BY_ONE = Groups(1, 1)
_SPREAD = 0.05  # of the models' parameters around the module's own
_LARGE = 1_000_000  # parameters from which on the least that shows a difference is computed
_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3}
_DRAWN = 1 << 22  # parameters of all models
_SURE = 1e-4  # float32 above this, but below its bound, has float64 decide where that is allowed
_MOST = 1 << 27  # numbers of a group's θ, as in a pack of `pack_size: auto`


class Sums(Protocol):
    """What a way of packing computes; see `PackedModel`."""

    def clipped_sums(
        self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float, weights: Tensor | None
    ) -> Tensor:
        """Σ_j weights[i, j] · clip(∇ℓ(θ_i; x_j, y_j), C), float [n, p]."""

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Of every model on every example, float [n, m, c]."""


class Packed(Sums, Protocol):
    """Several models at once."""

    def together(self, x: Tensor, y: Tensor) -> int:
        """How many go through what is the module's own code."""


@dataclasses.dataclass(frozen=True)
class Way:
    """How to compute a module's clipped sums; the first that is right is taken.

    `groups`: None as is fast. `rows`: the most that go through together, where more would be
    wrong. `loops`: whether compiled ones are right. `alone`: every example alone, in place of
    rules.
    """

    groups: Groups | None = None
    rows: int | None = None
    loops: bool = False
    alone: Samplewise | None = None
    odd: Odd | None = None  # why it is no faster


@dataclasses.dataclass(frozen=True)
class _Case:
    theta: Tensor  # [n, p]
    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    weights: Tensor  # [n, B]
    clip_norm: float
    sums: Tensor  # [n, p], with all weights 1
    weighted: Tensor  # [n, p]
    outputs: Tensor  # [n, B, c]


def settled(
    module: nn.Module,
    slots: dict[str, Slot],
    packed: Make | Odd,
    batch: tuple[Tensor, Tensor],
    has_loops: bool,
) -> Way:
    """The fastest way that agrees with autograd on the first examples of a batch.

    And on all of them with itself: a batch with its parts, a group of models with these alone.

    Args:
        module: the user's own.
        slots: where its parameters are.
        packed: makes a packed model with these groups, with or without compiled loops; or why
            there can be none.
        batch: x [B, ...] and y [B].
        has_loops: whether there are some for this module.

    Raises:
        SpecError: no gradient of one example can be had.
    """
    x, y = batch
    case: _Case | None = None
    own = next(iter(trained(module).values())).dtype
    dtypes = (torch.float32,) if _large(module) else (torch.float64, torch.float32)
    for dtype in dtypes:
        with in_dtype(module, dtype), _generators_kept():
            try:
                few, labels = _few(module, _as(x, dtype), y)
                vet(module, few, _as(x, dtype), thorough=not _large(module))
                case = _case(module, few, labels)
            except SpecError:
                raise
            except Exception as error:  # a user's code may raise anything
                if dtype == torch.float32:
                    reason = first_line(error)
                    raise SpecError(
                        "mechanism.model", f"does not run on these examples: {reason}"
                    ) from error
                continue
            crowded = functools.partial(_crowded, module, (x, y), own, case)
            way = _first_right(module, slots, packed, case, crowded, len(y))
        if has_loops and way == Way() and not isinstance(packed, Odd):
            make = functools.partial(packed, None, True)
            way = Way(loops=_loops_right(module, slots, make, (x, y)))
        return way
    raise AssertionError("the second dtype returns or raises")


def _loops_right(
    module: nn.Module,
    slots: dict[str, Slot],
    make: Callable[[], Sums],
    batch: tuple[Tensor, Tensor],
) -> bool:
    """In the dtype that they will have: they are compiled for it, in seconds, and for no other.

    Where rounding moves a maximum in float32, or they are wrong, float64 decides.
    """
    x, y = batch
    own = next(iter(trained(module).values())).dtype
    for dtype in dict.fromkeys((own, torch.float64)):
        if dtype not in _BOUNDS:
            continue
        with in_dtype(module, dtype), _generators_kept():
            try:
                few, labels = _few(module, _as(x, dtype), y)
                case = _case(module, few, labels)
            except Exception:  # noqa: BLE001 (a user's code may not know float64)
                continue
            if _wrong(module, slots, [make], case) is None:
                return True
    return False


def _first_right(
    module: nn.Module,
    slots: dict[str, Slot],
    packed: Make | Odd,
    case: _Case,
    crowded: Callable[[Make, Groups | None], Odd | None],
    examples: int,
) -> Way:
    odd = packed if isinstance(packed, Odd) else None
    if not isinstance(packed, Odd):
        fast, rows = packed, None
        tries = [lambda: fast(None, False), lambda: fast(GPU_MOST, False)]
        if (odd := _wrong(module, slots, tries, case)) is None:
            if (odd := crowded(fast, None)) is None:
                return Way()
            rows = examples
        alone = [lambda: fast(ONE_BY_ONE, False)]
        right = _wrong(module, slots, alone, case) is None
        if right and crowded(fast, ONE_BY_ONE) is None:
            return Way(ONE_BY_ONE, rows)
    assert odd is not None
    mapped = Samplewise(module, mapped=True)
    for way in (dataclasses.replace(mapped, stacked=True), mapped):
        if _wrong(module, slots, [functools.partial(dataclasses.replace, way)], case) is None:
            return Way(alone=way, odd=odd)
    again = Samplewise(module)
    if (unsteady := _wrong(module, slots, [lambda: again], case)) is not None:
        raise SpecError(
            "mechanism.model",
            f"{unsteady.where} ({unsteady.kind}) has another gradient when it is asked again; "
            "draw nothing at random and keep nothing from one batch to the next",
        )
    return Way(alone=again, odd=odd)


def _few(module: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    count = 2 if _large(module) else 5
    rows = torch.arange(count, device=x.device) % max(1, len(x))
    return x[rows], y[rows]


def _as(x: Tensor, dtype: torch.dtype) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


def _large(module: nn.Module) -> bool:
    return _size(module) > _LARGE


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in trained(module).values())


def _case(module: nn.Module, x: Tensor, y: Tensor) -> _Case:
    theta = _models(module, 2 if _large(module) else 3)
    alone = Samplewise(module)
    weights = torch.ones(len(theta), len(y), dtype=theta.dtype, device=theta.device)
    weights[0, -1] = 0
    clip_norm, sums = 0.0, torch.empty_like(theta)
    weighted = torch.empty_like(theta)
    for i, (row, own) in enumerate(zip(theta, weights, strict=True)):
        each = alone.gradients(row, x, y)  # [B, p]
        norms = torch.linalg.vector_norm(each, dim=1)
        finite = norms[norms.isfinite()]
        clip_norm = clip_norm or 0.9 * float(finite.median() if len(finite) else 0) or 1.0
        factors = clip_norm / norms.clamp(min=clip_norm)
        if not _large(module):  # asked for weighted sums only, and for no outputs
            torch.mv(each.T, factors, out=sums[i])
        torch.mv(each.T, factors * own, out=weighted[i])
    outputs = theta.new_zeros(len(theta), 1) if _large(module) else alone.outputs(theta, x)
    return _Case(theta, x, y, weights, clip_norm, sums, weighted, outputs)


def _models(module: nn.Module, count: int) -> Tensor:
    """Parameters around the module's own, float [count, p]."""
    initial = torch.cat([p.detach().flatten() for p in trained(module).values()])
    if (
        _large(module) or count * len(initial) > _DRAWN
    ):  # drawing millions of numbers would take as long as all the rest
        signs = torch.linspace(1, -1, count).to(initial).unsqueeze(1)
        return torch.addcmul(0.01 * signs, 1 + 0.1 * signs, initial)
    drawn = torch.randn(count, len(initial), generator=torch.Generator().manual_seed(1))
    return initial + _SPREAD * drawn.to(initial)


def _wrong(
    module: nn.Module,
    slots: dict[str, Slot],
    tries: Sequence[Callable[[], Sums]],
    case: _Case,
) -> Odd | None:
    """Where one of these differs from autograd; None where none does."""
    for number, make in enumerate(tries):
        weighted = number % 2 == 0 or _large(module)
        x, weights = case.x.clone(), case.weights if weighted else None
        expected = case.weighted if weights is not None else case.sums
        try:
            model = make()
            found = model.clipped_sums(case.theta, x, case.y, case.clip_norm, weights)
            outputs = case.outputs if _large(module) else model.outputs(case.theta, x)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
            reason = first_line(error)
            return Odd.of(module, "", f"cannot be packed ({reason:.80})")
        where = _differs(found, expected, slots)
        if where is not None:
            layer = where.rpartition(".")[0]
            return Odd.of(module.get_submodule(layer), layer, "does not do what its rule says")
        if not (_agree(outputs, case.outputs) and torch.equal(x, case.x)):
            return Odd.of(module, "", "gives other outputs when it is packed")
    return None


def _crowded(
    module: nn.Module,
    batch: tuple[Tensor, Tensor],
    own: torch.dtype,
    case: _Case,
    make: Make,
    groups: Groups | None,
) -> Odd | None:
    """What is wrong at the size of a training's batches only: sums that are not those of parts.

    Args:
        module: the user's own.
        batch: x [B, ...] and y [B].
        own: dtype of the training, by which groups have their size.
        case: what was right.
        make: see `settled`.
        groups: those that were.
    """
    x, y = batch
    off, bound = math.inf, 0.0
    for dtype in dict.fromkeys((own if own in _BOUNDS else case.theta.dtype, torch.float64)):
        try:
            with in_dtype(module, own):
                count = make(groups, False).together(_as(x, own), y)
            with in_dtype(module, dtype):
                off = _off(module, make, count, (_as(x, dtype), y), case.clip_norm)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
            if off == math.inf:
                return Odd.of(module, "", f"cannot be packed ({first_line(error):.80})")
            break
        bound = _BOUNDS[dtype]
        if off <= min(bound, _SURE):
            return None
    if off <= bound:
        return None
    return Odd.of(module, "", "gives other sums where many rows go through it together")


def _off(
    module: nn.Module, make: Make, count: int, batch: tuple[Tensor, Tensor], clip_norm: float
) -> float:
    """The largest difference, over the largest entry, of sums computed together and apart.

    A batch is held against its halves in one model, and `count` models at once against two of them
    alone, on as many copies of one example as would crowd whatever has room for some only.
    """
    x, y = batch
    theta = _models(module, max(1, min(count, _MOST // _size(module))))
    alone, off = make(ONE_BY_ONE, False), 0.0

    def sums(packed: Packed, models: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        return packed.clipped_sums(models, x[rows], y[rows], clip_norm, None)

    everything = torch.arange(len(y), device=y.device)
    whole = sums(alone, theta[:1], x, everything)
    rows = everything
    for parts in halves(y, len(_few(module, x, y)[1])):
        first, second = (rows[part] for part in parts)
        apart = sums(alone, theta[:1], x, first), sums(alone, theta[:1], x, second)
        off = max(off, _relative(apart[0] + apart[1], whole, clip_norm))
        rows, whole = first, apart[0]
    if len(theta) > 1:
        group, crowd = Groups(len(theta), len(theta)), x[:1].expand_as(x)
        found = sums(make(group, False), theta, crowd, everything)
        for own in (slice(0, 1), slice(len(theta) - 1, None)):
            expected = sums(alone, theta[own], crowd, everything)
            off = max(off, _relative(found[own], expected, clip_norm))
    return off


def _relative(found: Tensor, expected: Tensor, clip_norm: float) -> float:
    """Of one model, [1, p]; infinite where only one of them is NaN or infinite somewhere.

    Sums that cancel, to a thousandth of C, are as good as none.
    """
    finite = expected.isfinite()
    if not torch.equal(found.isfinite(), finite):
        return math.inf
    if not bool(finite.any()):
        return 0.0
    scale = max(float(expected[finite].abs().amax()), 1e-3 * clip_norm)
    return float((found - expected)[finite].abs().amax()) / scale


def _differs(found: Tensor, expected: Tensor, slots: dict[str, Slot]) -> str | None:
    """The first parameter whose sums differ, by the scale of all of them."""
    if _agree(found, expected):
        return None
    scale = _largest(expected)
    for name, slot in slots.items():
        part = slice(slot.start, slot.stop)
        if not _agree(found[:, part], expected[:, part], scale):
            return name
    return next(iter(slots))


def _agree(found: Tensor, expected: Tensor, scale: Tensor | None = None) -> bool:
    if found.shape != expected.shape:
        return False
    if scale is None:
        scale = _largest(expected)
    bound = _BOUNDS[expected.dtype] * scale
    off = (found - expected).abs_()
    if bool((off.flatten(1).amax(1) <= bound).all()):
        return True
    bound = bound.view(-1, *[1] * (off.dim() - 1))
    return bool(((off <= bound) | (found.isnan() & expected.isnan())).all())


def _largest(values: Tensor) -> Tensor:
    """Of every model, by absolute value, [n]."""
    flat = values.flatten(1)
    return torch.maximum(flat.amax(1), -flat.amin(1))


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        yield
