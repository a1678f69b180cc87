"""Which audits of a run belong together: repetitions in one line, lines of one claim in a panel."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable

import numpy as np
import pandas as pd

from ..plan.model import PlannedAudit
from ..sweep.labels import JOINT, parted
from .tables import Run, representative


@dataclasses.dataclass(frozen=True)
class Line:
    """Audits that differ in `mechanism.seed` only, and the bounds that stand for them.

    `bounds` is indexed by step, with one column per repetition; NaN where there is none yet.
    `status` is that of the bounds at the last step, empty without any.
    """

    label: str
    audits: tuple[PlannedAudit, ...]
    bounds: pd.DataFrame
    status: str = ""

    @property
    def last(self) -> list[float]:
        """The bound of every repetition at the last step, as far as there is one."""
        return [float(v) for v in self.bounds.iloc[-1] if not np.isnan(v)]

    @property
    def claim(self) -> float:
        """ε of the first accountant at the last step."""
        return self.audits[0].claim


@dataclasses.dataclass(frozen=True)
class Panel:
    """Lines whose mechanisms claim the same at the same steps; `title` is what all share."""

    title: str
    lines: tuple[Line, ...]

    @property
    def horizons(self) -> tuple[int, ...]:
        """Recorded steps."""
        return self.lines[0].audits[0].horizons

    @property
    def claims(self) -> tuple[float, ...]:
        """ε of the first accountant at each horizon."""
        return next(iter(self.lines[0].audits[0].claims.values()))


def panels(run: Run, estimator: str | None = None) -> list[Panel]:
    """All audits of a run, in the order of its sweep file; every one's own estimator for None."""
    together: dict[object, list[Line]] = {}
    for line in _lines(run, estimator):
        first = line.audits[0]
        claims = next(iter(first.claims.items()))
        together.setdefault((first.horizons, claims), []).append(line)
    return [_panel(lines) for lines in together.values()]


def _lines(run: Run, estimator: str | None) -> Iterable[Line]:
    found: dict[str, list[tuple[PlannedAudit, str]]] = {}
    for audit, cell in zip(run.plan.audits, run.sweep.cells, strict=True):
        mechanism = dict(cell.mechanism.identity())
        seed = mechanism.pop("seed", 0)
        settings = cell.audit.model_dump(mode="json", exclude={"trials"})
        key = json.dumps([mechanism, cell.adversary.identity(), settings], sort_keys=True)
        parts = [part for part in audit.label.split(JOINT) if part != f"seed={seed}"]
        found.setdefault(key, []).append((audit, JOINT.join(parts)))
    for repetitions in found.values():
        audits = tuple(audit for audit, _ in repetitions)
        # A lone audit keeps its whole label.
        label = repetitions[0][1] if len(audits) > 1 else audits[0].label
        bounds = pd.DataFrame({a.id: _bounds(run, a, estimator) for a in audits})
        yield Line(label, audits, bounds, _status(run, audits[0], estimator))


def _rows(run: Run, audit: PlannedAudit, estimator: str | None) -> pd.DataFrame:
    rows = run.estimates[run.estimates["audit"] == audit.id]
    name = estimator or representative(run, audit)
    return rows[rows["estimator"] == name].drop_duplicates("step")


def _status(run: Run, audit: PlannedAudit, estimator: str | None) -> str:
    known = _rows(run, audit, estimator).sort_values("step")["status"]
    return str(known.iloc[-1]) if len(known) else ""


def _bounds(run: Run, audit: PlannedAudit, estimator: str | None) -> pd.Series[float]:
    mine = _rows(run, audit, estimator)
    series = pd.Series(mine["epsilon_lower"].to_numpy(float), index=mine["step"].to_numpy())
    return series.reindex(list(audit.horizons))


def _panel(lines: list[Line]) -> Panel:
    """Moves what all labels share into the title; a lone line is its title."""
    if len(lines) == 1:
        return Panel(lines[0].label, tuple(lines))
    shared, labels = parted([line.label for line in lines])
    short = (
        dataclasses.replace(line, label=label) for line, label in zip(lines, labels, strict=True)
    )
    return Panel(shared, tuple(short))
