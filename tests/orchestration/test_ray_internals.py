"""Names of Ray's that are not public: a Ray without them is one that a sweep runs on."""

import types

import grpc
import pytest

from dpaudit_ray.orchestration import ray_internals
from dpaudit_ray.orchestration.interruption import HeadLiveness, HealthChecks


@pytest.fixture
def bare():
    """A `ray` that has none of the private names."""
    return types.SimpleNamespace(__name__="no_such_ray")


def test_without_them_each_has_its_fallback(bare):
    ray_internals.read_authentication_again(bare)
    ray_internals.leave_without_shutdown(bare)
    assert ray_internals.draining_nodes(bare) == frozenset()
    assert ray_internals.autoscales(bare) is False
    assert ray_internals.object_store_socket(bare) == ""
    assert ray_internals.dashboard(bare) == ""
    assert ray_internals.channel(bare, "127.0.0.1:1") is None


def test_a_server_that_cannot_be_asked_is_not_silent(bare):
    checks = HealthChecks(lambda address: ray_internals.channel(bare, address))
    checks.ask({"127.0.0.1:1"}, 0.1)
    assert checks.silent == {}
    liveness = HeadLiveness("", grpc.insecure_channel)
    liveness.guard("127.0.0.1:1", "")
    assert liveness.answers
    liveness.require()


def test_this_ray_has_them():
    import ray

    assert ray_internals.channel(ray, "127.0.0.1:1") is not None
    assert ray._raylet.AuthenticationTokenLoader.instance().reset_cache
    assert ray._private.state.state.get_draining_nodes
    assert ray._private.state.state.get_cluster_config
    assert ray._private.worker.shutdown
    assert ray._private.worker.get_dashboard_url


def test_the_page_of_the_dashboard_is_told_where_there_is_one(monkeypatch):
    worker = types.SimpleNamespace(get_dashboard_url=lambda: "head:8265")
    ray = types.SimpleNamespace(_private=types.SimpleNamespace(worker=worker))
    assert ray_internals.dashboard(ray) == "http://head:8265"
    monkeypatch.setenv(ray_internals.JOB, "{}")
    assert ray_internals.dashboard(ray) == "", "whoever submitted the job has its page"
    monkeypatch.delenv(ray_internals.JOB)
    worker.get_dashboard_url = lambda: None
    assert ray_internals.dashboard(ray) == ""
