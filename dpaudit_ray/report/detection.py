"""Would a broken promise have been found, and where not, what would find it?

Audits with less noise than is claimed are simulated. The chance that they refute the claim is what
tells CONSISTENT from INCONCLUSIVE. A hint is growth that `audit.up_to` has planned, or options for
a run of its own: with another name and seed, since trials that were seen may not be chosen among.
It is given only where the sweep file that it makes is taken, and shows what the hint promises.
"""

from __future__ import annotations

import functools
import math
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy import special

from .. import stats
from ..adversaries.base import FinalModelAdversary
from ..errors import DpauditError, percent
from ..plan import claims
from ..plan.score_stream import Trials
from ..stats import TradeOff, base, clopper_pearson_lower, gdp, growth
from ..stats.claim_verdict import ClaimTest, RunTest, largest_accuracy
from ..stats.curve import Curve
from ..stats.one_run import balanced, hits_of
from ..stats.one_run_fdp import SHARE, gaussian_mu
from ..stats.order_statistics import OrderStatistics
from ..sweep import spec
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from ..sweep.yamlfile import dump_yaml
from .quote import quote
from .tables import Run

ALTERNATIVE = 0.7  # times the claimed noise would have been found ...
REQUIRED_POWER = 0.8  # ... with at least this probability
SIMULATIONS = 50
_AGREE = 20  # are enough where all end alike: at a power of 0.8, once in a hundred
_SHORTER = (2_000, 20_000)  # trials: a longer audit is imagined as long as these first
_GRAIN = 0.05  # of μ: audits whose hit rates hardly differ are imagined once
_MORE = (2, 4, 8, 16)  # times the trials, that are tried
_MOST = 200_000
_FEWEST = 64  # trials, from which more are counted, and from which hits say what an adversary sees
_SMALL_CLAIM = 0.75  # rate of hits that a claim allows: with less, it is small
Test = ClaimTest | RunTest
_STRONGER = {  # adversaries that may see all that a claim allows, and what they do
    "biased-dimension": "plants a gradient in every step, and sees the last model only",
    "watched-dimension": "plants a gradient in every step, and sees every update, not only the "
    "last model",
}
_LUCK = 0.2  # chance of fewer right guesses than a forecast takes


def chance_to_refute(test: Test, alpha: float) -> float:
    """Chance that this adversary would have refuted the claim, had the noise been less.

    Simulated at a fixed seed with Gaussian scores, as far apart as the adversary's hit rate says
    they would be with ALTERNATIVE times the noise; 0 where the claim allows these.
    """
    if isinstance(test, RunTest):
        return test.share_found(ALTERNATIVE, alpha, SIMULATIONS)
    hits = test.hits
    mu = _imagined(test.curve, hits.hits / hits.guesses, hits.guesses) if hits.guesses else None
    if mu is None:
        return 0.0
    for trials in () if test.later else _SHORTER:
        smaller = math.floor(mu / _GRAIN) * _GRAIN
        if trials < test.planned and _surely_found(test.curve, smaller, trials, alpha):
            return 1.0  # so few trials would have done, and so small an effect
    return _share_found(test, mu, test.horizon, alpha)


@functools.lru_cache(maxsize=256)
def _surely_found(curve: Curve, mu: float, trials: int, alpha: float) -> bool:
    return _share_found(ClaimTest(curve, trials), mu, trials, alpha, required=1.0) == 1


def _imagined(claim: Curve, rate: float, guesses: int) -> float | None:
    """μ of the scores with ALTERNATIVE times the noise; None where that keeps the claim."""
    likely = min(max(rate, 0.5), 1 - 0.5 / guesses)
    mu = 2 * float(special.ndtri(likely)) / ALTERNATIVE
    kept = np.asarray(gdp.delta(claim.epsilons, mu)) <= claim.deltas
    return None if kept.all() else mu


def _share_found(
    test: ClaimTest, mu: float, trials: int, alpha: float, required: float = 0.0
) -> float:
    """Share of simulated audits that refute the claim; stops where that is below `required`."""
    declared = (test.planned, *test.later)
    numbers = declared if trials in declared else (trials,)
    return _simulated_share(test.curve, numbers, mu, trials, (alpha, required))


@functools.lru_cache(maxsize=4096)  # a key each: claim, numbers of trials, μ, level
def _simulated_share(
    curve: Curve,
    declared: tuple[int, ...],
    mu: float,
    trials: int,
    levels: tuple[float, float],
) -> float:
    """Share of simulated audits that refute `curve`, shared by all audits with these values.

    Args:
        curve: the claim.
        declared: numbers of trials that have a sharp test each, at least one.
        mu: distance of the scores of both worlds, in standard deviations.
        trials: trials of a simulated audit.
        levels: error that may be spent, and the share below which the simulation stops.
    """
    alpha, required = levels
    first, *later = declared
    rng = np.random.default_rng(0)
    refuted = 0
    for tried in range(1, SIMULATIONS + 1):
        members = rng.random(trials) < 0.5
        imagined = ClaimTest(curve, first, later=tuple(later))
        scores = rng.normal(size=trials) + mu * members
        imagined.process.fold(scores, members)
        for part in imagined.declared:  # the number of right guesses is not needed
            part.fold(scores, members)
        imagined.look(now=True)
        refuted += imagined.refuted_after(alpha) is not None
        hopeless = (SIMULATIONS - (tried - refuted)) / SIMULATIONS < required
        if hopeless or (tried == _AGREE and refuted in (0, tried)):
            break
    return refuted / tried


def for_weak(run: Run, index: int, test: Test, alpha: float) -> Iterator[str]:
    """Hints for audit number `index`, the nearest to the power that it lacks; the surest first."""
    if not run.done(run.plan.audits[index]):
        return  # all have failed
    if not isinstance(test, ClaimTest):
        yield from _by_order(run, index)
        yield "more canaries, more noise or fewer steps: `dpaudit plan` forecasts what they show"
        return  # how several canaries of a training hang together is not known beforehand
    chance = f"a chance of {percent(REQUIRED_POWER)} or more"
    effect = f"trials would notice {percent(round(1 - ALTERNATIVE, 6))} less noise with {chance}"
    rate = clopper_pearson_lower(test.hits.hits, test.hits.guesses, _LUCK)
    foreseen = [number for number in test.later if number > test.horizon]
    fewest = max(test.horizon, _FEWEST)
    sizes = [*foreseen, *(factor * fewest for factor in _MORE if factor * fewest <= _MOST)]
    enough = next((size for size in sizes if _finds(test, rate, size, alpha)), None)
    if enough in foreseen:
        yield f"growth that `up_to` has planned: {enough:,} {effect}: `--set audit.trials={enough}`"
    elif enough and (fresh := options_of_its_own(run, enough, {"audit.trials": enough})):
        yield f"a run of its own: {enough:,} {effect}: {fresh[1]}"
    searched = [size for size in sizes if size <= _MOST]
    if searched and not enough:
        yield from _for_any_adversary(test, searched, effect, alpha)
    for name, does in _STRONGER.items():
        if (stronger := _stronger(run, index, name)) is not None:
            yield (
                f"another threat model, {name}: it {does}; where that shows all that the claim "
                f"allows, {stronger[0]:,} {effect}: {stronger[1]}"
            )
            break
    listed = _through_claim(run.sweep.cells[index])
    if listed and (fresh := options_of_its_own(run, "claimed", {"audit.estimators": listed})):
        yield (
            "the same threat model, read through the claimed mechanism with `curve: claimed`, may "
            f"show a larger ε: {fresh[1]}"
        )


def _for_any_adversary(
    test: ClaimTest, sizes: list[int], effect: str, alpha: float
) -> Iterator[str]:
    """Yields what a claim of this size takes, if no number of trials in `sizes` is known to do."""
    least = next((size for size in sizes if _finds(test, None, size, alpha)), None)
    if least is None and largest_accuracy(test.curve) < _SMALL_CLAIM:
        yield f"more trials: so small a claim takes more than {sizes[-1]:,}"
    elif least is None:
        yield f"more noise or fewer steps: so large a claim takes more than {sizes[-1]:,} trials"
    elif test.hits.guesses < _FEWEST:
        yield f"more trials: if the adversary shows all that the claim allows, {least:,} {effect}"


def _by_order(run: Run, index: int) -> Iterator[str]:
    """Order statistics, where they are certified of every audit and show more than is quoted."""
    audit, name = run.plan.audits[index], OrderStatistics.name
    fresh = options_of_its_own(run, name, {"audit.estimators": [name]})
    if fresh is None or not all(map(_certified_by_order, fresh[0].cells)):
        return
    trials, cell = Trials.joined(audit, run.prefix(audit)), run.sweep.cells[index]
    scores, n = trials.scores[:, -1], len(trials.members)
    right, guesses = hits_of(scores, trials.members, *balanced(scores, math.ceil(SHARE * n)))
    rate = min(max(right / guesses, 0.5), 1 - 0.5 / guesses)
    likely = int(special.bdtrik(_LUCK, guesses, rate))
    mu = gaussian_mu(likely, guesses, n, fresh[0].budget.each)
    epsilon, quoted = float(gdp.epsilon(mu, cell.audit.delta)), quote(run, index)
    if epsilon > (quoted.epsilon or 0.0) and quoted.estimator != name:
        yield (
            f"the same threat model, judged by {name}: as sure of its guesses, it shows ε ≥ "
            f"{epsilon:.3f} or more in 4 of 5 runs, where {quoted.text} is quoted: {fresh[1]}"
        )


def _certified_by_order(cell: Cell) -> bool:
    """Whether order statistics stand for the audit, and bound its ε without an assumption."""
    apart = cell.mechanism.independent_canaries(cell.adversary)
    curve = cell.mechanism.trade_off(cell.adversary, cell.horizons[-1])
    names = [spec.name for spec in cell.audit.estimators]
    return names == [OrderStatistics.name] and apart and curve is TradeOff.GAUSSIAN


def options_of_its_own(
    run: Run, suffix: object, changes: Mapping[str, Any]
) -> tuple[Sweep, str] | None:
    """A sweep of its own with these changes, and options that make it; None where it is refused."""
    named = {"name": f"{run.sweep.name}-{suffix}", "seed": run.sweep.seed + 1, **changes}
    if "audit.trials" in changes and any(cell.audit.up_to for cell in run.sweep.cells):
        named["audit.up_to"] = None
    try:
        sweep = spec.from_raw(run.sweep.raw, overrides=named)
    except DpauditError:
        return None
    values = {key: dump_yaml({"v": value}, in_one_line=True)[4:-2] for key, value in named.items()}
    words = (shlex.quote(f"{key}={value}") for key, value in values.items())
    return sweep, f"`{' '.join(f'--set {word}' for word in words)}`"


def _stronger(run: Run, index: int, name: str) -> tuple[int, str] | None:
    """Trials, and options, with which this adversary would decide every mechanism; None: none."""
    adversary = {"name": name} | ({"choice": "simulated"} if name == "biased-dimension" else {})
    in_grid = "adversary" in (run.sweep.raw.get("grid") or {})
    key, value = ("grid.adversary", [adversary]) if in_grid else ("adversary", adversary)
    changes: dict[str, Any] = {key: value}
    if (estimators := _through_claim(run.sweep.cells[index])) is not None:
        changes["audit.estimators"] = estimators
    fresh = options_of_its_own(run, name, changes)
    used = name in {cell.adversary.name for cell in run.sweep.cells}
    if used or fresh is None or not all(map(_sees_all, fresh[0].cells)):
        return None
    cells, planned = fresh[0].cells, run.sweep.cells[index].audit.trials
    alpha = (1 - min(cell.audit.confidence for cell in cells)) / len(cells)
    curves = set[Curve]()
    for cell in cells:
        claimed = cell.mechanism.claimed(cell.adversary, cell.horizons[-1])
        family = claims.curves(claimed, cell.audit.accountants[0], cell.audit.delta)
        curves.add(family(claimed.noise_multiplier))
    for trials in (factor * planned for factor in (1, *_MORE)):
        more = {} if trials == planned else {"audit.trials": trials}
        fresh = options_of_its_own(run, name, {**changes, **more})
        first, *later = (trials,) if more else growth.looks(trials, cells[0].audit.up_to)
        tests = [ClaimTest(curve, first, later=tuple(later)) for curve in curves]
        if fresh is not None and all(_finds(test, None, trials, alpha) for test in tests):
            return trials, fresh[1]
    return None


def _finds(test: ClaimTest, rate: float | None, trials: int, alpha: float) -> bool:
    """Whether guesses right at `rate`, None for all that the claim allows, give them the power."""
    if rate is None:
        rate = special.bdtrik(_LUCK, trials, largest_accuracy(test.curve)) / trials
    mu = _imagined(test.curve, rate, _MOST)
    if mu is None or trials > _MOST:
        return False
    return _share_found(test, mu, trials, alpha, REQUIRED_POWER) >= REQUIRED_POWER


def _sees_all(cell: Cell) -> bool:
    """Whether its adversary sees what the claim allows, as far as the mechanism proves it."""
    curve = cell.mechanism.trade_off(cell.adversary, cell.horizons[-1])
    if isinstance(cell.adversary, FinalModelAdversary):  # the last model is the sum of all updates
        options = cell.mechanism.model_dump(include={"optimizer", "schedule"})
        plain = [part["name"] for part in options.values()] == ["sgd", "constant"]
        return curve is TradeOff.GAUSSIAN and plain
    return curve is not TradeOff.UNKNOWN


def _through_claim(cell: Cell) -> list[dict[str, Any]] | None:
    """Its estimators with `curve: claimed`, where that is another curve and none has it yet."""
    listed = [{"name": entry.name, **entry.options} for entry in cell.audit.estimators]
    with_curve = [name for name, cls in stats.estimators().items() if base.takes_family(cls)]
    read = [entry for entry in listed if entry["name"] in with_curve]
    gaussian = cell.mechanism.claimed(cell.adversary, cell.horizons[-1]).gaussian
    if gaussian or not read or any(entry.get("curve") == "claimed" for entry in read):
        return None
    read[0]["curve"] = "claimed"
    return listed
