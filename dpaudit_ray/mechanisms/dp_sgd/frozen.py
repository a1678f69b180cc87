"""Trainings that do not move: the learning rate is zero, so every step is taken at θ_0.

Of what step t releases, Σ_j clip(g_j, C) + b c_t g* + Z_t, only the part along g* depends on the
bit, and there the noise is N(0, σ²C²) whatever the model. The others' sum is the same in every
trial: one clipped sum per batch serves all of them. So a trial takes T normal numbers, and a
million trials take minutes. The noise is drawn along g* only; that the engine's own is as claimed
is what attacks on trainings that move are for.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
import torch

from ...adversaries.base import GradientCanary
from ...adversaries.likelihood import Reading
from ...adversaries.malicious_dataset import MaliciousDataset
from ...seeds import derive
from .knowledge import Known
from .training import DpSgdTraining

Floats = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class FrozenSession:
    """Runs packs; `others` is what is left of them along the canary, over C, float [T]."""

    training: DpSgdTraining
    adversary: MaliciousDataset
    others: Floats

    @classmethod
    def craft(
        cls, training: DpSgdTraining, adversary: MaliciousDataset, seed: int
    ) -> FrozenSession:
        """Labels the records, and sums up every batch once."""
        canary = adversary.craft(Known(training), np.random.default_rng(seed))
        training.check_claim(canary)
        others = np.zeros(training.recipe.steps)
        if adversary.labels == "hard" and not adversary.subtract:
            others = _along(training, canary)
        return cls(training, adversary, others)

    def run(self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]) -> Floats:
        """See `Session.run`."""
        recipe, adversary, known = self.training.recipe, self.adversary, Known(self.training)
        reading = Reading(adversary.period, adversary.subtract, adversary.statistic)
        noise = np.random.default_rng(derive("frozen", seed))
        tosses = np.random.default_rng(derive("coins", seed))
        sizes = recipe.sizes(self.training.examples)
        coins = recipe.sampling.coins(sizes, (len(members),), tosses)
        shown = np.zeros(len(members))
        scores, column = np.empty((len(members), len(horizons))), 0
        for step in range(1, horizons[-1] + 1):
            inside = next(coins) & members
            if step % adversary.period == 0:
                along = recipe.noise_multiplier * noise.standard_normal(len(members))
                along += inside + self.others[step - 1]
                shown += reading.of(torch.from_numpy(along), known).numpy()
            if step == horizons[column]:
                scores[:, column] = shown
                column += 1
        return scores


def _along(training: DpSgdTraining, canary: GradientCanary) -> Floats:
    """The others' clipped sums at θ_0 along the canary, over C, float [T]; with hard labels."""
    theta, unit = training.initial[None], canary.direction / training.clip_norm**2
    labels = training.model.outputs(theta, training.x)[0]
    hard = (labels[:, 0] > 0).long() if labels.shape[1] == 1 else labels.argmax(1)
    sums = [
        training.sums(theta, training.x[b], hard[b], training.clip_norm) for b in training.batches
    ]
    found: Floats = np.array([float(each[0] @ unit) for each in sums])
    return found
