"""What a membership attack finds: ROC curve, TPR at low FPR, AUC, balanced accuracy, records' risk.

Scores of one training share its model, so they are dependent, and every interval counts trainings,
which are independent. One score from each: bounds are exact (Clopper, Pearson 1934). Several: they
are of a binomial that varies as trainings do (Korn, Graubard 1998). The TPR at a given FPR is
bounded at thresholds whose own FPR is below, or above, by so many standard deviations (Woodruff
1952): what error is left bounds the TPR there, and the worst of all ways to share it counts.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import numpy as np
import numpy.typing as npt
from scipy import special

from .base import Members, Scores
from .curve import Curve
from .error_rates import Floats, clopper_pearson_lower, clopper_pearson_upper, first_where, in_unit

RATES = (0.1, 0.01, 0.001)  # FPRs that are told, where they are resolved
_FEWEST = 10  # false positives that an FPR must have, of as many scores as there are: 10 / R
# At which error is shared between FPR and TPR; a little more of it, so that none between is worse.
_ANGLES = np.linspace(0, math.pi / 2, 4)
_MORE = 1 / math.cos(math.pi / 12)
_BAND = 12  # FPRs that share the error of the simultaneous band
_CUTS, _BLOCK = 1001, 2**21  # thresholds that are tried; scores that are ranked at once, 16 MiB


@dataclasses.dataclass(frozen=True)
class Interval:
    """A number in [0, 1], with a two-sided interval `low` to `high`."""

    value: float
    low: float
    high: float


@dataclasses.dataclass(frozen=True, eq=False)
class Membership:
    """Scores of an attack, [trainings, records] or one a training [n], and what they show.

    `scores` are higher for "in"; NaN counts as the lowest of all. `members`, bool of their shape,
    are the secret bits. Raises ValueError for other shapes, or where one world has no score.
    """

    scores: Scores
    members: Members
    confidence: float = 0.95

    def __post_init__(self) -> None:
        in_unit("confidence", self.confidence)
        scores, bits = np.asarray(self.scores, np.float64), np.asarray(self.members)
        if scores.ndim not in (1, 2) or bits.shape != scores.shape:
            shapes = f"{scores.shape} and {bits.shape}"
            raise ValueError(f"scores and members must be [trainings, records], got {shapes}")
        inside = bits.astype(np.bool_, copy=False)
        if not 0 < inside.sum() < inside.size or not np.array_equal(inside, bits):
            raise ValueError("members must be 0 or 1 (or booleans), and some of each")
        shape = (len(scores), -1)
        object.__setattr__(self, "scores", scores.reshape(shape))
        object.__setattr__(self, "members", inside.reshape(shape))

    @property
    def least_fpr(self) -> float:
        """The least FPR that so many scores resolve: 10 / R."""
        return _FEWEST / self.scores.size

    @functools.cached_property
    def _worlds(self) -> tuple[_World, _World]:
        return _World.of_bits(self.scores, ~self.members), _World.of_bits(self.scores, self.members)

    def true_positive_rate(self, fpr: float, confidence: float | None = None) -> Interval:
        """The TPR at an FPR in (0, 1), with its interval, at the confidence or another one."""
        in_unit("fpr", fpr)
        alpha = (1 - (self.confidence if confidence is None else confidence)) / 2
        outside, inside = self._worlds
        allowed = math.floor(fpr * outside.n * (1 + 1e-12))
        accused = inside.above(outside.falling[allowed], "left")
        value, low, high = accused / inside.n, 1.0, 0.0
        z, tied = _MORE * float(special.ndtri(1 - alpha)), outside.opposed(allowed, inside, accused)
        for off in z * np.sin(_ANGLES):  # by so many deviations the FPR may be off
            rest = tied * off + math.sqrt((1 - tied**2) * (z**2 - off**2))  # and the TPR by these
            of_fpr, of_tpr = special.ndtr([-off, -rest]).tolist()
            below, beyond = outside.around(fpr, of_fpr)
            edge = 0 if below < 0 else inside.above(outside.falling[below], "left")
            low = min(low, inside.lower(edge, of_tpr))
            edge = inside.n
            if beyond <= outside.n:
                edge = inside.above(outside.falling[beyond - 1], "right")
            high = max(high, inside.upper(edge, of_tpr))
        return Interval(value, min(low, value), max(high, value))

    @functools.cached_property
    def points(self) -> dict[float, Interval]:
        """The TPR at 10 %, 1 % and .1 % FPR, by FPR; without those below `least_fpr`."""
        return {x: self.true_positive_rate(x) for x in RATES if x >= self.least_fpr * (1 - 1e-9)}

    @functools.cached_property
    def roc(self) -> dict[float, Interval]:
        """The ROC curve by rising FPR, from `least_fpr` on, with a simultaneous band.

        From one FPR to the next the TPR is from the `low` of the first to the `high` of the second.
        """
        rates = np.geomspace(min(self.least_fpr, 0.5), 1.0, _BAND + 1)[:-1].tolist()
        confidence = 1 - (1 - self.confidence) / _BAND
        return {rate: self.true_positive_rate(rate, confidence) for rate in rates}

    @functools.cached_property
    def auc(self) -> Interval:
        """The chance that a member scores above another, ties by half (Obuchowski 1997)."""
        outside, inside = self._worlds
        beaten = 1 - inside.placements(outside)  # of each member's score: the share of others below
        beating = outside.placements(inside)
        value = float(beaten.mean())
        moved = inside.sums(beaten - value) / inside.n + outside.sums(beating - value) / outside.n
        return self._interval(value, moved)

    @functools.cached_property
    def balanced_accuracy(self) -> Interval:
        """Computes (TPR + 1 - FPR) / 2 at a threshold that other training runs suggest.

        NaN in 0 to 1 if there is no other training run with scores of both worlds.
        """
        half, thresholds = np.arange(len(self.scores)) % 2 == 0, np.empty((len(self.scores), 1))
        for judged in (half, ~half):
            bits = self.members[~judged]
            if bits.all() or not bits.any():
                return Interval(math.nan, 0.0, 1.0)
            thresholds[judged] = self._best_threshold(~judged)
        above = self.scores > thresholds
        value, moved = 0.0, np.zeros(len(self.scores))
        for world, right in enumerate((~above & ~self.members, above & self.members)):
            of_world, hits = self._worlds[world], right.sum(axis=1)
            rate = float(hits.sum()) / of_world.n
            value += rate / 2
            moved += (hits - rate * of_world.sizes) / of_world.n / 2
        return self._interval(value, moved)

    @functools.cached_property
    def risks(self) -> tuple[Floats, Floats]:
        """Each record's AUC over its trainings [m], and lower bounds of all records together [m].

        NaN and 0 for a record that is always in or out. Trainings are independent, so a variance is
        at most A (1 - A) / min(in, out) (Birnbaum, Klose 1957), which is taken.
        """
        from scipy import stats  # takes half a second to load

        n, m = self.scores.shape
        auc, fewer = np.full(m, np.nan), np.minimum(self.members.sum(0), (~self.members).sum(0))
        for start in range(0, m, size := max(_BLOCK // n, 1)):
            part = slice(start, start + size)
            bits = self.members[:, part]
            ranks, inside = stats.rankdata(_ordered(self.scores[:, part]), axis=0), bits.sum(0)
            sums = np.where(bits, ranks, 0.0).sum(0)
            with np.errstate(invalid="ignore"):
                auc[part] = (sums - inside * (inside + 1) / 2) / (inside * (n - inside))
        filled = np.clip(np.nan_to_num(auc), 0.0, 1.0)
        low = clopper_pearson_lower(filled * fewer, fewer, (1 - self.confidence) / m)
        return auc, np.asarray(low)

    @property
    def exposed(self) -> npt.NDArray[np.int64]:
        """Numbers of the records whose bound is above 1/2, the most exposed first, [k]."""
        auc, low = self.risks
        ranked = np.lexsort((-auc, -low))
        return ranked[low[ranked] > 0.5]

    def _best_threshold(self, rows: Members) -> float:
        """Of 1,000 quantiles of these trainings' scores that of the largest TPR - FPR."""
        scores, bits = _ordered(self.scores[rows]), self.members[rows]
        cuts = np.sort(scores, axis=None)[np.linspace(0, scores.size - 1, _CUTS).astype(int)]
        below = [
            np.searchsorted(np.sort(scores[world]), cuts, "right") / max(int(world.sum()), 1)
            for world in (~bits, bits)
        ]
        return float(cuts[np.argmax(below[0] - below[1])])

    def _interval(self, value: float, moved: Floats) -> Interval:
        """Of a mean, from what each training moves it by, float64 [trainings]."""
        alpha = (1 - self.confidence) / 2
        size = _effective(value, moved, self.scores.size, alpha)
        how = value * size, size, alpha
        return Interval(value, clopper_pearson_lower(*how), clopper_pearson_upper(*how))


@dataclasses.dataclass(frozen=True, eq=False)
class _World:
    """Its n scores from the highest on, negated, their trainings, and how many each has."""

    falling: Floats
    rows: npt.NDArray[np.int32]
    sizes: Floats

    @classmethod
    def of_bits(cls, scores: Scores, chosen: Members) -> _World:
        values, sizes = _ordered(scores[chosen]), chosen.sum(axis=1)
        rows = np.repeat(np.arange(len(scores), dtype=np.int32), sizes)
        order = np.argsort(-values, kind="stable")
        return cls(-values[order], rows[order], sizes.astype(np.float64))

    @property
    def n(self) -> int:
        return len(self.falling)

    def above(self, falling: float, side: str) -> int:
        """Scores above another (`left`), or from there on (`right`)."""
        return int(np.searchsorted(self.falling, falling, side))  # type: ignore[call-overload]

    def sums(self, values: Floats) -> Floats:
        """By training, float64 [trainings], of a value for each score."""
        return np.asarray(np.bincount(self.rows, values, len(self.sizes)), np.float64)

    def placements(self, other: _World) -> Floats:
        """The share of the other world's scores that are above each score, ties by half, [n]."""
        ends = (np.searchsorted(other.falling, self.falling, side) for side in ("left", "right"))
        return np.asarray(sum(ends) / (2 * other.n))

    def around(self, rate: float, alpha: float) -> tuple[int, int]:
        """The most highest scores of a rate surely below, and the fewest of one at least that."""
        below = first_where(lambda k: self.upper(k, alpha) > rate, self.n) - 1
        return below, first_where(lambda k: self.lower(k, alpha) >= rate, self.n + 1)

    def opposed(self, k: int, other: _World, j: int) -> float:
        """How much trainings with more of the k highest have fewer of the other's j, in [0, 1]."""
        moved = self._moved(k), other._moved(j)
        scale = math.sqrt(float(moved[0] @ moved[0]) * float(moved[1] @ moved[1]))
        return min(max(-float(moved[0] @ moved[1]) / scale, 0.0), 1.0) if scale > 0 else 0.0

    def upper(self, k: int, alpha: float) -> float:
        """Bound on the chance of a score as high as the k highest ones; exceeded with `alpha`."""
        return float(clopper_pearson_upper(*self._counts(k, alpha), alpha))

    def lower(self, k: int, alpha: float) -> float:
        return float(clopper_pearson_lower(*self._counts(k, alpha), alpha))

    def _counts(self, k: int, alpha: float) -> tuple[float, float]:
        if self.sizes.max() <= 1:  # independent
            return k, self.n
        rate = k / self.n
        size = _effective(rate, self._moved(k), self.n, alpha)
        return rate * size, size

    def _moved(self, k: int) -> Floats:
        """By how much each training moves the share of the k highest, float64 [trainings]."""
        counts = np.bincount(self.rows[:k], minlength=len(self.sizes))
        return np.asarray((counts - k / self.n * self.sizes) / self.n, np.float64)


def _effective(value: float, moved: Floats, most: int, alpha: float) -> float:
    """Independent scores whose mean varies as much; where nothing varies, one for each training."""
    n = len(moved)
    if n < 2:
        return 0.0
    variance, spread = n / (n - 1) * float(moved @ moved), value * (1 - value)
    size = min(spread / variance, most) if variance > 0 < spread else min(n, most)
    level = max(1 - alpha, 0.51)  # both quantiles are 0 at 1/2
    return size * float(special.ndtri(level) / special.stdtrit(n - 1, level)) ** 2


def _ordered(scores: Scores) -> Scores:
    """NaN as the lowest score."""
    return np.where(np.isnan(scores), -np.inf, scores)


def sentence(fpr: float, rate: Interval, confidence: float, claim: Curve | None = None) -> str:
    """A TPR in words, of 1,000 members, beside the most that a `claim` allows any attack."""
    low, high = math.floor(1000 * rate.low), math.ceil(1000 * rate.high)
    text = (
        f"of 1,000 members, an attacker who accuses {1000 * fpr:g} of 1,000 strangers wrongly "
        f"finds {1000 * rate.value:.0f} by these scores ({100 * confidence:g} %: {low} to {high})"
    )
    if claim is None:
        return text
    if (most := math.ceil(1000 * float(claim.true_positive_rate(fpr)[0]))) == 1000:
        return f"{text}; the claim excludes no number"
    return f"{text}; by the claim any attacker finds at most {most}"
