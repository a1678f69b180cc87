"""What an executor is, and how packs end in it."""

from __future__ import annotations

import dataclasses
from typing import Literal, Protocol

from ..plan.failures import Failure
from ..plan.model import Pack
from .progress import Activity, Progress


@dataclasses.dataclass(frozen=True)
class Done:
    """The pack is stored and folded; its trainer worked on it for `seconds`.

    Which says nothing of how long a whole one takes where it went on from a checkpoint. `missed`
    of its trials failed.
    """

    pack: Pack
    seconds: float = 0.0
    whole: bool = True
    missed: int = 0


@dataclasses.dataclass(frozen=True)
class Lost:
    """Infrastructure failed: the packs are run again with the same bits and seeds.

    The first one was running, if the trainer had `begun`; the others only waited behind it. None
    when a trainer died idle.
    `cause` is "node" when the trainer's node left with it, `foreseen` when that was announced: a
    node that was drained, or taken back by its owner.
    """

    packs: tuple[Pack, ...]
    reason: str
    cause: Literal["trainer", "node"] = "trainer"
    foreseen: bool = False
    begun: bool = True


@dataclasses.dataclass(frozen=True)
class Checked:
    """The pack was run again; `difference` says how it ended otherwise, None where it did not."""

    pack: Pack
    difference: str | None


Outcome = Done | Failure | Lost | Checked


class Executor(Protocol):
    """Where packs run. Scores go from trainers to the aggregator without passing the driver."""

    @property
    def slots(self) -> int:
        """How many packs may be in flight now; 0 while nothing can run."""

    @property
    def trainers(self) -> int:
        """Trainers that are alive."""

    def backlog(self, packs: float) -> None:
        """Takes how many packs are still to be handed over, inf while that is not known."""

    def submit(self, pack: Pack) -> None:
        """Hands over one pack; never blocks for its result."""

    def wait(self, timeout: float) -> list[Outcome]:
        """Outcomes since the last call; waits up to `timeout` seconds for the first.

        Raises:
            StorageError: results can no longer be stored.
            LeaseLostError: another driver stores them.
            ClusterError: the aggregator cannot be brought back.
        """

    def check(self, pack: Pack, finished: bool) -> None:
        """Has a pack run again and compared, in place of stored; the outcome is `Checked`.

        With its scores where it is `finished`, else with another try of the same.
        """

    def give_up(self, failed: list[Failure]) -> None:
        """Has the aggregator record packs whose trials are misses; returns when that is done.

        Raises:
            StorageError: they could not be recorded.
        """

    def try_again(self, packs: list[Pack]) -> None:
        """Has the aggregator take recorded packs back, which are run again now."""

    def progress(self, activity: Activity) -> Progress:
        """The latest snapshot, without waiting for a newer one; `activity` goes into the next."""

    def flush(self) -> None:
        """Has the aggregator write its estimates; returns when they are in place."""

    def close(self) -> None:
        """Gives all resources back."""
