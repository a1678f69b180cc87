"""`dpaudit audit script.py:main`: layer after layer, cheapest first, while nothing is broken.

One run is looked into (L0). Where that was `enough`, the promise is kept as far as audits of this
kind see. Then runs with a canary in every other step, each step a trial (L1), and whole runs as
trials (L2), as far as the budget goes: they may find a violation, and measure ε from below. Each
layer has its share of the error.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from threadpoolctl import threadpool_limits

from ..isolation import Limits
from ..report.verdict import Verdict
from . import canary_trials, preflight, sampling_check, single_run
from .canary_trials import CanaryTrials
from .script_findings import Finding, Judgement, Measured, ScriptVerdict, Weight
from .script_runs import EndedRun, Runner, Target
from .watch.run_state import RunRequest, entries_of

_FOR_RUNS = 0.9  # of the budget; the rest is for judging them
_LOOKING = 0.85  # of that, after which the run that is looked into ends with its step
_GRACE = 0.05  # of the budget, that a run may take on top of its time: it ends after a step
_FEWEST = 3.0  # seconds, at least; and that must be left for a layer of trials to begin
_FAILED = 3  # runs with canaries that raise, before no more are tried
_MOST_RUN_TRIALS = 400


@dataclasses.dataclass(frozen=True)
class Options:
    """How far an audit goes.

    `budget` in seconds, `layers` of 0, 1, 2, `gib` of memory for a run, `seed` of all coins.
    `secret_size`: that one record more or less is secret, too, so the number of records is.
    """

    budget: float = 600.0
    layers: tuple[int, ...] = (0, 1, 2)
    gib: float | None = None
    seed: int = 0
    secret_size: bool = False


class Audit:
    """One script's audit; `verdict` runs it, and tells `progress` what goes on."""

    def __init__(
        self, target: Target, runner: Runner, options: Options, progress: Callable[[str], None]
    ) -> None:
        self._target, self._runner, self._options = target, runner, options
        self._progress = progress
        self._began = time.monotonic()
        self._runs = 0
        self._judged = Judgement()
        self._measured: list[Measured] = []
        self._help: list[str] = []
        self._trials: dict[int, CanaryTrials] = {}
        self._output = ""

    def verdict(self) -> ScriptVerdict:
        """Runs the layers. Raises ScriptError where the script cannot be audited as it is."""
        # Threads of BLAS wait for each other in loops: on busy cores that takes ten times as long.
        with contextlib.closing(self._runner), threadpool_limits(1, "blas"):
            return self._run_layers()

    def _run_layers(self) -> ScriptVerdict:
        self._progress("L0: one run is looked into")
        (first,) = self._run(iter([self._request("look", share=_LOOKING, looks=True)]))
        result = preflight.require_usable(self._target, first, self._options.budget)
        self._result = result
        # Of one run, imports and all, without what looking into it took.
        self._seconds = float(max(0.2, first.ended.seconds - result["watching"]))
        self._noise = preflight.least_noise(result, first.record)
        delta = self._target.delta or result["marks"]["delta"]
        promised = self._target.epsilon or result["marks"]["epsilon"]
        accountant = "promised" if promised is not None else preflight.accountant_names(result)
        claim = promised
        if claim is None and single_run.cut(first.record):
            claim = math.nan  # the accountant's word would be on fewer steps than the script's
        elif claim is None:
            claim = preflight.claimed_epsilon(result, delta)
        if 0 in self._options.layers:
            judged = single_run.judge(first.record, result, delta)
            self._judged.add(judged).add(preflight.judge_promise(result, promised, delta))
            if not judged.complete:
                looks = [look for look in judged.looks if not look.done]
                looks = [look for look in looks if result["made"] or look.name != "records apart"]
                self._help += [f"L0 did not see {look.name}: {look.said}" for look in looks]
            if result["generators"] and not self._decided:
                self._compare_seeds()
            if math.isnan(claim) and judged.complete:
                self._help.append("no accountant tells ε; give it by @audited(delta, epsilon=...)")
        if self._options.secret_size and not self._decided:
            self._compare_sizes(delta)
        if 1 in self._options.layers and not self._decided:
            self._try_steps(claim, delta)
        if 2 in self._options.layers and not self._decided:
            self._try_runs(claim, delta)
        return self._sum_up(claim, delta, accountant)

    @property
    def _left(self) -> float:
        return _FOR_RUNS * self._options.budget - (time.monotonic() - self._began)

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
        return RunRequest(seed, seconds=max(1.0, share * self._left), **fields)

    def _requests(
        self,
        make: Callable[[int], RunRequest],
        goes_on: Callable[[], bool],
        most: int,
        least: float,
    ) -> Iterator[RunRequest]:
        """Requests while there are `least` seconds left, and reason."""
        for number in range(most):
            if not goes_on() or self._left < least:
                return
            yield make(number)

    def _affordable_runs(self) -> int:
        return int(max(0.0, self._left) / self._seconds * self._runner.width)

    def _budget_for(self, runs: int) -> str:
        """The budget that would pay for so many runs more, as `--budget` takes it."""
        seconds = self._options.budget + runs * self._seconds / self._runner.width
        return f"{math.ceil(seconds / 60)}min" if seconds > 90 else f"{math.ceil(seconds)}s"

    def _compare_seeds(self) -> None:
        """Whether two runs seed their noise alike: each first step of a second run."""
        self._progress("L0: the seeds of a second run")
        (second,) = self._run(iter([self._request("seeds", most_steps=1)]))
        if second.result is not None:
            self._judged.add(single_run.same_seeds(self._result, second.result))

    def _compare_sizes(self, delta: float) -> None:
        """The number of records as the secret: the same run with one record more."""
        self._progress("L0: the same with one record more")
        requests = (self._request("size", n, most_steps=1, one_more=bool(n)) for n in (0, 1))
        records = [run.record for run in self._run(requests)]
        self._judged.add(sampling_check.judge_size(records, delta))

    def _try_steps(self, claim: float, delta: float) -> None:
        """L1: every step a trial."""
        taken = sum(self._result["steps"])
        if self._noise is None or not taken:
            self._not_done(1, "every step a trial", "no step was accounted")
            self._help.append("L1 needs an accountant that counts steps, or --delta and noise told")
            return
        needed = canary_trials.steps_needed(self._noise)
        affordable = self._affordable_runs() * taken
        planned = int(min(needed or affordable, max(affordable, taken)))
        layer = self._trials[1] = canary_trials.step_trials(self._noise, max(planned, 10))
        self._fold_steps(layer, math.ceil(planned / taken))
        judgement = layer.judge(needed)
        self._judged.add(judgement)
        self._measure(layer, claim, delta)
        if judgement.complete or judgement.findings or self._judged.enough:
            return
        said = (
            f"steps with a noise multiplier of {self._noise:.3g} hide a canary too well for 20,000 "
            "trials to find 0.7 of the noise; L0 has measured it"
        )
        if needed is not None:
            runs = math.ceil((needed - layer.count) / taken)
            said = f"{needed} step-trials would find 0.7 of the noise; {runs} more runs, about "
            said += f"--budget {self._budget_for(runs)}"
        self._help.append(f"L1: {said}")

    def _fold_steps(self, layer: CanaryTrials, most_runs: int) -> None:
        failed: list[EndedRun] = []
        requests = self._requests(
            lambda n: self._request("steps", n, canary="steps", reseeds=True),
            lambda: not layer.refuted and len(failed) < _FAILED,
            most_runs,
            _FEWEST,  # a run that is cut has told of its steps until then
        )
        self._progress(f"L1: a canary in every other step, 0 of {layer.planned} steps")
        for run in self._run(requests):
            trials = entries_of(run.record, "trial")
            scores = [math.nan if t["score"] is None else float(t["score"]) for t in trials]
            layer.fold(scores, [trial["member"] for trial in trials])
            self._progress(f"L1: a canary in every other step, {layer.count} of {layer.planned}")
            if run.ended.how != "returned":
                # The step that it ended in: its coin was thrown.
                layer.miss(run.request.coin(0.5, "bit", 0, len(trials)))
                failed += [run] * (run.ended.how != "hung" or self._left > 0)
        if failed:
            self._judged.findings.append(Finding(
                1, "every step a trial", Weight.WARNING, f"{len(failed)} runs with canaries",
                "runs that end", failed[0].ended.message,
                "a step that fails counts as a wrong guess",
            ))  # fmt: skip

    def _try_runs(self, claim: float, delta: float) -> None:
        """L2: whole runs as trials."""
        layer = canary_trials.run_trials(self._result["claims"], _MOST_RUN_TRIALS)
        if layer is None:
            self._not_done(2, "runs", "the accountants give no ε")
            return
        needed = canary_trials.runs_needed(layer.curve)
        if needed > min(self._affordable_runs(), _MOST_RUN_TRIALS):
            why = f"perfect guesses of {needed} runs would refute the claim, and of no fewer"
            if needed <= _MOST_RUN_TRIALS:
                why += f"; --budget {self._budget_for(needed)} pays for them"
            self._not_done(2, "runs", why)
            return
        layer = self._trials[2] = dataclasses.replace(layer, planned=needed)
        self._progress(f"L2: a canary in whole runs, 0 of {needed}")

        def make(number: int) -> RunRequest:
            request = self._request("run", number, canary="run", reseeds=True)
            return dataclasses.replace(request, member=request.coin(0.5, "bit of the run"))

        for run in self._run(
            self._requests(make, lambda: not layer.refuted, needed, self._seconds)
        ):
            trials = entries_of(run.record, "trial")
            if run.ended.how == "returned" and trials:
                layer.fold([canary_trials.run_score(trials)], [run.request.member])
            else:
                layer.miss(run.request.member)
            self._progress(f"L2: a canary in whole runs, {layer.count} of {needed}")
        self._measure(layer, claim, delta)
        self._judged.add(layer.judge(needed if layer.count >= needed else None))

    def _measure(self, layer: CanaryTrials, claim: float, delta: float) -> None:
        if layer.count and (measured := layer.measured(claim, delta)) is not None:
            self._measured.append(measured)

    def _not_done(self, layer: int, name: str, why: str) -> None:
        self._judged.add(Judgement(layer).look(name, why, done=False))

    def _sum_up(self, claim: float, delta: float, accountant: str) -> ScriptVerdict:
        needed = {0} if self._judged.enough else {0, 1}
        skipped = needed - set(self._options.layers)
        self._help += [f"L{layer} was left out by --layers" for layer in skipped]
        verdict = Verdict.INCONCLUSIVE if self._help else Verdict.CONSISTENT
        if self._decided:
            verdict = Verdict.VIOLATION
        counts = [self._trials[n].count if n in self._trials else 0 for n in (1, 2)]
        return ScriptVerdict(
            script=str(self._target),
            verdict=verdict,
            claim=claim,
            delta=delta,
            accountant=accountant,
            findings=tuple(self._judged.findings),
            looks=tuple(self._judged.looks),
            help=tuple(self._help) if verdict is Verdict.INCONCLUSIVE else (),
            runs=self._runs,
            step_trials=counts[0],
            run_trials=counts[1],
            seconds=time.monotonic() - self._began,
            output=self._output,
            measured=tuple(self._measured),
            sentence=self._judged.sentence,
        )
