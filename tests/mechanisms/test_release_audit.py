"""`da.audit`: a function, its pairs and its claim in one call."""

import subprocess
import sys

import numpy as np
import pytest

import dpaudit_ray as da


def noisy_count(data, rng, n):
    return data + rng.laplace(0, 1.0, n)


def ages():
    return np.array([21.0, 35.0, 64.0])


def test_one_call_gives_the_answer_of_a_run_and_again_the_same_run(tmp_path):
    call = {
        "pairs": [(10, 11)],
        "claim": da.Claim(epsilon=1),
        "adversary": {"name": "learned", "fit": 20_000},
        "trials": 20_000,
        "storage_path": str(tmp_path),
    }
    result = da.audit(noisy_count, **call)
    assert result.verdict() == "CONSISTENT"
    assert 0.7 < result.overview["quote"].item() < 1.1  # seeds depend on the source of the function
    again = da.audit(noisy_count, **call)
    assert again.location == result.location
    assert len(list(tmp_path.iterdir())) == 1
    half = da.audit(noisy_count, **call | {"claim": {"epsilon": 0.5}})
    assert half.verdict() == "VIOLATION"
    opened = da.open(half.location)
    assert opened.verdict() == "VIOLATION"


def test_a_closure_a_table_and_an_own_score_need_no_module(tmp_path):
    scale = 0.5

    def clipped_sum(data, rng, n):
        return np.clip(np.nan_to_num(data), 0, 1).sum() + rng.laplace(0, scale, n)

    def log_ratio(outputs, pair):
        one, other = (np.clip(np.nan_to_num(data), 0, 1).sum() for data in pair)
        return np.abs(outputs - one) - np.abs(outputs - other)

    result = da.audit(
        clipped_sum,
        pairs={"table": ages},
        claim={"epsilon": 1},
        adversary={"name": "learned", "fit": 4000, "search": 1000},
        trials=20_000,
        storage_path=str(tmp_path),
    )
    assert result.verdict() == "VIOLATION"
    known = da.audit(
        clipped_sum,
        pairs=[(ages(), ages()[1:])],
        claim={"rho": 2.0},
        adversary=log_ratio,
        trials=2000,
        storage_path=str(tmp_path),
    )
    assert known.verdict() == "INCONCLUSIVE", "2000 trials are few for ε = 11.7 at 1e-6"
    assert known.overview["quote"].item() > 1.5


def closed_over(scale):
    return lambda data, rng, n: data + rng.laplace(0, scale, n)


def default_of_a_keyword(scale):
    def release(data, rng, n, *, noise=scale):
        return data + rng.laplace(0, noise, n)

    return release


@pytest.mark.parametrize("release_of", [closed_over, default_of_a_keyword])
def test_the_same_source_with_another_number_is_another_run(tmp_path, release_of):
    call = {"pairs": [(0, 1)], "claim": {"epsilon": 1}, "trials": 5000}
    call |= {"adversary": {"name": "learned", "fit": 2000}, "storage_path": str(tmp_path)}
    assert da.audit(release_of(2.0), **call).verdict() != "VIOLATION"
    assert da.audit(release_of(0.3), **call).verdict() == "VIOLATION"


@pytest.mark.parametrize("name", ["_private", "für_ρ", "<lambda>", "__call__", "long" * 40])
def test_any_name_of_a_function_names_a_folder(tmp_path, name):
    def release(data, rng, n):
        return data + rng.laplace(0, 1.0, n)

    release.__name__ = name
    result = da.audit(
        release, pairs=[(0, 1)], claim={"epsilon": 1}, trials=1000, storage_path=tmp_path
    )
    assert result.complete


@pytest.mark.parametrize(("budget", "fewest", "most"), [("1s", 5000, 30_000), (0.001, 1000, 1000)])
def test_a_budget_gives_a_number_of_trials(tmp_path, budget, fewest, most):
    """A trial of numpy takes a microsecond or less, so that scoring decides the number."""
    result = da.audit(
        noisy_count,
        pairs=[(0, 1)],
        claim={"epsilon": 2},
        budget=budget,
        storage_path=str(tmp_path),
    )
    assert fewest <= result.overview["trials"].item() <= most


WRONG = {
    "budget": ({"budget": "soon"}, "budget: must be seconds or text such as 90s, 5min or 1h"),
    "pairs": ({"pairs": [1, 2]}, "must return a list of pairs of inputs"),
    "option": ({"adversary": {"name": "learned", "fits": 3}}, "unknown"),
}


@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=WRONG)
def test_a_wrong_call_is_answered_in_one_line(tmp_path, change, message):
    call = {"pairs": [(0, 1)], "claim": {"epsilon": 1}, "storage_path": str(tmp_path)}
    with pytest.raises(da.DpauditError, match=message) as caught:
        da.audit(noisy_count, **call | change)
    assert "\n" not in str(caught.value)


def test_a_script_that_has_no_module_is_audited(tmp_path):
    """As in a notebook, or at the prompt of Python."""
    code = (
        "import dpaudit_ray as da\n"
        "def coin(data, rng, n): return rng.random(n) < (0.7 if data else 0.3)\n"
        "print(da.audit(coin, pairs=[(0, 1)], claim={'epsilon': 1}, trials=5000,"
        f" adversary={{'name': 'learned', 'fit': 1000}}, storage_path={str(tmp_path)!r}).verdict())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "CONSISTENT", done.stderr
