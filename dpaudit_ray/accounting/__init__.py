"""Claims: upper bounds on the privacy loss of DP-SGD, by four accountants.

`epsilon` and `delta` return the upper end, the only one that is a guarantee; `bounds` and
`delta_bounds` the whole interval. `clt_epsilon` approximates from below and is no claim. The
libraries behind `prv` and `pld` are imported on use.
"""

from .claims import bounds, curve, delta, delta_bounds, delta_curve, epsilon
from .noise import clt_epsilon, clt_noise_multiplier, noise_multiplier
from .other import composed_delta, composed_epsilon, laplace_epsilon
from .training import Accountant, Adjacency, Bounds, Sampling, Training

__all__ = [
    "Accountant",
    "Adjacency",
    "Bounds",
    "Sampling",
    "Training",
    "bounds",
    "clt_epsilon",
    "clt_noise_multiplier",
    "composed_delta",
    "composed_epsilon",
    "curve",
    "delta",
    "delta_bounds",
    "delta_curve",
    "epsilon",
    "laplace_epsilon",
    "noise_multiplier",
]
