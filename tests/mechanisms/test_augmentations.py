"""Augmentation multiplicity: views against loops, one gradient for all views of an example."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import nn

import dpaudit_ray as da
from dpaudit_ray.engines.packing.packed import PackedModel
from dpaudit_ray.mechanisms.dp_sgd.training import DpSgdTraining, draw_views
from tests.command import completed, inline, refused, write_sweep
from tests.engines.networks import Crowded, Made
from tests.trainings import cell


@pytest.fixture
def images(tiny: dict, tmp_path: Path) -> dict:
    """A sweep of the ConvNet on images of noise, in three views each; its loops are compiled."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, size=(30, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "images.npz", x=x, y=np.arange(30, dtype=np.uint8) % 3)
    tiny["mechanism"] |= {
        "data": {"name": "npz", "path": str(tmp_path / "images.npz")},
        "model": {"name": "convnet"}, "batch_size": 8, "steps": 3, "augmentations": 3,
    }  # fmt: skip
    tiny["adversary"], tiny["grid"] = {"name": "watched-dimension"}, {}
    tiny["audit"] |= {"record_every": 3, "trials": 20}
    return tiny


def slow_sum(module: nn.Module, x: torch.Tensor, y: torch.Tensor, c: float) -> torch.Tensor:
    """Mean gradients of every example's views, each clipped to `c`, by autograd on the network."""
    total = torch.zeros_like(nn.utils.parameters_to_vector(module.parameters()))
    for views, label in zip(x, y, strict=True):
        loss = F.cross_entropy(module(views), label.expand(len(views)))
        own = torch.autograd.grad(loss, list(module.parameters()))
        gradient = torch.cat([each.reshape(-1) for each in own])
        total += gradient * min(1.0, float(c / gradient.norm()))
    return total.detach()


def test_views_are_crops_and_mirror_images():
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(40, 2, 9, 8)))
    found = draw_views(x, 5, 3, 2)
    assert found.shape == (40, 5, 2, 9, 8)
    padded = F.pad(x, (4,) * 4, mode="reflect")
    seen = set()
    for i in range(40):
        crops = {}
        for down in range(9):
            for across in range(9):
                crop = padded[i, :, down : down + 9, across : across + 8]
                crops[crop.numpy().tobytes()] = (down, across, False)
                crops[crop.flip(-1).numpy().tobytes()] = (down, across, True)
        seen.update(crops[view.contiguous().numpy().tobytes()] for view in found[i])
    assert len(seen) > 80, "of 162, some of which are the same, by 200 draws"
    assert torch.equal(found, draw_views(x, 5, 3, 2))
    assert not torch.equal(found, draw_views(x, 5, 3, 3))


@pytest.mark.parametrize("physical", [None, 3])
def test_a_step_clips_the_mean_gradient_of_an_examples_views(images, physical):
    images["mechanism"]["physical_batch_size"] = physical
    options, _ = cell(images, images["adversary"])
    training = DpSgdTraining.prepare(options.recipe, 3, gpu=False)
    x, y = training.batch(2)
    assert x.shape == (8, 3, 3, 32, 32)
    theta = training.initial[None]
    total = slow_sum(training.module, x, y, 1.0)
    torch.testing.assert_close(training.sums(theta, x, y, 1.0)[0], total, rtol=1e-4, atol=1e-5)
    shown: list[torch.Tensor] = []
    path = training.run(torch.zeros(1), 5, None, 1, lambda *one: shown.append(one[2]))
    thetas = [theta.clone() for theta in path]
    noise = 8 * shown[1] - training.sums(thetas[1], x, y, 1.0)
    assert float(noise.std()) == pytest.approx(2.0, rel=0.02), "σ C, once the views are taken away"


def test_an_audit_with_views_takes_the_others_away(images, tmp_path):
    """The likelihood ratio knows the views of the others: else scores would be anywhere."""
    images["mechanism"]["noise_multiplier"] = 0.05
    completed(inline(write_sweep(tmp_path, images), tmp_path))
    scores = da.Result(str(tmp_path / "tiny"), complete=True).scores
    values = scores["score"] / (3 / 2 / 0.05**2)  # ± 1 for three steps of distance C each
    assert np.abs(np.abs(values) - 1).max() < 0.2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"engine": "opacus"}, "augmentations: is 3, which engine: opacus does not do"),
        ({"data": {"name": "breast_cancer"}, "model": {"name": "fcnn"}}, "have shape [30]"),
    ],
)
def test_views_that_cannot_be_had(changes, words, images, tmp_path):
    images["mechanism"] |= changes
    assert words in refused("run", write_sweep(tmp_path, images), "--executor", "inline")


def test_what_cannot_be_mapped_is_taken_one_by_one():
    """Nor does `torch.func` take functions with a gradient of their own."""
    torch.manual_seed(0)
    layers = {"fc": nn.Linear(12, 5), "out": nn.Linear(5, 3)}
    module = Made(lambda self, x: self.out(Crowded.apply(self.fc(x.flatten(1)))), **layers).double()
    x, y = torch.randn(4, 2, 3, 2, 2).double(), torch.tensor([0, 1, 2, 0])
    model = PackedModel(module)
    total = slow_sum(module, x, y, 0.5)
    torch.testing.assert_close(model.viewed_sums(model.initial[None], x, y, 0.5)[0], total)
