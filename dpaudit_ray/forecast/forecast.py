"""Time that a sweep takes and bounds that it can show, before it is run."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from .. import plan as planning
from .. import stats
from ..api import check_inputs, warn_of_few_trials
from ..errors import DpauditError, first_line
from ..orchestration.trainer import Brief, PackTrainer
from ..plan import finished_trials, outcomes, preparing
from ..plan.model import Pack, Part, Plan, PlannedAudit
from ..stats import gdp, growth
from ..stats.paired import Paired
from ..storage.arrays import Arrays
from ..storage.place import OPENING
from ..storage.run_directory import RunDirectory
from ..sweep.audit import EstimatorSpec
from ..sweep.cell import Cell
from ..sweep.spec import Sweep

CLAIM_SHARE = 0.9  # of the claim that `AuditOutlook.power` asks for
USUAL_POWER = 0.8  # with which `AuditOutlook.trials_needed` reaches it
ENOUGH_SECONDS = 1.0  # of a timing, beyond those of a single step
_STEP_SECONDS = 2.0  # between two lines about progress
_DRAWS = 10  # simulated audits of one training
_SEED = 20231
_APART = 1e6  # μ of canaries that are all guessed right
_STEP_FACTOR = 4  # times as many steps, until that is reached


@dataclasses.dataclass(frozen=True)
class AuditOutlook:
    """One audit: `power` is the chance of a bound of 90 % of the claim if the claim is tight.

    `status` is what that ε would be, and `largest_certifiable`: converted from the μ of `accuracy`,
    both are certified where the trade-off curve is known to be Gaussian. Of canaries of one
    training, all are what the first of its estimators that hold shows in simulations.
    """

    label: str
    trials: int
    packs: int
    packs_done: int
    claim: float
    seconds: float  # of one trainer's time, for the packs that are left
    largest_certifiable: float | None = None  # None, like the next, where no trials are run
    power: float | None = None
    trials_needed: int | None = None  # for it at a chance of 80 %; None where no number would do
    status: stats.Status = stats.Status.CERTIFIED
    likely: float = math.nan  # ε of a tight attack at such a chance; NaN: the claim is no number
    grows: bool = False  # whether `audit.up_to` plans for `trials_needed`

    @property
    def sampled(self) -> bool:
        return self.power is not None


@dataclasses.dataclass(frozen=True)
class Outlook:
    """A whole sweep on this machine; packs that wait for one of `preparations` take NaN seconds."""

    audits: tuple[AuditOutlook, ...]
    workers: int
    problem: str | None = None  # why no time could be measured
    preparations: tuple[PreparationOutlook, ...] = ()

    @property
    def seconds(self) -> float:
        """Trainer seconds that are left."""
        return sum(a.seconds for a in self.audits) + sum(p.seconds for p in self.preparations)


def forecast(
    sweep: Sweep, storage_path: str, tell: Callable[[str], None] = lambda line: None
) -> Outlook:
    """Plans the sweep against its run directory, and times first steps of its packs."""
    run = RunDirectory.under(storage_path, sweep.name, OPENING)
    sweep = planning.kept(sweep, run, tell)
    warn_of_few_trials(sweep, tell)
    check_inputs(sweep, tell)
    plan = planning.preview(sweep, run)
    left_out = {failure.pack for failure in outcomes.failed(run, plan)}
    enough = outcomes.decided(run, sweep, plan)
    unfinished = finished_trials.remaining(run, plan, enough)
    remaining = [pack for pack in unfinished if pack not in left_out]
    made: dict[tuple[str, int], Arrays] = {}

    def call(method: str, audit: int) -> tuple[Arrays, ...]:
        """Answers a trainer, which asks its aggregator for prepared parts only."""
        return _prepared(run, plan, made, audit)

    trainer = PackTrainer(sweep.raw, Brief.from_plan(plan, sweep), call)
    waited = preparing.left(run, plan, remaining)
    preparations, failure = _rehearsed(trainer, run, plan, waited, made)
    steps = _Steps(tell)
    seconds, problem = seconds_per_trial(sweep, trainer, remaining, steps.timing)
    packs_left = dict[int, list[Pack]]()
    for pack in remaining:
        packs_left.setdefault(pack.audit, []).append(pack)
    audits = []
    for index, (audit, cell) in enumerate(zip(plan.audits, sweep.cells, strict=True)):
        steps.tell(f"forecasting: {index:,} of {len(sweep.cells):,} audits")
        left = packs_left.get(index, [])
        done = len(finished_trials.stored_packs(run, audit))
        audits.append(_outlook(audit, cell, left, done, seconds.get(index, 0.0)))
    workers = max(1, int(len(os.sched_getaffinity(0)) / sweep.resources.num_cpus))
    if (limit := sweep.resources.max_concurrent_trainers) != "auto":
        workers = min(workers, limit)
    return Outlook(tuple(audits), workers, failure or problem, preparations)


class _Steps:
    """Tells what a forecast is at, every few seconds."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._last = time.monotonic()

    def tell(self, line: str) -> None:
        now = time.monotonic()
        if now - self._last >= _STEP_SECONDS:
            self._last = now
            self._tell(line)

    def timing(self, timed: int, packs: int) -> None:
        self.tell(f"timing the first steps: {timed:,} of {packs:,} packs")


def _outlook(
    audit: PlannedAudit, cell: Cell, left: list[Pack], done: int, seconds: float
) -> AuditOutlook:
    """One audit of which `done` packs are done and those in `left` remain, at `seconds` a trial."""
    # Canaries of one training may say the same, so a training counts as one trial.
    trainings = audit.trials // max(audit.together, 1)
    outlook = AuditOutlook(
        label=audit.label,
        trials=audit.trials,
        packs=len(audit.packs),
        packs_done=done,
        claim=audit.claim,
        seconds=sum(pack.size for pack in left) * seconds,
    )
    if not cell.mechanism.sampled:
        return outlook
    alpha, split = 1 - cell.audit.confidence, growth.shares(len(audit.foreseen))
    levels = [(cell.audit.delta, 1 - share * alpha) for share in split]
    level = levels[len(audit.looks) - 1]
    holding = [spec for spec in cell.audit.estimators if spec.method.status.holds]
    if not audit.independent and holding and (audit.paired or holding[0].method.one_run):
        return _of_canaries(outlook, cell, holding[0], level)
    likely, needed, foreseen = math.nan, 0, dict[int, float]()
    if 0 < audit.claim < math.inf:
        grown = [number // audit.canaries for number in audit.foreseen]
        foreseen = {n: _power(audit.claim, n, at) for n, at in zip(grown, levels, strict=True)}
        with contextlib.suppress(ValueError):  # a claim that no billion trials would reach
            needed = next((n for n, chance in foreseen.items() if chance >= USUAL_POWER), 0)
            needed = needed or _trials_needed(audit.claim, cell.audit.delta, cell.audit.confidence)
        likely = _likely_bound(audit.claim, trainings, level)
    curve = cell.mechanism.trade_off(cell.adversary, cell.horizons[-1])
    return dataclasses.replace(
        outlook,
        largest_certifiable=stats.power.largest_certifiable(trainings, *level),
        power=_power(audit.claim, trainings, level),
        trials_needed=needed * audit.canaries or None,
        grows=len(foreseen) > 1 and needed in foreseen,
        status=stats.make("accuracy", planned=1).bound(*level).given(curve).status,
        likely=likely,
    )


# Audits of one claim, number of trials and level share these.
_shared = functools.lru_cache(maxsize=1024)


@_shared
def _trials_needed(claim: float, delta: float, confidence: float) -> int:
    """Raises ValueError where a billion trials would not do."""
    return stats.power.trials_needed(claim, 1 - CLAIM_SHARE, USUAL_POWER, delta, confidence)


@_shared
def _likely_bound(claim: float, trials: int, level: tuple[float, float]) -> float:
    return stats.power.likely_bound(claim, trials, USUAL_POWER, *level)


@_shared
def _power(claim: float, trials: int, level: tuple[float, float]) -> float:
    return stats.power.accuracy_power(claim, CLAIM_SHARE * claim, trials, *level)


def _of_canaries(
    outlook: AuditOutlook, cell: Cell, spec: EstimatorSpec, level: tuple[float, float]
) -> AuditOutlook:
    """By simulation of its own estimator, on canaries that do not interfere."""
    trials, several = outlook.trials, cell.canaries or outlook.trials
    if spec.through_claim:  # as for independent trials: what is imagined is Gaussian
        spec = spec.model_copy(update={"options": {**spec.options, "curve": "gaussian"}})
    curve = cell.mechanism.trade_off(cell.adversary, cell.horizons[-1])
    apart = cell.mechanism.independent_canaries(cell.adversary)

    def shown(number: int, mu: float) -> list[float]:
        return simulated(lambda: spec.make(number, several), mu, level)

    finite_claim = 0 < outlook.claim < math.inf
    mu = float(gdp.mu(outlook.claim, level[0])) if finite_claim else 0.0
    usual = {number: shown(number, mu) for number in (trials, 2 * trials, 4 * trials)}
    reached = {n: sum(e >= CLAIM_SHARE * outlook.claim for e in usual[n]) / _DRAWS for n in usual}
    return dataclasses.replace(
        outlook,
        largest_certifiable=shown(trials, _APART)[0],
        power=reached[trials],
        trials_needed=next((n for n, chance in reached.items() if chance >= USUAL_POWER), None),
        status=spec.make(trials, several).bound(*level).given(curve, apart).status,
        likely=usual[trials][round((1 - USUAL_POWER) * _DRAWS)] if finite_claim else math.nan,
    )


def simulated(
    make: Callable[[], stats.Estimator], mu: float, level: tuple[float, float]
) -> list[float]:
    """ε of simulated audits, rising, of as many canaries as `make` plans, all μ apart."""
    rng, shown = np.random.default_rng(_SEED), []
    for _ in range(_DRAWS):
        made = make()
        bits = rng.random(made.planned) < 0.5
        noise = rng.standard_normal(made.planned)
        if isinstance(made, Paired):  # at best, both trainings share all of it
            for values, second in ((bits, np.logical_not), (noise, np.positive)):
                halves = values.reshape(-1, 2, made.canaries // 2)
                halves[:, 1] = second(halves[:, 0])
        made.fold(mu * bits + noise, bits)
        shown.append(made.bound(*level).epsilon_lower)
    return sorted(shown)


class UnpreparedError(Exception):
    """Packs cannot be timed before their preparation is done."""


@dataclasses.dataclass(frozen=True)
class PreparationOutlook:
    """A preparation of a sweep: `seconds` of one trainer's time, for the parts that are left."""

    audits: tuple[str, ...]
    parts: int
    done: int
    seconds: float


def _rehearsed(
    trainer: PackTrainer,
    run: RunDirectory,
    plan: Plan,
    left: Sequence[Part],
    made: dict[tuple[str, int], Arrays],
) -> tuple[tuple[PreparationOutlook, ...], str | None]:
    """Every preparation, its next awaited part `made` and timed, and why one could not be."""
    outlooks, problem = [], None
    for entry in preparing.entries(run, plan):
        seconds, parts = 0.0, [part for part in left if part.preparation == entry["id"]]
        if parts:
            started = time.perf_counter()
            arrays = trainer.attempt_part(parts[0])
            seconds = (time.perf_counter() - started) * len(parts)
            if isinstance(arrays, outcomes.Failure):
                problem, seconds = arrays.message, math.nan
            else:
                made[entry["id"], parts[0].first] = arrays
        audits = tuple(entry["audits"])
        outlooks.append(PreparationOutlook(audits, entry["parts"], entry["done"], seconds))
    return tuple(outlooks), problem


def _prepared(
    run: RunDirectory, plan: Plan, made: dict[tuple[str, int], Arrays], audit: int
) -> tuple[Arrays, ...]:
    """All parts that an audit waits for. Raises UnpreparedError where one is not made."""
    arrays = []
    for part in preparing.all_parts(plan, [audit]):
        key = part.preparation, part.first
        if key not in made and part.first not in run.parts(key[0]):
            raise UnpreparedError
        arrays.append(made[key] if key in made else run.read_part(*key))
    return tuple(arrays)


def seconds_per_trial(
    sweep: Sweep,
    trainer: PackTrainer,
    remaining: list[Pack],
    progress: Callable[[int, int], None] = lambda timed, packs: None,
) -> tuple[dict[int, float], str | None]:
    """Seconds by audit, once for all that take equally long; NaN, and why, where none can run.

    Calls `progress` with the packs that are timed, or alike, and with all of them.
    """
    by_options: dict[str, float] = {}
    seconds, problem = {}, None
    for number, pack in enumerate(remaining):
        progress(number, len(remaining))
        if pack.audit in seconds:  # packs of one audit take equally long
            continue
        cell = sweep.cells[pack.audit]
        options = cell.mechanism.model_dump_json(exclude=set(cell.mechanism.for_free))
        options += cell.adversary.model_dump_json()
        if options not in by_options:
            by_options[options] = math.nan
            try:
                by_options[options] = _pack_seconds(trainer, pack, cell) / pack.size
            except DpauditError:
                raise
            except UnpreparedError:
                pass
            except Exception as error:  # noqa: BLE001 (the user's training may raise anything)
                problem = f"{type(error).__name__}: {first_line(error)}"
        seconds[pack.audit] = by_options[options]
    return seconds, problem


def _pack_seconds(trainer: PackTrainer, pack: Pack, cell: Cell) -> float:
    if not trainer.by_steps(pack.audit):
        return trainer.seconds(pack, cell.horizons)
    return extrapolated(lambda step: trainer.seconds(pack, (step,)), cell.horizons)


def extrapolated(seconds: Callable[[int], float], horizons: tuple[int, ...]) -> float:
    """Seconds of a pack that is scored at `horizons`, where `seconds` are of one that ends at t.

    The model is linear: every step takes the same time, and so does every score, so the first
    steps tell. The very first pack is left out, since things are built in it.
    """
    last = horizons[-1]
    seconds(1)
    first = seconds(1)
    steps, took = 1, first
    while steps < last and took - first < ENOUGH_SECONDS:
        steps = min(last, _STEP_FACTOR * steps)
        took = seconds(steps)
    step = max(took - first, 0.0) / (steps - 1) if steps > 1 else first
    return last * step + len(horizons) * max(first - step, 0.0)
