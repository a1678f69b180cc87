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

    The decorated function gets the original function before all arguments.

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

    It gets the same arguments.

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
            if is_after:
                returned = original(*args, **kwargs)
                observer(*args, **kwargs)
                return returned
            observer(*args, **kwargs)
            return original(*args, **kwargs)

    return register


before = functools.partial(_observe, is_after=False)
after = functools.partial(_observe, is_after=True)


def import_if_there(name: str) -> Any:
    """Imports a module; returns None if the environment, or its version of a library, lacks it."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        return None


is_users = functools.cache(imports.is_users)


def is_of_user(value: Any) -> bool:
    """Returns whether the user's code has the class of a value."""
    file = getattr(sys.modules.get(type(value).__module__), "__file__", None)
    return bool(file) and is_users(file)


def users_frames() -> list[FrameType]:
    """Returns the frames of the user's code that are being run, the innermost first."""
    frames = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            frames.append(frame)
        frame = frame.f_back
    return frames


def calling_line() -> str:
    """Returns file and line of the user's code that is being run; "" if no such code runs."""
    frames = users_frames()
    if not frames:
        return ""
    return f"{Path(frames[0].f_code.co_filename).name}:{frames[0].f_lineno}"
