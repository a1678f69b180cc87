"""Wraps functions of libraries, and finds the line of the script that is running."""

import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from ... import imports


def around(owner: Any, name: str) -> Callable[[Callable[..., Any]], None]:
    """Returns a decorator that replaces a function by the decorated one.

    The decorated function takes the original function first, and then the arguments of the call.

    Args:
        owner: module or class that has the function.
        name: name of the function.
    """

    def replace(wrapper: Callable[..., Any]) -> None:
        """Puts the wrapper in the function's place."""
        original = getattr(owner, name)
        setattr(owner, name, lambda *args, **kwargs: wrapper(original, *args, **kwargs))

    return replace


def _observe(owner: Any, name: str, is_after: bool) -> Callable[[Callable[..., None]], None]:
    """Returns a decorator for a function that is to be called with each call of another function.

    The decorated function takes the same arguments as the other one.

    Args:
        owner: module or class that has the observed function.
        name: name of the observed function.
        is_after: the decorated function is called after the observed one, else before.
    """

    def register(observer: Callable[..., None]) -> None:
        """Replaces the observed function by one that calls it and the observer."""

        @around(owner, name)
        def call(original: Any, /, *args: Any, **kwargs: Any) -> Any:
            """Calls both functions; returns what the observed one returns."""
            if not is_after:
                observer(*args, **kwargs)
            returned = original(*args, **kwargs)
            if is_after:
                observer(*args, **kwargs)
            return returned

    return register


before = functools.partial(_observe, is_after=False)
after = functools.partial(_observe, is_after=True)


def import_if_there(name: str) -> Any:
    """Imports a module; returns None if the script's environment does not have it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


is_users = functools.cache(imports.is_users)


def is_of_user(value: Any) -> bool:
    """Returns whether the class of a value is defined in the user's code."""
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    return bool(file) and is_users(file)


def users_frames() -> list[FrameType]:
    """Returns the frames of the user's code that is running, the innermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


def calling_line() -> str:
    """Returns file:number of the user's line that is running; "" if no such code is running."""
    frames = users_frames()
    if not frames:
        return ""
    return f"{Path(frames[0].f_code.co_filename).name}:{frames[0].f_lineno}"
