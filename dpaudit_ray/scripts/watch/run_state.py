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

_INSPECTED_SHARE = 0.5  # first share of the run's time, in which every step is inspected
_FREE_SECONDS = 2.0  # seconds of inspections that are always allowed
_MOST_EXTENDED = 3.0  # times the requested seconds that a run may take on a busy machine


class EnoughSeen(BaseException):
    """Ends a run that has shown what it was started for; `except Exception` does not catch it."""


class Clock:
    """Measures the time of a run and of its inspections, without waits for a busy processor.

    Attributes:
        inspecting: seconds that inspections took.
    """

    def __init__(self, seconds: float | None) -> None:
        """Begins now.

        Args:
            seconds: time that the run may take; None for any.
        """
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
        """Whether another step may be inspected.

        In the first part of the run, every step may be. Later a step may be inspected as long as
        inspections take no more than about a third of the time.
        """
        is_early = self.elapsed < _INSPECTED_SHARE * (self._limit or 0.0)
        return is_early or self.inspecting < _FREE_SECONDS + self.elapsed / 3

    @property
    def is_over(self) -> bool:
        """Whether the run's time is over.

        Waits for a processor do not count, but with them the run takes at most _MOST_EXTENDED times
        its time.
        """
        seconds = max(self.elapsed, (time.monotonic() - self._start) / _MOST_EXTENDED)
        return self._limit is not None and seconds > self._limit

    @contextlib.contextmanager
    def inspection(self) -> Iterator[None]:
        """Counts the time that is spent inside as inspection."""
        before = self.elapsed
        yield
        self.inspecting += self.elapsed - before


@dataclass
class PrivateNetworks:
    """Networks and data that engines were given.

    Attributes:
        modules: networks, as the script has them.
        data: data sets of the loaders.
        accountants: accountants of the engines, in the same order.
        batch_first: records lie along the first dimension of a batch.
        rate: rate at which the last network's loader samples records.
        records_each: most records that one mapped forward pass had for each gradient.
        has_norms: ghost clipping computed the lengths of gradients.
        initial_statistics: names of parameters that began as statistics of the records.
        target: ε and δ for which the next network's noise was computed; None if it was not.
        delta: δ for which noise was computed last; None if never.
    """

    modules: list[Any] = field(default_factory=list)
    data: list[Any] = field(default_factory=list)
    accountants: list[Any] = field(default_factory=list)
    batch_first: bool = True
    rate: float = 1.0
    records_each: int = 1
    has_norms: bool = False
    initial_statistics: list[str] = field(default_factory=list)
    target: tuple[float | None, float | None] = (None, None)
    delta: float | None = None

    def parameters(self) -> dict[int, torch.Tensor]:
        """Returns the parameters of all networks, by their identities."""
        params = {}
        for module in self.modules:
            params.update({id(p): p for p in module.parameters()})
        return params

    def names(self, params: Iterable[torch.Tensor]) -> list[str]:
        """Returns the names of parameters in their networks; a number for other parameters."""
        names = {}
        for module in self.modules:
            for name, p in module.named_parameters():
                names[id(p)] = name.removeprefix("_module.")
        return [names.get(id(p), f"parameter {index}") for index, p in enumerate(params)]


@dataclass
class OtherUpdates:
    """Updates of parameters by anything except private steps.

    Attributes:
        steps: number of steps of each kind. The key describes the kind, with a count of 0.
        inputs_before_step: number of inputs that a parameter's network trained on before the last
            step of another optimizer, by the parameter's identity.
        stepped_early: data set that was read when a parameter was updated before training was
            private, by the parameter's identity.
        fed: inputs of networks, by the identity of each parameter and whether they train it: the
            parameter, the network's class, and keys of the inputs' first rows.
    """

    steps: collections.Counter[OutsideSteps] = field(default_factory=collections.Counter)
    inputs_before_step: dict[int, int] = field(default_factory=dict)
    stepped_early: dict[int, Any] = field(default_factory=dict)
    fed: dict[tuple[int, bool], tuple[Any, str, list[bytes]]] = field(default_factory=dict)


@dataclass
class Publications:
    """Values that are returned, saved or decided by.

    Attributes:
        marks: marks of the function that trains; they name public values.
        files: number of files that were saved.
        saved: remarks on saved values, as `publications.remarks` returns them.
        before: digests of tensors that networks had when training became private.
        versions: watch of an optimizer, and the number of its step that left a parameter as it is,
            by a digest of the parameter's first numbers.
        more: whether other values than numbers of networks are published.
        pinned: names and digests of the values that a pinned run publishes.
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
        """Returns whether a value of this name, or of a network of class `kind`, is public."""
        return any(
            entry == kind or f"{name}.".startswith(f"{entry}.") for entry in self.marks.public
        )


@dataclass
class PinnedState:
    """State of a run with pinned releases, and of the choice of its record.

    Attributes:
        chosen: index of the record that is exchanged; None before it is chosen.
        chosen_as: why that record was chosen, such as "the longest record".
        batches_to_read: number of batches whose records are still to be read.
        keys: keys of the records that were read, by index; equal records have equal keys.
        leaves_out: whether batches may lack a record.
        variations: change of a batch in words, and the position of the record that is left out or
            None, by the bytes of the batch's indices.
        tables: arrays with a record in each row, in a loop without Opacus.
        numbers: numbers of the first table's rows by their digests, if all rows differ.
        randomness_differs: whether random numbers differ from those of other runs, as they do in an
            "other_randomness" run after a step had the record.
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
        request: the tasks of the run.
        record: file of the run's entries.
        phase: "import", then "main", then "after"; "child" in a forked process.
        replaying: a step is being repeated on copies, and does not count.
        processes: counts of processes that are not watched, by their kind and the script's line.
        optimizers: watches of the optimizers, each an `OptimizerWatch`.
        streams: recorders of the call sites, each a `Stream`.
        seeded: generators that were seeded with constants.
        noise_seeds: first seeds of the optimizers' own generators.
        uneven: steps with another number of gradients than records were drawn.
        releases: number of releases so far.
        was_cut: the time budget ended the run.
        lines: the script's line for each place that a finding names.
        followed: a `Followed`, with the script's arrays until training is private; None if they
            are not followed.
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
        """Starts the clock."""
        self.clock = Clock(self.request.seconds)

    def put(self, entry: Entry) -> None:
        """Adds an entry to the record, with the script's line that is running now."""
        line = encode(replace(entry, line=entry.line or calling_line()))
        with self.record.open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def note_line(self, *names: str) -> None:
        """Notes the running line of the script for places with these names, if they have none."""
        for name in names:
            self.lines.setdefault(name, calling_line())

    @property
    def inspects(self) -> bool:
        """Whether current events are inspected."""
        return self.request.inspects and self.phase == "main" and not self.replaying

    @contextlib.contextmanager
    def replay(self) -> Iterator[None]:
        """Marks steps inside as repeated on copies, so that they do not count."""
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
