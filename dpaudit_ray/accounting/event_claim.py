"""Claims by an event of `dp_accounting`, whose distribution of losses that package composes.

The package is imported with the first bound of such a claim.
"""

import re
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from .. import imports
from ..errors import SpecError, plain
from .claim import Claim, check_number, check_unit
from .training import Adjacency

_KEY = "claim.event"


@dataclass(frozen=True)
class EventClaim(Claim):
    """An event of `dp_accounting` that `package.module:name` names; bounds are by its PLD.

    Attributes:
        event: the import path of the event.
        adjacency: `add-remove` or `replace`.
        noise: factor on all noise of the event.
    """

    key = "event"
    event: str
    adjacency: str = Adjacency.ADD_REMOVE
    noise: float = 1.0
    unit: str = "record"

    def __post_init__(self) -> None:
        """Checks the fields. Raises ValueError, or SpecError for code that is not trusted."""
        if not isinstance(self.event, str) or not re.fullmatch(r"[\w.]+:[\w.]+", self.event):
            raise ValueError(f"event must be module:name, got {self.event!r}")
        imports.require_importable(self.event, _KEY)
        object.__setattr__(self, "adjacency", Adjacency(self.adjacency))
        check_number("noise", self.noise)
        check_unit(self.unit)

    @property
    def code(self) -> str:
        return self.event

    def delta_at(self, epsilon: float) -> float:
        return float(_accountant(self).get_delta(epsilon))

    def epsilon_at(self, delta: float) -> float:
        return float(_accountant(self).get_epsilon(delta))

    def weakened(self, noise: float) -> Claim:
        return replace(self, noise=noise)

    @property
    def words(self) -> str:
        less = "" if self.noise == 1 else f" with {plain(self.noise, '.3g')} times its noise"
        return f"the event {self.event}{less}"


@lru_cache
def _accountant(claim: EventClaim) -> Any:
    """Returns an accountant of `dp_accounting` that has composed the event.

    Raises:
        SpecError: the package is missing, the path does not lead to an event, or the package has no
            loss distribution for it.
    """
    try:
        from dp_accounting import DpEvent, NeighboringRelation, UnsupportedEventError
        from dp_accounting.pld import PLDAccountant
    except ImportError as error:
        problem = f"needs dp_accounting ({error}); pip install dp-accounting"
        raise SpecError(_KEY, problem) from error

    event = imports.imported(claim.event, _KEY)
    if not isinstance(event, DpEvent):
        raise SpecError(_KEY, f"{claim.event} is {event!r:.60}, but must be a DpEvent")
    is_replaced = claim.adjacency == Adjacency.REPLACE
    relation = (
        NeighboringRelation.REPLACE_ONE if is_replaced else NeighboringRelation.ADD_OR_REMOVE_ONE
    )
    try:
        return PLDAccountant(relation).compose(_with_noise(event, claim.noise))
    except (ValueError, TypeError, UnsupportedEventError) as error:
        raise SpecError(_KEY, f"{claim.event} has no loss distribution: {error}") from error


def _with_noise(event: Any, factor: float) -> Any:
    """Returns an event with `factor` times the noise, also in the events that it composes."""
    import attr

    changes = {}
    for name, value in attr.asdict(event, recurse=False).items():
        if name == "event":
            changes[name] = _with_noise(value, factor)
        elif name == "events":
            changes[name] = [_with_noise(part, factor) for part in value]
        elif name in ("noise_multiplier", "standard_deviation"):
            changes[name] = value * factor
        elif name == "noise_parameter" and hasattr(event, "sensitivity"):
            changes[name] = value / factor  # the inverse scale of discrete Laplace noise
        elif name == "noise_parameter":
            changes[name] = min(value * factor, 1.0)  # probability of a random answer
    return attr.evolve(event, **changes)
