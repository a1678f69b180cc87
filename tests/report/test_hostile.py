"""A stranger's run: labels are text, whatever is in them, and links lead nowhere."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest

from tests.command import dpaudit, inline, refused, write_sweep

LABELS = [r"$\frac$", r"$\alpha_1^{$", "<script>alert(1)</script>", "{{ 7 * 7 }}"]


@pytest.fixture
def sweep() -> dict[str, Any]:
    """Two audits of a process, one of which is called what `label` is set to."""
    mechanism = {"name": "landscape", "steps": 2, "batch_size": 1, "noise_multiplier": 2.0}
    audit = {"trials": 16, "delta": 1e-5, "record_every": 1}
    grid = {"mechanism.noise_multiplier": [2, 3]}
    raw = {"name": "small", "mechanism": mechanism, "adversary": "landscape", "audit": audit}
    return raw | {"grid": grid, "resources": {"pack_size": 8}}


def test_labels_are_shown_as_they_are_written(sweep: dict[str, Any], tmp_path: Path) -> None:
    assert inline(write_sweep(tmp_path, sweep), tmp_path).code == 0
    run = tmp_path / "small"
    plan = json.loads((run / "plan.json").read_text())
    for label in [*LABELS, "\x1b[31mred\x1b[0m\nmore\u202e"]:
        for audit in plan["audits"]:
            audit["label"] = label
        (run / "plan.json").write_text(json.dumps(plan))
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # of glyphs that no font has
            outcome = dpaudit("report", run)
        assert outcome.code == 0, outcome.err
        assert outcome.err == ""
        page = (run / "report.html").read_text()
        assert not set("\x1b\u202e") & set(page)
        assert page.count("<script>") == 1  # ours
        assert ("<h3>{{ 7 * 7 }}</h3>" in page) == (label == "{{ 7 * 7 }}")
        table = dpaudit("report", run, "--format", "table").out
        shown = label.encode("unicode_escape").decode() if "\x1b" in label else label
        assert shown in table
        assert not set("\x1b\u202e") & set(table)


def test_a_label_of_tex_runs_from_the_sweep_file(sweep: dict[str, Any], tmp_path: Path) -> None:
    """By way of a file's name in the grid."""
    sweep["grid"] = {"adversary": [{"name": "landscape"}, {"name": "landscape", "threshold": 0.5}]}
    file = write_sweep(tmp_path, sweep | {"name": "tex"})
    assert inline(file, tmp_path).code == 0
    assert dpaudit("report", tmp_path / "tex").code == 0


def test_a_link_does_not_lead_a_report_out_of_its_run(
    sweep: dict[str, Any], tmp_path: Path
) -> None:
    assert inline(write_sweep(tmp_path, sweep), tmp_path).code == 0
    run, elsewhere = tmp_path / "small", tmp_path / "elsewhere"
    elsewhere.mkdir()
    precious = tmp_path / "precious"
    precious.write_text("precious")
    (run / "figures").symlink_to(elsewhere)
    line = refused("report", run)
    assert line == f"{run}/figures leads out of the run directory; remove the link"
    assert list(elsewhere.iterdir()) == []
    (run / "figures").unlink()
    (run / "report.html").symlink_to(precious)
    assert dpaudit("report", run).code == 0
    assert precious.read_text() == "precious"
    linked = tmp_path / "linked"
    linked.symlink_to(run)
    assert dpaudit("report", linked).code == 0, "a run directory may lie behind a link"
