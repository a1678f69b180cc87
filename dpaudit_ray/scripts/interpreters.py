"""The Python environment that a script runs in, if it is another one than the audit's.

The environment needs what the script needs, and nothing for the audit: the watch imports torch and
numpy only, and a link leads to this package (see `isolation.Sandbox`).
"""

import dataclasses
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from .. import imports
from ..errors import SpecError

# Any Python 3 can run this program. It prints the version, and which of some modules are installed.
_PROBE = """
import importlib.util, json, sys
def home(name):
    try:
        return str(importlib.util.find_spec(name.partition(".")[0]).origin)
    except (AttributeError, ImportError, ValueError):
        return ""
installed = [name for name in sys.argv[1:] if "-packages" in home(name)]
print(json.dumps([sys.version_info >= (3, 11), sys.version.split()[0], installed]))
"""


@dataclasses.dataclass(frozen=True)
class Interpreter:
    """An interpreter that can run a script under watch.

    Attributes:
        path: the program.
        imports: installed modules of the program's environment that the script may import.
    """

    path: str
    imports: Sequence[str]

    @classmethod
    def for_script(cls, path: str, script: Path) -> "Interpreter":
        """Returns the interpreter at `path`.

        Raises:
            SpecError: the program is missing, is not a Python, is too old, or has no torch.
        """
        names = imports.imported_names("", script)
        command = [path, "-I", "-c", _PROBE, "numpy", "torch", *names]
        try:
            output = subprocess.check_output(command, stderr=subprocess.DEVNULL, timeout=60)
            is_new, version, installed = json.loads(output)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise SpecError(
                "--python",
                f"is {path}, which does not run as Python 3; name environment/bin/python",
            ) from error
        if not is_new:
            raise SpecError(
                "--python",
                f"is Python {version}, but audits need 3.11 or newer; create a newer environment",
            )
        if not {"numpy", "torch"} <= set(installed):
            raise SpecError(
                "--python",
                f"is {path}, which has no torch and numpy; install what the script needs",
            )
        return cls(path, installed)
