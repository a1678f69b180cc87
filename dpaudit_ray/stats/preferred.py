"""Which bound speaks for an audit when nothing is assumed about its trade-off curve.

The choice is by method, made before any trial is seen: the larger of two bounds that hold at 95 %
each holds at 90 %.
"""

from __future__ import annotations

from collections.abc import Iterable

from .statement import Estimate

# The strongest first, for scores of many trainings and of one.
_MANY_RUNS = ("one-run", "eps-delta", "eps-delta-anytime")
_ONE_RUN = ("one-run",)


def curve_free_method(one_run: bool = False) -> str:
    """The strongest method, for trainings or for the canaries of one (`one_run`)."""
    return (_ONE_RUN if one_run else _MANY_RUNS)[0]


def curve_free(estimates: Iterable[Estimate]) -> Estimate | None:
    """The one of these estimates of one audit that stands for it; None where all assume a curve."""
    found = [estimate for estimate in estimates if estimate.curve_free]
    return min(found, key=_rank, default=None)  # ties: the one that is listed first


def _rank(estimate: Estimate) -> int:
    order = (*_MANY_RUNS, *_ONE_RUN)
    return order.index(estimate.method) if estimate.method in order else len(order)
