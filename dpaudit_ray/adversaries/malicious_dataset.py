"""The malicious data set (Nasr et al. 2021, section IV-F, Crafter 5 and Distinguisher 3).

The adversary chooses all records, θ_0 and the learning rate, which is zero. Records are labelled by
the model's own probabilities: their cross-entropy has no gradient there. Hard labels, the likeliest
class, do have one; the adversary knows it, as it knows the batches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .base import FrozenAdversary, GradientCanary, PublicKnowledge
from .gradient import Watermarked

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.random import Generator
    from torch import Tensor


class MaliciousDataset(Watermarked, FrozenAdversary):
    """Marks a model that does not change; without `subtract`, hard labels add to its score."""

    name: Literal["malicious-dataset"] = "malicious-dataset"
    labels: Literal["soft", "hard"] = "soft"  # labels of all other records

    @property
    def needs_classes(self) -> bool:
        """Whether labels are hard, as these are classes."""
        return self.labels == "hard"

    def craft(self, public: PublicKnowledge, rng: Generator) -> GradientCanary:
        """Marks the first parameters, which are as good as others: none of them changes."""
        return self.watermark(public, public.initial.new_zeros(len(public.initial)))

    def relabel(self, outputs: Callable[[], Tensor]) -> Tensor | None:
        """Returns the likeliest class of each record, for hard labels that are not subtracted."""
        if self.labels == "soft" or self.subtract:
            return None
        logits = outputs()
        if logits.shape[1] == 1:  # logistic: class 1 is likelier if its logit is above 0
            return (logits[:, 0] > 0).long()
        return logits.argmax(1)

    def step_score(self, projection: Tensor, public: PublicKnowledge) -> Tensor:
        return self.reading.score(projection, public)
