"""Mechanisms whose packs take as long as a test asks, asleep: time passes, no CPU is busy."""

import contextlib
import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from dpaudit_ray.mechanisms.base import Measured, Mechanism, Session
from dpaudit_ray.mechanisms.function import Function
from dpaudit_ray.mechanisms.landscape import Landscape


class Pacing(Mechanism):
    """Packs take as many seconds more as the file `pace` says, and none without it.

    The file is looked at before each pack, so a sweep lasts until something was done to it, and
    hurries from then on. Where it is changes no score: runs at any pace are the same.
    """

    locations: ClassVar[frozenset[str]] = frozenset({"pace"})

    pace: str

    def open(self, *known: Any) -> Session:
        return _Asleep(super().open(*known), Path(self.pace))


class Paced(Pacing, Landscape):
    """A landscape, whose processes wait for no torch."""

    name: str = "tests.pace:Paced"  # type: ignore[assignment]


class WithoutTorch(Function):
    """A function of a test, which computes without torch and need not wait for it."""

    uses_torch: ClassVar[bool] = False

    name: str = "tests.pace:WithoutTorch"  # type: ignore[assignment]
    isolated: bool = False  # packs of it fail whole, and what is patched here is so there


class _Asleep:
    def __init__(self, session: Session, pace: Path) -> None:
        self._session, self._pace = session, pace

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64] | Measured:
        with contextlib.suppress(FileNotFoundError, ValueError):  # it is written just now
            time.sleep(float(self._pace.read_text()))
        return self._session.run(members, seed, horizons)


class Pace:
    """The file of paced sweeps: there is none until one of them is made slow."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "pace"

    def of(self, sweep: dict[str, Any], name: str = "tests.pace:Paced") -> dict[str, Any]:
        """The sweep, of which this pace decides how long packs take; `name`: a `Pacing` class."""
        sweep["mechanism"] |= {"name": name, "pace": str(self._file)}
        return sweep

    def slow(self, seconds: float) -> None:
        """Sets the seconds of packs that begin from now on."""
        self._file.write_text(str(seconds))

    def hurry(self) -> None:
        self._file.unlink()
