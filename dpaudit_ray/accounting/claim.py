"""Claims of mechanisms as values: δ for every ε, and words for reports.

A kind of claim is one frozen dataclass, in any module of this package. Its first field is its
`key`, by which sweep files and `Claim(epsilon=1)` choose the kind; subclassing `Claim` is all the
registration it needs. Training runs with Gaussian noise (`training.Training`) are a kind, too;
accountants compute its bounds.
"""

import dataclasses
import math
from collections.abc import Mapping
from numbers import Real
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

from ..errors import plain
from ..stats.base import subclasses
from ..stats.curve import Curve
from ..stats.error_rates import Floats, root

STATED = "stated"  # the accountant of claims that are not computed from a training
_POINTS = 60  # points of a curve
_LEAST_DELTA = 1e-12  # δ of the last point of a curve
LARGEST_EPSILON = 700.0  # e to the power of more is infinite in float64


class Claim:
    """A claim about the outputs of a mechanism on any two neighbouring inputs.

    `Claim(epsilon=1, delta=1e-6)` makes a claim of the kind that has these fields.

    Attributes:
        key: the first field of the kind; empty for kinds that no sweep file states.
        unit: what two neighbouring inputs differ by: a record, user, client or label.

    Raises:
        ValueError: a field is unknown, missing or out of its bounds.
    """

    key: ClassVar[str] = ""
    unit: str

    def __new__(cls, *args: Any, **fields: Any) -> Self:
        kind = _kind(fields) if cls is Claim else cls
        return object.__new__(kind)  # type: ignore[return-value]

    @property
    def code(self) -> str:
        """Import path, `module:name`, of an object that the claim is read from; "" for none."""
        return ""

    @property
    def noise(self) -> float:
        """Size of the noise, which `weakened` changes; by default in units of the claimed noise."""
        return 1.0

    @property
    def gaussian(self) -> bool:
        """Whether the claimed trade-off function is Gaussian: then any larger μ refutes it."""
        return False

    @property
    def worst_is_gaussian(self) -> bool:
        """Whether a Gaussian mechanism leaks the most that is claimed; its curve may be smaller."""
        return self.gaussian

    def delta_at(self, epsilon: float) -> float:
        """Returns the claimed δ at an ε of at least 0."""
        raise NotImplementedError

    def epsilon_at(self, delta: float) -> float:
        """Returns the claimed ε at a δ in [0, 1); infinite if none is claimed."""
        most = LARGEST_EPSILON
        if delta == 0 or self.delta_at(most) > delta:
            return math.inf
        if self.delta_at(0.0) <= delta:
            return 0.0
        return root(lambda epsilon: self.delta_at(epsilon) - delta, 0.0, most, xtol=1e-10)

    @property
    def curve(self) -> Curve:
        """Points of the claim, by which it is tested."""
        top = min(self.epsilon_at(0.0), self.epsilon_at(_LEAST_DELTA))
        return self.at(np.linspace(0.0, top, _POINTS))

    def at(self, epsilons: Floats) -> Curve:
        """Returns the claim at these ε, float64 [n]."""
        deltas = [self.delta_at(epsilon) for epsilon in epsilons.tolist()]
        return Curve(epsilons, np.array(deltas))

    def weakened(self, noise: float) -> "Claim":
        """Returns the claim with another size of `noise`."""
        raise NotImplementedError

    @property
    def words(self) -> str:
        """The claim in the words of reports."""
        raise NotImplementedError

    def as_fields(self) -> dict[str, Any]:
        """Returns the fields as a sweep file states them, without those at their defaults."""
        stated = {}
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if value != field.default:
                stated[field.name] = value
        return stated


def from_fields(fields: Any) -> Claim:
    """Returns the claim that a sweep file or a plan states.

    Args:
        fields: a mapping from names to values; a `Claim` is returned as it is.

    Raises:
        ValueError: a field is unknown, missing or out of its bounds.
    """
    if isinstance(fields, Claim):
        return fields
    if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
        raise ValueError(f"a claim is a mapping such as {{epsilon: 1}}, got {fields!r:.60}")
    named = dict(fields)
    if "noise_multiplier" in named and "releases" in named:
        named["steps"] = named.pop("releases")  # the name in plans of version 1.0
    try:
        return Claim(**named)
    except TypeError as error:  # text or a list in place of a number
        raise ValueError(f"{error}, in the claim {fields!r:.60}") from error


# A claim as a field of pydantic models: a mapping in files.
StatedClaim = Annotated[
    Claim,
    PlainValidator(from_fields),
    PlainSerializer(lambda claim: claim.as_fields()),
    WithJsonSchema({"type": "object"}),
]


def kinds() -> dict[str, type[Claim]]:
    """Returns the kinds of claims that a sweep file can state, by their key."""
    named = [cls for cls in subclasses(Claim) if cls.key]
    return {cls.key: cls for cls in sorted(named, key=lambda cls: cls.key)}


def _kind(fields: Mapping[str, Any]) -> type[Claim]:
    """Returns the kind of claim whose key is among the fields.

    Raises:
        ValueError: no key is, or several are, or the kind has other fields.
    """
    by_key = kinds()
    chosen = [key for key in by_key if key in fields]
    if len(chosen) != 1:
        got = ", ".join(fields) or "nothing"
        raise ValueError(f"a claim needs one of {', '.join(by_key)}, got {got}")
    kind = by_key[chosen[0]]
    by_name = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    required = {name for name, f in by_name.items() if f.default is dataclasses.MISSING}
    unknown = fields.keys() - by_name.keys()
    missing = required - fields.keys()
    wrong = [*unknown, *missing]
    if wrong:
        verb = "does not take" if wrong[0] in fields else "needs"
        takes = ", ".join(by_name)
        raise ValueError(f"a claim by {kind.key} {verb} {min(wrong)}; it takes {takes}")
    return kind


def check_number(
    name: str,
    value: Any,
    *,
    least: float = 0.0,
    open_end: bool = True,
) -> None:
    """Raises ValueError unless a value is a finite number above a bound, or at it if not open.

    Args:
        name: name of the value, for the message.
        value: a user's value, of any type.
        least: the bound.
        open_end: whether `least` itself is refused.
    """
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    if is_number and math.isfinite(value):
        at_end = value == least and not open_end
        if value > least or at_end:
            return
    bound = "above" if open_end else "at least"
    raise ValueError(f"{name} must be a number {bound} {plain(least)}, got {value!r}")


def check_delta(name: str, delta: Any) -> None:
    """Raises ValueError unless a value is a number in [0, 1)."""
    check_number(name, delta, open_end=False)
    if delta >= 1:
        raise ValueError(f"{name} must be below 1, got {delta!r}")


UNITS = ("record", "user", "client", "label")


def check_unit(unit: Any) -> None:
    """Raises ValueError for an unknown unit."""
    if unit not in UNITS:
        raise ValueError(f"unit must be one of {', '.join(UNITS)}, got {unit!r}")
