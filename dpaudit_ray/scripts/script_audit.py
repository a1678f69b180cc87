"""`dpaudit audit script.py:main`: layer after layer, cheapest first, while there is no violation.

One run is inspected. Then come runs with a canary in each step with probability ½, each step a
trial, and whole runs as trials, as far as the budget goes: they may find a violation, and bound ε
from below. Each layer has its share of the error.
"""

import contextlib
import functools
import importlib
import math
import os
import re
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from threadpoolctl import threadpool_limits

from .. import __version__
from ..errors import ScriptError, SpecError, plain
from ..isolation import Limits
from ..report.verdict import Verdict
from . import canary_trials, checks, claims, preparation, processor, script_runs
from .canary_trials import CanaryTrials
from .checks import Inspection, PinnedRun, PinnedRuns
from .protocol import Integers, Made, Prepared, RunRequest, RunResult, Trial, entries_of
from .script_findings import LAYERS, AuditedCode, Finding, Judgement, ScriptVerdict
from .script_runs import EndedRun, Runner, Target
from .unchecked import unchecked_in

_SHARE_FOR_RUNS = 0.9  # share of the budget; the rest is for judging the runs
_INSPECTED_SHARE = 0.85  # share of the remaining time, after which the inspected run ends
_PINNED_SHARE = 0.3  # share of the remaining time for each run with pinned releases
# Share of the budget that a run may take beyond its time: it ends only after a step.
_GRACE_SHARE = 0.05
_FEWEST_SECONDS = 3.0  # least grace of a run, and least time in which another step trial begins
_MOST_EXTENDED = 3.0  # times the budget that an audit may take if runs wait for a processor
_MOST_FAILURES = 3  # failed runs with canaries after which no more are tried
_MOST_RUN_TRIALS = 400
_UNITS = {"s": 1, "min": 60, "h": 3600, "d": 86400}


def parse_duration(text: str) -> float:
    """Parses `90s`, `10min`, `1.5h` or `2d` as seconds. Raises SpecError for anything else."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?(s|min|h|d)", text.strip())
    seconds = float(match[1]) * _UNITS[match[2]] if match else 0.0
    if not 0 < seconds < math.inf:
        raise SpecError("--budget", f"is {text!r}; write a time as 90s, 10min, 1.5h or 2d")
    return seconds


@dataclass(frozen=True)
class Options:
    """Limits and choices of an audit.

    Attributes:
        budget: seconds for the whole audit.
        layers: 0 run inspection, 1 step test, 2 run test.
        gib: limit on the memory of a run.
        seed: seed of all random choices.
        secret_size: the number of records is secret, too.
        silenced: codes of findings that do not count, each with the user's reason.
    """

    budget: float = 600.0
    layers: tuple[int, ...] = (0, 1, 2)
    gib: float | None = None
    seed: int = 0
    secret_size: bool = False
    silenced: Mapping[str, str] = field(default_factory=dict, hash=False)


class Audit:
    """Audit of one script; `verdict` runs it, and reports to `progress` what it does."""

    def __init__(
        self, target: Target, runner: Runner, options: Options, progress: Callable[[str], None]
    ) -> None:
        """Begins the audit's time.

        Args:
            target: the script.
            runner: runs the script; `verdict` closes the runner.
            options: limits and choices.
            progress: function that is called with each phase and its progress, in words.
        """
        self._target = target
        self._runner = runner
        self._options = options
        self._progress = progress
        self._began = time.monotonic()
        self._runs = 0  # runs that have ended
        self._waited = 0.0  # seconds that ended runs waited for a processor
        # Seconds that this process waited for a processor before the audit.
        self._already_waited = processor.waited()
        self._output = ""  # last lines that a run printed
        self._answers: dict[str, float] = {}  # ε by a digest of the question to an accountant
        self._judgement = Judgement()
        self._remedies: list[str] = []  # what a user can change for a conclusive verdict
        self._trials: dict[int, CanaryTrials] = {}  # trials by layer
        self._failed: list[EndedRun] = []  # failed runs with canaries in steps

    def verdict(self) -> ScriptVerdict:
        """Runs the layers until one decides; returns the verdict.

        Raises:
            ScriptError: the script cannot be audited as it is.
        """
        # Threads of BLAS spin while they wait for each other, so on busy cores several threads
        # would take ten times as long as one.
        with contextlib.closing(self._runner), threadpool_limits(1, "blas"):
            self._inspect()
            for layer, run_test in {1: self._try_steps, 2: self._try_runs}.items():
                if layer in self._options.layers and not self._violations:
                    run_test()
            return self._sum_up()

    def _inspect(self) -> None:
        """Inspects one run, and compares it with other runs until there is a violation."""
        self._progress("inspecting one run")
        # Judging the run needs this module, whose import takes seconds: it is loaded meanwhile.
        import_analysis = functools.partial(
            importlib.import_module, "opacus.accountants.analysis.rdp"
        )
        threading.Thread(target=import_analysis, daemon=True).start()
        first = self._run_once("look", share=_INSPECTED_SHARE, inspects=True)
        target = self._target
        result = script_runs.require_usable(target, first, self._options.budget)
        self._result = result
        self._answers = result.answers
        # The time that one run takes, with its imports and without its inspection.
        self._seconds = max(0.2, first.ended.seconds - result.inspecting)
        self._noise = _least_noise(first)
        self._delta = target.delta or result.marks.delta or 0.0
        promised = target.epsilon or result.marks.epsilon
        self._state_claim(promised, first)
        if 0 not in self._options.layers:
            return
        inspection = Inspection(
            record=first.record, result=result, delta=self._delta, promised=promised
        )
        self._judgement = checks.judge(inspection)
        for add_runs in (
            self._with_second_run,
            self._with_pinned_runs,
            self._with_preparation,
            self._with_one_more_record,
        ):
            if not self._violations:
                inspection = add_runs(inspection)
                self._judgement = checks.judge(inspection)
        for check in self._judgement.looks:
            if check.applies and not check.done:
                self._remedies.append(f"{check.name}: {check.said}")
        if math.isnan(self._claim) and self._judgement.complete:
            self._remedies.append(
                "no accountant states ε; state it with @audited(delta, epsilon=...)"
            )

    def _state_claim(self, promised: float | None, first: EndedRun) -> None:
        """Sets ε of the claim, who states it, and the ε that the accounted steps compose to.

        Args:
            promised: ε that the user states; None if the script or its accountants are to state it.
            first: the inspected run. If it ended early, accountants counted too few steps.
        """
        is_cut = bool(checks.why_cut(first.record))
        self._composed = math.nan
        if not is_cut:
            self._composed = claims.composed(self._result, self._delta)
        if promised is not None:
            self._claim = promised
            self._accountant = "stated by you"
            return
        target = claims.only_target(entries_of(first.record, Made), self._result)
        if target is not None:
            self._claim = target
            self._accountant = "the target that the script chose its noise for"
            return
        self._accountant = claims.stated_by(self._result, self._delta)
        self._claim = math.nan if is_cut else claims.stated(self._result, self._delta)

    def _with_second_run(self, inspection: Inspection) -> Inspection:
        """Adds the first step of a run with another seed, if the script seeds generators."""
        if not (inspection.result.noise_seeds or inspection.result.seeded):
            return inspection
        self._progress("comparing the seeds of a second run")
        return replace(inspection, reseeded=self._run_once("seeds", most_steps=1).result)

    def _with_pinned_runs(self, inspection: Inspection) -> Inspection:
        """Adds runs with pinned releases, if releases can be pinned.

        There are as many as are needed to find a difference and to explain it.
        """
        result = inspection.result
        if not (inspection.uses_opacus or result.chosen is not None):
            return inspection
        self._progress("repeating the run with pinned releases")
        runs = {}
        missing = ""
        try:
            for name, run in self._pinned_runs(inspection):
                runs[name] = run
        except ScriptError as error:  # the runs before the error count
            missing = str(error)
        return replace(inspection, pinned=PinnedRuns(**runs, missing=missing))

    def _pinned_runs(self, inspection: Inspection) -> Iterator[tuple[str, PinnedRun]]:
        """Runs the script with pinned releases: unchanged, with other noise, with other records.

        Once a run with other records differs from the unchanged one, two more runs show whether
        other noise in the same steps, or other random numbers, would explain the difference. Then
        the comparison ends.

        Args:
            inspection: inspection of the script, which decides which records are exchanged.

        Yields:
            Each run with its name in `PinnedRuns`. A later run of a name replaces an earlier one.
        """
        unchanged = self._pinned_run("unchanged")
        yield "unchanged", unchanged
        yield "other_noise", self._pinned_run("other_noise", unchanged.result.chosen)
        # Index of the record that is exchanged, by the kind of the run; None for several.
        records = {"exchanged": unchanged.result.chosen}
        if inspection.uses_opacus:
            records["varied"] = None  # a record of each batch
        # A loop's clipping bounds are unknown.
        has_bounds = inspection.uses_opacus and len({step.bound for step in unchanged.steps}) <= 1
        result = inspection.result
        if _publishes_more(result) or not has_bounds:
            records["halved"] = None  # every other record
        # Records that are used before training is private are exchanged in the tables themselves.
        uses_records_early = result.had_early_records or result.other_networks
        tables = unchanged.result.tables if uses_records_early else ()
        for kind, record in records.items():
            changed = self._pinned_run(kind, record, tables=tables)
            # Only the unchanged run states why the record was chosen.
            exchanged = "every other record" if kind == "halved" else unchanged.record
            changed = replace(changed, record=exchanged)
            yield kind, changed
            if checks.differences(unchanged, changed):
                yield "exchanged", changed
                yield "other_noise", self._pinned_run("other_noise", record)
                yield "other_randomness", self._pinned_run("other_randomness", record)
                return

    def _with_preparation(self, inspection: Inspection) -> Inspection:
        """Adds runs with changed rows, which end before training, if records were summarised.

        If the rows are private records, and more than parameters is published, one more run trains
        with these rows changed, and pinned releases. Published values that differ are settings
        which the rows decide.
        """
        unchanged = inspection.pinned.unchanged if inspection.pinned else None
        if unchanged is None or unchanged.prepared is None or not unchanged.prepared.records:
            return inspection
        self._progress("repeating the preparation with other records")
        runs = preparation.follow(unchanged.prepared, self._prepare_with_changed_rows)
        if runs is not None and runs.targets and _publishes_more(inspection.result):
            with contextlib.suppress(ScriptError):  # the run may take too long
                run = self._pinned_run("followed", arrays=runs.arrays, targets=runs.targets)
                names = {item.name for item in checks.differences(unchanged, run)}
                # A difference in a step has no name.
                runs = replace(runs, settings_changed=tuple(sorted(names - {""})))
        return replace(inspection, preparation=runs)

    def _prepare_with_changed_rows(
        self,
        arrays: Sequence[str],
        targets: Integers,
        sources: Integers,
    ) -> Prepared | None:
        """Runs the preparation with changed rows of arrays; returns its outcome, None if it fails.

        Args:
            arrays: digests of the arrays.
            targets: indices of the rows that change; empty for rows with the extremes of columns.
            sources: indices of the rows whose values these get; empty for the row in the middle.
        """
        run = self._run_once(
            "pinned",
            share=_PINNED_SHARE,
            pinned="unchanged",
            follows=True,
            arrays=tuple(arrays),
            targets=targets,
            sources=sources,
        )
        return next(iter(entries_of(run.record, Prepared)), None)

    def _pinned_run(
        self,
        kind: Any,
        record: int | None = None,
        **fields: Any,
    ) -> PinnedRun:
        """Runs the script once with pinned releases.

        Args:
            kind: a value of `RunRequest.pinned`.
            record: index of the record that the run is about; None for a record of each batch.
            fields: further fields of the request.

        Raises:
            ScriptError: the run took too long, failed, or chose no record to exchange.
        """
        run = self._run_once(
            "pinned",
            share=_PINNED_SHARE,
            pinned=kind,
            record=record,
            follows=kind in ("unchanged", "followed"),
            **fields,
        )
        if run.ended.how == "hung":
            raise ScriptError("the run with pinned releases took too long; give a larger --budget")
        if run.result is None:
            raise ScriptError(f"the run with pinned releases failed: {run.ended.message}")
        if run.result.chosen is None and kind == "unchanged":
            raise ScriptError("no draw of four records or more was observed")
        return PinnedRun.from_record(run.result, run.record)

    def _with_one_more_record(self, inspection: Inspection) -> Inspection:
        """Adds a run with an additional record, up to its first step, if the number is secret."""
        if not self._options.secret_size:
            return inspection
        self._progress("repeating the first step with one more record")
        larger = self._run_once("size", most_steps=1, one_more=True)
        return replace(inspection, larger=larger.record)

    @property
    def _seconds_left(self) -> float:
        """Seconds that remain of the budget.

        On a busy machine, time in which runs waited for a processor does not count, up to
        _MOST_EXTENDED times the budget.
        """
        budget = self._options.budget
        # Up to `width` runs wait at the same time.
        waited = self._waited / self._runner.width + processor.waited() - self._already_waited
        extension = min(waited, (_MOST_EXTENDED - 1) * budget)
        return _SHARE_FOR_RUNS * budget + extension - (time.monotonic() - self._began)

    @property
    def _affordable_runs(self) -> int:
        """Number of runs for which there is time."""
        return int(max(0.0, self._seconds_left) / self._seconds * self._runner.width)

    @property
    def _violations(self) -> list[Finding]:
        """Findings that decide the verdict, without silenced ones."""
        violations = self._judgement.violations
        return [item for item in violations if item.code not in self._options.silenced]

    def _run(self, requests: Iterator[RunRequest]) -> Iterator[EndedRun]:
        """Yields ended runs in the order of their requests, and counts them and their waits."""
        # Seconds that a run may take beyond its time. On a busy machine it may wait as well.
        grace = max(_FEWEST_SECONDS, _GRACE_SHARE * self._options.budget)
        grace += (_slowdown() - 1) * self._seconds_left
        for run in self._runner.run(requests, Limits(grace, self._options.gib)):
            self._runs += 1
            self._output = run.ended.output or self._output
            self._waited += run.result.waited if run.result else 0.0
            yield run

    def _run_once(self, *label: Any, **fields: Any) -> EndedRun:
        """Runs the script once; takes the arguments of `_request`."""
        (run,) = self._run(iter([self._request(*label, **fields)]))
        return run

    def _request(self, *label: Any, share: float = 1.0, **fields: Any) -> RunRequest:
        """Returns the request for a run.

        Args:
            label: texts and numbers from which the run's seed is derived.
            share: share of the remaining time that the run may take.
            fields: further fields of the request.
        """
        seed = RunRequest(seed=self._options.seed).derived(*label)
        seconds = max(1.0, share * self._seconds_left)
        return RunRequest(seed=seed, seconds=seconds, answers=self._answers, **fields)

    def _canary_runs(
        self,
        trials: CanaryTrials,
        make_request: Callable[[int], RunRequest],
        most_runs: int,
        least_seconds: float,
    ) -> Iterator[EndedRun]:
        """Yields up to `most_runs` runs with canaries, while time remains and trials may decide.

        Args:
            trials: the layer's trials, to which the caller adds each run before it takes the next.
            make_request: makes the request of the run with this number.
            most_runs: number of runs at most.
            least_seconds: time that must remain for another run.
        """
        phase = {1: "testing steps", 2: "testing whole runs"}[trials.layer]

        def requests() -> Iterator[RunRequest]:
            """Yields requests until the claim is refuted, runs fail, or too little time is left."""
            for run_number in range(most_runs):
                if (
                    trials.refuted
                    or len(self._failed) >= _MOST_FAILURES
                    or self._seconds_left < least_seconds
                ):
                    return
                yield make_request(run_number)

        self._progress(f"{phase}: 0 of {trials.planned} trials")
        for run in self._run(requests()):
            yield run
            counted = min(trials.count, trials.planned)  # a run may have more steps than needed
            self._progress(f"{phase}: {counted} of {trials.planned} trials")

    def _budget_for(self, runs: int) -> str:
        """Returns the budget that allows this number of further runs, as `--budget` takes it."""
        seconds = self._options.budget + runs * self._seconds / self._runner.width
        return f"{math.ceil(seconds / 60)}min" if seconds > 90 else f"{math.ceil(seconds)}s"

    def _try_steps(self) -> None:
        """Runs the step test, in which each step is a trial."""
        steps_taken = sum(self._result.steps)
        if self._noise is None or not steps_taken:
            self._note_not_done(1, "no step was accounted")
            self._remedies.append("the step test needs an accountant that counts steps")
            return
        needed = canary_trials.steps_needed(self._noise)
        affordable = max(self._affordable_runs, 1) * steps_taken
        planned = min(needed or affordable, affordable)
        step_trials = canary_trials.step_trials(self._noise, max(planned, 10))
        self._trials[1] = step_trials

        def make_request(number: int) -> RunRequest:
            """Requests a run whose steps have canaries, with other coins than other runs."""
            return self._request("steps", number, canary="steps", reseeds=True)

        most_runs = math.ceil(planned / steps_taken)
        # The record of a run that was cut has the steps that ended before.
        for run in self._canary_runs(step_trials, make_request, most_runs, _FEWEST_SECONDS):
            trials = entries_of(run.record, Trial)
            step_trials.fold([trial.score for trial in trials], [trial.member for trial in trials])
            if run.ended.how != "returned":
                # The step in which the run ended counts as a wrong guess: its coin was thrown.
                step_trials.miss(run.request.coin(0.5, "bit", 0, len(trials)))
                if run.ended.how != "hung" or self._seconds_left > 0:
                    self._failed.append(run)
        if self._failed:
            where = f"{len(self._failed)} runs with canaries"
            observed = self._failed[0].ended.message
            self._judgement.add(Judgement(1).find("failed", where, observed=observed))
        judgement = step_trials.judge(needed)
        self._judgement.add(judgement)
        if judgement.complete or judgement.findings or self._judgement.enough:
            return
        remedy = f"20,000 steps cannot detect 0.7 of a noise multiplier of {self._noise:.3g}"
        if needed is not None:
            runs = math.ceil((needed - step_trials.count) / steps_taken)
            remedy = f"{needed} step trials would detect 0.7 of the noise; {runs} more runs, about "
            remedy += f"--budget {self._budget_for(runs)}"
        self._remedies.append(f"step test: {remedy}")

    def _try_runs(self) -> None:
        """Runs the run test, in which each whole run is a trial."""
        run_trials = canary_trials.run_trials(self._result.claims, _MOST_RUN_TRIALS)
        if run_trials is None:
            self._note_not_done(2, "the accountants give no ε")
            return
        needed = canary_trials.runs_needed(run_trials.curve)
        if needed > min(self._affordable_runs, _MOST_RUN_TRIALS):
            why = f"this claim needs at least {needed} runs"
            if needed <= _MOST_RUN_TRIALS:
                why += f"; allow them with --budget {self._budget_for(needed)}"
            self._note_not_done(2, why)
            return
        self._failed = []  # failures of the step test do not count here
        run_trials = replace(run_trials, planned=needed)
        self._trials[2] = run_trials

        def make_request(number: int) -> RunRequest:
            """Requests a run that has a canary or not, by a coin."""
            request = self._request("run", number, canary="run", reseeds=True)
            return replace(request, member=request.coin(0.5, "bit of the run"))

        for run in self._canary_runs(run_trials, make_request, needed, self._seconds):
            trials = entries_of(run.record, Trial)
            if run.ended.how == "returned" and trials:
                run_trials.fold([canary_trials.run_score(trials)], [run.request.member])
            else:
                run_trials.miss(run.request.member)
        # With fewer trials than are needed, the test is not powerful.
        self._judgement.add(run_trials.judge(needed if run_trials.count >= needed else None))

    def _note_not_done(self, layer: int, why: str) -> None:
        """Notes why the trials of a layer were not done."""
        self._judgement.add(Judgement(layer, canary_trials.NAMES[layer]).miss(why))

    def _sum_up(self) -> ScriptVerdict:
        """Returns the verdict of all layers that ran.

        Without a violation it is inconclusive if there is something that the user can change for a
        conclusive one (`_remedies`).
        """
        judgement = self._judgement
        # Layer 1, the step test, may be left out only if layer 0, the inspected run, shows enough.
        needed_layers = {0} if judgement.enough else {0, 1}
        for layer in sorted(needed_layers - set(self._options.layers)):
            self._remedies.append(f"the {LAYERS[layer]} (layer {layer}) was excluded by --layers")
        verdict = Verdict.INCONCLUSIVE if self._remedies else Verdict.CONSISTENT
        if self._violations:
            verdict = Verdict.VIOLATION
        measured = []
        trial_counts = {1: 0, 2: 0}  # by layer: single steps, whole runs
        for layer, trials in self._trials.items():
            trial_counts[layer] = trials.count
            bound = trials.measured(self._claim, self._delta) if trials.count else None
            if bound is not None:
                measured.append(bound)
        follows_preparation = any(
            outcome.name == "preparation" and outcome.applies for outcome in judgement.looks
        )
        silenced_reasons = self._options.silenced
        findings = (
            replace(item, silenced=silenced_reasons.get(item.code, ""))
            for item in judgement.findings
        )
        return ScriptVerdict(
            script=str(self._target),
            verdict=verdict,
            claim=self._claim,
            delta=self._delta,
            accountant=self._accountant,
            findings=tuple(findings),
            looks=tuple(judgement.looks),
            help=tuple(self._remedies) if verdict is Verdict.INCONCLUSIVE else (),
            runs=self._runs,
            step_trials=trial_counts[1],
            run_trials=trial_counts[2],
            seconds=time.monotonic() - self._began,
            output=self._output,
            measured=tuple(measured),
            sentence=judgement.sentence,
            composed=self._composed,
            ratios=judgement.ratios,
            unchecked=unchecked_in(self._target.script, self._result, follows_preparation),
            waited=self._waited,
            code=self._code(),
        )

    def _code(self) -> AuditedCode:
        """Returns the identity of the audited code, with the command that audits it again."""
        options = self._options
        script = self._target.script.name
        if self._target.function:
            script += f":{self._target.function}"
        command = ["dpaudit", "audit", script, "--seed", str(options.seed)]
        command += ["--delta", plain(self._delta), "--budget", f"{options.budget:.0f}s"]
        command += ["--layers", ",".join(map(str, options.layers))]
        if options.secret_size:
            command.append("--secret-size")
        for code, reason in options.silenced.items():
            command += ["--ignore", f"{code}={reason}"]
        if self._target.arguments:
            command += ["--", *self._target.arguments]
        return AuditedCode(
            command=shlex.join(command),
            seed=options.seed,
            sources=self._result.sources,
            versions={"dpaudit": __version__} | self._result.versions,
        )


def _publishes_more(result: RunResult) -> bool:
    """Returns whether more is published than private parameters."""
    return result.publishes_more or bool({"tensors", "earlier"} & result.leftovers.keys())


def _slowdown() -> float:
    """Returns how many times as long a process takes on this machine as it would without load."""
    processes_per_core = os.getloadavg()[0] / (os.cpu_count() or 1)
    return min(max(processes_per_core, 1.0), _MOST_EXTENDED)


def _least_noise(run: EndedRun) -> float | None:
    """Returns the least noise multiplier that was accounted; None without any above 0.

    The claim of a step test is that each step has at least this noise.
    """
    if run.result is None:
        return None
    multipliers = [noise for noise, _, _ in claims.events_of(run.result)]
    multipliers = multipliers or [entry.noise for entry in entries_of(run.record, Made)]
    return min((noise for noise in multipliers if noise > 0), default=None)
