"""`dpaudit bench` on the smallest workload, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import dpaudit

from dpaudit_ray import bench


def test_a_table_and_a_file(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    done = dpaudit("bench", "--models", "fcnn", "--json", str(file))
    assert done.code == 0, done.err
    assert "fcnn" in done.out
    written = json.loads(file.read_text())
    (row,) = written["rows"]
    assert row["parameters"] == 68
    assert row["flop"] == 6 * 400 * (8 * 3 + 3 * 8 + 8) - 2 * 400 * 24  # no gradient of the input
    assert row["ratio"] == pytest.approx(row["opacus_seconds"] / row["packed_seconds"])
    assert row["trials_per_second"] == pytest.approx(1 / (250 * row["packed_seconds"]))
    assert written["matmul_flop_per_second"] > 1e9


def test_the_packed_engine_is_worth_having() -> None:
    """FCNN at least 100 times as fast as Opacus: same process, one thread, medians of 7 runs."""
    (row,) = bench.measure(["fcnn"], threads=1, repeats=7, gpu=False).rows
    assert row.ratio >= 100, row
    assert row.ratio_kept_heap >= 100, row


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--models", "nothing"), "no workload for 'nothing'"),
        (("--models", "fcnn", "--gpu"), "no GPU here"),
        (("--repeats", "2"), "--repeats"),
    ],
)
def test_bad_input_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    if "--gpu" in arguments:
        import torch

        if torch.cuda.is_available():
            pytest.skip("there is a GPU here")
    done = dpaudit("bench", *arguments)
    assert done.code == 2
    assert said in done.err
    assert len(done.err.strip().splitlines()) == 1
