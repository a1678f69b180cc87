"""What the first run of a script must show, so that it can be audited at all."""

from __future__ import annotations

import re
from pathlib import Path

from .. import module_files
from ..errors import ScriptError
from .locate import Target
from .script_runs import Seen


def require_usable(target: Target, seen: Seen, budget: float) -> None:
    """The run ended, and took steps that are private; `budget` in seconds.

    Raises:
        ScriptError: it did not; with the last lines that it printed where it failed.
    """
    if seen.ended.how != "returned":
        raise _unusable(target, seen, budget)
    told = seen.told
    assert told is not None
    if any(one["kind"] == "made" and one["phase"] == "import" for one in seen.record):
        raise ScriptError(
            f"{target.script.name} trains when it is imported; put what trains into "
            f"{target.function}(), and its call under if __name__ == '__main__'"
        )
    # No step, and nothing else that could be wrong.
    if not sum(told["steps"]) and not told["outside"]:
        raise ScriptError(
            f"{target} took no step that is private: it calls neither make_private nor audited_step"
            if not told["made"]
            else f"{target} took no step within {told['seconds']:.0f} s; give a longer --budget"
        )
    if not told["made"] and not sum(told["steps"]):
        raise ScriptError(
            f"{target} never calls make_private, and takes "
            f"{told['outside'][0]['steps']} steps without privacy; nothing to audit"
        )


def _unusable(target: Target, seen: Seen, budget: float) -> ScriptError:
    """Why a run that failed says nothing."""
    ended = seen.ended
    lines = tuple(ended.output.strip().splitlines()[-5:])
    if ended.how == "hung":
        steps = [one["step"] for one in seen.record if one["kind"] == "look"]
        said = "no step ended" if not steps else f"nothing came after step {max(steps) + 1}"
        return ScriptError(
            f"{target}: {said} within the budget of {budget:.0f} s; give a longer --budget", lines
        )
    if ended.how == "raised" and ended.message.startswith("SpecError: "):
        return ScriptError(ended.message.removeprefix("SpecError: "))
    if ended.how == "memory":
        return ScriptError(f"{target} {ended.message}; give it more by --memory", lines)
    verb = "raised " if ended.how == "raised" else ""
    where = _line(ended.traceback)
    return ScriptError(f"{target} {verb}{ended.message}{where}; run it by itself first", lines)


def _line(traceback: str) -> str:
    """Where the user's own code raised."""
    places = re.findall(r'File "([^"]+)", line (\d+)', traceback)
    own = [(file, line) for file, line in places if module_files.is_users(file)]
    return f" ({Path(own[-1][0]).name}, line {own[-1][1]})" if own else ""
