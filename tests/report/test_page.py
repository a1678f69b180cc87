"""The report: complete, interim and empty runs, and a real browser."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

import dpaudit_ray as da
from dpaudit_ray import plan as planning
from dpaudit_ray import spec
from dpaudit_ray.report import page
from dpaudit_ray.report.tables import Run, all_estimates, assumption_free, overview
from dpaudit_ray.storage import RunDirectory

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
PROBE = """
<script>
addEventListener("load", () => {
  const images = [...document.images];
  const drawn = images.filter(image => image.complete && image.naturalWidth > 0).length;
  document.body.dataset.probe = `${drawn} of ${images.length}`;
});
</script>
"""


@pytest.fixture
def finished(tiny: dict, tmp_path: Path) -> Run:
    result = da.run(tiny, storage_path=str(tmp_path), executor="inline")
    return Run.open(result.location)


def test_page_holds_every_audit_with_its_assumption_free_bound(finished: Run) -> None:
    html = Path(page.write(finished)).read_text()
    assert "Interim" not in html
    for audit in finished.plan.audits:
        assert audit.label in html
        bound = assumption_free(finished, audit, finished.prefix(audit))
        assert f"{bound.epsilon_lower:.4f}" in html
        assert (Path(finished.directory.location) / f"figures/{audit.id}.png").stat().st_size > 5000
    assert html.count("data:image/png") == 2 + 2 * len(finished.plan.audits)
    assert html.count("<img") == html.count("alt=")


def test_a_partial_run_is_marked_interim(finished: Run) -> None:
    audit = finished.plan.audits[0]
    (Path(finished.directory.location) / f"scores/{audit.id}/40-49.parquet").unlink()
    table = finished.estimates
    finished.directory.write_estimates(
        table.assign(trials=table["trials"].where(table["audit"] != audit.id, 40)).to_dict(
            "records"
        )
    )
    partial = Run.open(finished.directory.location)
    assert [row["interim"] for row in overview(partial)] == [True, False]
    marks = all_estimates(partial).groupby(["audit", "estimator"])["interim"].all()
    assert marks[audit.id, "accuracy"]
    assert not marks[audit.id, "anytime"], "a time-uniform bound is never interim"
    assert "<strong>Interim.</strong>" in Path(page.write(partial)).read_text()


def test_a_run_without_trials_still_has_a_report(tiny: dict, tmp_path: Path) -> None:
    sweep = spec.from_raw(tiny)
    directory = RunDirectory.under(str(tmp_path), sweep.name)
    planning.open_run(sweep, directory)
    html = Path(page.write(Run.open(directory.location))).read_text()
    assert html.count("No finished trials yet") == 2


def test_text_from_the_sweep_cannot_become_markup(tiny: dict, tmp_path: Path) -> None:
    tiny["grid"]["adversary"] = [{"name": "loss", "example": 3}]
    directory = RunDirectory.under(str(tmp_path), "tiny")
    planning.open_run(spec.from_raw(tiny), directory)
    plan_text = directory.read_text(planning.FILE) or ""
    directory.write_text(planning.FILE, plan_text.replace("loss example=3", "<b>loss</b>"))
    html = Path(page.write(Run.open(directory.location))).read_text()
    assert "<b>loss</b>" not in html
    assert "&lt;b&gt;loss" in html


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt install chromium)")
def test_a_real_browser_draws_every_figure_without_complaint(finished: Run, tmp_path: Path) -> None:
    html = Path(page.write(finished)).read_text()
    probed = tmp_path / "probed.html"
    probed.write_text(html.replace("</body>", PROBE + "</body>"))
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--enable-logging=stderr", f"--user-data-dir={tmp_path / 'profile'}",
        "--virtual-time-budget=5000", "--dump-dom", probed.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    drawn = re.search(r'data-probe="(\d+) of (\d+)"', done.stdout)
    assert drawn, done.stderr[-2000:]
    assert drawn[1] == drawn[2] == "6"
    assert "CONSOLE" not in done.stderr
