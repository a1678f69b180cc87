"""Data that changes between a run and its resumption is noticed by content, not by place."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dpaudit_ray.errors import DataError
from dpaudit_ray.plan import provenance
from dpaudit_ray.plan.provenance import InputFile
from dpaudit_ray.sweep import spec
from tests.command import changed, dpaudit, inline, refused, write_sweep


def write_data(file: Path, seed: int = 0) -> Path:
    rng = np.random.default_rng(seed)
    np.savez(file, x=rng.normal(size=(80, 4)).astype(np.float32), y=np.arange(80) % 2)
    return file


@pytest.fixture
def reading(tiny: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    """Two audits on a file, 20 trials each."""
    data = write_data(tmp_path / "data.npz")
    tiny["mechanism"]["data"] = {"name": "npz", "path": str(data)}
    tiny["mechanism"]["batch_size"] = 16
    return changed(tiny, "audit.trials", 20)


def plan_file(storage: Path) -> Path:
    return storage / "tiny/plan.json"


def test_data_that_changed_are_refused_with_both_digests(reading, tmp_path):
    sweep, data = write_sweep(tmp_path, reading), tmp_path / "data.npz"
    assert inline(sweep, tmp_path).code == 0
    digest = hashlib.sha256(data.read_bytes()).hexdigest()
    recorded = json.loads(plan_file(tmp_path).read_text())["data"]
    assert recorded == [{"file": str(data), "sha256": digest}]
    before = digest[:12]
    write_data(data, seed=1)
    after = hashlib.sha256(data.read_bytes()).hexdigest()[:12]
    plan = plan_file(tmp_path).read_bytes()
    expected = (
        f"{tmp_path}/tiny was run on other data ({data} has SHA-256 {before}... there, {after}... "
        "here); restore it, or use a new name and a new seed"
    )
    more = ("--set", "audit.trials=30", "--storage-path", tmp_path)
    assert refused("run", sweep, *more, "--executor", "inline") == expected
    assert refused("plan", sweep, *more) == expected
    assert plan_file(tmp_path).read_bytes() == plan
    for verb in ("status", "report"):
        assert dpaudit(verb, tmp_path / "tiny").code == 0, "results need no data"


def test_the_same_data_elsewhere_are_the_same(reading, tmp_path):
    assert inline(write_sweep(tmp_path, reading), tmp_path).code == 0
    plan = plan_file(tmp_path).read_bytes()
    moved = (tmp_path / "data.npz").rename(tmp_path / "moved.npz")
    reading["mechanism"]["data"]["path"] = str(moved)
    sweep = write_sweep(tmp_path, reading)
    assert inline(sweep, tmp_path).code == 0
    assert plan_file(tmp_path).read_bytes() == plan
    assert inline(sweep, tmp_path, "--set", "audit.trials=30").code == 0
    assert json.loads(plan_file(tmp_path).read_text())["data"] == json.loads(plan)["data"]


def test_files_of_models_count_and_missing_ones_do_not(reading, tmp_path):
    weights = tmp_path / "weights.pth"
    weights.write_bytes(b"weights")
    reading["mechanism"]["model"] = {"name": "alexnet", "weights": "file", "path": str(weights)}
    found = [Path(file.file).name for file in provenance.input_files(spec.from_raw(reading))]
    assert found == ["data.npz", "weights.pth"]
    weights.unlink()
    assert len(provenance.input_files(spec.from_raw(reading))) == 1


def test_a_file_that_cannot_be_read_is_told(reading, tmp_path, monkeypatch):
    def denied(*_: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(DataError, match=r"data.npz: cannot be read \(Permission denied\)"):
        provenance.input_files(spec.from_raw(reading))


@pytest.mark.parametrize(
    ("recorded", "now", "told"),
    [
        ("ab", "ab", None),
        ("aab", "ab", None),  # equal files count once
        ("ab", "ba", "file0 has SHA-256 a... there, b... here"),
        ("ab", "ac", "file1 has SHA-256 b... there, c... here"),
        ("ab", "a", "file1 has SHA-256 b... there, of no file here"),
        ("a", "ab", "file1 has SHA-256 of no file there, b... here"),
        ("", "", None),
    ],
)
def test_files_are_compared_in_their_order(recorded, now, told):
    def files(digests: str) -> tuple[InputFile, ...]:
        return tuple(InputFile(f"file{i}", digest) for i, digest in enumerate(digests))

    assert provenance.other_files(files(recorded), files(now)) == told
