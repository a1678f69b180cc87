"""Claims: upper bounds on the privacy loss, stated or computed by several accountants.

`epsilon` is the number that is quoted; `epsilon_of` and `delta_of` also return the accountant that
answered, and why. All raise ValueError for a value outside its bounds, or an accountant that cannot
give a bound. Adding a module with an `Accountant` subclass makes it available by its name.
"""

import importlib
import pkgutil

from .accountant import Accountant, UnansweredError, accountants, find
from .claim import STATED, Claim
from .claim_bounds import (
    clt_epsilon,
    clt_noise_multiplier,
    curve,
    delta_of,
    epsilon,
    epsilon_of,
    events_epsilon,
    noise_multiplier,
    remark,
)
from .family import Family
from .training import Adjacency, Sampling, Training, UpperBound

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "STATED",
    "Accountant",
    "Adjacency",
    "Claim",
    "Family",
    "Sampling",
    "Training",
    "UnansweredError",
    "UpperBound",
    "accountants",
    "clt_epsilon",
    "clt_noise_multiplier",
    "curve",
    "delta_of",
    "epsilon",
    "epsilon_of",
    "events_epsilon",
    "find",
    "noise_multiplier",
    "remark",
]
