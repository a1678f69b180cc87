"""`audit.stop_when`: when an audit has shown enough.

Only time-uniform bounds may end an audit, since a look is taken after every pack. A decision is
a function of the prefix of trials, so it falls after the same trial on every cluster and after
every crash; the time budget, which looks at no score, is the one exception.
"""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, model_validator

from ..plugins import Strict


class StopWhen(Strict):
    """An audit ends at the first of these.

    `verdict`: its trials refute the claim, at the level at which `dpaudit verify` would say so.
    `within`: its anytime lower bound is at least (1 - within) of the claim.
    `hours`: its packs took that many hours of trainers' time; running again gives as many more.
    """

    verdict: bool = False
    within: float | None = Field(default=None, gt=0, lt=1)
    hours: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self == type(self).model_construct(verdict=False, within=None, hours=None):
            raise ValueError("names no rule; give verdict: true, within or hours")
        return self

    @property
    def by_bounds(self) -> bool:
        """Whether trials may end the audit, and not time alone."""
        return self.verdict or self.within is not None

    def rule(self) -> dict[str, Any]:
        """What a decision by bounds depends on."""
        return {"verdict": self.verdict, "within": self.within}
