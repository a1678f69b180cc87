"""How often a healthy script is called broken: `python -m jobs.zoo.alarms --layer 0 --verdicts 20`.

Each verdict is of one layer alone, with seeds of its own. For layer 2, runs end after their first
steps, and the claim is what the script's accountant says by then: as good as any claim, and cheap.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from dpaudit_ray.isolation import Ended, Limits, Sandbox
from dpaudit_ray.scripts import canary_trials, script_runs, single_run
from dpaudit_ray.scripts.script_findings import ALPHA, Finding, Judgement, Weight
from dpaudit_ray.scripts.script_runs import EndedRun, Target
from dpaudit_ray.scripts.watch.run_state import RunRequest
from dpaudit_ray.stats import clopper_pearson_lower, clopper_pearson_upper
from jobs.zoo import common

HERE = Path(__file__).parent
SCRIPTS = (
    "mlp",
    "cnn",
    "transformer",
    "ghost",
    "memory_manager",
    "adam_schedule",
    "fixed_sampling",
    "several_epochs",
    "frozen_body",
    "own_loop",
)
RUN_STEPS = 15  # of a run that is one trial


class Script:
    """A healthy script and the process that its runs are forked from."""

    def __init__(self, name: str) -> None:
        self.target = Target(HERE / "healthy.py", name)
        self._sandbox: Sandbox = script_runs.sandbox_for(self.target)

    def close(self) -> None:
        """Ends the process."""
        self._sandbox.close()

    def alone(self, function: str, argument: Any, limits: Limits) -> Ended:
        """A call in a child process of the same kind, which nobody watches."""
        return self._sandbox.call(function, argument, limits)

    @functools.cached_property
    def claims(self) -> list[dict[str, Any]]:
        """What its accountants say after its first steps."""
        result = self.run(0, most_steps=RUN_STEPS).result
        assert result is not None
        claims: list[dict[str, Any]] = result["claims"]
        return claims

    def run(self, seed: int, **fields: Any) -> EndedRun:
        """One run in a child process."""
        seen = script_runs.run_once(
            self._sandbox, self.target, RunRequest(seed, **fields), Limits(600.0), 1
        )
        if seen.result is None:
            raise SystemExit(f"{self.target}: {seen.ended.message}\n{seen.ended.traceback}")
        return seen


def of_one_run(script: Script, seed: int, _: int | None) -> Judgement:
    """L0."""
    seen = script.run(seed, looks=True)
    assert seen.result is not None
    return single_run.judge(seen.record, seen.result, common.DELTA)


def of_steps(script: Script, seed: int, most: int | None) -> Judgement:
    """L1: as many steps as an audit takes, or `most`, or 100 where no number is enough."""
    noise = script_runs.least_noise({"claims": script.claims}, [])
    assert noise is not None
    planned = min(canary_trials.steps_needed(noise) or 100, most or 10**9)
    layer, numbers = canary_trials.step_trials(noise, planned), itertools.count()
    while layer.count < planned:
        seen = script.run(_seed(seed, next(numbers)), canary="steps", reseeds=True)
        rows = [one for one in seen.record if one["kind"] == "trial"]
        layer.fold([one["score"] for one in rows], [one["member"] for one in rows])
    return layer.judge(planned)


def of_runs(script: Script, seed: int, most: int | None) -> Judgement:
    """L2: as many runs as perfect guesses would need, or `most`."""
    claims = script.claims
    known = canary_trials.run_trials(claims, 10)
    assert known is not None
    planned = min(canary_trials.runs_needed(known.curve), most or 10**9)
    layer = canary_trials.run_trials(claims, planned)
    assert layer is not None
    for number in range(planned):
        own = _seed(seed, number)
        member = RunRequest(own).coin(0.5, "bit of the run")
        seen = script.run(own, canary="run", member=member, reseeds=True, most_steps=RUN_STEPS)
        rows = [one for one in seen.record if one["kind"] == "trial"]
        layer.fold([canary_trials.run_score(rows)], [member])
    return layer.judge(planned)


LAYERS: dict[int, Callable[[Script, int, int | None], Judgement]] = {
    0: of_one_run,
    1: of_steps,
    2: of_runs,
}


def _seed(verdict: int, run: int) -> int:
    return RunRequest(verdict).derived("run", run)


def alarms(
    name: str, layer: int, verdicts: Iterable[int], most: int | None = None
) -> Iterator[list[Finding]]:
    """What each verdict found against a promise that is kept."""
    script = Script(name)
    try:
        for number in verdicts:
            judged = LAYERS[layer](script, number, most)
            yield [one for one in judged.findings if one.weight is Weight.VIOLATION]
    finally:
        script.close()


def row(name: str, count: int, false: int) -> str:
    low = float(clopper_pearson_lower(false, count, 0.025))
    high = float(clopper_pearson_upper(false, count, 0.025))
    return f"| {name} | {count} | {false} | {low:.3f} to {high:.3f} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m jobs.zoo.alarms", description=__doc__)
    parser.add_argument("names", nargs="*", default=SCRIPTS, help="functions of healthy.py")
    parser.add_argument("--layer", type=int, choices=(0, 1, 2), default=0)
    parser.add_argument("--verdicts", type=int, default=20, help="for each script")
    parser.add_argument("--first", type=int, default=0, help="seed of the first verdict")
    parser.add_argument("--most", type=int, help="trials for a verdict of layers 1 and 2")
    given = parser.parse_args()
    print(f"| script | verdicts of L{given.layer} | alarms | 95 % interval |")
    print("|---|---|---|---|", flush=True)
    total = Counter[str]()
    for name in given.names:
        count = false = 0
        numbers = range(given.first, given.first + given.verdicts)
        for number, found in zip(
            numbers, alarms(name, given.layer, numbers, given.most), strict=True
        ):
            count += 1
            false += bool(found)
            for one in found:
                print(f"{name}, verdict {number}: {one.look}: {one}", file=sys.stderr, flush=True)
        total.update(count=count, false=false)
        print(row(name, count, false), flush=True)
    print(row("all", total["count"], total["false"]))
    print(f"\nat most {ALPHA[given.layer]:.0%} of verdicts may be alarms")


if __name__ == "__main__":
    main()
