"""When a batch's sums are recorded, and what becomes of a graph that is wrong.

Without a GPU nothing can be captured: `record` has a double here. What a capture would refuse is
looked for on the stand-in: numbers that the host sends in the middle of it, or waits for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from dpaudit_ray.engines.cpu.memory import GPU_MOST
from dpaudit_ray.engines.gpu import graphs
from dpaudit_ray.engines.gpu.graphs import Graphs, Inputs, Sums
from dpaudit_ray.engines.packing.footprint import Footprint
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.models.base import Model
from dpaudit_ray.plugins import parse
from tests.engines.standin import GPU, distant, standing_in


def again(sums: Sums, inputs: Inputs, off: float = 0.0) -> Callable[[], Tensor]:
    """The double: computes anew from the recorded inputs, into the same tensor each time."""
    out = sums(inputs)
    return lambda: out.copy_(sums(inputs) + off)


def squares(inputs: Inputs) -> Tensor:
    return inputs[0] ** 2 + sum(other.sum() for other in inputs[1:])


def test_the_fourth_batch_is_recorded_and_all_after_it_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded: list[Inputs] = []

    def record(sums: Sums, inputs: Inputs) -> Callable[[], Tensor]:
        recorded.append(inputs)
        return again(sums, inputs)

    monkeypatch.setattr(graphs, "record", record)
    kept, found = Graphs(), []
    batches = [(torch.tensor([float(i), torch.nan]), torch.tensor([i])) for i in range(8)]
    for i, batch in enumerate(batches):
        found.append(kept.sums(squares, batch, key=1.0))
        assert len(recorded) == (i >= 3)
    expected = torch.stack([squares(batch) for batch in batches])
    torch.testing.assert_close(torch.stack(found), expected, rtol=0, atol=0, equal_nan=True)
    assert all(buffer is not given for buffer, given in zip(recorded[0], batches[3], strict=True))


def test_other_shapes_weights_and_norms_are_other_graphs_of_which_few_are_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Inputs] = []
    monkeypatch.setattr(graphs, "record", lambda sums, x: made.append(x) or again(sums, x))
    kept, one, two = Graphs(), torch.ones(2), torch.ones(3)
    asked = [((one,), 1.0), ((two,), 1.0), ((one, two), 1.0), ((one,), 2.0)]
    for inputs, key in [*asked * 6]:
        assert torch.equal(kept.sums(squares, inputs, key), squares(inputs))
    assert len(made) == 2


@pytest.mark.parametrize("fails", ["another sum", "no capture"])
def test_a_graph_that_is_wrong_is_left_out_and_said(
    fails: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def record(sums: Sums, inputs: Inputs) -> Callable[[], Tensor]:
        if fails == "no capture":
            raise RuntimeError("operation not permitted when stream is capturing\nat line 3")
        return again(sums, inputs, off=1e-6)

    monkeypatch.setattr(graphs, "record", record)
    kept = Graphs()
    with caplog.at_level(logging.WARNING):
        for i in range(7):
            x = torch.tensor([float(i)])
            assert torch.equal(kept.sums(squares, (x,), None), x**2)
    said = "gives other sums" if fails == "another sum" else "cannot be recorded (operation not"
    assert [said in message for message in caplog.messages] == [True]


def test_a_model_replays_what_it_would_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "record", again)
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(5, 70), nn.Tanh(), nn.Linear(70, 3))
    plain, replaying = PackedModel(module), PackedModel(module)
    replaying._graphs = Graphs()
    for _ in range(6):
        theta = plain.initial + 0.1 * torch.randn(4, plain.size)
        x, y = torch.randn(9, 5), torch.randint(0, 3, (9,))
        for weights in (None, torch.rand(4, 9)):
            found, expected = (
                model.clipped_sums(theta, x, y, 0.5, weights) for model in (replaying, plain)
            )
            assert torch.equal(found, expected)
    assert len(replaying._graphs._recorded) == 2


def test_they_are_off_unless_asked_for_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, cpu = torch.device("cuda"), torch.device("cpu")
    monkeypatch.delenv(graphs.SWITCH, raising=False)
    assert not graphs.wanted(cuda)
    monkeypatch.setenv(graphs.SWITCH, "on")
    assert graphs.wanted(cuda)
    assert not graphs.wanted(cpu)
    assert PackedModel(nn.Linear(2, 2))._graphs is None


SHAPES = {
    "fcnn": (8,),
    "mlp3": (12,),
    "cnn4": (1, 28, 28),
    "convnet": (3, 32, 32),
    "wrn16": (3, 8, 8),
}


@pytest.mark.parametrize("name", SHAPES)
def test_nothing_is_sent_to_the_device_in_the_middle(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A capture refuses numbers that come from the host, and whatever waits for the device."""
    monkeypatch.setattr(Footprint, "groups", lambda *_: GPU_MOST)
    torch.manual_seed(0)
    asked = {"name": name, "width": 1} if name == "wrn16" else name
    module = parse(Model, asked, "model").build(SHAPES[name], 10)
    x, y = torch.randn(3, *SHAPES[name]), torch.tensor([0, 1, 2])
    with standing_in() as mode:
        model = PackedModel(module)
        model.settle(x, y)
        theta, *batch = distant((model.initial.repeat(2, 1), x, y, torch.ones(2, 3)))
        mode.waits.clear()
        mode.sent.clear()
        found = model.clipped_sums(theta, *batch[:2], 0.5, batch[2])
        assert found.device == GPU
        assert not mode.waits
        assert not mode.sent
        theta.new_zeros(2).copy_(torch.ones(2))
        assert mode.sent
