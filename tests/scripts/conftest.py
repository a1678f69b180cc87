"""One process that runs are forked from, for all tests of a worker: starting it takes seconds."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dpaudit_ray.isolation import Sandbox
from dpaudit_ray.scripts import script_runs
from dpaudit_ray.scripts.script_runs import Target

ZOO = Path(__file__).resolve().parents[2] / "jobs/zoo"


@pytest.fixture(scope="session")
def warm() -> Iterator[Sandbox]:
    """Scripts of the zoo can be run in it."""
    with script_runs.sandbox_for(Target(ZOO / "healthy.py", "mlp")) as own:
        yield own


@pytest.fixture
def one_room(warm: Sandbox, monkeypatch: pytest.MonkeyPatch) -> Sandbox:
    """Audits run scripts in the warm process, one at a time."""
    monkeypatch.setattr(script_runs, "sandbox_for", lambda target: contextlib.nullcontext(warm))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    return warm
