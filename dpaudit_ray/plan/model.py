"""The plan of a sweep: its audits, and the packs of trials that make them up."""

import bisect
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from .. import seeds
from ..accounting.claim import StatedClaim
from ..errors import printable
from ..stats import growth
from .provenance import Code, InputFile

MAX_PARTS = 100_000  # parts of a preparation at most; each is a file
_LARGEST = 100_000_000  # number of trials, or of steps, that a sweep file may have
Count = Annotated[int, Field(ge=0, le=_LARGEST)]
Step = Annotated[int, Field(ge=1, le=_LARGEST)]
Digest = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


@dataclass(frozen=True, slots=True)
class Pack:
    """Trials first..last (inclusive) of one audit: the unit of work, of retry and of storage."""

    audit: int  # index into Plan.audits
    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of trials."""
        return self.last - self.first + 1

    @property
    def bounds(self) -> tuple[int, int]:
        """First and last trial."""
        return self.first, self.last

    @property
    def what(self) -> str:
        """The pack in the words of messages."""
        return f"trials {self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Part(Pack):
    """Part number `first` of a preparation; `audit` is one of the audits that wait for it."""

    waiting: tuple[int, ...]  # indices of all audits that wait for the part
    preparation: str  # id of the preparation

    @property
    def size(self) -> int:
        """0, the number of its trials."""
        return 0

    @property
    def what(self) -> str:
        """The part in the words of messages."""
        return f"part {self.first + 1} of its preparation"


@dataclass(frozen=True)
class PlannedPreparation:
    """A preparation of the plan: `id` is a digest of all that determines its arrays."""

    id: Digest
    parts: Annotated[int, Field(ge=1, le=MAX_PARTS)]


@dataclass(frozen=True)
class PlannedAudit:
    """An audit with fixed pack bounds.

    Attributes:
        id: name of the audit's folder.
        label: name of the audit in messages and tables.
        fingerprint: digest of all that determines bits and scores.
        trials: number of trials.
        horizons: the recorded steps.
        claims: ε at each recorded step, by accountant.
        packs: first and last trial of each pack.
        declared: the numbers of trials that were declared in turn; the last one is `trials`.
        claimed: the claim at each recorded step, if computing it takes a user's code or data;
            else None.
        canaries: number of consecutive trials that belong to one training run, or to one pair of
            runs if `paired`, and are in one pack; 0 stands for all trials, in all packs.
        preparation: the preparation that the packs wait for.
        up_to: the trials to which growth was planned at the first declaration; None: no growth.
        paired: whether two training runs with the same noise make a pair, in which each canary is
            in exactly one.
    """

    id: str
    label: Annotated[str, AfterValidator(printable)]
    fingerprint: Digest
    trials: Count
    horizons: Annotated[tuple[Step, ...], Field(min_length=1)]
    claims: Mapping[str, tuple[float, ...]]
    packs: tuple[tuple[int, int], ...]
    declared: Annotated[tuple[Count, ...], Field(min_length=1)]
    claimed: tuple[StatedClaim, ...] | None = None
    canaries: Count = 1
    preparation: PlannedPreparation | None = None
    up_to: Count | None = None
    paired: bool = False

    @property
    def extended(self) -> bool:
        """Whether trials beyond the planned growth were declared after results were known."""
        return len(self.declared) > 1 and self.trials > self.foreseen[-1]

    @property
    def foreseen(self) -> tuple[int, ...]:
        """Numbers of trials that were declared before the first trial: bounds hold after each."""
        return growth.looks(self.declared[0], self.up_to)

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of `foreseen` up to `trials`; `trials` alone if the audit was extended."""
        if self.extended:
            return (self.trials,)
        return tuple(number for number in self.foreseen if number <= self.trials)

    @property
    def independent(self) -> bool:
        """Whether each trial has a separate training run."""
        return self.canaries == 1

    @property
    def together(self) -> int:
        """The number of consecutive trials that are judged as one: of a training run or a pair."""
        return self.canaries or self.trials

    @property
    def in_a_training(self) -> int:
        """The number of consecutive trials that are canaries of one training run."""
        return self.together // 2 if self.paired else self.together

    @property
    def accountant(self) -> str:
        """The first accountant, whose claim is tested."""
        return next(iter(self.claims))

    @property
    def claim(self) -> float:
        """ε of the first accountant at the last horizon."""
        return self.claims[self.accountant][-1]

    def pack_number(self, trial: int) -> int:
        """Returns the number of the pack that a trial is in."""
        return bisect.bisect_right(self.packs, trial, key=lambda pack: pack[0]) - 1

    def commitment(self, seed: int, trials: int | None = None) -> str:
        """Returns the SHA-256 of the audit's secret bits, packed eight to a byte.

        Anyone who knows this digest before training can check afterwards that no bit was changed.

        Args:
            seed: seed of the sweep.
            trials: number of trials, from the first on, whose bits are digested; None for all.
        """
        count = self.trials if trials is None else trials
        bits = self.bits(seed, 0, count - 1)
        return hashlib.sha256(np.packbits(bits).tobytes()).hexdigest()

    def bits(
        self,
        seed: int,
        first: int,
        last: int,
    ) -> NDArray[np.bool_]:
        """Returns the secret bits of trials first..last, bool [last - first + 1].

        Bits are drawn for the first training run of each pair; the second one has the opposite.

        Args:
            seed: seed of the sweep.
            first: the first trial.
            last: the last trial.
        """
        if not self.paired:
            return seeds.bits(seed, self.fingerprint, first, last)
        canaries = self.in_a_training
        pair_trials = 2 * canaries
        trials = np.arange(first, last + 1)
        pair, offset = np.divmod(trials, pair_trials)
        # Drawn bits are numbered without the second runs; the drawn ones cover all pairs of
        # first..last.
        first_drawn = first // pair_trials * canaries
        end_drawn = (last // pair_trials + 1) * canaries
        of_first_runs = seeds.bits(seed, self.fingerprint, first_drawn, end_drawn - 1)
        bit_number = pair * canaries + offset % canaries
        in_second_run = offset >= canaries
        return np.asarray(of_first_runs[bit_number - first_drawn] ^ in_second_run)


@dataclass(frozen=True)
class Plan:
    """All audits of a sweep, the files it reads, and the code that computed its trials, in turn."""

    seed: int
    fingerprint: str
    audits: tuple[PlannedAudit, ...]
    data: tuple[InputFile, ...]
    code: Annotated[tuple[Code, ...], Field(min_length=1)]

    @property
    def trials(self) -> int:
        """Number of trials of all audits."""
        return sum(audit.trials for audit in self.audits)

    @property
    def commitment(self) -> str:
        """The SHA-256 of all audits as declared before the first trial, with their secret bits.

        Trials that are added later do not change it. Of each audit it covers the fingerprint, the
        number of trials declared first, the number up to which growth was planned then (`up_to`,
        or None), and the digest of the bits.
        """
        lines = []
        for audit in self.audits:
            declared_first = audit.declared[0]
            bits = audit.commitment(self.seed, declared_first)
            lines.append(f"{audit.fingerprint} {declared_first} {audit.up_to} {bits}")
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()
