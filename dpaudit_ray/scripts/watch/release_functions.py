"""Steps of loops that Opacus does not know: functions that give releases, in any framework."""

from __future__ import annotations

import contextlib
import contextvars
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ... import accounting
from ...accounting import Training
from . import generators, step_probe, vectors
from .opacus_optimizers import LOOKED_AT
from .run_state import Run
from .vectors import Release

_DRAWS = 6  # whose mean stands for a release without its noise
_current: contextvars.ContextVar[Streams | None] = contextvars.ContextVar("run", default=None)

# What a stream is asked for: a release after a change of its examples, by generators as they are
# (None) or seeded. A change is "nothing", "empty", ("without", i), ("wild", i) or
# ("appended", arrays).
Change = Any
Arrays = list[Any]


class Streams:
    """The call sites of one run that give releases, by their name."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.by_name: dict[str, Stream] = {}

    def at(self, name: str, promise: tuple[float, float, float]) -> Stream:
        """The stream of a call site, whose promise is (σ, C, q)."""
        stream = self.by_name.get(name)
        if stream is None:
            stream = self.by_name[name] = Stream(self.run, name, len(self.by_name))
            self.run.recorder.put("stream", name=name, promise=promise)
        stream.promise = promise
        return stream


@contextlib.contextmanager
def watching(run: Run) -> Iterator[None]:
    """Functions that are called inside belong to this run."""
    token = _current.set(Streams(run))
    run.streams = _current.get()
    try:
        yield
    finally:
        _current.reset(token)


def current() -> Streams | None:
    """Those of the run that this is inside of, and not in the middle of trying a step."""
    found = _current.get()
    if found is None or found.run.replaying or found.run.phase != "main":
        return None
    return found


def steps(run: Run) -> list[int]:
    """Releases of each stream."""
    return [stream.steps for stream in run.streams.by_name.values()]


def claims(run: Run, deltas: list[float]) -> list[dict[str, Any]]:
    """What an accountant says of the steps as their calls describe them."""
    found = []
    for stream in run.streams.by_name.values():
        history = [[noise, rate, n] for (noise, rate), n in stream.history.items()]
        epsilons = [_epsilon(history, delta) for delta in deltas]
        entry = {"name": "pld", "history": history, "epsilons": epsilons, "deltas": deltas}
        found.append(entry)
    return found


def _epsilon(history: list[list[float]], delta: float) -> float | None:
    events = tuple(Training(noise, int(n), rate) for noise, rate, n in history)
    with contextlib.suppress(ValueError, ArithmeticError):
        return float(accounting.find("pld").composed(events, delta)[-1])
    return None


class Stream:
    """One call site."""

    def __init__(self, run: Run, name: str, number: int) -> None:
        self._run, self.name, self._number = run, name, number
        self.promise = (1.0, 1.0, 1.0)
        self.steps = 0
        self.history: dict[tuple[float, float], int] = {}
        self._noise = step_probe.Noise()
        self.records: int | None = None
        self.sizes: list[int] = []

    def step(
        self,
        released: Callable[[Change, int | None], Arrays],
        rows: int | None,
        shapes: Sequence[tuple[int, ...]] | None,
        of: int | None,
        *,
        redraws: bool = True,
    ) -> Arrays:
        """Looks into the step, decides about its canary, takes it.

        Args:
            released: see above.
            rows: examples in it; None where only their sum is known.
            shapes: of the tensors of an example's gradient, where one may be appended; else a
                canary is the last record, left out or not.
            of: how many records they were drawn from.
            redraws: whether `released` draws its noise; else it was given, the same each time.
        """
        self.records = of
        if rows is not None:
            self.sizes.append(rows)
        run, asked = self._run, self._run.asked
        run.settle((self._number, self.steps))
        began = time.monotonic()
        if asked.looks and self.steps in LOOKED_AT and not redraws:
            run.recorder.put("given", step=self.steps)
        elif asked.looks and self.steps in LOOKED_AT:
            run.replaying = True
            try:
                self._look(released, rows or 0, shapes)
            finally:
                run.replaying = False
        score, change, member = self._canary(released, rows or 0, shapes)
        run.spent += time.monotonic() - began
        found = released(change, None)
        noise, _, rate = self.promise
        self.history[noise, rate] = self.history.get((noise, rate), 0) + 1
        if score is not None:
            run.recorder.put(
                "trial", optimizer=self._number, step=self.steps, member=member,
                score=score(_flat(found)), noise=noise, rate=rate,
            )  # fmt: skip
        self.steps += 1
        run.after_step()
        return found

    def _look(
        self, released: Callable[[Change, int | None], Arrays], rows: int, shapes: Any
    ) -> None:
        def tried(change: Change, seed: int | None) -> Release:
            with generators.kept():
                if seed is not None:
                    generators.seed(seed)
                return _flat(released(change, seed))

        entry = step_probe.examined(
            self.steps, tried, self._changes(rows, shapes), "nothing",
            "empty" if shapes is not None else None, self._noise,
            self._run.asked.derived("draws", self._number, self.steps) // 2,
        )  # fmt: skip
        names = [f"array {index}" for index in range(len(entry["sizes"]))]
        self._run.recorder.put(
            "look", optimizer=self._number, names=names, rows=rows, ghost=False, **entry
        )

    def _changes(self, rows: int, shapes: Any) -> Iterator[tuple[str, Change]]:
        for index in dict.fromkeys(int(i * rows / 6) for i in range(min(6, rows))):
            yield f"record {index} of the batch left out", ("without", index)
        if shapes is not None:
            v = vectors.direction([torch.Size(s) for s in shapes], self._run.asked.derived("look"))
            far = [(1e3 * self.promise[1] * one).numpy() for one in v]
            yield "a gradient a thousand times too long", ("appended", far)
            near = [(0.999 * self.promise[1] * one).numpy() for one in v]
            yield "a gradient just within the clipping bound", ("appended", near)
        elif rows:
            yield "a record with values a thousand times larger", ("wild", rows - 1)

    def _canary(
        self, released: Callable[[Change, int | None], Arrays], rows: int, shapes: Any
    ) -> tuple[Callable[[Release], float] | None, Change, bool]:
        asked, t = self._run.asked, self.steps
        if not asked.canary:
            return None, "nothing", False
        member = asked.member
        if asked.canary == "steps":
            member = asked.coin(0.5, "bit", self._number, t)
        elif member:
            member = asked.coin(self.promise[2], "sampled", self._number, t)
        if shapes is not None:
            return self._appended(shapes, member)
        if rows < 1:
            return None, "nothing", False
        return self._left_out(released, rows, member)

    def _appended(
        self, shapes: Any, member: bool
    ) -> tuple[Callable[[Release], float], Change, bool]:
        asked, bound = self._run.asked, self.promise[1]
        sign = 1.0 if asked.coin(0.5, "sign", self._number, self.steps) else -1.0
        seed = asked.derived("canary", self._number, self.steps)
        v = vectors.direction([torch.Size(s) for s in shapes], seed)
        own = [one.double().numpy().reshape(-1) for one in v]

        def score(release: Release) -> float:
            return sign * sum(float(a @ b) for a, b in zip(release, own, strict=True)) / bound

        row = [(sign * 1e3 * bound * one).numpy() for one in v]
        return score, ("appended", row) if member else "nothing", member

    def _left_out(
        self, released: Callable[[Change, int | None], Arrays], rows: int, member: bool
    ) -> tuple[Callable[[Release], float], Change, bool]:
        """The last record; what it adds is known to whoever knows the parameters."""
        out = ("without", rows - 1)
        self._run.replaying = True
        try:
            with generators.kept():
                base = self._run.asked.derived("draw", self._number, self.steps)
                without = [_flat(released(out, base + k)) for k in range(_DRAWS)]
                whole = _flat(released("nothing", base))
        finally:
            self._run.replaying = False
        moved = vectors.minus(whole, without[0])
        middle = [np.mean(parts, axis=0) for parts in zip(*without, strict=True)]
        size = sum(vectors.squares(moved)) or 1.0

        def score(release: Release) -> float:
            away = vectors.minus(release, middle)
            return sum(float(a @ b) for a, b in zip(away, moved, strict=True)) / size

        return score, "nothing" if member else out, member


def changed(examples: Sequence[Any], change: Change) -> list[Any]:
    """Arrays with a leading dimension of examples, after a change; of any framework's kind."""
    if change == "nothing":
        return list(examples)
    if change == "empty":
        return [_joined(one, np.zeros((1, *one.shape[1:]), np.float32)) for one in examples]
    kind, *rest = change
    if kind == "without":
        row = rest[0]
        return [_joined(one[:row], one[row + 1 :]) for one in examples]
    if kind == "wild":
        row = rest[0]
        return [_joined(one, one[row : row + 1] * (1000 if _real(one) else 1)) for one in examples]
    return [
        _joined(one, new.reshape(1, *one.shape[1:]))
        for one, new in zip(examples, rest[0], strict=True)
    ]


def _real(array: Any) -> bool:
    """Whether it holds real numbers; classes and tokens are none."""
    return "float" in str(array.dtype)


def _joined(first: Any, second: Any) -> Any:
    """Two arrays after each other, of the kind of the first."""
    if isinstance(first, torch.Tensor):
        return torch.cat([first, torch.as_tensor(second).to(first)])
    kind = type(first).__module__.partition(".")[0]
    if kind in ("jax", "jaxlib"):
        import jax.numpy as jnp

        return jnp.concatenate([first, jnp.asarray(second, first.dtype)])
    if kind == "tensorflow":
        import tensorflow as tf

        return tf.concat([first, tf.cast(second, first.dtype)], axis=0)
    return np.concatenate([first, np.asarray(second, np.asarray(first).dtype)])


def _flat(arrays: Arrays) -> Release:
    found = []
    for one in arrays:
        if isinstance(one, torch.Tensor):
            found += vectors.flat([one])
        else:
            found.append(np.asarray(one, dtype=np.float64).reshape(-1))
    return found


__all__ = ["Stream", "Streams", "changed", "claims", "current", "steps", "watching"]
