"""The head dies while a sweep runs: exit 4 and a line, and another head resumes."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import psutil
import pytest

from tests.command import changed, write_sweep
from tests.head import head
from tests.orchestration.nodes import driver, tree

pytestmark = pytest.mark.slow


def processes(name: str) -> list[psutil.Process]:
    """Processes below this one whose program has that name."""
    found = []
    for process in tree(os.getpid()):
        with contextlib.suppress(psutil.Error):
            if process.cmdline()[:1] and process.cmdline()[0].endswith(name):
                found.append(process)
    return found


def test_a_lost_head_ends_the_sweep_and_another_one_resumes(tiny: dict, tmp_path: Path) -> None:
    changed(tiny, "mechanism.steps", 300)
    changed(tiny, "audit.record_every", 100)
    sweep = write_sweep(tmp_path, changed(tiny, "audit.trials", 1500))
    with head(dashboard=False) as center, driver(center, sweep, tmp_path / "runs") as run:
        run.wait_for(lambda: run.packs)
        (server,) = processes("gcs_server")
        server.kill()
        assert run.ends(120) == 4, run.output
    line = run.output.splitlines()[-1]
    assert line.startswith("dpaudit: the cluster's head at 127.0.0.1:"), run.output
    assert line.endswith("run the same command again to resume")
    assert "Traceback" not in run.output
