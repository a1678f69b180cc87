"""Claims of trainings whose noise or rate changed: events as Opacus' accountants keep them."""

from __future__ import annotations

from collections.abc import Iterable

from .accountant import UnansweredError, find
from .claims import epsilon_of
from .training import Adjacency, Training, check_delta

Event = tuple[float, float, int]  # noise multiplier, sample rate, steps


def events_epsilon(
    events: Iterable[Event],
    delta: float,
    accountant: str = "pld",
    adjacency: str = Adjacency.ADD_REMOVE,
) -> float:
    """Upper bound on ε at δ of Poisson-sampled steps with different noise or rates.

    Args:
        events: (noise multiplier, sample rate, steps) each, in any order, as in the `history` of
            an Opacus accountant; those that are alike are counted together.
        delta: δ of the claim, in (0, 1).
        accountant: `pld`, `prv` (the PLD where it fails), `rdp`, or `gaussian` where all rates are
            1; or one of your own that defines `composed`.
        adjacency: `add-remove` or `replace`.

    Raises:
        ValueError: a value outside its bounds, or an accountant that cannot give a bound.
    """
    check_delta(delta)
    counts: dict[tuple[float, float], int] = {}
    for noise, rate, steps in events:
        Training(noise, steps, rate, adjacency)
        counts[noise, rate] = counts.get((noise, rate), 0) + steps
    whole = tuple(
        Training(noise, steps, rate, adjacency) for (noise, rate), steps in counts.items() if steps
    )
    if any(one.noise_multiplier == 0 for one in whole):
        return float("inf")
    if len(whole) <= 1:
        return max((epsilon_of(one, delta, accountant).upper for one in whole), default=0.0)
    asked = find(accountant)
    try:
        return asked.composed(whole, delta)[2]
    except UnansweredError:
        return find("pld").composed(whole, delta)[2]
