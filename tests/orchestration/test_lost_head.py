"""The head dies while a sweep runs: exit 4 and a line, and another head resumes."""

import contextlib
import os
import re
import time
from pathlib import Path

import psutil
import pytest

import dpaudit_ray as da
from dpaudit_ray.orchestration.interruption import GONE_SECONDS, LEAVE_SECONDS
from tests.head import head, tree
from tests.orchestration.nodes import driver
from tests.orchestration.test_faults import assert_same

pytestmark = pytest.mark.cluster


def processes(name: str, temp: Path) -> list[psutil.Process]:
    """Processes of a head's folder whose program has that name: other heads have their own."""
    found = []
    for process in tree(os.getpid()):
        with contextlib.suppress(psutil.Error):
            program, *arguments = process.cmdline() or [""]
            if program.endswith(name) and str(temp) in " ".join(arguments):
                found.append(process)
    return found


def test_a_lost_head_ends_the_sweep_and_another_one_resumes(
    sweep_of_400, quiet_400, pace, tmp_path
):
    """Ray alone would end the driver after a minute with exit code 1, which is a violation."""
    pace.slow(2.0)
    with head(dashboard=False) as center, driver(center, sweep_of_400, tmp_path / "runs") as run:
        run.wait_for(lambda: run.packs)
        (server,) = processes("gcs_server", center.temp)
        server.kill()
        began = time.monotonic()
        assert run.ends(300) == 4, run.output
        assert time.monotonic() - began < GONE_SECONDS + LEAVE_SECONDS
    # The head's node, which is the driver's here, ends with its head, a moment sooner or later.
    line = run.output.splitlines()[-1]
    seen = re.match("dpaudit: (the cluster's head at |Ray on this node has ended)", line)
    assert seen, run.output
    assert line.endswith("run the same command again to resume")
    assert "Traceback" not in run.output
    assert 0 < run.packs < 80
    pace.hurry()
    da.run(sweep_of_400, storage_path=str(tmp_path / "runs"), executor="inline")
    assert_same(tmp_path / "runs/tiny", quiet_400)
