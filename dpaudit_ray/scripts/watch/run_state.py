"""Holds the state that observers of one run share, and writes its record."""

import collections
import contextlib
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ...opacus import Marks
from ..processor import waited
from ..protocol import Cut, Entry, OutsideSteps, RunRequest, UnevenStep, encode
from .accountants import Accountants
from .hooks import calling_line
from .loaders import LoaderWatch
from .shared_records import PrivateRecords

_INSPECTING = 0.5  # share of the run's time in which every step is inspected
_FREE_SECONDS = 2.0  # inspections may take at once
_LONGEST = 3.0  # times the seconds that a run has: it may take so many on a busy machine


class EnoughSeen(BaseException):
    """Ends a run that has shown what it was started for: no `except Exception` catches it."""


class Clock:
    """Measures what a run and its inspections take, without waits for a busy processor.

    Attributes:
        inspecting: seconds that inspections took.
    """

    def __init__(self, seconds: float | None) -> None:
        """Begins now; the run may take this time, None for any."""
        self.inspecting = 0.0
        self._limit = seconds
        self._start = time.monotonic()
        self._waited_before = waited()

    @property
    def waited(self) -> float:
        """Seconds that the process waited for a processor since the start."""
        return waited() - self._waited_before

    @property
    def elapsed(self) -> float:
        """Seconds since the start without waits."""
        return time.monotonic() - self._start - self.waited

    @property
    def has_time(self) -> bool:
        """Whether a step may be inspected: the first part of the run, and a third of all time."""
        is_early = self.elapsed < _INSPECTING * (self._limit or 0.0)
        return is_early or self.inspecting < _FREE_SECONDS + self.elapsed / 3

    @property
    def is_over(self) -> bool:
        """Whether the run had its seconds without waits, or _LONGEST times as many with waits."""
        seconds = max(self.elapsed, (time.monotonic() - self._start) / _LONGEST)
        return self._limit is not None and seconds > self._limit

    @contextlib.contextmanager
    def inspection(self) -> Iterator[None]:
        """Counts what is done inside as inspection."""
        before = self.elapsed
        yield
        self.inspecting += self.elapsed - before


@dataclass
class PrivateNetworks:
    """Networks and data that engines were given.

    Attributes:
        modules: networks, as the script has them.
        data: data sets of the loaders, and `accountants` those of their engines.
        batch_first: records lie along the first dimension of a batch.
        rate: rate at which the last network's records will be sampled.
        records_each: most records that one mapped forward pass had for each gradient.
        initial_statistics: names of parameters that began as statistics of the records.
        target: ε and δ for which the next network's noise is computed.
        delta: δ for which noise was computed last.
    """

    modules: list[Any] = field(default_factory=list)
    data: list[Any] = field(default_factory=list)
    accountants: list[Any] = field(default_factory=list)
    batch_first: bool = True
    rate: float = 1.0
    records_each: int = 1
    initial_statistics: list[str] = field(default_factory=list)
    target: tuple[float | None, float | None] = (None, None)
    delta: float | None = None

    def parameters(self) -> dict[int, torch.Tensor]:
        """Returns all their parameters by identity."""
        params: dict[int, torch.Tensor] = {}
        for module in self.modules:
            params.update({id(p): p for p in module.parameters()})
        return params

    def names(self, params: Iterable[torch.Tensor]) -> list[str]:
        """Returns the names of parameters in their networks."""
        names: dict[int, str] = {}
        for module in self.modules:
            for name, p in module.named_parameters():
                names[id(p)] = name.removeprefix("_module.")
        return [names.get(id(p), f"parameter {index}") for index, p in enumerate(params)]


@dataclass
class OtherUpdates:
    """Updates of parameters by anything but private steps.

    Attributes:
        steps: counts of steps, by their description without the count.
        params: parameters, by identity, that another optimizer stepped.
        stepped_early: parameters, by identity, that stepped before training was private, with the
            data set that was read then.
        fed: by identity of a parameter, and whether its network is in training, the parameter, the
            class of its network, and digests of the first rows of its inputs.
    """

    steps: dict[OutsideSteps, int] = field(default_factory=dict)
    params: dict[int, torch.Tensor] = field(default_factory=dict)
    stepped_early: dict[int, Any] = field(default_factory=dict)
    fed: dict[tuple[int, bool], tuple[Any, str, set[bytes]]] = field(default_factory=dict)


@dataclass
class Publications:
    """Values that are returned, saved or decided by.

    Attributes:
        marks: marks of the function that trains; they name what is public.
        files: number of files that were saved.
        saved: remarks on what was saved, as `publications.remarks` returns them.
        before: digests of what networks had when training became private.
        versions: by first numbers of a parameter, its optimizer and the step that left them.
        more: whether values are published that are no numbers of networks.
        pinned: of a pinned run, names and digests.
        records: private records, by the identities of their data sets and arrays.
    """

    marks: Marks = field(default_factory=Marks)
    files: int = 0
    saved: list[tuple[Any, str]] = field(default_factory=list)
    before: set[bytes] = field(default_factory=set)
    versions: dict[bytes, tuple[Any, int]] = field(default_factory=dict)
    more: bool = False
    pinned: list[tuple[str, str]] = field(default_factory=list)
    records: dict[tuple[int, ...], PrivateRecords] = field(default_factory=dict)

    def is_public(self, name: str, kind: str = "") -> bool:
        """Returns whether this name, or networks of this class, are marked as public."""
        return any(
            entry == kind or f"{name}.".startswith(f"{entry}.") for entry in self.marks.public
        )


@dataclass
class PinnedState:
    """State of a run with pinned releases.

    Attributes:
        chosen: index of the record that is exchanged.
        chosen_as: why this one, such as "the longest record".
        batches_to_read: number of batches whose records are still to be read.
        keys: of the records in them, what equal ones have in common.
        leaves_out: batches may have another size.
        variations: by the bytes of a draw, how it was changed, and a position that is left out.
        tables: of a loop without Opacus, arrays with a record in each row.
        numbers: numbers of its rows, by their digests, if these are all different.
        randomness_differs: random numbers are others since a step had the record.
    """

    chosen: int | None = None
    chosen_as: str = ""
    batches_to_read: int = 5
    keys: dict[int, Any] = field(default_factory=dict)
    leaves_out: bool = False
    variations: dict[bytes, tuple[str, int | None]] = field(default_factory=dict)
    tables: list[Any] = field(default_factory=list)
    numbers: dict[bytes, int] = field(default_factory=dict)
    randomness_differs: bool = False


@dataclass
class WatchedRun:
    """The state that observers of one run share.

    Attributes:
        record: file of the run's entries.
        phase: "import", then "main", then "after".
        replaying: a step is tried on copies, and nothing of it counts.
        processes: counts of processes that are not watched, by what they are and the line.
        optimizers: each an `OptimizerWatch`.
        streams: by call site, each a `Stream`.
        seeded: generators that were seeded with constants.
        noise_seeds: first seeds of the optimizers' own generators.
        uneven: steps with another number of gradients than records were drawn.
        releases: number of releases so far.
        was_cut: the time budget ended the run.
        lines: the script's line for each place that a finding names.
        followed: the script's arrays until training is private, a `Followed`; None if not needed.
    """

    request: RunRequest
    record: Path
    phase: str = "import"
    replaying: bool = False
    loaders: LoaderWatch = field(default_factory=LoaderWatch)
    accountants: Accountants = field(default_factory=Accountants)
    networks: PrivateNetworks = field(default_factory=PrivateNetworks)
    updates: OtherUpdates = field(default_factory=OtherUpdates)
    publications: Publications = field(default_factory=Publications)
    pinned: PinnedState = field(default_factory=PinnedState)
    processes: collections.Counter[tuple[str, str]] = field(default_factory=collections.Counter)
    optimizers: list[Any] = field(default_factory=list)
    streams: dict[str, Any] = field(default_factory=dict)
    seeded: set[str] = field(default_factory=set)
    noise_seeds: list[int] = field(default_factory=list)
    uneven: list[UnevenStep] = field(default_factory=list)
    releases: int = 0
    was_cut: bool = False
    lines: dict[str, str] = field(default_factory=dict)
    followed: Any = None

    def __post_init__(self) -> None:
        self.clock = Clock(self.request.seconds)

    def put(self, entry: Entry) -> None:
        """Adds an entry to the record, with the script's line that is running now."""
        line = encode(replace(entry, line=entry.line or calling_line()))
        with self.record.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def note_line(self, *names: str) -> None:
        """Notes the script's line as what findings with these names are about, once."""
        for name in names:
            self.lines.setdefault(name, calling_line())

    @property
    def inspects(self) -> bool:
        """Whether current events are inspected."""
        return self.request.inspects and self.phase == "main" and not self.replaying

    @contextlib.contextmanager
    def replay(self) -> Iterator[None]:
        """Marks what is done inside as tried on copies, so that it does not count."""
        self.replaying = True
        try:
            yield
        finally:
            self.replaying = False

    def count_release(self) -> None:
        """Counts a release; raises EnoughSeen if the request asks for no more."""
        self.releases += 1
        request = self.request
        if request.most_steps is not None and self.releases >= request.most_steps:
            raise EnoughSeen
        if request.seconds is not None and self.clock.is_over:
            self.put(Cut(steps=self.releases))
            self.was_cut = True
            raise EnoughSeen
