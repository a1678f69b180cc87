"""What runs with pinned releases show: made-up runs of a step for each letter."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest

from dpaudit_ray.isolation import Ended, Limits
from dpaudit_ray.scripts import checks
from dpaudit_ray.scripts.checks import Inspection, PinnedRun, PinnedRuns
from dpaudit_ray.scripts.protocol import Cut, Entry, PinnedStep, RunRequest, RunResult
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_findings import Finding, Judgement, Weight
from dpaudit_ray.scripts.script_runs import EndedRun, Target
from tests.scripts.conftest import ZOO
from tests.scripts.made_up import DELTA, left, result

ROWS = (1.0, 2.0, 3.0)


def run(
    releases: str, rows: tuple[float, ...] = ROWS, updates: str = "", **fields: Any
) -> PinnedRun:
    """A run whose first step has the record."""
    steps = [
        PinnedStep(
            member=not number,
            release=(letter,),
            update=tuple(updates[number : number + 1]),
            rows=() if number else rows,
            drawn=3,
            line=f"train.py:{number + 1}",
        )
        for number, letter in enumerate(releases)
    ]
    cut = fields.pop("cut", "")
    name = fields.pop("record", "record 7")
    return PinnedRun(result=RunResult(**fields), steps=tuple(steps), record=name, cut=cut)


def published(mean: str, given: str) -> tuple[tuple[str, str], ...]:
    return (("mean", mean), ("what X is given", given))


def judge(*runs: PinnedRun, **fields: Any) -> Judgement:
    names = ("unchanged", "exchanged", "other_noise", "other_randomness")
    pinned = PinnedRuns(**dict(zip(names, runs, strict=False)), **fields)
    inspection = Inspection(record=[], result=result(), delta=DELTA, pinned=pinned)
    return checks.pinned_releases.PinnedReleases().judge(inspection)


def findings(*runs: PinnedRun) -> list[Finding]:
    return judge(*runs).findings


@pytest.mark.parametrize(
    ("other", "check", "words"),
    [
        (run("xbc"), "", ""),  # the step that has it may release something else
        (run("abd"), "state", "1 of 2 steps without the record"),
        (run("abc", (1.0, 5.0, 3.0)), "", ""),  # its own gradient
        (run("abc", (1.1, 2.1, 3.1)), "records apart", "3 of 3 gradients changed"),
        (run("abc", published=published("2", "1")), "release", "mean, which changed with another"),
        (run("abc", published=published("1", "2")), "updates", "what X is given, which changed"),
        (run("ab", published=published("1", "1")), "updates", "what ends training, which changed"),
        (run("abc", updates="xbd"), "updates", "changed 2 of 3 updates"),
    ],
)
def test_what_another_record_changes(other, check, words):
    first = run("abc", updates="abc" if "updates" in words else "", published=published("1", "1"))
    found = findings(first, other, first)
    assert [item.look for item in found] == ([check] if check else [])
    assert all(item.weight is Weight.VIOLATION for item in found)
    assert all(words in item.seen for item in found)
    # What other noise changes as well is hidden by it; and maybe what other random numbers do.
    assert not findings(first, other, other)
    if check and check != "records apart":
        judgement = judge(first, other, first, other)
        assert not judgement.findings
        assert "whether noise outside of steps hides" in judgement.looks[0].said
        assert not judgement.complete


def test_the_exchanged_record_and_the_line_are_named():
    first = run("abc")
    (one,) = findings(first, run("abc", (1.1, 2.1, 3.1), record="record 7 (the longest)"))
    assert one.where == "step 1 (train.py:1)"
    assert one.seen.startswith("3 of 3 gradients changed")
    assert "another record in place of record 7 (the longest)" in one.seen
    (check,) = judge(first, first, varied=first).looks
    assert check.said.endswith("record 7, and with one of each batch exchanged or left out")


@pytest.mark.parametrize(
    ("rows", "count"),
    [((1.0, 3.0), 0), ((1.1, 3.0), 1), ((1.1, 3.3), 2), ((1.0,), 0), (ROWS, 0)],
)
def test_a_record_that_is_left_out_changes_no_other_gradient(rows, count):
    """Of three gradients the second is the record's own; other numbers of rows are not compared."""
    first = run("abc")
    steps = [
        dataclasses.replace(step, missing=1, change="leaving out record 7")
        for step in run("xbc", rows).steps
    ]
    other = dataclasses.replace(first, steps=tuple(steps))
    found = findings(first, other, first)
    assert len(found) == (count > 0)
    for item in found:
        assert (
            f"{count} of 2 gradients changed (3 records sampled): leaving out record 7" == item.seen
        )


def longer(first: PinnedRun, factor: float, state: str = "") -> PinnedRun:
    """The run, with a second step whose release of 400 numbers has another length."""
    measured = dataclasses.replace(
        first.steps[1], length=factor, numbers=400, rounding=1.2e-7, state=state
    )
    return dataclasses.replace(first, steps=(first.steps[0], measured, *first.steps[2:]))


@pytest.mark.parametrize(
    ("by_record", "by_noise", "is_kept"),
    [
        (1.0, 1.2, True),
        (1.0 + 1e-8, 1.2, True),  # that is rounding
        (1.001, 1.2, False),  # what an earlier step released, with its noise
        (1.0, 1.0 + 1e-8, False),
    ],
)
def test_noise_that_comes_again_without_its_record_is_correlated(by_record, by_noise, is_kept):
    first = run("abc")
    found = findings(longer(first, 1.0), longer(first, by_record), longer(first, by_noise))
    assert [(item.code, item.where) for item in found] == [("DPA069", "later steps")] * is_kept


def test_noise_may_set_the_next_clipping_bound():
    first = run("abc")
    bounded = longer(first, 1.2, state="another bound")
    assert not findings(longer(first, 1.0), longer(first, 1.0), bounded)


def test_gradients_are_compared_at_equal_parameters_only():
    """A noisy count of records may set the clipping bound, and so all later parameters."""
    first = run("abc")
    (step, *later) = run("abc", (1.1, 2.1, 3.1)).steps
    other = dataclasses.replace(first, steps=(dataclasses.replace(step, state="x"), *later))
    assert not findings(first, other, first)


@pytest.mark.parametrize("given", ["1", "2"])
def test_a_run_that_is_cut_is_compared_as_far_as_it_goes(given):
    """And it is not complete: what is returned was not compared."""
    whole = run("abc", published=(("what X is given", "1"), ("mean", "1")))
    other = run("ab", published=(("what X is given", given),), cut="the budget ended the run")
    judgement = judge(whole, other)
    assert [item.look for item in judgement.findings] == (["updates"] if given == "2" else [])
    assert "not compared" in judgement.looks[0].said
    assert not judgement.complete


class Runner:
    """Ends every run in the same way."""

    width = 1

    def __init__(self, ended: Ended, returned: RunResult | None = None, *entries: Entry) -> None:
        self.ended = ended
        self.returned = returned
        self.entries = entries
        self.requests: list[RunRequest] = []

    def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
        for request in requests:
            self.requests.append(request)
            yield EndedRun(request, self.ended, self.entries, self.returned)


def pinned_check(runner: Runner, **fields: Any) -> Judgement:
    """Runs pinned releases for a script; by default, with a tensor that nothing explains."""
    audit = Audit(Target(ZOO / "healthy.py", "mlp"), runner, Options(), lambda _: None)
    fields = fields or {"leftovers": left(tensors=("mean",))}
    inspection = Inspection(record=[], result=result(**fields), delta=DELTA)
    audit._judgement = checks.judge(inspection)
    inspection = audit._with_pinned_runs(inspection)
    return checks.pinned_releases.PinnedReleases().judge(inspection)


def test_steps_that_a_pinned_run_is_about():
    requests = {
        kind: RunRequest(seed=0, pinned=kind) for kind in ("unchanged", "varied", "other_noise")
    }
    assert [requests[kind].is_about([1, 2]) for kind in requests] == [False, True, True]
    about = dataclasses.replace(requests["other_noise"], record=3)
    assert about.is_about([1, 3])
    assert not about.is_about([1, 2])


@pytest.mark.parametrize("how", ["hung", "raised"])
def test_a_pinned_run_that_fails_or_takes_too_long_is_not_complete(how):
    judgement = pinned_check(Runner(Ended(how, None, "ValueError: no", "", "", 1.0)))
    assert not judgement.complete
    (check,) = judgement.looks
    words = {"hung": "give a larger --budget", "raised": "failed: ValueError: no"}
    assert words[how] in check.said


def test_a_run_without_a_draw_of_four_records_is_not_complete():
    judgement = pinned_check(Runner(Ended("returned"), RunResult()))
    assert "no draw of four records" in judgement.looks[0].said
    assert not judgement.complete


def test_pinned_runs_that_differ_in_nothing():
    """A record of each batch, and half of all are exchanged: they may be in the tensor."""
    chosen = RunResult(chosen=3, chosen_as="the longest")
    runner = Runner(Ended("returned"), chosen)
    judgement = pinned_check(runner)
    assert judgement.complete
    assert "record 3 (the longest), and with one of each batch" in judgement.looks[0].said
    kinds = [(request.pinned, request.record) for request in runner.requests]
    first, *others = kinds
    assert first == ("unchanged", None)
    assert others == [("other_noise", 3), ("exchanged", 3), ("varied", None), ("halved", None)]


@pytest.mark.parametrize("more", [False, True])
def test_values_beside_networks_are_compared_with_other_data(more):
    runner = Runner(Ended("returned"), RunResult(chosen=3))
    pinned_check(runner, publishes_more=more)
    assert ("halved" in [request.pinned for request in runner.requests]) == more


def test_pinned_runs_that_differ_are_explained_by_two_more():
    class Differs(Runner):
        """Publishes another value if a record of each batch is exchanged."""

        def run(self, requests: Iterator[RunRequest], limits: Limits) -> Iterator[EndedRun]:
            for run in super().run(requests, limits):
                value = (("mean", "2" if run.request.pinned == "varied" else "1"),)
                changed = dataclasses.replace(self.returned, published=value)
                yield dataclasses.replace(run, result=changed)

    runner = Differs(Ended("returned"), RunResult(chosen=3))
    (one,) = pinned_check(runner).findings
    assert one.code == "DPA034"
    kinds = [(request.pinned, request.record) for request in runner.requests[3:]]
    assert kinds == [("varied", None), ("other_noise", None), ("other_randomness", None)]


UNEXPLAINED = {
    "tensors": ({"leftovers": left(tensors=("mean",))}, "release"),
}


@pytest.mark.parametrize("kind", UNEXPLAINED)
def test_pinned_runs_that_end_alike_acquit(kind):
    """In both, all that is published is the same, though a record of each batch is another one."""
    fields, check = UNEXPLAINED[kind]
    same = run("abc", published=(("mean", "1"),))

    def outcome(**runs: PinnedRun) -> tuple[bool, list[str]]:
        pinned = PinnedRuns(**{"unchanged": same, "exchanged": same} | runs)
        inspection = Inspection(record=[], result=result(**fields), delta=DELTA, pinned=pinned)
        judgement = checks.judge(inspection)
        (done,) = [item.done for item in judgement.looks if item.name == check]
        return done, [item.code for item in judgement.findings if item.look == check]

    assert outcome(varied=same) == (True, [])
    open_checks = {
        "without such a run": {},
        "another value": {"varied": run("abc", published=(("mean", "2"),))},
        "cut": {"varied": dataclasses.replace(same, cut="the budget ended the run")},
        "fewer steps": {"varied": run("ab", published=(("mean", "1"),))},
    }
    for runs in open_checks.values():
        done, codes = outcome(**runs)
        assert not done
        assert len(codes) == 1


def test_an_earlier_step_may_be_chosen_by_records_that_change_nothing():
    """One record seldom changes which epoch is best."""
    same = run("abc")
    pinned = PinnedRuns(unchanged=same, exchanged=same, varied=same)
    chosen = result(leftovers=left(earlier=("w of step 3 of 9",)))
    inspection = Inspection(record=[], result=chosen, delta=DELTA, pinned=pinned)
    assert "DPA041" in {item.code for item in checks.judge(inspection).findings}


def test_a_run_is_read_from_its_record():
    step = PinnedStep(member=True, release=("a",))
    entries = [step, Cut(steps=4)]
    longest = RunResult(chosen=7, chosen_as="the longest record")
    read = PinnedRun.from_record(longest, entries)
    assert read.steps == (step,)
    assert "after step 4" in read.cut
    assert read.record == "record 7 (the longest record)"


@pytest.mark.parametrize("waited", [0.0, 30.0, 1e6])
def test_time_without_a_processor_extends_a_budget_at_most_threefold(waited):
    runner = Runner(Ended("returned"), RunResult(waited=waited))
    audit = Audit(Target(ZOO / "healthy.py", "mlp"), runner, Options(budget=100), lambda _: None)
    before = audit._seconds_left
    list(audit._run(iter([RunRequest(seed=0)])))
    assert audit._seconds_left - before == pytest.approx(min(waited, 200.0), abs=5.0)
