"""Claims: upper bounds on the privacy loss of DP-SGD, by several accountants.

`epsilon` and `delta` return the upper end, the only one that is a guarantee; `bounds` and
`delta_bounds` the whole interval. `clt_epsilon` approximates from below and is no claim. The
libraries behind `prv` and `pld` are imported on use. Adding a module with an `Accountant` subclass
to this package makes it available by its name.
"""

import importlib
import pkgutil

from .accountant import Accountant, UnansweredError, accountants, find
from .claims import (
    bounds,
    curve,
    delta,
    delta_bounds,
    delta_curve,
    delta_of,
    epsilon,
    epsilon_of,
    remark,
)
from .events import events_epsilon
from .family import Family
from .noise import clt_epsilon, clt_noise_multiplier, noise_multiplier
from .other import composed_delta, composed_epsilon, laplace_epsilon
from .training import Adjacency, Bounds, Sampling, Training

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Accountant",
    "Adjacency",
    "Bounds",
    "Family",
    "Sampling",
    "Training",
    "UnansweredError",
    "accountants",
    "bounds",
    "clt_epsilon",
    "clt_noise_multiplier",
    "composed_delta",
    "composed_epsilon",
    "curve",
    "delta",
    "delta_bounds",
    "delta_curve",
    "delta_of",
    "epsilon",
    "epsilon_of",
    "events_epsilon",
    "find",
    "laplace_epsilon",
    "noise_multiplier",
    "remark",
]
