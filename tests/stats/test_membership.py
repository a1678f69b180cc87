"""Membership: attacks against slow twins by the papers' formulas, and intervals against truth."""

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import special, stats

import dpaudit_ray as da
from dpaudit_ray.stats.curve import gaussian
from dpaudit_ray.stats.membership import Interval, Membership, sentence
from tests.long import long

STUDIES = 1000
SHORT = 60


def references(trainings: int = 24, records: int = 7, seed: int = 0):
    """Logits of records of different difficulty, 1.5 higher where they are in."""
    rng = np.random.default_rng(seed)
    members = rng.random((trainings, records)) < 0.5
    difficulty, spread = rng.normal(size=records), rng.uniform(0.5, 2, size=records)
    return rng.normal(difficulty + 1.5 * members, spread), members


def lira_twin(logit, inside, outside, deviations=None):
    """Carlini et al. 2022, Algorithm 1, lines 9 to 15; one-sided offline (equation 4)."""
    spread_in, spread_out = deviations or (np.std(inside), np.std(outside))
    if inside is None:
        return 1 - stats.norm.sf(logit, np.mean(outside), spread_out)
    return math.log(
        stats.norm.pdf(logit, np.mean(inside), spread_in)
        / stats.norm.pdf(logit, np.mean(outside), spread_out)
    )


def rmia_twin(logits, calibrating, members, record, gamma, slope=None):
    """Zarifzadeh et al. 2024: the share of z with LR(x, z) >= γ, of p(x | θ) / p(x)."""

    def ratio(x):
        chances = [1 / (1 + math.exp(-s)) for s in calibrating[:, x]]
        out = np.mean([p for p, bit in zip(chances, members[:, x], strict=True) if not bit])
        if slope is None:
            usual = np.mean([p for p, bit in zip(chances, members[:, x], strict=True) if bit])
        else:
            usual = slope * out + (1 - slope)
        return 1 / (1 + math.exp(-logits[x])) / ((usual + out) / 2)

    return np.mean([ratio(record) / ratio(z) >= gamma for z in range(len(logits))])


@pytest.mark.parametrize("variance", ["record", "global"])
@pytest.mark.parametrize("online", [True, False])
def test_lira_is_its_paper(variance, online):
    logits, members = references()
    shown = da.membership(logits, members, "lira", online=online, variance=variance)
    first, bits, deviations = logits[:12], members[:12], None
    if variance == "global":
        deviations = tuple(
            math.sqrt(
                sum(np.sum((s := first[b, x]) ** 2) - len(s) * np.mean(s) ** 2
                    for x, b in enumerate(chosen.T)) / (chosen.sum() - chosen.shape[1])
            )
            for chosen in (bits, ~bits)
        )  # fmt: skip
    for row, column in np.ndindex(shown.scores.shape):
        inside = first[bits[:, column], column]
        outside = first[~bits[:, column], column]
        if not online:
            spread = np.std(outside) if deviations is None else deviations[1]
            twin = lira_twin(logits[12 + row, column], None, outside, (0, spread))
            assert special.ndtr(shown.scores[row, column]) == pytest.approx(twin, abs=1e-6)
        else:
            twin = lira_twin(logits[12 + row, column], inside, outside, deviations)
            assert shown.scores[row, column] == pytest.approx(twin, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize(("gamma", "slope"), [(2.0, None), (1.0, None), (1.2, 0.3)])
def test_rmia_is_its_paper(gamma, slope):
    logits, members = references(records=20, seed=1)
    offline = {} if slope is None else {"online": False, "slope": slope}
    shown = da.membership(logits, members, "rmia", gamma=gamma, calibrating=16, **offline)
    for row, column in np.ndindex(shown.scores.shape):
        twin = rmia_twin(logits[16 + row], logits[:16], members[:16], column, gamma, slope)
        assert shown.scores[row, column] == pytest.approx(twin, abs=1e-6)


def test_difficulty_is_taken_away_and_blocks_change_nothing(monkeypatch):
    logits, members = references()
    whole = {name: da.membership(logits, members, name).scores for name in ("lira", "rmia")}
    loss = -np.log1p(np.exp(-logits))
    usual = np.array([loss[:12][~members[:12, x], x].mean() for x in range(7)])
    calibrated = da.membership(logits, members, "calibrated")
    np.testing.assert_allclose(calibrated.scores, loss[12:] - usual, rtol=1e-9)
    np.testing.assert_allclose(da.membership(logits, members, "loss").scores, loss[12:])
    monkeypatch.setattr("dpaudit_ray.stats.reference_attacks._BLOCK", 12 * 3)
    for name, scores in whole.items():
        np.testing.assert_array_equal(da.membership(logits, members, name).scores, scores)


def test_what_cannot_be_attacked_is_one_line():
    logits, members = references()
    for problem, call in {
        "got shapes": lambda: da.membership(logits, members[:, 1:]),
        "calibrating must lie in 1..23, got 24": lambda: da.membership(
            logits, members, calibrating=24
        ),
        "attack must be one of loss, calibrated, lira, rmia, got 'lora'": lambda: da.membership(
            logits, members, "lora"
        ),
        "variance must be one of record, global, got 'own'": lambda: da.membership(
            logits, members, variance="own"
        ),
        "in of 2 or more of the calibrating trainings, got 0 of 12": lambda: da.membership(
            logits, members & (np.arange(7) > 0)
        ),
        "got NaN": lambda: da.membership(logits * np.nan, members),
        "members must be of both worlds": lambda: Membership(logits, members | True),
        "gamma must be above 0": lambda: da.membership(logits, members, "rmia", gamma=0),
    }.items():
        with pytest.raises(ValueError, match=problem) as caught:
            call()
        assert "\n" not in str(caught.value)
    offline = da.membership(logits, members & (np.arange(7) > 0), "lira", online=False)
    assert np.isnan(offline.risks.auc[0])
    assert offline.risks.low[0] == 0


def test_numbers_are_those_counted_by_hand():
    rng = np.random.default_rng(2)
    members = rng.random((30, 20)) < 0.5
    scores = np.round(rng.normal(size=members.shape) + members, 1)  # with ties
    shown = Membership(scores, members)
    inside, outside = scores[members], scores[~members]
    pairs = np.sign(inside[:, None] - outside[None]) / 2 + 0.5
    assert shown.auc.value == pytest.approx(pairs.mean(), abs=1e-12)
    fpr = shown.least_fpr * 3
    best = max(
        (inside > t).mean() for t in [*scores.ravel(), np.inf] if (outside > t).mean() <= fpr
    )
    assert shown.true_positive_rate(fpr).value == best
    assert [*shown.points] == [0.1]  # 600 scores resolve 1.7 %
    for column in (0, 7):
        a, b = (scores[bits, column] for bits in (members[:, column], ~members[:, column]))
        pairs = np.sign(a[:, None] - b[None]) / 2 + 0.5
        assert shown.risks.auc[column] == pytest.approx(pairs.mean(), abs=1e-12)
    lowest = Membership(np.where(scores < -1, np.nan, scores), members)
    assert lowest.auc.value == Membership(np.maximum(scores, -1.05), members).auc.value


def test_records_that_show_are_ranked_first():
    rng = np.random.default_rng(3)
    members = rng.random((120, 50)) < 0.5
    shift = np.where(np.arange(50) < 3, 4.0, 0.0)
    shown = Membership(rng.normal(size=members.shape) + shift * members, members)
    assert {*shown.risks.exposed} == {0, 1, 2}  # others: in 5 % of seeds
    assert {*shown.risks.ranked[:3]} == {0, 1, 2}


def study(rng, shape, shared, shift):
    """Scores whose noise has a part that all records of a training share, and their truth."""
    members = rng.random(shape) < 0.5
    noise = math.sqrt(1 - shared) * rng.normal(size=shape)
    noise += math.sqrt(shared) * rng.normal(size=(len(members), *[1] * (len(shape) - 1)))
    return Membership(noise + shift * members, members)


@pytest.mark.parametrize("studies", [SHORT, pytest.param(STUDIES, marks=long("1000 studies"))])
@pytest.mark.parametrize(
    ("shape", "shared", "shift"),
    [((500,), 0, 1.0), ((64, 50), 0, 1.0), ((64, 50), 0.3, 1.0), ((40, 50), 0.3, 3.0)],
)
def test_intervals_cover(shape, shared, shift, studies):
    """At 95 %. By chance fewer than 93 % of 1000 would be in 1 of 400 tests, 86 % of 60 in 1 of
    500."""
    rng, covered = np.random.default_rng(4), dict.fromkeys(("auc", 0.1, 0.01, "band"), 0)
    for number in range(studies):
        shown = study(rng, shape, shared, shift)
        for fpr in (0.1, 0.01):
            shows, truth = shown.true_positive_rate(fpr), special.ndtr(special.ndtri(fpr) + shift)
            covered[fpr] += shows.low <= truth <= shows.high
        covered["auc"] += shown.auc.low <= special.ndtr(shift / math.sqrt(2)) <= shown.auc.high
        if number < SHORT:
            covered["band"] += all(
                rate.low <= special.ndtr(special.ndtri(fpr) + shift) <= rate.high
                for fpr, rate in shown.roc.items()
            )
    assert covered.pop("band") >= 0.86 * SHORT
    assert min(covered.values()) >= (0.93 if studies == STUDIES else 0.86) * studies, covered


def test_one_training_or_a_lost_one_promises_nothing_of_others():
    rng = np.random.default_rng(5)
    one = study(rng, (1, 400), 0, 2.0)
    assert (one.auc.low, one.auc.high) == (0, 1)
    assert one.auc.value > 0.8


def test_epsilon_of_the_same_scores_is_valid_and_not_zero():
    """Pairs of opposite bits, too. Each bound errs in at most 5 %."""
    rng = np.random.default_rng(6)
    half = rng.random((200, 10)) < 0.5
    members = np.stack([half, ~half], 1).reshape(400, 10)
    shown = Membership(rng.normal(size=members.shape) + members, members)
    claim = float(da.stats.gdp.epsilon(1.0, 1e-5))
    scores, bits = shown.scores.ravel(), shown.members.ravel()
    for method, together in (("several-canaries", 10), ("paired", 20)):
        runs = np.arange(len(scores)) // together
        bound = da.stats.estimate(scores, bits, 1e-5, 0.95, method, runs=runs)
        assert 0.5 < bound.epsilon_lower < claim


def test_a_rate_in_words():
    rate = Interval(0.0105, 0.0042, 0.0118)
    assert sentence(0.001, rate, 0.95, gaussian(1.0)) == (
        "of 1,000 members, an attacker who accuses 1 of 1,000 strangers wrongly finds 10 by these "
        "scores (95 %: 4 to 12); by the claim any attacker finds at most 19"
    )


@long("a matrix of 10^5 records and 256 models")
@pytest.mark.parametrize("attack", ["lira", "rmia"])
def test_a_large_matrix_takes_less_than_two_gibibytes(attack):
    code = f"""
import numpy as np, resource
from dpaudit_ray.stats.reference_attacks import membership
rng = np.random.default_rng(0)
members = rng.random((256, 100_000), dtype=np.float32) < 0.5
logits = rng.standard_normal(members.shape) + members
shown = membership(logits, members, {attack!r})
shown.auc, shown.points, shown.roc, shown.balanced_accuracy, shown.risks
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert int(done.stdout) < 2 * 2**20
