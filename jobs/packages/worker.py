"""Calls functions of a package in its own environment: `python worker.py FUNCTIONS_FILE`.

Needs numpy and the package, nothing of `dpaudit_ray`. A request is a line of JSON on standard input
with the keys function, data, arguments, seed and n; lists among the arguments become tuples. The
answer is a line of JSON on standard output with the number of bytes that follow, an array of numpy
with n outputs; or with an error.
"""

import importlib.util
import io
import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np


def main(file: str) -> None:
    """Answers requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a package prints is no answer
    functions = _load(Path(file))
    for line in sys.stdin:
        try:
            outputs = _call(functions, json.loads(line))
        except Exception as error:  # noqa: BLE001 (boundary to a package, which may raise anything)
            head: dict[str, Any] = {"error": f"{type(error).__name__}: {error}"}
            outputs = b""
        else:
            head = {"bytes": len(outputs)}
        answers.write(json.dumps(head).encode() + b"\n" + outputs)
        answers.flush()


def _load(file: Path) -> ModuleType:
    """Imports a file under a name that no package has."""
    spec = importlib.util.spec_from_file_location("audited_functions", file)
    if spec is None or spec.loader is None:
        sys.exit(f"{file} is no Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _call(functions: ModuleType, request: dict[str, Any]) -> bytes:
    """Returns n outputs of a function as bytes of an array [n, ...] of float64."""
    function = getattr(functions, request["function"])
    arguments = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in request["arguments"].items()
    }
    rng = np.random.default_rng(request["seed"])
    outputs = function(request["data"], rng, request["n"], **arguments)
    buffer = io.BytesIO()
    np.save(buffer, np.asarray(outputs, dtype=np.float64), allow_pickle=False)
    return buffer.getvalue()


if __name__ == "__main__":
    main(sys.argv[1])
