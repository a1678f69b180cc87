"""Ray's memory monitor ends trainers on a node that runs full: they count as lost, nothing else."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest

import dpaudit_ray as da
from jobs.scale.empty import Empty
from tests.command import write_sweep
from tests.conftest import ROOT
from tests.long import long

pytestmark = [pytest.mark.cluster, long("needs a machine whose memory nobody else uses")]
MARGIN = 2 << 30


class Hungry(Empty):
    """Takes memory until it is killed, in the first pack that finds no trace of an earlier one."""

    name: str = "tests.orchestration.test_out_of_memory:Hungry"
    trace: str

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """See `Session.run`."""
        trace, held = Path(self.trace), []
        if not trace.exists():
            trace.touch()
            while sum(part.nbytes for part in held) < 2 * MARGIN:
                held.append(np.ones(1 << 25))  # 256 MiB, touched
                time.sleep(0.1)
            time.sleep(60)
        return super().run(members, seed, horizons)


def sweep(trace: Path) -> dict:
    return {
        "name": "hungry",
        "mechanism": {"name": Hungry.model_fields["name"].default, "trace": str(trace)},
        "adversary": {"name": "jobs.scale.empty:Nobody"},
        "audit": {"trials": 400, "delta": 1e-5, "estimators": ["accuracy"]},
        "resources": {"pack_size": 10, "num_cpus": 1, "max_concurrent_trainers": 2},
    }


def test_out_of_memory(tmp_path):
    memory = psutil.virtual_memory()
    limit = (memory.total - memory.available + MARGIN) / memory.total
    monitor = {"RAY_memory_usage_threshold": f"{limit:.4f}", "RAY_memory_monitor_refresh_ms": "50"}
    spec = sweep(tmp_path / "trace")
    file = write_sweep(tmp_path, spec)
    done = subprocess.run(
        [sys.executable, "-m", "dpaudit_ray", "run", file, "--storage-path", tmp_path],
        env=os.environ | monitor | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "its node ran out of memory" in done.stderr
    assert (tmp_path / "trace").exists()
    quiet = da.run(spec, storage_path=str(tmp_path / "quiet"), executor="inline")
    found = da.Result(str(tmp_path / "hungry"), complete=True)
    assert found.scores.equals(quiet.scores)
    assert found.estimates.equals(quiet.estimates)
