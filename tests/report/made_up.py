"""Runs whose scores are drawn, so that what is true of them is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from dpaudit_ray import plan as planning
from dpaudit_ray import seeds
from dpaudit_ray.report.tables import Run
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec


def made_up_run(
    sweep: dict, folder: Path, mu: float, seed: int, diverged: tuple[float, float] = (0.0, 0.0)
) -> Run:
    """A finished run whose scores are N(mu b, 1), a share of which (out, in) has diverged."""
    parsed = spec.from_raw(sweep | {"seed": seed})
    directory = RunDirectory(str(folder))
    plan = planning.open_run(parsed, directory)
    rng = np.random.default_rng(seed)
    for pack in plan.remaining(directory):
        audit = plan.audits[pack.audit]
        members = seeds.bits(plan.seed, audit.fingerprint, pack.first, pack.last)
        scores = rng.normal(size=(pack.size, 1)) + mu * members[:, None]
        scores[rng.random(pack.size) < np.where(members, diverged[1], diverged[0])] = np.nan
        directory.write_scores(audit.id, PackScores(pack.first, members, audit.horizons, scores))
    return Run.open(directory.location)
