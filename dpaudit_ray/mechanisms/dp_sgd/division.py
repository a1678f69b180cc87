"""Which records are trained on, which measure what models are worth, which the adversary has."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ...data.base import Data, Dataset
from ...errors import SpecError
from ...seeds import derive

if TYPE_CHECKING:
    from .recipe import Recipe

MEASURES = ("accuracy", "loss")


class Shares(Protocol):
    """Options or recipe: `held_out` and `reserved` are shares of the data; None for none."""

    @property
    def held_out(self) -> Data | float | None: ...

    @property
    def reserved(self) -> float | None: ...


@dataclasses.dataclass(frozen=True)
class Division:
    """What is trained on, what is held out to measure on, and what only the adversary has."""

    trained: Dataset
    held_out: Dataset | None
    reserved: Dataset | None


def trained(shares: Shares, examples: int) -> int:
    """How many of the `examples` of a data set are trained on.

    Raises:
        SpecError: no record is held out or reserved though some should be, or fewer than two left.
    """
    held = _count(shares.held_out, "held_out", examples)
    own = reserved(shares, examples)
    left = examples - held - own
    if left < 2:
        raise SpecError(
            "mechanism.reserved" if own else "mechanism.held_out",
            f"leaves {max(left, 0)} of {examples} examples to train on; lower it, leave two",
        )
    return left


def reserved(shares: Shares, examples: int) -> int:
    """How many of the `examples` of a data set only adversaries have."""
    return _count(shares.reserved, "reserved", examples)


def divide(recipe: Recipe, data: Dataset, seed: int) -> Division:
    """Draws from the sweep's seed; the order of the records stays.

    Raises:
        SpecError: examples held out do not have one shape with the others, or have a class of
            their own; too few are left.
    """
    count = len(data.y)
    left = trained(recipe, count)
    other = None
    if isinstance(recipe.held_out, Data):
        other = recipe.held_out.load()
        check_like(data, other, "mechanism.held_out", recipe.held_out.name)
    if left == count:
        return Division(data, other, None)
    rng = np.random.default_rng(derive("held out", seed, recipe.seed))
    place = rng.permutation(count)
    held = _count(recipe.held_out, "held_out", count)
    first, last = place < held, place >= held + left
    apart = [_rows(data, rows) if rows.any() else None for rows in (first, last)]
    return Division(_rows(data, ~(first | last)), other or apart[0], apart[1])


def check_like(data: Dataset, other: Dataset, key: str, name: str) -> None:
    """Raises SpecError under `key` where `other` is not of the kind of `data`."""
    if other.x.shape[1:] != data.x.shape[1:]:
        raise SpecError(
            key,
            f"{name} has examples of shape {other.x.shape[1:]}, the data of {data.x.shape[1:]}; "
            "give it the same features",
        )
    if other.classes > data.classes:
        raise SpecError(
            key,
            f"{name} has {other.classes} classes, the data has {data.classes}; leave out what is "
            "never trained on",
        )


def _rows(data: Dataset, rows: np.ndarray) -> Dataset:
    return Dataset(data.x[rows], data.y[rows])


def _count(share: Data | float | None, name: str, examples: int) -> int:
    if not isinstance(share, float):
        return 0
    found = round(share * examples)
    if found < 1:
        raise SpecError(
            f"mechanism.{name}",
            f"is {share:g}, which is none of {examples} examples; take at least one",
        )
    return found
