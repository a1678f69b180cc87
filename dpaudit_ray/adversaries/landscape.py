"""A_S^h: shapes the loss so that later steps amplify the first (Cebere et al., section 6)."""

import math
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from .base import Adversary


def _threshold(value: Any) -> Any:
    """Returns a finite number, or the name of a choice. Raises ValueError for other values."""
    if (type(value) in (int, float) and math.isfinite(value)) or value in ("optimal", "searched"):
        return value
    raise ValueError("must be a number, optimal or searched")


class LandscapeAdversary(Adversary):
    """Shapes the loss so that it pushes θ away from a `threshold` h, in the units of θ.

    `optimal` is h* = C/2 (C/2B if the first step is divided by B), halfway between the two worlds
    after one step. `searched` compares thresholds and takes the best for the last step (Alg. 5).
    """

    attacks = "landscape"
    name: Literal["landscape"] = "landscape"
    # h, in the units of θ
    threshold: Annotated[
        float | Literal["optimal", "searched"], BeforeValidator(_threshold)
    ] = "optimal"  # fmt: skip
