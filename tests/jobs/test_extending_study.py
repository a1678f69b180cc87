"""The study of extensions in small, on what the package itself calls certified.

The full one is `jobs/studies/extending.yaml`.
"""

import numpy as np
from scipy import special

from dpaudit_ray.stats import gdp
from jobs.studies.extending import Extending, errors
from tests.long import long


@long("the study itself, a twentieth of it")
def test_extending_until_it_pleases_does_not_void_what_is_certified():
    """1000 trials, doubled up to 8000, at ε = 1.

    The bound for a declared number errs in 12.8 %: 14 or fewer of 200 would have probability 0.7 %
    with another seed. What is certified may err in 5 %: more than `allowed` has 0.01 %.
    """
    audits, truth = 200, float(gdp.mu(1.0, 1e-5))
    study = {"sizes": [1000, 2000, 4000, 8000], "epsilon": 1.0}
    before, now = (
        errors(Extending(**study, certified=certified), truth, audits, seed=3)
        for certified in (False, True)
    )
    k = np.arange(audits)
    allowed = int(k[special.bdtr(k, audits, 0.05) >= 0.9999][0])
    assert before >= 15
    assert now <= allowed
    assert now < before
