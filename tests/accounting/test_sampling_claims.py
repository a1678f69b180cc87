"""Shuffled batches and balls in bins: no bound but what is proven; events that differ."""

import math
import re
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from scipy import special

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Training
from dpaudit_ray.stats import gdp
from tests.accounting.ask import EVERY, SAMPLED, bound, least_delta

approx = pytest.approx


@pytest.mark.parametrize(
    ("rate", "steps", "epochs"),
    [
        (0.01, 100, 1), (0.01, 101, 2), (0.1, 50, 5), (1 / 3, 9, 3), (0.1, 1, 1), (0.3, 9, 3),
        (256 / 60000, 14062, 61), (256 / 60000, 234, 1), (0.9, 5, 5), (1.0, 7, 7),
    ],
)  # fmt: skip
def test_epochs_are_those_that_were_begun(rate, steps, epochs):
    """What does not fill a batch may be left out: 60,000 records make 234 batches of 256."""
    training = Training(1.0, steps, rate, sampling="shuffle")
    assert training.unamplified == Training(1.0, epochs)
    assert epochs >= math.ceil(steps * rate - 1e-9)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("sampling", ["shuffle", "balls-and-bins"])
def test_without_a_proof_an_epoch_counts_as_a_release(name, sampling):
    found = bound(2.0, 50, 1e-5, 0.1, name, sampling=sampling)
    without = accounting.epsilon(2.0, 5, 1e-5, accountant=name)
    if accounting.remark(Training(2.0, 50, 0.1, sampling=sampling), name):
        assert found.upper == without
        assert "no amplification" in found.note
    assert found.upper <= without
    if name in SAMPLED:
        assert found.upper > accounting.epsilon(2.0, 50, 1e-5, 0.1, name), "no Poisson bound"


@pytest.mark.parametrize("name", EVERY)
def test_shuffled_curves_rise_by_epoch(name):
    steps = [0, 1, 10, 11, 50]
    shuffled = Training(2.0, 50, 0.1, sampling="shuffle")
    curve = accounting.curve(shuffled, steps, 1e-5, name)
    plain = accounting.curve(Training(2.0, 5), [0, 1, 1, 2, 5], 1e-5, name)
    np.testing.assert_array_equal(curve, plain)


@pytest.mark.parametrize("name", EVERY)
def test_replacement_of_a_shuffled_record_moves_a_sum_twice_as_far(name):
    found = accounting.epsilon(4.0, 50, 1e-5, 0.1, name, "replace", "shuffle")
    assert found == accounting.epsilon(4.0, 50, 1e-5, 0.1, name, "replace", "balls-and-bins")
    assert found == approx(accounting.epsilon(2.0, 5, 1e-5, accountant=name), rel=1e-9)


def worst_order(noise: float, batches: int, trials: int, rng: np.random.Generator) -> float:
    """Hit rate of the best guess where an epoch's batch of the record is drawn, and not told."""
    members = rng.random(trials) < 0.5
    seen = rng.normal(size=(trials, batches)) * noise
    seen[np.arange(trials), rng.integers(batches, size=trials)] += members
    ratio = special.logsumexp((2 * seen - 1) / (2 * noise**2), axis=1) - math.log(batches)
    return float(np.mean((ratio > 0) == members))


@pytest.mark.parametrize("name", EVERY)
def test_no_attack_on_balls_in_bins_is_beyond_its_claim(name):
    """Five standard deviations of the simulation: fails once in three million."""
    rate = worst_order(0.5, 10, 40_000, np.random.default_rng(0))
    allowed = least_delta(0.5, 10, 0.0, 0.1, name, sampling="balls-and-bins")
    assert rate - 5 * 0.5 / math.sqrt(40_000) < (1 + allowed) / 2


def test_noise_for_an_epsilon_of_shuffled_batches():
    noise = accounting.noise_multiplier(4.0, 50, 1e-5, 0.1, sampling="shuffle")
    assert accounting.epsilon(noise, 50, 1e-5, 0.1, sampling="shuffle") == approx(4.0)
    by_rdp = accounting.noise_multiplier(4.0, 50, 1e-5, 0.1, "rdp", sampling="shuffle")
    assert by_rdp > noise


# --- events that differ -------------------------------------------------------------------------

EVENTS = [(1.0, 0.05, 60), (1.3, 0.02, 100), (1.0, 0.05, 40)]


@pytest.mark.parametrize("name", SAMPLED)
def test_events_are_composed(name):
    found = accounting.events_epsilon(EVENTS, 1e-5, name)
    first = accounting.epsilon(1.0, 100, 1e-5, 0.05, name)
    assert first < found < first + accounting.epsilon(1.3, 100, 1e-5, 0.02, name)
    assert accounting.events_epsilon(EVENTS[::2], 1e-5, name) == first
    assert accounting.events_epsilon(reversed(EVENTS), 1e-5, name) == approx(found)


def test_composed_events_agree_with_the_libraries():
    from opacus.accountants import RDPAccountant

    by_opacus = RDPAccountant()
    by_opacus.history = list(EVENTS)
    found = accounting.events_epsilon(by_opacus.history, 1e-5, "rdp")
    assert found == approx(by_opacus.get_epsilon(1e-5), rel=1e-6)
    by_pld = accounting.events_epsilon(EVENTS, 1e-5, "pld")
    assert by_pld == approx(accounting.events_epsilon(EVENTS, 1e-5, "prv"), abs=0.02)
    assert by_pld < found


def test_gaussian_events_add_up_their_squares():
    events, fewer = [(4.0, 1.0, 16), (2.0, 1.0, 12)], [(4.0, 1.0, 4), (2.0, 1.0, 3)]
    exact = approx(gdp.epsilon(2.0, 1e-5))
    assert accounting.events_epsilon(events, 1e-5, "gaussian") == exact
    assert accounting.events_epsilon(fewer, 1e-5, "gaussian", "replace") == exact
    assert accounting.events_epsilon(events, 1e-5) == approx(gdp.epsilon(2.0, 1e-5), abs=1e-4)


def test_events_that_say_nothing_or_all():
    assert accounting.events_epsilon([], 1e-5) == 0
    assert accounting.events_epsilon([(1.0, 0.1, 0)], 1e-5) == 0
    assert accounting.events_epsilon([(0.0, 0.1, 1), (1.0, 0.1, 1)], 1e-5) == math.inf
    with pytest.raises(ValueError, match="exact at sample_rate 1 only"):
        accounting.events_epsilon(EVENTS, 1e-5, "gaussian")
    with pytest.raises(ValueError, match=r"sample_rate must lie in \(0, 1\], got 2"):
        accounting.events_epsilon([(1.0, 2.0, 1)], 1e-5)


# --- the table of the docs ------------------------------------------------------------------------

PAGE = Path(__file__).resolve().parents[2] / "docs" / "estimators-and-accountants.md"
_ROW = r"^\| ([\d.]+), ([\d./]+), (\d+) \| (poisson|shuffle|fixed) \| (.*) \|$"
ROWS = re.findall(_ROW, PAGE.read_text(), re.M)
assert len(ROWS) == 9, "the docs have every kind of batches"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: " ".join(row[:4]))
def test_claims_of_the_docs(row):
    noise, rate, steps, batches, cells = row
    asked = (float(noise), int(steps), 1e-5, 1.0 if batches == "fixed" else float(Fraction(rate)))
    sampling = "poisson" if batches == "fixed" else batches
    found = []
    for name in ("gaussian", "pld", "prv", "rdp"):
        try:
            found.append(f"{accounting.epsilon(*asked, name, sampling=sampling):.3f}")
        except ValueError:
            found.append("–")
    exact = "pld" if batches == "poisson" else "gaussian"
    found.append(f"{accounting.epsilon(*asked, exact, 'replace', sampling):.3f}")
    assert " | ".join(found) == cells
