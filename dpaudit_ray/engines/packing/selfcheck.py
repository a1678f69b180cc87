"""Search for the fastest way of packing that computes a module's clipped sums correctly.

Before anything is trained, a few models take a few examples through each way of packing, in
float64 (float32 where a module allows nothing else), with the groups that a CPU and a GPU use.
They are compared with every example alone, by autograd on the user's own module. Then, at the sizes
of the training, a way is compared with itself: a batch with its parts, a group of models with two
of them alone. A large module is checked on less, and in float32; if that differs, float64 decides,
since rounding may change which entry is the maximum, or the sign before a ReLU.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...errors import SpecError, first_line
from ..rules.base import flat_parameters
from ..rules.losses import Loss
from .conversion import obstacle_at
from .memory import GPU_MOST, ONE_BY_ONE, Groups
from .samplewise import MODELS, Samplewise, cast, in_dtype
from .vetting import halves, relative_error, vet

# Makes a `PackedModel`. Arguments: the groups, whether it has loops, whether `vmap` maps its rules.
Make = Callable[[Groups | None, bool, bool], Any]

_SPREAD = 0.05  # deviation of the models' parameters from the module's
_LARGE = 1_000_000  # parameters; larger modules are checked on as little as possible
_BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-3}  # errors relative to the largest entry
# A larger error in float32 is computed again in float64, if the module runs in that.
_CERTAIN_IN_FLOAT32 = 1e-4
# Parameters of all models: sampling more would take as long as the check itself.
_MOST_SAMPLED = 1 << 22
_MOST_IN_GROUP = 1 << 27  # numbers of a group's θ, as in a pack of `pack_size: auto`
# Times C: where the sum of the gradients is smaller, they cancel, and only rounding remains.
_CANCELLED = 1e-3
_READS = "reads numbers from its batch (`if`, `.item()`), so every example goes through it alone"
_OTHER_SUMS = "gives other sums or outputs when it is packed"


@dataclass(frozen=True)
class Way:
    """A way to compute a module's clipped sums; by default the fastest one."""

    loops: bool = False  # whether compiled loops are right
    mapped: bool = False  # whether `vmap` gives the module one example at a time, around rules
    # Models that `vmap` takes together, 0 without `vmap`, if each example has a gradient of its own
    # by autograd; None if the module is packed.
    alone: int | None = None
    single: bool = False  # whether examples go through the module alone for outputs, too
    obstacle: str | None = None  # why no faster way is right


@dataclass(frozen=True)
class Candidate:
    """A user's module, a function that packs it, and a first batch of its training."""

    module: nn.Module
    packed: Make | str  # a string is the obstacle to packing it
    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    loss: Loss

    @property
    def initial(self) -> Tensor:
        """The module's own parameters, float [p], in its present dtype."""
        return flat_parameters(self.module)

    @property
    def is_large(self) -> bool:
        """Whether the module is so large that as little as possible is computed to check it."""
        return len(self.initial) > _LARGE

    def first_examples(self, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Returns 2 examples and labels for a large module, else 5; a smaller batch is repeated."""
        count = 2 if self.is_large else 5
        rows = torch.arange(count, device=self.x.device) % max(1, len(self.x))
        return cast(self.x[rows], dtype), self.y[rows]

    def similar_models(self, count: int) -> Tensor:
        """Returns parameters close to the module's own, float [count, p].

        Random numbers for a large module would take longer to sample than the check itself. Its
        models are (1 + 0.1 s) · initial + 0.01 s, for `count` values s from 1 to -1.
        """
        initial = self.initial
        if self.is_large or count * len(initial) > _MOST_SAMPLED:
            shifts = torch.linspace(1, -1, count).to(initial).unsqueeze(1)
            return torch.addcmul(0.01 * shifts, 1 + 0.1 * shifts, initial)
        generator = torch.Generator().manual_seed(1)
        deviations = torch.randn(count, len(initial), generator=generator)
        return initial + _SPREAD * deviations.to(initial)


def fastest_right_way(candidate: Candidate, has_loops: bool) -> Way:
    """Returns the fastest way whose sums are correct: on a few examples, and on a whole batch.

    On the few it is compared with autograd, on the batch with itself.

    Args:
        candidate: the module, and a first batch.
        has_loops: whether there are compiled loops for this module.

    Raises:
        SpecError: the module may not be audited, or one example's gradient cannot be computed.
    """
    dtypes = (torch.float32,) if candidate.is_large else (torch.float64, torch.float32)
    for dtype in dtypes:
        with in_dtype(candidate.module, dtype), torch.random.fork_rng(devices=[]):
            try:
                batch = cast(candidate.x, dtype)
                few_examples, _ = candidate.first_examples(dtype)
                single = vet(candidate.module, few_examples, batch, thorough=not candidate.is_large)
                expected = _expected(candidate, dtype, single)
            except SpecError:
                raise
            except Exception as error:  # a user's code may raise anything
                if dtype == torch.float32:
                    problem = _why_it_fails(candidate.module, batch, error)
                    raise SpecError("mechanism.model", problem) from error
                continue  # the module may run in float32 only
            if single:
                obstacle = obstacle_at("", candidate.module, _READS)
                return Way(alone=0, single=True, obstacle=obstacle)
            way = _fastest_right(candidate, expected)
        if not has_loops or way != Way():  # loops belong to the fastest way alone
            return way
        # In the dtype that loops will have: they are compiled for it, in seconds, and for no other.
        dtype = candidate.initial.dtype
        with in_dtype(candidate.module, dtype), torch.random.fork_rng(devices=[]):
            assert not isinstance(candidate.packed, str)
            make = partial(candidate.packed, None, True, False)
            return Way(loops=_difference(candidate, make, _expected(candidate, dtype)) is None)
    raise AssertionError("the second dtype returns or raises")


def _why_it_fails(module: nn.Module, batch: Tensor, error: Exception) -> str:
    """Returns why a module raised an error: on one example alone, or on a whole batch as well.

    Args:
        module: the user's module.
        batch: examples of the training [B, ...].
        error: the error that was raised.
    """
    with contextlib.suppress(Exception), torch.no_grad():  # a user's code may raise anything
        module(batch.clone())
        return (
            f"runs on a batch of {len(batch)} examples, but not on one alone, of which DP-SGD "
            f"takes the gradient: {first_line(error)}"
        )
    return f"does not run on these examples: {first_line(error)}"


def _fastest_right(candidate: Candidate, expected: "_Expected") -> Way:
    """Returns the fastest way without compiled loops whose gradients equal autograd's.

    In this order: packed by rules, with all models at once and in groups as on a GPU; the same
    within `vmap` over examples (`mapped`); each example by `Samplewise`, for many models at once,
    for one, or without `vmap`. `obstacle` states why a faster way failed. The last way computes
    what autograd does, so if it fails, the module does not repeat itself.
    """
    packed = candidate.packed
    module = candidate.module
    if isinstance(packed, str):
        obstacle = packed
    else:

        def problem_of(groups: Groups | None, mapped: bool) -> str | None:
            """Returns how sums differ when packed this way; None if they are right."""
            return _difference(candidate, partial(packed, groups, False, mapped), expected)

        for mapped in (False, True):  # the faster one first
            problem = problem_of(None, mapped) or problem_of(GPU_MOST, mapped)
            if problem is None:
                problem = _difference_among_many(candidate, packed, expected, mapped)
            if problem is None:
                return Way(mapped=mapped)
        assert problem is not None
        obstacle = obstacle_at("", module, problem)
    for models in (MODELS, 1, 0):
        alone = partial(Samplewise, module, candidate.loss, models)
        if _difference(candidate, alone, expected) is None:
            return Way(alone=models, obstacle=obstacle)
    raise SpecError(
        "mechanism.model",
        "has another gradient when it is called again; draw nothing at random and keep nothing "
        "from one batch to the next",
    )


# On a few examples: against autograd --------------------------------------------------------------


@dataclass(frozen=True)
class _Expected:
    """Sums and outputs of n models on a few examples, by autograd."""

    theta: Tensor  # [n, p]
    x: Tensor  # [B, ...]
    y: Tensor  # [B]
    weights: Tensor  # [n, B]: 1, but for one example of the first model, 0
    clip_norm: float
    sums: Tensor  # [n, p], clipped and weighted
    outputs: Tensor  # [n, B, c]


def _expected(
    candidate: Candidate,
    dtype: torch.dtype,
    single: bool = False,
) -> _Expected:
    """Computes sums and outputs by autograd; the clip norm clips about half of the gradients.

    Args:
        candidate: the module, and a first batch.
        dtype: dtype of the computation.
        single: whether every example goes through the module alone, for outputs too.
    """
    x, y = candidate.first_examples(dtype)
    theta = candidate.similar_models(2 if candidate.is_large else 3)
    alone = Samplewise(candidate.module, candidate.loss, single=single)
    weights = theta.new_ones(len(theta), len(y))
    weights[0, -1] = 0  # one model leaves one example out, so that weights are checked too
    clip_norm = 0.0
    sums = torch.empty_like(theta)
    for i, row in enumerate(theta):
        gradients = alone.gradients(row, x, y)  # [B, p]
        norms = torch.linalg.vector_norm(gradients, dim=1)
        finite = norms[norms.isfinite()]
        if clip_norm == 0 and len(finite):
            clip_norm = 0.9 * float(finite.median())  # some gradients are clipped, others not
        clip_norm = clip_norm or 1.0  # if no gradient so far is finite, or most are 0
        factors = weights[i] * clip_norm / norms.clamp(min=clip_norm)
        torch.mv(gradients.T, factors, out=sums[i])
    return _Expected(theta, x, y, weights, clip_norm, sums, alone.outputs(theta, x))


def _difference(
    candidate: Candidate,
    make: Callable[[], Any],
    expected: _Expected,
) -> str | None:
    """Returns why a way of packing is wrong, compared with autograd; None if it is right.

    Args:
        candidate: the module, and a first batch.
        make: packs the module this way.
        expected: sums and outputs by autograd.
    """
    theta = expected.theta
    x = expected.x.clone()
    clip_norm = expected.clip_norm
    try:
        way = make()
        sums = way.clipped_sums(theta, x, expected.y, clip_norm, expected.weights)
        outputs = way.outputs(theta, x)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (a user's code may raise anything)
        return f"cannot be packed ({first_line(error):.80})"
    least = _CANCELLED * clip_norm
    errors = [relative_error(a, b, least) for a, b in zip(sums, expected.sums, strict=True)]
    errors += map(relative_error, outputs, expected.outputs)
    # The module must not have changed its input either.
    if max(errors) <= _BOUNDS[theta.dtype] and torch.equal(x, expected.x):
        return None
    if theta.dtype == torch.float32:  # rounding may have moved a ReLU: float64 decides
        with in_dtype(candidate.module, torch.float64):
            try:
                exact = _expected(candidate, torch.float64)
            except Exception:  # noqa: BLE001 (a user's code may not know float64)
                return _OTHER_SUMS
            return _difference(candidate, make, exact)
    return _OTHER_SUMS


# At the size of a training's batches: against itself ----------------------------------------------


def _difference_among_many(
    candidate: Candidate,
    packed: Make,
    expected: _Expected,
    mapped: bool,
) -> str | None:
    """Returns why many rows cannot go through together; None if they can.

    Args:
        candidate: the module, and a first batch.
        packed: packs the module.
        expected: sums on a few examples, whose dtype and clip norm are used.
        mapped: whether `vmap` gives the module one example at a time.
    """
    dtype = expected.theta.dtype

    def make(groups: Groups | None) -> Any:
        """Packs the module without compiled loops."""
        return packed(groups, False, mapped)

    try:
        count = make(None).models_together(cast(candidate.x, dtype), candidate.y)
        error = _error_among_many(candidate, make, count, expected.clip_norm)
    except MemoryError:
        raise
    except Exception as failure:  # noqa: BLE001 (a user's code may raise anything)
        return f"cannot be packed ({first_line(failure):.80})"
    if dtype == torch.float32 and error > _CERTAIN_IN_FLOAT32:
        with contextlib.suppress(Exception), in_dtype(candidate.module, torch.float64):
            # The user's code may raise an error in float64: then the one in float32 counts.
            error = _error_among_many(candidate, make, count, expected.clip_norm)
            dtype = torch.float64
    if error <= _BOUNDS[dtype]:
        return None
    return "gives other sums where many rows go through it together"


def _error_among_many(
    candidate: Candidate,
    make: Callable[[Groups | None], Any],
    count: int,
    clip_norm: float,
) -> float:
    """Returns the largest relative error of sums computed together, compared with separate sums.

    Two comparisons are made: a batch with its two parts, its first part with the parts of that, and
    so on; and a group of models with its first and last model alone. The group gets copies of one
    example: if a layer has capacity for some rows only, the copies exceed it.

    Args:
        candidate: the module, and a first batch.
        make: packs the module, for groups of some size.
        count: number of models of a group.
        clip_norm: C.
    """
    most = _MOST_IN_GROUP // len(candidate.initial)
    theta = candidate.similar_models(max(1, min(count, most)))
    x = cast(candidate.x, theta.dtype)
    y = candidate.y
    alone = make(ONE_BY_ONE)
    least = _CANCELLED * clip_norm

    def sums(rows: Tensor) -> Tensor:
        """Returns the first model's clipped sums over rows of the batch, computed alone."""
        result: Tensor = alone.clipped_sums(theta[:1], x[rows], y[rows], clip_norm)
        return result

    rows = torch.arange(len(y), device=y.device)
    errors = [0.0]
    # The sum over a batch, or over what is left of it, must be that over its two parts.
    total = sums(rows)
    few_examples, _ = candidate.first_examples(theta.dtype)
    for first, second in halves(y, len(few_examples)):
        first_sum = sums(rows[first])
        second_sum = sums(rows[second])
        errors.append(relative_error(first_sum + second_sum, total, least))
        rows = rows[first]
        total = first_sum
    if len(theta) > 1:  # the first and the last model of a group must not depend on the others
        group = Groups(len(theta), len(theta))
        copies = x[:1].expand_as(x)
        grouped = make(group).clipped_sums(theta, copies, y, clip_norm)
        for models in (slice(0, 1), slice(len(theta) - 1, None)):
            expected = alone.clipped_sums(theta[models], copies, y, clip_norm)
            errors.append(relative_error(grouped[models], expected, least))
    return max(errors)
