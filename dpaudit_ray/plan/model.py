"""A plan: which audits a sweep has, and which packs of trials make them up."""

from __future__ import annotations

import bisect
import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import AfterValidator, Field

from .. import seeds
from ..errors import printable
from ..mechanisms.base import Claimed
from ..stats import growth
from .provenance import Code, InputFile

MAX_PARTS = 100_000  # of a preparation: one file each
_MOST = 100_000_000  # trials, and steps, as in a sweep file
Count = Annotated[int, Field(ge=0, le=_MOST)]
Step = Annotated[int, Field(ge=1, le=_MOST)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


@dataclasses.dataclass(frozen=True, slots=True)
class Pack:
    """Trials first..last (inclusive) of one audit: the unit of work, of retry and of storage."""

    audit: int  # index into Plan.audits
    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    @property
    def what(self) -> str:
        return f"trials {self.first}-{self.last}"


@dataclasses.dataclass(frozen=True, slots=True)
class Part(Pack):
    """Part number `first` of a preparation, by its id; `waiting` are audits that wait for it."""

    waiting: tuple[int, ...]
    preparation: str

    @property
    def size(self) -> int:
        return 0

    @property
    def what(self) -> str:
        return f"part {self.first + 1} of its preparation"


@dataclasses.dataclass(frozen=True)
class PlannedPreparation:
    """A preparation as its plan has it: `id` is a digest of what determines its arrays."""

    id: Digest
    parts: Annotated[int, Field(ge=1, le=MAX_PARTS)]


@dataclasses.dataclass(frozen=True)
class PlannedAudit:
    """One audit with fixed pack bounds. `claims` maps an accountant to ε at each horizon.

    `declared` are the numbers of trials that were declared in turn, the last one `trials`; growth
    was planned with the first of them, `up_to` that many (None: it was not). `claimed` is what
    accountants were asked at each horizon, where it takes code of somebody's own to tell. So many
    trials in a row as it has `canaries` are of one training, or of a pair of them where they are
    `paired`, and a pack holds whole ones; 0 stands for all trials, in however many packs.
    """

    id: str
    label: Annotated[str, AfterValidator(printable)]
    fingerprint: Digest
    trials: Count
    horizons: Annotated[tuple[Step, ...], Field(min_length=1)]
    claims: Mapping[str, tuple[float, ...]]
    packs: tuple[tuple[int, int], ...]
    declared: Annotated[tuple[Count, ...], Field(min_length=1)]
    claimed: tuple[Claimed, ...] | None = None
    canaries: Count = 1
    preparation: PlannedPreparation | None = None  # which its packs wait for
    up_to: Count | None = None
    paired: bool = False

    @property
    def extended(self) -> bool:
        """Whether more trials were declared after some had been seen than growth was planned to."""
        return len(self.declared) > 1 and self.trials > self.foreseen[-1]

    @property
    def foreseen(self) -> tuple[int, ...]:
        """Numbers of trials that were declared before the first: bounds may be read after each."""
        return growth.looks(self.declared[0], self.up_to)

    @property
    def looks(self) -> tuple[int, ...]:
        """Those of them that are run by now; `trials`, where more are run than were foreseen."""
        reached = tuple(number for number in self.foreseen if number <= self.trials)
        return (self.trials,) if self.extended else reached

    @property
    def independent(self) -> bool:
        return self.canaries == 1

    @property
    def together(self) -> int:
        """How many trials in a row are judged as one: those of a training, or of a pair."""
        return self.canaries or self.trials

    @property
    def in_a_training(self) -> int:
        """How many trials in a row are canaries of one training."""
        return self.together // 2 if self.paired else self.together

    @property
    def claim(self) -> float:
        """ε of the first accountant at the last horizon."""
        return next(iter(self.claims.values()))[-1]

    def pack_number(self, trial: int) -> int:
        """Returns the number of the pack that a trial is in."""
        return bisect.bisect_right(self.packs, trial, key=lambda pack: pack[0]) - 1

    def commitment(self, seed: int) -> str:
        """SHA-256 of all secret bits: fixed before training, checkable after it."""
        packed = np.packbits(self.bits(seed, 0, self.trials - 1))
        return hashlib.sha256(packed.tobytes()).hexdigest()

    def bits(self, seed: int, first: int, last: int) -> npt.NDArray[np.bool_]:
        """Secret bits of trials first..last; of a pair, the second training has the opposite."""
        if not self.paired:
            return seeds.bits(seed, self.fingerprint, first, last)
        canaries = self.in_a_training
        pair, place = np.divmod(np.arange(first, last + 1), 2 * canaries)
        low, high = first // (2 * canaries) * canaries, (last // (2 * canaries) + 1) * canaries - 1
        drawn = seeds.bits(seed, self.fingerprint, low, high)
        return np.asarray(drawn[pair * canaries + place % canaries - low] ^ (place >= canaries))


@dataclasses.dataclass(frozen=True)
class Plan:
    """All audits of a sweep, the files it reads, and what computed its trials, in turn."""

    seed: int
    fingerprint: str
    audits: tuple[PlannedAudit, ...]
    data: tuple[InputFile, ...]
    code: Annotated[tuple[Code, ...], Field(min_length=1)]

    @property
    def trials(self) -> int:
        return sum(audit.trials for audit in self.audits)
