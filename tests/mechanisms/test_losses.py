"""Losses of a training: squared errors and functions of one's own, in every way to compute them."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)

from dpaudit_ray.engines.packing.samplewise import Samplewise
from dpaudit_ray.engines.rules.losses import (
    classification_losses,
    output_gradients,
    squared_errors,
)
from dpaudit_ray.errors import SpecError
from tests.trainings import cell, opened, path

HERE = f"{__name__}:"
MLP = {"name": "mlp", "hidden": [80, 7, 5], "activation": "tanh"}
ALL_WAYS = {  # by rules, in loops for vectors, in loops for images
    "rules": ((6,), MLP),
    "vector loops": ((6,), {"name": "mlp", "hidden": [9, 4]}),
    "image loops": ((28, 28, 1), {"name": "cnn4"}),
}


def huber(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.huber_loss(outputs[:, 0], targets, reduction="none", delta=0.3)


def smooth(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(outputs, targets, reduction="none", label_smoothing=0.1)


def doubled_if_large(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Reads its batch: one large output would double the loss of all examples in it."""
    values = smooth(outputs, targets)
    return 2 * values if outputs.abs().max() > 5 else values


def doubled_by_item(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return smooth(outputs, targets) * (1 + int(outputs.abs().max().item() > 5))


def doubled_by_numpy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    return smooth(outputs, targets) * (1.0 + float(outputs.detach().numpy().max() > 5))


def mean(outputs: Any, targets: Any) -> Any:
    """No loss of each example."""
    return ((outputs[:, 0] - targets) ** 2).mean()


def broadcast(outputs: Any, targets: Any) -> Any:
    """[N, N]: an output is [N, 1]."""
    return (outputs - targets) ** 2


def centred(outputs: Any, targets: Any) -> Any:
    """Depends on the other examples of the batch."""
    return (outputs[:, 0] - outputs.mean() - targets) ** 2


def infinite(outputs: Any, targets: Any) -> Any:
    return outputs[:, 0] * targets / 0


def detached(outputs: Any, targets: Any) -> Any:
    return huber(outputs, targets).detach()


def one_argument(outputs: Any) -> Any:
    return outputs


@pytest.fixture
def regression(tmp_path):
    """Options of a training on 60 examples of this shape with numbers, or three classes."""

    def made(shape: tuple[int, ...] = (6,), classes: int = 0, **options: Any) -> dict[str, Any]:
        rng, file = np.random.default_rng(0), tmp_path / f"{classes}.npz"
        x = rng.normal(size=(60, *shape)) if len(shape) == 1 else rng.integers(
            255, size=(60, *shape), dtype=np.uint8
        )  # fmt: skip
        y = rng.integers(classes, size=60) if classes else x.reshape(60, -1)[:, 0] / x.std()
        np.savez(file, x=x, y=y)
        data = {"name": "npz", "path": str(file), "regression": not classes}
        return {"data": data, "steps": 6, "batch_size": 20} | options

    return made


@pytest.mark.parametrize("way", ALL_WAYS)
@pytest.mark.parametrize("loss", ["mse", f"{HERE}huber", f"{HERE}smooth"])
def test_both_engines_take_the_same_steps(way, loss, regression, tiny):
    """But for the 1e-6 that Opacus adds to norms; the noise is next to none.

    In float32 by loops for images, which are compiled for it already.
    """
    shape, model = ALL_WAYS[way]
    dtype = torch.float32 if way == "image loops" else torch.float64
    options = regression(shape, 3 if "smooth" in loss else 0, model=model, loss=loss)
    options |= {"noise_multiplier": 1e-12, "learning_rate": 0.5}
    ends = []
    for engine in ("packed", "opacus"):
        session = opened(tiny, "cosine", dtype, **options, engine=engine)
        ends.append(path(session.training, [0, 0], None)[-1])
    bounds = (1e-5, 1e-7) if dtype == torch.float64 else (1e-3, 1e-5)
    torch.testing.assert_close(*ends, rtol=bounds[0], atol=bounds[1])
    assert not torch.allclose(ends[0], session.training.initial.expand_as(ends[0]), atol=1e-2)


@pytest.mark.parametrize(
    ("loss", "outputs"),
    [(squared_errors, 1), (huber, 1), (classification_losses, 1), (classification_losses, 4)],
)
def test_gradients_by_outputs_are_those_of_autograd(loss, outputs):
    """Of three models with so many outputs, on eight examples."""
    given = torch.randn(3, outputs, 8, dtype=torch.float64)
    y = torch.randint(max(outputs, 2), (8,)) if loss is classification_losses else given[0, 0].sin()
    expected = torch.func.grad(lambda o: sum(loss(row.t(), y).sum() for row in o))(given)
    torch.testing.assert_close(output_gradients(given, y, loss), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("loss", [doubled_if_large, doubled_by_item, doubled_by_numpy])
def test_loss_that_reads_its_batch_is_computed_example_by_example(loss, regression, tiny):
    """A model whose outputs are large doubles its own losses, and no other model's."""
    options = regression((6,), 3, model=MLP, loss=f"{HERE}{loss.__name__}", clip_norm=1e6)
    training = opened(tiny, "cosine", torch.float64, **options).training
    x, y = training.batch(1)
    theta = training.initial.repeat(3, 1)
    theta[1] *= 30
    sums = training.sums(theta, x, y, 1e6)
    for row, total in zip(theta, sums, strict=True):
        by_example = Samplewise(training.module, loss).gradients(row, x, y)
        torch.testing.assert_close(total, by_example.sum(0), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(sums[0], training.sums(theta[:1], x, y, 1e6)[0])


@pytest.mark.parametrize(
    ("loss", "problem"),
    [
        ("mean", "gives []; it must give one loss for each example, [2]: take no mean"),
        ("broadcast", "gives [2, 2]; it must give one loss for each example, [2]"),
        ("centred", "gives an example another loss if its batch has others"),
        ("infinite", "is not finite before training"),
        ("detached", "has no gradient; compute it from the outputs, by torch"),
        ("one_argument", "does not take (outputs, targets)"),
        ("none", "cannot import"),
    ],
)
def test_what_is_no_loss_of_each_example_is_refused(loss, problem, regression, tiny):
    mechanism, _ = cell(tiny, "cosine", **regression(model=MLP, loss=HERE + loss))
    with pytest.raises(SpecError) as error:
        mechanism.check_inputs()
    assert error.value.key == "mechanism.loss"
    assert problem in error.value.problem


@pytest.mark.parametrize(
    ("changes", "adversary", "key", "problem"),
    [
        ({"loss": "cross-entropy"}, "cosine", "loss", "`regression: true` gives numbers; use mse"),
        ({"loss": "mes"}, "cosine", "loss", "must be cross-entropy, mse, or package.module"),
        ({}, "loss", "name", "loss gives a record another class"),
        ({}, {"name": "one-run", "canaries": 3, "kind": "mislabelled"}, "name", "another class"),
        ({}, {"name": "api-access", "canary": "blank"}, "name", "another class"),
    ],
)
def test_what_needs_classes_says_so_before_data_are_read(
    changes, adversary, key, problem, regression, tiny
):
    tiny["audit"]["estimators"] = ["eps-delta" if "canaries" not in adversary else "one-run"]
    with pytest.raises(SpecError) as error:
        cell(tiny, adversary, **regression(model=MLP, loss="mse") | changes)
    assert error.value.key.endswith(key)
    assert problem in error.value.problem


def test_of_numbers_the_loss_alone_is_measured(regression, tiny):
    session = opened(tiny, "api-access", **regression(model=MLP, loss="mse", held_out=0.2))
    outcome = session.run(np.arange(4) % 2 == 0, 7, (3, 6))
    assert outcome.utility.keys() == {"loss"} == set(session.training.recipe.measures)
    theta, (x, y) = session.training.initial[None], session.training.held_out
    errors = session.training.model.outputs(theta, x)[0, :, 0] - y
    assert session.training.measured(theta)[0, 0] == pytest.approx(float((errors**2).mean()))


def test_a_loss_is_part_of_what_a_run_is(regression, tiny):
    squared, own = (
        cell(tiny, "cosine", **regression(model=MLP, loss=loss))[0]
        for loss in ("mse", f"{HERE}huber")
    )
    assert squared.identity() != own.identity()
    assert (squared.named_modules(), own.named_modules()) == ((), (__name__,))
