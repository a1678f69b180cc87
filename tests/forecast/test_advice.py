"""What `plan` says to do where the power is low."""

import math
from typing import Any

import numpy as np
import pytest

from dpaudit_ray import stats
from dpaudit_ray.cli import tables, terminal
from dpaudit_ray.cli.terminal import duration
from dpaudit_ray.forecast.forecast import AuditOutlook, Outlook

LEVEL = (1e-5, 0.95)


def told(monkeypatch: pytest.MonkeyPatch, *audits: AuditOutlook) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(terminal, "explain", lines.append)
    monkeypatch.setattr(terminal, "say", lines.append)
    tables.show_advice(Outlook(audits, workers=2))
    return lines


def audit(claim: float, trials: int = 100, **fields: Any) -> AuditOutlook:
    """One that is planned as `plan` does it."""
    known = 0 < claim < math.inf
    usual: dict[str, Any] = {
        "label": "loss", "packs": 1, "packs_done": 0, "largest_certifiable": 1.0,
        "power": 0.0, "trials_needed": None, "seconds": 0.0, "trainings": trials,
        "likely": stats.power.likely_bound(claim, trials, 0.8, *LEVEL) if known else math.nan,
    }  # fmt: skip
    return AuditOutlook(claim=claim, trials=trials, **usual | fields)


def test_how_many_trials_would_do_and_how_long_they_take(monkeypatch):
    """The time is that of all audits that the change is for."""
    needed = stats.power.trials_needed(8.0, 0.1, 0.8, *LEVEL)
    one = audit(8.0, trials_needed=needed, training_seconds=0.1)
    enough = audit(8.0, label="enough", power=0.8)
    (line,) = told(monkeypatch, one, one, enough)
    shown = f"{one.likely:.2f} of the 8.00"
    assert line.startswith(f"power 0%, loss and 1 more: 100 trials show {shown}, 4 times in 5; ")
    wanted = f"--set audit.trials={needed}, about {duration(needed * 0.2)} with one"
    assert wanted in line
    assert "--budget 1h" in line
    assert told(monkeypatch, enough) == []


@pytest.mark.parametrize(
    ("weak", "said"),
    [
        (audit(0.5, trials_needed=900), "100 trials show nothing, 4 times in 5; 900 show 90 %"),
        (audit(2.0, trials_needed=900), "estimators: [rank] takes 1.5 times fewer"),
        (audit(500.0), "no number of trials shows 90 % of such a claim: take more noise, or few"),
        (audit(math.inf), "the claim is infinite, so no bound comes near; more noise, or another"),
        (audit(0.0), "nothing is claimed to leak"),
        (audit(8.0, trainings=1), "all trials are canaries of one; `dpaudit plan --budget 10min`"),
    ],
)
def test_what_helps(weak, said, monkeypatch):
    assert said in told(monkeypatch, weak)[0]


def test_that_the_attack_may_see_less_is_said_once(monkeypatch):
    weak = [audit(claim, status=stats.Status.IF_GAUSSIAN) for claim in (1.0, 2.0, 3.0, 4.0, 5.0)]
    lines = told(monkeypatch, *weak)
    assert len(lines) == 3 + 1 + 1
    assert lines[3] == "2 more designs of little power are not shown"
    assert "biased-dimension at period 1 does" in lines[4]


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
