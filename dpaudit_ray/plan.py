"""From a sweep to audits and packs, and back from a run directory to what remains."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from . import __version__, accounting, seeds, spec, yamlfile
from .errors import RunDirectoryError
from .spec import Cell, Sweep
from .storage import RunDirectory

FILE = "plan.json"
SWEEP_FILE = "sweep.yaml"


@dataclasses.dataclass(frozen=True)
class Pack:
    """Trials first..last (inclusive) of one audit: the unit of work, of retry and of storage."""

    audit: int  # index into Plan.audits
    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of trials."""
        return self.last - self.first + 1


@dataclasses.dataclass(frozen=True)
class PlannedAudit:
    """One audit with fixed pack bounds. `claims` maps an accountant to ε at each horizon."""

    id: str
    label: str
    fingerprint: str
    trials: int
    horizons: tuple[int, ...]
    claims: Mapping[str, tuple[float, ...]]
    packs: tuple[tuple[int, int], ...]

    @property
    def claim(self) -> float:
        """ε of the first accountant at the last horizon."""
        return next(iter(self.claims.values()))[-1]

    def commitment(self, seed: int) -> str:
        """SHA-256 of all secret bits: fixed before training, checkable after it."""
        bits = seeds.bits(seed, self.fingerprint, 0, self.trials - 1)
        return hashlib.sha256(np.packbits(bits).tobytes()).hexdigest()


@dataclasses.dataclass(frozen=True)
class Plan:
    """All audits of a sweep."""

    seed: int
    fingerprint: str
    audits: tuple[PlannedAudit, ...]

    @property
    def trials(self) -> int:
        """Trials over all audits."""
        return sum(audit.trials for audit in self.audits)

    def remaining(self, run: RunDirectory) -> Iterator[Pack]:
        """Packs without a score file, audit by audit, in trial order."""
        for index, audit in enumerate(self.audits):
            done = run.finished(audit.id)
            for first, last in audit.packs:
                if (first, last) not in done:
                    yield Pack(index, first, last)

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json."""
        audits = []
        for audit in self.audits:
            entry = dataclasses.asdict(audit)
            audits.append(entry | {"bits_sha256": audit.commitment(self.seed)})
        head = {"version": __version__, "fingerprint": self.fingerprint, "seed": self.seed}
        return head | {"audits": audits}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Plan:
        """Reads plan.json; raises RunDirectoryError when it is not a plan."""
        try:
            audits = tuple(_audit(entry) for entry in raw["audits"])
            return cls(int(raw["seed"]), str(raw["fingerprint"]), audits)
        except (KeyError, TypeError, ValueError) as error:
            raise RunDirectoryError(
                f"{FILE} is not a plan ({error!r}); restore the file"
            ) from error


def make(sweep: Sweep, previous: Plan | None = None) -> Plan:
    """Plans a sweep; pack bounds of `previous` stay as they are and new trials follow them."""
    before = previous.audits if previous else (None,) * len(sweep.cells)
    audits = tuple(
        _plan_audit(i, cell, sweep, old)
        for i, (cell, old) in enumerate(zip(sweep.cells, before, strict=True))
    )
    return Plan(sweep.seed, sweep.fingerprint, audits)


def load(run: RunDirectory) -> Plan | None:
    """The plan in a run directory, None when there is none."""
    raw = run.read_json(FILE)
    return None if raw is None else Plan.from_json(raw)


def require(run: RunDirectory) -> Plan:
    """The plan in a run directory; RunDirectoryError when it holds none."""
    plan = load(run)
    if plan is None:
        raise RunDirectoryError(f"{run.location} is no run directory (it has no {FILE})")
    return plan


def read(run: RunDirectory) -> tuple[Sweep, Plan]:
    """Sweep and plan of an existing run."""
    plan = require(run)
    text = run.read_text(SWEEP_FILE)
    if text is None:
        raise RunDirectoryError(f"{run.location} is no run directory (it has no {SWEEP_FILE})")
    return _recorded(text), plan


def open_run(sweep: Sweep, run: RunDirectory) -> Plan:
    """Starts, resumes or extends a run: writes what is missing and returns the plan.

    Raises:
        RunDirectoryError: the directory belongs to another sweep; the message shows the
            difference.
    """
    run.require_writable()
    text = run.read_text(SWEEP_FILE)
    previous = load(run)
    if text is not None:
        _check_same(sweep, _recorded(text), run)
    plan = previous
    if plan is None or [a.trials for a in plan.audits] != [c.audit.trials for c in sweep.cells]:
        plan = make(sweep, previous)
        run.set_complete(False)
        run.write_text(SWEEP_FILE, sweep.canonical())
        run.write_json(FILE, plan.to_json())
    return plan


def _recorded(text: str) -> Sweep:
    return spec.from_raw(yamlfile.parse_yaml(text, SWEEP_FILE))


def _audit(entry: Mapping[str, Any]) -> PlannedAudit:
    return PlannedAudit(
        id=entry["id"],
        label=entry["label"],
        fingerprint=entry["fingerprint"],
        trials=int(entry["trials"]),
        horizons=tuple(entry["horizons"]),
        claims={name: tuple(values) for name, values in entry["claims"].items()},
        packs=tuple((int(first), int(last)) for first, last in entry["packs"]),
    )


def _plan_audit(index: int, cell: Cell, sweep: Sweep, old: PlannedAudit | None) -> PlannedAudit:
    size = sweep.resources.pack_size
    size = cell.mechanism.auto_pack_size if size == "auto" else size
    kept = old.packs if old else ()
    start = kept[-1][1] + 1 if kept else 0
    trials = cell.audit.trials
    added = ((first, min(first + size, trials) - 1) for first in range(start, trials, size))
    name = "".join(c if c.isalnum() else "-" for c in cell.adversary.name)
    return PlannedAudit(
        id=f"{index:03d}-{name}-{cell.fingerprint[:8]}",
        label=cell.label,
        fingerprint=cell.fingerprint,
        trials=trials,
        horizons=cell.horizons,
        claims=old.claims if old else _claims(cell),
        packs=(*kept, *added),
    )


def _claims(cell: Cell) -> dict[str, tuple[float, ...]]:
    """ε of every accountant at every horizon."""
    asked = [cell.mechanism.claimed(cell.adversary, step) for step in cell.horizons]
    last = asked[-1]
    return {
        name: tuple(
            accounting.curve(
                last.noise_multiplier,
                tuple(claimed.releases for claimed in asked),
                cell.audit.delta,
                sample_rate=last.sample_rate,
                accountant=name,
            ).tolist()
        )
        for name in cell.audit.accountants
    }


def _check_same(new: Sweep, recorded: Sweep, run: RunDirectory) -> None:
    if new.fingerprint != recorded.fingerprint:
        changes = list(_difference(recorded.identity(), new.identity()))
        shown = "; ".join(changes[:4]) + (f"; and {len(changes) - 4} more" * (len(changes) > 4))
        raise RunDirectoryError(
            f"{run.location} holds another sweep ({shown}); use a new name, or the old settings "
            "to resume"
        )
    for old, cell in zip(recorded.cells, new.cells, strict=True):
        if cell.audit.trials < old.audit.trials:
            raise RunDirectoryError(
                f"{run.location} was planned with audit.trials = {old.audit.trials}, this file "
                f"says {cell.audit.trials}; trials can be raised, not lowered"
            )


def _difference(old: Any, new: Any, key: str = "") -> Iterator[str]:
    if isinstance(old, dict) and isinstance(new, dict):
        for part in sorted({*old, *new}):
            path = f"{key}.{part}" if key else part
            yield from _difference(old.get(part), new.get(part), path)
    elif old != new:
        yield f"{key}: {old!r} there, {new!r} here"
