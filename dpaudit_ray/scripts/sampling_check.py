"""L0: were records drawn as accounted, Poisson sampling mostly; and is their number published?

Adding a record is what differential privacy hides, and with it that there is one more. Opacus
divides by int(N / number of batches) and samples at 1 / number of batches, so one record more may
change the scale of every release, its noise included.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from .preflight import accounted_events, claimed_epsilon
from .script_findings import Finding, Judgement, finding
from .watch.run_state import Entries, entries_of

_FEW = 10  # draws from which their spread says something
_FEW_DRAWN = 8.0  # records per draw, below which its size is not held against a normal law
_LIMIT = 6.0  # standard deviations, where the law is only close to normal
_SIZE = "secret size"


def judge(result: dict[str, Any], level: float, delta: float) -> Judgement:
    """Draws of all loaders against what was accounted; `level`: a test's false alarms."""
    judged, name, said = Judgement(), "sampling", ""
    events = accounted_events(result)
    if not result["draws"]:
        if events and all(rate >= 1 for _, rate, _ in events):
            return judged.look(name, "every record is in every step, as accounted")
        why = "no loader was seen to draw: records are sampled by code of the script's own"
        why += "; give of=, how many there are" * (not result.get("made", 1))
        return judged.look(name, why, done=False)
    if not events:
        return judged.look(name, "nothing was accounted", done=False, complete=True)
    for draws in result["draws"]:
        rate = draws.get("rate") or max(rate for _, rate, _ in events)
        sizes = draws["sizes"]
        if rate >= 1:
            # Without amplification a record may be in as many steps as were accounted.
            counted = sum(int(steps) for _, _, steps in events)
            if draws.get("most", 0) > counted:
                judged.find("too often", "the sampler", counted=counted, most=draws["most"])
            said = f"every record may be in every of {len(sizes)} steps, as accounted"
        else:
            share = level / len(result["draws"])
            judged.findings += _judge_poisson(draws, rate, share, result, delta)
            most = max(draws["records"] * len(sizes), 1)
            said = f"{len(sizes)} draws at a rate of {sum(sizes) / most:.4g}"
    if lost := sum(1 for size in result["unused"] if size > 0):
        judged.find("draws lost", "the loop", count=lost)
    if empty := sum(1 for size in result["unused"] if size == 0):
        judged.find("empty passed over", "the sampler", count=empty)
    if fewer := result.get("fewer"):
        step, used, drawn = fewer[0]
        values = {"count": len(fewer), "used": used, "drawn": drawn}
        judged.find("records passed over", f"step {step + 1}", **values)
        said += "; how records were chosen from what was drawn was not seen"
    return judged.look(name, said, done=not fewer)


def _judge_poisson(
    draws: dict[str, Any], rate: float, level: float, result: dict[str, Any], delta: float
) -> list[Finding]:
    """One finding at most: the first of the tests that draws of independent records fail."""

    def found(code: str, **values: Any) -> list[Finding]:
        return [finding(code, "the sampler", **values)]

    n, sizes = draws["records"], np.array(draws["sizes"], dtype=np.float64)
    total, most = int(sizes.sum()), n * len(sizes)
    if total > 0 and special.bdtrc(total - 1, most, rate) < level / 2:
        counts = {"total": total, "draws": len(sizes), "records": n}
        return found("rate", rate=rate, share=total / most, **counts)
    if twice := draws.get("twice"):
        return found("twice", count=twice)
    # Pearson's statistic of the sizes: chi-squared where records are drawn by themselves. Where
    # few are drawn at a time, sizes are far from normal.
    spread = float(np.sum((sizes - n * rate) ** 2)) / (n * rate * (1 - rate))
    near_normal = n * rate >= _FEW_DRAWN
    fixed = len(sizes) >= _FEW and special.gammainc(len(sizes) / 2, spread / 2) < level / 6
    deviation = _shared_records(draws, rate)
    if deviation < -_LIMIT:
        how = "shuffled: each record once in a pass"
        return [_judge_other_sampling(how, result, rate, delta, shuffled=True)]
    if fixed and near_normal:
        return [_judge_other_sampling("of a fixed size", result, rate, delta, shuffled=False)]
    empty = (1 - rate) ** n
    if (sizes > 0).all() and len(sizes) * math.log1p(-min(empty, 1 - 1e-12)) < math.log(level / 6):
        return found("no empty", expected=len(sizes) * empty)
    wide = special.gammaincc(len(sizes) / 2, spread / 2) < level / 6
    if deviation > _LIMIT or (near_normal and wide):
        return found("dependent")
    return []


def _shared_records(draws: dict[str, Any], rate: float) -> float:
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


def _judge_other_sampling(
    how: str, result: dict[str, Any], rate: float, delta: float, *, shuffled: bool
) -> Finding:
    """Worst-case neighbours say whether the promise is broken or only not proven."""
    noise = min(noise for noise, _, _ in accounted_events(result))
    epsilon = claimed_epsilon(result, delta)
    if not math.isnan(epsilon):
        group = round(1 / rate) if shuffled else 1
        times = max(1, sum(result["steps"]) // group)
        reached = delta_without_poisson(epsilon, noise, rate, group, times)
        if reached > delta:
            values = {"epsilon": epsilon, "reached": reached, "delta": delta}
            return finding("not Poisson", "the sampler", how=how, rate=rate, **values)
    return finding("not proven", "the sampler", how=how, rate=rate)


def delta_without_poisson(
    epsilon: float, noise: float, rate: float, group: int, times: int
) -> float:
    """A δ that draws without Poisson sampling reach at `epsilon`, by one event.

    All other records' gradients are −C, the record's own is C, and 0 in the neighbouring world
    (Chua et al. 2024, the lower bound for shuffled batches, for one pass; passes are independent).
    A group of `group` steps has the record in one of them; group 1 draws batches of a fixed size,
    with the record in one at `rate`. The event: in k of `times` groups some step exceeds h.
    """
    h = np.linspace(-2, 10, 400) * noise
    below = special.ndtr(h / noise)
    below_with_record = [special.ndtr((h - shift) / noise) for shift in (2.0, 1.0)]
    if group > 1:
        chances = [1 - below ** (group - 1) * record for record in below_with_record]
    else:
        chances = [1 - (1 - rate) * below - rate * record for record in below_with_record]
    best = 0.0
    for k in sorted({1, 2, 3, 5, *(int(times * share) for share in (0.1, 0.2, 0.4, 0.7)), times}):
        if 1 <= k <= times:
            first, second = (special.bdtrc(k - 1, times, chance) for chance in chances)
            best = max(best, float(np.max(first - np.exp(epsilon) * second)))
    return best


def judge_size(records: list[Entries], delta: float) -> Judgement:
    """The number of records as the secret, by the records of two runs, the second with one more."""
    judged = Judgement()
    made = [entry for record in records for entry in entries_of(record, "made")[:1]]
    if len(made) < 2 or made[0]["records"] is None:
        why = "make_private was not called, or its data have no length"
        return judged.look(_SIZE, why, done=False)
    first, second = made
    if second["records"] != first["records"] + 1:
        why = "the loader draws by a sampler of its own, which was left as it is"
        return judged.look(_SIZE, why, done=False)
    names = {"batch": "expected batch size", "batches": "number of batches", "noise": "noise"}
    changed = [
        f"{what} {first[key]:g} to {second[key]:g}"
        for key, what in names.items()
        if not math.isclose(first[key] or 0, second[key] or 0, rel_tol=1e-12)
    ]
    said = f"with {first['records']} and {second['records']} records"
    if not changed:
        return judged.look(_SIZE, f"{said}: the same")
    seen = "; ".join(changed)
    if first["batch"] and second["batch"] and first["batch"] != second["batch"]:
        epsilon = epsilon_of_scales(first["size"], second["batch"] / first["batch"], delta)
        seen += (
            f": the noise of {first['size']} parameters is scaled by it, and one step tells the "
            f"two apart with ε = {epsilon:.3g} at δ = {delta:g}"
        )
    return judged.find("secret size", said, seen=seen).look(_SIZE, f"{said}: {seen}")


def epsilon_of_scales(dimension: int, ratio: float, delta: float) -> float:
    """ε at δ of telling N(0, I) from N(0, ratio² I) in so many dimensions: one step's noise.

    The likelihood ratio depends on the squared length alone, which is chi-squared; δ at ε is the
    difference of two tails where the ratio passes e^ε. Both directions; the larger counts.
    """

    def excess(epsilon: float, r: float) -> float:
        """P from N(0, I), Q from N(0, r² I): P(S) − e^ε Q(S)."""
        # log P/Q = d log r − |x|² (1 − 1/r²) / 2 >= ε
        slope = (1 - 1 / r**2) / 2
        limit = (dimension * math.log(r) - epsilon) / slope
        if limit <= 0:
            return 0.0 if slope > 0 else 1.0
        tail = special.gammainc if slope > 0 else special.gammaincc
        p = float(tail(dimension / 2, limit / 2))
        q = float(tail(dimension / 2, limit / r**2 / 2))
        return p - math.exp(min(epsilon, 700.0)) * q

    worst = 0.0
    for r in (ratio, 1 / ratio):
        low, high = 0.0, 700.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle, r) > delta else (low, middle)
        worst = max(worst, low)
    return worst
