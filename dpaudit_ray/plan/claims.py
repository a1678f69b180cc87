"""Claims of accountants for each audit: computed with its plan, and checked when that is read."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .. import accounting, imports
from ..accounting import Claim, Training
from ..errors import SpecError, plain
from ..stats import curve, gdp
from ..stats.claim_verdict import ClaimTest, RunTest
from ..stats.curve import Curve
from ..sweep.cell import Cell
from .model import PlannedAudit

Floats = NDArray[np.float64]
Claims = Mapping[str, tuple[float, ...]]  # ε at each recorded step, by accountant
# A recorded ε may differ from the one that is computed here.
_SCIPY_DIFFERENCE = 1e-6  # between versions of scipy, relative
_ACCOUNTANT_DIFFERENCE = 1e-3  # between versions of an accountant, relative
_NUMERICAL_ERROR = 0.02  # absolute error of numerical accountants if no step is sampled
_NUMERICAL = ("pld", "prv")  # accountants


def claimed_epsilons(cell: Cell) -> dict[str, tuple[float, ...]]:
    """Returns ε by every accountant at every recorded step.

    Raises:
        SpecError: an accountant has no answer.
    """
    claimed = of_steps(cell)
    return {name: epsilons_by(claimed, cell.audit.delta, name) for name in cell.audit.accountants}


def of_steps(cell: Cell) -> tuple[Claim, ...]:
    """Returns the claim at each recorded step."""
    return tuple(map(cell.claimed, cell.horizons))


def difference(claims: Claims, cell: Cell) -> str | None:
    """Returns how recorded claims differ from what the audit claims; None if they do not.

    Accountants that may take minutes are queried for the last step only; others must lie in bounds.

    Args:
        claims: ε at each recorded step, by accountant.
        cell: the audit.
    """
    if list(claims) != cell.audit.accountants:
        return f"accountants are {', '.join(claims)}, not {', '.join(cell.audit.accountants)}"
    claimed = of_steps(cell)
    for name, values in claims.items():
        if imports.stays_unimported(name) or imports.stays_unimported(claimed[-1].code):
            continue  # a user's accountant or claim that was not imported
        low, high = _epsilon_range(claimed, cell.audit.delta, name)
        epsilons = np.array(values)
        wrong = np.flatnonzero(~((low <= epsilons) & (epsilons <= high)))
        if len(wrong):
            last = wrong[-1]
            return (
                f"its claim after step {cell.horizons[last]} by {name} is {values[last]:.6g}, not "
                f"{low[last]:.6g} to {high[last]:.6g}"
            )
    return None


def _epsilon_range(
    claimed: tuple[Claim, ...],
    delta: float,
    name: str,
) -> tuple[Floats, Floats]:
    """Returns the smallest and the largest ε that may be recorded for each step, float64.

    Most accountants would take minutes for all steps. So they compute the last step only, and no
    earlier step may claim more. For Gaussian training, no step may claim less than its exact ε.

    Args:
        claimed: claim at each recorded step.
        delta: δ.
        name: name of the accountant.
    """
    last = claimed[-1]
    steps = len(claimed)
    trainings = [claim for claim in claimed if isinstance(claim, Training)]
    # There is no lower bound: a user's accountant may even claim less than is true.
    if not trainings or not last.gaussian or ":" in name:
        last_epsilon = _cached_epsilon(last, delta, name)
        low = np.zeros(steps)
        low[-1] = last_epsilon * (1 - _ACCOUNTANT_DIFFERENCE)
        return low, np.full(steps, last_epsilon * (1 + _ACCOUNTANT_DIFFERENCE))
    mus = list(map(_mu, trainings))
    exact = np.asarray(gdp.epsilon(mus, delta))
    if name == "gaussian":
        high = exact * (1 + _SCIPY_DIFFERENCE) + _SCIPY_DIFFERENCE
    elif name in _NUMERICAL:
        high = exact * (1 + _ACCOUNTANT_DIFFERENCE) + _NUMERICAL_ERROR
    else:
        last_epsilon = _cached_epsilon(last, delta, name)
        high = np.full(steps, last_epsilon * (1 + _ACCOUNTANT_DIFFERENCE))
    return exact * (1 - _SCIPY_DIFFERENCE) - _SCIPY_DIFFERENCE, high


def _mu(training: Training) -> float:
    """Returns μ of a training run whose steps are not amplified by sampling."""
    fixed = training.unamplified
    if not fixed.unit_noise:
        return math.inf
    return math.sqrt(fixed.steps) / fixed.unit_noise


@lru_cache(maxsize=1024)
def _cached_epsilon(claimed: Claim, delta: float, name: str) -> float:
    """Returns ε of one claim.

    Args:
        claimed: the claim.
        delta: δ of the claim.
        name: name of the accountant.
    """
    return epsilons_by((claimed,), delta, name)[0]


def epsilons_by(
    claimed: tuple[Claim, ...],
    delta: float,
    accountant: str,
) -> tuple[float, ...]:
    """Returns ε by one accountant at every recorded step.

    Args:
        claimed: the claim at each of these steps.
        delta: δ of the claims.
        accountant: name of the accountant of a training run; `stated` for other claims.

    Raises:
        SpecError: the accountant has no answer.
    """
    last = claimed[-1]
    if not isinstance(last, Training):
        return _stated(claimed, delta, accountant)
    if delta == 0:
        raise SpecError("audit.delta", "is 0, where Gaussian noise claims no ε; use a larger one")
    # With correlated noise, all steps up to a recorded one are a single release.
    if len({claim.noise for claim in claimed}) > 1:
        return tuple(epsilons_by((claim,), delta, accountant)[0] for claim in claimed)
    steps = [claim.steps for claim in claimed if isinstance(claim, Training)]
    try:
        epsilons = accounting.curve(last, steps, delta, accountant)
    except (ValueError, ArithmeticError) as error:
        raise SpecError(
            "audit.accountants",
            f"{accountant} gives no claim for a noise multiplier of {plain(last.noise_multiplier)} "
            f"and a sample rate of {plain(last.sample_rate)} ({error}); choose another accountant",
        ) from error
    return tuple(epsilons.tolist())


def _stated(
    claimed: tuple[Claim, ...],
    delta: float,
    accountant: str,
) -> tuple[float, ...]:
    """Returns ε of stated claims. Raises SpecError for a δ at which they have no ε.

    Args:
        claimed: claim at each recorded step.
        delta: δ.
        accountant: the accountant that the audit names; only `stated` is allowed.
    """
    if accountant != accounting.STATED:
        raise SpecError(
            "audit.accountants",
            f"is {accountant}, but the mechanism states its claim, {claimed[-1].words}; leave it "
            "out",
        )
    epsilons = tuple(claim.epsilon_at(delta) for claim in claimed)
    if math.inf in epsilons:
        raise SpecError(
            "audit.delta",
            f"is {plain(delta)}, where {claimed[-1].words} claims no ε; use a larger delta",
        )
    return epsilons


def is_gaussian(cell: Cell, accountant: str) -> bool:
    """Returns whether a bound that assumes a Gaussian curve may be compared with the claim.

    Both the mechanism and its claim must be Gaussian: then the claim is refuted by a larger μ. A
    user-defined accountant may claim any curve.
    """
    if ":" in accountant or not cell.mechanism.adds_gaussian_noise:
        return False
    return cell.claimed().gaussian


def test(audit: PlannedAudit, cell: Cell) -> ClaimTest | RunTest:
    """Returns the test of what the first accountant claims at the last step.

    Args:
        audit: the audit as planned, whose trials the test fits.
        cell: the audit as the sweep has it.
    """
    claimed = cell.claimed()
    curves = family(cell)
    curve = curves(claimed.noise)
    first, *later = audit.foreseen  # numbers of trials after which the test may look
    if audit.independent:
        alternatives = None if claimed.worst_is_gaussian else curves
        log_odds = cell.adversary.log_odds
        delta = cell.audit.delta if log_odds else None
        return ClaimTest(curve, first, alternatives, tuple(later), log_odds, delta)
    planned = audit.looks[-1] if later else first
    return RunTest(curve, planned, audit.together, audit.paired)


def family(cell: Cell) -> Callable[[float], Curve]:
    """Returns the `curves` that the first accountant claims at the last step."""
    return curves(cell.claimed(), cell.audit.accountants[0], cell.audit.delta)


@lru_cache(maxsize=256)  # families; audits of the same claim share one
def curves(
    claimed: Claim,
    accountant: str,
    delta: float,
) -> Callable[[float], Curve]:
    """Returns a function from a noise multiplier to the curve that an accountant claims for it.

    Args:
        claimed: the claim, whose noise multiplier is replaced.
        accountant: name of the accountant.
        delta: δ at which the curve has to be accurate.
    """

    @lru_cache(maxsize=64)  # a search for the effective noise tries ten at most
    def at_noise(noise: float) -> Curve:
        """Returns the claimed mechanism's curve with this noise instead."""
        if not isinstance(claimed, Training):
            return claimed.weakened(noise).curve
        training = replace(claimed, noise_multiplier=noise)
        if claimed.gaussian and (accountant == "gaussian" or not noise):
            return curve.gaussian(_mu(training))
        # The curve is computed at the ε of a Gaussian curve that has the same ε at δ.
        epsilon = accounting.epsilon_of(training, delta, accountant).upper
        epsilons = curve.gaussian(float(gdp.mu(epsilon, delta))).epsilons
        return at_points(training, epsilons, accountant)

    return at_noise


def at_points(claimed: Claim, epsilons: Floats, accountant: str) -> Curve:
    """Returns the points of a claimed curve.

    Args:
        claimed: the claim.
        epsilons: ε of each point, float64 [n].
        accountant: name of the accountant, if the claim is that of a training run.
    """
    deltas = [
        accounting.delta_of(claimed, epsilon, accountant).upper for epsilon in epsilons.tolist()
    ]
    return Curve(epsilons, np.minimum(deltas, 1.0))
