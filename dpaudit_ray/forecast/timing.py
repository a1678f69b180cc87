"""How long packs take on this machine, from their first steps."""

from __future__ import annotations

import math
from collections.abc import Callable

from ..errors import DpauditError, first_line
from ..mechanisms.base import Mechanism
from ..orchestration.trainer import PackTrainer
from ..plan.model import Pack
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from .calibration import Calibration
from .rehearsal import UnpreparedError

ENOUGH = 1.0  # seconds, beyond those of a single step
_MORE = 4  # times as many steps, until that is reached


def seconds_per_trial(
    sweep: Sweep, trainer: PackTrainer, remaining: list[Pack], calibration: Calibration | None
) -> tuple[dict[int, float], str | None]:
    """By audit, measured on a pack that is left; stores nothing.

    Once for all audits that take equally long. NaN and the reason where a pack cannot run on this
    machine, such as a GPU's on a laptop.
    """
    measured: dict[str, float] = {}
    result, problem = {}, None
    for pack in remaining:
        cell = sweep.cells[pack.audit]
        alike, known = _alike(cell), None
        if calibration is not None:
            known = calibration.seconds_per_trial(cell.mechanism, sweep.resources)
        if known is not None:
            measured[alike] = known
        if alike not in measured:
            try:
                measured[alike] = _of_pack(trainer, pack, cell) / pack.size
            except DpauditError:
                raise
            except UnpreparedError:
                measured[alike] = math.nan
            except Exception as error:  # noqa: BLE001 (the user's training may raise anything)
                measured[alike] = math.nan
                problem = f"{type(error).__name__}: {first_line(error)}"
        result[pack.audit] = measured[alike]
    return result, problem


def _alike(cell: Cell) -> str:
    """The same for audits of which a trial takes equally long."""
    mechanism: Mechanism = cell.mechanism
    options = mechanism.model_dump_json(exclude=set(mechanism.for_free))
    return options + cell.adversary.model_dump_json()


def _of_pack(trainer: PackTrainer, pack: Pack, cell: Cell) -> float:
    if not trainer.by_steps(pack.audit):
        return trainer.seconds(pack, cell.horizons)
    return extrapolated(lambda step: trainer.seconds(pack, (step,)), cell.horizons)


def extrapolated(seconds: Callable[[int], float], horizons: tuple[int, ...]) -> float:
    """Seconds of a pack that is scored at `horizons`, where `seconds` are of one that ends at t.

    A step takes the same time at any time, and so does a score. So the first steps tell, more of
    them the shorter they are. The very first pack is left out: things are built in it.
    """
    last = horizons[-1]
    seconds(1)
    first = seconds(1)
    steps, took = 1, first
    while steps < last and took - first < ENOUGH:
        steps = min(last, _MORE * steps)
        took = seconds(steps)
    step = max(took - first, 0.0) / (steps - 1) if steps > 1 else first
    return last * step + len(horizons) * max(first - step, 0.0)
