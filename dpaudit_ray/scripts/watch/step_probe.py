"""One step looked into: how much noise it adds, and how far one example moves what it releases.

A release is one flat float64 vector per tensor. Only numbers of releases are recorded, for
`single_run` to judge: neither clipping bound nor batch size is taken from what the code says, and
only the ratio of movement to noise counts. What is the same for every framework is `StepWatch`.
"""

import contextlib
import hashlib
import itertools
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from .run_state import WatchedRun

Vector = npt.NDArray[np.float64]
Release = list[Vector]
Change = Any  # of a step's examples: what it is, each framework's adapter says

LOOKED_AT = frozenset({0, 1, 2, 3, 5, 8} | {2**k for k in range(4, 14)})  # steps examined
FAR = 1e3  # times the clipping bound: what every clipping must cut off
NEAR = 0.999  # times the clipping bound: what no clipping may touch
_LEFT_OUT = 6  # examples that are left out, one at a time
_COORDINATES = 20_000  # of noise that are looked at per step, if that takes no more than
_DRAWS = (4, 64)
_SECONDS = 3.0  # for the draws of one step
_MEAN_DRAWS = 6  # whose mean stands for a release without its noise
_COMPARED = 4096  # coordinates of each tensor whose noise is compared over steps and tensors


def flat_vectors(tensors: Iterable[torch.Tensor]) -> Release:
    """Tensors as flat float64 vectors of numpy."""
    return [t.detach().to("cpu", torch.float64).reshape(-1).numpy() for t in tensors]


def gradients(params: Iterable[torch.Tensor]) -> Release:
    """The gradients of parameters; zeros where there is none."""
    return flat_vectors(torch.zeros_like(p) if p.grad is None else p.grad for p in params)


def has_numbers(value: Any, least: int = 1) -> bool:
    """Whether it is an array of floats, not lazy, meta or sparse, of `least` dimensions or more."""
    return (
        isinstance(value, torch.Tensor)
        and not (torch.nn.parameter.is_lazy(value) or value.is_meta)
        and value.layout is torch.strided
        and value.is_floating_point()
        and value.dim() >= least
    )


def digest(tensor: torch.Tensor) -> bytes:
    """The same for tensors of the same values, wherever they are."""
    values = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
    return hashlib.blake2b(values.numpy().data, digest_size=16).digest()


def sample_digest(tensor: torch.Tensor) -> bytes:
    """A digest of the first numbers of a tensor."""
    return digest(tensor.detach().reshape(-1)[:_COMPARED])


def difference(first: Release, second: Release) -> Release:
    """The first release less the second."""
    return [a - b for a, b in zip(first, second, strict=True)]


def along(release: Release, direction: Release) -> float:
    """How far a release lies in a direction."""
    return sum(float(a @ b) for a, b in zip(release, direction, strict=True))


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


def seed_generators(seed: int, held: Iterable[Any] = ()) -> None:
    """Seeds Python's generator, numpy's, torch's, and those `held`, of torch or numpy."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if _gpu_in_use():
        torch.cuda.manual_seed_all(seed)
    for index, generator in enumerate(held):
        number = (seed + 7919 * (index + 1)) % 2**63
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(number).state
        else:
            generator.manual_seed(number)


def _gpu_in_use() -> bool:
    ready: bool = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return ready


class StepWatch:
    """Steps of one optimizer or call site, the `number`th: looked into, made trials of, counted.

    An adapter says what a step would release after a change of its examples, which changes there
    are, and of what `shapes` an example's gradient is; None where none can be appended.
    """

    nothing: Change  # the change that is none
    glanced = 1  # changes that are tried at steps which are not examined
    ghost = False  # gradients come clipped, so that no change passes through the clipping

    def __init__(self, run: WatchedRun, number: int) -> None:
        self.run, self.number = run, number
        self.steps = 0  # taken so far
        self.noise: float | None = None  # multiplier of the step, where its call says it
        self.bound = 1.0  # of clipping, as the code says
        self.unit = 1.0  # what a clipped gradient of length one is in what is released
        self.length: float | None = None  # of a clipped gradient in what is released, where known
        self.rows = 0  # examples of the step that can be left out
        self.shapes: list[tuple[int, ...]] | None = None
        self._noise: list[tuple[int, Vector]] = []  # of steps that were examined
        # Whether the canary is in the step, the direction that it shows in, and where zero is.
        self._trial: tuple[bool, Release, float] | None = None

    def released(self, change: Change, seed: int | None) -> Release:
        """What it would release after a change, flat; `seed` sets generators, None leaves them."""
        raise NotImplementedError

    def appended(self, row: list[torch.Tensor]) -> Change:
        """One example more, with this gradient."""

    def without(self, index: int) -> Change:
        """One example less."""

    def names(self, count: int) -> list[str]:  # of tensors of a release
        return [f"array {index}" for index in range(count)]

    def far(self) -> Change:
        """A gradient a thousand times too long, in a direction of its own."""
        return self.appended([FAR * self.bound * w for w in self.direction()])

    def direction(self) -> list[torch.Tensor]:
        """Of changes: random, and the same at each step."""
        return random_direction(self.shapes or (), self.run.request.derived("look"))

    def changes(self) -> Iterator[tuple[str, Change]]:
        """Changes of one example each, with what they are in words."""
        if self.shapes is not None:
            yield "a gradient a thousand times too long", self.far()
        for index in spread_indices(self.rows):
            yield f"record {index} of the batch left out", self.without(index)
        if self.shapes is None:
            return
        v, names = self.direction(), self.names(len(self.shapes))
        order = sorted(range(len(v)), key=lambda index: v[index].numel())
        for index in dict.fromkeys([*order[:2], *order[-2:]]):  # smallest and largest tensors
            length = max(float(v[index].norm()), 1e-30)
            row = [FAR * self.bound * w * (k == index) / length for k, w in enumerate(v)]
            what = f"a gradient of {names[index]} alone, a thousand times too long"
            yield what, self.appended(row)
        near = self.appended([NEAR * self.bound * w for w in v])
        yield "a gradient just within the clipping bound", near

    def look(self) -> None:
        """Looks into the next step: by all draws and changes, or by a few while there is time."""
        whole = self.steps in LOOKED_AT
        if not (self.run.request.looks and (whole or self.run.has_time)):
            return
        with self.run.replay():
            actual = self.released(self.nothing, None)
            # Bit for bit, but for signs of zero; NaN equals NaN.
            replays = not whole or all(
                np.array_equal(a, b, equal_nan=True)
                for a, b in zip(actual, self.released(self.nothing, None), strict=True)
            )
            entry = self._try_changes(actual, whole) if replays else {}
        sizes = [len(part) for part in actual]
        self.run.put(
            "look", step=self.steps, optimizer=self.number, noise=self.noise, sizes=sizes,
            ghost=self.ghost, names=self.names(len(sizes)), norms=squared_lengths(actual),
            bound=self.length, replays=replays, **entry,
        )  # fmt: skip

    def _try_changes(self, actual: Release, whole: bool) -> dict[str, Any]:
        """What other draws of the step's noise and changes of its examples show."""
        entry: dict[str, Any] = {}
        seed = self.run.request.derived("draws", self.number, self.steps) // 2
        if whole:
            draws, squares, mean, still = self._draw_noise(actual, seed)
            if sum(squares) > 0:
                # The step's own noise: its release less a mean of many.
                noise = [-part for part in mean]
                entry["pairs"] = self._correlations(noise, squares, draws)
                entry["shape"] = _distance_from_normal(noise, squares, draws)
        else:
            other = difference(self.released(self.nothing, seed), actual)
            # Half of a difference's squares: as of two draws around their mean.
            draws, squares = 2, [square / 2 for square in squared_lengths(other)]
            still = [np.zeros(len(part), dtype=np.bool_) for part in actual]
        shifts, bare = [], set()
        for what, change in itertools.islice(self.changes(), None if whole else self.glanced):
            moved = difference(self.released(change, None), actual)
            shifts.append({"what": what, "squares": squared_lengths(moved)})
            bare |= {i for i, part in enumerate(moved) if (still[i] & (part != 0)).any()}
        if whole and self.shapes is not None and not self.ghost:
            empty = self.appended([torch.zeros(shape) for shape in self.shapes])
            moved = difference(self.released(empty, None), actual)
            entry["empty"] = squared_lengths(moved)
        return entry | {"draws": draws, "squares": squares, "shifts": shifts, "bare": sorted(bare)}

    def begin_trial(self, rate: float) -> Change:
        """Decides whether the step has a canary, sampled at `rate`; the change that puts it in."""
        request, at = self.run.request, (self.number, self.steps)
        if not request.canary or (self.shapes is None and not self.rows):
            return self.nothing
        if request.canary == "steps":
            member = request.coin(0.5, "bit", *at)
        else:
            member = request.member and request.coin(rate, "sampled", *at)
        if self.shapes is None:
            return self._leave_out(member)
        sign = 1.0 if request.coin(0.5, "sign", *at) else -1.0
        v = [sign * w for w in random_direction(self.shapes, request.derived("canary", *at))]
        self._trial = member, [w / (self.bound * self.unit) for w in flat_vectors(v)], 0.0
        far = self.bound if self.ghost else FAR * self.bound
        return self.appended([far * w for w in v]) if member else self.nothing

    def _leave_out(self, member: bool) -> Change:
        """A trial by the last record; who knows the parameters knows what it adds."""
        without = self.without(self.rows - 1)
        seed = self.run.request.derived("draw", self.number, self.steps)
        with self.run.replay():
            others = [self.released(without, seed + k) for k in range(_MEAN_DRAWS)]
            moved = difference(self.released(self.nothing, seed), others[0])
        size = sum(squared_lengths(moved)) or 1.0
        middle = [np.mean(parts, axis=0) for parts in zip(*others, strict=True)]
        direction = [part / size for part in moved]
        self._trial = member, direction, along(middle, direction)
        return self.nothing if member else without

    def end_step(self, release: Release, noise: float | None, rate: float | None) -> None:
        """Counts the step and records its trial: scores have mean 1 with the canary, else 0."""
        if self._trial is not None:
            (member, direction, zero), self._trial = self._trial, None
            score = along(release, direction) - zero
            self.run.put(
                "trial", step=self.steps, member=member, score=score, noise=noise, rate=rate
            )
        self.steps += 1
        self.run.count_release()

    def _draw_noise(
        self, actual: Release, seed: int
    ) -> tuple[int, list[float], Release, list[npt.NDArray[np.bool_]]]:
        """Draws the step's noise again and again; of how many draws, and what they show.

        That is of their differences to `actual`: squares around their mean, by tensor; that mean;
        and which numbers none moved.
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
            moved = difference(self.released(self.nothing, seed + draws), actual)
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

        `squares` brings all tensors to one scale; those without noise, or of one number, say
        nothing. The noise is kept for later steps. Returned is, of each kind ("steps", "tensors",
        "neighbours"), the pair that chance explains least, and how many `pairs` there were.
        """
        parts = []
        for part, square in zip(noise, squares, strict=True):
            deviation = float(np.sqrt(square / ((draws - 1) * len(part))))
            some = deviation > 0 and len(part) > 1
            parts.append(part[:_COMPARED] / deviation if some else np.zeros(0))
        whole = np.concatenate(parts)
        pairs = [
            ("steps", [before, self.steps], old, whole)
            for before, old in self._noise
            if len(old) == len(whole) >= 16
        ]
        for (i, first), (j, second) in itertools.combinations(enumerate(parts), 2):
            n = min(len(first), len(second))
            pairs += [("tensors", [i, j], first[:n], second[:n])] * (n >= 16)
        for i, part in enumerate(parts):
            pairs += [("neighbours", [i, i], part[:-1], part[1:])] * (len(part) >= 32)
        self._noise.append((self.steps, whole))
        worst = []
        for kind in ("steps", "tensors", "neighbours"):
            group = [(of, len(a), _correlation(a, b)) for what, of, a, b in pairs if what == kind]
            if group:
                of, n, value = max(group, key=lambda pair: abs(pair[2]) * pair[1] ** 0.5)
                pair = {"what": kind, "of": of, "n": n, "correlation": value}
                worst.append(pair | {"pairs": len(group)})
        return worst


def _correlation(first: Vector, second: Vector) -> float:
    norm = float(np.sqrt(np.dot(first, first) * np.dot(second, second)))
    return float(np.dot(first, second)) / norm if norm > 0 else 0.0


def _distance_from_normal(noise: Release, squares: list[float], draws: int) -> dict[str, Any]:
    """The Kolmogorov distance of `n` numbers of standardised noise from the normal law."""
    parts = []
    for part, square in zip(noise, squares, strict=True):
        if square > 0:
            deviation = np.sqrt(square / ((draws - 1) * len(part)) * (1 + 1 / draws))
            parts.append(part[:_COMPARED] / deviation)
    values = np.sort(np.concatenate(parts))
    below = torch.special.ndtr(torch.from_numpy(values)).numpy()
    n = len(values)
    grid = np.arange(n + 1) / n
    distance = max(float(np.max(grid[1:] - below)), float(np.max(below - grid[:-1])))
    return {"distance": distance, "n": n}
