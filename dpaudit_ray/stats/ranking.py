"""Guesses in the order of their confidence, and how often the surest of them may be wrong.

All trials of a group are guessed and ranked by |score - centre|. A mistake at rank i costs w_i,
w_1 ≥ w_2 ≥ ...; the sum is small when the surest guesses are right. Whatever the mechanism is:

Given the outputs of independent trainings, mistakes are independent, since each bit has a coin of
its own. A claim bounds each training by a randomised response of random, open confidence
(`curve`), of which its output is a noisy copy; given those answers, a guess errs with probability
e_i or 1 - e_i ≥ e_i. Exchanging two weights so that the larger one falls to the smaller e moves
the sum of the two down stochastically (the outcomes "none" and "both" keep their probability, the
one that costs more loses). So no guesses and no order, picked from outputs in any way, have a
stochastically smaller sum than the surest-first order of the randomised responses themselves,
and that sum can be simulated (after Xiang, Wang, Lin, Qiu 2025, who do it for one training).
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt

from .base import Members, Scores
from .curve import Curve, Responses
from .diverged import Diverged

Floats = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]

_BLOCKS = 32  # ranks of equal weight: finer ones change the power by less than the simulation
_LLOYD = 20


@dataclasses.dataclass(frozen=True)
class Group:
    """Trials that are ranked together: `mistakes` bool [n], the surest guess first."""

    mistakes: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, scores: Scores, members: Members, centre: float, diverged: Diverged) -> Group:
        """Guesses "in" above `centre`, surest where the score is furthest from it.

        Args:
            scores: float64 [n]; NaN marks a trial that counts as a miss, ±inf a diverged one.
            members: bool [n].
            centre: a function of outputs and of earlier bits.
            diverged: what earlier trials teach about diverged ones.
        """
        missed, lost = np.isnan(scores), np.isinf(scores)
        with np.errstate(invalid="ignore", over="ignore"):
            distance = np.abs(scores - centre)
            guessed = np.where(lost, diverged.guessed_in, scores > centre)
        distance[lost] = np.inf if diverged.sure else 0.0
        distance[missed] = np.inf
        wrong = (guessed != members) | missed
        return cls(wrong[np.argsort(-distance, kind="stable")])


@dataclasses.dataclass(frozen=True)
class Weights:
    """What a mistake costs in each block of ranks of groups of given sizes.

    `edges` int64 [blocks + 1] from rank 0 to the group's size, `costs` float64 [blocks].
    """

    edges: Counts
    costs: Floats

    @classmethod
    def of(cls, size: int, responses: Responses) -> Weights:
        """The log odds that the claim's surest answers have at these ranks.

        Blocks are narrow where the claim makes mistakes, half by rank and half by mistakes.
        """
        ends = np.cumsum(responses.shares)
        errors = np.cumsum(responses.shares * responses.mistakes)
        share = np.concatenate([[0.0], (ends + errors / max(errors[-1], 1e-300)) / 2])
        cuts = np.interp(
            np.linspace(0, share[-1], _BLOCKS + 1), share, np.concatenate([[0.0], ends])
        )
        edges = np.unique(np.round(cuts * size / cuts[-1]).astype(np.int64))
        return cls(edges, responses.mean_log_odds(edges[:-1] / size, edges[1:] / size))

    def cost(self, group: Group) -> float:
        """The cost of a group's mistakes."""
        return float(np.add.reduceat(group.mistakes, self.edges[:-1], dtype=np.int64) @ self.costs)


@functools.lru_cache(maxsize=64)
def simulated(sizes: tuple[int, ...], claim: ClaimKey, draws: int, seed: int = 0) -> Floats:
    """Costs of groups of these sizes under the claim's worst mechanism, float64 [draws, groups]."""
    responses = Responses.of(claim.curve)
    rng = np.random.default_rng(seed)
    weights = {size: Weights.of(size, responses) for size in set(sizes)}
    columns = [drawn(size, weights[size], responses, draws, rng) for size in sizes]
    return np.stack(columns, axis=1)


@dataclasses.dataclass(frozen=True)
class ClaimKey:
    """A curve that can be looked up: equal when its points are."""

    epsilons: tuple[float, ...]
    deltas: tuple[float, ...]

    @classmethod
    def of(cls, curve: Curve) -> ClaimKey:
        """The key of a curve."""
        return cls(tuple(curve.epsilons.tolist()), tuple(curve.deltas.tolist()))

    @property
    def curve(self) -> Curve:
        """The curve again."""
        return Curve(np.array(self.epsilons), np.array(self.deltas))


def drawn(
    size: int, weights: Weights, responses: Responses, draws: int, rng: np.random.Generator
) -> Floats:
    """Costs of one group, float64 [draws].

    Trials of one level and one block of ranks are alike, so each such overlap is one binomial:
    the effort does not depend on the group's size.
    """
    shares = responses.shares / responses.shares.sum()
    ends = rng.multinomial(size, shares, size=draws).cumsum(axis=1)
    levels, blocks = ends.shape[1], len(weights.costs)
    bounds = np.concatenate([ends, np.broadcast_to(weights.edges[1:], (draws, blocks))], axis=1)
    order = np.argsort(bounds, axis=1, kind="stable")
    bounds = np.take_along_axis(bounds, order, axis=1)
    # An overlap ends at each bound; it belongs to the level and the block that are still open.
    is_level = order < levels
    level = np.minimum(np.cumsum(is_level, axis=1) - is_level, levels - 1)
    block = np.minimum(np.cumsum(~is_level, axis=1) - ~is_level, blocks - 1)
    trials = np.diff(bounds, axis=1, prepend=0)
    costs = np.zeros(bounds.shape)
    some = trials > 0
    costs[some] = rng.binomial(trials[some], responses.mistakes[level[some]])
    return np.asarray((costs * weights.costs[block]).sum(axis=1))


def two_means(values: Scores) -> float:
    """The midpoint of the two groups of the finite values (Lloyd's iteration); NaN for none.

    A function of the outputs alone, so it may be taken from the very trials that are judged.
    """
    finite = np.sort(values[np.isfinite(values)])
    if (n := len(finite)) == 0:
        return math.nan
    scale = float(np.abs(finite[[0, -1]]).max()) or 1.0  # sums of the largest would overflow
    sums = np.cumsum(finite / scale)
    centre = float(np.median(finite)) / 2 + float(sums[-1] / n) * scale / 2
    for _ in range(_LLOYD):
        below = int(np.searchsorted(finite, centre, side="right"))
        if below in (0, n):
            break
        low, high = sums[below - 1] / below, (sums[-1] - sums[below - 1]) / (n - below)
        moved = float((high + low) / 2 * scale)
        if moved == centre:
            break
        centre = moved
    return centre
