"""Estimates how long a sweep takes, and which bounds it can show, before it is run."""

import collections
import contextlib
import functools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from .. import plan as planning
from .. import stats
from ..accounting import Training
from ..api import check_inputs, warn_of_few_trials
from ..errors import DpauditError, first_line
from ..orchestration.progress import OccasionalLines
from ..orchestration.trainer import Brief, PackTrainer
from ..plan import finished_trials, outcomes, preparing
from ..plan.model import Pack, Part, Plan, PlannedAudit
from ..plan.preparing import PreparationState
from ..stats import gdp, growth
from ..stats.curve import Responses
from ..stats.paired import Paired
from ..storage.arrays import Arrays
from ..storage.place import OPENING
from ..storage.run_directory import RunDirectory
from ..sweep.audit import EstimatorSpec
from ..sweep.cell import Cell
from ..sweep.spec import Sweep

CLAIM_SHARE = 0.9  # share of the claim in `AuditOutlook.power`
USUAL_POWER = 0.8  # probability in `AuditOutlook.trials_needed`
ENOUGH_SECONDS = 1.0  # a timing is precise if it takes this much longer than a single step
_STEP_FACTOR = 4  # factor of the number of steps, until a timing is precise
_SIMULATIONS = 10  # number of simulated audits of each kind
_SEED = 20231  # seed of simulated audits, the same in each forecast
_PERFECT_MU = 1e6  # μ of canaries whose bits are all guessed correctly


@dataclass(frozen=True)
class AuditOutlook:
    """Forecast of an audit.

    Bounds are those of `accuracy`: converted from its μ, they are certified if the trade-off curve
    is known to be Gaussian. For several canaries in a training run, they are simulated with the
    first of the audit's estimators that gives a valid bound.

    Attributes:
        label: name of the audit.
        trials: number of trials.
        packs: number of packs.
        packs_done: number of packs that are stored.
        claim: ε with which the audit is compared.
        seconds: time of one trainer for the remaining packs.
        largest_certifiable: largest possible bound on ε; None, like `power`, without trials.
        power: probability of a bound of 90 % of the claim if the claim is tight.
        trials_needed: number of trials for a power of 80 %; None if no number is enough.
        status: status of these bounds.
        likely: bound that a tight attack reaches with a probability of 80 %; NaN if the claim is
            not a number.
        grows: whether `audit.up_to` plans for `trials_needed`.
    """

    label: str
    trials: int
    packs: int
    packs_done: int
    claim: float
    seconds: float
    largest_certifiable: float | None = None
    power: float | None = None
    trials_needed: int | None = None
    status: stats.Status = stats.Status.CERTIFIED
    likely: float = math.nan
    grows: bool = False

    @property
    def sampled(self) -> bool:
        return self.power is not None


@dataclass(frozen=True)
class Outlook:
    """Forecast of a sweep on this machine; packs that wait for a preparation take NaN seconds."""

    audits: tuple[AuditOutlook, ...]
    workers: int
    problem: str | None = None  # the reason if no time could be measured
    preparations: tuple[tuple[PreparationState, float], ...] = ()  # each with its remaining seconds
    commitment: str = ""  # commitment of the plan

    @property
    def seconds(self) -> float:
        """Time of one trainer for all packs and preparations that remain."""
        seconds = [audit.seconds for audit in self.audits]
        seconds += [seconds_left for _, seconds_left in self.preparations]
        return sum(seconds)

    def core_hours(self, num_cpus: float) -> float:
        """Returns the core-hours of all that remains, if each trainer has `num_cpus` cores."""
        return self.seconds * num_cpus / 3600


def forecast(
    sweep: Sweep,
    storage_path: str,
    report: Callable[[str], None] = lambda line: None,
) -> Outlook:
    """Plans the sweep with what its run directory has, and times the first steps of its packs.

    Args:
        sweep: the sweep.
        storage_path: the folder of its run directory.
        report: called with lines about progress.

    Raises:
        DpauditError: the sweep cannot be run.
    """
    run = RunDirectory.under(storage_path, sweep.name, OPENING)
    sweep = planning.with_stored_trials(sweep, run, report)
    warn_of_few_trials(sweep, report)
    check_inputs(sweep, report)
    plan = planning.preview(sweep, run)
    abandoned = {failure.pack for failure in outcomes.failed(run, plan)}
    decided = outcomes.decided(run, sweep, plan)
    unfinished = finished_trials.remaining(run, plan, decided)
    remaining = [pack for pack in unfinished if pack not in abandoned]
    # Parts of preparations that are computed here to time them, by preparation and number.
    made: dict[tuple[str, int], Arrays] = {}

    def call(method: str, audit: int) -> tuple[Arrays, ...]:
        """Answers the trainer as its aggregator would; it calls for prepared parts only."""
        return _prepared(run, plan, made, audit)

    trainer = PackTrainer(sweep.raw, Brief.from_plan(plan, sweep), call)
    awaited = preparing.missing_parts(run, plan, remaining)
    preparations, failure = _time_parts(trainer, run, plan, awaited, made)
    progress = OccasionalLines(report)
    seconds, problem = seconds_per_trial(sweep, trainer, remaining, progress.show)
    trials_left = collections.Counter[int]()
    for pack in remaining:
        trials_left[pack.audit] += pack.size
    audits = []
    for index, (audit, cell) in enumerate(zip(plan.audits, sweep.cells, strict=True)):
        progress.show(f"forecasting: {index:,} of {len(sweep.cells):,} audits")
        outlook = AuditOutlook(
            label=audit.label,
            trials=audit.trials,
            packs=len(audit.packs),
            packs_done=len(finished_trials.stored_packs(run, audit)),
            claim=audit.claim,
            seconds=trials_left[index] * seconds.get(index, 0.0),
        )
        if cell.sampled:
            outlook = _with_bounds(outlook, audit, cell)
        audits.append(outlook)
    # As many trainers as `dpaudit run` would start on this machine.
    cores = len(os.sched_getaffinity(0))
    workers = max(1, int(cores / sweep.resources.num_cpus))
    limit = sweep.resources.max_concurrent_trainers
    if limit != "auto":
        workers = min(workers, limit)
    return Outlook(tuple(audits), workers, failure or problem, preparations, plan.commitment)


def _with_bounds(outlook: AuditOutlook, audit: PlannedAudit, cell: Cell) -> AuditOutlook:
    """Adds the bounds that the trials of an audit can show to its forecast.

    Args:
        outlook: the forecast so far.
        audit: the audit in the plan.
        cell: the audit as the sweep has it.
    """
    declared = cell.audit
    alpha = 1 - declared.confidence
    shares = growth.shares(len(audit.foreseen))
    # δ and confidence at each interim analysis, as these share the error.
    levels = [(declared.delta, 1 - share * alpha) for share in shares]
    level = levels[len(audit.looks) - 1]  # of the last one with the trials that are planned now
    valid = [spec for spec in declared.estimators if spec.method.status.holds]
    claimed = cell.claimed()
    states_curve = not isinstance(claimed, Training) and not claimed.gaussian
    by_simulation = audit.paired or states_curve
    if not audit.independent and valid and valid[0].method.one_run:
        by_simulation = True
    if valid and by_simulation:
        return _with_simulated_bounds(outlook, cell, valid[0], level)
    # Canaries of a training run may be correlated, so a training run counts as one trial.
    runs = audit.trials // max(audit.together, 1)
    target = CLAIM_SHARE * audit.claim
    likely_bound = math.nan
    runs_needed = 0  # stands for: no number is enough
    powers = {}  # by number of training runs
    if 0 < audit.claim < math.inf:
        for trials, level_of_look in zip(audit.foreseen, levels, strict=True):
            runs_then = trials // audit.canaries
            powers[runs_then] = _power(audit.claim, target, runs_then, *level_of_look)
        runs_needed = _first_with_power(powers) or 0
        if not runs_needed:
            with contextlib.suppress(ValueError):  # a billion trials would not be enough
                runs_needed = _trials_needed(
                    audit.claim,
                    within=1 - CLAIM_SHARE,
                    power=USUAL_POWER,
                    delta=declared.delta,
                    confidence=declared.confidence,
                )
        likely_bound = _likely_bound(audit.claim, runs, USUAL_POWER, *level)
    return replace(
        outlook,
        largest_certifiable=stats.power.largest_certifiable(runs, *level),
        power=_power(audit.claim, target, runs, *level),
        trials_needed=runs_needed * audit.canaries or None,
        grows=len(powers) > 1 and runs_needed in powers,
        status=stats.make("accuracy", planned=1).bound(*level).given(cell.trade_off()).status,
        likely=likely_bound,
    )


def _first_with_power(powers: Mapping[int, float]) -> int | None:
    """Returns the first number of trials with the usual power; None if none has it."""
    for number, power in powers.items():
        if power >= USUAL_POWER:
            return number
    return None


# Audits with the same claim, number of trials and level share results.
_shared = functools.lru_cache(maxsize=1024)
_trials_needed = _shared(stats.power.trials_needed)
_likely_bound = _shared(stats.power.likely_bound)
_power = _shared(stats.power.accuracy_power)


def _with_simulated_bounds(
    outlook: AuditOutlook,
    cell: Cell,
    spec: EstimatorSpec,
    level: tuple[float, float],
) -> AuditOutlook:
    """Simulates the audit's estimator on canaries that do not interfere with each other.

    Args:
        outlook: the forecast so far.
        cell: the audit as the sweep has it.
        spec: the audit's first estimator whose bound holds.
        level: δ and confidence of the bound.
    """
    trials = outlook.trials
    canaries = cell.canaries or trials
    if spec.through_claim:  # simulated scores are Gaussian, as those of independent trials
        options = {**spec.options, "curve": "gaussian"}
        spec = spec.model_copy(update={"options": options})

    def bounds(number: int, mechanism: float | Responses) -> list[float]:
        """Returns bounds on ε of simulated audits with this number of trials."""
        return simulated(lambda: spec.make(number, canaries), mechanism, level)

    has_finite_claim = 0 < outlook.claim < math.inf
    claimed = cell.claimed()
    # A mechanism that reveals as much as the claim allows; nothing, if no claim is a number.
    tight_mechanism: float | Responses = 0.0
    if not isinstance(claimed, Training) and not claimed.gaussian:
        tight_mechanism = Responses.from_curve(claimed.curve)
    elif has_finite_claim:
        tight_mechanism = float(gdp.mu(outlook.claim, level[0]))
    tight_bounds = bounds(trials, tight_mechanism)
    powers = {}  # by number of trials
    for number in (trials, 2 * trials, 4 * trials):
        epsilons = np.array(tight_bounds if number == trials else bounds(number, tight_mechanism))
        powers[number] = float(np.mean(epsilons >= CLAIM_SHARE * outlook.claim))
    curve = cell.trade_off()
    independent = cell.mechanism.independent_canaries(cell.adversary)
    return replace(
        outlook,
        largest_certifiable=bounds(trials, _PERFECT_MU)[0],
        power=powers[trials],
        trials_needed=_first_with_power(powers),
        status=spec.make(trials, canaries).bound(*level).given(curve, independent).status,
        # Bounds are in rising order: a fifth of them is smaller than this one.
        likely=tight_bounds[round((1 - USUAL_POWER) * _SIMULATIONS)]
        if has_finite_claim
        else math.nan,
    )


def simulated(
    make: Callable[[], stats.Estimator],
    mechanism: float | Responses,
    level: tuple[float, float],
) -> list[float]:
    """Returns the bounds on ε of simulated audits, in rising order.

    Args:
        make: makes a new estimator, which states the number of canaries.
        mechanism: mean difference between Gaussian scores with and without the canary, in standard
            deviations; or the answers of the mechanism, whose log odds are the scores.
        level: δ and confidence of the bounds.
    """
    rng = np.random.default_rng(_SEED)
    epsilons = []
    for _ in range(_SIMULATIONS):
        estimator = make()
        bits = rng.random(estimator.planned) < 0.5
        noise = rng.standard_normal(estimator.planned)
        if isinstance(estimator, Paired):  # at best, both training runs share all noise
            # The second run of a pair has the opposite bits, and the same noise.
            for values, of_second in ((bits, np.logical_not), (noise, np.positive)):
                halves = values.reshape(-1, 2, estimator.canaries // 2)  # a view: changes `values`
                halves[:, 1] = of_second(halves[:, 0])
        if isinstance(mechanism, Responses):
            estimator.fold(mechanism.scores(bits, rng), bits)
        else:
            estimator.fold(mechanism * bits + noise, bits)
        epsilons.append(estimator.bound(*level).epsilon_lower)
    return sorted(epsilons)


class UnpreparedError(Exception):
    """Raised if packs cannot be timed, since their preparation is not complete."""


def _time_parts(
    trainer: PackTrainer,
    run: RunDirectory,
    plan: Plan,
    awaited: Sequence[Part],
    made: dict[tuple[str, int], Arrays],
) -> tuple[tuple[tuple[PreparationState, float], ...], str | None]:
    """Computes the next awaited part of every preparation, and times it.

    Args:
        trainer: computes parts in this process.
        run: the run directory, which has the parts that are done.
        plan: plan of the sweep.
        awaited: parts that remain to be done.
        made: gets the computed arrays, by preparation and number of the part.

    Returns:
        Each preparation with the seconds of its remaining parts, NaN if the part failed; and the
        message of the last failure, None without any.
    """
    timed = []
    problem = None
    for state in preparing.states(run, plan):
        seconds = 0.0
        parts = [part for part in awaited if part.preparation == state.id]
        if parts:
            started = time.perf_counter()
            arrays = trainer.attempt_part(parts[0])
            seconds = (time.perf_counter() - started) * len(parts)
            if isinstance(arrays, outcomes.Failure):
                problem = arrays.message
                seconds = math.nan
            else:
                made[state.id, parts[0].first] = arrays
        timed.append((state, seconds))
    return tuple(timed), problem


def _prepared(
    run: RunDirectory,
    plan: Plan,
    made: dict[tuple[str, int], Arrays],
    audit: int,
) -> tuple[Arrays, ...]:
    """Returns all parts that an audit waits for. Raises UnpreparedError if one does not exist.

    Args:
        run: the run directory, which has the parts that are done.
        plan: plan of the sweep.
        made: arrays that were computed here, by preparation and number of the part.
        audit: index of the audit.
    """
    arrays = []
    for part in preparing.all_parts(plan, [audit]):
        key = part.preparation, part.first
        if key not in made and part.first not in run.parts(part.preparation):
            raise UnpreparedError
        arrays.append(made[key] if key in made else run.read_part(*key))
    return tuple(arrays)


def seconds_per_trial(
    sweep: Sweep,
    trainer: PackTrainer,
    remaining: list[Pack],
    report: Callable[[str], None],
) -> tuple[dict[int, float], str | None]:
    """Times a pack of each audit, once for all audits that take equally long.

    Args:
        sweep: the sweep.
        trainer: trains the packs.
        remaining: the packs of the audits.
        report: called with a line of progress before each pack.

    Returns:
        Seconds of a trial by index of the audit, NaN if none can be run; and the last reason why
        the user's code could not be run, None without any.
    """
    by_options = {}  # seconds of a trial, by the options on which they depend, as JSON
    seconds = {}
    problem = None
    for number, pack in enumerate(remaining):
        report(f"timing the first steps: {number:,} of {len(remaining):,} packs")
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
                pass  # the time stays NaN: the preparation has no part that could be timed
            except Exception as error:  # noqa: BLE001 (the user's training may raise anything)
                problem = f"{type(error).__name__}: {first_line(error)}"
        seconds[pack.audit] = by_options[options]
    return seconds, problem


def _pack_seconds(trainer: PackTrainer, pack: Pack, cell: Cell) -> float:
    """Returns the seconds of a pack: of all of it, or extrapolated from its first steps."""
    if not trainer.takes_time_by_steps(pack.audit):
        return trainer.time_pack(pack, cell.horizons)
    return extrapolated(lambda step: trainer.time_pack(pack, (step,)), cell.horizons)


def extrapolated(
    seconds: Callable[[int], float],
    horizons: tuple[int, ...],
) -> float:
    """Extrapolates the time of a pack, in seconds, from packs with fewer steps.

    The model is linear: every step takes the same time, and so does every recorded step.

    Args:
        seconds: runs a pack that ends after a number of steps; returns its time.
        horizons: the recorded steps of the pack.
    """
    all_steps = horizons[-1]
    seconds(1)  # the very first pack takes longer, since objects are built in it
    of_one_step = seconds(1)  # one step, which is recorded
    steps = 1
    elapsed = of_one_step
    while steps < all_steps and elapsed - of_one_step < ENOUGH_SECONDS:
        steps = min(all_steps, _STEP_FACTOR * steps)
        elapsed = seconds(steps)
    # The longer pack has more steps, and also records one. So the difference is due to steps.
    per_step = max(elapsed - of_one_step, 0.0) / (steps - 1) if steps > 1 else of_one_step
    # The remainder of a recorded step is the time that recording takes.
    return all_steps * per_step + len(horizons) * max(of_one_step - per_step, 0.0)
