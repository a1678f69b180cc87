"""Time of packs and preparations on this machine: measured by `bench`, or on a first pack."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel, ValidationError

from ..errors import DpauditError, SpecError, first_line
from ..mechanisms.base import Mechanism
from ..mechanisms.dp_sgd import DpSgd
from ..orchestration.trainer import PackTrainer
from ..plan import preparing
from ..plan.model import Pack, Part, Plan
from ..plan.outcomes import Failure
from ..storage.arrays import Arrays
from ..storage.run_directory import RunDirectory
from ..sweep.cell import Cell
from ..sweep.resources import ResourceSpec
from ..sweep.spec import Sweep

ENOUGH_SECONDS = 1.0  # beyond those of a single step
_STEP_FACTOR = 4  # times as many steps, until that is reached


class _Row(BaseModel):
    model: str
    batch_size: int
    packed_seconds: float
    opacus_same_process_seconds: float


class Calibration(BaseModel):
    """Figures of `dpaudit bench --json`: seconds per model and step, by model."""

    device: str
    threads: int = 1
    gpu: bool = False
    rows: list[_Row]

    @classmethod
    def read(cls, file: Path) -> Calibration:
        """Raises SpecError when the file is none that `bench` wrote."""
        try:
            return cls.model_validate_json(file.read_bytes())
        except (OSError, ValidationError) as error:
            reason = first_line(error)
            raise SpecError(
                "--bench", f"{file} is no file that `dpaudit bench --json` wrote ({reason})"
            ) from error

    def seconds_per_trial(self, mechanism: Mechanism, resources: ResourceSpec) -> float | None:
        """One training's time, in proportion to its batch and steps.

        None for what was not measured: other work, a precision other than float32, and trainers
        on another kind of device or with another number of threads.
        """
        if not isinstance(mechanism, DpSgd) or mechanism.precision != "float32":
            return None
        threads = max(1, int(resources.num_cpus))
        if self.gpu != (resources.num_gpus > 0) or (not self.gpu and self.threads != threads):
            return None
        for row in self.rows:
            if row.model == mechanism.model.address:
                packed = mechanism.engine == "packed"
                step = row.packed_seconds if packed else row.opacus_same_process_seconds
                return step * mechanism.steps * mechanism.batch_size / row.batch_size
        return None


class UnpreparedError(Exception):
    """Packs cannot be timed before their preparation is done."""


@dataclasses.dataclass(frozen=True)
class PreparationOutlook:
    """A preparation of a sweep: `seconds` of one trainer's time, for the parts that are left."""

    audits: tuple[str, ...]
    parts: int
    done: int
    seconds: float


class Rehearsal:
    """Makes the next part of each preparation once, times it, and stores nothing."""

    def __init__(self, run: RunDirectory, plan: Plan) -> None:
        self._run, self._plan = run, plan
        self._made: dict[tuple[str, int], Arrays] = {}
        self.problem: str | None = None  # why a part could not be made

    def outlook(self, trainer: PackTrainer, left: Sequence[Part]) -> tuple[PreparationOutlook, ...]:
        """Every preparation of the plan; `left` are the parts that packs still wait for."""
        by_name: dict[str, list[Part]] = {}
        for part in left:
            by_name.setdefault(preparing.name(self._plan, part), []).append(part)
        return tuple(
            PreparationOutlook(
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


def seconds_per_trial(
    sweep: Sweep, trainer: PackTrainer, remaining: list[Pack], calibration: Calibration | None
) -> tuple[dict[int, float], str | None]:
    """Seconds by audit, measured on a pack that is left; stores nothing.

    Measured once for all audits of which a trial takes equally long. NaN, and the reason beside
    the seconds, where a pack cannot run on this machine, such as a GPU's on a laptop.
    """
    by_options: dict[str, float] = {}
    seconds, problem = {}, None
    for pack in remaining:
        cell = sweep.cells[pack.audit]
        options = cell.mechanism.model_dump_json(exclude=set(cell.mechanism.for_free))
        options += cell.adversary.model_dump_json()
        if options not in by_options:
            calibrated = None
            if calibration is not None:
                calibrated = calibration.seconds_per_trial(cell.mechanism, sweep.resources)
            try:
                by_options[options] = (
                    _pack_seconds(trainer, pack, cell) / pack.size
                    if calibrated is None
                    else calibrated
                )
            except DpauditError:
                raise
            except UnpreparedError:
                by_options[options] = math.nan
            except Exception as error:  # noqa: BLE001 (the user's training may raise anything)
                by_options[options] = math.nan
                problem = f"{type(error).__name__}: {first_line(error)}"
        seconds[pack.audit] = by_options[options]
    return seconds, problem


def _pack_seconds(trainer: PackTrainer, pack: Pack, cell: Cell) -> float:
    if not trainer.by_steps(pack.audit):
        return trainer.seconds(pack, cell.horizons)
    return extrapolated(lambda step: trainer.seconds(pack, (step,)), cell.horizons)


def extrapolated(seconds: Callable[[int], float], horizons: tuple[int, ...]) -> float:
    """Seconds of a pack that is scored at `horizons`, where `seconds` are of one that ends at t.

    The model is linear: every step takes the same time, and so does every score. So the first
    steps tell, more of them the shorter they are. The very first pack is left out, since things
    are built in it.
    """
    last = horizons[-1]
    seconds(1)
    first = seconds(1)
    steps, took = 1, first
    while steps < last and took - first < ENOUGH_SECONDS:
        steps = min(last, _STEP_FACTOR * steps)
        took = seconds(steps)
    step = max(took - first, 0.0) / (steps - 1) if steps > 1 else first
    return last * step + len(horizons) * max(first - step, 0.0)
