"""Sweeps of users and clients with less of everything, and the estimate of Andrew et al."""

import numpy as np
import pytest

from jobs.federated import andrew2024
from tests.jobs.small import JOBS, names, run_small
from tests.long import long

SWEEPS = [
    pytest.param(name, marks=long("ten seconds for noise by pld") if name == "canaries" else ())
    for name in names("federated")
]


@pytest.mark.parametrize("name", SWEEPS)
def test_sweeps_run(name, tmp_path):
    small = {
        "canaries": ("audit.trials=500", "audit.record_every=20", "mechanism.model.hidden=[8]"),
        "local": ("audit.trials=1000", "resources.pack_size=1000"),
    }
    changes = small.get(name, ("audit.trials=10", "resources.pack_size=10"))
    run = run_small(JOBS / f"federated/{name}.yaml", tmp_path, *changes)
    assert {cell.claimed().unit for cell in run.sweep.cells} <= {"client", "user"}


def test_epsilon_of_two_normals():
    """Of equal deviations it is that of the Gaussian mechanism, and more for a narrower one."""
    assert andrew2024.epsilon_of_normals(1.0, 1.0) == pytest.approx(4.377, abs=1e-3)
    assert andrew2024.epsilon_of_normals(1.0, 0.8) > 4.4


def test_estimate_of_the_gaussian_mechanism():
    """1000 canaries in 4000 dimensions: the deviation of ten estimates is .3 at ε = 3."""
    found = [andrew2024.gaussian_mechanism(4000, 1000, 3.0, seed) for seed in range(5)]
    assert np.mean(found) == pytest.approx(3.2, abs=0.6)
