"""`audit.paired`: two trainings in a row share their noise, from the plan to the verdict."""

import numpy as np
import pytest

import dpaudit_ray as da
from dpaudit_ray import stats
from dpaudit_ray.accounting import Training
from dpaudit_ray.mechanisms.base import Measured, Missed
from dpaudit_ray.plan import record
from dpaudit_ray.sweep import spec
from jobs.scale.empty import Empty
from tests.command import dpaudit, inline, refused, stored_scores, write_sweep
from tests.report import handed
from tests.report.handed import DP_SGD

LEVEL = {"delta": 1e-5, "confidence": 0.95}


def sweep(**changes):
    mechanism = DP_SGD | {"steps": 12, "batch_size": 100, "noise_multiplier": 3.0}
    audit = {"trials": 400, "delta": 1e-5, "paired": True, "estimators": ["paired"], **changes}
    raw = handed.sweep("pairs", mechanism=mechanism, adversary="gradient", audit=audit, grid={})
    return raw | {"resources": {"pack_size": 100}}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    assert inline(write_sweep(folder, sweep()), folder).code == 0
    return folder


def worlds(run, index=0):
    """Scores at the last step with the canary and without, [pairs] each."""
    rows = stored_scores(run.directory, run.plan.audits[index].id)
    rows = rows[rows["step"] == rows["step"].max()]
    scores, bits = (rows[name].to_numpy().reshape(-1, 2) for name in ("score", "member"))
    assert (bits[:, 0] != bits[:, 1]).all()
    assert 0.4 < bits[:, 0].mean() < 0.6, "which of the two has it is a coin"
    return scores[bits], scores[~bits]


def test_a_pair_shares_its_noise_and_shows_more(finished):
    result = da.open(finished / "pairs")
    inside, outside = worlds(result.run)
    assert np.corrcoef(inside, outside)[0, 1] > 0.999
    row = result.estimates.set_index("estimator").loc["paired"]
    labels = np.arange(400) // 2
    rows = stored_scores(result.run.directory, result.run.plan.audits[0].id)
    rows = rows[rows["step"] == rows["step"].max()]
    found = stats.estimate(rows["score"], rows["member"], **LEVEL, method="paired", runs=labels)
    assert row["epsilon_lower"] == found.epsilon_lower > 0.6 * row["epsilon_upper"]
    assert 0 < row["epsilon_lower_free"] < row["epsilon_lower"]
    assert row["free_estimator"] == "paired"


def test_what_is_stored_is_found_in_order_and_shown(finished):
    assert "CONSISTENT" in dpaudit("verify", finished / "pairs").out
    assert "in order" in dpaudit("check", finished / "pairs").out
    assert dpaudit("report", finished / "pairs").code == 0
    page = (finished / "pairs" / "report.html").read_text()
    assert "400, in pairs that share their noise" in page
    assert "paired" in dpaudit("status", finished / "pairs", "--details").out
    assert "400" in dpaudit("plan", finished / "sweep.yaml", "--storage-path", finished).out
    claimed = "audit.estimators=[{name: paired, curve: claimed}]"
    assert dpaudit("plan", finished / "sweep.yaml", "--set", claimed).code == 0


def test_a_lost_pack_and_growth_give_the_same_bits(finished, tmp_path):
    file = write_sweep(tmp_path, sweep(trials=200, up_to=400))
    assert inline(file, tmp_path).code == 0
    run = da.open(tmp_path / "pairs").run
    run.directory.delete_scores(run.plan.audits[0].id, *run.plan.audits[0].packs[0])
    assert inline(write_sweep(tmp_path, sweep(up_to=400)), tmp_path).code == 0
    whole, grown = da.open(finished / "pairs"), da.open(tmp_path / "pairs")
    for one, other in zip(worlds(whole.run), worlds(grown.run), strict=True):
        np.testing.assert_array_equal(one, other)
    assert dpaudit("check", tmp_path / "pairs").code == 0


class Half(Empty):
    """Claims half of what its scores, N(0, 1) and N(1, 1), show."""

    name: str = "tests.plan.test_pairs:Half"

    def claimed(self, adversary, horizon):
        return Training(2.0, 1)


def test_a_broken_promise_ends_the_audit_early(tmp_path):
    lying = sweep(trials=2000, stop_when={"verdict": True}) | {
        "mechanism": {"name": "tests.plan.test_pairs:Half"},
        "adversary": {"name": "jobs.scale.empty:Nobody"},
    }
    assert inline(write_sweep(tmp_path, lying), tmp_path).code == 0
    judged = dpaudit("verify", tmp_path / "pairs", "--trust", "tests.plan.test_pairs")
    assert judged.code == 1, judged
    assert da.open(tmp_path / "pairs").estimates["trials"].max() <= 800


def test_alternating_puts_what_a_training_measured_and_missed_in_its_place():
    lost = Missed("Lost", "why", "")
    first = Measured(np.array([[0.0], [1.0], [4.0], [5.0]]), {}, {3: lost})
    second = Measured(np.array([[2.0], [3.0], [6.0], [7.0]]), {}, {0: lost})
    woven = Measured.alternating([first, second], 2)
    assert woven.scores.ravel().tolist() == list(range(8))
    assert set(woven.missed) == {5, 2}


def test_several_canaries_in_pairs(tmp_path):
    several = sweep(trials=240, estimators=["paired", "several-canaries"])
    several["adversary"] = {"name": "biased-dimension", "choice": "simulated", "count": 3}
    several["resources"]["pack_size"] = 60
    assert inline(write_sweep(tmp_path, several), tmp_path).code == 0
    run = da.open(tmp_path / "pairs").run
    (audit,) = run.plan.audits
    assert (audit.canaries, audit.in_a_training) == (6, 3)
    bits = audit.bits(run.plan.seed, 0, 239).reshape(-1, 2, 3)
    assert (bits[:, 0] != bits[:, 1]).all()
    np.testing.assert_array_equal(audit.bits(run.plan.seed, 7, 100), bits.ravel()[7:101])
    assert dpaudit("check", tmp_path / "pairs").code == 0


@pytest.mark.parametrize(
    ("audit", "more", "told"),
    [
        ({"trials": 401}, {}, "audit.trials: is 401, but each pair of training runs has 2 trials"),
        ({"estimators": ["accuracy"]}, {}, "accuracy takes scores of many training runs"),
        ({"paired": False}, {}, "paired takes pairs of training runs; set audit.paired: true"),
        ({}, {"resources": {"pack_size": 75}}, "resources.pack_size: is 75, but each pair"),
    ],
)
def test_what_is_no_pair_is_refused(tmp_path, audit, more, told):
    line = refused("plan", write_sweep(tmp_path, sweep(**audit) | more))
    assert told in line


def test_pairs_are_another_experiment(finished):
    """Their bits and scores are not those of single trainings, so their fingerprint is not."""
    run = da.open(finished / "pairs").run
    single = sweep(paired=False, estimators=["accuracy"])
    assert spec.from_raw(single).cells[0].fingerprint != run.plan.audits[0].fingerprint
    assert record.to_json(run.plan)["audits"][0]["paired"]
