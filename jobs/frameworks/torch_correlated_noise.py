"""DP-FTRL in a loop without Opacus: banded noise, and records that take part every ten steps.

The noise of all steps is C⁻¹ z (matrix factorisation, Choquette-Choo et al. 2023). `audited_step`
is given C, the separation of a record's steps, and the indices of the records of each step.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dpaudit_ray.opacus import audited
from dpaudit_ray.releases import audited_step
from jobs.frameworks.plain_torch import clip_and_sum, gradients

RECORDS, FEATURES, CLASSES = 600, 20, 4
NOISE, CLIP, STEPS, SEPARATION, BAND, LR = 1.0, 1.0, 30, 10, 4, 0.5
BATCH = RECORDS // SEPARATION


def banded(steps: int, band: int) -> Tensor:
    """Returns the band of the square root of the prefix sums, lower triangular."""
    strategy = torch.zeros(steps, steps, dtype=torch.float64)
    for lag in range(band):
        value = math.comb(2 * lag, lag) / 4**lag
        strategy += torch.diag(torch.full((steps - lag,), value, dtype=torch.float64), -lag)
    return strategy


def sensitivity(strategy: Tensor, separation: int) -> float:
    """Returns the largest |Cπ| of a record that takes part every `separation` steps."""
    return max(float(strategy[:, o::separation].sum(1).norm()) for o in range(separation))


@audited(delta=1e-5)
def main() -> nn.Module:
    strategy = banded(STEPS, BAND)
    return train(strategy, NOISE * CLIP * sensitivity(strategy, SEPARATION))


def train(strategy: Tensor, deviation: float, batches: int = SEPARATION) -> nn.Module:
    """Trains on so many batches in turn, with noise C⁻¹ z for normals z of this deviation."""
    source = torch.Generator().manual_seed(1)
    x = torch.randn(RECORDS, FEATURES, generator=source)
    y = x[:, :CLASSES].argmax(1)
    model = nn.Sequential(nn.Linear(FEATURES, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    past: list[list[Tensor]] = []  # noise of the steps so far
    for step in range(STEPS):
        first = step % batches * BATCH
        rows = range(first, first + BATCH)
        noise = next_noise(strategy, deviation, step, past, model)
        past.append(noise)
        noisy = audited_step(
            clip_and_sum,
            noise,
            per_example=gradients(model, x[first : first + BATCH], y[first : first + BATCH]),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
            of=RECORDS,
            strategy=banded(STEPS, BAND),
            separation=SEPARATION,
            indices=rows,
        )
        with torch.no_grad():
            for p, g in zip(model.parameters(), noisy, strict=True):
                p -= LR * g / BATCH
    return model


def next_noise(
    strategy: Tensor, deviation: float, step: int, past: list[list[Tensor]], model: nn.Module
) -> list[Tensor]:
    """Solves row `step` of C n = z for the noise of this step."""
    noise = []
    for index, p in enumerate(model.parameters()):
        value = deviation * torch.randn_like(p)
        for earlier, noises in enumerate(past):
            value = value - float(strategy[step, earlier]) * noises[index]
        noise.append(value / float(strategy[step, step]))
    return noise


if __name__ == "__main__":
    main()
