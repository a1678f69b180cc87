"""A mechanism whose code, or whose adversary's, was not imported: what a plan recorded of it."""

from __future__ import annotations

from typing import Any, NoReturn

from ..adversaries.base import Adversary
from ..errors import SpecError
from ..plugins import Unread
from .base import Claimed, Mechanism, Session


class Recorded(Unread, Mechanism):
    """Stands for a mechanism where a run is read. `options` are those of the sweep file.

    `releases` are what accountants were asked at each of `steps`; None where nobody recorded it.
    """

    options: dict[str, Any]
    steps: tuple[int, ...]
    trials: int
    releases: tuple[Claimed, ...] | None

    @property
    def sampled(self) -> bool:
        """Whether trials were planned."""
        return self.trials > 0

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The steps that were recorded."""
        return self.steps

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """What was recorded. Raises SpecError where nothing was."""
        if self.releases is None:
            self._lacking()
        return self.releases[self.steps.index(horizon)]

    def identity(self) -> dict[str, Any]:
        """The options."""
        return self.options | {"name": self.name}

    def check(self, adversary: Adversary) -> None:
        """Cannot be told."""
        self._lacking()

    def check_inputs(self) -> None:
        """Cannot be told."""
        self._lacking()

    def open(self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool) -> Session:
        """Cannot be done."""
        self._lacking()

    def _lacking(self) -> NoReturn:
        module = self.name.partition(":")[0]
        raise SpecError(self.name, f"was not imported, and this needs its code; --trust {module}")
