"""`plan.json` and `sweep.yaml` of a run directory: written, read, and held against each other."""

from __future__ import annotations

from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..errors import RunDirectoryError, SpecError
from ..storage import strangers
from ..storage.run_directory import RESTORE, RunDirectory
from ..sweep import spec, yamlfile
from ..sweep.spec import Sweep
from ..version import __version__
from . import plan_consistency
from .model import Plan

FILE = "plan.json"
SWEEP_FILE = "sweep.yaml"
_CONTENT = TypeAdapter(Plan)


def to_json(plan: Plan) -> dict[str, Any]:
    """The content of plan.json, without what most audits are not."""
    content: dict[str, Any] = _CONTENT.dump_python(plan, exclude_defaults=True)
    for entry, audit in zip(content["audits"], plan.audits, strict=True):
        entry["bits_sha256"] = audit.commitment(plan.seed)
    return {"version": __version__} | content


def from_json(raw: Any) -> Plan:
    """The inverse of `to_json`; ValueError when `raw` is not what a plan looks like."""
    try:
        plan = _CONTENT.validate_python(raw)
    except ValidationError as error:
        raise ValueError(strangers.why(error)) from error
    for index, (audit, entry) in enumerate(zip(plan.audits, raw["audits"], strict=True)):
        plan_consistency.check_audit(audit, index)
        if entry.get("bits_sha256") != audit.commitment(plan.seed):
            raise ValueError(f"the bits of {audit.id} are not those that bits_sha256 commits to")
    return plan


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
    """Sweep and plan of an existing run. Raises RunDirectoryError where they do not fit."""
    plan, sweep = require(run), recorded(run)
    if sweep is None:
        raise _incomplete(run, SWEEP_FILE)
    sweep = plan_consistency.filled(sweep, plan, run)
    plan_consistency.check(sweep, plan, run)
    return sweep, plan


def recorded(run: RunDirectory) -> Sweep | None:
    """The sweep as it was run, None before that. Raises RunDirectoryError where it is damaged."""
    text = run.read_text(SWEEP_FILE)
    try:
        source = f"{run.location}/{SWEEP_FILE}"
        return None if text is None else spec.from_raw(yamlfile.parse_yaml(text, source))
    except SpecError as error:
        # Its remedy is for a file of the user's own.
        what = str(error.problems[0]).partition(";")[0]
        raise RunDirectoryError(
            f"{run.location}/{SWEEP_FILE} is damaged ({what}); {RESTORE}"
        ) from error


def _incomplete(run: RunDirectory, missing: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{run.location} is no run directory (it has no {missing}); give the folder that "
        "`dpaudit run` named; a script is for `dpaudit audit train.py:main`"
    )
