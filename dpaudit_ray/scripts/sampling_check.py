"""L0: were records drawn as the accountant took them to be? Poisson sampling, mostly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from .script_findings import Finding, Judged, Look, Weight

_FEW = 10  # draws from which their spread says something
_FEW_DRAWN = 8.0  # records per draw, below which its size is not held against a normal law
_LIMIT = 6.0  # standard deviations, where the law is only close to normal
_DRAWN = "sampling"

Floats = npt.NDArray[np.float64]


def judge(told: dict[str, Any], level: float, delta: float) -> Judged:
    """Draws of all loaders against what was accounted.

    Args:
        told: what the run returned.
        level: chance of a false alarm, for each of two kinds of tests.
        delta: δ of the promise.
    """
    history = [entry for claim in told["claims"] for entry in claim["history"]]
    if not told["draws"]:
        own = "no loader was seen to draw: records are sampled by code of the script's own"
        if history and all(rate >= 1 for _, rate, _ in history):
            return Judged(
                (), (Look(0, _DRAWN, True, "every record is in every step, as accounted"),)
            )
        return Judged((), (Look(0, _DRAWN, False, own),), complete=False)
    if not history:
        return Judged((), (Look(0, _DRAWN, False, "nothing was accounted"),))
    findings: list[Finding] = []
    said = ""
    for draws in told["draws"]:
        rate = draws.get("rate") or max(rate for _, rate, _ in history)
        if rate >= 1:
            found = _known(draws, history) if "most" in draws else []
            said = f"every record may be in every of {len(draws['sizes'])} steps, as accounted"
        else:
            found = _poisson(draws, rate, level / len(told["draws"]), told, delta)
            total, n = sum(draws["sizes"]), draws["records"] * len(draws["sizes"])
            said = f"{len(draws['sizes'])} draws at a rate of {total / max(n, 1):.4g}"
        findings += found
    lost = sum(1 for size in told["unused"] if size > 0)
    if lost:
        seen = f"{lost} draws that led to no step"
        findings.append(
            Finding(0, _DRAWN, Weight.WARNING, "the loop", "a step for every draw", seen,
                    "which draws are passed over must not depend on their records")
        )  # fmt: skip
    empty = sum(1 for size in told["unused"] if size == 0)
    if empty:
        findings.append(
            _violation(
                "a step for every draw, empty ones too",
                f"{empty} empty draws that were passed over",
                "take the step: its noise hides that nobody was drawn",
            )
        )
    return Judged(tuple(findings), (Look(0, _DRAWN, True, said),))


def _known(draws: dict[str, Any], history: list[list[float]]) -> list[Finding]:
    """Without amplification a record may be in as many steps as were accounted."""
    counted = sum(int(steps) for _, _, steps in history)
    if draws["most"] <= counted:
        return []
    seen = f"one that was in {draws['most']}"
    return [_violation(f"no record in more than {counted} steps, which were accounted", seen)]


def _poisson(
    draws: dict[str, Any], rate: float, level: float, told: dict[str, Any], delta: float
) -> list[Finding]:
    n, sizes = draws["records"], np.array(draws["sizes"], dtype=np.float64)
    total, most = int(sizes.sum()), n * len(sizes)
    if total > 0 and special.bdtrc(total - 1, most, rate) < level / 2:
        return [
            _violation(
                f"a rate of {rate:.4g}, as accounted",
                f"{total / most:.4g}: {total} records in {len(sizes)} draws of {n}",
                "account the rate that the loader draws at",
            )
        ]
    if draws.get("twice"):
        seen = f"{draws['twice']} records that were drawn twice into one batch"
        return [_violation("a record once in a batch", seen)]
    spread = float(np.sum((sizes - n * rate) ** 2)) / (n * rate * (1 - rate))
    fixed = len(sizes) >= _FEW and special.gammainc(len(sizes) / 2, spread / 2) < level / 6
    # Where few records are drawn at a time, sizes are far from normal.
    spreads = n * rate >= _FEW_DRAWN
    fixed = fixed and spreads
    far = _shared(draws, rate)
    if far < -_LIMIT:
        return [_not_poisson("shuffled: each record once in a pass", told, rate, delta, True)]
    if fixed:
        return [_not_poisson("of a fixed size", told, rate, delta, False)]
    empty = (1 - rate) ** n
    if (sizes > 0).all() and len(sizes) * math.log1p(-min(empty, 1 - 1e-12)) < math.log(level / 6):
        return [
            _violation(
                f"about {len(sizes) * empty:.0f} empty draws", "none in all",
                "keep empty batches: without them, that a step is taken tells who was drawn",
            )
        ]  # fmt: skip
    wide = special.gammaincc(len(sizes) / 2, spread / 2) < level / 6
    if far > _LIMIT or (spreads and wide):
        seen = "draws that hang together"
        return [_violation("independent draws of every record", seen)]
    return []


def _shared(draws: dict[str, Any], rate: float) -> float:
    """By how many standard deviations more records are shared within windows than by chance."""
    window, windows = draws.get("window", 0), draws.get("windows", 0)
    if windows == 0:
        return 0.0
    k = np.arange(min(window, 60) + 1, dtype=np.float64)
    chance = special.binom(window, k) * rate**k * (1 - rate) ** (window - k)
    pairs = k * (k - 1) / 2
    mean = float(chance @ pairs)
    variance = float(chance @ pairs**2) - mean**2
    n = draws["records"] * windows
    return float((draws["shared"] - n * mean) / math.sqrt(max(n * variance, 1e-300)))


def _not_poisson(
    how: str, told: dict[str, Any], rate: float, delta: float, shuffled: bool
) -> Finding:
    """Worst-case neighbours say whether the promise is broken or only not proven."""
    noise = min(noise for claim in told["claims"] for noise, _, _ in claim["history"])
    epsilon = _claimed(told, delta)
    steps = sum(told["steps"])
    expected = f"every record drawn by itself at a rate of {rate:.3g} (Poisson), as accounted"
    reached = 0.0
    if epsilon is not None:
        group = round(1 / rate) if shuffled else 1
        reached = beyond(epsilon, noise, rate, group, max(1, steps // group))
    remedy = "sample by poisson_sampling=True, or account without amplification"
    if epsilon is not None and reached > delta:
        seen = (
            f"draws that are {how}; neighbours whose other gradients all point away exceed "
            f"ε = {epsilon:.3g} with δ = {reached:.2g} at least, where {delta:.2g} is promised"
        )
        return Finding(0, _DRAWN, Weight.VIOLATION, "the sampler", expected, seen, remedy)
    seen = f"draws that are {how}: no accountant proves the claim for them"
    return Finding(0, _DRAWN, Weight.WARNING, "the sampler", expected, seen, remedy)


def beyond(epsilon: float, noise: float, rate: float, group: int, times: int) -> float:
    """A δ that draws without Poisson sampling reach at `epsilon`, by one event.

    All other records' gradients are −C, the record's own is C, and 0 in the neighbouring world
    (Chua et al. 2024, the lower bound for shuffled batches, for one pass; passes are independent).
    A group of `group` steps has the record in one of them; group 1 draws batches of a fixed size,
    with the record in one at `rate`. The event: in k of `times` groups some step exceeds h.
    """
    h = np.linspace(-2, 10, 400) * noise
    below = special.ndtr(h / noise)
    with_it = [special.ndtr((h - shift) / noise) for shift in (2.0, 1.0)]
    if group > 1:
        chances = [1 - below ** (group - 1) * one for one in with_it]
    else:
        chances = [1 - (1 - rate) * below - rate * one for one in with_it]
    best = 0.0
    for k in sorted({1, 2, 3, 5, *(int(times * share) for share in (0.1, 0.2, 0.4, 0.7)), times}):
        if 1 <= k <= times:
            first, second = (special.bdtrc(k - 1, times, chance) for chance in chances)
            best = max(best, float(np.max(first - np.exp(epsilon) * second)))
    return best


def _claimed(told: dict[str, Any], delta: float) -> float | None:
    """ε at δ, of all accountants together."""
    total = 0.0
    for claim in told["claims"]:
        value = claim["epsilons"][claim["deltas"].index(delta)]
        if value is None:
            return None
        total += value
    return total


def _violation(expected: str, seen: str, remedy: str = "") -> Finding:
    return Finding(0, _DRAWN, Weight.VIOLATION, "the sampler", expected, seen, remedy)
