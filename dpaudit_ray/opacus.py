"""For training scripts that use Opacus: one line above the function that trains.

    from dpaudit_ray.opacus import audited

    @audited(delta=1e-5)
    def main():
        ...
        return model

Run plainly, the script does what it did. `dpaudit verify script.py:main` audits it, and
`testing.assert_private(main, ...)` does so in a test.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from .scripts.marks import Marks, put

F = TypeVar("F", bound=Callable[..., Any])

__all__ = ["audited"]


def audited(delta: float, *, epsilon: float | None = None) -> Callable[[F], F]:
    """Marks a function that trains, takes no arguments, and returns what is published of it.

    Args:
        delta: δ of the promise.
        epsilon: ε that is promised, where that is less than the script's own accountant says.

    Raises:
        ValueError: a number outside its bounds.
    """
    marks = Marks(delta, epsilon)
    return lambda function: put(function, marks)
