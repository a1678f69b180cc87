"""One step looked into: how much noise it adds, and how far one example moves what it releases.

A release is one flat float64 vector per tensor. Only numbers of releases are recorded, for
`single_run` to judge: neither clipping bound nor batch size is taken from what the code says, and
only the ratio of movement to noise counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy import special

from .run_state import WatchedRun

Vector = npt.NDArray[np.float64]
Release = list[Vector]
# What a step would release after a change of its examples, with generators as they are (None) or
# seeded. What a change is, each framework's adapter says.
Released = Callable[[Any, int | None], Release]

LOOKED_AT = frozenset({0, 1, 2, 3, 5, 8} | {2**k for k in range(4, 14)})  # steps examined
FAR = 1e3  # times the clipping bound: what every clipping must cut off
NEAR = 0.999  # times the clipping bound: what no clipping may touch
_LEFT_OUT = 6  # examples that are left out, one at a time
_COORDINATES = 20_000  # of noise that are looked at per step, if that takes no more than
_DRAWS = (4, 64)
_SECONDS = 3.0  # for the draws of one step
_COMPARED = 4096  # coordinates of each tensor whose noise is compared over steps and tensors


def flat_vectors(tensors: Iterable[torch.Tensor]) -> Release:
    """Tensors as flat float64 vectors of numpy."""
    return [t.detach().to("cpu", torch.float64).reshape(-1).numpy() for t in tensors]


def gradients(params: Iterable[torch.Tensor]) -> Release:
    """The gradients of parameters; zeros where there is none."""
    return flat_vectors(torch.zeros_like(p) if p.grad is None else p.grad for p in params)


def has_numbers(value: Any) -> bool:
    """Whether it is an array of floating-point numbers that are there: not lazy, meta or sparse."""
    return (
        isinstance(value, torch.Tensor)
        and not (torch.nn.parameter.is_lazy(value) or value.is_meta)
        and value.layout is torch.strided
        and value.is_floating_point()
        and value.dim() > 0
    )


def digest(tensor: torch.Tensor) -> bytes:
    """The same for tensors of the same values, wherever they are."""
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(values.numpy().data, digest_size=16).digest()


def difference(first: Release, second: Release) -> Release:
    """The first release less the second."""
    return [a - b for a, b in zip(first, second, strict=True)]


def squared_lengths(release: Release) -> list[float]:
    """The squared length of each part; inf where it is not finite."""
    squares = [float(np.dot(part, part)) for part in release]
    return [square if np.isfinite(square) else float("inf") for square in squares]


def random_direction(shapes: Iterable[Sequence[int]], seed: int) -> list[torch.Tensor]:
    """A random direction of length one over all tensors, float32, by a generator of its own."""
    generator = torch.Generator().manual_seed(seed % 2**63)
    drawn = [torch.randn(tuple(shape), generator=generator) for shape in shapes]
    norm = torch.sqrt(sum((part.double().square().sum() for part in drawn), torch.zeros(())))
    return [part / norm.to(part.dtype) for part in drawn]


def spread_indices(count: int, most: int = _LEFT_OUT) -> list[int]:
    """At most so many of `count` indices, evenly spread, each once."""
    return list(dict.fromkeys(int(i * count / most) for i in range(min(most, count))))


@contextlib.contextmanager
def preserve_generators(held: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Puts all generators back at the end: Python's, numpy's, torch's, and those `held`."""
    states = [(generator, generator.get_state()) for generator in held]
    python, old = random.getstate(), np.random.get_state()
    gpus = range(torch.cuda.device_count()) if _gpu_in_use() else ()
    with torch.random.fork_rng(gpus):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(old)
            for generator, state in states:
                generator.set_state(state)


@contextlib.contextmanager
def preserve_attributes(objects: Iterable[Any]) -> Iterator[None]:
    """Puts the attributes of all objects back at the end."""
    kept = [(thing, dict(vars(thing))) for thing in objects]
    try:
        yield
    finally:
        for thing, values in kept:
            vars(thing).clear()
            vars(thing).update(values)


def seed_generators(seed: int, held: Iterable[torch.Generator] = ()) -> None:
    """Seeds Python's generator, numpy's, torch's, and those `held`."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if _gpu_in_use():
        torch.cuda.manual_seed_all(seed)
    for index, generator in enumerate(held):
        generator.manual_seed((seed + 7919 * (index + 1)) % 2**63)


def _gpu_in_use() -> bool:
    ready: bool = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return ready


class StepWatch:
    """Steps of one optimizer or call site: looked into, made trials of, and counted.

    What is the same for every framework lies here. An adapter says how a step is taken again on
    copies, and what may be changed of its examples.

    `number` counts the optimizers or call sites of a kind, `nothing` is the change of a step's
    examples that is none, `ghost` says whether gradients come clipped.
    """

    def __init__(self, run: WatchedRun, number: int, nothing: Any, ghost: bool = False) -> None:
        self.run, self.number, self.nothing, self.ghost = run, number, nothing, ghost
        self.steps = 0  # taken so far
        self.noise: float | None = None  # multiplier of the step, where its call says it
        self._noise: list[tuple[int, list[Vector]]] = []  # of steps that were examined

    @property
    def draw_seed(self) -> int:
        """Of all noise that is drawn to look into the step."""
        return self.run.request.derived("draws", self.number, self.steps) // 2

    def canary_is_in(self, rate: float) -> bool:
        """Whether the step has the canary; `rate`: of sampling it, where all of a run has it."""
        request = self.run.request
        if request.canary == "steps":
            return request.coin(0.5, "bit", self.number, self.steps)
        return request.member and request.coin(rate, "sampled", self.number, self.steps)

    def canary(self, shapes: Iterable[Sequence[int]]) -> list[torch.Tensor]:
        """The step's canary: a random direction of length one, with a random sign."""
        request, at = self.run.request, (self.number, self.steps)
        sign = 1.0 if request.coin(0.5, "sign", *at) else -1.0
        return [sign * w for w in random_direction(shapes, request.derived("canary", *at))]

    def finish(self) -> None:
        """Counts the step."""
        self.steps += 1
        self.run.count_release()

    def record_trial(
        self, member: bool, score: float, noise: float | None, rate: float | None
    ) -> None:
        """Notes a trial: whether the canary was in, and how far the release lies its way.

        `score` has mean 1 with the canary and 0 without; `noise` and `rate` are the step's, as
        accounted.
        """
        self.run.recorder.put(
            "trial", step=self.steps, member=member, score=score, noise=noise, rate=rate
        )

    def examine(
        self,
        released: Released,
        changes: Iterable[tuple[str, Any]],
        empty: Any | None,
        names: list[str] | None = None,
    ) -> None:
        """Looks into the step that is about to be taken.

        `released` gives what it would release, `changes` are of one example each, with what they
        are in words. `empty` adds an example whose gradient is zero; None where that cannot be
        done. Tensors have their number for a name where `names` is None.
        """
        actual, again = released(self.nothing, None), released(self.nothing, None)
        entry: dict[str, Any] = {"replays": False}
        # Bit for bit, but for signs of zero; NaN equals NaN.
        if all(np.array_equal(a, b, equal_nan=True) for a, b in zip(actual, again, strict=True)):
            draws, squares, mean, still = self._draw_noise(released, actual)
            entry = {"replays": True, "draws": draws, "squares": squares}
            entry["norms"] = squared_lengths(actual)
            if sum(squares) > 0:
                # The step's own noise: its release less a mean of many.
                noise = [-part for part in mean]
                entry["pairs"] = self._correlations(noise, squares, draws)
                entry["shape"] = _distance_from_normal(noise, squares, draws)
            shifts, bare = [], set()
            for what, change in changes:
                moved = difference(released(change, None), actual)
                shifts.append({"what": what, "squares": squared_lengths(moved)})
                bare |= {i for i, part in enumerate(moved) if (still[i] & (part != 0)).any()}
            entry |= {"shifts": shifts, "bare": sorted(bare)}
            if empty is not None:
                moved = difference(released(empty, None), actual)
                entry["empty"] = squared_lengths(moved)
        self._record_look(actual, names, **entry)

    def glance(
        self,
        released: Released,
        changes: Iterable[tuple[str, Any]],
        names: list[str] | None = None,
    ) -> None:
        """Looks at one other draw of a step's noise, and at a few changes."""
        actual = released(self.nothing, None)
        other = difference(released(self.nothing, self.draw_seed), actual)
        # Half of a difference's squares: as of two draws around their mean.
        squares = [square / 2 for square in squared_lengths(other)]
        shifts = [
            {"what": what, "squares": squared_lengths(difference(released(change, None), actual))}
            for what, change in changes
        ]
        entry = {"replays": True, "draws": 2, "squares": squares, "shifts": shifts, "bare": []}
        self._record_look(actual, names, norms=squared_lengths(actual), **entry)

    def _record_look(self, actual: Release, names: list[str] | None, **entry: Any) -> None:
        sizes = [len(part) for part in actual]
        self.run.recorder.put(
            "look", step=self.steps, optimizer=self.number, noise=self.noise, sizes=sizes,
            ghost=self.ghost,
            names=names or [f"array {index}" for index in range(len(sizes))], **entry,
        )  # fmt: skip

    def _draw_noise(
        self, released: Released, actual: Release
    ) -> tuple[int, list[float], Release, list[npt.NDArray[np.bool_]]]:
        """Draws the step's noise again and again: how many draws, and what they show.

        That is their squares around their mean, by tensor; that mean; and which numbers no draw
        moved. Squares and mean are of differences to `actual`.
        """
        size = max(1, sum(map(len, actual)))
        least, most = _DRAWS
        wanted = int(np.clip(-(-_COORDINATES // size), least, most))
        total = [np.zeros_like(part) for part in actual]
        squared = [0.0] * len(actual)
        still = [np.ones(len(part), dtype=np.bool_) for part in actual]
        began = time.monotonic()
        draws = 0
        while draws < wanted and (draws < least or time.monotonic() - began < _SECONDS):
            moved = difference(released(self.nothing, self.draw_seed + draws), actual)
            for index, (part, square) in enumerate(zip(moved, squared_lengths(moved), strict=True)):
                total[index] += part
                squared[index] += square
                still[index] &= part == 0
            draws += 1
            if squared[-1] > 0 and len(actual[-1]) == 1:
                wanted = most  # one number alone is drawn each time
        mean = [part / draws for part in total]
        spread = [
            max(0.0, square - draws * float(np.dot(part, part)))
            for square, part in zip(squared, mean, strict=True)
        ]
        # What rounding leaves of noise that is always the same is none.
        squares = [0.0 if s < 1e-12 * q else s for s, q in zip(spread, squared, strict=True)]
        return draws, squares, mean, still

    def _correlations(
        self, noise: Release, squares: list[float], draws: int
    ) -> list[dict[str, Any]]:
        """How the step's noise correlates with that of steps before, and within itself.

        `squares` has the sum of squared noise of each tensor over `draws` draws, which brings all
        to one scale; tensors without noise, or of one number, say nothing. The noise is kept for
        later steps. Returned is, of each kind ("steps", "tensors", "neighbours"), the pair that
        chance explains least: two steps or tensors, `of`, and how many `pairs` there were.
        """
        parts = []
        for part, square in zip(noise, squares, strict=True):
            deviation = float(np.sqrt(square / ((draws - 1) * len(part)))) if draws > 1 else 0.0
            some = deviation > 0 and len(part) > 1
            parts.append(part[:_COMPARED] / deviation if some else np.zeros(0))
        pairs = [
            {"what": "steps", "of": [before, self.steps], **_correlation(np.concatenate(old), new)}
            for before, old in self._noise
            if 16 <= len(new := np.concatenate(parts)) == sum(map(len, old))
        ]
        for (i, first), (j, second) in itertools.combinations(enumerate(parts), 2):
            n = min(len(first), len(second))
            if n >= 16:
                pair = _correlation(first[:n], second[:n])
                pairs.append({"what": "tensors", "of": [i, j], **pair})
        for i, part in enumerate(parts):
            if len(part) >= 32:
                pair = _correlation(part[:-1], part[1:])
                pairs.append({"what": "neighbours", "of": [i, i], **pair})
        self._noise.append((self.steps, parts))
        worst = []
        for what in ("steps", "tensors", "neighbours"):
            if kind := [pair for pair in pairs if pair["what"] == what]:
                least = max(kind, key=lambda pair: abs(pair["correlation"]) * pair["n"] ** 0.5)
                worst.append(least | {"pairs": len(kind)})
        return worst


def _correlation(first: Vector, second: Vector) -> dict[str, Any]:
    norm = float(np.sqrt(np.dot(first, first) * np.dot(second, second)))
    value = float(np.dot(first, second)) / norm if norm > 0 else 0.0
    return {"correlation": value, "n": len(first)}


def _distance_from_normal(noise: Release, squares: list[float], draws: int) -> dict[str, Any]:
    """The Kolmogorov distance of `n` numbers of standardised noise from the normal law."""
    parts = []
    for part, square in zip(noise, squares, strict=True):
        if square > 0 and draws > 1:
            deviation = np.sqrt(square / ((draws - 1) * len(part)) * (1 + 1 / draws))
            parts.append(part[:_COMPARED] / deviation)
    values = np.sort(np.concatenate(parts))
    below = special.ndtr(values)
    n = len(values)
    grid = np.arange(n + 1) / n
    distance = max(float(np.max(grid[1:] - below)), float(np.max(below - grid[:-1])))
    return {"distance": distance, "n": n}
