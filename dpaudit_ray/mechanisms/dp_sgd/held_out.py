"""Examples that nobody trains on: `mechanism.held_out`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...data.base import Data, Dataset
from ...errors import SpecError
from ...seeds import derive

if TYPE_CHECKING:
    from .recipe import Recipe

MEASURES = ("accuracy", "loss")


def size(held_out: Data | float | None, examples: int) -> int:
    """How many of the `examples` of a data set are held out of it.

    Raises:
        SpecError: none is, or fewer than two are left.
    """
    if not isinstance(held_out, float):
        return 0
    found = round(held_out * examples)
    if not 1 <= found <= examples - 2:
        raise SpecError(
            "mechanism.held_out",
            f"is {held_out:g}, which is {found} of {examples} examples; hold out at least one, "
            "and leave two",
        )
    return found


def split(recipe: Recipe, data: Dataset, seed: int) -> tuple[Dataset, Dataset | None]:
    """What is trained on, and what is held out: a data set of its own, or some of these examples.

    Those are drawn from the sweep's seed; the order of the others stays.

    Raises:
        SpecError: examples of the two do not have one shape, or some have a class of their own.
    """
    if recipe.held_out is None:
        return data, None
    if isinstance(recipe.held_out, Data):
        other = recipe.held_out.load()
        _check(recipe.held_out, data, other)
        return data, other
    held = size(recipe.held_out, len(data.y))
    rng = np.random.default_rng(derive("held out", seed, recipe.seed))
    out = np.zeros(len(data.y), dtype=np.bool_)
    out[rng.permutation(len(data.y))[:held]] = True
    return Dataset(data.x[~out], data.y[~out]), Dataset(data.x[out], data.y[out])


def _check(held_out: Data, data: Dataset, other: Dataset) -> None:
    if other.x.shape[1:] != data.x.shape[1:]:
        raise SpecError(
            "mechanism.held_out",
            f"{held_out.name} has examples of shape {other.x.shape[1:]}, the data of "
            f"{data.x.shape[1:]}; give it the same features",
        )
    if other.classes > data.classes:
        raise SpecError(
            "mechanism.held_out",
            f"{held_out.name} has {other.classes} classes, the data has {data.classes}; leave out "
            "what is never trained on",
        )
