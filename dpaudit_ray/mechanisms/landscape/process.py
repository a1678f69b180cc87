"""The pair of one-dimensional processes of Cebere, Bellet, Papernot, eq. 3.

    θ_1 = b C + Z_1,    θ_{t+1} = θ_t - (g(θ_t) + Z_{t+1}) / B,    Z_t ~ N(0, σ²C²)

The canary enters at the first step only; g is the clipped sum of the other gradients, in
[-BC, BC], and part of what the adversary chooses. Descent must move away from its threshold h
for the first step to leave a trace, so g is negative above h; the sign that section 6 prints
pulls both worlds back to h and forgets the canary.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
# The shape of g: -BC above h, BC below (the paper's A_S^h); -BC everywhere (Example 1);
# -BC clip((θ - h) / w, -1, 1), which keeps more of θ_1 than on which side it was.
Gradient = Literal["threshold", "constant", "linear"]
# θ_1 = b C + Z_1, as the paper's text has it; or that over B, a step of DP-SGD like all others.
FirstStep = Literal["unscaled", "scaled"]


@dataclasses.dataclass(frozen=True)
class Process:
    """A landscape, in units of θ: `threshold` h, half-width `width` of a linear g; σ, C and B."""

    batch_size: int
    noise_multiplier: float
    clip_norm: float
    gradient: Gradient
    first_step: FirstStep
    threshold: float
    width: float

    @property
    def first_scale(self) -> float:
        """The factor of the first step: 1, or 1/B."""
        return 1.0 if self.first_step == "unscaled" else 1.0 / self.batch_size

    @property
    def canary(self) -> float:
        """How far the canary moves θ_1."""
        return self.clip_norm * self.first_scale

    @property
    def first_noise(self) -> float:
        """Standard deviation of θ_1."""
        return self.noise_multiplier * self.canary

    @property
    def step_noise(self) -> float:
        """Standard deviation that each later step adds."""
        return self.noise_multiplier * self.clip_norm / self.batch_size

    @property
    def breaks(self) -> tuple[float, ...]:
        """Values of θ where `moved` is not smooth, increasing."""
        if self.gradient == "constant":
            return ()
        if self.gradient == "threshold":
            return (self.threshold,)
        return (self.threshold - self.width, self.threshold + self.width)

    def moved(self, theta: Floats) -> Floats:
        """θ - g(θ)/B: one step without its noise, float64 like `theta`."""
        above = theta - self.threshold
        if self.gradient == "constant":
            return theta + self.clip_norm
        if self.gradient == "threshold":
            return theta + np.where(above > 0, self.clip_norm, -self.clip_norm)
        return theta + self.clip_norm * np.clip(above / self.width, -1.0, 1.0)

    def run(self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]) -> Floats:
        """θ_t of `len(members)` independent runs at each horizon, which the canary pushes up."""
        rng = np.random.default_rng(seed)
        theta = members * self.canary + rng.normal(scale=self.first_noise, size=len(members))
        values = []
        for step in range(1, horizons[-1] + 1):
            if step > 1:
                theta = self.moved(theta) + rng.normal(scale=self.step_noise, size=len(members))
            if step in horizons:
                values.append(theta)
        return np.stack(values, axis=1)
