"""Joining a cluster that runs already: with its token, without it, and where nobody listens."""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from command import write_sweep

pytestmark = pytest.mark.slow

QUIET = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
RAY = [sys.executable, "-m", "ray.scripts.scripts"]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture
def protected() -> Iterator[tuple[str, dict[str, str]]]:
    """A token-protected head node on loopback: its address and the environment that may join."""
    environment = os.environ | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_TMPDIR": tempfile.mkdtemp(prefix="ray"),  # short: Ray puts sockets below it
    }
    address = f"127.0.0.1:{free_port()}"
    command = [
        *RAY, "start", "--head", "--node-ip-address=127.0.0.1", f"--port={address.split(':')[1]}",
        "--num-cpus=2", "--include-dashboard=false", "--disable-usage-stats", "--block",
    ]  # fmt: skip
    head = subprocess.Popen(command, env=environment, **QUIET)
    deadline = time.monotonic() + 60
    while subprocess.call([*RAY, "status", "--address", address], env=environment, **QUIET) != 0:
        assert head.poll() is None
        assert time.monotonic() < deadline, "the head node did not come up"
        time.sleep(0.5)
    yield address, environment
    head.terminate()
    head.wait(timeout=30)


def run(sweep: dict, folder: Path, address: str, environment: dict[str, str]) -> tuple[int, str]:
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(sweep))
    command = [sys.executable, "-m", "dpaudit_ray", "run", file, "--storage-path", folder]
    done = subprocess.run(
        [*command, "--address", address],
        env=environment, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


def test_a_protected_cluster_lets_in_who_has_the_token(
    protected: tuple[str, dict[str, str]], tiny: dict, tmp_path: Path
) -> None:
    address, environment = protected
    code, output = run(tiny, tmp_path, address, environment)
    assert code == 0, output
    refused = environment | {"RAY_AUTH_TOKEN": "wrong"}
    tiny["name"] = "other"
    code, output = run(tiny, tmp_path, address, refused)
    assert code == 2
    assert "RAY_AUTH_TOKEN" in output.splitlines()[-1]
    assert "Traceback" not in output


def test_nobody_listening_is_told_at_once(tiny: dict, tmp_path: Path) -> None:
    started = time.monotonic()
    code, output = run(tiny, tmp_path, f"127.0.0.1:{free_port()}", dict(os.environ))
    assert code == 2
    assert "cannot reach a Ray cluster" in output
    assert len(output.splitlines()) == 1
    assert time.monotonic() - started < 20


def test_a_user_may_import_ray_first(tiny: dict, tmp_path: Path) -> None:
    """Ray reads its authentication when it is imported; ours is decided after that."""
    script = tmp_path / "own.py"
    file = write_sweep(tmp_path, tiny)
    script.write_text(
        "import ray\nimport dpaudit_ray as da\n"
        "if __name__ == '__main__':\n"
        f"    assert da.run({str(file)!r}, storage_path={str(tmp_path)!r}).complete\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH")}
    subprocess.run([sys.executable, script], env=environment, check=True, timeout=120)
