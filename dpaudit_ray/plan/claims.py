"""What accountants promise of each audit: computed with its plan, held against it on reading."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from .. import accounting, imports
from ..accounting import Training
from ..errors import SpecError, plain
from ..mechanisms.base import Claimed
from ..stats import curve, gdp
from ..stats.claim_verdict import ClaimTest, RunTest
from ..stats.curve import Curve
from ..sweep.cell import Cell
from .model import PlannedAudit

Floats = npt.NDArray[np.float64]
Claims = Mapping[str, tuple[float, ...]]  # ε at each recorded step, by accountant
_CLOSE = 1e-6  # relative: what versions of scipy differ by
_AGAIN = 1e-3  # relative: what another version of an accountant may differ by
_NUMERIC = 0.02  # and what one that composes numerically is off by where no step is sampled
_NUMERICAL = ("pld", "prv")


def claimed_epsilons(cell: Cell) -> dict[str, tuple[float, ...]]:
    """ε of every accountant at every recorded step. Raises SpecError where one has no answer."""
    claimed = asked(cell)
    return {name: by(claimed, cell.audit.delta, name) for name in cell.audit.accountants}


def asked(cell: Cell) -> tuple[Claimed, ...]:
    """What the accountants are asked at each recorded step."""
    return tuple(cell.mechanism.claimed(cell.adversary, step) for step in cell.horizons)


def difference(claims: Claims, cell: Cell) -> str | None:
    """Where recorded claims are not those of the audit, in words; None where they are.

    Accountants that may take minutes are asked for the last step only; others must lie in bounds.
    """
    if list(claims) != cell.audit.accountants:
        return f"accountants are {', '.join(claims)}, not {', '.join(cell.audit.accountants)}"
    claimed = asked(cell)
    for name, values in claims.items():
        if ":" in name and imports.is_data(name):
            continue  # what takes code of somebody's own to tell is known from the record only
        low, high = _range(claimed, cell.audit.delta, name)
        wrong = np.argwhere(~((low <= np.array(values)) & (np.array(values) <= high)))
        if len(wrong):
            at = int(wrong[-1][0])
            return (
                f"its claim after step {cell.horizons[at]} by {name} is {values[at]:.6g}, not "
                f"{low[at]:.6g} to {high[at]:.6g}"
            )
    return None


def _range(claimed: tuple[Claimed, ...], delta: float, name: str) -> tuple[Floats, Floats]:
    """Between what claims must lie, float64 [steps] each."""
    last = claimed[-1]
    if not last.gaussian or ":" in name:  # one of somebody's own may promise too much
        top = _last(last, delta, name)
        low = np.zeros(len(claimed))
        low[-1] = top * (1 - _AGAIN)
        return low, np.full(len(claimed), top * (1 + _AGAIN))
    exact = np.asarray(gdp.epsilon([_mu(training.training) for training in claimed], delta))
    if name == "gaussian":
        high = exact * (1 + _CLOSE) + _CLOSE
    elif name in _NUMERICAL:
        high = exact * (1 + _AGAIN) + _NUMERIC
    else:
        high = np.full(len(claimed), _last(last, delta, name) * (1 + _AGAIN))
    return exact * (1 - _CLOSE) - _CLOSE, high


def _mu(training: Training) -> float:
    """Of what is claimed without amplification."""
    fixed = training.unamplified
    return math.sqrt(fixed.steps) / fixed.unit_noise if fixed.unit_noise else math.inf


@functools.lru_cache(maxsize=1024)
def _last(claimed: Claimed, delta: float, name: str) -> float:
    return by((claimed,), delta, name)[0]


def by(claimed: tuple[Claimed, ...], delta: float, accountant: str) -> tuple[float, ...]:
    """ε of one accountant at every recorded step. Raises SpecError where it has no answer."""
    last, releases = claimed[-1], [training.releases for training in claimed]
    try:
        epsilons = accounting.curve(last.training, releases, delta, accountant)
    except (ValueError, ArithmeticError) as error:
        raise SpecError(
            "audit.accountants",
            f"{accountant} gives no claim for a noise multiplier of {plain(last.noise_multiplier)} "
            f"and a sample rate of {plain(last.sample_rate)} ({error}); choose another accountant",
        ) from error
    return tuple(epsilons.tolist())


def is_gaussian(cell: Cell, accountant: str) -> bool:
    """Returns whether a bound that assumes a Gaussian curve may be compared with the claim.

    Both the mechanism and its claim must be Gaussian: then the claim is refuted by a larger μ. An
    accountant of the user's own may claim any curve.
    """
    if ":" in accountant or not cell.mechanism.adds_gaussian_noise:
        return False
    return cell.mechanism.claimed(cell.adversary, cell.horizons[-1]).gaussian


def test(audit: PlannedAudit, curve: Curve) -> ClaimTest | RunTest:
    """What holds the trials of an audit against a claim, by what they are."""
    first, *later = audit.foreseen
    if audit.independent:
        return ClaimTest(curve, first, later=tuple(later))
    return RunTest(curve, audit.looks[-1] if later else first, audit.together, audit.paired)


def first_test(audit: PlannedAudit, cell: Cell) -> ClaimTest | RunTest:
    """Returns the test of what the first accountant claims at the last step."""
    claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
    family = curves(claimed, next(iter(audit.claims)), cell.audit.delta)
    return test(audit, family(claimed.noise_multiplier))


@functools.lru_cache(maxsize=256)  # families; audits of the same claim share one
def curves(claimed: Claimed, accountant: str, delta: float) -> Callable[[float], Curve]:
    """Returns the curve that `accountant` claims by noise multiplier, all else as in `claimed`."""

    @functools.lru_cache(maxsize=64)  # a search for the effective noise tries ten at most
    def at_noise(noise: float) -> Curve:
        training = dataclasses.replace(claimed.training, noise_multiplier=noise)
        if claimed.gaussian and (accountant == "gaussian" or not noise):
            return curve.gaussian(_mu(training))
        # The points that matter are those of the Gaussian claim with the same ε at δ.
        epsilon = accounting.epsilon_of(training, delta, accountant).upper
        epsilons = curve.gaussian(float(gdp.mu(epsilon, delta))).epsilons
        return at_points(training, epsilons, accountant)

    return at_noise


def at_points(training: Training, epsilons: Floats, accountant: str) -> Curve:
    """What `accountant` claims of a training at each ε, float64 [n]."""
    deltas = [accounting.delta_of(training, float(e), accountant).upper for e in epsilons]
    return Curve(epsilons, np.minimum(deltas, 1.0))
