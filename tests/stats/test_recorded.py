"""Every bound on scores that never change, beside what it was when it was recorded.

Other tests say that a bound is valid and close to a slow twin of it. A constant that a bound is
tuned by moves it a little and breaks neither: it is seen here. After a change that is meant:
`python -m tests.stats.test_recorded`.
"""

import functools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray import stats
from dpaudit_ray.stats import gdp
from dpaudit_ray.stats.claim_verdict import ClaimTest
from dpaudit_ray.stats.curve import Curve
from tests.stats.reference import SINGLE

RECORD = Path(__file__).with_name("recorded.json")
DELTA, CONFIDENCE = 1e-5, 0.95
# μ, trials, decimals of the scores, share that diverged
SCORES = {"near": (0.7, 900, 9, 0.0), "tied": (1.5, 600, 1, 0.0), "diverged": (3.0, 400, 9, 0.1)}


def drawn(name: str) -> tuple[np.ndarray, np.ndarray]:
    mu, trials, decimals, diverged = SCORES[name]
    rng = np.random.default_rng(trials)
    members = rng.random(trials) < 0.5
    scores = np.round(rng.normal(size=trials) + mu * members, decimals)
    return np.where(rng.random(trials) < diverged, np.nan, scores), members


def bound(method: str, name: str, independent: bool = False, **options: Any) -> list[float]:
    scores, members = drawn(name)
    canaries_of_one_run = SINGLE[method].one_run and not independent
    runs = np.zeros(len(scores)) if canaries_of_one_run else np.arange(len(scores))
    estimate = stats.estimate(scores, members, DELTA, CONFIDENCE, method, runs=runs, **options)
    return [estimate.epsilon_lower, estimate.mu_lower, estimate.threshold]


holdout = functools.partial(bound, threshold="holdout")


def claim_test(name: str, claimed: float) -> list[float]:
    """What a test of μ-GDP says, looked at after every tenth trial."""
    scores, members = drawn(name)
    epsilons = np.linspace(0.0, 12.0, 61)

    def family(noise: float) -> Curve:
        return Curve(epsilons, np.asarray(gdp.delta(epsilons, 1 / noise)))

    test = ClaimTest(family(1 / claimed), len(scores))
    for first in range(0, len(scores), 10):
        test.fold(scores[first : first + 10], members[first : first + 10])
        test.look()
    test.look(now=True)
    noise = test.effective_noise(family, 1 / claimed, 0.05)
    return [float(test.refuted_after(0.05) or 0), test.best, noise or math.inf]


def cases() -> dict[str, Any]:
    table = {f"{m} {n}": ("bound", m, n) for m in SINGLE for n in SCORES}
    one_run = ("one-run", "one-run-fdp")
    table |= {f"independent {m} {n}": ("bound", m, n, True) for m in one_run for n in SCORES}
    table |= {f"holdout eps-delta {n}": ("holdout", "eps-delta", n) for n in SCORES}
    tests = (("near", 0.5), ("diverged", 0.5), ("diverged", 1.2))  # others take 7 seconds each
    return table | {f"claim test {name} {mu}": ("claim_test", name, mu) for name, mu in tests}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", cases())
def test_no_bound_has_moved(case):
    kind, *arguments = cases()[case]
    now, recorded = globals()[kind](*arguments), json.loads(RECORD.read_text())
    assert case in recorded, "it is new: record it with `python -m tests.stats.test_recorded`"
    before = [math.nan if value is None else value for value in recorded[case]]
    assert now == pytest.approx(before, rel=1e-9, nan_ok=True)


if __name__ == "__main__":
    table = {case: globals()[kind](*rest) for case, (kind, *rest) in cases().items()}
    lines = [f"{json.dumps(c)}: {json.dumps(v)}".replace("NaN", "null") for c, v in table.items()]
    RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n")
