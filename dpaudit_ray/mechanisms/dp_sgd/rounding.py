"""Whether what a canary does survives the rounding of parameters to float32."""

from __future__ import annotations

import functools
import logging

import numpy as np
from torch import Tensor

from .optimizers.adam import Adam
from .recipe import Recipe

_LOG = logging.getLogger(__name__)
_UNITS = 10  # in the last place; the canary's power is whole from about there on


def check(recipe: Recipe, initial: Tensor) -> None:
    """Warns, once, of steps so small that θ + step loses part of the step.

    A canary moves θ by η C / |B| in its direction. It joins the update before that is rounded, so
    rounding hides what it did and never adds to it. It is measured against the spacing of float32
    at the median of |θ_0|: half of all parameters have a wider one. A θ_0 that trials draw anew
    is taken from one draw, and parameters at 0, which have no spacing to speak of, are left out.
    Adam's steps do not grow with the gradient, and are left out; a schedule counts at its height.
    """
    if isinstance(recipe.optimizer, Adam):
        return
    sizes = initial.abs()
    sizes = sizes[sizes > 0]
    if not len(sizes):
        return
    typical = float(sizes.median())
    step = recipe.learning_rate * recipe.clip_norm / recipe.batch_size
    units = step / float(np.spacing(np.float32(typical)))
    if units < _UNITS:
        names = f"{recipe.model.name} on {recipe.data.name}"
        rates = (recipe.learning_rate, recipe.clip_norm, recipe.batch_size)
        _warn(names, rates, step, units, typical)


@functools.cache
def _warn(
    names: str, rates: tuple[float, float, int], step: float, units: float, typical: float
) -> None:
    _LOG.warning(
        "%s: with mechanism.learning_rate %g, clip_norm %g and batch_size %d a canary moves θ by "
        "%.2g, %.2g units in the last place of a typical parameter (%.2g): rounding to float32 "
        "hides part of it; raise learning_rate or clip_norm, or lower batch_size",
        names, *rates, step, units, typical,
    )  # fmt: skip
