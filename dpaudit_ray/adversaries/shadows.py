"""Shadow models: trainings that an adversary runs itself, on records that are not the private ones.

They are a preparation: trained once in packs of their own, stored, and shared by all audits whose
mechanism, shadow records and number of shadows are the same, whatever adversary asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, SerializeAsAny

from ..data.base import Data, Dataset
from ..plugins import nested
from .base import SHADOWS_PER_PART, Adversary, ShadowPlan


class Shadowed(Adversary):
    """Options of adversaries that train shadow models.

    They are trained as the private models are, on `shadow_data`, or on half of the data, which is
    then not private. Records of `shadow_data` that are private too are refused, unless
    `allow_overlap`: who knows them by heart attacks better than who knows their like.
    """

    shadows: int = Field(default=SHADOWS_PER_PART, ge=1, le=10_000)
    shadow_data: Annotated[SerializeAsAny[Data] | None, nested(Data)] = None
    allow_overlap: bool = False

    @property
    def reserves(self) -> float | None:
        return 0.5 if self.shadow_data is None else None

    def datasets(self) -> Mapping[str, Dataset]:
        data = self.shadow_data
        return {} if data is None else {data.key: data.load()}

    @property
    def shadow_plan(self) -> ShadowPlan:
        return ShadowPlan(self.shadows, self.shadow_data, self.allow_overlap)
