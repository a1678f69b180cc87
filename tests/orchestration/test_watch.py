"""How long a silent head is waited for."""

from __future__ import annotations

import socket
import time

import pytest

from dpaudit_ray.errors import ClusterError
from dpaudit_ray.orchestration import watch
from dpaudit_ray.orchestration.watch import Watch
from tests.head import free_port, wait_for


def raised_by(watched: Watch) -> str:
    try:
        watched.require()
    except ClusterError as error:
        return str(error)
    return ""


def test_a_head_that_is_gone_is_not_waited_for_by_a_sweep_that_was_asked_to_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """TERM to a whole process group, as Slurm sends it, reaches driver and head alike."""
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(watch, "LEAVING_SECONDS", 0.5)
    watched = Watch(f"127.0.0.1:{free_port()}", lambda line: None)
    try:
        time.sleep(1.2)
        assert raised_by(watched) == ""  # it may come back
        watched.leaving = lambda: True
        assert "has not answered" in wait_for(lambda: raised_by(watched), 5)
    finally:
        watched.close()


def test_a_head_that_answers_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(watch, "LEAVING_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        watched = Watch(f"127.0.0.1:{server.getsockname()[1]}", lambda line: None)
        watched.leaving = lambda: True
        time.sleep(0.8)
        assert raised_by(watched) == ""
        watched.close()
