"""The `landscape` mechanism: the 1-D processes of Cebere, Bellet, Papernot, section 6."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import BeforeValidator, NonNegativeInt, PositiveFloat

from ...accounting import Training
from ...adversaries.base import Adversary
from ...adversaries.landscape import LandscapeAdversary
from ...errors import SpecError, plain
from ...plugins import Count
from ...stats import Estimate, Status, TradeOff
from ..base import Horizons, Mechanism, Prepared, Session, StepCount, recorded_steps
from .process import FirstStep, Gradient, Process

SMALLEST_NOISE = 0.25  # noise multiplier from which on the grid holds all densities that matter
SMALLEST_WIDTH = 1e-6  # width of a linear gradient: floats do not resolve steeper slopes


def _width(value: Any) -> Any:
    """Returns a width that the exact grid resolves, or `tuned`. Raises ValueError otherwise."""
    number = type(value) in (int, float) and math.isfinite(value)
    if value == "tuned" or (number and value >= SMALLEST_WIDTH):
        return value
    raise ValueError(f"must be a number of at least {plain(SMALLEST_WIDTH)}, or tuned")


class Landscape(Mechanism):
    """Inserts a canary in the first of `steps` steps, on a loss that the adversary shapes.

    `gradient` is the shape of the sum of all other gradients: `threshold` (the paper's),
    `constant` (its Example 1) or `linear`, which rises to the largest size within `width` of the
    threshold. `width` is in standard deviations of a step's noise; `tuned` is the width with the
    largest ε at δ = 1e-5 after the last step. `backend: exact` computes the densities with and
    without the canary, and the power of the best test on them. `seed` varies the trials, for
    repetitions.
    """

    uses_torch = False
    uses_gpu = False
    several_gpus = False
    attacked_as = "landscape"
    adds_gaussian_noise = True
    exact_estimators: ClassVar[Mapping[str, str]] = {
        "exact": "",
        "exact-gdp": "with μ read as Gaussian",
    }

    name: Literal["landscape"] = "landscape"
    steps: StepCount  # of the process; one has the canary
    batch_size: Count  # B, by which sums are divided
    noise_multiplier: PositiveFloat  # σ: a sum's noise has deviation σC
    clip_norm: PositiveFloat = 1.0  # C, the size of the canary
    gradient: Gradient = "threshold"  # shape of the others' sum
    width: Annotated[float | Literal["tuned"], BeforeValidator(_width)] = "tuned"  # of the rise
    first_step: FirstStep = "unscaled"  # over B (`scaled`) or not
    backend: Literal["sampled", "exact"] = "sampled"  # run trials, or closed forms
    seed: NonNegativeInt = 0  # seed of the trials

    @property
    def sampled(self) -> bool:
        return self.backend == "sampled"

    @property
    def auto_pack_size(self) -> int:
        """256 to 5000 trials, of 5,000,000 steps in all if possible: a tenth of a second."""
        return max(256, min(5000, 5_000_000 // self.steps))

    def horizons(self, record_every: int | None) -> Horizons:
        return recorded_steps(self.steps, record_every or self.steps)

    def check(self, adversary: Adversary) -> None:
        """Refuses options that would have no effect with this gradient, adversary or backend."""
        super().check(adversary)
        threshold = cast(LandscapeAdversary, adversary).threshold
        is_searched = threshold == "searched"
        useless_threshold = self.gradient == "constant" and threshold != "optimal"
        useless_width = self.gradient != "linear" and self.width != "tuned"
        useless_seed = self.seed > 0 and not self.sampled
        two_searches = self._tunes_width and is_searched
        for is_wrong, owner, key, reason in (
            (adversary.period != 1, adversary, "period", "the canary is in the first step only"),
            (useless_threshold, adversary, "threshold", "a constant gradient has none"),
            (useless_width, self, "width", "only a linear gradient has one"),
            (useless_seed, self, "seed", "exact densities are drawn from nothing"),
            (two_searches, adversary, "threshold", "a search needs a number as mechanism.width"),
        ):
            if is_wrong:
                raise SpecError(
                    f"{owner.kind}.{key}", f"is {getattr(owner, key)}, but {reason}; leave it out"
                )
        if self._tunes_width or is_searched or not self.sampled:
            self._check_grid()

    def check_inputs(self) -> None:
        """Reads nothing."""

    def claimed(self, adversary: Adversary, horizon: int) -> Training:
        """Returns one Gaussian release, the first step; all others are post-processing."""
        return Training(self.noise_multiplier, 1)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Returns Gaussian after one step, or with a constant gradient; the release is θ_t.

        θ_1 = b C + Z_1 is N(0, s²) or N(C, s²). A constant gradient adds a number and independent
        Gaussian noise at every step, the same in both worlds. Any other shape makes mixtures.
        """
        is_gaussian = horizon == 1 or self.gradient == "constant"
        return TradeOff.GAUSSIAN if is_gaussian else TradeOff.UNKNOWN

    def open(
        self,
        adversary: Adversary,
        *_: Any,
        **__: Any,
    ) -> Session:
        """Returns the process itself as the session: seeds, device and preparation are unused."""
        return self.process(adversary)

    def exact(
        self,
        adversary: Adversary,
        horizons: Horizons,
        delta: float,
        prepared: Prepared = (),
    ) -> dict[int, tuple[Estimate, ...]]:
        """Returns the true ε, and the best test's μ converted to ε, for `backend: exact`.

        No trial is involved, so the confidence is 1. The true ε and μ of one adversary are lower
        bounds on those of the mechanism. Converted to ε as if the trade-off curve were Gaussian, μ
        gives up to four times the true ε.
        """
        from .exact import evolve, power

        estimates: dict[int, tuple[Estimate, ...]] = {}
        if self.sampled:
            return estimates
        densities = evolve(self.process(adversary), horizons)
        for step, (outside, inside) in zip(horizons, densities, strict=True):
            best = power(outside, inside, delta)
            # Fields of an estimate from ε on: with confidence 1, by 0 trials.
            numbers = (best.epsilon_gdp, best.mu, delta, 1.0, 0, best.threshold)
            estimates[step] = (
                Estimate("exact-gdp", Status.IF_GAUSSIAN, *numbers),
                Estimate("exact", Status.CERTIFIED, best.epsilon, math.nan, delta, 1.0, 0),
            )
        return estimates

    def process(self, adversary: Adversary) -> Process:
        """Returns the process for this adversary; searches for a threshold or width if options ask.

        A search maximizes what the final model reveals, see `exact`.
        """
        from . import exact

        process = Process(
            self.batch_size,
            self.noise_multiplier,
            self.clip_norm,
            self.gradient,
            self.first_step,
            threshold=math.nan,
            width=math.nan,
        )
        # "optimal" depends on the canary's shift, and the width is in units of a step's noise: the
        # process, which computes both, gets them afterwards.
        threshold_option = cast(LandscapeAdversary, adversary).threshold
        threshold = process.canary / 2  # also where a search for the threshold starts
        if not isinstance(threshold_option, str):
            threshold = float(threshold_option)
        relative_width = 1.0 if self.width == "tuned" else float(self.width)
        width = process.step_noise * relative_width
        process = replace(process, threshold=threshold, width=width)
        if self._tunes_width:
            width = exact.best_width(process, self.steps)
        elif threshold_option == "searched":
            threshold = exact.best_threshold(process, self.steps)
        return replace(process, threshold=threshold, width=width)

    @property
    def _tunes_width(self) -> bool:
        """Whether the width is searched."""
        return self.gradient == "linear" and self.width == "tuned"

    def _check_grid(self) -> None:
        """Raises SpecError if exact densities would be inaccurate, or take too much memory."""
        from .exact import MAX_ENTRIES, matrix_entries

        if self.noise_multiplier < SMALLEST_NOISE:
            raise SpecError(
                "mechanism.noise_multiplier",
                f"is {self.noise_multiplier:g}, but exact densities need at least "
                f"{SMALLEST_NOISE}; raise it or use backend: sampled",
            )
        process = self.model_copy(update={"width": 1.0}).process(LandscapeAdversary())
        required = matrix_entries(process, self.steps)
        if required > MAX_ENTRIES:
            raise SpecError(
                "mechanism.steps",
                f"is {self.steps}, for which exact densities take {required:.1e} numbers, more "
                f"than {MAX_ENTRIES:.1e}; lower it or mechanism.batch_size, or use backend: "
                "sampled",
            )
