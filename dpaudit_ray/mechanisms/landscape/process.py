"""The pair of one-dimensional processes of Cebere, Bellet, Papernot, eq. 3.

    θ_1 = b C + Z_1,    θ_{t+1} = θ_t - (g(θ_t) + Z_{t+1}) / B,    Z_t ~ N(0, σ²C²)

The canary enters at the first step only; g is the clipped sum of the other gradients, in
[-BC, BC], and part of what the adversary chooses. Descent must move away from its threshold h
for the first step to leave a trace, so g is negative above h; the sign that section 6 prints
pulls both worlds back to h and forgets the canary.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..base import Horizons, Members

Floats = NDArray[np.float64]
# The shape of g: -BC above h, BC below (the paper's A_S^h); -BC everywhere (Example 1);
# -BC clip((θ - h) / w, -1, 1), which keeps more of θ_1 than on which side it was.
Gradient = Literal["threshold", "constant", "linear"]
# θ_1 = b C + Z_1, as in the paper's text; or the same over B, a step of DP-SGD like all others.
FirstStep = Literal["unscaled", "scaled"]


@dataclass(frozen=True)
class Process:
    """A landscape and its steps."""

    batch_size: int  # B
    noise_multiplier: float  # σ
    clip_norm: float  # C
    gradient: Gradient
    first_step: FirstStep
    threshold: float  # h, in units of θ
    width: float  # half-width w of a linear g, in units of θ

    @property
    def first_scale(self) -> float:
        """Factor of the first step: 1, or 1/B if it is scaled like all others."""
        return 1.0 if self.first_step == "unscaled" else 1.0 / self.batch_size

    @property
    def canary(self) -> float:
        """Shift of θ_1 by the canary."""
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
        """Values of θ where `after_step` is not smooth, increasing."""
        if self.gradient == "constant":
            return ()
        if self.gradient == "threshold":
            return (self.threshold,)
        return (self.threshold - self.width, self.threshold + self.width)

    def after_step(self, theta: Floats) -> Floats:
        """Returns θ - g(θ)/B, one step without its noise, of the shape of `theta`.

        The largest |g| is BC, so that a step moves θ by C at most, away from the threshold.
        """
        distance = theta - self.threshold
        if self.gradient == "constant":
            return theta + self.clip_norm
        if self.gradient == "threshold":
            return theta + np.where(distance > 0, self.clip_norm, -self.clip_norm)
        return theta + self.clip_norm * np.clip(distance / self.width, -1.0, 1.0)

    def run(self, members: Members, seed: int, horizons: Horizons) -> Floats:
        """Returns θ_t of independent runs at each horizon, float64 [n, horizons].

        These are scores, too, since the canary shifts θ up.

        Args:
            members: bool [n], True if the canary is in.
            seed: seed of the noise.
            horizons: steps, increasing.
        """
        rng = np.random.default_rng(seed)
        count = len(members)
        theta = members * self.canary + rng.normal(scale=self.first_noise, size=count)
        values = []
        for step in range(1, horizons[-1] + 1):
            if step > 1:
                theta = self.after_step(theta) + rng.normal(scale=self.step_noise, size=count)
            if step in horizons:
                values.append(theta)
        return np.stack(values, axis=1)
