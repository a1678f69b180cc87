"""A training of one's own, audited from its sweep file to the verdict."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from dpaudit_ray.stats import gdp
from tests.command import dpaudit, inline, refused, write_sweep


def release(member: bool, seed: int, noise: float = 2.0, steps: int = 4) -> float:
    """`steps` Gaussian releases of the canary's bit, summed: μ = √steps / noise."""
    rng = np.random.default_rng(seed)
    return float((member + noise * rng.normal(size=steps)).sum())


def broken(member: bool, seed: int) -> Any:
    return "a score"


NOT_CALLABLE = 3


def sweep(**changes: Any) -> dict[str, Any]:
    mechanism = {
        "name": "function",
        "path": f"{__name__}:release",
        "steps": 4,
        "noise_multiplier": 2.0,
        "isolated": False,  # thousands of calls of a microsecond
        **changes,
    }
    audit = {"trials": 2000, "delta": 1e-5, "estimators": ["accuracy"], "accountants": ["gaussian"]}
    return {"name": "own", "seed": 1, "mechanism": mechanism, "adversary": "own", "audit": audit}


def test_a_true_claim_is_approached_and_not_refuted(tmp_path: Path) -> None:
    done = inline(write_sweep(tmp_path, sweep()), tmp_path / "runs")
    assert done.code == 0, done.err
    estimates = pd.read_parquet(tmp_path / "runs" / "own" / "estimates.parquet")
    (row,) = estimates.itertuples()
    claim = gdp.epsilon(1.0, 1e-5)
    assert row.epsilon_upper == pytest.approx(claim)
    assert 0.7 * claim < row.epsilon_lower < claim
    folders = [tmp_path / "runs", tmp_path / "again"]
    assert inline(tmp_path / "sweep.yaml", folders[1]).code == 0
    first, second = (
        pd.concat(map(pd.read_parquet, sorted(folder.rglob("scores/*/*.parquet"))))
        for folder in folders
    )
    assert first["score"].nunique() == len(first) == 2000
    pd.testing.assert_frame_equal(first, second)
    assert dpaudit("verify", tmp_path / "runs" / "own").code in (0, 5)


def test_less_noise_than_claimed_is_a_violation(tmp_path: Path) -> None:
    file = write_sweep(tmp_path, sweep(options={"noise": 1.0}))
    assert inline(file, tmp_path / "runs").code == 0
    assert dpaudit("verify", tmp_path / "runs" / "own").code == 1


def test_what_is_no_score_fails_its_pack(tmp_path: Path) -> None:
    done = inline(write_sweep(tmp_path, sweep(path=f"{__name__}:broken")), tmp_path / "runs")
    assert done.code == 3
    assert "'a score', no number" in done.err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "nowhere"}, "mechanism.path"),
        ({"path": "nowhere:train"}, "cannot import 'nowhere:train'"),
        ({"path": f"{__name__}:NOT_CALLABLE"}, "cannot be called"),
        ({"noise_multiplier": 0.0}, "mechanism.noise_multiplier"),
        ({"sample_rate": 1.5}, "mechanism.sample_rate"),
    ],
)
def test_bad_input_is_one_line(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in refused("run", write_sweep(tmp_path, sweep(**change)))


def test_other_adversaries_and_horizons_are_refused(tmp_path: Path) -> None:
    other = sweep() | {"adversary": "loss"}
    assert "loss cannot attack function; use own" in refused("run", write_sweep(tmp_path, other))
    early = sweep()
    early["audit"]["record_every"] = 2
    assert "scored at its end" in refused("run", write_sweep(tmp_path, early))
