"""What trainers answer, as it comes: nobody looks at all that is awaited for each that arrives."""

from __future__ import annotations

import functools
import queue

from .pool import Reference, Worker


class Answers:
    """References that trainers have still to answer. Ray tells of each one in a thread of its own.

    `ray.wait` on 16,000 references takes 50 ms, however few of them are ready.
    """

    def __init__(self) -> None:
        self._owners: dict[Reference, Worker] = {}
        self._arrived: queue.SimpleQueue[Reference] = queue.SimpleQueue()

    def expect(self, reference: Reference, worker: Worker) -> None:
        """Takes a reference that `worker` is to answer."""
        self._owners[reference] = worker
        reference.future().add_done_callback(functools.partial(self._arrive, reference))

    def forget(self, reference: Reference) -> None:
        """Whatever comes of it is of no interest any more."""
        self._owners.pop(reference, None)

    def wait(self, timeout: float) -> list[tuple[Worker, Reference]]:
        """Those that have arrived; waits up to `timeout` seconds for the first."""
        found = []
        try:
            found.append(self._arrived.get(timeout=timeout))
            while True:
                found.append(self._arrived.get_nowait())
        except queue.Empty:
            pass
        return [(self._owners.pop(one), one) for one in found if one in self._owners]

    def _arrive(self, reference: Reference, _: object) -> None:
        self._arrived.put(reference)
