"""Errors with the text that Ray 2.60.0 gives: each becomes one line with the right advice."""

import errno
import os
import socket
import threading
from typing import Any

import pytest
import ray

from dpaudit_ray.errors import NoClusterError
from dpaudit_ray.orchestration import addresses, ray_errors, ray_executor
from dpaudit_ray.orchestration.workers import ResourceRequest
from tests.command import refused, write_sweep

MISMATCH = (
    "Version mismatch: The cluster was started with:\n    Ray: {}\n    Python: {}\n"
    "This process on node 192.0.2.2 was started with:\n    Ray: {}\n    Python: {}\n"
)
JOINING = [
    (
        RuntimeError(MISMATCH.format("2.60.0", "3.11.7", "2.55.0", "3.11.7")),
        "the cluster has Ray 2.60.0 and Python 3.11.7, this process has Ray 2.55.0 and Python "
        "3.11.7",
        "install ray==2.60.0 here",
    ),
    (
        RuntimeError(MISMATCH.format("2.60.0", "3.12.1", "2.60.0", "3.11.7")),
        "the cluster has Ray 2.60.0 and Python 3.12.1, this process has Ray 2.60.0 and Python "
        "3.11.7",
        "use Python 3.12.1 here",
    ),
    (
        ConnectionError("Failed to connect to Ray cluster at 192.0.2.2:32063"),
        "it refuses this process",
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the token of its head",
    ),
    (
        ray.exceptions.AuthenticationError(
            "Token authentication is enabled but no token was found"
        ),
        "Token authentication is enabled but no token was found",
        "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN to the token of its head",
    ),
    (TimeoutError("nothing answers there"), "nothing answers there", "check the host"),
    (
        ValueError(
            "Can't find a `node_ip_address.json` file from /tmp/ray/session_2025-08-29_10-51-18_1."
            " for 60 seconds. A ray instance hasn't started. Did you do `ray start` or `ray.init` "
            "on this host?"
        ),
        "no node of that cluster runs on this machine",
        "run this command on a node, or use dpaudit submit from outside",
    ),
    (
        ConnectionError(
            "Could not find any running Ray instance. Please specify the one to connect to by "
            "setting `--address` flag or `RAY_ADDRESS` environment variable."
        ),
        "Could not find any running Ray instance.",
        "check the address",
    ),
]


@pytest.mark.parametrize(("error", "reason", "remedy"), JOINING)
def test_a_cluster_that_cannot_be_joined_is_reported_with_what_to_do(
    error, reason, remedy, light, tmp_path, monkeypatch
):
    def failing(**options: Any) -> None:
        raise error

    monkeypatch.setattr(ray, "init", failing)
    monkeypatch.setenv("RAY_ADDRESS", "auto")
    line = refused("run", write_sweep(tmp_path, light), "--storage-path", tmp_path)
    assert line.startswith(f"cannot reach a Ray cluster at auto (from RAY_ADDRESS) ({reason}")
    assert f"; {remedy}" in line
    assert ("TOKEN" in line) == ("TOKEN" in remedy), "no advice about tokens elsewhere"


STARTING = [
    (
        "validate_socket_filename failed: AF_UNIX path length cannot exceed 107 bytes: /t/ray/x",
        "the path of its sockets is too long below /t",
        "set RAY_TMPDIR=/tmp",
    ),
    (
        "[Errno 13] Permission denied: '/tmp/ray/ray_current_cluster'",
        "[Errno 13]",
        "set RAY_TMPDIR",
    ),
    ("[Errno 28] No space left on device: '/tmp/ray/session_1'", "[Errno 28]", "free space in /t"),
    ("can't start new thread", "can't start new thread", "raise the limit of processes"),
    ("[Errno 24] Too many open files: '/dev/null'", "[Errno 24]", "raise the limit of open files"),
    (
        "The current node timed out during startup.",
        "The current node",
        "run the same command again",
    ),
]


@pytest.mark.parametrize(("text", "reason", "remedy"), STARTING)
def test_a_machine_on_which_ray_does_not_start_is_reported_with_what_to_do(
    text, reason, remedy, light, tmp_path, monkeypatch
):
    def failing(**options: Any) -> None:
        raise OSError(text)

    monkeypatch.setattr(ray, "init", failing)
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    monkeypatch.setenv("TMPDIR", "/t")
    line = refused("run", write_sweep(tmp_path, light), "--storage-path", tmp_path)
    assert line.startswith(f"Ray does not start on this machine ({reason}")
    assert f"; {remedy}" in line


def test_ray_s_own_check_of_versions_gives_the_text_that_is_read():
    """A later Ray may say it otherwise."""
    from ray._private.utils import check_version_info

    with pytest.raises(RuntimeError) as mismatch:
        check_version_info({"ray_version": "2.0.0", "python_version": "3.1.4"}, "node 192.0.2.2")
    trouble = ray_errors.joining_trouble(mismatch.value)
    assert trouble.reason.startswith("the cluster has Ray 2.0.0 and Python 3.1.4, this process has")
    assert trouble.remedy == "install ray==2.0.0 here"


def test_ray_s_own_check_of_socket_paths_gives_the_text_that_is_read():
    from ray._private.utils import validate_socket_filepath

    with pytest.raises(OSError) as too_long:  # noqa: PT011 (its text is what is tested)
        validate_socket_filepath("/" + "x" * 200)
    trouble = ray_errors.local_trouble(too_long.value)
    assert trouble is not None
    assert trouble.remedy == "set RAY_TMPDIR=/tmp"


def test_errors_of_the_system_are_recognised_by_their_text():
    for number in (errno.EACCES, errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.EAGAIN):
        assert ray_errors.local_trouble(OSError(number, os.strerror(number))) is not None


@pytest.mark.parametrize("url", ["http://127.0.0.1:8265", "ray://127.0.0.1:10001"])
def test_an_address_of_the_environment_is_reported_as_such(url, light, tmp_path, monkeypatch):
    file = write_sweep(tmp_path, light)
    monkeypatch.setenv("RAY_ADDRESS", url)
    line = refused("run", file, "--storage-path", tmp_path)
    assert line.startswith(f"{url} (from RAY_ADDRESS) is not the address of a cluster's head")
    assert "unset RAY_ADDRESS to run on this machine" in line
    assert "RAY_ADDRESS" not in refused("run", file, "--storage-path", tmp_path, "--address", url)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1:6379"),
        ("head", "head:6379"),
        ("fd00::1", "[fd00::1]:6379"),
        ("[fd00::1]", "[fd00::1]:6379"),
        ("fe80::1%eth0", "[fe80::1%eth0]:6379"),
    ],
)
def test_hosts_and_ports_are_joined_as_grpc_reads_them(host, address):
    assert addresses.host_port(host, 6379) == address
    assert addresses.has_port(address)
    assert not addresses.lacks_brackets(address)


def test_words_and_bare_ipv6_addresses_have_no_port():
    assert not any(map(addresses.has_port, ("auto", "local", "fd00::1", "fd00::1:6379", ":6379")))
    assert addresses.lacks_brackets("fd00::1:6379")
    assert not addresses.lacks_brackets("[fd00::1]")
    with pytest.raises(NoClusterError, match=r"without brackets; write \[HOST\]:PORT"):
        ray_executor._require_head_address("fd00::1:6379", "")


def test_a_head_at_an_ipv6_address_is_asked():
    """A server that accepts there, and says nothing, is found silent by its name in brackets."""
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        connected = threading.Event()

        def accept() -> None:
            server.accept()
            connected.set()

        threading.Thread(target=accept, daemon=True).start()
        import grpc

        from dpaudit_ray.orchestration.interruption import HealthChecks

        checks = HealthChecks(grpc.insecure_channel)
        address = addresses.host_port("::1", server.getsockname()[1])
        checks.ask({address}, 1.0)
        checks.close()
        assert connected.wait(10)


@pytest.mark.parametrize(
    ("gpus", "node", "trainers"),
    [(0.6, 2, 2), (0.5, 2, 4), (0.3, 2, 6), (0.4, 3, 6), (1, 3, 3), (2, 3, 1), (0.1, 1, 10)],
)
def test_a_part_of_a_gpu_comes_from_one_gpu(gpus, node, trainers):
    request = ResourceRequest({"CPU": 1.0, "GPU": gpus})
    assert request.fits({"CPU": 64.0, "GPU": float(node)}) == trainers
