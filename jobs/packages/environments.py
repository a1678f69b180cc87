"""Environments of the audited packages, one for each, with pinned versions."""

import io
import json
import subprocess
import sys
import venv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit_ray.errors import DpauditError

HERE = Path(__file__).parent
FOLDER = HERE.parents[1] / ".venv-packages"
# What is installed in each environment. Versions are those of the table in README.md.
REQUIREMENTS: dict[str, tuple[str, ...]] = {
    "diffprivlib": ("diffprivlib==0.6.6", "scikit-learn==1.5.2", "numpy==2.2.6"),
    "flwr": ("flwr==1.42.0", "numpy==2.2.6"),
    "multi-freq-ldpy": ("multi-freq-ldpy==0.2.5", "scipy==1.15.3", "numpy==2.2.6"),
    "opendp": ("opendp==0.16.0", "numpy==2.2.6"),
    "opendp-0.15.1": ("opendp==0.15.1", "numpy==2.2.6"),
    "pipeline-dp": ("pipeline-dp==0.3.1", "numpy==2.2.6"),
    "pure-ldp": ("pure-ldp==1.2.0", "scikit-learn==1.5.2", "numpy==2.2.6"),
    "pure-ldp-1.1.2": ("pure-ldp==1.1.2", "scikit-learn==1.5.2", "numpy==2.2.6"),
    "python-dp": ("python-dp==1.1.5", "numpy==2.2.6"),
}


def python_of(package: str) -> Path:
    """Returns the interpreter of a package's environment, which is made if there is none."""
    folder = FOLDER / package
    done = folder / "installed"
    python = folder / "bin" / "python"
    if not done.exists():
        sys.stderr.write(f"installing {', '.join(REQUIREMENTS[package])}\n")
        venv.create(folder, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", *REQUIREMENTS[package]]
        subprocess.run(command, check=True)
        done.touch()
    return python


@dataclass
class Worker:
    """A process that calls functions of a package in its environment.

    Attributes:
        python: interpreter of the environment.
        file: functions that are called.
    """

    python: Path
    file: Path
    _process: subprocess.Popen[bytes] | None = None

    def outputs(
        self,
        function: str,
        data: Any,
        arguments: Mapping[str, Any],
        seed: int,
        n: int,
    ) -> NDArray[np.float64]:
        """Returns n outputs of a function, float64 [n, ...]. Raises DpauditError if it raises."""
        process = self._started()
        request = {
            "function": function,
            "data": data,
            "arguments": dict(arguments),
            "seed": seed,
            "n": n,
        }
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            raise DpauditError(f"the process of {self.file.name} ended: see its messages above")
        head = json.loads(line)
        if "error" in head:
            raise DpauditError(head["error"])
        content = process.stdout.read(head["bytes"])
        return np.load(io.BytesIO(content), allow_pickle=False)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            command = [str(self.python), str(HERE / "worker.py"), str(self.file)]
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe)
        return self._process

    def stop(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.communicate()
            self._process = None
