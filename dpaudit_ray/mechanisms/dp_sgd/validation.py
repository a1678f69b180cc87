"""Checks of DP-SGD's options against the adversary, the data and the model.

Sweep files are checked where torch need not be loaded, so it is imported by what runs a model.
"""

from __future__ import annotations

import hashlib
from collections.abc import Hashable
from typing import TYPE_CHECKING

from ...accounting import Sampling
from ...adversaries.base import Adversary, ShadowPlan
from ...data.base import Dataset
from ...errors import SpecError, first_line
from ...models.base import Model, as_input, input_dtype
from .recipe import Recipe
from .sampling import Sampler

if TYPE_CHECKING:
    from torch import Tensor, nn

_EXAMPLES_TRIED = 64
_TRIED_MODELS: dict[Hashable, int] = {}  # a sweep's audits share few, and each takes a second


def check_period(adversary: Adversary, steps: int, sampling: Sampler) -> None:
    """Holds the steps at which the canary is inserted against the training's."""
    if steps % adversary.period:
        raise SpecError(
            "adversary.period",
            f"is {adversary.period}, which does not divide the {steps} steps: training would end "
            "between two insertions; lower it, or make mechanism.steps a multiple of it",
        )
    skips = adversary.period > 1 and not sampling.in_known_steps
    if skips and sampling.claim is not Sampling.POISSON:
        raise SpecError(
            "adversary.period",
            f"is {adversary.period}, but no claim holds for sampling {sampling.name} where steps "
            "are left out; use 1, or mechanism.sampling: poisson",
        )


def check_labels(adversary: Adversary, recipe: Recipe) -> None:
    """Holds a loss and an adversary that need classes against data that have numbers."""
    if recipe.data.has_classes:
        return
    if recipe.loss == "cross-entropy":
        raise SpecError(
            "mechanism.loss",
            "is cross-entropy, which learns classes, but `regression: true` gives numbers; use "
            "mse, or a function of your own: package.module:function",
        )
    if adversary.needs_classes:
        raise SpecError(
            "adversary.name",
            f"{adversary.name} gives a record another class, but `regression: true` gives numbers; "
            "use biased-dimension, watched-dimension, cosine, or api-access with canary: record",
        )


def check_frozen(adversary: Adversary, recipe: Recipe) -> None:
    """Refuses what means nothing in a training that stands still."""
    refused = (
        ("held_out", recipe.held_out is not None, "leave it out: no model is trained"),
        ("engine", recipe.engine != "packed", "use packed: no step is taken"),
        ("augmentations", recipe.augmentations > 1, "leave it out: no record has a gradient"),
        (
            "model.initialization",
            recipe.hidden_start,
            "use fixed: the first model labels the records",
        ),
    )
    for key, stated, remedy in refused:
        if stated:
            raise SpecError(f"mechanism.{key}", f"is of no use to {adversary.name}; {remedy}")


def check_augmentations(count: int, shape: tuple[int, ...], model: type[Model]) -> None:
    """Takes views of images only, and of the part of a model that is trained."""
    if count == 1:
        return
    if len(shape) != 3 or min(shape[1:]) < 8:
        raise SpecError(
            "mechanism.augmentations",
            f"is {count}, but examples have shape {list(shape)}; views are crops of images "
            "[channels, height, width] of at least 8 x 8 pixels",
        )
    if model.body is not Model.body:
        raise SpecError(
            "mechanism.augmentations",
            f"is {count}, but a frozen body sees every image once, before training; use a model "
            "without one",
        )


def check_known_start(model: Model) -> None:
    """Refuses a random initialisation where the adversary chooses θ_0, one for all trials."""
    if model.initialization == "random":
        raise SpecError(
            "mechanism.model.initialization",
            "is random, so that every trial draws its own start; the adversary chooses one for "
            "all: use fixed",
        )


def check_shadow_records(plan: ShadowPlan, private: Dataset, reserved: int, batch: int) -> None:
    """Refuses records for shadows that are too few, of another kind, or private ones too."""
    key, records = "mechanism.reserved", reserved
    if plan.data is not None:
        key, other = "adversary.shadow_data", plan.data.load()
        records = len(other.y)
        check_like(private, other, key, plan.data.name)
        rows = {row.tobytes() for row in private.x}
        if shared := sum(row.tobytes() in rows for row in other.x):
            name = plan.data.name
            raise SpecError(
                key,
                f"{shared} of the {records} records of {name} are private ones too; give others",
            )
    if records < batch:
        raise SpecError(
            key,
            f"gives shadow models {records} records, fewer than a batch of {batch}; give more, or "
            "lower mechanism.batch_size",
        )


def check_like(data: Dataset, other: Dataset, key: str, name: str) -> None:
    """Raises SpecError under `key` where `other` is not of the kind of `data`."""
    same_kind = other.x.shape[1:] == data.x.shape[1:] and other.y.dtype == data.y.dtype
    if not same_kind or other.classes > data.classes:
        raise SpecError(
            key,
            f"{name} has examples of shape {other.x.shape[1:]} in {other.classes} classes, the "
            f"data of {data.x.shape[1:]} in {data.classes}; give the same features, and no class "
            "that is never trained on",
        )


def check_model(model: Model, data: Dataset, batch: int, loss: str = "cross-entropy") -> int:
    """Builds the model and finds how it can be packed; returns how many parameters it has.

    As many examples go through it together as in a `batch`, and some more where that is small.
    Raises SpecError for layers that cannot be audited, a shape that does not fit the data, fewer
    outputs than classes, or a `loss` that is none of each example.
    """
    import torch

    from ...engines.packing.packed import PackedModel
    from .network import check_loss, loss_of, network, seeded

    tried, computed = max(_EXAMPLES_TRIED, batch), loss_of(loss)
    x, y = torch.from_numpy(data.x[:tried].copy()), torch.from_numpy(data.y[:tried].copy())
    try:
        with seeded(0):
            body = model.body(data.x.shape[1:])
        with torch.no_grad():
            x = x if body is None else body.eval()(x)
            module = network(model, tuple(x.shape[1:]), data.classes, 0)
            x = as_input(x, input_dtype(module, x))
            if (key := _model_key(module, x, y, (data.classes, computed))) in _TRIED_MODELS:
                return _TRIED_MODELS[key]
            packed = PackedModel(module, loss=computed)
            outputs = module(x[:2].clone())
    except SpecError:
        raise
    except Exception as error:  # a user's code may raise anything
        problem = f"does not run on examples of shape {data.x.shape[1:]}: {first_line(error)}"
        raise SpecError("mechanism.model", f"{model.name} {problem}") from error
    given = list(outputs.shape) if isinstance(outputs, torch.Tensor) else []
    needed = data.classes if loss == "cross-entropy" and data.classes > 2 else 1
    if len(given) != 2 or given[1] < needed:
        raise SpecError(
            "mechanism.model",
            f"{model.name} gives {given or type(outputs).__name__} for two examples of "
            f"{data.classes} classes; give one output per class (one alone for two classes)",
        )
    if loss != "cross-entropy":
        check_loss(loss, outputs, y[:2])
    packed.settle(x, y)
    _TRIED_MODELS[key] = len(packed.initial)
    return _TRIED_MODELS[key]


def _model_key(module: nn.Module, x: Tensor, y: Tensor, learnt: Hashable) -> Hashable:
    """The same for a network that was tried: of the same code, with these numbers.

    Classes are compared as objects, so that one whose code was loaded anew is another one.
    """
    import torch

    code = tuple((type(part), type(part).forward, part.training) for part in module.modules())
    numbers = tuple(
        (t.shape, t.dtype, t.requires_grad, hashlib.sha256(bits.numpy().tobytes()).digest())
        for t in (*module.parameters(), *module.buffers(), x, y)
        for bits in [t.detach().flatten().view(torch.uint8)]
    )
    return code, repr(module), numbers, learnt
