"""The report: complete, interim and empty runs, and a real browser."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import dpaudit_ray as da
from dpaudit_ray import seeds
from dpaudit_ray.orchestration.aggregation import Aggregation
from dpaudit_ray.plan import outcomes
from dpaudit_ray.plan.model import Pack
from dpaudit_ray.plan.outcomes import Failure
from dpaudit_ray.report import page, verdict
from dpaudit_ray.report.quote import epsilon_text
from dpaudit_ray.report.tables import Run, overview

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("chrome")
PROBE = """
<script>
addEventListener("load", () => {
  const places = [...document.querySelectorAll("[data-charts]")];
  const drawn = places.filter(place => place.querySelector("svg"));
  document.body.dataset.probe = `${drawn.length} of ${places.length}`;
  document.querySelectorAll("#overview th")[2].click();
  document.body.dataset.largest = document.querySelector("#overview tbody a").innerText;
});
</script>
"""
POLICY = re.compile(r"<meta http-equiv=.Content-Security-Policy.*?>")


def test_page_holds_every_audit_with_its_bound_without_assumption(trained, html):
    assert "Interim" not in html
    for audit in trained.plan.audits:
        assert audit.label in html
        (free,) = (r["epsilon_lower_free"] for r in overview(trained) if r["audit"] == audit.id)
        assert f"Assumption-free, alone: ε ≥ {epsilon_text(free, 4)} (one-run)" in html
    charts = json.loads(re.search(r'id="charts">(.*?)</script>', html, re.DOTALL)[1])
    audits = [audit.id for audit in trained.plan.audits]
    assert set(charts) == {"overview", "evolution", "membership", *audits}
    assert all(f'data-charts="{place}"' in html for place in charts)
    assert "<img" not in html
    folder = Path(trained.directory.location) / "figures"
    assert {file.stem for file in folder.iterdir()} == {"overview", "evolution", "membership"}


def test_the_overview_is_the_same_from_python(trained):
    table = da.open(trained.directory.location).overview
    assert table["status"].tolist() == ["certified", "if-gaussian"]
    assert table.pop("adversary.name").tolist() == ["biased-dimension", "loss"]
    assert set(table.pop("mechanism.name")) == {"dp-sgd"}
    quotes = [audit.quote for audit in verdict.current(trained).audits]
    assert table.pop("quote").tolist() == [quote.epsilon for quote in quotes]
    assert table.pop("assumes").tolist() == [quote.assumes for quote in quotes]
    pd.testing.assert_frame_equal(table, pd.DataFrame(overview(trained)), check_exact=True)
    for column in ("mu_lower", "epsilon_lower", "epsilon_lower_free", "epsilon_lower_together"):
        assert table[column].notna().all()


def test_only_what_is_certified_is_tagged_so(html):
    loss = html.partition("<h3>loss</h3>")[2]
    row = r"<tr><td>([\w-]+)</td>.*?<span class=\"tag [\w-]+\">([^<]+)<"
    rows = re.findall(row, loss, re.DOTALL)
    assert rows == [
        ("accuracy", "assumes Gaussian"),
        ("paper-gdp", "as published"),
        ("eps-delta", "assumption-free"),
        ("anytime", "assumes Gaussian"),
    ]
    assert "above its claim</span>" not in loss
    assert "alone, each bound holds at 95 %" in html


def test_the_report_uses_the_trials_that_the_estimates_use(copied):
    """40 of 90 belong to the prefix, then comes a gap; of the 40, ten were run and failed."""
    audit, location = copied.plan.audits[0], copied.directory.location
    folder = Path(location) / f"scores/{audit.id}"
    for pack in ("20-29", "40-49"):
        (folder / f"{pack}.parquet").unlink()
    failed = Failure(Pack(0, 20, 29), "ValueError", "boom", "")
    outcomes.Record(copied.directory, copied.plan).set_failed([failed])
    Aggregation.rebuild(copied.directory).flush()
    partial = Run.open(location)
    assert set(partial.estimates.query("audit == @audit.id")["trials"]) == {40}
    html = Path(page.write(partial)).read_text()
    bits = np.delete(seeds.bits(partial.plan.seed, audit.fingerprint, 0, 39), range(20, 30))
    inside = int(bits.sum())
    assert f"({inside} in, {30 - inside} out" in html
    assert "failed, counted as misses: 10" in html


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine (apt install chromium)")
def test_a_real_browser_draws_every_figure_without_complaint(html, tmp_path):
    watched = html.replace("</body>", PROBE + "</body>")
    seen = rendered(POLICY.sub("", watched), tmp_path)
    assert 'data-probe="5 of 5"' in seen.stdout, seen.stderr[-2000:]
    assert 'data-largest="biased-dimension"' in seen.stdout
    assert "CONSOLE" not in seen.stderr
    # With its policy, no script runs but its own.
    seen = rendered(watched, tmp_path)
    assert "data-probe" not in seen.stdout.partition("<script>")[0]
    assert "violates the following Content Security Policy" in seen.stderr


def rendered(html: str, folder: Path) -> subprocess.CompletedProcess[str]:
    probed = folder / "probed.html"
    probed.write_text(html)
    command = [
        str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync",
        "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=5000", "--dump-dom", probed.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=400, check=True)
