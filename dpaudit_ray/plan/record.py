"""`plan.json` and `sweep.yaml` of a run directory: written, read, and held against each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..errors import RunDirectoryError, SpecError
from ..printable import printable
from ..storage.run_directory import RESTORE, RunDirectory
from ..sweep import spec, yamlfile
from ..sweep.spec import RevisionError, Sweep
from ..version import __version__
from . import claims, plan_consistency
from .inputs import InputFile
from .model import Plan, PlannedAudit, PlannedPreparation
from .provenance import Code

FILE = "plan.json"
SWEEP_FILE = "sweep.yaml"


def to_json(plan: Plan) -> dict[str, Any]:
    """The content of plan.json."""
    audits = []
    for audit in plan.audits:
        audits.append(_entry(audit) | {"bits_sha256": audit.commitment(plan.seed)})
    head = {"version": __version__, "fingerprint": plan.fingerprint, "seed": plan.seed}
    if plan.data is not None:
        head |= {"data": [dataclasses.asdict(file) for file in plan.data]}
    if plan.code is not None:
        head |= {"code": [code.to_json() for code in plan.code]}
    return head | {"audits": audits}


def from_json(raw: Any) -> Plan:
    """The inverse of `to_json`; ValueError when `raw` is not what a plan looks like."""
    try:
        seed = int(raw["seed"])
        audits = tuple(_audit(i, entry, seed) for i, entry in enumerate(raw["audits"]))
        data = None if "data" not in raw else tuple(_input(file) for file in raw["data"])
        code = None if "code" not in raw else tuple(map(Code.from_json, raw["code"]))
        if code == ():
            raise ValueError("code is empty")
        return Plan(seed, str(raw["fingerprint"]), audits, data, code)
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError(f"{error!r}") from error


def load(run: RunDirectory) -> Plan | None:
    """The plan in a run directory, None when there is none."""
    raw = run.read_json(FILE)
    try:
        return None if raw is None else from_json(raw)
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
    plan, sweep = require(run), recorded(run)
    if sweep is None:
        raise _incomplete(run, SWEEP_FILE)
    sweep = plan_consistency.filled(sweep, plan, run)
    plan_consistency.check(sweep, plan, run)
    return sweep, plan


def recorded(run: RunDirectory) -> Sweep | None:
    """The sweep as it was run, None when nothing was.

    Raises:
        RunDirectoryError: it is damaged.
    """
    text = run.read_text(SWEEP_FILE)
    try:
        source = f"{run.location}/{SWEEP_FILE}"
        return None if text is None else spec.from_raw(yamlfile.parse_yaml(text, source))
    except RevisionError as error:
        raise RunDirectoryError(f"{run.location}: its fingerprint {error.problem}") from error
    except SpecError as error:
        what = str(error.problems[0]).partition(";")[
            0
        ]  # its remedy is for a file of the user's own
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
    for name, usual in (("mixed", False), ("canaries", 1)):
        if entry[name] == usual:
            del entry[name]
    awaited = entry.pop("preparation")
    if awaited is not None:
        entry["preparation"] = dataclasses.asdict(awaited)
    return entry


def _preparation(entry: Mapping[str, Any] | None) -> PlannedPreparation | None:
    return None if entry is None else PlannedPreparation(str(entry["id"]), int(entry["parts"]))


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
        canaries=int(entry.get("canaries", 1)),
        preparation=_preparation(entry.get("preparation")),
    )
    plan_consistency.check_audit(audit, index)
    if entry["bits_sha256"] != audit.commitment(seed):
        raise ValueError(f"the bits of {audit.id} are not those that bits_sha256 commits to")
    return audit
