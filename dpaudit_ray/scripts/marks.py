"""What `@audited` says of a function: kept beside it, read by whoever audits it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__dpaudit__"


@dataclasses.dataclass(frozen=True)
class Marks:
    """`delta` of the promise, and `epsilon`, where it is not what the script's accountant says."""

    delta: float | None = None
    epsilon: float | None = None

    def __post_init__(self) -> None:
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, got {self.delta!r}")
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"epsilon must be above 0, got {self.epsilon!r}")


def put(function: F, marks: Marks) -> F:
    """Marks the function, which stays what it is."""
    setattr(function, _MARK, marks)
    return function


def of(function: Any) -> Marks:
    """Its marks; none of any kind where it has none."""
    found = getattr(function, _MARK, None)
    return found if isinstance(found, Marks) else Marks()
