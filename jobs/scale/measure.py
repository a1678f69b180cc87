"""Costs of a sweep of empty trials: rates, memory, and the time around the packs."""

from __future__ import annotations

import dataclasses
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.orchestration.progress import Progress
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.sweep import spec

from . import empty

MIB = 2**20
AROUND = 0.03  # memory "at 10 %" is the median of the samples within 3 % of the packs of it


@dataclasses.dataclass
class Memory:
    """Samples the memory of this process, the driver, and of the aggregator, twice a second.

    USS: what the machine would get back if the process ended, so without shared libraries and
    Ray's shared object store.
    """

    samples: list[tuple[float, float, float]] = dataclasses.field(default_factory=list)
    times: list[tuple[float, int]] = dataclasses.field(default_factory=list)  # and trials done
    _aggregator: psutil.Process | None = None

    def __call__(self, progress: Progress) -> None:
        """`show` of `da.run`."""
        if progress.done == 0:
            return
        if self._aggregator is None:
            self._aggregator = _child("ray::Aggregator")
        mine, other = (
            process.memory_full_info().uss / MIB for process in (psutil.Process(), self._aggregator)
        )
        self.samples.append((progress.done / progress.trials, mine, other))
        if not self.times or progress.done > self.times[-1][1]:
            self.times.append((time.perf_counter(), progress.done))

    @property
    def rate(self) -> float:
        """Trials per second between the first sample and the last one that had new trials."""
        (start, first), (end, last) = self.times[0], self.times[-1]
        return (last - first) / (end - start)

    def at(self, share: float) -> tuple[float, float]:
        """MiB of driver and aggregator when that share of the trials was done."""
        near = [s for s in self.samples if abs(s[0] - share) <= AROUND]
        if not near:
            raise RuntimeError(f"no sample at {100 * share:.0f} %: more trials are needed")
        return statistics.median(s[1] for s in near), statistics.median(s[2] for s in near)


@dataclasses.dataclass(frozen=True)
class Throughput:
    """Empty trials on Ray. `steady` is between the first and the last look at the progress."""

    estimators: str
    trials: int
    packs: int
    audits: int
    trainers: int
    seconds: float
    steady_trials_per_second: float
    steady_packs_per_second: float
    driver_mib: tuple[float, float]  # at 10 % and at 100 %
    aggregator_mib: tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Overhead:
    """Packs of a known length. `period` is the median time from one pack of a trainer to its next.

    `start` is everything before the first pack began and after the last one ended.
    """

    packs: int
    trainers: int
    pack_seconds: float
    period: float
    overhead: float
    seconds: float
    start: float


@dataclasses.dataclass(frozen=True)
class Around:
    """Seconds of the work that is done once per sweep of so many packs."""

    packs: int
    plan: float
    plan_mib: float
    resume: float
    rebuild: float
    status: float


def throughput(sweep: Mapping[str, Any], storage: Path) -> Throughput:
    """Runs a sweep of empty trials and follows it."""
    memory = Memory()
    started = time.perf_counter()
    done = da.run(sweep, str(storage), show=memory)
    seconds = time.perf_counter() - started
    if not done.complete:
        raise RuntimeError(f"{done.location} is not complete: {done.failures}")
    trials, packs = _size(done.location)
    (driver_before, aggregator_before), (driver_after, aggregator_after) = (
        memory.at(0.1), memory.at(1.0),
    )  # fmt: skip
    return Throughput(
        ", ".join(sweep["audit"]["estimators"]),
        trials,
        packs,
        len(sweep["grid"]["mechanism.number"]),
        sweep["resources"]["max_concurrent_trainers"],
        seconds,
        memory.rate,
        memory.rate * packs / trials,
        (driver_before, driver_after),
        (aggregator_before, aggregator_after),
    )


def overhead(packs: int, trainers: int, pack_seconds: float, storage: Path) -> Overhead:
    """Packs that sleep: what lies between two of them is the orchestrator's."""
    audits = empty.audits_of(packs)
    sweep = empty.sweep(
        "overhead", packs, 1, audits=audits, trainers=trainers, seconds=pack_seconds
    )
    started = time.perf_counter()
    done = da.run(sweep, str(storage))
    seconds = time.perf_counter() - started
    times = stored(done.location)
    # Trainers work at one pace, so their ends come in turn: every `trainers`-th is of one trainer.
    # The first quarter is left out, in which they start, and the last round.
    middle = times[packs // 4 : packs - trainers]
    period = statistics.median(
        later - earlier for earlier, later in zip(middle, middle[trainers:], strict=False)
    )
    rounds = (len(middle) - 1) // trainers  # whole ones: within a round, ends come in bursts
    mean = (middle[rounds * trainers] - middle[0]) / rounds
    return Overhead(
        packs, trainers, pack_seconds, period, mean / pack_seconds - 1, seconds,
        seconds - (times[-1] - times[0] + pack_seconds),
    )  # fmt: skip


def around(sweep: Mapping[str, Any], storage: Path) -> Around:
    """Plans a sweep; where it is finished, also resumes it and asks for its status."""
    parsed = spec.from_raw(sweep)
    run = RunDirectory.under(str(storage), parsed.name)
    fresh = RunDirectory.under(str(storage), f"{parsed.name}-planned")
    started = time.perf_counter()
    plan = planning.open_run(parsed, fresh)
    planned = time.perf_counter() - started
    size = os.path.getsize(f"{fresh.location}/{planning.FILE}") / MIB
    packs = sum(len(audit.packs) for audit in plan.audits)
    if not run.complete:
        return Around(packs, planned, size, *3 * [float("nan")])
    started = time.perf_counter()
    da.run(sweep, str(storage))
    resumed = time.perf_counter() - started
    started = time.perf_counter()
    Aggregation.rebuild(run)
    rebuilt = time.perf_counter() - started
    started = time.perf_counter()
    command = [sys.executable, "-m", "dpaudit_ray", "status", run.location]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return Around(packs, planned, size, resumed, rebuilt, time.perf_counter() - started)


def stored(location: str) -> list[float]:
    """Returns the Unix times at which packs were in place, rising; none may be compacted yet."""
    return sorted(file.stat().st_mtime for file in Path(location).glob("scores/*/*.parquet"))


def _size(location: str) -> tuple[int, int]:
    plan = planning.require(RunDirectory(location))
    return plan.trials, sum(len(audit.packs) for audit in plan.audits)


def _child(title: str) -> psutil.Process:
    for process in psutil.Process().children(recursive=True):
        if process.name().startswith(title) or title in "".join(process.cmdline()):
            return process
    raise RuntimeError(f"no process {title}: memory is measured on a cluster of this process")
