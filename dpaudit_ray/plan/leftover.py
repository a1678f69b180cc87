"""What a run that is not complete lacks: trials that nobody has run yet, or those that failed."""

from __future__ import annotations

from collections.abc import Mapping

from ..storage.run_directory import RunDirectory
from . import failures, preparing
from .model import Plan


def only_failed(run: RunDirectory, plan: Plan, enough: Mapping[int, int] | None = None) -> bool:
    """Whether all that is left has failed before, which `dpaudit run` leaves out.

    `enough` is as in `Plan.remaining`.
    """
    failed = {failure.pack for failure in failures.read(run, plan)}
    waiting = preparing.unprepared(run, plan)
    open_packs = (pack for pack in plan.remaining(run, enough) if pack.audit not in waiting)
    left = [pack for pack in open_packs if pack not in failed]
    parts = preparing.left(run, plan, left)
    fresh = [part for part in parts if not waiting.intersection(part.waiting)]
    return bool(failed or waiting) and not left and not fresh
