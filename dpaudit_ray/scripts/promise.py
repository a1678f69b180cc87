"""What a script promises: by its own accountants, or by itself."""

from __future__ import annotations

import math
from typing import Any

from .script_findings import Judged, violation


def claim(told: dict[str, Any], delta: float, promised: float | None) -> tuple[float, str]:
    """ε at δ: what is promised, or what the script's accountants say together."""
    names = "+".join(claim["name"] for claim in told["claims"])
    if promised is not None:
        return promised, "promised"
    values = [claim["epsilons"][claim["deltas"].index(delta)] for claim in told["claims"]]
    if not values or None in values:
        return math.nan, names or "none"
    return float(sum(values)), names


def kept(told: dict[str, Any], promised: float | None, delta: float) -> Judged:
    """A promise of one's own may not be less than what the accountant says."""
    said, name = claim(told, delta, None)
    if promised is None or math.isnan(said) or said <= promised * (1 + 1e-3):
        return Judged()
    finding = violation(
        "promise", f"epsilon={promised:g}", f"an accountant that says {promised:g} or less",
        f"ε = {said:.4g} at δ = {delta:g}, by the script's own ({name})",
        "train for fewer steps, or with more noise",
    )  # fmt: skip
    return Judged((finding,))


def least_noise(told: dict[str, Any], record: list[dict[str, Any]]) -> float | None:
    """The least noise multiplier that was accounted: each step has that much, says the claim."""
    history = [noise for claim in told["claims"] for noise, _, _ in claim["history"]]
    made = [one["noise"] for one in record if one["kind"] == "made"]
    found = [float(noise) for noise in history or made if noise > 0]
    return min(found, default=None)
