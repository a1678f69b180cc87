"""Saves packs that are trained for long: trainers send checkpoints, the aggregator writes them.

They travel as messages, as scores do: trainers touch no storage, and a driver that has lost its
lease is refused at one place.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from ..errors import DamagedFileError
from ..plan.model import Pack, Plan
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory, checkpoint_file

_log = logging.getLogger("dpaudit")
KEPT = 2  # checkpoints of a pack: damage to one costs the time since the one before
CallAggregator = Callable[..., Any]  # calls a method of the aggregator by name
Saved = tuple[int, Arrays]  # a step, and the state of the training after it


class Checkpoints:
    """The checkpoints of all packs, in the run directory. Any thread may call it."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        """Lists the checkpoints in the run directory."""
        self._run = run
        self._plan = plan
        self._lock = threading.Lock()  # guards `_steps`
        self._steps: dict[Pack, set[int]] = {}  # steps that have a checkpoint
        for index, audit in enumerate(plan.audits):
            for bounds, step in run.checkpoints(audit.id):
                self._steps.setdefault(Pack(index, *bounds), set()).add(step)

    @property
    def last(self) -> dict[Pack, int]:
        """The last saved step of each pack that has a checkpoint."""
        with self._lock:
            return {pack: max(steps) for pack, steps in self._steps.items() if steps}

    def checkpoint(self, pack: Pack) -> Saved | None:
        """Returns the last undamaged checkpoint of a pack; None without one."""
        with self._lock:
            steps = sorted(self._steps.get(pack, ()), reverse=True)
        for step in steps:
            try:
                return step, self._run.read_arrays(self._file(pack, step))
            except DamagedFileError as error:
                reason = str(error).partition(";")[0]  # without the remedy for a run
                _log.warning("%s; an earlier one is tried, else the pack starts anew", reason)
        return None

    def save(self, pack: Pack, saved: Saved) -> None:
        """Writes a checkpoint, and deletes all but the one before. Raises StorageError."""
        step, arrays = saved
        self._run.write_arrays(self._file(pack, step), arrays)
        with self._lock:
            steps = self._steps.setdefault(pack, set())
            steps.add(step)
            old = set(sorted(steps)[:-KEPT])
            steps -= old
        self._delete(pack, old)

    def drop(self, pack: Pack) -> None:
        """Deletes the checkpoints of a pack that is done."""
        with self._lock:
            steps = self._steps.pop(pack, set())
        self._delete(pack, steps)

    def _delete(self, pack: Pack, steps: set[int]) -> None:
        """Deletes the checkpoints of a pack after these steps."""
        for step in steps:
            self._run.delete(self._file(pack, step))

    def _file(self, pack: Pack, step: int) -> str:
        """Returns the path of a pack's checkpoint after a step."""
        return checkpoint_file(self._plan.audits[pack.audit].id, pack.bounds, step)


class PackCheckpoints:
    """The checkpoints of one pack, as a mechanism sees them (`mechanisms.base.Checkpoints`).

    Their errors stop no training: if storage fails, storing the scores raises.

    Attributes:
        resumed: training continued from a checkpoint.
    """

    def __init__(self, call: CallAggregator, pack: Pack, minutes: float) -> None:
        """Saves nothing yet.

        Args:
            call: calls a method of the aggregator.
            pack: the trials.
            minutes: time from one checkpoint to the next.
        """
        self._call = call
        self._pack = pack
        self._seconds = 60 * minutes
        self._last_saved = time.monotonic()
        self.resumed = False

    def last(self) -> Saved | None:
        """Returns the checkpoint to continue from, if there is one that can be read."""
        saved = None
        try:
            saved = self._call("checkpoint", self._pack)
        except Exception as error:  # noqa: BLE001 (boundary: a call to another process, see above)
            _log.warning("%s begins anew: %s", self._pack.what, error)
        self.resumed = saved is not None
        return saved

    @property
    def due(self) -> bool:
        """Whether the interval since the last checkpoint has passed."""
        return time.monotonic() - self._last_saved >= self._seconds

    def save(self, step: int, arrays: Arrays) -> None:
        """Has the aggregator save the state of the training after a step."""
        try:
            self._call("save", self._pack, (step, arrays))
        except Exception as error:  # noqa: BLE001 (boundary: a call to another process, see above)
            _log.warning("no checkpoint of %s after step %d: %s", self._pack.what, step, error)
        self._last_saved = time.monotonic()
