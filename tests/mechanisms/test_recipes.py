"""Optimizers, schedules, an ε in place of noise, parts of batches; what cannot be trained."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray import accounting, plugins
from dpaudit_ray.adversaries.base import SampleCanary
from dpaudit_ray.engines.packing import packed
from dpaudit_ray.errors import SpecError
from dpaudit_ray.mechanisms.dp_sgd.recipe import Recipe
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from dpaudit_ray.mechanisms.dp_sgd.updates import Schedule
from dpaudit_ray.plan import claims
from dpaudit_ray.sweep import spec
from tests.command import changed, refused, write_sweep
from tests.trainings import along, cell, path


def recipe(tiny: dict, **options: Any) -> Recipe:
    return cell(tiny, "loss", **options)[0].recipe


def end(found: Recipe, kind: str = "gradient", seed: int = 2) -> Tensor:
    """Where three models end, [3, p] in float64; the first and the last have the canary."""
    training = DpSgdTraining.prepare(found, seed=1, gpu=False, dtype=torch.float64)
    x, y = training.example(4)
    canary = along(training, 2) if kind == "gradient" else SampleCanary(x, 1 - y)
    return path(training, [1, 0, 1], canary, seed)[-1]


@pytest.mark.parametrize(
    ("sampling", "optimizer"), [("fixed", "sgd"), ("poisson", "momentum"), ("shuffle", "adam")]
)
def test_engines_agree_over_twenty_steps(sampling, optimizer, tiny):
    """With hardly any noise, and torch's own optimizers on the one side."""
    options = {
        "sampling": sampling, "optimizer": optimizer, "steps": 20, "noise_multiplier": 1e-12,
        "schedule": {"name": "cosine", "warmup": 5},
    }  # fmt: skip
    kind = "gradient" if optimizer == "momentum" else "sample"
    packed = end(recipe(tiny, **options), kind)
    torch.testing.assert_close(
        end(recipe(tiny, **options, engine="opacus"), kind), packed, rtol=0, atol=1e-5
    )
    if sampling != "fixed":  # the first and the third have coins of their own
        assert float((packed[0] - packed[2]).abs().max()) > 1e-5


@pytest.mark.parametrize("engine", ["packed", "opacus"])
def test_empty_batches_are_noise_alone(engine, tiny):
    """At |B| = 1, one of the others' batches is empty here, and the canary is in none of two."""
    options = {"sampling": "poisson", "batch_size": 1, "steps": 16, "engine": engine}
    found = recipe(tiny, **options)
    training = DpSgdTraining.prepare(found, seed=1, gpu=False)
    assert sum(len(batch) == 0 for batch in training.batches) == 1
    seen: list[Tensor] = []
    list(training.run(torch.zeros(2), 3, None, 1, lambda _, __, update: seen.append(update)))
    for batch, update in zip(training.batches, seen, strict=True):
        assert 1.8 < float(update.std()) < 2.2  # σ = 2
        assert len(batch) or abs(float(update.mean())) < 1
    quiet = options | {"noise_multiplier": 1e-12}
    one, other = (recipe(tiny, **quiet | {"engine": e}) for e in ("packed", "opacus"))
    torch.testing.assert_close(end(one), end(other), rtol=0, atol=1e-5)


@pytest.mark.parametrize(("engine", "sampling"), [("packed", "fixed"), ("opacus", "poisson")])
def test_parts_of_a_batch_make_the_same_step(engine, sampling, tiny):
    options = {"engine": engine, "sampling": sampling, "steps": 3, "optimizer": "momentum"}
    whole = end(recipe(tiny, **options), "sample")
    for size in (64, 13):
        parted = end(recipe(tiny, **options, physical_batch_size=size), "sample")
        torch.testing.assert_close(parted, whole, rtol=0, atol=1e-9)


def test_optimizers_take_the_steps_of_their_papers(tiny):
    """By hand, on the noisy means that an observer sees; the rate changes at every step."""
    for name in ("momentum", "adam"):
        optimizer = {"name": name} | ({"betas": [0.8, 0.9], "eps": 1e-3} if name == "adam" else {})
        found = recipe(tiny, optimizer=optimizer, schedule="cosine")
        training = DpSgdTraining.prepare(found, seed=1, gpu=False, dtype=torch.float64)
        seen: list[Tensor] = []
        inside = torch.zeros(2, dtype=torch.float64)
        run = training.run(inside, 3, None, 1, lambda _, __, u, own=seen: own.append(u))
        *_, last = (t.clone() for t in run)
        theta = training.initial.repeat(2, 1)
        first = second = torch.zeros_like(theta)
        for t, g in enumerate(seen, start=1):
            rate = 0.1 * (1 + math.cos(math.pi * (t - 1) / 6)) / 2
            if name == "momentum":
                first = 0.9 * first + g
                theta = theta - rate * first
            else:
                first, second = 0.8 * first + 0.2 * g, 0.9 * second + 0.1 * g**2
                root = (second / (1 - 0.9**t)).sqrt() + 1e-3
                theta = theta - rate * first / (1 - 0.8**t) / root
        torch.testing.assert_close(last, theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("constant", [1, 1, 1, 1, 1, 1]),
        ({"name": "constant", "warmup": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        ({"name": "cosine", "over": 2, "final": 0.5}, [1, 0.75, 0.5, 0.5, 0.5, 0.5]),
        ({"name": "cosine", "warmup": 2}, [0.5, 1, 1, (1 + 0.5**0.5) / 2, 0.5, 0.146446609]),
    ],
)
def test_schedules(raw, expected):
    schedule = plugins.parse(Schedule, raw, "schedule")
    schedule.check(schedule.warmup + schedule.length)  # which just fits
    assert schedule.length == (getattr(schedule, "over", None) or 1)
    rates = [schedule.rate(2.0, step, 6) for step in range(1, 7)]
    assert rates == pytest.approx([2 * one for one in expected])


def test_simulations_follow_optimizer_and_schedule(tiny):
    """Without noise and clipping: what training does at hardly any noise and a huge C."""
    adam = {"name": "adam", "eps": 1e-3}
    options = {"schedule": "cosine", "sampling": "poisson", "optimizer": adam}
    large = {"clip_norm": 1e6, "noise_multiplier": 1e-18}
    training = DpSgdTraining.prepare(recipe(tiny, **options, **large), 1, False, torch.float64)
    trained = path(training, [0], None, 0)
    for found, expected in zip(training.simulate(1, False, 0), trained, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


def in_place_of_noise(tiny: dict, epsilon: float, **options: Any) -> dict:
    raw = changed(tiny, "mechanism.epsilon", epsilon) | {"grid": {}}
    del raw["mechanism"]["noise_multiplier"]
    raw["mechanism"] |= options
    return raw


@pytest.mark.parametrize(
    ("accountant", "options"),
    [
        ("gaussian", {}),
        ("rdp", {}),
        ("prv", {"sampling": "poisson"}),
        ("gaussian", {"sampling": "shuffle"}),
        ("prv", {"sampling": "balls-and-bins"}),
    ],
)
def test_an_epsilon_finds_its_noise(accountant, options, tiny):
    raw = in_place_of_noise(tiny, **{"epsilon": 3.0} | options)
    raw["audit"]["accountants"] = [accountant]
    (found,) = spec.from_raw(raw).cells
    asked = raw["mechanism"]["epsilon"]
    claimed = claims.claimed_epsilons(found)[accountant][-1]
    assert asked - min(0.01, asked / 100) <= claimed <= asked
    last = found.mechanism.claimed(found.adversary, 6)
    assert found.mechanism.recipe.noise_multiplier == last.noise_multiplier
    if accountant == "gaussian" and not options:
        exact = accounting.noise_multiplier(asked, 6, 1e-5)
        assert exact <= last.noise_multiplier <= exact * (1 + 1e-5)


def test_the_noise_of_an_epsilon_is_that_of_the_audit_and_of_no_adversary(tiny):
    raw = in_place_of_noise(tiny, 3.0)
    found = spec.from_raw(raw).cells[0].mechanism
    raw["adversary"] = {"name": "biased-dimension", "period": 6}
    assert spec.from_raw(raw).cells[0].mechanism == found
    raw["audit"]["delta"] = 1e-7
    other = spec.from_raw(raw).cells[0]
    assert other.mechanism.multiplier > found.multiplier
    assert other.mechanism.identity()["delta"] == 1e-7
    raw["mechanism"]["delta"] = 1e-5
    assert spec.from_raw(raw).cells[0].mechanism.multiplier == found.multiplier


REFUSED = [
    ({"epsilon": 3.0}, "mechanism.epsilon: is 3, and noise_multiplier is 2: each states how much"),
    ({"noise_multiplier": None}, "mechanism.noise_multiplier: is required, or epsilon in its pla"),
    ({"delta": 1e-5}, "mechanism.delta: belongs to epsilon, which is not given; leave it out"),
    ({"sampling": "posson"}, "mechanism.sampling.name: unknown sampling scheme 'posson'; did you"),
    ({"schedule": "linear"}, "mechanism.schedule.name: unknown schedule 'linear'; known: constant"),
    ({"optimizer": {"name": "adam", "betas": [0.9, 1.0]}}, "mechanism.optimizer.betas.1: must be"),
    (
        {"schedule": {"name": "cosine", "over": 5, "warmup": 3}},
        "mechanism.schedule: is cosine over 8 steps (3 of them to warm up), but there are only 6; "
        "shorten it, or raise mechanism.steps",
    ),
    (
        {"sampling": "shuffle", "adversary.period": 2},
        "adversary.period: is 2, but no claim holds for sampling shuffle where steps are left out",
    ),
]


@pytest.mark.parametrize(("options", "expected"), REFUSED)
def test_a_wrong_recipe_is_refused_in_one_line(options, expected, tiny):
    options = dict(options)
    period = options.pop("adversary.period", 1)
    tiny["mechanism"] |= options
    tiny |= {"grid": {}, "adversary": {"name": "biased-dimension", "period": period}}
    with pytest.raises(SpecError) as error:
        spec.from_raw(tiny)
    assert str(error.value).startswith(expected)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("options", "accountant", "expected"),
    [
        (
            {"epsilon": 1e-9, "delta": 1e-8}, "gaussian",
            "mechanism.epsilon: is 1e-9, for which gaussian finds no noise multiplier at δ = 1e",
        ),
        (
            {"epsilon": 1e-3}, "rdp",
            "mechanism.epsilon: is 0.001, for which rdp finds no noise multiplier at δ = 1e-5 "
            "(with 1e6 it still claims 0.103); raise it, or list another accountant first",
        ),
        (
            {"epsilon": 1.0, "sampling": "poisson"}, "gaussian",
            "mechanism.epsilon: is 1, for which gaussian finds no noise",
        ),
    ],
)  # fmt: skip
def test_an_epsilon_out_of_reach_is_refused(options, accountant, expected, tiny):
    raw = in_place_of_noise(tiny, **options)
    raw["audit"]["accountants"] = [accountant]
    with pytest.raises(SpecError) as error:
        claims.claimed_epsilons(spec.from_raw(raw).cells[0])
    assert str(error.value).startswith(expected)


def test_a_rate_above_one_is_refused(tiny):
    raw = changed(changed(tiny, "mechanism.sampling", "poisson"), "mechanism.batch_size", 570)
    found = spec.from_raw(raw).cells[0]
    for ask in (found.mechanism.check_inputs, lambda: claims.claimed_epsilons(found)):
        with pytest.raises(SpecError, match=r"batch_size: is 570, but breast_cancer has 569 exam"):
            ask()


def test_trainers_are_given_the_noise_that_keeps_an_epsilon(tiny, monkeypatch):
    """Some accountants take seconds for it, which thousands of trainers need not."""
    del tiny["mechanism"]["noise_multiplier"]
    tiny["mechanism"] |= {"epsilon": 4.0}
    mechanism = spec.from_raw(tiny).cells[0].mechanism
    told = mechanism.precomputed()
    assert told == {"noise": mechanism.recipe.noise_multiplier}
    monkeypatch.setattr(
        "dpaudit_ray.mechanisms.dp_sgd.recipe.calibrate_noise", lambda *_: pytest.fail("again")
    )
    again = spec.from_raw(tiny).cells[0].mechanism.with_precomputed(told)
    assert again.recipe.model_dump() == mechanism.with_precomputed(told).recipe.model_dump()
    assert again.recipe.noise_multiplier == told["noise"]
    assert again.identity() == mechanism.identity()


def narrow() -> nn.Module:
    return nn.Sequential(nn.Linear(31, 2))


def one_of_two() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(30, 1), nn.Unflatten(1, (1, 1)))


def five_of_two() -> nn.Module:
    return nn.Linear(30, 5)


class Endless(torch.nn.Linear):
    def forward(self, x):
        return super().forward(x) * math.inf


def endless():
    return Endless(30, 2)


def test_packs_check_a_network_once_but_a_user_s_own_each_time(tiny, monkeypatch):
    own = {"name": "module", "path": "torch.nn:LayerNorm", "options": {"normalized_shape": 30}}
    asked, real = [], packed.fastest_right_way
    monkeypatch.setattr(packed, "_WAYS", {})
    monkeypatch.setattr(packed, "fastest_right_way", lambda *a: asked.append(a) or real(*a))
    for model in ("mlp3", own) * 3:
        DpSgdTraining.prepare(recipe(tiny, model=model), seed=1, gpu=False)
    assert len(asked) == 1 + 3


@pytest.mark.parametrize(
    ("network", "said"),
    [
        ("narrow", "and 31x2); its first layer must take these"),
        ("one_of_two", "module gives [2, 1, 1] for two examples of 2 classes"),
        ("endless", "module gives values that are not finite for the first two examples; mend its"),
        ("five_of_two", "module gives [2, 5] for two examples of 2 classes; give one output per"),
    ],
)
def test_a_network_of_ones_own(network, said, tiny, tmp_path):
    model = {"name": "module", "path": f"{__name__}:{network}"}
    sweep = write_sweep(tmp_path, changed(tiny, "mechanism.model", model))
    for verb in ("plan", "run"):
        assert said in refused(verb, sweep, "--storage-path", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
