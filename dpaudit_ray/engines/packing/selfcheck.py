"""Which way of packing computes a module's clipped sums rightly: tried, not assumed.

Before anything is trained, a few models take a few examples through each way of packing, in
float64 (float32 where a module allows nothing else), with the groups that a CPU and a GPU use and
with weights as a canary's examples have them. Every example alone, by autograd on the user's own
module, is what they are held against. Then, at the training's own sizes, a way is held against
itself: a batch against its parts, a group of models against two of them alone.

A large module is checked on less, and in float32; float64 decides where that differs, since
rounding may move a maximum or a ReLU.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from ...errors import SpecError, first_line
from ..rules.base import Slot, trained
from ..rules.losses import Loss, losses
from .conversion import Obstacle
from .memory import GPU_MOST, ONE_BY_ONE, Groups
from .samplewise import Samplewise, cast, in_dtype
from .vetting import halves, relative_error, vet

Make = Callable[[Groups | None, bool], "Packed"]  # by groups, and whether by compiled loops

_SPREAD = 0.05  # of the models' parameters around the module's own
_LARGE = 1_000_000  # parameters from which on the least that shows a difference is computed
_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3}  # of the largest entry
_SURE = 1e-4  # float32 above this, but below its bound, has float64 decide where that is allowed
_DRAWN = 1 << 22  # parameters of all models: to draw more would take as long as all the rest
_MOST = 1 << 27  # numbers of a group's θ, as in a pack of `pack_size: auto`
_CANCELLED = 1e-3  # of C: sums that cancel to less are rounding, and as good as none


class Sums(Protocol):
    """A way to compute clipped sums, as `PackedModel` does."""

    def clipped_sums(
        self, theta: Tensor, x: Tensor, y: Tensor, clip_norm: float, weights: Tensor | None
    ) -> Tensor:
        """Σ_j weights[i, j] · clip(∇ℓ(θ_i; x_j, y_j), C), float [n, p]."""

    def outputs(self, theta: Tensor, x: Tensor) -> Tensor:
        """Outputs of every model on every example, float [n, m, c]."""


class Packed(Sums, Protocol):
    """Several models at once."""

    def together(self, x: Tensor, y: Tensor) -> int:
        """How many go through what is the module's own code."""


@dataclasses.dataclass(frozen=True)
class Way:
    """How to compute a module's clipped sums; the first that is right is taken."""

    groups: Groups | None = None  # None: as many models as is fast
    rows: int | None = None  # the most that go through together, where more would be wrong
    loops: bool = False  # whether compiled ones are right
    alone: Samplewise | None = None  # every example alone, in place of rules
    obstacle: Obstacle | None = None  # why it is no faster


FASTEST = Way()


@dataclasses.dataclass(frozen=True)
class Candidate:
    """A user's module, what packs it, and a first batch of its training."""

    module: nn.Module
    slots: dict[str, Slot]
    packed: Make | Obstacle  # or why nothing packs it
    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    loss: Loss = losses

    @property
    def size(self) -> int:
        """The number of trained parameters."""
        return sum(p.numel() for p in trained(self.module).values())

    @property
    def large(self) -> bool:
        """Whether only the least that shows a difference is computed."""
        return self.size > _LARGE

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the training."""
        return next(iter(trained(self.module).values())).dtype

    def few(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The first examples, and again from the first where there are fewer."""
        count = 2 if self.large else 5
        rows = torch.arange(count, device=self.x.device) % max(1, len(self.x))
        return cast(self.x[rows], dtype), self.y[rows]


def fastest_right_way(candidate: Candidate, has_loops: bool) -> Way:
    """Returns the fastest way that agrees with autograd on the first examples of a batch.

    And with itself on all of them. `has_loops`: whether there are compiled ones for this module.
    Raises SpecError where the module may not be audited, or no gradient of one example can be had.
    """
    for dtype in (torch.float32,) if candidate.large else (torch.float64, torch.float32):
        with in_dtype(candidate.module, dtype), torch.random.fork_rng(devices=[]):
            try:
                few, labels = candidate.few(dtype)
                batch = cast(candidate.x, dtype)
                vet(candidate.module, few, batch, thorough=not candidate.large)
                expected = _expected(candidate, few, labels)
            except SpecError:
                raise
            except Exception as error:  # a user's code may raise anything
                if dtype == torch.float32:
                    reason = first_line(error)
                    raise SpecError(
                        "mechanism.model", f"does not run on these examples: {reason}"
                    ) from error
                continue
            way = _first_right(candidate, expected)
        if has_loops and way == FASTEST:
            return Way(loops=_loops_are_right(candidate))
        return way
    raise AssertionError("the second dtype returns or raises")


def _loops_are_right(candidate: Candidate) -> bool:
    """In the dtype that they will have: they are compiled for it, in seconds, and for no other."""
    make, dtype = candidate.packed, candidate.dtype
    if isinstance(make, Obstacle):
        return False
    with in_dtype(candidate.module, dtype), torch.random.fork_rng(devices=[]):
        expected = _expected(candidate, *candidate.few(dtype))
        return _difference(candidate, [lambda: make(None, True)], expected) is None


def _first_right(candidate: Candidate, expected: _Expected) -> Way:
    difference = functools.partial(_difference, candidate, expected=expected)
    obstacle = candidate.packed if isinstance(candidate.packed, Obstacle) else None
    if not isinstance(candidate.packed, Obstacle):
        make, rows = candidate.packed, None
        by_rules = [lambda: make(None, False), lambda: make(GPU_MOST, False)]
        if (obstacle := difference(by_rules)) is None:
            if (obstacle := _difference_among_many(candidate, expected, None)) is None:
                return FASTEST
            rows = len(candidate.y)
        right = difference([lambda: make(ONE_BY_ONE, False)]) is None
        if right and _difference_among_many(candidate, expected, ONE_BY_ONE) is None:
            return Way(ONE_BY_ONE, rows)
    assert obstacle is not None
    mapped = Samplewise(candidate.module, candidate.loss, mapped=True)
    for way in (dataclasses.replace(mapped, stacked=True), mapped):
        if difference([functools.partial(dataclasses.replace, way)]) is None:
            return Way(alone=way, obstacle=obstacle)
    again = Samplewise(candidate.module, candidate.loss)
    if (unsteady := difference([lambda: again])) is not None:
        raise SpecError(
            "mechanism.model",
            f"{unsteady.path} ({unsteady.kind}) has another gradient when it is asked again; "
            "draw nothing at random and keep nothing from one batch to the next",
        )
    return Way(alone=again, obstacle=obstacle)


# On a few examples: against autograd --------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Expected:
    """Sums and outputs of n models on a few examples, by autograd."""

    theta: Tensor  # [n, p]
    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    weights: Tensor  # [n, B]: 1, but for one example of the first model, 0
    clip_norm: float
    sums: Tensor  # [n, p], clipped and weighted
    outputs: Tensor  # [n, B, c]; not of a large module


def _expected(candidate: Candidate, x: Tensor, y: Tensor) -> _Expected:
    theta = _models(candidate, 2 if candidate.large else 3)
    alone = Samplewise(candidate.module, candidate.loss)
    weights = torch.ones(len(theta), len(y), dtype=theta.dtype, device=theta.device)
    weights[0, -1] = 0
    clip_norm, sums = 0.0, torch.empty_like(theta)
    for i, (row, of_model) in enumerate(zip(theta, weights, strict=True)):
        gradients = alone.gradients(row, x, y)  # [B, p]
        norms = torch.linalg.vector_norm(gradients, dim=1)
        finite = norms[norms.isfinite()]
        # So that some gradients are clipped and others are not.
        clip_norm = clip_norm or 0.9 * float(finite.median() if len(finite) else 0) or 1.0
        torch.mv(gradients.T, of_model * clip_norm / norms.clamp(min=clip_norm), out=sums[i])
    outputs = theta.new_zeros(len(theta), 1) if candidate.large else alone.outputs(theta, x)
    return _Expected(theta, x, y, weights, clip_norm, sums, outputs)


def _models(candidate: Candidate, count: int) -> Tensor:
    """Parameters around the module's own, float [count, p]."""
    initial = torch.cat([p.detach().flatten() for p in trained(candidate.module).values()])
    if candidate.large or count * len(initial) > _DRAWN:
        signs = torch.linspace(1, -1, count).to(initial).unsqueeze(1)
        return torch.addcmul(0.01 * signs, 1 + 0.1 * signs, initial)
    drawn = torch.randn(count, len(initial), generator=torch.Generator().manual_seed(1))
    return initial + _SPREAD * drawn.to(initial)


_OTHER_SUMS = "does not do what its rule says"
_OTHER_OUTPUTS = "gives other outputs when it is packed"


def _difference(
    candidate: Candidate, ways: Sequence[Callable[[], Sums]], expected: _Expected
) -> Obstacle | None:
    """Where one of these ways differs from autograd; None where none does.

    Where numbers of float32 differ, float64 decides if the module runs in it: of `resnet18` on
    images of 8 by 8, rounding moved a ReLU and with it a sum by a seventh.
    """
    difference = _compared(candidate, ways, expected)
    in_float32 = expected.theta.dtype == torch.float32
    if difference is None or not in_float32 or difference.why not in (_OTHER_SUMS, _OTHER_OUTPUTS):
        return difference
    with in_dtype(candidate.module, torch.float64):
        try:
            exact = _expected(candidate, *candidate.few(torch.float64))
        except Exception:  # noqa: BLE001 (a user's code may not know float64)
            return difference
        return _compared(candidate, ways, exact)


def _compared(
    candidate: Candidate, ways: Sequence[Callable[[], Sums]], expected: _Expected
) -> Obstacle | None:
    """Where one of these ways differs from what is expected; None where none does."""
    module, theta, clip_norm = candidate.module, expected.theta, expected.clip_norm
    for make in ways:
        x = expected.x.clone()
        try:
            way = make()
            sums = way.clipped_sums(theta, x, expected.y, clip_norm, expected.weights)
            outputs = expected.outputs if candidate.large else way.outputs(theta, x)
        except MemoryError:
            raise
        except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
            return Obstacle.at("", module, f"cannot be packed ({first_line(error):.80})")
        if (name := _differing_parameter(candidate, sums, expected)) is not None:
            path = name.rpartition(".")[0]
            return Obstacle.at(path, module.get_submodule(path), _OTHER_SUMS)
        errors = map(relative_error, outputs, expected.outputs)
        if max(errors) > _BOUNDS[theta.dtype] or not torch.equal(x, expected.x):
            return Obstacle.at("", module, _OTHER_OUTPUTS)
    return None


def _differing_parameter(candidate: Candidate, sums: Tensor, expected: _Expected) -> str | None:
    """The first parameter whose sums differ, by the scale of all of them."""
    bound, least = _BOUNDS[expected.theta.dtype], _CANCELLED * expected.clip_norm
    for row, right in zip(sums, expected.sums, strict=True):
        if relative_error(row, right, least) <= bound:
            continue
        finite = right[right.isfinite()]
        scale = max(float(finite.abs().amax()) if len(finite) else 0.0, least)
        for name, slot in candidate.slots.items():
            part = slice(slot.start, slot.stop)
            if relative_error(row[part], right[part], scale) > bound:
                return name
    return None


# At the size of a training's batches: against itself ----------------------------------------------


def _difference_among_many(
    candidate: Candidate, expected: _Expected, groups: Groups | None
) -> Obstacle | None:
    """What is wrong where many rows go through together only: sums that are not those of parts.

    `groups` were right on a few examples. In the dtype of the training, by which groups have
    their size; float64 decides where that is near its bound.
    """
    module, make = candidate.module, candidate.packed
    assert not isinstance(make, Obstacle)
    dtype = candidate.dtype
    error, bound = math.inf, 0.0
    for tried in dict.fromkeys((dtype, torch.float64)):
        try:
            with in_dtype(module, dtype):
                count = make(groups, False).together(cast(candidate.x, dtype), candidate.y)
            with in_dtype(module, tried):
                error = _error_among_many(candidate, make, count, tried, expected.clip_norm)
        except MemoryError:
            raise
        except Exception as failure:  # noqa: BLE001 (a user's code may raise anything)
            if error == math.inf:
                return Obstacle.at("", module, f"cannot be packed ({first_line(failure):.80})")
            break
        bound = _BOUNDS[tried]
        if error <= min(bound, _SURE):
            return None
    if error <= bound:
        return None
    return Obstacle.at("", module, "gives other sums where many rows go through it together")


def _error_among_many(
    candidate: Candidate, make: Make, count: int, dtype: torch.dtype, clip_norm: float
) -> float:
    """The largest relative error of sums that are computed together, against these apart.

    A batch is held against its halves in one model, and `count` models at once against two of them
    alone, on as many copies of one example as would crowd whatever has room for some only.
    """
    x, y = cast(candidate.x, dtype), candidate.y
    theta = _models(candidate, max(1, min(count, _MOST // candidate.size)))
    alone, least = make(ONE_BY_ONE, False), _CANCELLED * clip_norm

    def sums(way: Packed, models: Tensor, x: Tensor, rows: Tensor) -> Tensor:
        return way.clipped_sums(models, x[rows], y[rows], clip_norm, None)

    every_row = torch.arange(len(y), device=y.device)
    rows, whole = every_row, sums(alone, theta[:1], x, every_row)
    errors = [0.0]
    for parts in halves(y, len(candidate.few(dtype)[1])):
        first, second = (rows[part] for part in parts)
        of_first, of_second = sums(alone, theta[:1], x, first), sums(alone, theta[:1], x, second)
        errors.append(relative_error(of_first + of_second, whole, least))
        rows, whole = first, of_first
    if len(theta) > 1:
        group, copies = Groups(len(theta), len(theta)), x[:1].expand_as(x)
        together = sums(make(group, False), theta, copies, every_row)
        for models in (slice(0, 1), slice(len(theta) - 1, None)):
            by_itself = sums(alone, theta[models], copies, every_row)
            errors.append(relative_error(together[models], by_itself, least))
    return max(errors)
