"""The sweeps of correlated noise, and the page about it: exact shares, and its sweep as written."""

import re

import pytest
import yaml

from jobs.correlated import shares
from tests.conftest import ROOT, write_sweep
from tests.jobs.small import JOBS, names, run_small
from tests.long import long
from tests.trainings import cell

PAGE = (ROOT / "docs/correlated-noise.md").read_text()
README = (JOBS / "correlated/README.md").read_text()
SCORES = ("watched-dimension", "gradient", "biased-dimension")


NAMES = [
    name if name in ("tree", "many") else pytest.param(name, marks=long("as `tree` does"))
    for name in names("correlated")
]


@pytest.mark.parametrize("name", NAMES)
def test_every_sweep_file_runs_and_has_the_exact_shares_of_the_readme(name, tmp_path, capsys):
    """With 1000 trials an audit for 5000: measured shares within four standard errors."""
    file = JOBS / f"correlated/{name}.yaml"
    few = [] if name == "many" else ["audit.trials=1000"]
    run = run_small(file, tmp_path, *few)
    capsys.readouterr()
    shares.main(run.directory.location)
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == (1 if name == "many" else 9)
    for row in rows:
        *_, exact, measured, _ = (part.strip() for part in row.strip("|").split("|"))
        share, error = map(float, measured.split(" ± "))
        assert abs(share - float(exact)) < 4 * error
    if name != "many":
        printed = re.findall(rf"^\| {name} \|.*?\| ([.\d]+) \| [^|]*±", README, re.MULTILINE)
        assert printed == [row.split("|")[4].strip() for row in rows]


@pytest.mark.parametrize("row", re.findall(r"^\| .* \| 1\.000 \| .*$", PAGE, re.MULTILINE))
def test_the_page_has_exact_shares(row, tiny):
    name, *printed = (part.strip() for part in row.strip("|").split("|"))
    sweep = yaml.safe_load((JOBS / f"correlated/{re.findall('`(.*?)`', name)[0]}.yaml").read_text())
    adversary = {"name": "watched-dimension", "period": 10}
    mechanism, _ = cell(tiny, adversary, noise=sweep["mechanism"]["noise"], steps=100)
    assert [float(share) for share in printed] == [
        round(shares.exact(mechanism, 10, score), 3) for score in SCORES
    ]


def test_the_page_has_three_rows_of_shares():
    assert len(re.findall(r"^\| .* \| 1\.000 \| .*$", PAGE, re.MULTILINE)) == 3


def test_the_sweep_of_the_page_runs(tmp_path):
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    file = write_sweep(tmp_path, yaml.safe_load(text))
    run = run_small(file, tmp_path / "runs", "audit.trials=500")
    assert run.sweep.name == "correlated"


@pytest.mark.parametrize(
    "noise", re.findall(r"^\| `(.*?)` \|.*\| [^|]+ \|$", PAGE, re.MULTILINE)[1:5]
)
def test_every_kind_of_the_page_is_read(noise, tiny):
    tiny["mechanism"]["steps"] = 12
    mechanism, _ = cell(tiny, "loss", noise=yaml.safe_load(noise))
    assert mechanism.noise.name in noise
