"""`dpaudit plan` in numbers: cost, what can be certified, and advice on more power."""

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray import stats
from dpaudit_ray.cli import tables, terminal
from dpaudit_ray.forecast import forecast
from dpaudit_ray.forecast.forecast import AuditOutlook, Outlook
from dpaudit_ray.orchestration.trainer import PackTrainer
from dpaudit_ray.stats import growth
from dpaudit_ray.sweep import spec
from tests.command import changed, dpaudit, inline, write_sweep


def outlook(sweep: dict[str, Any], folder: Path) -> forecast.Outlook:
    return forecast.forecast(spec.from_raw(sweep), str(folder))


def totals(planned: forecast.Outlook) -> tuple[int, ...]:
    """Trials, packs, and packs that are done, of all audits."""
    counts = ((audit.trials, audit.packs, audit.packs_done) for audit in planned.audits)
    return tuple(map(sum, zip(*counts, strict=True)))


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every pack of this machine takes half a second: a quarter for each of two scores."""
    monkeypatch.setattr(PackTrainer, "time_pack", lambda _, pack, horizons: len(horizons) / 4)


@pytest.mark.usefixtures("steady")
def test_time_is_that_of_the_packs_that_are_left(tiny, tmp_path):
    fresh = outlook(tiny, tmp_path)
    assert totals(fresh) == (180, 18, 0)
    assert fresh.seconds == pytest.approx(18 * 0.5)
    assert inline(write_sweep(tmp_path, tiny), tmp_path).code == 0
    done = outlook(tiny, tmp_path)
    assert (*totals(done)[2:], done.seconds) == (18, 0)
    longer = outlook(changed(tiny, "audit.trials", 120), tmp_path)
    assert totals(longer)[1:] == (24, 18)
    assert longer.seconds == pytest.approx(6 * 0.5)


def test_audits_that_take_equally_long_are_timed_once(tiny, tmp_path, monkeypatch):
    """And by their first steps."""
    timed, longest = set[int](), [0]

    def seconds(_: PackTrainer, pack: Any, horizons: tuple[int, ...]) -> float:
        timed.add(pack.audit)
        longest.append(max(horizons))
        return float(max(horizons))

    monkeypatch.setattr(PackTrainer, "time_pack", seconds)
    tiny["grid"]["mechanism.noise_multiplier"] = [0.5, 1.0]
    tiny["grid"]["mechanism.steps"] = [5, 10**5]
    planned = outlook(changed(tiny, "audit.record_every", None), tmp_path)
    assert (len(planned.audits), len(timed)) == (8, 4)  # two adversaries, two lengths
    assert max(longest) < 300
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("horizons", [(1,), (2,), (3, 9), (100,), (50, 1000, 10**6)])
def test_the_first_steps_tell_how_long_a_pack_takes(horizons):
    """Each step takes .02 s and each score .3 s; what is built at first takes ten more."""
    asked: list[int] = []

    def seconds(steps: int) -> float:
        asked.append(steps)
        return 0.02 * steps + 0.3 + 10 * (len(asked) == 1)

    found = forecast.extrapolated(seconds, horizons)
    assert found == pytest.approx(0.02 * horizons[-1] + 0.3 * len(horizons))
    assert max(asked) <= min(horizons[-1], 4 * 64)  # .02 (64 - 1) exceeds a second


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize(
    ("cpus", "limit", "workers"),
    [(1, "auto", 4), (3, "auto", 1), (0.5, "auto", 8), (16, "auto", 1), (1, 3, 3), (2, 3, 2)],
)
def test_trainers_are_those_that_fit(cpus, limit, workers, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    tiny["resources"] |= {"num_cpus": cpus, "max_concurrent_trainers": limit}
    assert outlook(tiny, tmp_path).workers == workers


@pytest.mark.usefixtures("steady")
def test_more_trials_certify_more(tiny, tmp_path):
    tiny["grid"] = {"audit.trials": [100, 1000, 5000]}
    audits = outlook(tiny, tmp_path).audits
    largest = [audit.largest_certifiable for audit in audits]
    assert largest == sorted(set(largest))
    assert [audit.claim for audit in audits] == [audits[0].claim] * 3
    chances = [audit.power for audit in audits]
    assert chances == sorted(chances)
    assert 0 < chances[0] < 0.2
    assert chances[-1] > 0.8


def test_a_plan_promises_certified_bounds_only_where_the_curve_is_known(tiny, tmp_path):
    assert [audit.status for audit in outlook(tiny, tmp_path).audits] == [
        "certified",
        "if-gaussian",
    ]
    planned = dpaudit("plan", write_sweep(tmp_path, tiny), "--storage-path", tmp_path / "runs")
    assert "certify" not in planned.out
    assert "max eps and power assume a Gaussian curve for loss\n" in planned.out
    changed(tiny, "grid.adversary", ["biased-dimension"])
    planned = dpaudit("plan", write_sweep(tmp_path, tiny), "--storage-path", tmp_path / "runs")
    assert "Gaussian curve" not in planned.out


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("noise", [1e-3, 0.05, 1e5])
def test_a_claim_that_no_feasible_audit_reaches_is_planned_all_the_same(noise, tiny, tmp_path):
    """Next to no noise, as a sanity check; or so much that nothing is left to certify."""
    (audit, *_) = outlook(changed(tiny, "mechanism.noise_multiplier", noise), tmp_path).audits
    assert audit.trials_needed is None
    assert audit.power < 0.1
    file = write_sweep(tmp_path, tiny)
    planned = dpaudit("plan", file, "--storage-path", tmp_path / "runs")
    assert planned.code == 0
    assert planned.out.splitlines()[2].split()[-2] == "–"


@pytest.mark.usefixtures("steady")
def test_the_trials_needed_have_the_power_they_promise(tiny, tmp_path):
    (audit, *_) = outlook(tiny, tmp_path).audits
    assert audit.trials_needed is not None
    (enough, *_) = outlook(changed(tiny, "audit.trials", audit.trials_needed), tmp_path).audits
    (less, *_) = outlook(
        changed(tiny, "audit.trials", int(0.9 * audit.trials_needed)), tmp_path
    ).audits
    assert less.power < 0.8 <= enough.power


@pytest.mark.usefixtures("steady")
def test_one_training_is_planned_by_its_own_estimator(tiny, tmp_path):
    """Not as one bit from one training, which shows nothing. The plan's figures are those of a run:
    its bound lies between what is likely and what is possible."""
    del tiny["grid"]
    tiny["mechanism"] |= {"noise_multiplier": 0.5, "sampling": "fixed", "steps": 4}
    tiny["adversary"] = {"name": "one-run", "kind": "random", "canaries": 1000}
    tiny["audit"] |= {"trials": 1000, "estimators": ["one-run"]}
    tiny["resources"] = {"pack_size": 1000}
    (planned,) = outlook(tiny, tmp_path).audits
    assert 3 < planned.likely <= planned.largest_certifiable < 7
    assert planned.power == 0
    assert planned.trials_needed is None
    changed(tiny, "mechanism.noise_multiplier", 2.0)
    (planned,) = outlook(tiny, tmp_path).audits
    assert 0 < planned.likely < planned.claim < planned.largest_certifiable


@pytest.mark.usefixtures("steady")
def test_an_audit_that_may_grow_is_planned_at_its_share_of_the_error(tiny, tmp_path):
    changed(tiny, "grid", {"adversary": ["biased-dimension"]})
    (alone,) = outlook(tiny, tmp_path).audits
    number = 4 * alone.trials_needed
    (grows,) = outlook(changed(tiny, "audit.up_to", number), tmp_path).audits
    assert 0.9 * alone.largest_certifiable < grows.largest_certifiable < alone.largest_certifiable
    assert grows.grows
    assert grows.trials_needed in growth.looks(grows.trials, number)


@pytest.mark.parametrize("error", [RuntimeError("no GPU here\nlong story"), MemoryError()])
def test_a_pack_that_cannot_run_here_leaves_the_time_open(error, tiny, tmp_path, monkeypatch):
    """A sweep for a GPU cluster can be planned on a laptop."""

    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr(PackTrainer, "time_pack", fails)
    planned = outlook(tiny, tmp_path)
    assert math.isnan(planned.seconds)
    assert planned.audits[0].claim > 0
    file = write_sweep(tmp_path, tiny)
    outcome = dpaudit("plan", file, "--storage-path", tmp_path / "runs")
    assert outcome.code == 0
    assert "remaining: about ? on this machine" in outcome.out
    assert outcome.out.splitlines()[-1].startswith(
        f"time unknown: the calibration pack fails on this machine: {type(error).__name__}"
    )
    assert "long story" not in outcome.out


LEVEL = (1e-5, 0.95)


def told(monkeypatch: pytest.MonkeyPatch, *audits: AuditOutlook) -> list[str]:
    """What `plan` says of audits below their table, but for what its columns mean."""
    lines: list[str] = []
    monkeypatch.setattr(terminal, "explain", lines.append)
    monkeypatch.setattr(terminal, "say", lines.append)
    tables.show_plan("one", Outlook(audits, workers=2))
    return lines[2:-1]


def audit(claim: float, trials: int = 100, **fields: Any) -> AuditOutlook:
    """One that is planned as `plan` does it."""
    known = 0 < claim < math.inf
    usual: dict[str, Any] = {
        "label": "loss", "packs": 1, "packs_done": 0, "largest_certifiable": 1.0,
        "power": 0.0, "trials_needed": None, "seconds": 0.0,
        "likely": stats.power.likely_bound(claim, trials, 0.8, *LEVEL) if known else math.nan,
    }  # fmt: skip
    return AuditOutlook(claim=claim, trials=trials, **usual | fields)


def test_how_many_trials_would_do_is_said_of_the_weakest(monkeypatch):
    needed = stats.power.trials_needed(8.0, 0.1, 0.8, *LEVEL)
    one, weaker = audit(8.0, trials_needed=needed), audit(9.0, label="other", power=0.1)
    enough = audit(8.0, label="enough", power=0.8)
    (line,) = told(monkeypatch, weaker, one, enough)
    shown = f"{one.likely:.2f} of the 8.00"
    assert line.startswith(f"power 0 %, loss and 1 more: 100 trials show {shown}, 4 times in 5; ")
    assert line.endswith(f"--set audit.trials={needed}")
    assert told(monkeypatch, enough) == []


@pytest.mark.parametrize(
    ("weak", "said"),
    [
        (audit(0.5, trials_needed=900), "100 trials show nothing, 4 times in 5; 900 show 90 %"),
        (audit(2.0, trials_needed=900), "900 show 90 %: --set audit.trials=900"),
        (audit(2.0, trials_needed=900, packs_done=1), "900, with another name and seed"),
        (audit(2.0, trials_needed=900, packs_done=1, grows=True), "90 %: --set audit.trials=900"),
        (audit(500.0), "more trials cannot show 90 % of such a claim: use more noise or few"),
        (audit(math.inf), "nothing is claimed: add noise, or use another"),
        (audit(0.0), "the claim is ε = 0"),
    ],
)
def test_what_helps(weak, said, monkeypatch):
    assert said in told(monkeypatch, weak)[0]


@pytest.mark.parametrize(("epsilon", "trials"), [(0.5, 400), (2.0, 1000), (8.0, 300), (13.0, 60)])
def test_the_likely_bound_is_reached_as_often_as_promised(epsilon, trials):
    """Against drawn audits. A share over 2000 is off by 4.5 standard errors, .04, once in 10^5."""
    from scipy import special

    likely = stats.power.likely_bound(epsilon, trials, 0.8, *LEVEL)
    rate = special.ndtr(stats.gdp.mu(epsilon, LEVEL[0]) / 2)
    drawn = np.random.default_rng(0).binomial(trials, rate, 2000)
    hits, which = np.unique(drawn, return_inverse=True)
    lower = stats.clopper_pearson_lower(hits, np.full_like(hits, trials), 0.05)
    mu = 2 * special.ndtri(np.maximum(lower, 0.5))
    bounds = np.array([float(stats.gdp.epsilon(each, LEVEL[0])) for each in mu])[which]
    assert (bounds >= likely - 1e-9).mean() >= 0.8 - 0.04
    if likely:
        assert (bounds > likely + 1e-9).mean() < 0.8 + 0.04
