"""Runs of many audits: judged from shared numbers, shown as a map, drawn by the browser."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dpaudit_ray import accounting
from dpaudit_ray.accounting import Training
from dpaudit_ray.cli import tables
from dpaudit_ray.plan import claims
from dpaudit_ray.report import detection, page, verdict, words
from dpaudit_ray.report.many_audits import Varied, audit_map, page_json
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats import curve
from dpaudit_ray.stats.claim_verdict import ClaimTest
from tests.report.handed import LANDSCAPE, played, sweep

NOISES, SIZES = [1.0, 1.5, 2.0], list(range(1, 16))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """45 audits of 20 trials each, to be read only."""
    grid = {"mechanism.noise_multiplier": NOISES, "mechanism.batch_size": SIZES}
    audit = {"trials": 20, "delta": 1e-5, "record_every": 3, "estimators": ["accuracy"]}
    raw = sweep("many", mechanism=LANDSCAPE | {"noise_multiplier": 1.0}, grid=grid, audit=audit,
                resources={"pack_size": 20})  # fmt: skip
    return Run.open(str(played(raw, tmp_path_factory.mktemp("many"), len(NOISES) * len(SIZES))))


@pytest.fixture(scope="module")
def html(many: Run) -> str:
    return Path(page.write(many)).read_text()


def numbers_of(html: str) -> dict:
    return json.loads(re.search(r'id="numbers">(.*?)</script>', html, re.DOTALL)[1])


def test_a_page_of_many_audits_holds_numbers_and_no_pictures(html):
    assert "data:image/png" not in html
    assert len(html) < 2000 * 45
    content = numbers_of(html)
    assert len(content["audits"]) == 45
    ((title, cells),) = content["map"]["panels"]
    assert title == ""
    assert sorted(index for index, _, _ in cells) == list(range(45))
    assert [len(content["map"][key]) for key in ("columns", "rows")] == [15, 3]


def test_the_table_has_a_column_for_each_key_of_the_grid(html):
    head = html.partition('<table id="overview"')[2].partition("</thead>")[0]
    cells = re.findall(r"<th[^>]*>(.*?)</th>", head)
    heads = [re.sub("<[^>]*>", "", cell) for cell in cells]
    wanted = ["verdict", "ε ≥", "claim", "ε / claim", "batch_size", "noise_multiplier"]
    assert heads == ["audit", *wanted, "assumes", "trials"]


def test_numbers_of_the_page_are_those_of_the_run(many, html):
    for entry, audit in zip(numbers_of(html)["audits"], many.plan.audits, strict=True):
        assert entry["id"] == audit.id
        rows = many.rows(audit)
        row = rows[(rows["step"] == audit.horizons[-1])].iloc[0]
        assert entry["estimates"][0][2] == pytest.approx(row["epsilon_lower"], rel=1e-4)
        _, outside, inside = entry["scores"]
        assert sum(outside) + sum(inside) == 20


def test_labels_of_strangers_end_no_script():
    text = str(page_json({"label": "</script><img src=x>&\u2028"}))
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"label": "</script><img src=x>&\u2028"}


def test_further_keys_make_panels_and_one_key_makes_rows():
    keys = [Varied("a.x", tuple("123" * 4)), Varied("a.y", tuple("111222" * 2)),
            Varied("b", tuple("ppppppqqqqqq"))]  # fmt: skip
    placed = audit_map(keys, 12)
    assert (placed.across, placed.down) == ("x", "y")
    assert [title for title, _ in placed.panels] == ["b=p", "b=q"]
    assert [len(cells) for _, cells in placed.panels] == [6, 6]
    alone = audit_map(keys[:1], 60)
    assert len({(column, row) for _, column, row in alone.panels[0][1]}) == 60


def test_judging_says_how_far_it_is(many):
    calls = []
    verdict.judge(many, thorough=False, progress=lambda *counts: calls.append(counts))
    assert calls == [(number, 45) for number in range(1, 46)]


def test_audits_with_the_same_claim_and_guesses_share_a_simulation(monkeypatch):
    made = []

    def counted(*args, **options):
        made.append(args)
        return ClaimTest(*args, **options)

    monkeypatch.setattr(detection, "ClaimTest", counted)
    detection._share_found.cache_clear()
    members = np.random.default_rng(0).random(100) < 0.5
    powers = []
    for _ in range(5):  # equal audits, each with a claim of its own
        test = ClaimTest(curve.gaussian(1.0), 100)
        test.fold(2.0 * members, members)
        powers.append(detection.chance_to_refute(test, 0.05))
    assert len(made) <= detection.SIMULATIONS
    assert len(set(powers)) == 1


def test_audits_with_the_same_poisson_claim_share_its_curve(monkeypatch):
    calls = []
    original = accounting.epsilon_of

    def counted(*args):
        calls.append(args)
        return original(*args)

    monkeypatch.setattr(accounting, "epsilon_of", counted)
    claims.curves.cache_clear()
    claimed = [Training(2.0, 10, sample_rate=0.1) for _ in range(4)]
    curves = {claims.curves(each, "rdp", 1e-5)(2.0) for each in claimed}
    assert len(curves) == len(calls) == 1


def test_a_run_of_many_audits_ends_with_a_summary(many, capsys):
    answer = verdict.current(many)
    tables.show_summary(many, answer)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < 20
    assert lines[0].startswith("45 audits: ")
    assert "35 more" in " ".join(lines)


def test_exact_numbers_are_no_lower_bounds(many):
    quotes = verdict.quotes(many, None)
    assert words.relation(quotes) == "≥"
    exact = [replace(quote, assumes="exact") for quote in quotes]
    assert words.relation(exact) == "="
    assert words.relation([*quotes, *exact]) == ""
    assert tables.head(exact) == "eps ="
