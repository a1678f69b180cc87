"""What options of DP-SGD do not go together. Each raises SpecError, with the value and a remedy."""

from __future__ import annotations

from ... import accounting
from ...accounting import Sampling
from ...adversaries.base import Adversary
from ...errors import SpecError
from ...models.base import Model
from .sampling.base import Sampler


def check_noise(noise: float | None, epsilon: float | None, belongs: dict[str, object]) -> None:
    """σ or ε, and what belongs to ε: `delta` and `accountant`."""
    if noise is None and epsilon is None:
        raise SpecError("noise_multiplier", "is required, or epsilon in its place")
    if noise is not None and epsilon is not None:
        raise SpecError(
            "epsilon",
            f"is {epsilon:g}, and noise_multiplier is {noise:g}: each says how much noise there "
            "is; leave one out",
        )
    for key, value in belongs.items():
        if epsilon is None and value is not None:
            raise SpecError(key, "belongs to epsilon, which is not given; leave it out")
    known, asked = accounting.accountants(), belongs["accountant"]
    if isinstance(asked, str) and ":" not in asked and asked not in known:
        raise SpecError("accountant", f"unknown accountant {asked!r}; known: {', '.join(known)}")


def check_period(adversary: Adversary, steps: int, sampling: Sampler) -> None:
    """How often the canary is inserted."""
    if adversary.period > steps:
        raise SpecError(
            "adversary.period",
            f"is {adversary.period}, but there are only {steps} steps: the canary would never be "
            "inserted; lower it or raise mechanism.steps",
        )
    if steps % adversary.period:
        raise SpecError(
            "adversary.period",
            f"is {adversary.period}, which does not divide the {steps} steps: training would end "
            f"between two insertions; set mechanism.steps to {steps - steps % adversary.period}",
        )
    skips = adversary.period > 1 and not sampling.known
    if skips and sampling.claim is not Sampling.POISSON:
        raise SpecError(
            "adversary.period",
            f"is {adversary.period}, but no claim holds for sampling {sampling.name} where steps "
            "are left out; use 1, or mechanism.sampling: poisson",
        )


def check_frozen(adversary: Adversary, asked: dict[str, bool]) -> None:
    """What means nothing in a training that stands still; `asked` says whether it is asked for."""
    remedies = {
        "held_out": "leave it out: a model that is not trained is worth nothing",
        "engine": "use packed: no step is taken",
        "batches": "use known: all records are the adversary's",
        "augmentations": "leave it out: no record has a gradient",
        "model.initialization": "use fixed: the first model labels the records",
    }
    for key, wrong in asked.items():
        if adversary.frozen and wrong:
            raise SpecError(
                f"mechanism.{key}", f"is of no use to {adversary.name}; {remedies[key]}"
            )


def check_augmentations(count: int, shape: tuple[int, ...], model: type[Model]) -> None:
    """Views are of images, and of the part of a model that is trained."""
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
