"""What the kernels compile to, without a GPU: no spills, and shared memory that targets have."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dpaudit_ray.engines.gpu import kernels
from tests.long import long

ROOT = Path(__file__).resolve().parents[2]
LIMITS = {80: 163 * 1024, 90: 227 * 1024}  # bytes of shared memory that a program may ask for
PATIENCE = 1800  # seconds, on busy cores

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def compiled(tmp_path: Path, *arguments: str) -> list[dict[str, Any]]:
    """Rows of `jobs.kernels`, in a process of its own: Triton compiles or interprets, not both."""
    rows = tmp_path / "rows.jsonl"
    environment = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "jobs.kernels", *arguments, "--json", str(rows)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in rows.read_text().splitlines()]


def check(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        assert row["spilled"] == 0, row
        assert row["registers"] <= kernels.OPTIONS["maxnreg"], row
        assert row["shared"] <= LIMITS[row["target"]], row


def test_kernels_of_small_networks_and_noise_keep_to_registers(tmp_path: Path) -> None:
    rows = compiled(tmp_path, "noise", "fcnn")
    found = {(row["kernel"], row["numbers"], row["target"]) for row in rows}
    numbers = ("float32", "tf32", "bfloat16")
    expected = {("mlp_kernel", kind, target) for kind in numbers for target in LIMITS}
    assert found == expected | {("fill_kernel", "float32", target) for target in LIMITS}
    check(rows)


def test_kernels_of_convolutions_keep_to_registers(tmp_path: Path) -> None:
    """One layer of a ResNet-18 whose gradients pass, in float32; all its kernels."""
    rows = compiled(tmp_path, "resnet18", "--kernels", "float32 7.residual.3:")
    found = [(row["kernel"], row["target"]) for row in rows]
    once = [("ghost_kernel", 1), ("product_kernel", 2), ("sum_kernel", 1)]
    expected = [(name, target) for name, count in once for target in LIMITS for _ in range(count)]
    assert sorted(found) == sorted(expected)
    check(rows)


@pytest.mark.timeout(PATIENCE)
@long("every layer of the papers' networks, in three precisions for two targets, takes ten minutes")
def test_every_kernel_of_the_papers_networks_keeps_to_registers(tmp_path: Path) -> None:
    rows = compiled(tmp_path, "--processes", "2")
    assert {row["network"] for row in rows} >= {"fcnn", "convnet", "cnn4", "wrn16", "resnet18"}
    check(rows)
