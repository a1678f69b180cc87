"""One run of a script: request, draws, steps, and a record that a run which is killed leaves."""

import collections
import contextlib
import dataclasses
import functools
import importlib
import json
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import imports, seeds
from ...opacus import Marks

_LOOKING = 0.5  # of the time that a run has, in which every step is looked into
_MOST_INDICES = 4_000_000  # that are kept: later draws are not looked at

Indices = npt.NDArray[np.int64]
Entries = list[dict[str, Any]]
ReleaseKey = tuple[int, int]  # number of an optimizer or call site, and its step


class EnoughSeen(BaseException):
    """Ends a run that has shown what it was started for: passes the script's `except Exception`."""


@dataclasses.dataclass(frozen=True)
class RunRequest:
    """What a run does beside training.

    It ends after `most_steps`, and at the first step after so many `seconds`. `canary` "steps" puts
    one into every other step, by coins; "run" into all steps or none, by `member`; "" into none.
    """

    seed: int  # of all coins and canaries
    looks: bool = False  # into steps
    canary: str = ""
    member: bool = False
    reseeds: bool = False  # mixes `seed` into constants that the script seeds generators with
    most_steps: int | None = None
    seconds: float | None = None
    one_more: bool = False  # a record, in the data set
    held: str = ""  # releases are, as `held_runs` says: "alone", "exchanged", "noised", "shaken"
    record: int | None = None  # that such runs are about
    # ε that engines told an earlier run, by a digest of what they were asked.
    answers: dict[str, float] = dataclasses.field(default_factory=dict)

    def derived(self, *label: Any) -> int:
        return int(seeds.derive("script", self.seed, *label)) % 2**63

    def coin(self, chance: float, *label: Any) -> bool:
        """True with this chance, the same each time for a label."""
        return bool(np.random.default_rng(self.derived("coin", *label)).random() < chance)


def read_entries(file: Path) -> Entries:
    """All entries of a record; its last line may have been cut off."""
    entries = []
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries


def entries_of(record: Entries, kind: str) -> Entries:
    """Entries of one kind, in their order."""
    return [entry for entry in record if entry["kind"] == kind]


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Puts what is decorated in place of a function; it gets that before all arguments."""

    def put(wrapper: Callable[..., Any]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))

    return put


def import_if_there(name: str) -> Any:
    """Imports a module; returns None if its library, or this version of it, has none."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


def calling_line() -> str:
    """File and line of the user's own code that is being run; "" where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame is not None else ""


@functools.cache
def is_users(file: str) -> bool:
    """Whether code of this file is the user's."""
    return imports.is_users(file)


@dataclasses.dataclass(eq=False)
class Iteration:
    """One walk through a loader of `data`, by its sampler."""

    data: Any
    sampler: Any
    splits: bool  # a draw is handed out in several parts
    drawn: collections.deque[Indices] = dataclasses.field(default_factory=collections.deque)
    given: list[Indices] = dataclasses.field(default_factory=list)  # to the script, since its step


class LoaderWatch:
    """Which records a script's loaders draw, and which of these draws a step was taken with."""

    def __init__(self) -> None:
        self.current: Iteration | None = None
        self.private: list[Any] = []  # loaders that training uses, where that is known
        # Data set, draw and release of each draw that a release was made of, in their order.
        self.taken: list[tuple[Any, Indices, ReleaseKey]] = []
        self.skipped: list[int] = []  # sizes of draws that were handed out and led to no step
        self._private_draws = False
        self._kept = 0
        self._iterations: weakref.WeakKeyDictionary[Any, Iteration] = weakref.WeakKeyDictionary()

    def install(self) -> None:
        # Slow, and not needed to read a record.
        from torch.utils.data.dataloader import _BaseDataLoaderIter

        @around(_BaseDataLoaderIter, "_reset")
        def reset(original: Any, iterator: Any, *args: Any, **kwargs: Any) -> None:
            self._iterations.pop(iterator, None)  # workers that stay walk through it once more
            original(iterator, *args, **kwargs)

        @around(_BaseDataLoaderIter, "_next_index")
        def draw(original: Any, iterator: Any) -> Any:
            batch, sampler = original(iterator), iterator._index_sampler
            splits = type(sampler).__name__ == "BatchSplittingSampler"  # of Opacus
            iteration = Iteration(iterator._dataset, sampler, splits)
            self._iterations.setdefault(iterator, iteration).drawn.append(_as_indices(batch))
            return batch

        @around(_BaseDataLoaderIter, "__next__")
        def advance(original: Any, iterator: Any) -> Any:
            batch = original(iterator)
            iteration = self._iterations.get(iterator)
            if iteration is not None and iteration.drawn and self._trains(iteration.sampler):
                self.current = iteration
                iteration.given.append(iteration.drawn.popleft())
            return batch

    def _trains(self, sampler: Any) -> bool:
        # Other loaders walk through the same data to evaluate; or to train, where the private one
        # rests: Lightning draws from a loader of its own.
        samplers = {id(sampler), id(getattr(sampler, "sampler", sampler))}
        private = any(id(p._index_sampler) in samplers for p in self.private)
        self._private_draws |= private
        return private or not self._private_draws

    def at_step(self, accumulated: int, release: ReleaseKey) -> int:
        """Notes that a release is made of the last `accumulated` draws, or all parts of one.

        Returns how many records these are; 0 where that is not seen, or parts are added up.
        """
        now = self.current
        if now is None:
            return 0
        given, now.given = now.given, []
        if now.splits and given:
            given = [np.concatenate(given)]
        used = given[-accumulated:]
        self.skipped += [len(draw) for draw in given[: len(given) - len(used)]]
        for draw in used:
            if self._kept + len(draw) <= _MOST_INDICES:
                self._kept += len(draw)
                self.taken.append((now.data, draw, release))
        return 0 if now.splits else sum(map(len, used))


def _as_indices(batch: Any) -> Indices:
    try:
        return np.atleast_1d(np.asarray(batch, dtype=np.int64))
    except (TypeError, ValueError):  # a sampler may draw anything
        return np.zeros(0, dtype=np.int64)


def draw_counts(taken: list[Indices], records: int, rate: float) -> dict[str, Any]:
    """Counts of draws from so many records, which `single_run` judges.

    Draws are grouped into `windows` of 1 / `rate` draws (`window`), in which each record comes once
    on average; `shared` are pairs of draws of one window that share a record. The most frequent
    record is in `most` draws. `twice` are records that were drawn into a batch they were in.
    """
    window = max(2, round(1 / rate)) if 0 < rate < 1 else max(2, len(taken))
    windows = len(taken) // window
    shared = 0
    for first in range(0, windows * window, window):
        counts = np.bincount(np.concatenate(taken[first : first + window]), minlength=records)
        shared += int((counts * (counts - 1) // 2).sum())
    counts = np.bincount(np.concatenate(taken or [_as_indices([])]), minlength=records)
    return {
        "records": records, "sizes": [len(draw) for draw in taken], "window": window,
        "windows": windows, "shared": shared, "most": int(counts.max(initial=0)),
        "twice": sum(len(draw) - len(np.unique(draw)) for draw in taken),
    }  # fmt: skip


@dataclasses.dataclass
class WatchedRun:
    """The state that observers of one run share, and its record, a file of JSON lines."""

    request: RunRequest
    record: Path
    phase: str = "import"  # then "main", then "after"
    replaying: bool = False  # a step is tried on copies: nothing of it counts
    loaders: LoaderWatch = dataclasses.field(default_factory=LoaderWatch)
    streams: dict[str, Any] = dataclasses.field(default_factory=dict)  # `Stream`, by call site
    rate: float = 1.0  # at which it will sample, as far as that is told
    engine_accountants: list[Any] = dataclasses.field(default_factory=list)
    accountants: list[Any] = dataclasses.field(default_factory=list)
    modules: list[Any] = dataclasses.field(default_factory=list)  # given to `make_private`
    optimizers: list[Any] = dataclasses.field(default_factory=list)  # `OptimizerWatch`
    data: list[Any] = dataclasses.field(default_factory=list)
    batch_first: bool = True
    accounted: list[tuple[int, int, float, float]] = dataclasses.field(default_factory=list)
    # δ, ε, steps so far, and the number of the engine that was asked.
    reported: list[tuple[float, float, int, int]] = dataclasses.field(default_factory=list)
    answers: dict[str, float] = dataclasses.field(default_factory=dict)  # as in a request
    # Step, rows and draws, where a step had more rows than records were drawn, or fewer.
    uneven: list[tuple[int, int, int]] = dataclasses.field(default_factory=list)
    outside: dict[tuple[str, ...], int] = dataclasses.field(default_factory=dict)
    steps: int = 0  # releases so far
    cut: bool = False  # ended by its time
    seeded: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    noise_seeds: list[int] = dataclasses.field(default_factory=list)  # of optimizers' generators
    made: float = dataclasses.field(default_factory=time.monotonic)  # when the process was there
    began: float = dataclasses.field(default_factory=time.monotonic)  # when training began
    spent: float = 0.0  # seconds that watching took
    moved: int = 0  # times that parameters had changed between steps
    stepped: set[int] = dataclasses.field(default_factory=set)  # parameters, outside, once private
    # Parameters, by identity, that stepped before any was private; and the data set then read.
    warmed: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    # Parameters, by identity, that no private optimizer stepped; and of which of them private ones
    # were copies. What networks of a parameter were given: their class, digests of first rows.
    outside_params: dict[int, Any] = dataclasses.field(default_factory=dict)
    copies: dict[int, int] = dataclasses.field(default_factory=dict)
    fed: dict[int, tuple[Any, str, set[bytes]]] = dataclasses.field(default_factory=dict)
    # By the first numbers of a parameter: whose it is, and the step that it had them after.
    versions: dict[bytes, tuple[Any, int]] = dataclasses.field(default_factory=dict)
    saved: dict[str, list[str]] = dataclasses.field(default_factory=dict)  # as `left` of a result
    marks: Marks = dataclasses.field(default_factory=Marks)
    # Digests of what networks held when training became private.
    before: set[bytes] = dataclasses.field(default_factory=set)
    # Of runs that hold: names, and texts, of what is returned, saved or decided by; the record that
    # is exchanged; whether random numbers are others since a step had it.
    published: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    chosen: int | None = None
    # Of a loop without Opacus: arrays with a record in each row, and generators.
    tables: list[Any] = dataclasses.field(default_factory=list)
    drawing: list[Any] = dataclasses.field(default_factory=list)
    shaken: bool = False
    files: int = 0  # that were saved
    # Processes that are not watched: what they are, and the line that started them.
    processes: collections.Counter[tuple[str, str]] = dataclasses.field(
        default_factory=collections.Counter
    )
    lines: dict[str, str] = dataclasses.field(default_factory=dict)  # of the script, by `where`
    _counts: collections.Counter[tuple[int, float, float]] = dataclasses.field(
        default_factory=collections.Counter
    )
    _release: ReleaseKey | None = None

    def put(self, kind: str, **fields: Any) -> None:
        """Adds an entry, with the script's line: plain JSON, numbers, arrays of numpy and torch."""
        entry = {"kind": kind, "line": calling_line()} | fields
        line = json.dumps(entry, default=lambda value: value.tolist())
        with self.record.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def note_line(self, *places: str) -> None:
        """Notes the script's line as what findings at these places are about, once."""
        for place in places:
            self.lines.setdefault(place, calling_line())

    @property
    def looks(self) -> bool:
        """Whether what happens now is looked into."""
        return self.request.looks and self.phase == "main" and not self.replaying

    @contextlib.contextmanager
    def replay(self) -> Iterator[None]:
        """Nothing that is done inside counts as the script's: it is tried on copies."""
        self.replaying = True
        try:
            yield
        finally:
            self.replaying = False

    def settle(self, release: ReleaseKey | None) -> None:
        """Adds what accountants gained since the last release to `accounted`, as that release's.

        A script may account after a step: `release`, about to be made, is settled by the next call.
        """
        counts: collections.Counter[tuple[int, float, float]] = collections.Counter()
        for index, accountant in enumerate(self.accountants):
            for noise, rate, steps in accountant.history:
                counts[index, float(noise), float(rate)] += int(steps)
        if self._release is not None and (gained := counts - self._counts):
            _, noise, rate = min(gained)
            self.accounted.append((*self._release, noise, rate))
        self._counts, self._release = counts, release

    @property
    def has_time(self) -> bool:
        """Whether there is time to glance at a step: a third of all, and the first part."""
        now = time.monotonic()
        looking = _LOOKING * (self.request.seconds or 0.0)
        return self.spent < 2 + (now - self.began) / 3 or now - self.made < looking

    def count_release(self) -> None:
        """Counts a release; raises EnoughSeen where the request asks for no more."""
        self.steps += 1
        request = self.request
        if request.most_steps is not None and self.steps >= request.most_steps:
            raise EnoughSeen
        if request.seconds is not None and time.monotonic() - self.made > request.seconds:
            self.put("cut", seconds=request.seconds, steps=self.steps)
            self.cut = True
            raise EnoughSeen

    def claiming_accountants(self) -> list[Any]:
        """Those whose claim is the script's: of its engines, or its own where it has no engine."""
        if self.modules:
            return self.engine_accountants  # others were asked for a noise multiplier or a plan
        return [accountant for accountant in self.accountants if accountant.history]

    def is_public(self, name: str, kind: str = "") -> bool:
        """Whether what has this name, or is of a network of this class, is marked as public."""
        return any(
            entry == kind or f"{name}.".startswith(f"{entry}.") for entry in self.marks.public
        )

    def history(self) -> list[list[float]]:
        """(σ, q, steps) of the claiming accountants, as they have it now."""
        return [
            [float(value) for value in event]
            for accountant in self.claiming_accountants()
            for event in accountant.history
        ]

    def parameter_names(self, params: list[Any]) -> list[str]:
        names = {
            id(p): name.removeprefix("_module.")
            for module in self.modules
            for name, p in module.named_parameters()
        }
        return [names.get(id(p), f"parameter {index}") for index, p in enumerate(params)]

    def count_outside_step(self, optimizer: Any) -> None:
        """Counts a step that no engine wraps, or whose optimizer was reached past its wrapper."""
        params = [p for group in optimizer.param_groups for p in group["params"]]
        params = [p for p in params if p.grad is not None]
        private = {id(p) for module in self.modules for p in module.parameters()}
        private |= {id(p) for watched in self.optimizers for p in watched.optimizer.params}
        inside = [p for p in params if id(p) in private]
        when = "import" if self.phase == "import" else "after" if self.modules else "before"
        names = self.parameter_names(inside)[:4]
        key = (when, "private" if inside else "other", type(optimizer).__name__, *names)
        self.outside[key] = self.outside.get(key, 0) + 1
        self.note_line(type(optimizer).__name__)
        self.outside_params |= {id(p): p for p in params}
        if when == "after":
            self.stepped |= {id(p) for p in params}
        elif self.loaders.current is not None:
            self.warmed |= {id(p): (p, self.loaders.current.data) for p in params}
