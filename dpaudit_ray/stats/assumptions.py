"""The one bound on ε that is reported beside every bound that assumes something."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .base import check_coins, check_level, checked, make
from .preferred import curve_free_method
from .statement import Estimate


def assumption_free(
    scores: npt.ArrayLike,
    members: npt.ArrayLike,
    delta: float,
    confidence: float,
    *,
    planned: int | None = None,
    missed: npt.ArrayLike | None = None,
) -> Estimate:
    """Certified (ε, δ) bound from independent trainings, whatever their trade-off curve.

    The same method on every audit, so nothing is chosen by what it shows: `one-run` for
    independent trainings, which learns on early trials whether one-sided guesses show more.

    Args:
        scores: float [R], in trial order, one per training, higher = more "in". NaN and ±inf mark
            diverged trainings, which are an outcome to bet on.
        members: bool [R], the secret bits; must be fair and independent coin flips.
        delta: δ of the bound, in (0, 1).
        confidence: level of the bound, in (0, 1).
        planned: trials that the audit declared; the R at hand unless given.
        missed: bool [R], trials that were run and gave no output; wrong guesses, whatever their
            score. None unless given.

    Raises:
        ValueError: an argument outside its bounds; the message names value and bound.
    """
    values, bits = checked(scores, members)
    check_level(delta, confidence)
    lost = np.zeros(len(values), np.bool_) if missed is None else np.asarray(missed, np.bool_)
    if lost.shape != values.shape:
        raise ValueError(f"missed must be one flag per score, got shape {lost.shape}")
    state = make(curve_free_method(), len(values) if planned is None else planned, independent=True)
    check_coins(bits, state)
    cuts = np.flatnonzero(np.diff(lost)) + 1
    for part in np.split(np.arange(len(values)), cuts):
        if len(part) and lost[part[0]]:
            state.miss(bits[part])
        else:
            state.fold(values[part], bits[part])
    return state.bound(delta, confidence)
