"""For training scripts that use Opacus: one line above the function that trains.

    from dpaudit_ray.opacus import audited

    @audited(delta=1e-5)
    def main():
        ...
        return model

Run plainly, the script does what it did. `dpaudit audit script.py:main` audits it, and
`testing.assert_private(main, ...)` does so in a test.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__dpaudit__"

__all__ = ["audited"]


@dataclasses.dataclass(frozen=True)
class Marks:
    """What `@audited` says of a function: δ and ε of its promise; None where it does not say."""

    delta: float | None = None
    epsilon: float | None = None
    public: tuple[str, ...] = ()  # names of what is returned beside private parameters

    def __post_init__(self) -> None:
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, got {self.delta!r}")
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"epsilon must be above 0, got {self.epsilon!r}")


def audited(
    delta: float, *, epsilon: float | None = None, public: str | Sequence[str] = ()
) -> Callable[[F], F]:
    """Marks a function that trains, takes no arguments, and returns what is published of it.

    Args:
        delta: δ of the promise.
        epsilon: ε that is promised, where that is less than the script's own accountant says.
        public: names of what is returned beside private parameters, where no record went into it
            but through noise: a tensor, a layer, a key of a dictionary, or a class of networks,
            such as "Generator". The audit takes your word for it.

    Raises ValueError for a number outside its bounds.
    """
    marks = Marks(delta, epsilon, (public,) if isinstance(public, str) else tuple(public))

    def mark(function: F) -> F:
        setattr(function, _MARK, marks)
        return function

    return mark


def marks_of(function: Any) -> Marks:
    """The function's marks, for whoever audits it; marks that say nothing where it has none."""
    behind = getattr(function, "callback", None)  # of a command of click
    marks = getattr(function, _MARK, getattr(behind, _MARK, None))
    return marks if isinstance(marks, Marks) else Marks()
