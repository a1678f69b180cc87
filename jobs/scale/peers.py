"""The same empty trial three ways on one Ray cluster: this orchestrator, Ray Tune, Ray tasks."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import dpaudit_ray as da

from . import empty
from .measure import stored


@dataclasses.dataclass(frozen=True)
class Peer:
    """`seconds` is the whole call on a cluster that is up; `steady` is between first and last end.

    `stored`: whether every score is on disk before its trial counts as done.
    """

    name: str
    trials: int
    stored: bool
    seconds: float
    trials_per_second: float
    steady_trials_per_second: float


def trial(seed: int) -> float:
    """One trial that trains nothing: a secret bit plus noise."""
    rng = np.random.default_rng(seed)
    return float(rng.standard_normal() + (rng.random() < 0.5))


def packs(trials: int, pack_size: int, storage: Path) -> Peer:
    """This orchestrator, with packs of `pack_size` trials, on two trainers."""
    name = f"dpaudit_ray, packs of {pack_size}" if pack_size > 1 else "dpaudit_ray, packs of one"
    audits = empty.audits_of(trials // pack_size)
    sweep = empty.sweep(f"peer-{pack_size}", trials, pack_size, audits=audits)
    location = ""

    def call() -> None:
        nonlocal location
        done = da.run(sweep, str(storage))
        if not done.complete:
            raise RuntimeError(f"{done.location} is not complete: {done.failures}")
        location = done.location

    seconds = _timed(call)
    ends = stored(location)
    later = trials - pack_size
    steady = later / (ends[-1] - ends[0]) if len(ends) > 1 else float("nan")
    return Peer(name, trials, True, seconds, trials / seconds, steady)


def tasks(trials: int) -> Peer:
    """One Ray task per trial; scores come back to the driver and are stored nowhere."""
    import ray

    remote = ray.remote(trial)
    ends: list[float] = []

    def call() -> None:
        waiting = [remote.remote(seed) for seed in range(trials)]
        while waiting:
            ready, waiting = ray.wait(waiting, num_returns=1)
            ray.get(ready)
            ends.append(time.perf_counter())

    seconds = _timed(call)
    return Peer("one Ray task per trial", trials, False, seconds, trials / seconds, _steady(ends))


def tune(trials: int, storage: Path, reuse_actors: bool) -> Peer:
    """Ray Tune as its documentation runs a grid: one trial per sample, one CPU each.

    `reuse_actors` keeps the process of a finished trial for the next one.
    """
    from ray import tune as ray_tune

    ends: list[float] = []

    class Ends(ray_tune.Callback):  # type: ignore[misc]
        """Notes when each trial is complete."""

        def on_trial_complete(self, *_: Any, **__: Any) -> None:
            ends.append(time.perf_counter())

    def train(config: dict[str, Any]) -> None:
        ray_tune.report({"score": trial(config["seed"])})

    tuner = ray_tune.Tuner(
        train,
        param_space={"seed": ray_tune.grid_search(list(range(trials)))},
        tune_config=ray_tune.TuneConfig(reuse_actors=reuse_actors),
        run_config=ray_tune.RunConfig(
            name="tune", storage_path=str(storage.absolute()), verbose=0, callbacks=[Ends()]
        ),
    )
    logging.getLogger("ray").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        seconds = _timed(tuner.fit)
    if len(ends) != trials:
        raise RuntimeError(f"Ray Tune completed {len(ends)} of {trials} trials")
    name = "Ray Tune, actors reused" if reuse_actors else "Ray Tune"
    return Peer(name, trials, True, seconds, trials / seconds, _steady(ends))


def _timed(call: Callable[[], Any]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def _steady(ends: list[float]) -> float:
    return (len(ends) - 1) / (ends[-1] - ends[0])
