"""Each way of `jobs.engines.peers` computes the sums that the engine computes."""

from jobs.engines import peers


def test_peers_of_a_small_network_agree_and_are_timed():
    ways = (peers.OURS, "ghost", "vmap, all models")
    times = peers.measured("fcnn", ways, rounds=1, models=2)
    assert set(times) == set(ways)
    assert all(ms > 0 for ms in times.values())


def test_way_that_differs_is_left_out(monkeypatch):
    monkeypatch.setattr(peers, "by_model", lambda module, theta, x, y, clip: theta)
    times = peers.measured("fcnn", (peers.OURS, "vmap, one model"), rounds=1, models=2)
    assert list(times) == [peers.OURS]


def test_row_names_the_ratio_to_the_best_peer():
    row = peers._line("fcnn", {peers.OURS: 0.5, "hooks": 4.0, "compiled": 2.0})
    assert row == "| `fcnn` | 0.5 | 4 |  |  |  | 2 | 4.0 |"
