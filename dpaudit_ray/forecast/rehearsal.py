"""What preparations will cost: the next part of each is made once, timed, and not stored."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Sequence

from ..orchestration.trainer import PackTrainer
from ..plan import preparing
from ..plan.failures import Failure
from ..plan.model import Part, Plan
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory


class UnpreparedError(Exception):
    """Packs cannot be timed before their preparation is done."""


@dataclasses.dataclass(frozen=True)
class Preparing:
    """A preparation of a sweep: `seconds` of one trainer's time, for the parts that are left."""

    audits: tuple[str, ...]
    parts: int
    done: int
    seconds: float


class Rehearsal:
    """Makes one part of each preparation, and knows those that are done."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._made: dict[tuple[str, int], Arrays] = {}
        self.problem: str | None = None  # why a part could not be made

    def of(self, trainer: PackTrainer, left: Sequence[Part]) -> tuple[Preparing, ...]:
        """Every preparation of the plan; `left` are the parts that packs still wait for."""
        by_name: dict[str, list[Part]] = {}
        for part in left:
            by_name.setdefault(preparing.name(self._plan, part), []).append(part)
        return tuple(
            Preparing(
                audits=tuple(entry["audits"]),
                parts=entry["parts"],
                done=entry["done"],
                seconds=self._seconds(trainer, by_name.get(entry["id"], [])),
            )
            for entry in preparing.entries(self._run, self._plan)
        )

    def prepared(self, audit: int) -> tuple[Arrays, ...]:
        """All parts that an audit waits for. Raises UnpreparedError where one is not made."""
        parts = preparing.all_parts(self._plan, [audit])
        return tuple(self._part(preparing.name(self._plan, part), part.first) for part in parts)

    def _part(self, name: str, part: int) -> Arrays:
        if (name, part) in self._made:
            return self._made[name, part]
        if part not in self._run.parts(name):
            raise UnpreparedError
        return self._run.read_part(name, part)

    def _seconds(self, trainer: PackTrainer, left: list[Part]) -> float:
        if not left:
            return 0.0
        started = time.perf_counter()
        made = trainer.attempt_part(left[0])
        if isinstance(made, Failure):
            self.problem = made.message
            return math.nan
        self._made[preparing.name(self._plan, left[0]), left[0].first] = made
        return (time.perf_counter() - started) * len(left)
