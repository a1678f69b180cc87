"""Starts a script in the watched process: a file or notebook as a whole, or one of its functions.

A file runs as `python FILE ARGUMENTS` runs it: as the module `__main__`, in which pickled objects
and the script's own processes look names up. A function is called as its command-line framework
calls it without arguments.
"""

import functools
import importlib
import inspect
import json
import linecache
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ... import opacus
from ...errors import SpecError
from ...opacus import marks_of
from .hooks import around
from .run_state import WatchedRun

# Lines of a notebook that only IPython understands. A line may also begin with the operator %.
_FOR_IPYTHON = re.compile(r"^(\s*)(?:%%?\w|!|\?|\w+ *= *!).*|^()\w+\?+$", re.MULTILINE)
# Magics of cells in other languages. The excluded magics run the cell's own Python.
_FOREIGN_CELL = re.compile(r"\s*%%(?!time|timeit|capture|prun)")
# With these, Hydra raises errors instead of printing them, and finds configurations beside the
# script.
_FOR_HYDRA = {"HYDRA_FULL_ERROR": "1", "HYDRA_MAIN_MODULE": "__main__"}


def load(
    state: WatchedRun,
    script: Path,
    name: str,
    arguments: list[str],
) -> Any:
    """Returns a function that needs no arguments, trains, and returns what is published.

    Args:
        state: state of the run. Its marks are set now, or later while a whole file runs.
        script: a .py or .ipynb file.
        name: the function; "" for the whole file.
        arguments: arguments of the command line, for a whole file.

    Raises:
        SpecError: the file cannot be compiled, or it has no such function without arguments.
    """
    sys.argv = [str(script), *arguments]
    os.environ |= _FOR_HYDRA
    if script.suffix == ".ipynb":
        os.chdir(script.parent)  # Jupyter does so
    if not name:
        return functools.partial(_run_file, state, script)
    module = _imported(script)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        listed = ", ".join(functions[:8]) or "none"
        raise SpecError("", f"{script.name} has no function {name!r}; it has {listed}")
    state.publications.marks = marks_of(function)
    return _without_arguments(function, module)


def _run_file(state: WatchedRun, script: Path) -> Any:
    """Runs a whole file; returns what its marked function returned, if it has called one."""
    returned = None

    @around(opacus, "audited")
    def audited(original: Any, *args: Any, **kwargs: Any) -> Any:
        """Replaces `@audited(...)`: also notes marks and result of the decorated function."""

        def mark(function: Any) -> Any:
            """Decorates the script's function."""

            @functools.wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                """Calls the function, and notes its marks and its result."""
                nonlocal returned
                state.publications.marks = marks_of(call)
                returned = function(*args, **kwargs)
                return returned

            return original(*args, **kwargs)(call)

        return mark

    sys.path.insert(0, str(script.parent))
    _execute(script, "__main__")
    return returned


def _imported(script: Path) -> types.ModuleType:
    """Imports a script under its own name; a notebook becomes a module of all its code cells."""
    parts = [script.stem]
    root = script.parent
    while (root / "__init__.py").exists():  # the script may import other modules of its package
        parts, root = [root.name, *parts], root.parent
    sys.path[:0] = map(str, (script.parent, root, Path.cwd()))
    if script.suffix == ".ipynb":
        return _execute(script, script.name)
    try:
        module = importlib.import_module(".".join(parts))
    except SyntaxError as error:
        raise _no_python(script, error) from error
    if Path(str(module.__file__)).resolve() != script:
        raise SpecError(
            "", f"{script.name} has the name of another module, {module.__file__}; rename it"
        )
    return module


def _execute(script: Path, name: str) -> types.ModuleType:
    """Runs the code of a file, or of all cells of a notebook, as a module of this name."""
    module = sys.modules[name] = types.ModuleType(name)
    if script.suffix == ".py":
        module.__file__ = str(script)
    else:
        vars(module)["display"] = print  # IPython's function
    for file, source in _sources(script):
        try:
            code = compile(source, file, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise _no_python(script, error) from error
        exec(code, vars(module))
    return module


def _sources(script: Path) -> Iterator[tuple[str, str | bytes]]:
    """Yields a name and the source of a file, or of each cell of a notebook."""
    if script.suffix == ".py":
        yield str(script), script.read_bytes()
        return
    cells = json.loads(script.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not _FOREIGN_CELL.match(source):
            name = f"{script}, cell {number}"
            source = _FOR_IPYTHON.sub(r"\1pass", source)
            # So that `inspect` finds the source.
            linecache.cache[name] = 0, None, source.splitlines(keepends=True), name
            yield name, source


def _no_python(script: Path, error: Exception) -> SpecError:
    """Returns the error for a file that cannot be compiled."""
    return SpecError("", f"{script.name} is no Python script: {error}")


def _without_arguments(function: Any, module: types.ModuleType) -> Any:
    """Returns a function that calls `function` as its command-line framework does.

    Args:
        function: the script's function.
        module: the script.

    Raises:
        SpecError: the function needs arguments.
    """
    # Hydra's wrapper needs no argument, though the wrapped function does.
    signature = inspect.signature(function, follow_wrapped="hydra" not in sys.modules)
    if "<typer.models." in str(signature):  # defaults that Typer replaces
        app = sys.modules["typer"].Typer()
        app.command()(function)
        function = app
    if callable(getattr(function, "callback", None)):  # a command of click, an app of Typer
        return functools.partial(function, args=[], standalone_mode=False)
    try:
        signature.bind()
    except TypeError as error:
        absl = sys.modules.get("absl.app")
        # In a script that imports `absl.app`, the function takes the arguments that are no flags.
        if absl and any(value is absl for value in vars(module).values()):
            return lambda: function(sys.modules["absl.flags"].FLAGS(sys.argv))
        raise SpecError(
            "",
            f"{function.__name__} in {Path(sys.argv[0]).name} needs arguments ({error}); "
            "give them defaults, or audit the whole file",
        ) from error
    return function
