"""A finished run and its page, made once: tests that change a run take a copy."""

import shutil
from pathlib import Path

import pytest

import dpaudit_ray as da
from dpaudit_ray.report import page
from dpaudit_ray.report.tables import Run
from tests.report.handed import DP_SGD, sweep


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two audits of a real training, to be read only."""
    folder = tmp_path_factory.mktemp("trained")
    audit = {"trials": 90, "delta": 1e-5, "record_every": 3}
    audit |= {"estimators": ["accuracy", "paper-gdp", "eps-delta", "anytime"]}
    grid = {"adversary": [{"name": "biased-dimension"}, {"name": "loss"}]}
    raw = sweep("tiny", mechanism=DP_SGD, adversary="loss", audit=audit, grid=grid)
    return da.run(raw, str(folder), "inline").run


@pytest.fixture(scope="session")
def html(trained: Run) -> str:
    """The page of that run."""
    return Path(page.write(trained)).read_text()


@pytest.fixture
def copied(trained: Run, tmp_path: Path) -> Run:
    """The same run at another place, to be changed."""
    return Run.open(str(shutil.copytree(trained.directory.location, tmp_path / "tiny")))
