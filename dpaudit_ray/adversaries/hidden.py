"""The likelihood of a step whose batch nobody knows (Poisson sampling, `batches: secret`).

Along g*, in units of C, with a_i what record i's clipped gradient has of it:

    s = Σ_i c_i a_i + b c g*/C + σ Z,   coins c_i and c of chance q, Z ~ N(0, 1)

The density f of s without the canary's part is a mixture over all 2^N batches. Its moments'
generating function is a product of N, so one integral gives it:

    f(s) = e^{K(λ) - λs} / 2π ∫ exp(K(λ + it) - K(λ) - its) dt
    K(z) = σ²z²/2 + Σ_i log(1 - q + q e^{z a_i})

for any λ; near the saddle point K'(λ) = s, no digits are lost in the tails. The trapezoidal rule
converges faster than any power here. The likelihood ratio of the bit is 1 - q + q f(s - 1) / f(s):
exact for what is seen along g*. Other directions say something about the batch, too; what they all
say together would be a sum over the 2^N batches.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

Floats = npt.NDArray[np.float64]
Complexes = npt.NDArray[np.complex128]

_REACH = 12.0  # standard deviations of the noise, where a normal density is 5e-32 of its peak
_NEWTON = 4  # steps towards the saddle point: any λ is right, and near it is near enough
_BLOCK = 1 << 22  # complex numbers at once


@dataclasses.dataclass(frozen=True)
class Others:
    """Other records' gradients along the canary in n models: `parts` [n, N], in units of C."""

    parts: Floats
    q: float
    sigma: float

    def ratio(self, shown: Floats) -> Floats:
        """log f(s - 1) - log f(s), float64 [n], for what each model shows, [n]."""
        return self.log_density(shown - 1) - self.log_density(shown)

    def log_density(self, shown: Floats) -> Floats:
        """log f, float64 [n]."""
        tilt = self._saddle(shown)
        start = self._log_moment(tilt[:, None].astype(complex)).real[:, 0]
        spread, reach = self._spread(tilt), _REACH / self.sigma
        step = np.pi / (_REACH * spread + 1)  # the period of the sum: twice what s reaches
        count = int(np.ceil(reach / step.min())) + 1
        total = np.full(len(shown), 0.5)
        at_once = max(1, _BLOCK // max(self.parts.size, 1))
        for first in range(1, count + 1, at_once):
            t = np.arange(first, min(first + at_once, count + 1)) * step[:, None]
            z = tilt[:, None] + 1j * t
            total += np.exp(
                self._log_moment(z) - start[:, None] - 1j * t * shown[:, None]
            ).real.sum(1)
        log_density: Floats = start - tilt * shown + np.log(total * step / np.pi)
        return log_density

    def _log_moment(self, z: Complexes) -> Complexes:
        """K(z), complex [n, m], for z [n, m]."""
        inside = self.q * np.expm1(z[:, :, None] * self.parts[:, None, :])
        log_moment: Complexes = self.sigma**2 * z**2 / 2 + np.log1p(inside).sum(2)
        return log_moment

    def _saddle(self, shown: Floats) -> Floats:
        """A tilt near the saddle point, where K' is s: float64 [n]."""
        tilt = np.zeros(len(shown))
        for _ in range(_NEWTON):
            mean, variance = self._moments(tilt)
            tilt += (shown - mean) / variance
        return tilt

    def _moments(self, tilt: Floats) -> tuple[Floats, Floats]:
        """K' and K'' at real `tilt` [n]: mean and variance where it leans that way."""
        chance = expit(logit(self.q) + tilt[:, None] * self.parts)
        mean = self.sigma**2 * tilt + (chance * self.parts).sum(1)
        variance = self.sigma**2 + (chance * (1 - chance) * self.parts**2).sum(1)
        return mean, variance

    def _spread(self, tilt: Floats) -> Floats:
        """As many standard deviations as `_REACH` are beyond what is seen, by Bernstein's bound."""
        largest = np.abs(self.parts).max(1, initial=0.0)
        spread: Floats = np.sqrt(self._moments(tilt)[1]) + _REACH / 3 * largest
        return spread
