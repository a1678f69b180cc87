"""The machines that trainers run on: with the driver's code, and of how many kinds.

Scores are bit-identical on one kind of machine, with one number of threads: another instruction
set adds in another order, and threads share the models out in other groups. Both are recorded in
the run directory and told, versions of the code must be the driver's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..errors import RunDirectoryError
from ..plan import provenance
from ..plan.model import Plan
from ..plan.provenance import Machine
from ..storage.run_directory import RunDirectory
from ..sweep.spec import Sweep

FILE = "machines.json"  # addresses by kind of machine


def recorded(run: RunDirectory) -> dict[str, list[str]]:
    """Addresses of the machines that trained, by kind; damage counts as nothing known."""
    try:
        raw: Any = run.read_json(FILE) or {}
        return {str(kind): sorted({str(one) for one in found}) for kind, found in raw.items()}
    except (RunDirectoryError, AttributeError, TypeError):
        return {}


def threads(sweep: Sweep) -> int:
    """How many threads a trainer computes on: by the sweep, whatever the machine has."""
    return max(1, int(sweep.resources.num_cpus))


def grouped(sweep: Sweep) -> str:
    """What is added to a kind of machine, as models are shared out to threads; on a CPU only."""
    apart = threads(sweep) > 1 and sweep.resources.num_gpus == 0
    torchs = any(cell.mechanism.uses_torch for cell in sweep.cells)
    return f", {threads(sweep)} threads" if apart and torchs else ""


class Fleet:
    """Admits machines to the run of a plan. `tell` takes a line for the user.

    `grouped`: see there.
    """

    def __init__(
        self, plan: Plan, run: RunDirectory, tell: Callable[[str], None], grouped: str = ""
    ) -> None:
        self._grouped = grouped
        self._code = plan.code[-1] if plan.code else None
        self._run, self._tell = run, tell
        self._kinds = recorded(run)
        self._told = False

    @property
    def modules(self) -> tuple[str, ...]:
        """The user's, which a machine is to be asked about."""
        return tuple(self._code.modules) if self._code else ()

    def admit(self, address: str, machine: Machine | None) -> str | None:
        """Takes what a trainer says of its machine; why it may not train, None where it may.

        Raises:
            StorageError: a kind that is new to the run cannot be recorded.
        """
        if machine is None:
            return "it has an older version of dpaudit"
        if self._code is not None and (why := provenance.unlike(self._code, machine)):
            return why
        kind = machine.device + self._grouped
        if address not in self._kinds.setdefault(kind, []):
            self._kinds[kind].append(address)
            self._run.write_json(FILE, self._kinds)
        if len(self._kinds) > 1 and not self._told:
            self._told = True
            self._tell(
                f"warning: trials run on several kinds of machine ({'; '.join(self._kinds)}): "
                "scores are equal in distribution, and may differ in last bits"
            )
        return None
