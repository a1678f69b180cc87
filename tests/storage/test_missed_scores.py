"""Missed trials among the scores of a pack: a column of the file, where there are some."""

import dataclasses
from unittest.mock import Mock

import numpy as np
import pyarrow.parquet as pq
import pytest

from dpaudit_ray.errors import DamagedFileError
from dpaudit_ray.plan import score_stream
from dpaudit_ray.plan.score_stream import MissedPack
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import PackScores, encoded, score_frame
from tests.storage.test_storage import SCORE_COLUMNS as COLUMNS
from tests.storage.test_storage import altered

WHY = {12: "ValueError: boom", 13: "took more than 5 s"}


def pack(missed: dict[int, str] = WHY, measured: bool = False, first: int = 10) -> PackScores:
    """Trials 10 to 15 of two steps; trial 11 diverged."""
    rng = np.random.default_rng(first)
    scores = rng.normal(size=(6, 2))
    scores[[1, *(trial - first for trial in missed)]] = np.nan
    utility = {"accuracy": scores * 2} if measured else {}
    return PackScores(first, rng.random(6) > 0.5, (3, 6), scores, utility, missed)


@pytest.mark.parametrize("measured", [False, True])
def test_they_come_back(measured, tmp_path):
    run, whole = RunDirectory(str(tmp_path)), pack(measured=measured)
    run.write_scores("a", whole)
    (file,) = tmp_path.glob("scores/a/*.parquet")
    assert pq.read_schema(file).names == [*COLUMNS, *["accuracy"] * measured, "missed"]
    found = run.read_scores("a", 10, 15)
    assert found.missed == WHY
    assert found.scores.tobytes() == whole.scores.tobytes()
    assert found.failed.tolist() == [False, False, True, True, False, False]


def test_a_file_without_any_is_as_it_was():
    assert pack({}).table("a").column_names == COLUMNS
    plain = dataclasses.replace(pack({}), outputs={10: "printed"})
    assert encoded(plain.table("a")) == encoded(pack({}).table("a"))


def test_packs_with_and_without_are_put_together_and_cut():
    parts = [pack({}, first=4), pack(), pack({}, first=16)]
    whole = PackScores.joined(parts)
    again = PackScores.from_table(whole.table("a"), "a", 4, 21)
    assert again.missed == WHY
    for each in parts:
        cut = again.part(each.first, each.last)
        assert (cut.missed, cut.scores.tobytes()) == (each.missed, each.scores.tobytes())
        assert encoded(cut.table("a")) == encoded(each.table("a"))
    assert again.part(12, 12).missed == {12: WHY[12]}
    shown = score_frame("a", parts)
    assert list(shown) == [*COLUMNS, "missed"]
    assert shown["missed"].notna().all()
    assert shown.query("missed != ''")["trial"].tolist() == [12, 12, 13, 13]


@pytest.mark.parametrize(
    "table",
    [
        altered(pack(), "missed", [""] * 12),
        altered(pack(), "missed", ["", "", "", "", "x", "", "y", "y", "", "", "", ""]),
        altered(pack(), "missed", ["x", "x", "", "", "x", "x", "y", "y", "", "", "", ""]),
        altered(pack(), "missed", [None, *[""] * 3, "x", "x", "y", "y", *[""] * 4]),
        altered(pack(), "score", [1.0] * 12),
        pack().table("a").rename_columns([*COLUMNS, "lost"]),
        pack(measured=True).table("a").select([*COLUMNS, "missed", "accuracy"]),
    ],
    ids=["none", "one step", "of a score", "null", "with scores", "other name", "other order"],
)
def test_a_file_that_is_not_what_it_says_is_refused(table, tmp_path):
    file = tmp_path / "scores/a/10-15.parquet"
    file.parent.mkdir(parents=True)
    pq.write_table(table, file)
    reason = r"\((its columns|it does not hold|it has scores of trials that|it has rows that lack)"
    with pytest.raises(DamagedFileError, match=reason):
        RunDirectory(str(tmp_path)).read_scores("a", 10, 15)


@pytest.mark.parametrize(
    ("mine", "other", "said"),
    [
        (WHY, {12: "x"}, "gave a score for trial 13, which was missed (took more than 5 s)"),
        ({12: "x"}, WHY, "gave no score for trial 13 (took more than 5 s)"),
        ({}, {11: "x"}, "gave no score for trial 11 (x)"),  # NaN in both
        (WHY, dict.fromkeys(WHY, "in other words"), None),
    ],
)
def test_one_that_misses_another_is_not(mine, other, said):
    assert pack(mine).difference(pack(other)) == said


def test_they_are_folded_in_the_order_of_trials():
    whole, state = pack({10: "x", 12: "x", 13: "x"}), Mock()
    score_stream.feed(state, whole)
    last, bits = whole.scores[:, -1], whole.members.tolist()
    heard = [(call[0], *(part.tolist() for part in call.args)) for call in state.method_calls]
    assert heard[::2] == [("miss", bits[:1]), ("miss", bits[2:4])]
    np.testing.assert_equal(heard[1], ("fold", last[1:2].tolist(), bits[1:2]))
    assert heard[3:] == [("fold", last[4:].tolist(), bits[4:])]


def test_trials_know_which_were_missed():
    class Audit:
        packs = ((0, 3), (4, 9), (10, 15))
        horizons = (3, 6)

    folded = [MissedPack(0, np.array([True, False, True, True])), pack({}, first=4), pack()]
    trials = score_stream.Trials.joined(Audit(), folded)  # type: ignore[arg-type]
    assert np.flatnonzero(trials.missed).tolist() == [0, 1, 2, 3, 12, 13]
    assert len(trials.scored.members) == 10
    assert np.isnan(trials.scored.scores[7]).all(), "trial 11 diverged, and is an outcome"
    errors = trials.with_errors()[trials.missed]
    last = trials.scores[:, -1]
    finite = last[np.isfinite(last)]
    assert ((errors < finite.min()) == trials.members[trials.missed]).all()
