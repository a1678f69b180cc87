"""Jobs that are attempts at the same run: where it is, and what they were started with.

Ray runs a job once and forgets it with the cluster. So resuming is submitting again, and what a
job's metadata says tells which run it was an attempt at.
"""

from __future__ import annotations

import hashlib
import json
import posixpath
from collections.abc import Mapping, Sequence
from typing import Any

from ..sweep.spec import Sweep

RUN, ATTEMPT = "run", "attempt"
_FINGERPRINT, _SETTINGS = "fingerprint", "settings"


def storage(path: str) -> str:
    """One spelling per folder or address: no slash at the end, none twice, no file://."""
    scheme, separator, rest = path.partition("://")
    if separator and scheme.lower() != "file":
        return f"{scheme.lower()}://{rest.rstrip('/')}"
    return "/" + posixpath.normpath(rest or path).strip("/")


def name(sweep: str, run: str, attempt: int) -> str:
    """The submission id: no two jobs have the same one, whatever run they work on."""
    return f"{sweep}-{hashlib.sha256(run.encode()).hexdigest()[:8]}-{attempt}"


def metadata(sweep: Sweep, run: str) -> dict[str, str]:
    """What a job carries besides its number; the page is written while the sweep runs.

    `job_name` is what Ray itself calls a job by, in its dashboard's API and its metrics.
    """
    return {
        "job_name": sweep.name,
        "sweep": sweep.name,
        RUN: run,
        "report": f"{run}/report.html",
        _FINGERPRINT: sweep.fingerprint,
        _SETTINGS: json.dumps(_settings(sweep)),
    }


def next_number(attempts: Sequence[Mapping[str, str]]) -> int:
    """After those with this metadata."""
    numbers = [known.get(ATTEMPT, "") for known in attempts]
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=0)


def difference(theirs: Mapping[str, str], mine: Mapping[str, str]) -> str:
    """What a job that works on the same run does otherwise, in words; empty for nothing."""
    there, here = (job.get(_FINGERPRINT, "?") for job in (theirs, mine))
    if there != here:
        return f"another sweep, fingerprint {there[:8]} there, {here[:8]} here"
    before, now = (_parsed(job.get(_SETTINGS, "")) for job in (theirs, mine))
    return ", ".join(
        f"{key}: {_shown(before, key)} there, {_shown(now, key)} here"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key)
    )


def _settings(sweep: Sweep) -> dict[str, Any]:
    """All that the fingerprint leaves out and a job is not told of once it runs."""
    found: dict[str, Any] = {}
    for key in ("trials", "stop_when"):
        values = [cell.audit.model_dump(mode="json")[key] for cell in sweep.cells]
        same = all(value == values[0] for value in values)
        if (value := values[0] if same else values) is not None:
            found[f"audit.{key}"] = value
    resources = sweep.resources.model_dump(mode="json", exclude_defaults=True)
    return found | {f"resources.{key}": value for key, value in resources.items()}


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _shown(settings: Mapping[str, Any], key: str) -> str:
    return json.dumps(settings[key]) if key in settings else "not set"
