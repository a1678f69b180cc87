"""Starts a script in the watched process: a file or notebook as a whole, or one of its functions.

A file runs as `python FILE ARGUMENTS` runs it: as the module `__main__`, so that what it pickles
and what its own processes import is found. A function is called as its command-line framework
would call it without arguments.
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
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ... import opacus
from ...errors import SpecError
from ...opacus import marks_of
from .hooks import around
from .run_state import WatchedRun

# Lines of a notebook's cell that only IPython understands: magics, shell commands, questions.
_FOR_IPYTHON = re.compile(r"^(\s*)(?:[%!?].*|[\w.]+\s*=\s*[%!].*|[\w.]+\?+\s*)$", re.MULTILINE)
# Cells in another language: their magic is none of those that run the cell's own Python.
_FOREIGN_CELL = re.compile(r"\s*%%(?!time|timeit|capture|prun)\w")

# Errors are raised and not printed, and folders of configurations lie beside the script.
_FOR_HYDRA = {"HYDRA_FULL_ERROR": "1", "HYDRA_MAIN_MODULE": "__main__"}


def load(state: WatchedRun, script: Path, name: str, arguments: list[str]) -> Callable[[], Any]:
    """Returns a function without arguments that trains, and returns what is published.

    Args:
        state: of the run; the marks of its publications are set here, or while a whole file runs.
        script: a .py or .ipynb file.
        name: the function; "" for the whole file.
        arguments: of the command line, for a whole file.

    Raises:
        SpecError: the file cannot be compiled, or it has no such function without arguments.
    """
    sys.argv = [str(script), *arguments]
    os.environ |= _FOR_HYDRA
    if script.suffix == ".ipynb":
        os.chdir(script.parent)  # as Jupyter does
    if not name:
        return functools.partial(_run_file, state, script)
    module = _imported(script)
    function = getattr(module, name, None)
    if not callable(function):
        functions = [key for key, value in vars(module).items() if inspect.isfunction(value)]
        listed = ", ".join(functions[:8]) or "none"
        raise SpecError("", f"{script.name} has no function {name!r}; it has {listed}")
    state.publications.marks = marks_of(function)
    return _without_arguments(function, module, script)


def _run_file(state: WatchedRun, script: Path) -> Any:
    """Runs a whole file; returns what its marked function returned, if it has called one."""
    returned = None

    @around(opacus, "audited")
    def audited(original: Any, *args: Any, **kwargs: Any) -> Any:
        mark = original(*args, **kwargs)

        def wrap(function: Any) -> Any:
            marked = mark(function)
            if not inspect.isfunction(function):  # a command object
                state.publications.marks = marks_of(marked)
                return marked

            @functools.wraps(marked)
            def call(*args: Any, **kwargs: Any) -> Any:
                nonlocal returned
                state.publications.marks = marks_of(marked)
                returned = marked(*args, **kwargs)
                return returned

            return call

        return wrap

    sys.path.insert(0, str(script.parent))
    module = types.ModuleType("__main__")
    try:
        _execute(script, module)
    except SystemExit as error:  # the normal end of click, Typer and absl
        if isinstance(error.code, (int, str)) and error.code != 0:
            raise
        if returned is None and not isinstance(error.code, int):  # absl: what `main` returns
            returned = error.code
    return returned


def _imported(script: Path) -> types.ModuleType:
    """Imports a script under its own name; a notebook becomes a module of all its code cells."""
    parts = [script.stem]
    root = script.parent
    while (root / "__init__.py").exists():  # it may import what lies beside it as its package
        parts, root = [root.name, *parts], root.parent
    sys.path[:0] = [str(script.parent), str(root), str(Path.cwd())]
    if script.suffix == ".ipynb":
        module = types.ModuleType(script.name)
        _execute(script, module)
        return module
    try:
        module = importlib.import_module(".".join(parts))
    except SyntaxError as error:
        raise _no_python(script, error) from error
    if Path(str(module.__file__)).resolve() != script:
        why = f"{script.name} has the name of another module, {module.__file__}; rename it"
        raise SpecError("", why)
    return module


def _execute(script: Path, module: types.ModuleType) -> None:
    """Runs the code of a file, or of all cells of a notebook, as this module."""
    sys.modules[module.__name__] = module
    if script.suffix == ".py":
        module.__file__ = str(script)
        try:
            code = compile(script.read_bytes(), script, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:
            raise _no_python(script, error) from error
        exec(code, vars(module))
        return
    vars(module)["display"] = print
    for name, source in _code_cells(script):
        code = _compiled(source, name, script)
        # For tracebacks, and for inspect.
        linecache.cache[name] = len(source), None, source.splitlines(keepends=True), name
        exec(code, vars(module))


def _compiled(source: str, name: str, notebook: Path) -> types.CodeType:
    """Compiles a cell; lines that only IPython understands do nothing."""
    lines = source.splitlines(keepends=True)
    while True:
        try:
            return compile("".join(lines), name, "exec", dont_inherit=True)
        except SyntaxError as error:
            place = slice((error.lineno or 1) - 1, error.lineno)
            without = [_FOR_IPYTHON.sub(r"\1pass", line) for line in lines[place]]
            if without == lines[place]:
                raise _no_python(notebook, error) from error
            lines[place] = without


def _code_cells(notebook: Path) -> Iterator[tuple[str, str]]:
    """Yields a file name and the source of each cell of Python code."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells, 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "code" and not _FOREIGN_CELL.match(source):
            yield f"{notebook}, cell {number}", source


def _no_python(script: Path, error: Exception) -> SpecError:
    return SpecError("", f"{script.name} is no Python script: {error}")


def _without_arguments(function: Any, module: types.ModuleType, script: Path) -> Callable[[], Any]:
    """Returns a function that calls another one as its framework does without arguments."""
    typer = sys.modules.get("typer")
    if inspect.isfunction(function) and typer:
        defaults = [
            parameter.default for parameter in inspect.signature(function).parameters.values()
        ]
        if any(isinstance(default, typer.models.ParameterInfo) for default in defaults):
            app = typer.Typer()
            app.command()(function)
            function = app
    if callable(getattr(function, "callback", None)):  # a command of click, an app of Typer
        return functools.partial(function, args=[], standalone_mode=False)
    # Hydra's wrapper needs no argument, though what it wraps does.
    innermost = inspect.unwrap(function, stop=lambda wrapper: not _takes_any(wrapper))
    signature = inspect.signature(innermost, follow_wrapped=False)
    try:
        signature.bind()
    except TypeError as error:
        uses_absl = any(
            getattr(value, "__name__", "") == "absl.app" for value in vars(module).values()
        )
        if uses_absl and len(signature.parameters) == 1:
            return lambda: function(sys.modules["absl.flags"].FLAGS(sys.argv))
        why = f"{function.__name__} in {script.name} needs arguments ({error})"
        remedy = f"give them defaults, or audit the file: {script.name} -- ARGUMENTS"
        raise SpecError("", f"{why}; {remedy}") from error
    return function


def _takes_any(wrapper: Any) -> bool:
    """Returns whether a function passes on any arguments that it is given."""
    parameters = inspect.signature(wrapper, follow_wrapped=False).parameters.values()
    return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters)
