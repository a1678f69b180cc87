"""A_L: a training example with a flipped label, scored by its loss (baseline of Cebere et al.)."""

from typing import TYPE_CHECKING, Literal

from pydantic import NonNegativeInt

from .base import FinalModel, LossAdversary, PublicKnowledge, SampleCanary

if TYPE_CHECKING:
    from numpy.random import Generator
    from torch import Tensor


class Loss(LossAdversary):
    """Adds a copy of an example with a wrong label; its final loss is low if it was inserted.

    `statistic: gradient-norm` scores by the norm of the canary's gradient instead, before
    clipping. Recorded over the steps, it shows how much of C the canary ever used.
    """

    name: Literal["loss"] = "loss"
    example: NonNegativeInt | None = None  # index of the copied example; a random one by default
    statistic: Literal["loss", "gradient-norm"] = "loss"  # minus this is the score

    @property
    def needs_classes(self) -> bool:
        return True

    def craft(self, public: PublicKnowledge, rng: "Generator") -> SampleCanary:
        return mislabelled(public, rng, self.example)

    def score(self, canary: SampleCanary, observed: FinalModel) -> "Tensor":
        """Scores n models by minus the loss of the canary, or minus the norm of its gradient."""
        if self.statistic == "loss":
            return super().score(canary, observed)
        norms: Tensor = observed.gradients(canary.x, canary.y).norm(dim=1)
        return -norms


def mislabelled(public: PublicKnowledge, rng: "Generator", index: int | None) -> SampleCanary:
    """Returns an example of the data with a label of another class.

    Args:
        public: gives examples, and the number of classes.
        rng: draws the class, and the example without an `index`.
        index: index of the example; None for a random one.
    """
    if index is None:
        index = int(rng.integers(public.examples))
    x, y = public.example(index)
    shift = int(rng.integers(1, public.classes))
    return SampleCanary(x, (y + shift) % public.classes)
