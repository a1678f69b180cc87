"""`dpaudit audit script.py:main`: layer after layer, cheapest first, while nothing is broken.

One run is looked into (L0). Then come runs with a canary in every other step, each step a trial
(L1), and whole runs as trials (L2), as far as the budget goes: they may find a violation, and
measure ε from below. Each layer has its share of the error.
"""

import contextlib
import dataclasses
import math
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from threadpoolctl import threadpool_limits

from ..errors import SpecError
from ..isolation import Limits
from ..report.verdict import Verdict
from . import canary_trials, script_runs, single_run
from .canary_trials import CanaryTrials
from .script_findings import Judgement, ScriptVerdict, Weight
from .script_runs import EndedRun, Result, Runner, Target
from .watch.run_state import RunRequest, entries_of

_FOR_RUNS = 0.9  # of the budget; the rest is for judging them
_LOOKING = 0.85  # of that, after which the run that is looked into ends with its step
_HELD = 0.15  # of what is left, for each run whose releases are held
_GRACE = 0.05  # of the budget, that a run may take on top of its time: it ends after a step
_FEWEST = 3.0  # seconds, at least; and that must be left for a layer of trials to begin
_FAILED = 3  # runs with canaries that raise, before no more are tried
_MOST_RUN_TRIALS = 400
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Seconds of `90s`, `10min`, `1.5h` or `2d`. Raises SpecError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise SpecError("--budget", f"is {text!r}; write a time as 90s, 10min, 1.5h or 2d")
    return seconds


@dataclasses.dataclass(frozen=True)
class Options:
    """How far an audit goes."""

    budget: float = 600.0  # seconds
    layers: tuple[int, ...] = (0, 1, 2)
    gib: float | None = None  # of memory, for a run
    seed: int = 0  # of all coins
    secret_size: bool = False  # the number of records is secret, too


class Audit:
    """One script's audit; `verdict` runs it, and tells `progress` what goes on."""

    def __init__(
        self, target: Target, runner: Runner, options: Options, progress: Callable[[str], None]
    ) -> None:
        self._target, self._runner, self._options = target, runner, options
        self._progress = progress
        self._began = time.monotonic()
        self._runs, self._output = 0, ""
        self._answers: dict[str, float] = {}
        self._judged = Judgement()
        self._help: list[str] = []
        self._trials: dict[int, CanaryTrials] = {}
        self._failed: list[EndedRun] = []  # with canaries in steps

    def verdict(self) -> ScriptVerdict:
        """Runs the layers. Raises ScriptError where the script cannot be audited as it is."""
        # Threads of BLAS wait for each other in loops: on busy cores that takes ten times as long.
        with contextlib.closing(self._runner), threadpool_limits(1, "blas"):
            self._look()
            if self._options.secret_size and not self._decided:
                self._compare_sizes()
            for layer, run in {1: self._try_steps, 2: self._try_runs}.items():
                if layer in self._options.layers and not self._decided:
                    run()
            return self._sum_up()

    def _look(self) -> None:
        """L0, and what is known of the script by its first run."""
        self._progress("L0: one run is looked into")
        (first,) = self._run(iter([self._request("look", share=_LOOKING, looks=True)]))
        target, budget = self._target, self._options.budget
        result = self._result = script_runs.require_usable(target, first, budget)
        self._answers = result["answers"]
        # Of one run, imports and all, without what looking into it took.
        self._seconds = float(max(0.2, first.ended.seconds - result["watching"]))
        self._noise = script_runs.least_noise(result, first.record)
        self._delta = delta = target.delta or result["marks"]["delta"]
        promised = target.epsilon or result["marks"]["epsilon"]
        self._accountant = script_runs.accountant_names(result) if promised is None else "promised"
        self._claim = promised
        if promised is None:  # of a run that was cut, the accountant's word is on fewer steps
            was_cut = single_run.cut(first.record)
            self._claim = math.nan if was_cut else script_runs.claimed_epsilon(result, delta)
        if processes := script_runs.unwatched_processes(result):
            self._help.append(f"{processes}: they may train, too")
        if 0 not in self._options.layers:
            return
        judged = single_run.judge(first.record, result, delta)
        self._judged.add(judged).add(single_run.judge_promise(result, promised, delta))
        if not judged.complete:
            looks = [look for look in judged.looks if not look.done]
            looks = [look for look in looks if result["made"] or look.name != "records apart"]
            self._help += [f"L0 did not see {look.name}: {look.said}" for look in looks]
        if result["generators"] and not self._decided:
            self._progress("L0: the seeds of a second run")
            (second,) = self._run(iter([self._request("seeds", most_steps=1)]))
            if second.result is not None:
                self._judged.add(single_run.same_seeds(result, second.result))
        if (result["made"] or result["chosen"] is not None) and not self._decided:
            self._judged.add(held := self._compare_held())
            missed = [look for look in held.looks if not held.complete]
            self._help += [f"L0 did not see {look.name}: {look.said}" for look in missed]
        if math.isnan(self._claim) and judged.complete:
            self._help.append("no accountant tells ε; give it by @audited(delta, epsilon=...)")

    @property
    def _left(self) -> float:
        return _FOR_RUNS * self._options.budget - (time.monotonic() - self._began)

    @property
    def _affordable_runs(self) -> int:
        return int(max(0.0, self._left) / self._seconds * self._runner.width)

    @property
    def _decided(self) -> bool:
        return any(item.weight is Weight.VIOLATION for item in self._judged.findings)

    def _run(self, requests: Iterator[RunRequest]) -> Iterator[EndedRun]:
        grace = max(_FEWEST, _GRACE * self._options.budget)
        for run in self._runner.run(requests, Limits(grace, self._options.gib)):
            self._runs += 1
            self._output = run.ended.output or self._output
            yield run

    def _request(self, *label: Any, share: float = 1.0, **fields: Any) -> RunRequest:
        seed = RunRequest(self._options.seed).derived(*label)
        seconds = max(1.0, share * self._left)
        return RunRequest(seed, seconds=seconds, answers=self._answers, **fields)

    def _canary_runs(
        self, layer: CanaryTrials, make: Callable[[int], RunRequest], most: int, least: float
    ) -> Iterator[EndedRun]:
        """Runs with canaries, `most` of them, while there are `least` seconds left, and reason."""
        what = {1: "every other step", 2: "whole runs"}[layer.layer]

        def requests() -> Iterator[RunRequest]:
            for number in range(most):
                if layer.refuted or len(self._failed) >= _FAILED or self._left < least:
                    return
                yield make(number)

        self._progress(f"L{layer.layer}: a canary in {what}, 0 of {layer.planned}")
        for run in self._run(requests()):
            yield run
            self._progress(f"L{layer.layer}: a canary in {what}, {layer.count} of {layer.planned}")

    def _budget_for(self, runs: int) -> str:
        """The budget that would pay for so many runs more, as `--budget` takes it."""
        seconds = self._options.budget + runs * self._seconds / self._runner.width
        return f"{math.ceil(seconds / 60)}min" if seconds > 90 else f"{math.ceil(seconds)}s"

    def _compare_sizes(self) -> None:
        """The number of records as the secret: the same run with one record more."""
        self._progress("L0: the same with one record more")
        requests = (self._request("size", n, most_steps=1, one_more=bool(n)) for n in (0, 1))
        records = [run.record for run in self._run(requests)]
        self._judged.add(single_run.judge_size(records))

    def _compare_held(self) -> Judgement:
        """Runs whose releases are held: with another record, and where that shows, other noise."""
        self._progress("L0: runs with all releases held")
        results: dict[str, Result] = {}
        for kind in ("alone", "exchanged", "noised", "shaken"):
            record = results["alone"]["chosen"] if results else None
            request = self._request("held", share=_HELD, held=kind, record=record)
            (run,) = self._run(iter([request]))
            if run.result is None or run.result["chosen"] is record is None:
                hung = run.ended.how == "hung"
                why = "the same run failed, or no draw of four records or more was seen"
                why = "the same run took too long; give a larger --budget" if hung else why
                return Judgement().look("releases held", why, done=False, complete=not hung)
            held, was_cut = entries_of(run.record, "held"), single_run.cut(run.record)
            results[kind] = run.result | {"held": held, "cut": was_cut}
            if kind == "exchanged" and not single_run.differences(**results):
                break
        return single_run.judge_held(**results)

    def _try_steps(self) -> None:
        """L1: every step a trial."""
        taken = sum(self._result["steps"])
        if self._noise is None or not taken:
            self._not_done(1, "every step a trial", "no step was accounted")
            self._help.append("L1 needs an accountant that counts steps, or --delta and noise told")
            return
        needed = canary_trials.steps_needed(self._noise)
        affordable = max(self._affordable_runs, 1) * taken
        planned = min(needed or affordable, affordable)
        layer = self._trials[1] = canary_trials.step_trials(self._noise, max(planned, 10))

        def make(number: int) -> RunRequest:
            return self._request("steps", number, canary="steps", reseeds=True)

        # A run that is cut has told of its steps until then.
        for run in self._canary_runs(layer, make, math.ceil(planned / taken), _FEWEST):
            trials = entries_of(run.record, "trial")
            layer.fold([t["score"] for t in trials], [t["member"] for t in trials])
            if run.ended.how != "returned":
                # The step that it ended in: its coin was thrown.
                layer.miss(run.request.coin(0.5, "bit", 0, len(trials)))
                self._failed += [run] * (run.ended.how != "hung" or self._left > 0)
        if failed := self._failed:
            where, seen = f"{len(failed)} runs with canaries", failed[0].ended.message
            self._judged.add(Judgement(1).find("failed", where, seen=seen))
        judgement = layer.judge(needed)
        self._judged.add(judgement)
        if judgement.complete or judgement.findings or self._judged.enough:
            return
        said = f"20,000 steps with a noise multiplier of {self._noise:.3g} do not show 0.7 of it"
        if needed is not None:
            runs = math.ceil((needed - layer.count) / taken)
            said = f"{needed} step-trials would find 0.7 of the noise; {runs} more runs, about "
            said += f"--budget {self._budget_for(runs)}"
        self._help.append(f"L1: {said}")

    def _try_runs(self) -> None:
        """L2: whole runs as trials."""
        layer = canary_trials.run_trials(self._result["claims"], _MOST_RUN_TRIALS)
        if layer is None:
            self._not_done(2, "runs", "the accountants give no ε")
            return
        needed = canary_trials.runs_needed(layer.curve)
        if needed > min(self._affordable_runs, _MOST_RUN_TRIALS):
            why = f"perfect guesses of {needed} runs would refute the claim, and of no fewer"
            if needed <= _MOST_RUN_TRIALS:
                why += f"; --budget {self._budget_for(needed)} pays for them"
            self._not_done(2, "runs", why)
            return
        self._failed = []
        layer = self._trials[2] = dataclasses.replace(layer, planned=needed)

        def make(number: int) -> RunRequest:
            request = self._request("run", number, canary="run", reseeds=True)
            return dataclasses.replace(request, member=request.coin(0.5, "bit of the run"))

        for run in self._canary_runs(layer, make, needed, self._seconds):
            trials = entries_of(run.record, "trial")
            if run.ended.how == "returned" and trials:
                layer.fold([canary_trials.run_score(trials)], [run.request.member])
            else:
                layer.miss(run.request.member)
        self._judged.add(layer.judge(needed if layer.count >= needed else None))

    def _not_done(self, layer: int, name: str, why: str) -> None:
        self._judged.add(Judgement(layer).look(name, why, done=False))

    def _sum_up(self) -> ScriptVerdict:
        needed = {0} if self._judged.enough else {0, 1}
        skipped = needed - set(self._options.layers)
        self._help += [f"L{layer} was left out by --layers" for layer in skipped]
        undecided = Verdict.INCONCLUSIVE if self._help else Verdict.CONSISTENT
        verdict = Verdict.VIOLATION if self._decided else undecided
        layers = (layer for layer in self._trials.values() if layer.count)
        measured = [layer.measured(self._claim, self._delta) for layer in layers]
        return ScriptVerdict(
            script=str(self._target),
            verdict=verdict,
            claim=self._claim,
            delta=self._delta,
            accountant=self._accountant,
            findings=tuple(self._judged.findings),
            looks=tuple(self._judged.looks),
            help=tuple(self._help) if verdict is Verdict.INCONCLUSIVE else (),
            runs=self._runs,
            step_trials=self._trials[1].count if 1 in self._trials else 0,
            run_trials=self._trials[2].count if 2 in self._trials else 0,
            seconds=time.monotonic() - self._began,
            output=self._output,
            measured=tuple(item for item in measured if item is not None),
            sentence=self._judged.sentence,
        )
