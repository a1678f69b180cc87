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
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ...errors import SpecError, first_line
from ..cpu.memory import GPU_MOST, Groups
from ..rules.base import Slot
from ..rules.layers import Odd
from .samplewise import Samplewise, in_dtype
from .vetting import vet

ONE_BY_ONE = Groups(1, 1)
_SPREAD = 0.05  # of the models' parameters around the module's own
_LARGE = 1_000_000  # parameters from which on the least that shows a difference is computed
_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3}
_ROUNDED = 0.05  # the like for activations in bfloat16


class Sums(Protocol):
    """What a way of packing computes; see `PackedModel`."""

    def clipped_sums(
        self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float, weights: Tensor | None
    ) -> Tensor:
        """Σ_j weights[i, j] · clip(∇ℓ(θ_i; x_j, y_j), C), float [n, p]."""

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Of every model on every example, float [n, m, c]."""


@dataclasses.dataclass(frozen=True)
class Way:
    """How to compute a module's clipped sums; the first that is right is taken.

    `groups`: None as is fast. `loops`: whether compiled ones are right. `alone`: every example
    alone, in place of rules.
    """

    groups: Groups | None = None
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
    packed: Callable[[Groups | None, bool], Sums] | Odd,
    batch: tuple[Tensor, Tensor],
    has_loops: bool,
) -> Way:
    """The fastest way that agrees with autograd on the first examples of a batch.

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
    dtypes = (torch.float32,) if _large(module) else (torch.float64, torch.float32)
    for dtype in dtypes:
        with in_dtype(module, dtype), _generators_kept():
            try:
                few, labels = _few(module, _as(x, dtype), y)
                vet(module, few, _as(x[:64], dtype), thorough=not _large(module))
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
            way = _first_right(module, slots, packed, case)
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
    own = next(module.parameters()).dtype
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


def kernels_differ(
    module: nn.Module,
    made: Callable[[bool, torch.dtype | None], Sums],
    compute: torch.dtype | None,
    batch: tuple[Tensor, Tensor],
) -> str | None:
    """What is wrong with kernels on the first examples of a batch; None if nothing is.

    Held against autograd in float32, with weights and without: no farther from it than a bound, or
    than twice what the plain rules are in the same precision.

    Args:
        module: the user's own; `settled` has found that rules fit it.
        made: a packed model, by kernels or not, that computes in this dtype.
        compute: dtype of activations in training, if another than that of the parameters.
        batch: x [B, ...] and y [B].
    """
    x, y = batch
    with in_dtype(module, torch.float32), _generators_kept():
        few, labels = _few(module, _as(x, torch.float32), y)
        case = _case(module, few, labels)
        for dtype in dict.fromkeys((None, compute)):
            bound = _ROUNDED if dtype == torch.bfloat16 else _BOUNDS[torch.float32]
            for weights, expected in ((case.weights, case.weighted), (None, case.sums)):
                if _large(module) and weights is None:
                    continue
                asked = (case.theta, few, labels, case.clip_norm, weights)
                try:
                    found = made(True, dtype).clipped_sums(*asked)
                except MemoryError:
                    raise
                except Exception as error:  # noqa: BLE001 (compilers and drivers raise what they like)
                    return f"cannot be run ({first_line(error):.80})"
                plain = (made(False, dtype).clipped_sums(*asked) - expected).abs().amax(1)
                allowed = torch.maximum(bound * _largest(expected), 2 * plain)
                if not bool(((found - expected).abs().amax(1) <= allowed).all()):
                    return "give other sums than autograd"
    return None


def _first_right(
    module: nn.Module,
    slots: dict[str, Slot],
    packed: Callable[[Groups | None, bool], Sums] | Odd,
    case: _Case,
) -> Way:
    odd = packed if isinstance(packed, Odd) else None
    if not isinstance(packed, Odd):
        fast = packed
        tries = [lambda: fast(None, False), lambda: fast(GPU_MOST, False)]
        if (odd := _wrong(module, slots, tries, case)) is None:
            return Way()
        alone = [lambda: fast(ONE_BY_ONE, False)]
        if _wrong(module, slots, alone, case) is None:
            return Way(ONE_BY_ONE)
    assert odd is not None
    mapped = Samplewise(module, mapped=True)
    if _wrong(module, slots, [lambda: mapped], case) is None:
        return Way(alone=mapped, odd=odd)
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
    return sum(p.numel() for p in module.parameters()) > _LARGE


def _case(module: nn.Module, x: Tensor, y: Tensor) -> _Case:
    theta = _models(module)
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


def _models(module: nn.Module) -> Tensor:
    """Parameters around the module's own, float [n, p]."""
    initial = torch.cat([p.detach().flatten() for p in module.parameters()])
    if _large(module):  # drawing millions of numbers would take as long as all the rest
        signs = initial.new_tensor([[1.0], [-1.0]])
        return torch.addcmul(0.01 * signs, 1 + 0.1 * signs, initial)
    drawn = torch.randn(3, len(initial), generator=torch.Generator().manual_seed(1))
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
