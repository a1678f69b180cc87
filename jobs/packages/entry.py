"""A function of a released package: how it is called, and what its arguments promise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dpaudit_ray import Claim

Pairs = Sequence[tuple[Any, Any]]


@dataclass(frozen=True)
class Entry:
    """A function of a released package.

    Attributes:
        name: short and unique.
        package: key of `environments.REQUIREMENTS`.
        function: name of a function in the package's file of `functions/`.
        arguments: passed to it, as JSON has them.
        claim: what the package documents for these arguments.
        pairs: neighbouring inputs, as JSON has them.
        trials: number of trials of the audit.
        delta: δ of the bound.
        report: public report of a defect; empty for functions that are expected to keep the claim.
        options: of the adversary `learned`.
    """

    name: str
    package: str
    function: str
    arguments: Mapping[str, Any]
    claim: Claim
    pairs: Pairs
    trials: int = 10_000
    delta: float = 0.0
    report: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)


def replaced(low: float, high: float, records: int = 3) -> Pairs:
    """Returns inputs in which one record moves from one end of its bounds to the other."""
    others = [low] * (records - 1)
    return [([low, *others], [high, *others])]


def added(low: float, high: float, records: int = 2) -> Pairs:
    """Returns inputs with and without a record at either end of its bounds."""
    others = [low] * records
    return [(others, [*others, high]), (others, [*others, low])]


def values(*pair: Any) -> Pairs:
    """Returns the one pair of inputs of a mechanism on values."""
    first, second = pair
    return [(first, second)]
