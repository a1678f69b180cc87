"""A mechanism that works, except in processes that play a broken device."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dpaudit_ray.mechanisms.base import Measured, Session
from tests.pace import Paced

TRAINER = "DPAUDIT_TEST_BROKEN_TRAINER"  # a file: the first process to write its id is broken
NODE = "DPAUDIT_TEST_BROKEN_NODE"  # set on a node all of whose processes are


class Broken(Paced):
    """What its packs do in a broken process: fail, hang, or take eight seconds each."""

    name: str = "tests.orchestration.broken:Broken"  # type: ignore[assignment]
    there: Literal["fails", "hangs", "dawdles", "fails-everywhere"] = "fails"

    def open(self, *arguments: Any) -> Session:
        """Breaks at its first pack."""
        return _Broken(super().open(*arguments), self.there)


class _Broken:
    def __init__(self, session: Session, there: str) -> None:
        self._session, self._there = session, there

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64] | Measured:
        if self._there == "fails-everywhere" or _broken():
            if self._there.startswith("fails"):
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            while self._there == "hangs":
                time.sleep(1)
            time.sleep(8)
        return self._session.run(members, seed, horizons)


def _broken() -> bool:
    if NODE in os.environ:
        return True
    if TRAINER not in os.environ:
        return False
    file = Path(os.environ[TRAINER])
    try:
        file.open("x").write(str(os.getpid()))
    except FileExistsError:
        return file.read_text() == str(os.getpid())
    return True
