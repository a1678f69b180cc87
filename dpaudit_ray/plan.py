"""From a sweep to audits and packs, and back from a run directory to what remains."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from . import (
    __version__,
    changed_code,
    claims,
    commitments,
    gathering,
    inputs,
    provenance,
    resume,
    seeds,
    spec,
    stop_when,
    yamlfile,
)
from .errors import RunDirectoryError, SpecError
from .inputs import InputFile
from .mechanisms.base import Claimed
from .printable import printable
from .provenance import Code
from .spec import Cell, Sweep
from .storage import RESTORE, RunDirectory

FILE = "plan.json"
SWEEP_FILE = "sweep.yaml"
MAX_PACKS = 1_000_000  # per audit: one file each


@dataclasses.dataclass(frozen=True, slots=True)
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
    """One audit with fixed pack bounds. `claims` maps an accountant to ε at each horizon.

    `declared` are the numbers of trials that were declared in turn, the last one `trials`. `mixed`:
    its trials were computed by more than one version of the code. `claimed` is what accountants
    were asked at each horizon, where it takes code of somebody's own to tell.
    """

    id: str
    label: str
    fingerprint: str
    trials: int
    horizons: tuple[int, ...]
    claims: Mapping[str, tuple[float, ...]]
    packs: tuple[tuple[int, int], ...]
    declared: tuple[int, ...]
    mixed: bool = False
    claimed: tuple[Claimed, ...] | None = None

    @property
    def extended(self) -> bool:
        """Whether more trials were declared after some had been seen."""
        return len(self.declared) > 1

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
    """All audits of a sweep, the files it reads, and what computed its trials, in turn.

    The last two are None where they were not recorded.
    """

    seed: int
    fingerprint: str
    audits: tuple[PlannedAudit, ...]
    data: tuple[InputFile, ...] | None = None
    code: tuple[Code, ...] | None = None

    @property
    def trials(self) -> int:
        """Trials over all audits."""
        return sum(audit.trials for audit in self.audits)

    def remaining(
        self, run: RunDirectory, enough: Mapping[int, int] | None = None
    ) -> Iterator[Pack]:
        """Packs without a score file, audit by audit, in trial order.

        `enough` maps audits that are decided to the number of trials that decided them.
        """
        for index, audit in enumerate(self.audits):
            done = gathering.finished(run, audit)
            end = (enough or {}).get(index, audit.trials)
            for first, last in audit.packs:
                if first < end and (first, last) not in done:
                    yield Pack(index, first, last)

    def to_json(self) -> dict[str, Any]:
        """The content of plan.json."""
        audits = []
        for audit in self.audits:
            audits.append(_entry(audit) | {"bits_sha256": audit.commitment(self.seed)})
        head = {"version": __version__, "fingerprint": self.fingerprint, "seed": self.seed}
        if self.data is not None:
            head |= {"data": [dataclasses.asdict(file) for file in self.data]}
        if self.code is not None:
            head |= {"code": [code.to_json() for code in self.code]}
        return head | {"audits": audits}

    @classmethod
    def from_json(cls, raw: Any) -> Plan:
        """The inverse of `to_json`; ValueError when `raw` is not what a plan looks like."""
        try:
            seed = int(raw["seed"])
            audits = tuple(_audit(i, entry, seed) for i, entry in enumerate(raw["audits"]))
            data = None if "data" not in raw else tuple(_input(file) for file in raw["data"])
            code = None if "code" not in raw else tuple(map(Code.from_json, raw["code"]))
            if code == ():
                raise ValueError("code is empty")
            return cls(seed, str(raw["fingerprint"]), audits, data, code)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{error!r}") from error


def make(sweep: Sweep, previous: Plan | None = None, extends: bool = True) -> Plan:
    """Plans a sweep; pack bounds of `previous` stay as they are and new trials follow them.

    `extends`: trials of `previous` were seen, so that more of them are a declaration of their own.
    """
    before = previous.audits if previous else (None,) * len(sweep.cells)
    audits = tuple(
        _plan_audit(i, cell, sweep, old, extends)
        for i, (cell, old) in enumerate(zip(sweep.cells, before, strict=True))
    )
    code = (provenance.of(sweep),)
    return Plan(sweep.seed, sweep.fingerprint, audits, inputs.of(sweep), code)


def load(run: RunDirectory) -> Plan | None:
    """The plan in a run directory, None when there is none."""
    raw = run.read_json(FILE)
    try:
        return None if raw is None else Plan.from_json(raw)
    except ValueError as error:
        raise RunDirectoryError(f"{run.location}/{FILE} is damaged ({error}); {RESTORE}") from error


def require(run: RunDirectory) -> Plan:
    """The plan in a run directory; RunDirectoryError when it holds none."""
    plan = load(run)
    if plan is None:
        raise _incomplete(run, FILE)
    return plan


def read(run: RunDirectory) -> tuple[Sweep, Plan]:
    """Sweep and plan of an existing run, each held against the other.

    Raises:
        RunDirectoryError: there is none, or they do not belong together.
    """
    plan, sweep = require(run), _recorded(run)
    if sweep is None:
        raise _incomplete(run, SWEEP_FILE)
    sweep = commitments.filled(sweep, plan, run)
    commitments.check(sweep, plan, run)
    return sweep, plan


def kept(sweep: Sweep, run: RunDirectory, tell: Callable[[str], None]) -> Sweep:
    """The sweep with as many trials as a complete run of it already has; `tell` says so."""
    kept = resume.kept(sweep, load(run), run)
    if kept is not sweep:
        tell(
            f"{run.location} holds {kept.cells[0].audit.trials} trials of each audit, more than "
            f"audit.trials = {sweep.cells[0].audit.trials}: they stay"
        )
    return kept


def preview(
    sweep: Sweep,
    run: RunDirectory,
    accept_changed_code: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Plan:
    """The plan that `open_run` would follow; changes nothing.

    `accept_changed_code`: go on where the code is another one than that of the run so far.

    Raises:
        RunDirectoryError: the directory belongs to another sweep (the message shows the
            difference), holds more trials, was run on other data or with other code, or is damaged.
    """
    recorded, previous = _recorded(run), load(run)
    if recorded is not None:
        resume.check_same(sweep, recorded, run)
    if previous is not None:
        commitments.check(sweep, previous, run)
        resume.check_not_lowered(sweep, previous, run)
    elif run.has_scores:
        raise RunDirectoryError(
            f"{run.location} holds scores but no {FILE}, so it is not known how they were packed; "
            + RESTORE
        )
    plan = make(sweep, previous, resume.extends(sweep, previous, run))
    if previous is None:
        return plan
    resume.check_data(plan, previous, run)
    plan = dataclasses.replace(plan, data=previous.data)
    resumed = changed_code.Resumed(sweep, plan, previous, run)
    return changed_code.followed(resumed, accept_changed_code, tell)


def open_run(
    sweep: Sweep,
    run: RunDirectory,
    accept_changed_code: bool = False,
    tell: Callable[[str], None] = lambda line: None,
) -> Plan:
    """Starts, resumes or extends a run: writes what is missing and returns the plan.

    Raises:
        RunDirectoryError: see `preview`; also when the directory cannot be written.
    """
    plan = preview(sweep, run, accept_changed_code, tell)
    run.require_writable()
    if next(plan.remaining(run, stop_when.decided(run, sweep)), None) is not None:
        run.set_complete(False)
    if sweep.canonical() != run.read_text(SWEEP_FILE):
        run.write_text(SWEEP_FILE, sweep.canonical())
    changed_code.keep_sources(sweep, run)
    if plan != load(run):
        run.write_json(FILE, plan.to_json())
    return plan


def _recorded(run: RunDirectory) -> Sweep | None:
    """The sweep as it was run, None when nothing was."""
    text = run.read_text(SWEEP_FILE)
    try:
        source = f"{run.location}/{SWEEP_FILE}"
        return None if text is None else spec.from_raw(yamlfile.parse_yaml(text, source))
    except spec.RevisionError as error:
        raise RunDirectoryError(f"{run.location}: its fingerprint {error.problem}") from error
    except SpecError as error:
        what = str(error).partition(";")[0]  # its remedy is for a file of the user's own
        raise RunDirectoryError(
            f"{run.location}/{SWEEP_FILE} is damaged ({what}); {RESTORE}"
        ) from error


def _incomplete(run: RunDirectory, missing: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run.location} is no run directory (it has no {missing}); give the folder that "
        "`dpaudit run` named"
    )


def _input(entry: Mapping[str, Any]) -> InputFile:
    return InputFile(str(entry["file"]), str(entry["sha256"]))


def _entry(audit: PlannedAudit) -> dict[str, Any]:
    """An audit as in plan.json, without what most audits are not."""
    entry = {field.name: getattr(audit, field.name) for field in dataclasses.fields(audit)}
    asked = entry.pop("claimed")
    if asked is not None:
        entry["claimed"] = claims.to_json(asked)
    if not entry["mixed"]:
        del entry["mixed"]
    return entry


def _audit(index: int, entry: Mapping[str, Any], seed: int) -> PlannedAudit:
    audit = PlannedAudit(
        id=str(entry["id"]),
        label=printable(str(entry["label"])),
        fingerprint=str(entry["fingerprint"]),
        trials=int(entry["trials"]),
        horizons=tuple(map(int, entry["horizons"])),
        claims={name: tuple(map(float, values)) for name, values in entry["claims"].items()},
        packs=tuple((int(first), int(last)) for first, last in entry["packs"]),
        declared=tuple(map(int, entry.get("declared", [entry["trials"]]))),
        mixed=entry.get("mixed", False) is True,
        claimed=claims.from_json(entry["claimed"]) if "claimed" in entry else None,
    )
    commitments.check_audit(audit, index)
    if entry["bits_sha256"] != audit.commitment(seed):
        raise ValueError(f"the bits of {audit.id} are not those that bits_sha256 commits to")
    return audit


def _plan_audit(
    index: int, cell: Cell, sweep: Sweep, old: PlannedAudit | None, extends: bool
) -> PlannedAudit:
    size = sweep.resources.pack_size
    size = cell.mechanism.auto_pack_size if size == "auto" else size
    kept = old.packs if old else ()
    start = kept[-1][1] + 1 if kept else 0
    trials = cell.audit.trials if cell.mechanism.sampled else 0
    if (trials - start) // size > MAX_PACKS:
        raise SpecError(
            "resources.pack_size",
            f"is {size}, which cuts {trials} trials into more than {MAX_PACKS} packs; raise it",
        )
    added = ((first, min(first + size, trials) - 1) for first in range(start, trials, size))
    name = "".join(c if c.isalnum() else "-" for c in cell.adversary.name)
    return PlannedAudit(
        id=f"{index:03d}-{name}-{cell.fingerprint[:8]}",
        label=cell.label,
        fingerprint=cell.fingerprint,
        trials=trials,
        horizons=cell.horizons,
        claims=old.claims if old else claims.of(cell),
        packs=(*kept, *added),
        declared=_declared(trials, old.declared if old else (), extends),
        mixed=old.mixed if old else False,
        claimed=claims.asked(cell) if cell.foreign else None,
    )


def _declared(trials: int, before: tuple[int, ...], extends: bool) -> tuple[int, ...]:
    if trials in before[-1:]:
        return before
    return (*before, trials) if extends else (*before[:-1], trials)
