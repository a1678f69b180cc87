"""No claim lies below the truth, down to δ = 1e-15, and the truth is found in another way.

The twin uses no grid of losses and no Fourier transform: δ(ε) is an integral of the moment
generating function M(z) = E e^(zL) of a step, along a line through the saddle point θ,

    δ(ε) = 1/π ∫_0^∞ Re[M(θ + it)^T e^(-(θ + it) ε) / ((θ + it)(1 + θ + it))] dt,

since (1 - e^(ε - l))₊ has this transform; M itself is an integral over what a step shows. Both by
the trapezoid rule, whose error falls exponentially for such functions.
"""

import functools
import gc
import itertools
import math
import weakref
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest
from scipy import optimize, special

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Family, Training
from dpaudit_ray.accounting.pld import LossSum, Pld, advantage, least_epsilon, step_losses
from tests.accounting.ask import bound, least_delta
from tests.long import LONG, long

approx = pytest.approx

Complex = npt.NDArray[np.complex128]
_SETTINGS, _NODES = 40, 3001


class Twin:
    """The truth of a Poisson-sampled training under removal (`added` False) or addition."""

    def __init__(self, noise: float, rate: float, steps: int, added: bool) -> None:
        x = np.linspace(-14 * noise, 1 + 14 * noise, _NODES)
        density = np.exp(-(x**2) / (2 * noise**2)) / (noise * math.sqrt(2 * math.pi))
        ratio = (2 * x - 1) / (2 * noise**2)
        loss = np.logaddexp(math.log1p(-rate), math.log(rate) + ratio)
        self._mass = density * (x[1] - x[0]) * (1 if added else np.exp(loss))
        self._loss, self._steps = -loss if added else loss, steps

    def log_moment(self, z: Complex) -> Complex:
        """T log M, complex128 [n]; continuous from the first of z on, which is real."""
        moments = np.exp(np.multiply.outer(z, self._loss)) @ self._mass
        log = np.log(np.abs(moments)) + 1j * np.unwrap(np.angle(moments))
        return np.asarray(self._steps * log)

    def _real(self, theta: float) -> float:
        return float(self.log_moment(np.array([theta], np.complex128))[0].real)

    def epsilon(self, delta: float) -> float:
        """ε at δ; 0 where it is none."""

        def chernoff(log_theta: float) -> float:
            theta = math.exp(log_theta)
            return (self._real(theta) - math.log(delta)) / theta

        best = optimize.minimize_scalar(chernoff, bounds=(-4.0, 6.0), method="bounded")
        theta, most = math.exp(best.x), float(best.fun)
        # In t = θ sinh(v), which sees all scales from θ to where the integrand fell by e^-30.
        far = theta
        while self.log_moment(np.array([theta, theta + 1j * far]))[1].real > self._real(theta) - 30:
            far *= 1.3
            if far > 1e5:
                break
        v = np.linspace(0, math.asinh(far / theta), _NODES // 2)
        z = theta + 1j * theta * np.sinh(v)
        log = np.concatenate([self.log_moment(part) for part in np.array_split(z, 60)])
        log.imag = np.unwrap(log.imag, period=2 * math.pi * self._steps)

        def excess(epsilon: float) -> float:
            waves = (np.exp(log - z * epsilon - math.log(delta)) / (z * (1 + z))).real
            found = float(np.trapezoid(waves * theta * np.cosh(v), v)) / math.pi
            return math.log(max(found, 1e-300))

        low = most
        while excess(low) < 0 and low > 1e-6 * most:
            low *= 0.9
        return float(optimize.brentq(excess, low, most, xtol=1e-12)) if excess(low) > 0 else 0.0


@functools.cache
def truth(noise: float, rate: float, steps: int, delta: float) -> float:
    """ε at δ under adding or removing a record."""
    return max(Twin(noise, rate, steps, added).epsilon(delta) for added in (False, True))


def settings() -> Iterator[tuple[float, float, int, float]]:
    """Noise, rate, steps and δ at random: seed 20, δ log-uniform from 1e-15 to 1e-5."""
    rng = np.random.default_rng(20)
    while True:
        noise, rate = 0.5 * 10 ** rng.uniform(0, 1), 10 ** rng.uniform(-3.5, -0.5)
        steps, delta = int(10 ** rng.uniform(2.5, 5)), 10 ** rng.uniform(-15, -5)
        if 0.3 < accounting.epsilon(noise, steps, delta, rate, "rdp") < 100:
            yield noise, rate, steps, delta


LENGTHY = long("forty settings take minutes")
CHOSEN = [i if i in (1, 2) else pytest.param(i, marks=LENGTHY) for i in range(_SETTINGS)]


@pytest.mark.parametrize("number", CHOSEN)
def test_no_claim_lies_below_the_truth(number):
    noise, rate, steps, delta = next(itertools.islice(settings(), number, None))
    exact = truth(noise, rate, steps, delta)
    training = Training(noise, steps, rate)
    lower, upper = least_epsilon(training, delta), Pld().epsilon(training, delta)
    assert lower <= exact * (1 + 1e-7) <= upper * (1 + 2e-7)
    assert upper < exact + 0.003
    for name in ("prv", "rdp"):
        assert accounting.epsilon(noise, steps, delta, rate, name) >= exact * (1 - 1e-7)


@pytest.mark.parametrize(
    ("delta", "exact"),
    [pytest.param(1e-12, 4.504, marks=long("as at 1e-15")), (1e-15, 5.799)],
)
def test_small_deltas_do_not_drown_in_rounding(delta, exact):
    """At 1e-12 the PLD of dp_accounting gave 4.392: its transforms round to 1e-16 a cell."""
    assert truth(0.7, 1e-3, 10_000, delta) == approx(exact, abs=1e-3)
    for name in ("pld", "prv", "rdp"):
        claim = accounting.epsilon(0.7, 10_000, delta, 1e-3, name)
        assert claim >= truth(0.7, 1e-3, 10_000, delta)
    for name in ("pld", "rdp"):
        assert least_delta(0.7, 10_000, exact - 0.01, 1e-3, name) >= delta
    assert accounting.epsilon(0.7, 10_000, delta, 1e-3, "pld") < exact + 1e-3
    halves = [(0.7, 1e-3, 5000), (0.7000001, 1e-3, 5000)]
    composed = accounting.events_epsilon(halves, delta)
    assert composed == approx(truth(0.7, 1e-3, 10_000, delta), abs=1e-3)


def test_where_all_records_are_seen_the_claim_is_exact():
    for name in ("gaussian", "pld"):
        found = accounting.epsilon(5.0, 10**6, 1e-12, accountant=name)
        assert found == approx(21405.91, abs=0.01)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("pessimistic", [False, True])
def test_sums_of_losses_are_those_of_plain_convolution(pessimistic, adjacency):
    """The twin adds no logarithms and no weights: numpy's convolution of masses, step by step."""
    step = Training(0.9, 1, 0.05, adjacency)
    for one in step_losses(step, 0.02, pessimistic):
        masses, steps = one.masses, 12
        for _ in range(steps - 1):
            masses = np.convolve(masses, one.masses)
        points = (steps * one.first + np.arange(len(masses))) * one.width + steps * one.shift
        total = LossSum(((one, steps),), pessimistic)
        for epsilon in (0.0, 0.5, 2.0, 6.0, 8.0):
            past = points > epsilon
            twin = float(-np.expm1(epsilon - points[past]) @ masses[past])
            assert total.delta(epsilon) == approx(twin, rel=1e-6, abs=1e-38)
            if twin > 1e-15 and epsilon:
                assert total.epsilon(twin) == approx(epsilon, abs=1e-6)


@pytest.mark.parametrize("rate", [1e-3, 0.3, 1.0])
def test_a_step_lies_between_what_is_made_of_it(rate):
    """δ of one step in closed form, from above and from below, down to 1e-15."""
    noise, width = 0.8, 1e-3
    ends = [step_losses(Training(noise, 1, rate), width, sure) for sure in (False, True)]
    for epsilon in np.arange(0.1, 9.0, 0.31):
        cut = math.log1p(math.expm1(epsilon) / rate) * noise**2 + 0.5
        kept = special.ndtr(-cut / noise)
        exact = (1 - rate - math.exp(epsilon)) * kept + rate * special.ndtr((1 - cut) / noise)
        low, high = (LossSum(((removed, 1),), sure).delta(epsilon) for sure, (removed, _) in
                     zip((False, True), ends, strict=True))  # fmt: skip
        if exact > 1e-15:
            assert low <= exact * (1 + 1e-9) <= high * (1 + 2e-9)
            assert high - low < 0.02 * exact


def test_the_family_certifies_no_more_than_the_truth():
    """Its ends came from PRV, of whose floats nothing is proven, and from the PLD's lower one."""
    claimed = Training(0.7, 10_000, 1e-3)
    best = (1 + advantage(claimed)) / 2
    for delta in (1e-5, 1e-12):
        assert 0.95 * truth(0.7, 1e-3, 10_000, delta) < Family(claimed).epsilon(best, delta)
        assert Family(claimed).epsilon(best, delta) <= truth(0.7, 1e-3, 10_000, delta)


def test_replacement_with_sampling_has_a_status_of_its_own():
    found = bound(2.0, 100, 1e-5, 0.1, "prv", "replace")
    assert found.status == "if-assumed"
    assert "; if-assumed: replacement with sampling: opposite gradients are taken" in found.note
    asked = Training(2.0, 100, 0.1, "replace")
    assert accounting.remark(asked, "pld").startswith("if-assumed: ")
    for others in ((0.1, "pld"), (1.0, "pld", "replace"), (0.1, "pld", "replace", "shuffle")):
        assert bound(2.0, 100, 1e-5, *others).status == "certified"


def test_pld_is_that_of_dp_accounting():
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    grid = {"sampling_prob": 0.1, "value_discretization_interval": 1e-4}
    theirs = from_gaussian_mechanism(2.0, **grid).self_compose(50).get_epsilon_for_delta(1e-6)
    assert accounting.epsilon(2.0, 50, 1e-6, 0.1, "pld") == approx(theirs, rel=2e-3)


def test_sums_of_losses_go_with_their_arrays():
    """Four weighings of all sums are kept; of a sum of its own each, in a cycle, all six stayed."""
    gc.disable()
    try:
        sums = list[weakref.ref[LossSum]]()
        for noise in np.linspace(1.0, 1.5, 6):
            total = LossSum(((step_losses(Training(noise, 1, 0.1), 0.02, True)[0], 12),), True)
            assert 0 < total.delta(1.0) < 1
            sums.append(weakref.ref(total))
        assert sum(total() is not None for total in sums) == 4
    finally:
        gc.enable()


FAR_FROM_CLAIMS = [  # noise, sample rate, steps, as a search over the noise of a family asks
    (1e-4, 0.01, 100),
    (1e-3, 1e-9, 10**6),
    (0.02, 0.5, 2),
    (0.05, 1e-3, 10**8),
    (0.01, 1 - 1e-9, 5),
    (1e4, 1e-9, 10**8),
    *itertools.product((1e-4, 0.01, 0.3, 1.0, 1e4), (1e-9, 1e-3, 0.5), (1, 10**3, 10**8)),
]


@pytest.mark.parametrize("mechanism", FAR_FROM_CLAIMS if LONG else FAR_FROM_CLAIMS[:6])
def test_bounds_answer_for_any_mechanism_of_a_family(mechanism):
    sigma, rate, steps = mechanism
    upper = bound(sigma, steps, 1e-5, rate, "pld").upper
    lower = least_epsilon(Training(sigma, steps, rate), 1e-5)
    assert 0 <= lower <= upper < math.inf
    assert bound(sigma / 2, steps, 1e-5, rate, "pld").upper >= upper * (1 - 1e-3) - 1e-3


def test_delta_below_the_mass_taken_for_infinite_has_a_finite_epsilon():
    """17.2919 is exact; 17.711 is what Rényi divergences give."""
    assert bound(1.0, 1000, 1e-100, 0.001, "pld").upper == approx(17.711, abs=1e-3)
