"""What is judged of one run looked into: made-up entries and draws, as `watch` writes them."""

import gc
import math
import re

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from dpaudit_ray.opacus import audited, marks_of
from dpaudit_ray.scripts import single_run
from dpaudit_ray.scripts.script_findings import Finding, Judgement, Weight
from dpaudit_ray.scripts.watch.opacus_engine import (
    digests_of_all_networks,
    named_tensors,
    repeat_forward,
)
from dpaudit_ray.scripts.watch.run_state import draw_counts
from dpaudit_ray.scripts.watch.step_probe import digest

CLAIM = {"name": "prv", "history": [[1.0, 1.0, 100]], "epsilons": [1.0], "deltas": [1e-5]}
LEFT: dict[str, list[str]] = {"gradients": [], "examples": []}
TOLD = {"made": 1, "steps": [100], "claims": [CLAIM], "left": LEFT} | {
    key: [] for key in ("draws", "unused", "outside", "seeded")
}
APART = {"kind": "forward", "mixes": False, "by": 0.0, "buffers": [], "batch": 8, "carried": []}


def counted(steps: int) -> dict:
    return {"claims": [CLAIM | {"history": [[1.0, 0.5, steps]]}]}


def entry(noise: float = 1.0, size: int = 100_000, seed: int = 0, **more: object) -> dict:
    """A step of one tensor whose noise has this standard deviation; the promise is 1."""
    rng = np.random.default_rng(seed)
    draws = int(np.clip(-(-20_000 // size), 4, 64))
    square = noise**2 * rng.chisquare((draws - 1) * size)
    shift = {"what": "a gradient just within the clipping bound", "squares": [0.998, 0.0]}
    step = {"kind": "look", "optimizer": 0, "step": 0, "names": ["weight"], "sizes": [size, 1]}
    step |= {"replays": True, "draws": draws, "squares": [square, 0.0], "ghost": False}
    step |= {"norms": [float(size), 0.0], "pairs": [], "shifts": [shift], "empty": [0.0, 0.0]}
    return step | more


def found(*entries: dict, **told: object) -> list[Finding]:
    return list(single_run.judge(list(entries), TOLD | told, 1e-5).findings)


def kinds(*entries: dict, **told: object) -> set[str]:
    return {one.look for one in found(*entries, **told) if one.weight is Weight.VIOLATION}


@pytest.mark.parametrize("seed", range(20))
def test_short_noise_is_found_and_noise_short_by_half_a_percent_is_let_pass(seed):
    """2 % of 300,000 numbers are four deviations: missed with other seeds once in 20,000.

    An alarm has a chance of 0.002 at most for true noise. 640 or 19,000 numbers tell it to 3 % or
    0.5 %; half the noise is found in any case.
    """
    assert kinds(entry(0.98, seed=seed)) == {"noise"}
    for size in (10, 1000, 100_000):
        assert kinds(entry(0.995, size=size, seed=seed)) == set()
        assert kinds(entry(0.5, size=size)) == {"noise"}
    assert kinds(entry(0.98, size=10)) == kinds(entry(0.98, size=1000)) == set()


@pytest.mark.parametrize("size", [10, 1000, 100_000])
def test_noise_that_is_said_to_be_found_is_found(size):
    """With a chance of 19 in 20 or more: fewer than 33 of 40 come once in 500 such tests."""
    judged = single_run.judge([entry(size=size, seed=100)], TOLD | {"steps": [1]}, 1e-5)
    less = re.search(r"(\d+) % less noise in all of them would have been found", judged.sentence)
    missing = int(less[1]) / 100
    hits = sum(bool(kinds(entry(1 - missing, size, seed=seed))) for seed in range(40))
    assert hits >= 33
    assert 0.01 <= missing < 0.3


@pytest.mark.parametrize(
    ("entries", "told", "enough"),
    [
        pytest.param([entry()], {"steps": [1]}, True, id="seen whole"),
        pytest.param([entry()], {"steps": [2]}, False, id="a step not looked into"),
        pytest.param([entry()], {"steps": [1], "left": LEFT | {"outside": ["w"]}}, False, id="own"),
        pytest.param([entry()], {"steps": [1], "draws": [], **counted(1)}, False, id="draws"),
        # Another draw of five numbers: noise of 0.7 would not have been found.
        pytest.param([entry(size=5, draws=2, squares=[5.0, 0.0])], {"steps": [1]}, False, id="few"),
    ],
)
def test_when_one_look_is_enough(entries, told, enough):
    """And what was not seen is named."""
    draws = {"records": 10, "rate": 1.0, "sizes": [10], "most": 1}
    told = TOLD | {"draws": [draws]} | told
    judged = single_run.judge([*entries, APART], told, 1e-5)
    assert judged.enough is enough
    assert not judged.findings or told.get("left") != LEFT


def test_sums_that_were_given_and_loops_of_ones_own():
    """Clipping was not seen; what a loop does beside its releases is never, and nothing waits."""
    assert "sums were given as arrays" in unseen(entry(), APART, {"kind": "summed"})["clipping"]
    own = single_run.judge([entry()], TOLD | {"made": 0, "steps": [1]}, 1e-5)
    assert [look.name for look in own.looks if not look.done] == ["records apart"]
    assert own.enough


def test_an_epsilon_that_the_script_was_told_of_one_engine():
    told = {"claims": [CLAIM, CLAIM], "reported": [(1e-5, 1.0, 100, 0)]}
    (one,) = found(entry(), shared=True, **told)
    assert (one.weight, one.look) == (Weight.VIOLATION, "accounting")
    assert one.seen == "1, of 1 of them; another was never asked"
    # Other data, or an engine that was asked before: who adds up was not seen.
    asked = [(1e-5, 1.0, 50, 1), (1e-5, 1.0, 100, 0)]
    for more in ({}, {"shared": True, "reported": asked}):
        (one,) = found(entry(), **told | more)
        assert one.weight is Weight.WARNING
        assert "2 engines" in unseen(entry(), APART, **told | more)["sum of engines"]
    assert "sum of engines" not in unseen(entry(), APART, marks={"epsilon": 9.0}, **told)
    both = [(1e-5, 1.0, 100, 0), (1e-5, 1.0, 100, 1)]
    assert not found(entry(), claims=[CLAIM, CLAIM], reported=both)
    assert not found(entry(), claims=[CLAIM], reported=[(1e-5, 0.9, 50, 0)])  # of fewer steps


def test_steps_with_other_rows_than_records_were_drawn():
    draws = [{"records": 10, "rate": 1.0, "sizes": [10], "most": 1}]
    for rows, words in ((5, "5 of 10"), (20, "20 for 10")):
        told = {"draws": draws, "uneven": [(3, rows, 10)]}
        (one,) = found(entry(), **told)
        assert (one.weight, one.look, one.where) == (Weight.WARNING, "sampling", "step 4")
        assert words in one.seen
        assert "how a batch was made" in unseen(entry(), APART, **told)["sampling"]


@pytest.mark.parametrize(
    ("told", "look", "words"),
    [
        ({"beside": ["Teacher"]}, "records elsewhere", "Teacher, trained on them"),
        ({"standardised": 32}, "records elsewhere", "of 32 columns"),
        ({"left": LEFT | {"earlier": ["w of step 3 of 9"]}}, "release", "w of step 3 of 9"),
        ({"left": LEFT | {"tensors": ["file 1: mean"]}}, "release", "file 1: mean"),
    ],
)
def test_what_records_may_have_gone_into(told, look, words):
    (one,) = found(entry(), **told)
    assert (one.weight, one.look) == (Weight.WARNING, look)
    assert words in one.seen
    assert look in unseen(entry(), APART, **told)


def test_a_count_that_moves_the_clipping_bound():
    """And how far a record moves the sum, where that is more than one bound."""
    counts = entry(squares=[3e5, 3.0], shifts=[{"what": "a record", "squares": [0.5, 9.0]}])
    (one,) = found(counts | {"draws": 64, "squares": [63e5, 63.0]})
    assert "by the clipping bound, which a count moves" in one.seen
    (one,) = found(entry(bound=1.0, shifts=[{"what": "a record", "squares": [6.0, 0.0]}]))
    assert "by a record, which moves the sum by 2.45 clipping bounds" in one.seen
    apart = {"names": ["a", "b"], "sizes": [100_000] * 2 + [1], "squares": [3e5, 3e5, 0.0]}
    shift = {"what": "a record", "squares": [1.0, 1.0, 0.0]}
    (one,) = found(entry(bound=1.5, empty=[0.0] * 3, norms=[1.0] * 3, shifts=[shift], **apart))
    assert "a record, which moves 2 tensors each as far as all together" in one.seen


def test_findings_name_the_line_of_the_script():
    (one,) = found(entry(0.5, line="train.py:7"))
    assert one.where == "step 1 (train.py:7)"
    outside = {"key": ["before", "other", "SGD"], "steps": 2}
    lines = {"before make_private": "train.py:3", "SGD": "train.py:2"}
    first, second = found(entry(), warmed=["w"], outside=[outside], lines=lines)
    assert first.where == "SGD, 2 steps (train.py:2)"
    assert second.where == "before make_private (train.py:3)"


FORWARD = {"kind": "forward", "by": 0.1}
GHOST = {"kind": "ghost", "step": 0, "what": "record 0", "bound": 1.0}
PAIR = {"of": [0, 1], "n": 10_000, "pairs": 10}


def stepped(when: str, what: str) -> dict:
    return {"outside": [{"key": [when, what, "SGD", "weight"], "steps": 5}]}


# Entries, what else the run returned, and the looks that find a violation.
CASES: dict[str, tuple[list[dict], dict, set[str]]] = {
    "noise that is always the same": ([entry(0.0)], {}, {"noise"}),
    "an empty batch without noise": ([entry(0.0, norms=[0.0, 0.0])], {}, set()),
    "an empty record scales all": ([entry(empty=[100.0, 0.0])], {}, {"scale"}),
    "ghost clipping's rounding": ([entry(ghost=True), GHOST | {"longest": 1.005}], {}, set()),
    "ghost clipping": ([entry(ghost=True), GHOST | {"longest": 1.02}], {}, {"clipping"}),
    "records mixed": ([entry(), FORWARD | {"mixes": True, "buffers": []}], {}, {"records apart"}),
    "buffers": ([entry(), FORWARD | {"mixes": False, "buffers": ["mean"]}], {}, {"buffers"}),
    "records apart": ([entry(), FORWARD | {"mixes": False, "buffers": []}], {}, set()),
    "too few steps accounted": ([entry()], counted(2), {"accounting"}),
    "all steps accounted": ([entry()], counted(100), set()),
    "a sum that was left": ([entry(), {"kind": "carried", "step": 3}], {}, {"accumulation"}),
    "private parameters": ([entry()], stepped("after", "private"), {"updates"}),
    "other parameters": ([entry()], stepped("after", "other"), set()),
    "gradients in a file": ([entry()], {"left": LEFT | {"saved": ["file 1: w"]}}, {"release"}),
    "means of the records": ([entry()], {"left": LEFT | {"statistics": ["mean"]}}, {"release"}),
    "a gradient in the model": ([entry()], {"left": LEFT | {"gradients": ["w"]}}, {"release"}),
    # Massart's bound: 10,000 numbers are 0.02 away once in 1,500 (levels: 0.002 per run).
    "another law": ([entry(shape={"n": 10_000, "distance": 0.05})], {}, {"law of the noise"}),
    "the normal law": ([entry(shape={"n": 10_000, "distance": 0.01})], {}, set()),
}  # fmt: skip
# A correlation of 0.1 over 10,000 numbers is ten deviations; of 0.02, two.
for kind in ("steps", "tensors", "neighbours"):
    for value, looks in ((0.1, {f"correlation of {kind}"}), (0.02, set())):
        pair = PAIR | {"what": kind, "correlation": value}
        CASES[f"{kind} correlated by {value}"] = ([entry(pairs=[pair])], {}, looks)


@pytest.mark.parametrize("case", CASES)
def test_what_is_a_violation(case):
    entries, told, looks = CASES[case]
    assert kinds(*entries, **told) == looks


def left_out(*squares: float) -> dict:
    return entry(shifts=[{"what": "record 0 of the batch left out", "squares": squares}])


BARE = left_out(0.5, 0.5, 0.0) | {
    "names": ["weight", "bias"], "sizes": [100_000, 10, 1], "squares": [3e5, 0.0, 0.0],
    "norms": [1e5, 1.0, 0.0], "empty": [0.0, 0.0, 0.0],
}  # fmt: skip
FAR = {"what": "a gradient a thousand times too long", "squares": [1e6, 0.0]}


@pytest.mark.parametrize(
    ("look", "kind", "words"),
    [
        pytest.param(BARE, "noise", "bias", id="a tensor without noise that records move"),
        pytest.param(entry(shifts=[FAR]), "clipping", "times as far", id="no clipping"),
        # Adaptive clipping releases its bound: without noise, whoever moves it is seen.
        pytest.param(left_out(0.5, 1e-4), "noise", "the clipping bound", id="a bound that moves"),
    ],
)
def test_what_is_seen_of_a_step(look, kind, words):
    (one,) = found(look)
    assert one.look == kind
    assert words in one.seen
    assert found(left_out(0.0, 0.0)) == []  # nothing moves


def test_the_noise_of_each_step_is_that_of_its_accounting():
    claim = CLAIM | {"history": [[1.0, 1.0, 50], [0.5, 1.0, 50]]}
    accounted = [(0, step, 1.0 if step < 50 else 0.5, 1.0) for step in range(100)]
    told = {"claims": [claim], "accounted": accounted}
    assert kinds(entry(0.5, step=60), **told) == set()
    assert kinds(entry(0.5, step=40), **told) == {"noise"}


def unseen(*entries: dict, **told: object) -> dict[str, str]:
    """Looks that were not done, and why."""
    judged = single_run.judge(list(entries), TOLD | told, 1e-5)
    assert judged.complete is all(look.done for look in judged.looks)
    return {look.name: look.said for look in judged.looks if not look.done}


def test_what_was_not_seen_is_not_judged():
    given = {"kind": "given", "step": 0}
    differs = {"kind": "look", "step": 0, "replays": False}
    assert found(given, APART) == found(differs, APART) == []
    assert "noise that cannot be drawn again" in unseen(given, APART)["noise and clipping"]
    assert "gave another result" in unseen(differs, APART)["noise and clipping"]
    assert set(unseen(entry(), given, APART)) == {"noise given"}
    assert set(unseen(entry(ghost=True), APART)) == {"clipping"}


def test_a_run_that_the_budget_ended():
    """Steps that a script would account afterwards are no violation."""
    cut = {"kind": "cut", "seconds": 60.0, "steps": 1}
    short = {"steps": [1], "claims": [CLAIM | {"history": [[1.0, 1.0, 1]]}]}
    said = unseen(entry(), APART, cut, **short)
    assert set(said) == {"accounting", "release"}
    assert "the budget ended the run after step 1; give a longer --budget" in said["accounting"]
    later = {"steps": [1], "claims": [CLAIM | {"history": []}]}
    assert found(entry(), APART, cut, **later) == []
    assert unseen(entry(), APART, **short) == {}


def test_why_forward_passes_show_nothing():
    why = {"kind": "forward", "unseen": "a forward pass with a batch of 2; 3 records are needed"}
    assert unseen(entry(), why) == {"records apart": why["unseen"]}
    assert unseen(entry(), why, APART) == {}
    assert "of the network in training was seen" in unseen(entry())["records apart"]
    assert "keeps h from" in unseen(entry(), APART | {"carried": ["h"]})["records apart"]


class Remembers(nn.Module):
    """Adds what the last batch left; `counts` only counts."""

    def __init__(self, adds: bool, written: bool = False) -> None:
        super().__init__()
        self.h, self.counts, self.adds, self.written = torch.zeros(40, 3), 0, adds, written

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x.tanh() + (self.h if self.adds else 0)
        self.counts += 1
        self.h = self.h.copy_(y.detach()) if self.written else y.detach()
        return y


@pytest.mark.parametrize("written", [False, True])
def test_state_that_goes_from_one_batch_to_the_next(written):
    """It is told, with its name, and the network is as it was before."""
    network = nn.Sequential(Remembers(True, written))
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    seen = repeat_forward(network, (x,), {}, 0)
    assert set(seen["carried"]) == {"0.counts", "0.h"}
    assert not seen["mixes"]
    assert network[0].counts == 0
    assert not network[0].h.any()
    assert repeat_forward(Remembers(False, written), (x,), {}, 0)["carried"] == []


def test_passes_that_cannot_be_compared_say_why():
    class Own(nn.Module):
        generator = torch.Generator()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.randn(x.shape, generator=self.generator)

    x = torch.zeros(40, 3)
    assert "another result" in repeat_forward(Own(), (x,), {}, 0)["unseen"]
    assert "a batch of 2" in repeat_forward(nn.Tanh(), (x[:2],), {}, 0)["unseen"]
    summed = repeat_forward(nn.L1Loss(), (x, x), {}, 0)["unseen"]
    assert "a row for each record" in summed


def test_what_is_no_more_than_a_warning_or_a_note():
    for when in ("after", "before"):
        assert {f.weight for f in found(entry(), **stepped(when, "other"))} == {Weight.WARNING}
    assert found(entry(), **stepped("import", "other")) == []
    (kept,) = found(entry(), left=LEFT | {"examples": ["weight"]})
    assert kept.weight is Weight.NOTE
    (one,) = found(entry(), seeded=[["torch.manual_seed", 42]])
    assert one.weight is Weight.WARNING


def test_two_runs_that_seed_alike():
    alike = single_run.same_seeds({"generators": [42]}, {"generators": [42]})
    assert [finding.weight for finding in alike.findings] == [Weight.VIOLATION]
    assert not single_run.same_seeds({"generators": [1]}, {"generators": [2]}).findings


def test_networks_that_were_there_before_the_fork_are_looked_at():
    """What the process that forks has imported is frozen, and its collector lists it no more."""
    network = nn.Linear(2, 2)
    gc.freeze()
    assert digest(network.weight) in digests_of_all_networks()


def test_arrays_that_are_returned_have_names_and_what_has_no_numbers_is_passed_over():
    odd = [nn.LazyLinear(2), nn.Linear(2, 2, device="meta"), torch.eye(2).to_sparse()]
    returned = {"model": nn.Linear(2, 1), "odd": odd, "loss": torch.tensor(1.0), "epochs": 3}
    names = [(name, kind) for name, kind, _ in named_tensors(returned | {"means": torch.ones(2)})]
    assert names == [("model.weight", "Linear"), ("model.bias", "Linear"), ("means", "")]


@pytest.mark.parametrize("public", ["Generator", ["Generator"], ("Generator",)])
def test_one_name_is_public_by_itself(public):
    assert marks_of(audited(1e-5, public=public)(lambda: None)).public == ("Generator",)


RECORDS, RATE, DRAWS = 500, 0.05, 60


def poisson(rng: np.random.Generator, rate: float = RATE) -> list[np.ndarray]:
    return [np.flatnonzero(rng.random(RECORDS) < rate) for _ in range(DRAWS)]


def shuffled(rng: np.random.Generator) -> list[np.ndarray]:
    passes = int(DRAWS * RATE)
    return [part for _ in range(passes) for part in np.split(rng.permutation(RECORDS), 1 / RATE)]


def fixed(rng: np.random.Generator) -> list[np.ndarray]:
    return [rng.permutation(RECORDS)[: int(RATE * RECORDS)] for _ in range(DRAWS)]


def drawn(taken: list[np.ndarray], noise: float = 1.0, epsilon: float = 1.0) -> dict:
    """What a run returns of its draws."""
    history = [[noise, RATE, len(taken)]]
    claim = {"history": history, "epsilons": [epsilon], "deltas": [1e-5]}
    drawn = [draw_counts(taken, RECORDS, RATE)]
    return {"claims": [claim], "draws": drawn, "unused": [], "steps": [len(taken)]}


def judge_draws(result: dict) -> Judgement:
    return single_run.judge_sampling(result, single_run.SHARE, 1e-5)


def sampled(*arguments, **options) -> list[Finding]:
    return judge_draws(drawn(*arguments, **options)).findings


def test_poisson_draws_raise_no_alarm():
    """200 runs: at a level of 0.004, five alarms or more come once in 700 such tests."""
    alarms = sum(bool(sampled(poisson(np.random.default_rng(seed)))) for seed in range(200))
    assert alarms <= 4


@pytest.mark.parametrize("seed", range(10))
def test_a_higher_rate_is_found_and_a_lower_one_is_none_of_ours(seed):
    """At 0.065, 1,950 records are drawn where 1,500 are expected: 12 deviations."""
    (one,) = sampled(poisson(np.random.default_rng(seed), 0.065))
    assert one.weight is Weight.VIOLATION
    assert "a rate of 0.05" in one.expected
    assert not sampled(poisson(np.random.default_rng(seed), 0.049))


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize(
    ("draw", "said", "epsilon"), [(shuffled, "shuffled", 2.0), (fixed, "of a fixed size", 0.5)]
)
def test_draws_that_are_not_poisson_are_found(draw, said, epsilon, seed):
    """Whether the promise is broken, or only not proven, depends on the noise."""
    draws = draw(np.random.default_rng(seed))
    (broken,), (unproven,) = sampled(draws, 0.5, epsilon), sampled(draws, 5.0, 2.0)
    assert (broken.weight, unproven.weight) == (Weight.VIOLATION, Weight.WARNING)
    assert said in broken.seen
    assert said in unproven.seen


def test_draws_that_hang_together_and_a_record_twice_in_a_batch():
    """The same records all the time, as many as Poisson sampling would draw."""
    rng = np.random.default_rng(0)
    (one,) = sampled([np.arange(size) for size in rng.binomial(RECORDS, RATE, DRAWS)])
    assert one.weight is Weight.VIOLATION
    assert "hang together" in one.seen
    draws = poisson(np.random.default_rng(0))
    draws[3] = np.concatenate([draws[3][1:], draws[3][-1:]])
    (one,) = sampled(draws)
    assert "twice" in one.seen


def test_empty_draws_that_are_left_out():
    """At ten records and a rate of 0.05, three draws of five are empty."""
    rng = np.random.default_rng(0)
    draws = [np.flatnonzero(rng.random(10) < RATE) for _ in range(200)]
    full = drawn(draws) | {"draws": [draw_counts(draws, 10, RATE)]}
    assert not judge_draws(full).findings
    lost, empty = judge_draws(full | {"unused": [0, 0, 3]}).findings
    assert "2 empty draws" in empty.seen
    assert empty.weight is Weight.VIOLATION
    # That a loop passed a draw over that was not empty may have a good reason.
    assert "1 draws that led to no step" in lost.seen
    assert lost.weight is Weight.WARNING


def test_every_record_in_every_step():
    draws = [np.arange(RECORDS)] * 5
    claim = {"history": [[4.0, 1.0, 5]], "epsilons": [1.0], "deltas": [1e-5]}
    whole = drawn(draws) | {"claims": [claim], "draws": [draw_counts(draws, RECORDS, 1.0)]}
    assert not judge_draws(whole).findings
    short = whole | {"claims": [claim | {"history": [[4.0, 1.0, 3]]}]}
    (one,) = judge_draws(short).findings
    assert one.weight is Weight.VIOLATION


def test_a_loader_that_was_not_seen_says_nothing():
    nothing = judge_draws(drawn([]) | {"draws": []})
    assert not nothing.complete
    assert not nothing.findings


@pytest.mark.parametrize(
    ("group", "rate", "times", "noise", "epsilon"),
    [(5, 0.2, 1, 1.0, 0.5), (5, 0.2, 3, 1.0, 1.0), (1, 0.3, 4, 0.7, 0.5), (20, 0.05, 2, 0.5, 2.0)],
)
def test_what_draws_reach_against_simulation(group, rate, times, noise, epsilon):
    """60,000 runs of both worlds: each share is known to 0.002, the largest of 40 to 0.008."""
    rng = np.random.default_rng(3)
    shape = (60_000, times)

    def exceeding(shift: float) -> np.ndarray:
        """For each h, how many groups of a run have a step above h."""
        own = rng.normal(size=shape) * noise
        own += shift if group > 1 else shift * (rng.random(shape) < rate)
        # The largest of the steps without the record, by its law.
        rest = stats.norm.ppf(rng.random(shape) ** (1 / (group - 1))) * noise if group > 1 else own
        largest = np.maximum(own, rest)
        return np.stack([(largest > h).sum(1) for h in heights])

    heights = np.linspace(-2, 10, 40) * noise
    first, second = exceeding(2.0), exceeding(1.0)
    reached = max(
        float(np.max((first >= k).mean(1) - math.exp(epsilon) * (second >= k).mean(1)))
        for k in range(1, times + 1)
    )
    expected = single_run.delta_without_poisson(epsilon, noise, rate, group, times)
    assert expected > 0.01
    assert reached == pytest.approx(expected, abs=0.008 * (1 + math.exp(epsilon)))


def test_one_record_more():
    def made(records: int, batch: float, batches: int) -> list[dict]:
        entry = {"kind": "made", "records": records, "batch": batch, "batches": batches}
        return [entry | {"noise": 1.0}]

    (one,) = single_run.judge_size([made(4000, 50, 80), made(4001, 49, 81)]).findings
    assert one.weight is Weight.VIOLATION
    assert "number of batches 80 to 81" in one.seen
    same = single_run.judge_size([made(4000, 50, 80), made(4001, 50, 80)])
    assert not same.findings
    assert same.complete
    assert not single_run.judge_size([made(4000, 50, 80), made(4000, 50, 80)]).complete
    assert not single_run.judge_size([[], made(4000, 50, 80)]).complete
