"""A mechanism of the bench: what it releases, what it claims, and its true privacy loss."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpaudit_ray import Claim

Release = Callable[..., Any]  # of data, a generator of random numbers, and the number of outputs
PURE = 0.0
ROUNDING = 1e-5  # of a truth, which is written with six digits
VIOLATION = "VIOLATION"


@dataclass(frozen=True)
class Entry:
    """A mechanism whose privacy loss is known.

    Attributes:
        name: short and unique.
        release: returns n independent outputs for one input.
        pairs: neighbouring inputs, as `dpaudit_ray.audit` takes them.
        claim: what the mechanism promises.
        truth: the smallest ε that holds for all pairs at `delta`; infinite where none does. A test
            computes it anew, without the package.
        source: where the mechanism was published, or the tool whose catalogue has it.
        delta: δ of truth and bound.
        bar: ε that the audit should certify, where the truth is infinite or out of reach.
        trials: number of trials of the audit.
        options: of the adversary `learned`.
    """

    name: str
    release: Release
    pairs: Sequence[Any] | Mapping[str, Any]
    claim: Claim
    truth: float
    source: str
    delta: float = PURE
    bar: float | None = None
    trials: int = 200_000
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        """Whether the claim is true."""
        return self.truth <= self.claim.epsilon_at(self.delta) * (1 + ROUNDING)

    @property
    def reachable(self) -> float:
        """ε by which a certified one is measured."""
        if math.isfinite(self.truth):
            return self.truth
        if self.bar is None:
            return math.inf
        return self.bar

    def is_expected(self, verdict: str) -> bool:
        """Returns whether a verdict is right for this mechanism."""
        return (verdict == VIOLATION) != self.is_healthy
