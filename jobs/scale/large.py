"""Costs of many packs around the training: verbs on a run of them, a flush, a trainer's memory."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dpaudit_ray import plan as planning
from dpaudit_ray import seeds
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.orchestration.trainer import Brief
from dpaudit_ray.plan.model import Pack, Plan
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec

MIB = 2**20
_THREADS = 16


@dataclasses.dataclass(frozen=True)
class Verb:
    """One call of the command line: wall and CPU time, and the most memory that it ever held."""

    what: str
    seconds: float
    cpu_seconds: float
    peak_mib: float


@dataclasses.dataclass(frozen=True)
class Flush:
    """`seconds` of a whole flush, and the longest time for which it held the lock."""

    trials: int
    steps: int
    estimators: str
    seconds: float
    lock_milliseconds: float


@dataclasses.dataclass(frozen=True)
class PackTrainer:
    """Memory (USS) that a trainer has more with a plan of so many packs than with one of ten."""

    packs: int
    mib: float


def verbs(sweep: Mapping[str, Any], folder: Path) -> list[Verb]:
    """Stores all packs of a run but one, then calls what a user calls."""
    parsed = spec.from_raw(sweep)
    run = RunDirectory.under(str(folder), parsed.name)
    plan = planning.open_run(parsed, run)
    packs = list(planning.remaining(run, plan))
    before = time.perf_counter(), time.process_time()
    _store(Aggregation(parsed, plan, run), plan, packs[:-1])
    spent = time.perf_counter() - before[0], time.process_time() - before[1]
    stored = Verb(f"storing {len(packs) - 1:,} packs, {_THREADS} at once, without Ray",
                  *spent, _most(os.getpid()))  # fmt: skip
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(dict(sweep)), encoding="utf-8")
    again = ("run", str(file), "--storage-path", str(folder), "--executor", "inline")
    return [
        stored,
        _called("status", "status", run.location),
        _called("run, one pack left", *again),
        _called("run, complete", *again),
        _called("verify", "verify", run.location),
        _called("report", "report", run.location),
    ]


def audits(sweep: Mapping[str, Any], folder: Path) -> list[Verb]:
    """Runs a sweep of many audits, then calls what a user calls on the finished run."""
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(dict(sweep)), encoding="utf-8")
    run = ("run", str(file), "--storage-path", str(folder), "--executor", "inline")
    location = f"{folder}/{sweep['name']}"
    first = _called("run", *run)
    again = _called("run again, verdict kept", *run)
    status = _called("status", "status", location)
    report = _called("report", "report", location)
    kibibytes = Path(location, "report.html").stat().st_size // 1024
    report = dataclasses.replace(report, what=f"report ({kibibytes} KiB)")
    Path(location, "verdict.json").unlink()
    judging = _called("verify, verdict computed", "verify", location)
    return [first, again, status, report, judging]


def _store(aggregation: Aggregation, plan: Plan, packs: list[Pack]) -> None:
    with ThreadPoolExecutor(_THREADS) as pool:
        for _ in pool.map(lambda pack: aggregation.fold(pack, scores(plan, pack)), packs):
            pass
    aggregation.flush()


def scores(plan: Plan, pack: Pack) -> PackScores:
    """Returns the scores that the empty mechanism gives for a pack."""
    audit = plan.audits[pack.audit]
    members = seeds.bits(plan.seed, audit.fingerprint, pack.first, pack.last)
    rng = np.random.default_rng(seeds.noise_seed(plan.seed, audit.fingerprint, pack.first))
    noise = rng.standard_normal((pack.size, len(audit.horizons)))
    return PackScores(pack.first, members, audit.horizons, noise + members[:, None])


def flush(sweep: Mapping[str, Any], folder: Path) -> Flush:
    """Folds all trials, then flushes once."""
    parsed = spec.from_raw(sweep)
    run = RunDirectory.under(str(folder), parsed.name)
    plan = planning.open_run(parsed, run)
    aggregation = Aggregation(parsed, plan, run)
    lock = Timed()
    for pack in planning.remaining(run, plan):
        aggregation.fold(pack, scores(plan, pack))
    aggregation._folding = lock  # type: ignore[assignment]
    started = time.perf_counter()
    aggregation.flush()
    seconds = time.perf_counter() - started
    (audit,) = plan.audits
    named = ", ".join(sweep["audit"]["estimators"])
    return Flush(audit.trials, len(audit.horizons), named, seconds, 1000 * lock.longest)


class Timed:
    """A lock that knows for how long it was held, in seconds."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._since: list[float] = []
        self.longest = 0.0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._since.append(time.perf_counter())

    def __exit__(self, *_: object) -> None:
        self.longest = max(self.longest, time.perf_counter() - self._since.pop())
        self._lock.release()


def trainer(packs: int) -> PackTrainer:
    """Unpickles, in a process of its own, what Ray hands to a trainer."""
    return PackTrainer(packs, _held(packs) - _held(10))


def _held(packs: int) -> float:
    """MiB of a process that holds what a trainer of a plan with so many packs does."""
    parsed = spec.from_raw({"name": "held", **_one_audit(packs)})
    content = pickle.dumps((parsed.raw, Brief.from_plan(planning.make(parsed), parsed)))
    code = (
        "import pickle, sys, psutil, dpaudit_ray.orchestration.trainer; "
        "before = psutil.Process().memory_full_info().uss; "
        "held = pickle.load(sys.stdin.buffer); "
        "print(psutil.Process().memory_full_info().uss - before)"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, input=content, stdout=subprocess.PIPE, check=True)
    return int(done.stdout) / MIB


def _one_audit(packs: int) -> dict[str, Any]:
    return {
        "mechanism": {"name": "jobs.scale.empty:Empty"},
        "adversary": {"name": "jobs.scale.empty:Nobody"},
        "audit": {"trials": packs, "delta": 1e-5},
        "resources": {"pack_size": 1},
    }


def _called(what: str, *arguments: str) -> Verb:
    command = [sys.executable, "-m", "dpaudit_ray", *arguments]
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    peak = 0.0
    while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
        peak = max(peak, _most(process.pid))
        time.sleep(0.05)
    _, status, usage = ended
    # `verify` says by its exit code that nothing was shown: empty trials violate no claim.
    if os.waitstatus_to_exitcode(status) not in (0, 5):
        raise RuntimeError(f"{' '.join(command)} ended with {os.waitstatus_to_exitcode(status)}")
    seconds = time.perf_counter() - started
    return Verb(what, seconds, usage.ru_utime + usage.ru_stime, peak)


def _most(pid: int) -> float:
    """MiB that the process has ever held. What `wait4` says counts the process that began it."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return 0.0
