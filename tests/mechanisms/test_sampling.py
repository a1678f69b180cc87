"""Who is in the batch: schemes, whose coins are whose, and what happens where trials share them."""

import itertools

import numpy as np
import numpy.typing as npt
import pytest
import torch

from dpaudit_ray import plugins
from dpaudit_ray.accounting import Sampling, Training
from dpaudit_ray.adversaries.base import SampleCanary
from dpaudit_ray.mechanisms.dp_sgd.sampling import Poisson, Sampler, Sizes
from dpaudit_ray.mechanisms.dp_sgd.steps import Insertion
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining
from dpaudit_ray.seeds import derive
from tests.trainings import along, cell, path

SIZES = Sizes(examples=103, batch_size=10)


def scheme(name: str) -> Sampler:
    return plugins.parse(Sampler, name, "sampling")


def coins(name: str, steps: int, trials: int, seed: int = 0) -> npt.NDArray[np.bool_]:
    drawn = scheme(name).coins(SIZES, (trials,), np.random.default_rng(seed))
    return np.stack(list(itertools.islice(drawn, steps)))


def batches(name: str, steps: int) -> list[npt.NDArray[np.int64]]:
    return list(itertools.islice(scheme(name).batches(SIZES, np.random.default_rng(0)), steps))


def test_poisson_batches_vary_and_hold_every_record_at_the_rate():
    """400 steps of 103 records: sizes of mean 10 and variance 9.03, within 4 standard errors."""
    sizes = np.array([len(batch) for batch in batches("poisson", 400)])
    assert abs(sizes.mean() - 10) < 4 * np.sqrt(9.03 / 400)
    assert abs(sizes.var() / 9.03 - 1) < 4 * np.sqrt(2 / 400)
    tossed = coins("poisson", 400, 50)
    assert abs(tossed.mean() - 10 / 103) < 4 * np.sqrt(10 / 103 / 20000)


def test_shuffled_batches_are_full_and_bins_vary():
    epoch = np.concatenate(batches("shuffle", 10))
    assert len(epoch) == len(set(epoch.tolist())) == 100
    bins = batches("balls-and-bins", 10)
    assert sorted(np.concatenate(bins).tolist()) == list(range(103))
    assert len({len(batch) for batch in bins}) > 1
    assert coins("fixed", 7, 5).all()
    np.testing.assert_array_equal(batches("fixed", 25), batches("shuffle", 25))


@pytest.mark.parametrize("name", ["shuffle", "balls-and-bins"])
def test_an_epoch_has_the_canary_once(name):
    tossed = coins(name, 30, 200).reshape(3, 10, 200)
    assert (tossed.sum(1) == 1).all()
    where = tossed.argmax(1)
    assert len(np.unique(where[0])) == 10, "any batch may have it"
    assert (where[0] != where[1]).mean() > 0.7, "a new one in every epoch"


@pytest.mark.parametrize("name", ["poisson", "shuffle", "balls-and-bins"])
def test_coins_are_those_of_the_pack_and_not_of_its_bits(options, name):
    """A trial that has the canary differs from itself without one where its coins say so."""
    sampled = options.model_copy(update={"sampling": scheme(name), "noise_multiplier": 1e-9})
    training = DpSgdTraining.prepare(sampled.recipe, seed=1, gpu=False)
    seen: list[npt.NDArray[np.bool_]] = []
    for bits in (torch.zeros(60), torch.ones(60), torch.arange(60) % 2):
        updates: list[torch.Tensor] = []
        path = training.run(
            bits.float(), 11, along(training, 3), 1,
            lambda step, before, update, own=updates: own.append(
                update * 64 - training.sums(before, *training.batch(step), 1)
            ),
        )  # fmt: skip
        list(path)
        seen.append(torch.stack(updates)[:, :, 3].numpy() > 0.5)
    nobody, all_of_them, every_other = seen
    assert not nobody.any()
    odd = np.arange(60) % 2 == 1
    np.testing.assert_array_equal(every_other, all_of_them & odd)
    rng = np.random.default_rng(derive("coins", 11))
    own = scheme(name).coins(Sizes(569, training.recipe.batch_size), (60,), rng)
    np.testing.assert_array_equal(all_of_them, np.stack(list(itertools.islice(own, 6))))


def test_who_is_not_sampled_takes_the_same_steps_bit_for_bit(options):
    rare = options.model_copy(update={"sampling": Poisson(), "batch_size": 2})
    training = DpSgdTraining.prepare(rare.recipe, seed=1, gpu=False)
    ends = [path(training, [bit] * 100, along(training, 3))[-1] for bit in (0, 1)]
    alike = (ends[0] == ends[1]).all(dim=1)
    assert 90 <= int(alike.sum()) < 100


@pytest.mark.parametrize(
    ("name", "rate", "sampling"),
    [
        ("fixed", 1.0, Sampling.POISSON),
        ("poisson", 64 / 569, Sampling.POISSON),
        ("shuffle", 1 / 8, Sampling.SHUFFLE),
        ("balls-and-bins", 1 / 8, Sampling.BALLS_AND_BINS),
    ],
)
def test_what_is_claimed(name, rate, sampling, tiny):
    """569 records in batches of 64: eight batches an epoch, one of which has the canary."""
    mechanism, adversary = cell(tiny, "biased-dimension", sampling=name)
    claimed = mechanism.claimed(adversary, 6)
    assert claimed == Training(2.0, 6, claimed.sample_rate, sampling=sampling)
    assert claimed.sample_rate == pytest.approx(rate)
    if name in ("fixed", "poisson"):
        _, left = cell(tiny, {"name": "biased-dimension", "period": 3}, sampling=name)
        assert mechanism.claimed(left, 6).steps == 2, "a period leaves steps out"


def test_each_canary_of_a_model_has_coins_of_its_own():
    """Two samples in each of four models: every bit meets the coin of its place."""
    inside = torch.tensor([[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    tossed = np.array([[True, False], [True, True], [True, True], [False, True]])
    pair = SampleCanary(torch.ones(2, 3), torch.zeros(2, dtype=torch.long))
    insertion = Insertion(pair, inside, 2, itertools.repeat(tossed), 1.0)
    theta = torch.zeros(4, 5)
    assert insertion.at(1, theta) is None, "the period does not divide it"
    inserted = insertion.at(2, theta)
    assert inserted is not None
    assert [rows.tolist() for rows in inserted.rows] == [[0, 1], [2, 3]]
