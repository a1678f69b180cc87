"""Verdicts on trainings with sampled batches: true claims stand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dpaudit_ray as da
from dpaudit_ray.plan import claims, score_stream
from dpaudit_ray.report.tables import Run
from tests.command import write_sweep
from tests.long import long


def sweep(seed: int) -> dict[str, Any]:
    return {
        "name": f"sampled-{seed}",
        "seed": seed,
        "mechanism": {
            "name": "dp-sgd",
            "data": "breast_cancer",
            "model": "fcnn",
            "sampling": "poisson",
            "steps": 200,
            "batch_size": 28,
            "learning_rate": 0.1,
            "clip_norm": 1.0,
            "noise_multiplier": 1.0,
        },
        "adversary": "watched-dimension",
        "audit": {
            "trials": 400,
            "delta": 1e-5,
            "estimators": ["eps-delta"],
            "accountants": ["pld"],
        },
    }


@long("200 sweeps take four minutes; what tests of the claim test cost is in the suite")
def test_two_hundred_healthy_trainings_with_poisson_sampling_are_not_refuted(
    tmp_path: Path,
) -> None:
    """At 5 %, more than 20 alarms of 200 come once in 500 such tests; 1 was seen.

    The verdict's own test, whose curve, which costs most of a verdict, is computed once.
    """
    curve, alarms = None, 0
    for seed in range(1000, 1200):
        file = write_sweep(tmp_path, sweep(seed))
        run = Run.open(da.run(file, storage_path=str(tmp_path), executor="inline").location)
        (audit,), (cell,) = run.plan.audits, run.sweep.cells
        if curve is None:
            claimed = cell.mechanism.claimed(cell.adversary, audit.horizons[-1])
            curve = claims.curves(claimed, "pld", 1e-5)(claimed.noise_multiplier)
        test = claims.test(audit, curve)
        for pack in run.prefix(audit):
            score_stream.feed(test, pack)
        test.look(now=True)
        alarms += test.refuted_after(0.05) is not None
    assert alarms <= 20
