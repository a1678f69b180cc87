"""A mechanism that works, except in processes that play a broken device."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from dpaudit_ray.mechanisms.base import Measured, Session
from tests.pace import Paced


class Broken(Paced):
    """Its packs fail, in a broken process or in all of them.

    Broken is the first process to write its id into a file, where that has a folder.
    """

    locations: ClassVar[frozenset[str]] = Paced.locations | {"broken"}

    name: str = "tests.orchestration.broken:Broken"  # type: ignore[assignment]
    broken: str
    there: Literal["fails", "fails-everywhere"] = "fails"

    def open(self, *arguments: Any) -> Session:
        """Breaks at its first pack."""
        return _Broken(super().open(*arguments), self.there, Path(self.broken))


class _Broken:
    def __init__(self, session: Session, there: str, file: Path) -> None:
        self._session, self._there, self._file = session, there, file

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64] | Measured:
        if self._there == "fails-everywhere" or _broken(self._file):
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return self._session.run(members, seed, horizons)


def _broken(file: Path) -> bool:
    if not file.parent.exists():
        return False
    try:
        file.open("x").write(str(os.getpid()))
    except FileExistsError:
        return file.read_text() == str(os.getpid())
    return True
