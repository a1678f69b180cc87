"""The Python environment that a script runs in, if it is another one than the audit's.

It needs what the script needs, and nothing for the audit: the watch imports torch and numpy only,
and finds this package by a link (see `isolation.Sandbox`).
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from pathlib import Path

from .. import imports
from ..errors import SpecError
from ..isolation import Sandbox

_OLDEST = (3, 11)  # whose syntax this package has
_NEEDED = ("numpy", "torch")
_SECONDS = 60.0  # for the start of an interpreter
_VERSION = "import sys; print(*sys.version_info[:2])"


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """An interpreter that can run a script under watch.

    Attributes:
        path: the program.
        imports: modules of its environment that the script may import.
    """

    path: str
    imports: tuple[str, ...]

    @classmethod
    def for_script(cls, path: str, script: Path) -> Interpreter:
        """Returns the interpreter at `path`.

        Raises:
            SpecError: it is missing, is not a Python, is too old, or lacks a library.
        """
        program = shutil.which(path)
        if program is None:
            remedy = "write path/to/environment/bin/python"
            raise SpecError("--python", f"is {path}, which is not a program; {remedy}")
        version = _version(program)
        if version < _OLDEST:
            seen = ".".join(map(str, version))
            remedy = "make the script's environment with a newer one"
            raise SpecError(
                "--python", f"{path} is Python {seen}, but audits need 3.11 or newer; {remedy}"
            )
        with Sandbox(interpreter=program) as sandbox:
            ended = sandbox.call(f"{__name__}:describe", str(script))
        if ended.how != "returned":
            raise SpecError("--python", f"{path} cannot be used: {ended.message}")
        if missing := ended.value["missing"]:
            names = " and ".join(missing)
            raise SpecError("--python", f"{path} has no {names}; install what the script needs")
        return cls(program, tuple(ended.value["imports"]))


def _version(program: str) -> tuple[int, ...]:
    try:
        command = [program, "-I", "-c", _VERSION]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False, errors="replace"
        )
        output = done.stdout
    except (OSError, subprocess.TimeoutExpired):
        output = ""
    match = re.fullmatch(r"(\d+) (\d+)\s*", output)
    if not match:
        raise SpecError("--python", f"is {program}, which is not a Python 3 interpreter")
    return int(match[1]), int(match[2])


def describe(script: str) -> dict[str, list[str]]:
    """Returns needed modules that this environment lacks, and those that a script may import."""
    return {
        "missing": [name for name in _NEEDED if imports.module_file(name) is None],
        "imports": imports.installed_imports({"": Path(script)}),
    }
