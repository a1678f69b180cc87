"""Which script, and which function of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from ..errors import SpecError


@dataclasses.dataclass(frozen=True)
class Target:
    """The function of a script; δ and ε are the caller's, before those of its marks."""

    script: Path
    function: str
    delta: float | None = None
    epsilon: float | None = None

    def __str__(self) -> str:
        return f"{self.script.name}:{self.function}"


def parse(text: str, delta: float | None = None, epsilon: float | None = None) -> Target | None:
    """`folder/script.py:function`; None for what is no script.

    Raises:
        SpecError: there is no such file.
    """
    script, separator, function = text.rpartition(":")
    if not separator or not script.endswith(".py"):
        if text.endswith(".py") and Path(text).exists():
            raise SpecError("", f"{text} is a script; name its function too: {text}:main")
        return None
    path = Path(script).resolve()
    if not path.is_file():
        raise SpecError("", f"there is no script {script}; write path/to/script.py:function")
    if not function.isidentifier():
        raise SpecError("", f"{function!r} is no function's name; write {script}:main")
    return Target(path, function, delta, epsilon)
