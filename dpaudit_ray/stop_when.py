"""`audit.stop_when`: when an audit has shown enough, and the record of audits that have.

Only time-uniform bounds may end an audit, since a look is taken after every pack. A decision is
a function of the prefix of trials, so it falls after the same trial on every cluster and after
every crash; the time budget, which looks at no score, is the one exception.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from .errors import RunDirectoryError
from .plugins import Strict

if TYPE_CHECKING:
    from .spec import Sweep
    from .storage import RunDirectory

FILE = "decisions.json"


class StopWhen(Strict):
    """An audit ends at the first of these.

    `verdict`: its trials refute the claim, at the level at which `dpaudit verify` would say so.
    `within`: its anytime lower bound is at least (1 - within) of the claim.
    `hours`: its packs took that many hours of trainers' time; running again gives as many more.
    """

    verdict: bool = False
    within: float | None = Field(default=None, gt=0, lt=1)
    hours: float | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if self == type(self).model_construct(verdict=False, within=None, hours=None):
            raise ValueError("names no rule; give verdict: true, within or hours")
        return self

    @property
    def by_bounds(self) -> bool:
        """Whether trials may end the audit, and not time alone."""
        return self.verdict or self.within is not None

    def rule(self) -> dict[str, Any]:
        """What a decision by bounds depends on."""
        return {"verdict": self.verdict, "within": self.within}


def decided(run: RunDirectory, sweep: Sweep) -> dict[int, int]:
    """Trials that were enough, by index of the audit; audits whose rule has changed are not in it.

    Raises:
        RunDirectoryError: the record is damaged.
    """
    raw = run.read_json(FILE) or {}
    enough = {}
    try:
        for index, cell in enumerate(sweep.cells):
            entry = raw.get(f"{index:03d}")
            rule = cell.audit.stop_when and cell.audit.stop_when.rule()
            if entry is not None and entry["rule"] == rule:
                enough[index] = int(entry["trials"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RunDirectoryError(
            f"{run.location}/{FILE} is damaged ({error!r}); delete it: it is made again from the "
            "scores"
        ) from error
    return enough


def record(run: RunDirectory, sweep: Sweep, enough: dict[int, int]) -> None:
    """Replaces the record; `enough` is as `decided` returns it. Raises StorageError."""
    entries = {}
    for index, trials in enough.items():
        rule = sweep.cells[index].audit.stop_when
        entries[f"{index:03d}"] = {"trials": trials, "rule": rule and rule.rule()}
    run.write_json(FILE, entries)
