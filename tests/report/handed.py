"""Sweeps of what trains nothing, and runs whose scores are drawn here: what is true is known."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from dpaudit_ray import plan as planning
from dpaudit_ray import seeds
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan.model import Pack, Plan
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.report.tables import Run
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores
from dpaudit_ray.sweep import spec

DP_SGD = {
    "name": "dp-sgd", "data": "breast_cancer", "model": "fcnn", "steps": 6, "batch_size": 64,
    "learning_rate": 0.1, "clip_norm": 1.0, "noise_multiplier": 2.0,
}  # fmt: skip
LANDSCAPE = {"name": "landscape", "steps": 6, "batch_size": 2, "noise_multiplier": 2.0}


def sweep(name: str = "handed", **changes: Any) -> dict[str, Any]:
    """Two audits of a process that trains nothing, recorded at two steps."""
    return {
        "name": name,
        "seed": 3,
        "mechanism": dict(LANDSCAPE),
        "adversary": {"name": "landscape"},
        "audit": {
            "trials": 60, "delta": 1e-5, "record_every": 3,
            "estimators": ["accuracy", "paper-gdp", "anytime"], "accountants": ["gaussian", "rdp"],
        },
        "grid": {"mechanism.gradient": ["threshold", "constant"]},
        "resources": {"pack_size": 10},
    } | changes  # fmt: skip


def played(
    raw: dict[str, Any], folder: Path, packs: int, missed: bool = False, mu: float = 2.0
) -> Path:
    """A run of so many packs, scores N(mu b, 1); two failed, and trials of others, if `missed`."""
    parsed = spec.from_raw(raw)
    directory = RunDirectory.under(str(folder), parsed.name)
    plan = planning.open_run(parsed, directory)
    aggregation = Aggregation(parsed, plan, directory)
    todo = list(planning.remaining(directory, plan))[:packs]
    if missed:
        aggregation.give_up(Failure(pack, "ValueError", "boom", "") for pack in todo[:2])
        todo = todo[2:]
    for pack in todo:
        scores = drawn(plan, pack, missed, mu)
        measured = parsed.cells[pack.audit].mechanism.measured
        worth = {name: np.full(scores.scores.shape, 0.75) for name in measured}
        aggregation.fold(pack, dataclasses.replace(scores, utility=worth))
    aggregation.flush()
    return Path(directory.location)


def several_canaries(folder: Path) -> Path:
    """A run of twenty trainings, each with six canaries."""
    mechanism = DP_SGD | {"steps": 4, "batch_size": 32, "held_out": 0.2}
    audit = {"trials": 120, "delta": 1e-5, "estimators": ["several-canaries", "one-run"]}
    adversary = {"name": "biased-dimension", "count": 6}
    raw = sweep(mechanism=mechanism, adversary=adversary, audit=audit, grid={})
    return played(raw | {"resources": {"pack_size": 60}}, folder, 2)


def drawn(plan: Plan, pack: Pack, missed: bool, mu: float) -> PackScores:
    audit = plan.audits[pack.audit]
    bits = seeds.bits(plan.seed, audit.fingerprint, pack.first, pack.last)
    noise = np.random.default_rng(pack.first).normal(size=(pack.size, len(audit.horizons)))
    scores = noise + mu * bits[:, None]
    if not missed:
        return PackScores(pack.first, bits, audit.horizons, scores)
    scores[3] = np.nan
    why = {pack.first + 3: "ValueError: boom"}
    return PackScores(pack.first, bits, audit.horizons, scores, missed=why)


def made_up_run(
    sweep: dict, folder: Path, mu: float, seed: int, diverged: tuple[float, float] = (0.0, 0.0)
) -> Run:
    """A finished run whose scores are N(mu b, 1), a share of which (out, in) has diverged."""
    parsed = spec.from_raw(sweep | {"seed": seed})
    directory = RunDirectory(str(folder))
    plan = planning.open_run(parsed, directory)
    rng = np.random.default_rng(seed)
    for pack in planning.remaining(directory, plan):
        audit = plan.audits[pack.audit]
        members = seeds.bits(plan.seed, audit.fingerprint, pack.first, pack.last)
        scores = rng.normal(size=(pack.size, 1)) + mu * members[:, None]
        scores[rng.random(pack.size) < np.where(members, diverged[1], diverged[0])] = np.nan
        directory.write_scores(audit.id, PackScores(pack.first, members, audit.horizons, scores))
    return Run.open(directory.location)
