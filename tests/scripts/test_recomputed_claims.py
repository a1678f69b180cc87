"""The ε of a script against an obvious twin, which keeps each step of each engine by its name."""

import dataclasses
import math
import random

import pytest

from dpaudit_ray import accounting
from dpaudit_ray.scripts import claims
from dpaudit_ray.scripts.protocol import Claim, RunResult

DELTA = 1e-5


@dataclasses.dataclass
class Engine:
    """An engine that keeps the names of its steps: where each was taken, and with which noise."""

    data: int
    loaded: list[tuple[str, float]] = dataclasses.field(default_factory=list)
    taken: list[tuple[str, float]] = dataclasses.field(default_factory=list)

    @property
    def steps(self) -> list[tuple[str, float]]:
        return self.loaded + self.taken

    def claim(self) -> Claim:
        return Claim("prv", history(self.steps), data=self.data, loaded=history(self.loaded))


def history(steps: list[tuple[str, float]]) -> tuple[tuple[float, float, int], ...]:
    return tuple((noise, 1.0, 1) for _, noise in steps)


def scenario(rng: random.Random) -> list[Engine]:
    """Up to four engines, each new, or resumed from an earlier one or from another process."""
    before = {
        data: [(f"{data} before {n}", rng.choice((1.0, 2.0))) for n in range(3)] for data in (0, 1)
    }
    engines: list[Engine] = []
    for number in range(rng.randint(1, 4)):
        data = rng.randint(0, 1)
        earlier = [engine for engine in engines if engine.data == data]
        loaded: list[tuple[str, float]] = []
        kind = rng.choice(("new", "resumed", "other process"))
        if kind == "resumed" and earlier:
            loaded = list(rng.choice(earlier).steps)
        elif kind == "other process" and not earlier:
            loaded = list(before[data])
        taken = [(f"{number}, {n}", rng.choice((1.0, 2.0))) for n in range(rng.randint(1, 4))]
        engines.append(Engine(data, loaded, taken))
    return engines


@pytest.mark.parametrize("seed", range(50))
def test_each_step_counts_once_whoever_has_it_in_a_history(seed):
    engines = scenario(random.Random(seed))
    groups = claims.groups_of([engine.claim() for engine in engines])
    for group in groups:
        names: dict[str, float] = {}
        for engine in engines:
            if engine.data == group[0].data:
                names.update(engine.steps)
        steps = claims.steps_on_same_records(group)
        for noise in (1.0, 2.0):
            counted = sum(count for at, _, count in steps if at == noise)
            assert counted == list(names.values()).count(noise), (engines, steps)


def gaussian(*noises: float) -> float:
    """ε of Gaussian steps without sampling: one step with the root of summed squares."""
    mu = math.sqrt(sum(noise**-2 for noise in noises))
    return accounting.epsilon(noise_multiplier=1 / mu, steps=1, delta=DELTA)


def result(*claimed: Claim) -> RunResult:
    return RunResult(claims=claimed)


def one(noise: float, steps: int, **fields: object) -> Claim:
    return dataclasses.replace(Claim("prv", ((noise, 1.0, steps),)), **fields)


def test_engines_on_the_same_records_compose_and_on_others_the_largest_counts():
    twice = result(one(4.0, 8), one(4.0, 8))
    assert claims.composed(twice, DELTA) == pytest.approx(gaussian(*[4.0] * 16), rel=1e-6)
    apart = result(one(4.0, 8), one(4.0, 3, data=1))
    assert claims.composed(apart, DELTA) == pytest.approx(gaussian(*[4.0] * 8), rel=1e-6)
    resumed = result(one(4.0, 8), one(4.0, 16, loaded=((4.0, 1.0, 8),)))
    assert claims.composed(resumed, DELTA) == pytest.approx(gaussian(*[4.0] * 16), rel=1e-6)
    assert math.isnan(claims.composed(result(Claim("prv", ())), DELTA))
    assert claims.composed(result(one(0.0, 1)), DELTA) == math.inf


def test_what_accountants_state():
    """One accountant is believed for the claim; several, or one that fails, are composed."""
    stated = {"deltas": (DELTA,), "epsilons": (0.5,)}
    assert claims.stated(result(one(4.0, 8, **stated)), DELTA) == 0.5
    composed = gaussian(*[4.0] * 16)
    for case in (
        result(one(4.0, 8, **stated), one(4.0, 8, **stated)),
        result(one(4.0, 16, deltas=(DELTA,), epsilons=(None,))),
        result(one(4.0, 16)),
    ):
        assert claims.stated(case, DELTA) == pytest.approx(composed, rel=1e-6)
    assert math.isnan(claims.stated(result(), DELTA))


def test_the_accountant_that_resumed_all_steps_is_believed():
    first = one(4.0, 8, deltas=(DELTA,), epsilons=(0.5,))
    resumed = one(4.0, 16, loaded=((4.0, 1.0, 8),), deltas=(DELTA,), epsilons=(0.9,))
    assert claims.stated(result(first, resumed), DELTA) == 0.9
    assert claims.stated_by(result(first, resumed), DELTA) == "by the script's accountant (prv)"


def test_who_states_epsilon():
    stated = {"deltas": (DELTA,), "epsilons": (0.5,)}
    one_engine = one(1.0, 1, **stated)
    by_loop = one(1.0, 1, name="pld")
    cases = {
        "by the script's accountant (none)": (),
        "by the script's accountant (prv)": (one_engine,),
        "from the noise and rates that the script states": (by_loop,),
        "from the steps of all engines": (one_engine, one(2.0, 1, **stated)),
        "from the accounted steps": (one(1.0, 1),),
    }
    for words, claimed in cases.items():
        assert claims.stated_by(result(*claimed), DELTA) == words


def test_loaded_steps_are_not_accounted_again():
    first = one(4.0, 8)
    resumed = one(4.0, 16, loaded=((4.0, 1.0, 8),))
    assert claims.accounted_steps(result(first, resumed)) == 16
    assert claims.accounted_steps(result(resumed)) == 8


def test_a_schedule_of_noise_is_bundled_from_below():
    """24 kinds of steps from σ = 1 to 3, one by one and bundled."""
    history = tuple((1.0 + k / 12, 0.05, 4) for k in range(24))
    exact = accounting.events_epsilon(history, DELTA)
    bundled = claims.composed_epsilon(history, DELTA)
    assert exact * (1 - 5e-3) < bundled <= exact
    without_noise = (*history, (0.0, 0.05, 1))
    assert claims.composed_epsilon(without_noise, DELTA) == math.inf
