"""Would a violation have been found, and if not, what would find it?

Audits with less noise than is claimed are simulated. The share of them that refute the claim
separates CONSISTENT from INCONCLUSIVE. A hint is growth that `audit.up_to` has planned, or options
for a new run: with another name and seed, since observed trials may not be chosen among. It is
given only if the sweep file that it makes is valid, and is forecast to do what the hint states.
"""

import functools
import math
import operator
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator
from scipy.special import bdtrik, expit, ndtri

from .. import stats
from ..adversaries.base import Adversary, FinalModelAdversary, TrajectoryAdversary
from ..adversaries.biased_dimension import BiasedDimension
from ..adversaries.watched_dimension import WatchedDimension
from ..errors import DpauditError, percent
from ..plan import claims
from ..stats import TradeOff, base, clopper_pearson_lower, gdp, growth
from ..stats.base import Members, Scores
from ..stats.claim_verdict import ClaimTest, RunTest, largest_accuracy
from ..stats.curve import Curve, Responses
from ..stats.error_rates import Floats, root
from ..stats.one_run import balanced, hits_of
from ..stats.one_run_fdp import SHARE, gaussian_mu
from ..stats.order_statistics import OrderStatistics
from ..sweep import spec
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from ..sweep.yamlfile import dump_yaml
from .quote import epsilon_text, quote
from .tables import Run

ALTERNATIVE = 0.7  # share of the claimed noise that an audit must be able to find
REQUIRED_POWER = 0.8  # probability with which it must find that
SIMULATIONS = 50
_AGREE = 20  # simulations suffice if all end alike: once in a hundred times at a power of 0.8
_SHORTER = (2_000, 20_000, 200_000, 2_000_000)  # trials; longer audits are first simulated so short
_GRAIN = 0.05  # μ is rounded to this, so audits with nearly equal hit rates share a simulation
_MORE = (2, 4, 8, 16)  # multiples of the trials that are tried
_MOST = 200_000  # trials at most of an audit that is simulated for a hint
_FEWEST = 64  # trials; multiples start there, and fewer hits do not rate the adversary
_SMALL_CLAIM = 0.75  # share of correct guesses that a claim allows: below it, the claim is small
_EFFECT = (
    f"trials would detect a {percent(round(1 - ALTERNATIVE, 6))} shortfall in noise with a "
    f"probability of {percent(REQUIRED_POWER)} or more"
)
_IF_ALL = "if the adversary shows all that the claim allows"
_MOST_LEAK = 16.0  # multiple of the claimed losses, at most, that explains a hit rate
_LUCK = 0.2  # probability of fewer correct guesses than a forecast assumes
Test = ClaimTest | RunTest
# Adversaries that may see all that a claim allows; the one that sees less comes first.
_STRONGEST: Mapping[Adversary, str] = {
    BiasedDimension(choice="simulated"): (
        "plants a gradient in every step, and sees the last model only"
    ),
    WatchedDimension(): (
        "plants a gradient in every step, and sees every update, not only the last model"
    ),
}


def chance_to_refute(test: Test, alpha: float) -> float:
    """Returns the probability that this adversary refutes the claim if there is less noise.

    Simulated at a fixed seed with ALTERNATIVE times the noise that the adversary's hit rate
    implies; 0 if the claim allows that. Scores are Gaussian, or those of the claim's own curve; if
    they are log odds, the audit's own, with larger losses.

    Args:
        test: the test of the claim, after the trials of the audit.
        alpha: error probability at which the claim counts as refuted.
    """
    if isinstance(test, RunTest):
        return test.share_found(ALTERNATIVE, alpha, SIMULATIONS)
    hits = test.hits
    if hits.guesses == 0:
        return 0.0
    looks = (test.planned, *test.later)
    # A shorter audit takes less time to simulate: if all of them refute, so do longer ones.
    shorter_trials = [trials for trials in _SHORTER if trials < test.planned and len(looks) == 1]
    if test.log_odds:
        odds = test.fitted_odds()
        if len(odds) == 0:
            return 0.0
        for trials in shorter_trials:
            if _share_by_odds(test, odds, (trials,), trials, alpha, required=1.0) == 1:
                return 1.0
        return _share_by_odds(test, odds, looks, test.horizon, alpha)
    alternative = _with_less_noise(test, hits.hits / hits.guesses, hits.guesses)
    if alternative is None:
        return 0.0
    if not isinstance(alternative, Curve):
        smaller = math.floor(alternative / _GRAIN) * _GRAIN
        for trials in shorter_trials:
            shorter = test.curve, (trials,), smaller, trials, alpha, test.delta
            if _share_found(*shorter, required=1.0) == 1:
                return 1.0  # fewer trials and a smaller effect are enough
    return _share_found(test.curve, looks, alternative, test.horizon, alpha, test.delta)


def _with_less_noise(test: ClaimTest, rate: float, guesses: int) -> float | Curve | None:
    """Returns what scores would be like with ALTERNATIVE times the noise that the audit measured.

    None if such a mechanism would meet the claim: then there is nothing to refute.

    Args:
        test: the test of the claim.
        rate: share of correct guesses with the noise as it is.
        guesses: number of guesses; a rate of 1 counts as half a mistake.

    Returns:
        The μ of Gaussian scores. If the claimed mechanism's losses are not Gaussian, the test has
        `alternatives`, its curves with other noise, and one of these is returned.
    """
    share = min(max(rate, 0.5), 1 - 0.5 / guesses)
    claim = test.curve
    if test.alternatives is not None:
        return _less_of_claimed_noise(test.alternatives, share)
    # The best guesses on Gaussian scores are right with probability Φ(μ/2).
    mu = 2 * float(ndtri(share)) / ALTERNATIVE
    within = np.asarray(gdp.delta(claim.epsilons, mu)) <= claim.deltas
    return None if within.all() else mu


def _less_of_claimed_noise(curves: Callable[[float], Curve], rate: float) -> Curve | None:
    """Returns the curve with ALTERNATIVE times the noise that a rate of correct guesses implies.

    None if that is as much noise as is claimed, or more.

    Args:
        curves: the claimed mechanism's curve by noise, in units of the claimed one.
        rate: share of correct guesses with the noise as it is.
    """

    def excess(log_noise: float) -> float:
        """Returns how much the best guesses against this noise exceed the rate."""
        return largest_accuracy(curves(math.exp(log_noise))) - rate

    largest = -math.log(ALTERNATIVE)  # ALTERNATIVE times this noise is the claimed one
    if excess(largest) >= 0:
        return None
    least = -math.log(_MOST_LEAK)
    log_noise = root(excess, least, largest, xtol=1e-6) if excess(least) > 0 else least
    return curves(ALTERNATIVE * math.exp(log_noise))


@functools.lru_cache(maxsize=4096)  # audits with the same claim, trials and μ share a simulation
def _share_found(
    curve: Curve,
    looks: tuple[int, ...],
    alternative: float | Curve,
    trials: int,
    alpha: float,
    delta: float | None = None,
    required: float = 0.0,
) -> float:
    """Returns the share of simulated audits that refute a claim.

    The bound at `delta` that the audit also tests is left out: it could only raise the share.

    Args:
        curve: the claim.
        looks: declared numbers of trials, at each of which the claim is tested.
        alternative: distance of Gaussian scores of both worlds, in standard deviations; or the
            curve of which scores are the likelihood ratios.
        trials: trials of a simulated audit.
        alpha: error probability at which the claim counts as refuted.
        delta: δ at which the audit also tests a bound, for a part of its error; None for no bound.
        required: the simulation ends early once the share cannot reach this.
    """

    def draw(rng: Generator) -> tuple[Scores, Members]:
        """Draws the scores and bits of one audit."""
        members = rng.random(trials) < 0.5
        if isinstance(alternative, Curve):
            return Responses.from_curve(alternative).scores(members, rng), members
        return rng.normal(size=trials) + alternative * members, members

    audit = ClaimTest(curve, looks[0], later=looks[1:], delta=delta)
    return _share_refuted(audit, draw, alpha, required)


def _share_refuted(
    audit: ClaimTest,
    draw: Callable[[Generator], tuple[Scores, Members]],
    alpha: float,
    required: float,
    with_bounds: bool = False,
) -> float:
    """Returns the share of simulated audits that refute a claim.

    The simulation ends early if the first audits all agree, or once `required` is out of reach.

    Args:
        audit: a test without trials; each simulated audit starts from a fresh copy of it.
        draw: draws the scores and bits of an audit.
        alpha: error probability at which the claim counts as refuted.
        required: a share; a result below it need not be exact.
        with_bounds: whether audits test bounds on ε, too; without them the share is not larger.
    """
    rng = np.random.default_rng(0)
    refuted = 0
    for simulated in range(1, SIMULATIONS + 1):
        scores, members = draw(rng)
        test = replace(audit)  # its `__post_init__` makes new parts, without trials
        # Only the parts that decide: `test.fold` would also count correct guesses, unread here.
        test.process.fold(scores, members)
        for part in test.declared:
            part.fold(scores, members)
        for bound in test.bounds if with_bounds else ():
            bound.fold(scores, members)
        test.look(now=True)
        if test.refuted_after(alpha) is not None:
            refuted += 1
        reachable = (refuted + SIMULATIONS - simulated) / SIMULATIONS
        all_agree = simulated == _AGREE and refuted in (0, simulated)
        if reachable < required or all_agree:
            break
    return refuted / simulated


def _share_by_odds(
    test: ClaimTest,
    odds: Floats,
    looks: tuple[int, ...],
    trials: int,
    alpha: float,
    required: float = 0.0,
) -> float:
    """Returns the share of simulated audits that refute a claim, by scores that are log odds.

    A rate of correct guesses does not distinguish rare, sure ones from many that are less sure. So
    scores are drawn from those of the audit, and bits by log odds that are 1 / ALTERNATIVE times as
    large: privacy losses of Laplace noise and of random answers grow by that factor, those of
    Gaussian noise by more.

    Args:
        test: the test of the claim.
        odds: log odds of its trials, from `ClaimTest.fitted_odds`.
        looks: declared numbers of trials.
        trials: trials of a simulated audit.
        alpha: error probability at which the claim counts as refuted.
        required: the simulation ends early once the share cannot reach this.
    """

    def draw(rng: Generator) -> tuple[Scores, Members]:
        """Draws the scores and bits of one audit."""
        resampled = rng.choice(odds, trials)
        return resampled, rng.random(trials) < expit(resampled / ALTERNATIVE)

    audit = replace(test, planned=looks[0], later=looks[1:])
    return _share_refuted(audit, draw, alpha, required, with_bounds=trials <= _MOST)


def hints_for_weak_audit(
    run: Run,
    index: int,
    test: Test,
    alpha: float,
) -> Iterator[str]:
    """Yields hints for an audit that is too weak to be CONSISTENT, the surest first.

    Args:
        run: the run.
        index: number of the audit that comes nearest to the required power.
        test: the test of the audit's claim, after its trials.
        alpha: error probability at which the claim counts as refuted.
    """
    if not run.done(run.plan.audits[index]):
        return  # all trials have failed
    if not isinstance(test, ClaimTest):
        yield from _order_statistics_hint(run, index)
        yield "more canaries, more noise or fewer steps: `dpaudit plan` forecasts what they show"
        return  # no forecast: how the canaries of a training run depend on each other is unknown
    looks = (test.planned, *test.later)
    planned = [number for number in looks if number > test.horizon]
    fewest = max(test.horizon, _FEWEST)
    sizes = planned + [factor * fewest for factor in _MORE]
    sizes = [size for size in sizes if size <= _MOST]
    guesses = test.hits.guesses

    def first_size(rate: float | None) -> int | None:
        """Returns the first of `sizes` that `_would_refute` the claim; None if none does."""
        for size in sizes:
            if _would_refute(test, looks, rate, size, alpha):
                return size
        return None

    # Enough trials for a low hit rate, which the adversary exceeds unless this run had luck.
    enough = first_size(clopper_pearson_lower(test.hits.hits, guesses, _LUCK))
    if enough:
        yield from _with_more_trials(run, enough, is_planned=enough in planned)
    least = None  # trials that decide if the adversary shows all that the claim allows
    if sizes and not enough:
        least = first_size(None)
        if least is None and largest_accuracy(test.curve) < _SMALL_CLAIM:
            yield f"more trials: so small a claim needs more than {sizes[-1]:,}"
        elif least is None:
            most = f"{sizes[-1]:,} trials"
            yield f"more noise or fewer steps: so large a claim needs more than {most}"
        elif guesses < _FEWEST:
            yield f"more trials: {_IF_ALL}, {least:,} {_EFFECT}"
    another = _another_threat_model(run, index)
    if another is not None:
        yield another
    elif least is not None and guesses >= _FEWEST:
        if _sees_all(run.sweep.cells[index]):
            yield f"more trials: {_IF_ALL}, {least:,} {_EFFECT}"
        else:
            yield (
                f"a stronger adversary: with so few correct guesses, {sizes[-1]:,} trials are too "
                f"few; if an adversary shows all that the claim allows, {least:,} {_EFFECT}"
            )
    yield from _through_claimed_curves(run, index)


def _with_more_trials(run: Run, enough: int, is_planned: bool) -> Iterator[str]:
    """Yields the hint that `enough` trials decide: by growth that is planned, or by a new run.

    Args:
        run: the run.
        enough: number of trials that would decide.
        is_planned: whether `up_to` allows them in this run.
    """
    if is_planned:
        yield f"growth planned by `up_to`: {enough:,} {_EFFECT}: `--set audit.trials={enough}`"
        return
    fresh = options_of_new_run(run, enough, {"audit.trials": enough})
    if fresh is not None:
        yield f"a separate run: {enough:,} {_EFFECT}: {fresh[1]}"


def _another_threat_model(run: Run, index: int) -> str | None:
    """Returns a hint to use the first stronger adversary that would decide the audit.

    Returns None if none would.
    """
    for adversary, what_it_does in _STRONGEST.items():
        stronger = _deciding_changes(run, index, adversary)
        if stronger is not None:
            trials, changes = stronger
            return (
                f"another threat model, {adversary.name}: it {what_it_does}; if it shows all "
                f"that the claim allows, {trials:,} {_EFFECT}: {changes}"
            )
    return None


def _through_claimed_curves(run: Run, index: int) -> Iterator[str]:
    """Yields the hint to convert bounds through the claimed curves, if an estimator can."""
    estimators = _estimators_through_claim(run.sweep.cells[index])
    if estimators is None:
        return
    fresh = options_of_new_run(run, "claimed", {"audit.estimators": estimators})
    if fresh is not None:
        yield (
            "the same threat model, with the claimed mechanism's own curve (`curve: claimed`), may "
            f"show a larger ε: {fresh[1]}"
        )


def _order_statistics_hint(run: Run, index: int) -> Iterator[str]:
    """Yields order statistics if they are certified for every audit and show more than the quote.

    The forecast is of a new run whose guesses are correct as often as those of this one.
    """
    name = OrderStatistics.name
    fresh = options_of_new_run(run, name, {"audit.estimators": [name]})
    if fresh is None or not all(map(_certified_by_order, fresh[0].cells)):
        return
    trials = run.trials(run.plan.audits[index])
    scores = trials.scores[:, -1]
    n = len(trials.members)
    thresholds = balanced(scores, math.ceil(SHARE * n))
    correct, guesses = hits_of(scores, trials.members, *thresholds)
    rate = min(max(correct / guesses, 0.5), 1 - 0.5 / guesses)
    # The new run has more correct guesses than this with probability 1 - _LUCK.
    forecast = int(bdtrik(_LUCK, guesses, rate))
    mu = gaussian_mu(forecast, guesses, n, fresh[0].budget.each)
    epsilon = float(gdp.epsilon(mu, run.sweep.cells[index].audit.delta))
    quoted = quote(run, index)
    if epsilon > (quoted.epsilon or 0.0) and quoted.estimator != name:
        yield (
            f"the same threat model, with the estimator {name}: at the same rate of correct "
            f"guesses, 4 of 5 runs show ε ≥ {epsilon_text(epsilon)} or more, where "
            f"{quoted.text} is quoted: {fresh[1]}"
        )


def _certified_by_order(cell: Cell) -> bool:
    """Returns whether order statistics are quoted for the audit, and assume nothing unproved."""
    names = [spec.name for spec in cell.audit.estimators]
    independent = cell.mechanism.independent_canaries(cell.adversary)
    is_gaussian = cell.trade_off() is TradeOff.GAUSSIAN
    return names == [OrderStatistics.name] and independent and is_gaussian


def options_of_new_run(
    run: Run, suffix: object, changes: Mapping[str, Any]
) -> tuple[Sweep, str] | None:
    """Returns a sweep for a new run, and the options that make it; None if it is not valid.

    Args:
        run: the run whose sweep file is changed.
        suffix: end of the new run's name.
        changes: values of other keys, by dotted key.
    """
    overrides = {"name": f"{run.sweep.name}-{suffix}", "seed": run.sweep.seed + 1, **changes}
    if "audit.trials" in changes and any(cell.audit.up_to for cell in run.sweep.cells):
        overrides["audit.up_to"] = None
    try:
        sweep = spec.from_raw(run.sweep.raw, overrides=overrides)
    except DpauditError:
        return None
    options = []
    for key, value in overrides.items():
        text = dump_yaml({"v": value}, in_one_line=True)[4:-2]  # without "{v: " and "}"
        options.append(f"--set {shlex.quote(f'{key}={text}')}")
    return sweep, f"`{' '.join(options)}`"


def _access(adversary: Adversary) -> tuple[bool, bool]:
    """Returns whether an adversary sees every update, and whether it is in every step."""
    in_every_step = adversary.fixed_gradient and adversary.period == 1
    return isinstance(adversary, TrajectoryAdversary), in_every_step


def _deciding_changes(
    run: Run,
    index: int,
    adversary: Adversary,
) -> tuple[int, str] | None:
    """Returns trials and options with which an adversary would decide every audit of the run.

    Args:
        run: the run.
        index: number of the audit whose trials are multiplied.
        adversary: the stronger adversary.

    Returns:
        None if it would not decide them, or if an adversary of the run has as much access.
    """
    # The stronger adversary has all access that each adversary of the run has, and more.
    access = _access(adversary)
    for cell in run.sweep.cells:
        least = _access(cell.adversary)
        if access == least or not all(map(operator.ge, access, least)):
            return None
    options = {"name": adversary.name, **adversary.model_dump(exclude_defaults=True)}
    changes: dict[str, Any] = {"adversary": options}
    if "adversary" in (run.sweep.raw.get("grid") or {}):
        changes = {"grid.adversary": [options]}
    audit = run.sweep.cells[index].audit
    estimators = _estimators_through_claim(run.sweep.cells[index])
    if estimators is not None:
        changes["audit.estimators"] = estimators
    fresh = options_of_new_run(run, adversary.name, changes)
    if fresh is None or not all(map(_sees_all, fresh[0].cells)):
        return None
    cells = fresh[0].cells
    alpha = (1 - min(cell.audit.confidence for cell in cells)) / len(cells)
    curves = {claims.family(cell)(cell.claimed().noise) for cell in cells}
    tests = [ClaimTest(curve, audit.trials) for curve in curves]
    # At the same number of trials, planned growth may decide; at a larger one, a single look does.
    for factor in (1, *_MORE):
        trials = factor * audit.trials
        looks = growth.looks(trials, cells[0].audit.up_to)
        if factor > 1:
            looks = (trials,)
            fresh = options_of_new_run(run, adversary.name, {**changes, "audit.trials": trials})
        decided = all(_would_refute(test, looks, None, trials, alpha) for test in tests)
        if fresh is not None and decided:
            return trials, fresh[1]
    return None


def _would_refute(
    test: ClaimTest,
    looks: tuple[int, ...],
    rate: float | None,
    trials: int,
    alpha: float,
) -> bool:
    """Returns whether an audit of this many trials refutes the claim with the required power.

    Args:
        test: the test of the claim.
        looks: numbers of trials at which the run has declared to test the claim. If `trials` is not
            among them, a new run is assumed, which tests once, after `trials`.
        rate: share of guesses that are correct; None for the most that the claim allows.
        trials: trials of the audit.
        alpha: error probability at which the claim counts as refuted.
    """
    if trials > _MOST:
        return False
    if trials not in looks:
        looks = (trials,)
    if test.log_odds and rate is not None:
        odds = test.fitted_odds()
        if len(odds) == 0:
            return False
        share = _share_by_odds(test, odds, looks, trials, alpha, REQUIRED_POWER)
        return share >= REQUIRED_POWER
    if rate is None:
        # A low quantile of the share of correct guesses, if each is right as often as is allowed.
        rate = bdtrik(_LUCK, trials, largest_accuracy(test.curve)) / trials
    alternative = _with_less_noise(test, rate, _MOST)
    if alternative is None:
        return False
    share = _share_found(
        test.curve, looks, alternative, trials, alpha, test.delta, required=REQUIRED_POWER
    )
    return share >= REQUIRED_POWER


def _sees_all(cell: Cell) -> bool:
    """Returns whether the adversary sees all that the claim allows, as far as that is proved."""
    curve = cell.trade_off()
    if isinstance(cell.adversary, FinalModelAdversary):  # the last model is the sum of all updates
        options = cell.mechanism.model_dump(include={"optimizer", "schedule"})
        names = [part["name"] for part in options.values()]
        return curve is TradeOff.GAUSSIAN and names == ["sgd", "constant"]
    return curve is not TradeOff.UNKNOWN


def _estimators_through_claim(cell: Cell) -> list[dict[str, Any]] | None:
    """Returns the audit's estimators; the first one that has the option gets `curve: claimed`.

    None if the claimed curve is Gaussian, no estimator has the option, or one has set it.
    """
    if cell.claimed().gaussian:
        return None
    estimators = [{"name": entry.name, **entry.options} for entry in cell.audit.estimators]
    methods = stats.estimators()
    able = [
        entry
        for entry in estimators
        if entry["name"] in methods and base.takes_family(methods[entry["name"]])
    ]
    if not able or any(entry.get("curve") == "claimed" for entry in able):
        return None
    able[0]["curve"] = "claimed"
    return estimators
