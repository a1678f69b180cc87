"""Marks the training function of a script that uses Opacus, by one line above it.

    from dpaudit_ray.opacus import audited

    @audited(delta=1e-5)
    def main():
        ...
        return model

The script itself behaves as before. `dpaudit audit script.py:main` audits it, and
`testing.assert_private(main, ...)` does so in a test.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

F = TypeVar("F", bound=Callable[..., Any])
_MARK = "__dpaudit__"

__all__ = ["audited"]


@dataclass(frozen=True)
class Marks:
    """The arguments of `@audited`.

    Attributes:
        delta: δ of the claim, if stated.
        epsilon: ε of the claim, if stated.
        public: names of returned values that contain no private record.
    """

    delta: float | None = None
    epsilon: float | None = None
    public: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raises ValueError for a δ outside (0, 1), or an ε that is not above 0."""
        if self.delta is not None and not 0 < self.delta < 1:
            raise ValueError(f"delta must lie between 0 and 1, got {self.delta!r}")
        if self.epsilon is not None and not self.epsilon > 0:
            raise ValueError(f"epsilon must be above 0, got {self.epsilon!r}")


def audited(
    delta: float,
    *,
    epsilon: float | None = None,
    public: str | Sequence[str] = (),
) -> Callable[[F], F]:
    """Marks a function that trains, takes no arguments, and returns what is published of it.

    Args:
        delta: δ of the claim.
        epsilon: ε of the claim, if it is less than the script's accountant reports.
        public: names of returned values, in addition to private parameters, that depend on records
            only through noise: a tensor, a layer, a key of a dictionary, or a class of networks,
            such as "Generator". The audit does not check this.

    Raises:
        ValueError: a number is outside its bounds.
    """
    marks = Marks(delta, epsilon, (public,) if isinstance(public, str) else tuple(public))

    def mark(function: F) -> F:
        """Leaves the function as it is, with its marks on it."""
        setattr(function, _MARK, marks)
        return function

    return mark


def marks_of(function: Any) -> Marks:
    """Returns a function's marks; empty ones if it has none."""
    # A command of click has a callback, an app of Typer has commands.
    commands = [function, *getattr(function, "registered_commands", ())]
    functions = [function, *(getattr(command, "callback", None) for command in commands)]
    marks = [getattr(function, _MARK, None) for function in functions]
    return next((mark for mark in marks if isinstance(mark, Marks)), Marks())
