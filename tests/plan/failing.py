"""Trainings that fail, and a sweep of one."""

import os
import time
from typing import Any

import numpy as np
from scipy import special

FLAG = "FAILS_NOW"  # an environment variable: what a training depends on and its seed does not
SECONDS = "EACH_TAKES"  # another one: how long `steady` takes


def steady(member: bool, seed: int) -> float:
    """N(2 b, 1), a function of the seed; while the flag is set one training in 31 raises."""
    time.sleep(float(os.environ.get(SECONDS, 0)))
    if seed % 31 == 0 and FLAG in os.environ:
        raise ValueError("out of memory")
    return float(np.random.default_rng(seed).normal() + 2 * member)


def telling(member: bool, seed: int) -> float:
    """Noise alone, but a training that looks wrong raises: what is left tells the bit."""
    score = float(np.random.default_rng(seed).normal())
    if (score > 0) != member:
        raise ValueError("boom")
    return score


def restless(member: bool, seed: int) -> float:
    """Randomised response at ε = 1, seeded by the clock; half of its misses raise."""
    rng = np.random.default_rng()
    truthful = rng.random() < special.expit(1.0)
    if not truthful and rng.random() < 0.5:
        raise ValueError("boom")
    return float(member == truthful)


def first_try(member: bool, seed: int, steady: bool) -> float:
    if FLAG in os.environ:
        raise ValueError("boom")
    return float(np.random.default_rng(seed if steady else None).normal())


def of_function(
    name: str, audit: dict[str, Any], pack_size: int, /, **options: Any
) -> dict[str, Any]:
    """A sweep of one audit of a function."""
    mechanism = {"name": "function", "steps": 4, "noise_multiplier": 1.0} | options
    resources = {"pack_size": pack_size, "max_trial_failures": 1000}
    audit = {"trials": 100, "delta": 1e-5} | audit
    raw = {"name": name, "seed": 5, "mechanism": mechanism, "adversary": "own"}
    return raw | {"audit": audit, "resources": resources}


def sweep(name: str, trials: int, **options: Any) -> dict[str, Any]:
    estimators = ["accuracy", "eps-delta", "anytime", "group-sequential"]
    how = {"name": "tests.pace:WithoutTorch", "path": f"tests.plan.failing:{name}"}
    audit = {"trials": trials, "estimators": estimators}
    return of_function("failing", audit, 5, **how, options=options) | {"seed": 8}
