"""Sessions of `function`: a call per trial, in a process of its own or in the trainer's."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import imports
from ..errors import ClusterError
from ..isolation import Ended, Limits, Sandbox
from . import trial
from .base import Arrays, Measured, Missed

_TRACEBACK = 2**13  # characters of one that are kept


@dataclasses.dataclass(frozen=True)
class Called:
    """What is called: `path` with `options`, and with `prepared` where that is not None."""

    path: str
    options: Mapping[str, Any]
    measures: tuple[str, ...]
    prepared: tuple[Arrays, ...] | None = None


@dataclasses.dataclass(frozen=True)
class Together:
    """All trials in this process: what one raises fails their pack."""

    called: Called
    train: Callable[..., Any]

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64] | Measured:
        """See `Session.run`."""
        called = self.called
        known = {} if called.prepared is None else {"prepared": called.prepared}
        options = {**called.options, **known}
        rows = np.empty((1 + len(called.measures), len(members)))
        for row, (member, own) in enumerate(_drawn(members, seed)):
            returned = self.train(member, own, **options)
            rows[:, row] = trial.numbers(returned, called.path, called.measures)
        return _measured(rows, called.measures, {})


class Apart:
    """Each trial in a child process within `limits`: what one does to itself, it does alone.

    Args:
        called: what is called there. Its module is imported in here already, as it tells what else
            it imports, which is what takes long.
        gpu: whether children may use one.
    """

    def __init__(self, called: Called, limits: Limits, gpu: bool) -> None:
        self._called, self._limits = called, limits
        # Else asking whether there is a GPU, as some modules do, leaves none to forked processes.
        surroundings = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"} if gpu else {}
        preload = (trial.__name__, *preloaded(called.path.partition(":")[0]))
        self._room = Sandbox(preload, tuple(sys.path), surroundings)
        weakref.finalize(self, self._room.close)
        threads, share = _torch()
        self._asked = {
            "path": called.path, "options": dict(called.options),
            "measures": list(called.measures), "prepared": self._saved(),
            "threads": threads, "gpu_share": share,
        }  # fmt: skip

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64] | Measured:
        """See `Session.run`."""
        rows = np.full((1 + len(self._called.measures), len(members)), np.nan)
        missed = {}
        for row, (member, own) in enumerate(_drawn(members, seed)):
            ended = self._ended(self._asked | {"member": member, "seed": own})
            if ended.how == "returned":
                rows[:, row] = ended.value
            else:
                missed[row] = _missed(ended)
        return _measured(rows, self._called.measures, missed)

    def _ended(self, asked: dict[str, Any]) -> Ended:
        target = f"{trial.__name__}:run"
        try:
            return self._room.call(target, asked, self._limits)
        except ClusterError:  # what children are forked from has died, once: the machine's fault
            return self._room.call(target, asked, self._limits)

    def _saved(self) -> dict[str, Any] | None:
        """Where children find what was prepared."""
        if self._called.prepared is None:
            return None
        file = self._room.folder / "prepared.npz"
        arrays = (array for part in self._called.prepared for array in part.values())
        named: dict[str, Any] = {f"{place}": array for place, array in enumerate(arrays)}
        np.savez(file, **named)
        return {"file": str(file), "names": [list(part) for part in self._called.prepared]}


def preloaded(module: str) -> tuple[str, ...]:
    """Installed modules that an imported module of the user's imports, at its top or later.

    So do those of the user's that it imports, which are not among them: threads that they start
    would not be there in forked processes.
    """
    found: dict[str, None] = {}
    left, seen = [module], {module}
    while left:
        for name in _imports(left.pop()):
            if name in seen or name.partition(".")[0] in sys.stdlib_module_names:
                continue
            seen.add(name)
            if (file := _file(name)) is None:
                continue
            if imports.is_own(file):
                left.append(name)
            else:
                found[name] = None
    return tuple(sorted(found))


def _imports(module: str) -> Iterator[str]:
    """What the source of a module imports, or might, each after the package that it is in."""
    for name in _named(module):
        yield name.partition(".")[0]
        yield name


def _named(module: str) -> Iterator[str]:
    file = _file(module)
    if file is None:
        return
    yield from imports.named_in(module, file)


def _file(module: str) -> Path | None:
    """Of a module that is imported, or of a package that is installed; None for all others."""
    known = sys.modules.get(module)
    if known is not None:
        file = getattr(known, "__file__", None)
        return None if file is None else Path(file)
    try:
        spec = importlib.util.find_spec(module) if module and "." not in module else None
    except (ImportError, ValueError):
        return None
    return Path(spec.origin) if spec and spec.has_location and spec.origin else None


def _torch() -> tuple[int | None, float | None]:
    """Its threads here, and the share of a GPU's memory; None where that is not limited."""
    torch: Any = sys.modules.get("torch")
    if torch is None:
        return None, None
    share = None
    if torch.cuda.is_initialized() and hasattr(torch.cuda, "get_per_process_memory_fraction"):
        share = float(torch.cuda.get_per_process_memory_fraction())
    return int(torch.get_num_threads()), share


def _drawn(members: npt.NDArray[np.bool_], seed: int) -> Iterator[tuple[bool, int]]:
    """The bit and the seed of each trial; every one has a 63-bit seed of its own."""
    children = np.random.SeedSequence(seed).spawn(len(members))
    for member, child in zip(members.tolist(), children, strict=True):
        yield member, int(child.generate_state(1, np.uint64)[0] >> 1)


def _missed(ended: Ended) -> Missed:
    kind = ended.message.partition(":")[0] if ended.how == "raised" else ended.how
    parts = (ended.message, ended.traceback[-_TRACEBACK:], ended.output)
    return Missed(kind, ended.message, "\n".join(part.rstrip("\n") for part in parts if part))


def _measured(
    rows: npt.NDArray[np.float64], measures: tuple[str, ...], missed: dict[int, Missed]
) -> npt.NDArray[np.float64] | Measured:
    scores, *measured = rows[..., None]
    utility = dict(zip(measures, measured, strict=True))
    return Measured(scores, utility, missed) if utility or missed else scores
