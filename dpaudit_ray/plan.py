"""From a sweep to audits and packs, and back from a run directory to what remains."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from . import __version__, accounting, gathering, inputs, resume, seeds, spec, stop_when, yamlfile
from .errors import RunDirectoryError, SpecError
from .inputs import InputFile
from .mechanisms.base import Claimed
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

    `declared` are the numbers of trials that were declared in turn, the last one `trials`.
    """

    id: str
    label: str
    fingerprint: str
    trials: int
    horizons: tuple[int, ...]
    claims: Mapping[str, tuple[float, ...]]
    packs: tuple[tuple[int, int], ...]
    declared: tuple[int, ...]

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
    """All audits of a sweep, and the files it reads: None where these were not recorded."""

    seed: int
    fingerprint: str
    audits: tuple[PlannedAudit, ...]
    data: tuple[InputFile, ...] | None = None

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
            entry = dataclasses.asdict(audit)
            audits.append(entry | {"bits_sha256": audit.commitment(self.seed)})
        head = {"version": __version__, "fingerprint": self.fingerprint, "seed": self.seed}
        if self.data is not None:
            head |= {"data": [dataclasses.asdict(file) for file in self.data]}
        return head | {"audits": audits}

    @classmethod
    def from_json(cls, raw: Any) -> Plan:
        """The inverse of `to_json`; ValueError when `raw` is not what a plan looks like."""
        try:
            seed = int(raw["seed"])
            audits = tuple(_audit(entry, seed) for entry in raw["audits"])
            data = None if "data" not in raw else tuple(_input(file) for file in raw["data"])
            return cls(seed, str(raw["fingerprint"]), audits, data)
        except (KeyError, TypeError, AttributeError) as error:
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
    return Plan(sweep.seed, sweep.fingerprint, audits, inputs.of(sweep))


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
    """Sweep and plan of an existing run."""
    plan, sweep = require(run), _recorded(run)
    if sweep is None:
        raise _incomplete(run, SWEEP_FILE)
    resume.check_plan(sweep, plan, run)
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


def preview(sweep: Sweep, run: RunDirectory) -> Plan:
    """The plan that `open_run` would follow; changes nothing.

    Raises:
        RunDirectoryError: the directory belongs to another sweep (the message shows the
            difference), holds more trials, was run on other data, or is damaged.
    """
    recorded, previous = _recorded(run), load(run)
    if recorded is not None:
        resume.check_same(sweep, recorded, run)
    if previous is not None:
        resume.check_plan(sweep, previous, run)
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
    return dataclasses.replace(plan, data=previous.data)


def open_run(sweep: Sweep, run: RunDirectory) -> Plan:
    """Starts, resumes or extends a run: writes what is missing and returns the plan.

    Raises:
        RunDirectoryError: see `preview`; also when the directory cannot be written.
    """
    plan = preview(sweep, run)
    run.require_writable()
    if next(plan.remaining(run, stop_when.decided(run, sweep)), None) is not None:
        run.set_complete(False)
    if sweep.canonical() != run.read_text(SWEEP_FILE):
        run.write_text(SWEEP_FILE, sweep.canonical())
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


def _audit(entry: Mapping[str, Any], seed: int) -> PlannedAudit:
    audit = PlannedAudit(
        id=str(entry["id"]),
        label=str(entry["label"]),
        fingerprint=str(entry["fingerprint"]),
        trials=int(entry["trials"]),
        horizons=tuple(map(int, entry["horizons"])),
        claims={name: tuple(map(float, values)) for name, values in entry["claims"].items()},
        packs=tuple((int(first), int(last)) for first, last in entry["packs"]),
        declared=tuple(map(int, entry.get("declared", [entry["trials"]]))),
    )
    starts = [0, *(last + 1 for _, last in audit.packs)]
    if [first for first, _ in audit.packs] != starts[:-1] or starts[-1] != audit.trials:
        raise ValueError(f"the packs of {audit.id} do not make up its {audit.trials} trials")
    if sorted({*audit.declared, audit.trials}) != list(audit.declared):
        raise ValueError(f"{audit.id} declared {audit.declared}, which do not rise to its trials")
    if {len(values) for values in audit.claims.values()} != {len(audit.horizons)}:
        raise ValueError(f"the claims of {audit.id} do not fit its {len(audit.horizons)} steps")
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
        claims=old.claims if old else _claims(cell),
        packs=(*kept, *added),
        declared=_declared(trials, old.declared if old else (), extends),
    )


def _declared(trials: int, before: tuple[int, ...], extends: bool) -> tuple[int, ...]:
    if trials in before[-1:]:
        return before
    return (*before, trials) if extends else (*before[:-1], trials)


def _claims(cell: Cell) -> dict[str, tuple[float, ...]]:
    """ε of every accountant at every horizon."""
    asked = tuple(cell.mechanism.claimed(cell.adversary, step) for step in cell.horizons)
    return {name: _curve(asked, cell.audit.delta, name) for name in cell.audit.accountants}


def _curve(asked: tuple[Claimed, ...], delta: float, accountant: str) -> tuple[float, ...]:
    noise, sample_rate = asked[-1].noise_multiplier, asked[-1].sample_rate
    releases = [claimed.releases for claimed in asked]
    try:
        curve = accounting.curve(
            noise, releases, delta, sample_rate=sample_rate, accountant=accountant
        )
    except (ValueError, ArithmeticError) as error:
        raise SpecError(
            "audit.accountants",
            f"{accountant} gives no claim for a noise multiplier of {noise:g} and a sample rate of "
            f"{sample_rate:g} ({error}); choose another accountant",
        ) from error
    return tuple(curve.tolist())
