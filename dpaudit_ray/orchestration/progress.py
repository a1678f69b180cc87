"""What is shown of a sweep while it runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .. import stats

if TYPE_CHECKING:
    from ..plan.model import Pack


@dataclasses.dataclass(frozen=True)
class Activity:
    """What only the driver knows: its packs, its trainers, and trials failed and lost by audit.

    `pack_seconds` is how long the last finished pack took, `last_result` when it came (Unix time).
    """

    packs_in_flight: int = 0
    trainers: int = 0
    pack_seconds: float | None = None
    last_result: float | None = None
    failed: Mapping[int, int] = dataclasses.field(default_factory=dict)
    lost: Mapping[int, int] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class AuditProgress:
    """What is shown of one audit while it runs. Its bounds hold at every look at once.

    `epsilon_lower` is as far to be trusted as `status` says. `epsilon_together` is what may be
    held against the claim: it allows for the number of audits, and for claims that no Gaussian
    curve has. `decided` is the number of trials that were enough by `stop_when`; None while it
    goes on. Its trials wait for the `parts` of its preparation.
    """

    label: str
    trials: int
    done: int
    epsilon_lower: float
    claim: float
    failed: int = 0
    lost: int = 0
    decided: int | None = None
    status: stats.Status = stats.Status.IF_GAUSSIAN
    epsilon_together: float = 0.0
    parts_done: int = 0
    parts: int = 0

    @property
    def waits(self) -> bool:
        """Whether its preparation is not complete."""
        return self.parts_done < self.parts


@dataclasses.dataclass(frozen=True)
class Progress:
    """A snapshot of the whole sweep.

    `saved` has the step of the last checkpoint of each pack that is trained for long.
    """

    audits: tuple[AuditProgress, ...]
    activity: Activity = Activity()
    saved: Mapping[Pack, int] = dataclasses.field(default_factory=dict)

    @property
    def done(self) -> int:
        """Finished trials."""
        return sum(audit.done for audit in self.audits)

    @property
    def trials(self) -> int:
        """Planned trials; of a decided audit, those that are done."""
        return sum(a.trials if a.decided is None else a.done for a in self.audits)
