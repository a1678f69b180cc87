"""The accountants: reference values, error bounds, fallbacks, adjacency and refusals."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Training, rdp
from dpaudit_ray.stats import gdp
from tests.accounting.ask import EVERY, SAMPLED, bound, least_delta
from tests.long import long
from tests.stats.reference import cases, rows

approx = pytest.approx


def short(found, *names):
    """The cases, with those of these names only in the long form of the suite."""
    grids = long("the largest grids that are allowed take 20 s")
    return [pytest.param(*c.values, id=c.id, marks=grids) if c.id in names else c for c in found]


# --- the reference file ------------------------------------------------------------------------


@pytest.mark.parametrize("row", rows("accounting_dpsgd_q1"))
def test_without_sampling(row):
    def at(name: str) -> float:
        return accounting.epsilon(row["sigma"], row["T"], row["delta"], accountant=name)

    assert at("gaussian") == approx(row["eps_exact"], abs=1e-6)
    assert at("pld") == approx(row["pld"], abs=1e-4)
    assert at("rdp") == approx(row["rdp_default"], rel=1e-2)
    assert at("rdp") == approx(row["opacus_rdp_q1"], rel=1e-9)
    for upper in (row["prv_gaussian"][2], row["opacus_prv_q1"]):
        assert at("prv") == approx(upper, abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("case", short(cases("prv_eps_upper"), "F33", "F25", "F27"))
def test_prv_upper_ends(case):
    i = case["inputs"]
    found = bound(i["sigma"], i["steps"], i["delta"], i["q"], "prv")
    assert found.accountant == "prv"
    assert found.upper == approx(case["expected"]["eps"], abs=max(case["tol"], 1e-6))


ONE_NUMBER = {  # families of cases that have one: what is asked, and the number's name
    "rdp_eps": (lambda i: epsilon_at(i, "rdp"), "eps"),
    "gaussian_sigma_T250": (
        lambda i: accounting.noise_multiplier(i["eps"], i["T"], i["delta"]), "noise_multiplier",
    ),
    "noise_multiplier_gdp": (
        lambda i: accounting.clt_noise_multiplier(
            i["eps"], int(i["epochs"] / i["q"]), i["delta"], i["q"]
        ), "sigma",
    ),
    "pld_noise": (  # 2e-7 in ε is 1e-7 in the noise here: ε falls by about 2 per unit of it
        lambda i: accounting.noise_multiplier(
            i["eps"], i["steps"], i["delta"], i["q"], "pld", tolerance=1e-7
        ), "std",
    ),
    "pld_delta": (
        lambda i: least_delta(i["sigma"], i["steps"], i["eps"], i["q"], "pld"), "delta",
    ),
}  # fmt: skip


def epsilon_at(inputs, accountant):
    training = (inputs["sigma"], inputs["steps"], inputs["delta"], inputs["q"])
    return accounting.epsilon(*training, accountant)


@pytest.mark.parametrize("case", cases(*ONE_NUMBER))
def test_numbers_of_the_reference(case):
    ask, name = ONE_NUMBER[case["family"]]
    assert ask(case["inputs"]) == approx(case["expected"][name], abs=case["tol"])


@pytest.mark.parametrize("case", cases("rdp_vector"))
def test_rdp_at_single_orders(case):
    i = case["inputs"]
    found = rdp.divergences(i["sigma"], i["steps"], i["q"], i["orders"])
    np.testing.assert_allclose(found, case["expected"]["rdp"], rtol=1e-4)


@pytest.mark.parametrize("case", cases("rdp_to_eps"))
def test_rdp_conversion(case):
    orders = np.arange(2, 33)
    found, order = rdp.to_epsilon(np.full(len(orders), 1.1), orders, case["inputs"]["delta"])
    assert found == approx(case["expected"]["eps"], abs=case["tol"])
    assert order == case["expected"]["order"]


@pytest.mark.parametrize(
    "case", short(cases("noise_multiplier_rdp", "noise_multiplier_prv"), "F40")
)
def test_noise_multipliers_as_opacus(case):
    i, name = case["inputs"], case["family"].rsplit("_", 1)[1]
    training = int(i["epochs"] / i["q"]), i["delta"], i["q"], name
    found = accounting.noise_multiplier(i["eps"], *training)
    assert found == approx(case["expected"]["sigma"], abs=case["tol"])
    assert i["eps"] - 0.01 <= accounting.epsilon(found, *training) <= i["eps"]


@pytest.mark.parametrize("case", cases("accountant_cross"))
def test_accountants_side_by_side(case):
    i, expected, tol = case["inputs"], case["expected"], case["tol"]
    for name, key in (("rdp", "opacus_rdp"), ("prv", "opacus_prv"), ("pld", "dpacc_pld_1e4")):
        assert epsilon_at(i, name) == approx(expected[key], abs=tol)
    clt = accounting.clt_epsilon(i["sigma"], i["steps"], i["delta"], i["q"])
    assert clt == approx(expected["opacus_gdp_clt"], abs=tol)
    assert clt < epsilon_at(i, "pld")


RECORDED = {  # a constant that an accountant is tuned by moves these, and breaks nothing else
    "prv": [9.79172943684935, 0.8950751665305277, 3.879009813766878],
    "pld": [9.78110638040151, 0.8849981699156737, 3.8688377372189247],
    "rdp": [10.982665677750333, 1.3001218867840239, 4.148711396377147],
}


@pytest.mark.parametrize("name", RECORDED)
def test_no_claim_has_moved(name):
    settings = ((0.6, 3, 1e-6, 0.2), (1.1, 200, 1e-6, 0.01), (4.0, 1000, 1e-6, 0.1))
    found = [accounting.epsilon(*setting, name) for setting in settings]
    assert found == approx(RECORDED[name], rel=1e-9)


# --- what the accountants promise ----------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize(("noise", "steps"), [(4.0, 1), (1.0, 1), (2.0, 30), (4.0, 250)])
def test_no_claim_lies_below_the_exact_value(name, noise, steps):
    exact = gdp.epsilon(math.sqrt(steps) / noise, 1e-5)
    found = bound(noise, steps, 1e-5, accountant=name)
    assert found.accountant == ("gaussian" if name == "allocation" else name)
    assert exact <= found.upper * (1 + 1e-9)
    assert 1e-5 * (1 - 1e-6) <= least_delta(noise, steps, exact, accountant=name) <= 1
    inverse = least_delta(noise, steps, found.upper, accountant=name)
    assert inverse == approx(1e-5, rel=0.1)


class OneMethod(accounting.Accountant):
    """The exact ε, and nothing else."""

    def epsilon(self, training, delta):
        return float(gdp.epsilon(math.sqrt(training.steps) / training.noise_multiplier, delta))


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 4.0, 30.0])
def test_delta_follows_from_epsilon(epsilon):
    found = OneMethod().delta(Training(2.0, 9), epsilon)
    assert found == approx(gdp.delta(epsilon, 1.5), rel=1e-6)
    assert OneMethod().delta(Training(0.01, 9), 0.0) == 1


@pytest.mark.parametrize("name", SAMPLED)
def test_sampling_lies_between_none_and_all(name):
    sampled = accounting.epsilon(1.0, 100, 1e-5, 0.1, name)
    assert 0 < sampled < accounting.epsilon(1.0, 100, 1e-5)
    # PLD is exact to its grid, so no valid upper bound lies visibly below it.
    assert sampled >= accounting.epsilon(1.0, 100, 1e-5, 0.1, "pld") * (1 - 1e-4)


@pytest.mark.parametrize("name", EVERY)
def test_curve_equals_single_claims(name):
    steps = [0, 1, 7, 50]
    curve = accounting.curve(Training(3.0, 50), steps, 1e-5, name)
    single = [accounting.epsilon(3.0, n, 1e-5, accountant=name) for n in steps]
    np.testing.assert_allclose(curve, single, atol=2e-4)
    assert curve[0] == 0 < np.diff(curve).min()


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.0, 2.0])
def test_deltas_are_the_claim_as_a_curve(epsilon):
    exact = least_delta(4.0, 16, epsilon)
    assert exact == approx(gdp.delta(epsilon, 1.0))
    for name in SAMPLED:
        assert least_delta(4.0, 16, epsilon, accountant=name) >= exact - 1e-12


@pytest.mark.parametrize("name", EVERY)
def test_replacement_doubles_the_sensitivity(name):
    replaced = accounting.epsilon(4.0, 10, 1e-5, accountant=name, adjacency="replace")
    assert replaced == approx(accounting.epsilon(2.0, 10, 1e-5, accountant=name), rel=1e-9)


def test_replacement_with_sampling():
    """Two neighbours one after the other bound it from above."""
    removal = accounting.epsilon(2.0, 100, 1e-5, 0.1, "pld")
    replacement = bound(2.0, 100, 1e-5, 0.1, "pld", "replace")
    assert removal < replacement.upper < 2 * removal + 1
    by_prv = bound(2.0, 100, 1e-5, 0.1, "prv", "replace")
    assert (by_prv.accountant, by_prv.upper) == ("pld", replacement.upper)
    reason = "prv handles replacement only at sample_rate 1; pld instead; "
    assert by_prv.note == reason + replacement.note
    assert "worst case" in replacement.note
    with pytest.raises(ValueError, match="rdp handles replacement only at sample_rate 1"):
        accounting.epsilon(2.0, 100, 1e-5, 0.1, "rdp", "replace")


@pytest.mark.parametrize(
    ("setting", "instead", "reason"),
    [
        ((0.8, 1000, 1e-6, 0.2), "pld", "Discrete mean differs"),
        ((0.8, 20_000, 1e-6, 0.2), "pld", "grid points"),
        ((0.01, 20_000, 1e-6, 1.0), "gaussian", "grid points"),
    ],
)
def test_prv_names_its_fallback_where_it_fails(setting, instead, reason, capfd, recwarn):
    """The libraries stay silent."""
    found = bound(*setting, accountant="prv")
    assert (capfd.readouterr(), len(recwarn)) == (("", ""), 0)
    assert found.accountant == instead
    assert reason in found.note
    assert found.note.endswith(f"{instead} instead")
    assert found.upper == accounting.epsilon(*setting, accountant=instead)
    if reason == "grid points":  # the other one takes seconds to find out
        noise, steps, delta, rate = setting
        curve = accounting.curve(Training(noise, steps, rate), [0, steps], delta, "prv")
        np.testing.assert_array_equal(curve, [0.0, found.upper])


@pytest.mark.parametrize(
    ("noise", "rate"), [(0.01, 0.2), (0.1, 1e-4), (0.1, 1.0), (1.0, 0.2), (100.0, 1.0)]
)
def test_pld_and_rdp_answer_over_the_whole_range(noise, rate):
    tight = accounting.epsilon(noise, 1000, 1e-6, rate, "pld")
    loose = accounting.epsilon(noise, 1000, 1e-6, rate, "rdp")
    assert 0 <= tight <= loose * (1 + 1e-3)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_and_everything(name):
    assert accounting.epsilon(1.0, 0, 1e-5, accountant=name) == 0
    assert least_delta(1.0, 0, 0.0, accountant=name) == 0
    assert accounting.epsilon(0.0, 5, 1e-5, accountant=name) == math.inf
    assert least_delta(0.0, 5, 3.0, accountant=name) == 1
    assert least_delta(0.2, 9, 0.0, accountant=name) <= 1


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"noise_multiplier": -1.0}, "noise_multiplier must be at least 0 and finite, got -1"),
        ({"noise_multiplier": math.nan}, "noise_multiplier must be at least 0 and finite, got nan"),
        ({"steps": 2.5}, "steps must be a whole number of at least 0, got 2.5"),
        ({"delta": 0.0}, r"delta must lie in \(0, 1\), got 0"),
        ({"delta": 1.0}, r"delta must lie in \(0, 1\), got 1"),
        ({"sample_rate": 0.0}, r"sample_rate must lie in \(0, 1\], got 0"),
        ({"sample_rate": 1.5}, r"sample_rate must lie in \(0, 1\], got 1.5"),
        ({"sample_rate": 0.5}, "exact at sample_rate 1 only, got 0.5; use prv, pld or rdp"),
        ({"accountant": "moments"}, "accountant must be one of allocation, .*rdp.*, or package"),
        ({"sampling": "sorted"}, "sampling must be one of poisson, shuffle, balls-and-bins, got"),
        ({"adjacency": "swap"}, "adjacency must be one of add-remove, replace, got 'swap'"),
        ({"accountant": "gdp"}, "not an upper bound"),
        (lambda: least_delta(1.0, 3, -1.0), "epsilon must be at least 0, got -1"),
        (lambda: accounting.noise_multiplier(0.0, 3, 1e-5), "epsilon must be positive and finite"),
        (lambda: accounting.noise_multiplier(1.0, 3, 1e-5, 0.1, "rdp", 0), "tolerance must be pos"),
        (lambda: rdp.divergences(1.0, 1, 0.1, [1.0]), "orders must exceed 1"),
    ],
)
def test_refusals_name_value_and_bound(asked, message):
    usual = {"noise_multiplier": 1.0, "steps": 3, "delta": 1e-5}
    with pytest.raises(ValueError, match=message):
        asked() if callable(asked) else accounting.epsilon(**usual | asked)


# --- slow twins ----------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [1.5, 2.0, 7.3, 40.0])
@pytest.mark.parametrize(("noise", "rate"), [(2.5, 0.01), (0.7, 0.2)])
def test_rdp_twin_by_quadrature(order, noise, rate):
    peak = (order * order - order) / (2 * noise**2)

    def integrand(x: float) -> float:
        ratio = np.logaddexp(math.log1p(-rate), math.log(rate) + (2 * x - 1) / (2 * noise**2))
        log_density = -(x**2) / (2 * noise**2) - math.log(noise * math.sqrt(2 * math.pi))
        return math.exp(order * ratio + log_density - peak)

    points = sorted({-20.0, -5.0, 0.0, 1.0, order / 2, order, order + 5.0, order + 20.0})
    total = sum(
        integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-12, limit=200)[0]
        for a, b in itertools.pairwise(points)
    )
    twin = (math.log(total) + peak) / (order - 1)
    assert rdp.divergences(noise, 1, rate, [order])[0] == approx(twin, rel=1e-6)


def test_the_orders_beside_the_best_whole_one_are_enough():
    for noise, rate, delta in ((0.4, 0.01, 1e-8), (1.0, 0.9, 1e-2), (8.0, 0.2, 1e-5)):
        every = rdp.Rdp().epsilon(Training(noise, 300, rate), delta)
        assert rdp.quick_epsilon(noise, 300, rate, delta) == every
