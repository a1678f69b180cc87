"""Joining a cluster that runs already: with its token, without it, and where nobody listens."""

import os
import socket
import subprocess
import sys
import time

import pytest

from dpaudit_ray.orchestration import ray_executor
from tests.command import refused, write_sweep
from tests.head import free_port


def test_a_protected_cluster_keeps_out_who_has_another_token(light, tmp_path, shared_head):
    """A process: Ray keeps the token that it has read."""
    file = write_sweep(tmp_path, light)
    command = [sys.executable, "-m", "dpaudit_ray", "run", file, "--storage-path", tmp_path]
    done = subprocess.run(
        [*command, "--address", shared_head.gcs],
        env=shared_head.environment | {"RAY_AUTH_TOKEN": "wrong"},
        capture_output=True, text=True, timeout=400,
    )  # fmt: skip
    assert done.returncode == 2
    assert "RAY_AUTH_TOKEN" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_nobody_listening_is_told_at_once(light, tmp_path):
    started = time.monotonic()
    file, address = write_sweep(tmp_path, light), f"127.0.0.1:{free_port()}"
    told = refused("run", file, "--storage-path", tmp_path, "--address", address)
    assert told.startswith("cannot reach a Ray cluster")
    assert time.monotonic() - started < 60  # Ray itself would try for minutes


def test_ray_that_starts_slowly_is_tried_again_and_then_one_line(light, tmp_path, monkeypatch):
    """Ray gives its node 30 s, and raises a bare Exception."""
    import ray

    tried: list[dict[str, object]] = []

    def slow(**options: object) -> None:
        tried.append(options)
        raise Exception("The current node timed out during startup. This could happen because ...")

    monkeypatch.setattr(ray, "init", slow)
    told = refused("run", write_sweep(tmp_path, light), "--storage-path", tmp_path)
    assert told.startswith("Ray does not start on this machine (The current node timed out")
    assert "--executor inline" in told
    assert len(tried) == 2


def test_a_head_that_accepts_and_does_not_answer_is_told(light, tmp_path, monkeypatch):
    """As the kernel does for a process that is stopped."""
    monkeypatch.setattr(ray_executor, "ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        file = write_sweep(tmp_path, light)
        told = refused("run", file, "--storage-path", tmp_path, "--address", address)
    assert told.startswith(f"cannot reach a Ray cluster at {address} (nothing answers there)")


@pytest.mark.parametrize("address", ["ray://127.0.0.1:10001", "http://127.0.0.1:8265"])
def test_an_address_of_another_kind_is_refused(address, light, tmp_path):
    told = refused(
        "run", write_sweep(tmp_path, light), "--storage-path", tmp_path, "--address", address
    )
    assert told.startswith(f"{address} is not the address of a cluster's head, which is HOST:6379")


@pytest.mark.usefixtures("shared_head")
def test_what_ray_does_not_take_is_one_line(light, tmp_path):
    """Kinds of accelerators have rules of their own, which Ray knows."""
    light["resources"]["custom_resources"] = {"TPU": 3}
    told = refused("run", write_sweep(tmp_path, light), "--storage-path", tmp_path)
    assert told.startswith("Ray refuses the resources of a trainer (")


@pytest.mark.cluster
def test_a_user_may_import_ray_first(light, tmp_path):
    """Ray reads its authentication when it is imported; ours is decided after that."""
    script = tmp_path / "own.py"
    file = write_sweep(tmp_path, light)
    script.write_text(
        "import ray\nimport dpaudit_ray as da\n"
        "if __name__ == '__main__':\n"
        f"    assert da.run({str(file)!r}, storage_path={str(tmp_path)!r}).complete\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    subprocess.run([sys.executable, script], env=environment, check=True, timeout=400)
