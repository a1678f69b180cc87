"""The number of records as the secret: what a script publishes of it.

Adding a record is what differential privacy hides, and with it that there is one more. Opacus
divides by int(N / number of batches) and samples at 1 / number of batches, so one record more may
change the scale of every release, its noise included.
"""

from __future__ import annotations

import math
from typing import Any

from scipy import special

from .script_findings import Finding, Judged, Look, Weight

_NAME = "secret size"


def judge(records: list[list[dict[str, Any]]], delta: float) -> Judged:
    """Two runs, the second with a record more, by their records."""
    made = [next((one for one in record if one["kind"] == "made"), None) for record in records]
    if len(made) < 2 or made[0] is None or made[1] is None or made[0]["records"] is None:
        why = "make_private was not called, or its data have no length"
        return Judged((), (Look(0, _NAME, False, why),), complete=False)
    first, second = made[0], made[1]
    if second["records"] != first["records"] + 1:
        why = "the loader draws by a sampler of its own, which was left as it is"
        return Judged((), (Look(0, _NAME, False, why),), complete=False)
    names = {"batch": "expected batch size", "batches": "number of batches", "noise": "noise"}
    changed = [
        f"{what} {first[key]:g} to {second[key]:g}"
        for key, what in names.items()
        if not math.isclose(first[key] or 0, second[key] or 0, rel_tol=1e-12)
    ]
    said = f"with {first['records']} and {second['records']} records"
    if not changed:
        return Judged((), (Look(0, _NAME, True, f"{said}: the same"),))
    seen = "; ".join(changed)
    if first["batch"] and second["batch"] and first["batch"] != second["batch"]:
        epsilon = of_scales(first["size"], second["batch"] / first["batch"], delta)
        seen += (
            f": the noise of {first['size']} parameters is scaled by it, and one step tells the "
            f"two apart with ε = {epsilon:.3g} at δ = {delta:g}"
        )
    finding = Finding(
        0, _NAME, Weight.VIOLATION, said, "nothing published to depend on the number of records",
        seen, "choose sample rate, expected batch size and steps as constants",
    )  # fmt: skip
    return Judged((finding,), (Look(0, _NAME, True, f"{said}: {seen}"),))


def of_scales(dimension: int, ratio: float, delta: float) -> float:
    """ε at δ of telling N(0, I) from N(0, ratio² I) in so many dimensions: one step's noise.

    The likelihood ratio depends on the squared length alone, which is chi-squared; δ at ε is the
    difference of two tails where the ratio passes e^ε. Both directions; the larger counts.
    """

    def tails(epsilon: float, r: float) -> float:
        """P from N(0, I), Q from N(0, r² I): P(S) − e^ε Q(S)."""
        # log P/Q = d log r − |x|² (1 − 1/r²) / 2 >= ε
        slope = (1 - 1 / r**2) / 2
        limit = (dimension * math.log(r) - epsilon) / slope
        if limit <= 0:
            return 0.0 if slope > 0 else 1.0
        inside = special.gammainc if slope > 0 else special.gammaincc
        p = float(inside(dimension / 2, limit / 2))
        q = float(inside(dimension / 2, limit / r**2 / 2))
        return p - math.exp(min(epsilon, 700.0)) * q

    worst = 0.0
    for r in (ratio, 1 / ratio):
        low, high = 0.0, 700.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if tails(middle, r) > delta else (low, middle)
        worst = max(worst, low)
    return worst
