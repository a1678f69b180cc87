"""Figures of a whole run: which audits stand together, and what is drawn of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray.report.figures import whole_run
from dpaudit_ray.report.figures.whole_run import Line, Panel, is_axis, panels_of_run
from dpaudit_ray.report.tables import Run
from tests.report.handed import played


def grouped(raw: dict, folder: Path) -> tuple[Run, list[Panel]]:
    """A finished run whose scores are drawn: what is exact takes no pack."""
    run = Run.open(str(played(raw, folder, 10_000)))
    return run, panels_of_run(run)


def test_repetitions_are_one_line_and_claims_one_panel(tiny: dict, tmp_path: Path) -> None:
    tiny["audit"]["trials"] = 20
    tiny["grid"]["mechanism.noise_multiplier"] = [2.0, 3.0]
    tiny["grid"]["mechanism.seed"] = [0, 4]
    run, panels = grouped(tiny, tmp_path)
    assert [panel.title for panel in panels] == ["noise_multiplier=2.0", "noise_multiplier=3.0"]
    for panel in panels:
        assert [line.label for line in panel.lines] == ["biased-dimension", "loss"]
        assert panel.horizons == (3, 6)
        assert panel.claims == pytest.approx(panel.lines[0].audits[0].claims["gaussian"])
    for line in (line for panel in panels for line in panel.lines):
        assert len(line.audits) == 2
        for audit in line.audits:
            rows = run.estimates[run.estimates["audit"] == audit.id].set_index("estimator")
            accuracy = rows.loc["accuracy"].set_index("step")["epsilon_lower"]
            np.testing.assert_array_equal(line.bounds[audit.id], accuracy.loc[[3, 6]])
    assert whole_run.amplification_figure(run, panels) is None, "the claim grows with the steps"


def test_a_run_that_records_one_step_has_no_evolution(tiny: dict, tmp_path: Path) -> None:
    tiny["audit"] |= {"trials": 10, "record_every": 6}
    _, panels = grouped(tiny, tmp_path)
    assert whole_run.evolution_figure(panels) is None
    assert whole_run.bars_figure(panels).startswith(b"\x89PNG")


def test_amplification_is_the_last_epsilon_over_the_first(tmp_path: Path) -> None:
    """Landscapes insert the canary once; their grid is noise by batch size."""
    sweep = {
        "name": "landscape",
        "mechanism": {"name": "landscape", "steps": 3, "batch_size": 1, "noise_multiplier": 1.0,
                      "clip_norm": 1.0, "backend": "exact"},
        "adversary": "landscape",
        "audit": {"trials": 1, "delta": 1e-5, "record_every": 1},
        "grid": {"mechanism.noise_multiplier": [2.0, 4.0], "mechanism.batch_size": [1, 4]},
    }  # fmt: skip
    run, panels = grouped(sweep, tmp_path)
    assert [panel.title for panel in panels] == ["noise_multiplier=2.0", "noise_multiplier=4.0"]
    assert whole_run.amplification_figure(run, panels) is not None
    exact, read_as_gaussian = (
        panels_of_run(run, name)[0].lines[0] for name in ("exact", "exact-gdp")
    )
    assert exact.last[0] < read_as_gaussian.last[0]


def test_amplification_averages_repetitions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the seeds stand in the grid, a cell is the mean of its own repetitions."""
    sweep = {
        "name": "landscape",
        "mechanism": {"name": "landscape", "steps": 3, "batch_size": 1, "noise_multiplier": 1.0},
        "adversary": "landscape",
        "audit": {"trials": 400, "delta": 1e-5, "record_every": 1},
        "grid": {
            "mechanism.noise_multiplier": [0.5, 1.0],
            "mechanism.seed": [1, 2, 3],
            "mechanism.batch_size": [1, 4],
        },
    }
    run, panels = grouped(sweep, tmp_path)
    assert len(run.plan.audits) == 12
    kept = []
    monkeypatch.setattr(Line, "kept", property(lambda line: kept.append(line) or 0.5))
    assert whole_run.amplification_figure(run, panels) is not None
    cells = dict(zip((audit.id for audit in run.plan.audits), run.sweep.cells, strict=True))
    mechanisms = [[cells[audit.id].mechanism for audit in line.audits] for line in kept]
    assert [{(m.noise_multiplier, m.batch_size) for m in line} for line in mechanisms] == [
        {(0.5, 1)}, {(0.5, 4)}, {(1.0, 1)}, {(1.0, 4)},
    ]  # fmt: skip
    assert all([m.seed for m in line] == [1, 2, 3] for line in mechanisms)


@pytest.mark.parametrize(
    ("key", "values", "drawn"),
    [
        ("mechanism.noise_multiplier", [0.5, 1, 2.0], True),
        ("mechanism.noise_multiplier", [0.5, 1.0], False),
        ("mechanism.steps", [1, True, 3], False),
        ("mechanism.seed", [0, 1, 2], False),
        ("mechanism.training.seed", [0, 1, 2, 3], False),
        ("mechanism.steps", [0, 1, 10**400], False),
        ("adversary.layer", ["last", "second-last", "input"], False),
    ],
)
def test_numbers_make_an_axis(key: str, values: list[Any], drawn: bool) -> None:
    assert is_axis(key, values) == drawn
