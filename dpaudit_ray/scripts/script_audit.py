"""`dpaudit verify script.py:main`: layer after layer, cheapest first, until it is decided.

One run is looked into (L0). Then runs with a canary in every other step, each step a trial (L1),
and whole runs as trials (L2), as far as the budget goes. Each layer has its share of the error.
"""

from __future__ import annotations

import collections
import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from typing import Any

from ..isolation import Limits
from ..report.verdict import Verdict
from . import canary_trials, preflight, promise, single_run, size
from .locate import Target
from .script_findings import Finding, Judged, Look, ScriptVerdict, Weight
from .script_runs import Runner, Seen, Tell
from .watch.run_state import Asked

_GRACE = 30.0  # seconds that a run may take on top of its time: it ends after a step
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
    """One script's audit. `verdict` runs it."""

    def __init__(self, target: Target, runner: Runner, options: Options, tell: Tell) -> None:
        self._target, self._runner, self._options, self._tell = target, runner, options, tell
        self._began = time.monotonic()
        self._runs = 0
        self._parts: list[Judged] = []
        self._help: list[str] = []
        self._trials: dict[int, canary_trials.Trials] = {}
        self._output = ""

    def verdict(self) -> ScriptVerdict:
        """Runs the layers.

        Raises:
            ScriptError: the script cannot be audited as it is.
        """
        self._first = self._look()
        told = self._told = _require(self._first.told)
        options = told["options"]
        delta = self._target.delta or options["delta"]
        promised = self._target.epsilon or options["epsilon"]
        self._claim, self._accountant = promise.claim(told, delta, promised)
        if promised is None and single_run.cut(self._first.record):
            self._claim = math.nan  # the accountant's word on fewer steps than the script's
        self._delta = delta
        self._noise = promise.least_noise(told, self._first.record)
        if 0 in self._options.layers:
            judged = single_run.judge(self._first.record, told, delta)
            self._parts += [judged, promise.kept(told, promised, delta)]
            if not judged.complete:
                whys = [look.said for look in judged.looks if not look.done]
                self._help += [f"L0 did not see everything: {why}" for why in whys]
        if self._options.secret_size and not self._decided:
            self._parts.append(self._sizes())
        if 1 in self._options.layers and not self._decided:
            self._steps()
        if 2 in self._options.layers and not self._decided:
            self._whole_runs()
        return self._summed_up()

    @property
    def _left(self) -> float:
        return self._options.budget - (time.monotonic() - self._began)

    @property
    def _decided(self) -> bool:
        weights = {finding.weight for part in self._parts for finding in part.findings}
        return Weight.VIOLATION in weights

    def _run(self, asked: Iterator[Asked]) -> Iterator[Seen]:
        """Runs in the order in which they were asked for.

        Which of two ends first may depend on their coins, and no trial may tell its coin so.
        """
        limits = Limits(self._left + _GRACE, self._options.gib)
        order: collections.deque[Asked] = collections.deque()
        arrived: dict[Asked, Seen] = {}
        for seen in self._runner.run(_noted(asked, order), limits):
            self._runs += 1
            self._output = seen.ended.output or self._output
            arrived[seen.asked] = seen
            while order and order[0] in arrived:
                yield arrived.pop(order.popleft())

    def _asked(self, *what: Any, **fields: Any) -> Asked:
        seed = Asked(self._options.seed).derived(*what)
        return Asked(seed, seconds=max(1.0, self._left), **fields)

    def _look(self) -> Seen:
        """The first run: the script as it is, without a canary, its steps looked into."""
        self._tell(f"{self._target}: one run is looked into")
        (seen,) = self._run(iter([self._asked("look", looks=True)]))
        preflight.require_usable(self._target, seen, self._options.budget)
        return seen

    def _sizes(self) -> Judged:
        """The number of records as the secret."""
        self._tell(f"{self._target}: the same with one record more")
        asked = (self._asked("size", n, most_steps=1, one_more=bool(n)) for n in (0, 1))
        seen = sorted(self._run(asked), key=lambda one: one.asked.one_more)
        return size.judge([one.record for one in seen], self._delta)

    def _steps(self) -> None:
        """L1."""
        taken = sum(self._told["steps"])
        if self._noise is None or not taken:
            self._parts.append(_not_done(1, "every step a trial", "no step was accounted"))
            self._help.append("L1 needs an accountant that counts steps, or --delta and noise told")
            return
        needed = canary_trials.steps_needed(self._noise)
        affordable = self._affordable() * taken
        planned = int(min(needed or affordable, max(affordable, taken)))
        layer = self._trials[1] = canary_trials.of_steps(self._noise, max(planned, 10))
        if self._left < _GRACE / 10:
            self._missing(layer, needed, taken)
            return
        self._tell(f"{self._target}: every step a trial, {planned} of them")
        failed: list[Seen] = []
        asked = self._while(
            lambda n: self._asked("steps", n, canary="steps", reseeds=True),
            lambda: not layer.refuted and len(failed) < _FAILED,
            math.ceil(planned / taken),
        )
        compared = False
        for seen in self._run(asked):
            rows = [one for one in seen.record if one["kind"] == "trial"]
            layer.fold([_number(one["score"]) for one in rows], [one["member"] for one in rows])
            if seen.ended.how != "returned":
                failed.append(seen)
                # The step that it ended in: its coin was thrown.
                layer.miss(seen.asked.coin(0.5, "bit", 0, len(rows)))
            elif not compared:
                compared = True
                same = single_run.same_seeds(self._told, _require(seen.told))
                self._parts.append(Judged(tuple(same)))
        if failed:
            self._parts.append(_raised(failed))
        self._missing(layer, needed, taken)

    def _missing(self, layer: canary_trials.Trials, needed: int | None, taken: int) -> None:
        judged = layer.judge(needed)
        self._parts.append(judged)
        if judged.complete or judged.findings:
            return
        if needed is None:
            self._help.append(
                f"L1: steps with a noise multiplier of {self._noise:.3g} hide a canary too well "
                "for 20,000 trials to find 0.7 of the noise; L0 has measured it"
            )
            return
        runs = math.ceil((needed - layer.count) / max(1, taken))
        seconds = runs * self._seconds / self._runner.width
        self._help.append(
            f"L1: {needed} step-trials would find 0.7 of the noise; {runs} more runs, about "
            f"--budget {_time(self._options.budget + seconds)}"
        )

    def _whole_runs(self) -> None:
        """L2."""
        layer = canary_trials.of_runs(self._told["claims"], _MOST_RUN_TRIALS)
        if layer is None:
            self._parts.append(_not_done(2, "runs", "the accountants give no ε"))
            return
        needed = canary_trials.runs_needed(layer.curve)
        affordable = self._affordable()
        if needed > min(affordable, _MOST_RUN_TRIALS):
            seconds = needed * self._seconds / self._runner.width
            why = f"perfect guesses of {needed} runs would refute the claim, and of no fewer"
            if needed <= _MOST_RUN_TRIALS:
                why += f"; --budget {_time(self._options.budget + seconds)} pays for them"
            self._parts.append(_not_done(2, "runs", why))
            return
        layer = canary_trials.of_runs(self._told["claims"], needed)
        assert layer is not None
        self._trials[2] = layer
        self._tell(f"{self._target}: {needed} runs as trials")
        asked = self._while(self._run_trial, lambda: not layer.refuted, needed)
        for seen in self._run(asked):
            rows = [one for one in seen.record if one["kind"] == "trial"]
            if seen.ended.how == "returned" and rows:
                layer.fold([canary_trials.run_score(rows)], [seen.asked.member])
            else:
                layer.miss(seen.asked.member)
        self._parts.append(layer.judge(needed if layer.count >= needed else None))

    def _run_trial(self, number: int) -> Asked:
        asked = self._asked("run", number, canary="run", reseeds=True)
        return dataclasses.replace(asked, member=asked.coin(0.5, "bit of the run"))

    def _while(
        self, make: Callable[[int], Asked], goes_on: Callable[[], bool], most: int
    ) -> Iterator[Asked]:
        """Requests while there is time for another run, and reason."""
        for number in range(most):
            if not goes_on() or self._left < self._seconds:
                return
            yield make(number)

    @property
    def _seconds(self) -> float:
        """Of one run, imports and all, without what looking into it took."""
        seconds = self._first.ended.seconds - self._told["watching"]
        return float(max(0.2, seconds))

    def _affordable(self) -> int:
        return int(max(0.0, self._left) / self._seconds * self._runner.width)

    def _summed_up(self) -> ScriptVerdict:
        found = tuple(finding for part in self._parts for finding in part.findings)
        verdict = Verdict.INCONCLUSIVE
        if self._decided:
            verdict = Verdict.VIOLATION
        elif not self._help and {0, 1} <= set(self._options.layers):
            verdict = Verdict.CONSISTENT
        skipped = {0, 1} - set(self._options.layers)
        help_lines = [*self._help, *(f"L{layer} was left out by --layers" for layer in skipped)]
        counts = [self._trials[n].count if n in self._trials else 0 for n in (1, 2)]
        return ScriptVerdict(
            script=str(self._target),
            verdict=verdict,
            claim=self._claim,
            delta=self._delta,
            accountant=self._accountant,
            findings=found,
            looks=tuple(look for part in self._parts for look in part.looks),
            help=tuple(help_lines) if verdict is Verdict.INCONCLUSIVE else (),
            runs=self._runs,
            step_trials=counts[0],
            run_trials=counts[1],
            seconds=time.monotonic() - self._began,
            output=self._output,
        )


def _noted(asked: Iterator[Asked], order: collections.deque[Asked]) -> Iterator[Asked]:
    for one in asked:
        order.append(one)
        yield one


def _require(told: dict[str, Any] | None) -> dict[str, Any]:
    assert told is not None
    return told


def _not_done(layer: int, name: str, why: str) -> Judged:
    return Judged((), (Look(layer, name, False, why),), complete=False)


def _number(score: Any) -> float:
    return math.nan if score is None else float(score)


def _raised(failed: list[Seen]) -> Judged:
    ended = failed[0].ended
    finding = Finding(
        1, "every step a trial", Weight.WARNING, f"{len(failed)} runs with canaries",
        "runs that end", ended.message, "a step that fails counts as a wrong guess",
    )  # fmt: skip
    return Judged((finding,))


def _time(seconds: float) -> str:
    return f"{math.ceil(seconds / 60)}min" if seconds > 90 else f"{math.ceil(seconds)}s"
