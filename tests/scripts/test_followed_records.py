"""How records are followed from the script's arrays: the judge's part, on played runs."""

from dataclasses import replace

import numpy as np
import pytest

from dpaudit_ray.scripts import preparation
from dpaudit_ray.scripts.protocol import Appeared, Prepared

ROWS = 400


def rows(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(ROWS, 5))


def run_of(records: np.ndarray) -> Prepared:
    """What a run reports of its prepared records [n, k]."""
    weights = np.random.default_rng(0).normal(size=(records.shape[1], 3))
    return Prepared(records=tuple(map(tuple, (records @ weights).tolist())))


def rotated(table: np.ndarray) -> np.ndarray:
    targets, sources = preparation.rotation_of(preparation.cycles(len(table)))
    moved = table.copy()
    moved[list(targets)] = table[list(sources)]
    return moved


def found(prepare, table: np.ndarray | None = None) -> preparation.Lineage:
    table = rows() if table is None else table
    cycles = preparation.cycles(len(table))
    return preparation.find_lineage(run_of(prepare(table)), run_of(prepare(rotated(table))), cycles)


def changed(prepare) -> int:
    """Counts what changes when rows that are private records get the values of one of them."""
    own = found(prepare)
    equal = rows()
    equal[list(own.rows)] = equal[own.rows[0]]
    before, after = run_of(prepare(rows())), run_of(prepare(equal))
    return preparation.count_changed_others(before, after, own.rows, own.positions)


def by_constants(x: np.ndarray) -> np.ndarray:
    return np.tanh(x / 3)


def permuted(x: np.ndarray) -> np.ndarray:
    return by_constants(x)[np.random.default_rng(5).permutation(len(x))]


def kept_by_size(x: np.ndarray) -> np.ndarray:
    return x[np.linalg.norm(x, axis=1) < 4]


def training_part(x: np.ndarray) -> np.ndarray:
    return x[np.random.default_rng(5).permutation(len(x))[: 9 * len(x) // 10]]


def standardised(x: np.ndarray) -> np.ndarray:
    return (x - x.mean(0)) / x.std(0)


def ranked(x: np.ndarray) -> np.ndarray:
    return x.argsort(0).argsort(0) / len(x)


def mixed(x: np.ndarray) -> np.ndarray:
    return x + 0.5 * np.roll(x, 1, axis=0)


def test_cycles_are_disjoint_and_each_of_another_length():
    cycles = preparation.cycles(1000)
    places = [row for cycle in cycles for row in cycle]
    assert len(set(places)) == len(places) <= 100
    assert [len(cycle) for cycle in cycles] == list(range(2, 2 + len(cycles)))
    assert min(places) >= 100  # the first rows may decide on an order


@pytest.mark.parametrize("prepare", [by_constants, permuted, standardised])
def test_rows_that_are_records_are_found(prepare):
    own = found(prepare)
    cycles = preparation.cycles(ROWS)
    assert sorted(own.rows) == sorted(row for cycle in cycles for row in cycle)
    assert len(own.positions) == len(own.rows)


@pytest.mark.parametrize("prepare", [kept_by_size, training_part])
def test_only_rows_that_are_in_the_records_are_found(prepare):
    """A slow twin: each row that was found has its values among the records."""
    table = rows()
    own = found(prepare, table)
    kept = {tuple(record) for record in prepare(table)}
    assert len(own.rows) >= 3
    assert all(tuple(table[row]) in kept for row in own.rows)


def test_rows_of_public_data_are_not_found():
    """Statistics of them scale the records: swapping rows changes no more than rounding."""
    private = rows(2)
    assert found(lambda x: private / x.std(0)) == preparation.Lineage()


@pytest.mark.parametrize("prepare", [by_constants, permuted, kept_by_size, training_part])
def test_records_of_other_rows_stay(prepare):
    assert changed(prepare) == 0


@pytest.mark.parametrize("prepare", [standardised, ranked])
def test_records_that_depend_on_other_rows_are_counted(prepare):
    assert changed(prepare) > 10


def test_rows_that_are_mixed_with_their_neighbours_are_counted():
    """Each is in two records, so that none moves as a whole."""
    cycles = preparation.cycles(ROWS)
    moved = sum(map(len, cycles))
    runs = [
        run_of(prepare(x)) for prepare in (mixed, by_constants) for x in (rows(), rotated(rows()))
    ]
    assert preparation.count_mixed_records(*runs[:2], cycles) > 1.8 * moved
    assert preparation.count_mixed_records(*runs[2:], cycles) == 0
    assert found(mixed).rows == ()


def test_a_row_in_many_records_is_counted_where_their_number_changes():
    before = run_of(np.repeat(rows(), 2, axis=0))
    after = run_of(np.repeat(rows(), 2, axis=0)[: 2 * ROWS - 200])
    assert preparation.count_changed_others(before, after, range(100), [0]) == 200
    assert preparation.count_changed_others(before, after, range(150), [0]) == 0
    assert preparation.count_changed_others(before, after, range(100), ()) == 0


def test_settings_count_that_rows_decide_and_their_order_does_not():
    before = Prepared(settings={"bound": "1.0", "rate": "0.1", "parameters": "a"})
    rotated = Prepared(settings={"bound": "1.0", "rate": "0.1", "parameters": "b"})
    after = Prepared(settings={"bound": "2.0", "rate": "0.1", "parameters": "c"})
    assert preparation.changed_settings(before, rotated, after) == ("bound",)


def test_arrays_are_grouped_by_length_without_copies_and_networks():
    arrays = (
        Appeared("x", 10, 1, "a.py:1"),
        Appeared("y", 10, 1, "a.py:1"),
        Appeared("x", 10, 2, "a.py:2"),
        Appeared("weights", 8, 3, "a.py:3"),
        Appeared("z", 9, 4, "a.py:4"),
    )
    prepared = Prepared(arrays=arrays, records=((0.0, 0.0, 0.0),) * 90)
    groups = preparation.arrays_by_length(prepared)
    assert [[array.digest for array in group] for group in groups] == [["x", "y"], ["z"]]


class Played:
    """A script with arrays of records, labels and public data, all of one length."""

    def __init__(self, prepare) -> None:
        self.prepare = prepare
        self.arrays = {"x": rows(), "y": rows(2)[:, :1], "public": rows(3)}

    def run(self, digests, targets, sources) -> Prepared:
        arrays = {name: table.copy() for name, table in self.arrays.items()}
        targets = targets or tuple(sorted({*rows().argmax(0), *rows().argmin(0)}))
        sources = sources or (ROWS // 2,) * len(targets)
        for name in digests:
            arrays[name][list(targets)] = arrays[name][list(sources)]
        table = np.hstack([self.prepare(arrays["x"], arrays["public"]), arrays["y"]])
        appeared = [Appeared(name, ROWS, n, f"a.py:{n}") for n, name in enumerate(arrays)]
        return replace(run_of(table), arrays=tuple(appeared), targets=targets)

    def follow(self) -> preparation.PreparationRuns | None:
        return preparation.follow(self.run((), (), ()), self.run)


def test_labels_are_rotated_with_their_records():
    followed = Played(lambda x, _: by_constants(x)).follow()
    assert followed is not None
    assert (followed.line, followed.records_changed, followed.rows) == ("a.py:0", 0, 35)


def test_public_data_of_the_same_length_may_scale_the_records():
    followed = Played(lambda x, public: x / public.std(0)).follow()
    assert followed is not None
    assert followed.records_changed == 0


@pytest.mark.parametrize(
    "prepare",
    [
        lambda x, public: x / x.std(0) + public.mean(),
        lambda x, _: x / (x.max(0) - x.min(0)),
    ],
)
def test_records_that_scale_each_other_are_told(prepare):
    followed = Played(prepare).follow()
    assert followed is not None
    assert followed.records_changed > 300


@pytest.mark.parametrize("answer", ["none", "no rows", "fewer records"])
def test_nothing_is_said_where_no_run_can_be_compared(answer):
    """The script raises for such rows, has other arrays in each run, or prepares fewer records."""
    script = Played(lambda x, _: by_constants(x))
    before = script.run((), (), ())
    answers = {
        "none": None,
        "no rows": replace(before, targets=()),
        "fewer records": replace(before, targets=(1, 2), records=before.records[:-2]),
    }

    def run(digests, targets, sources) -> Prepared | None:
        is_rotation = len(set(sources)) > 1
        return script.run(digests, targets, sources) if is_rotation else answers[answer]

    assert preparation.follow(before, run) is None
