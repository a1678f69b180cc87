"""Loops that numba compiles; kept on disk where that can be written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])


def part(loops: F) -> F:
    """What compiled functions share: compiled as part of each, and never alone."""
    made: Any = numba.jit(nopython=True, inline="always")(loops)
    return cast(F, made)


def compiled(loops: F) -> F:
    """Compiles a function of arrays; it frees the lock.

    Sums may be reordered, so that they vectorise; NaN and inf keep their meaning.
    """
    options: dict[str, Any] = {"nopython": True, "nogil": True, "fastmath": {"reassoc", "contract"}}
    try:
        made: F = numba.jit(cache=True, **options)(loops)
    except RuntimeError:  # numba finds no folder for its cache: each process compiles anew
        made = numba.jit(**options)(loops)
    return made
