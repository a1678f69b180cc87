"""What the first run of a script must show to be audited at all, and what the script promises."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

from .. import imports
from ..errors import ScriptError
from .script_findings import Judgement
from .script_runs import EndedRun, Target
from .watch.run_state import Entries, entries_of

Result = dict[str, Any]  # of a run, as `watch.watched_process` returns it


def require_usable(target: Target, run: EndedRun, budget: float) -> Result:
    """The result of a run that ended, and took steps that are private; `budget` in seconds.

    Raises ScriptError where it did not, with the last lines that it printed.
    """
    if run.ended.how != "returned":
        raise _failure(target, run, budget)
    result = run.result
    assert result is not None
    if any(entry["phase"] == "import" for entry in entries_of(run.record, "made")):
        raise ScriptError(
            f"{target.script.name} trains when it is imported; put what trains into "
            f"{target.function}(), and its call under if __name__ == '__main__'"
        )
    # No step, and nothing else that could be wrong.
    taken = sum(result["steps"])
    if not taken and not result["outside"]:
        raise ScriptError(
            f"{target} took no step that is private: it calls neither make_private nor audited_step"
            if not result["made"]
            else f"{target} took no step within {result['seconds']:.0f} s; give a longer --budget"
        )
    if not taken and not result["made"]:
        raise ScriptError(
            f"{target} never calls make_private, and takes "
            f"{result['outside'][0]['steps']} steps without privacy; nothing to audit"
        )
    return result


def _failure(target: Target, run: EndedRun, budget: float) -> ScriptError:
    """Why a run that failed says nothing."""
    ended = run.ended
    lines = tuple(ended.output.strip().splitlines()[-5:])
    if ended.how == "hung":
        steps = [look["step"] for look in entries_of(run.record, "look")]
        said = "no step ended" if not steps else f"nothing came after step {max(steps) + 1}"
        return ScriptError(
            f"{target}: {said} within the budget of {budget:.0f} s; give a longer --budget",
            details=lines,
        )
    if ended.how == "raised" and ended.message.startswith("SpecError: "):
        return ScriptError(ended.message.removeprefix("SpecError: "))
    if ended.how == "memory":
        return ScriptError(f"{target} {ended.message}; give it more by --memory", details=lines)
    verb = "raised " if ended.how == "raised" else ""
    # Where the user's own code raised.
    places = re.findall(r'File "([^"]+)", line (\d+)', ended.traceback)
    places = [(file, line) for file, line in places if imports.is_users(file)]
    where = f" ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else ""
    return ScriptError(
        f"{target} {verb}{ended.message}{where}; run it by itself first", details=lines
    )


def accounted_events(result: Result) -> list[list[float]]:
    """(σ, q, steps) of all accountants whose claim is the script's."""
    return [event for claim in result["claims"] for event in claim["history"]]


def claimed_epsilon(result: Result, delta: float) -> float:
    """ε at δ that the script's accountants claim together; NaN where none does, or one fails."""
    at_delta = [dict(zip(c["deltas"], c["epsilons"], strict=True)) for c in result["claims"]]
    epsilons = [epsilons.get(delta) for epsilons in at_delta]
    return math.nan if not epsilons or None in epsilons else float(sum(filter(None, epsilons)))


def accountant_names(result: Result) -> str:
    """The names of the script's accountants, or "none"."""
    return "+".join(claim["name"] for claim in result["claims"]) or "none"


def judge_promise(result: Result, promised: float | None, delta: float) -> Judgement:
    """A violation where a promised ε is less than what the accountants say."""
    judged, claimed = Judgement(), claimed_epsilon(result, delta)
    if promised is not None and claimed > promised * (1 + 1e-3):
        values = {"promised": promised, "claimed": claimed, "delta": delta}
        judged.find("promise", f"epsilon={promised:g}", name=accountant_names(result), **values)
    return judged


def least_noise(result: Result, record: Entries) -> float | None:
    """The least noise multiplier that was accounted: each step has that much, says the claim."""
    made = [entry["noise"] for entry in entries_of(record, "made")]
    noises = [noise for noise, _, _ in accounted_events(result)] or made
    return min((float(noise) for noise in noises if noise > 0), default=None)
