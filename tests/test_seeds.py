"""Secret bits must be fair, independent and the same on every retry.

All seeds are fixed, so nothing here flakes. The rates below say how often a correct generator would
fail under a fresh seed, and so how much a failure after a change means.
"""

import itertools

import numpy as np
import pytest

from dpaudit_ray import seeds

N = 200_000


def z_score(hits: int, trials: int) -> float:
    """Standard deviations that a count of fair coin flips lies from its mean."""
    return (hits - trials / 2) / (trials**0.5 / 2)


@pytest.mark.parametrize("seed", range(5))
def test_bits_are_fair(seed):
    """|z| > 4 has probability 6e-5 per seed."""
    bits = seeds.bits(seed, "audit", 0, N - 1)
    assert bits.dtype == np.bool_
    assert abs(z_score(int(bits.sum()), N)) < 4


def test_bits_are_independent_of_their_neighbours():
    """Agreement at 12 lags, across blocks too: 12 tests at |z| > 4.5 fail with 8e-5."""
    bits = seeds.bits(0, "audit", 0, N - 1)
    for lag in (1, 2, 3, 4, 7, 8, 16, 64, 256, 511, 512, 1024):
        agree = int((bits[lag:] == bits[:-lag]).sum())
        assert abs(z_score(agree, N - lag)) < 4.5, lag


def test_bits_of_different_audits_and_seeds_are_independent():
    """6 pairs at |z| > 4.5 fail with 4e-5."""
    streams = [seeds.bits(s, a, 0, N - 1) for s, a in itertools.product((0, 1), ("a", "b"))]
    for left, right in itertools.combinations(streams, 2):
        assert abs(z_score(int((left == right).sum()), N)) < 4.5


def test_bits_do_not_depend_on_how_trials_are_cut_into_packs():
    whole = seeds.bits(7, "audit", 0, 2999)
    rng = np.random.default_rng(0)
    for _ in range(20):
        cuts = np.sort(rng.choice(np.arange(1, 3000), size=rng.integers(1, 40), replace=False))
        bounds = [0, *map(int, cuts), 3000]
        parts = [seeds.bits(7, "audit", a, b - 1) for a, b in itertools.pairwise(bounds)]
        assert np.array_equal(np.concatenate(parts), whole)


def test_bits_are_pinned():
    """A changed stream would change every recorded run: this must only ever fail on purpose."""
    assert np.packbits(seeds.bits(3, "audit", 0, 63)).tobytes().hex() == "325a82b02e2c538e"
    assert seeds.noise_seed(3, "audit", 10) == 54356329904597385179187175476937385810


def test_seeds_differ_by_purpose_audit_and_place():
    names = [
        seeds.derive(*parts)
        for parts in itertools.product(("noise", "craft", "batches"), (0, 1), ("a", "b"))
    ]
    packs = [seeds.noise_seed(s, a, t) for s in (2, 3) for a in ("a", "b") for t in (0, 10, 20)]
    assert len({*names, *packs}) == len(names) + len(packs)
    assert all(0 <= seed < 2**128 for seed in names + packs)
    # 1 then 23 is not 12 then 3.
    assert seeds.derive("x", 1, 23) != seeds.derive("x", 12, 3)
    assert seeds.derive("x1") != seeds.derive("x", 1)
