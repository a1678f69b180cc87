"""DP-SGD training runs, as accountants bound them, and the bound that they return."""

import math
from dataclasses import dataclass, replace
from enum import StrEnum
from numbers import Integral
from typing import TypeVar

from ..errors import plain
from ..stats import Status
from .claim import Claim, check_unit

E = TypeVar("E", bound=StrEnum)
UNAMPLIFIED = "no amplification by this sampling is proven here: each epoch counts as a release"
_ROUNDING = 1e-9  # relative error by rounding of rates, which are quotients


class Adjacency(StrEnum):
    """Difference of two neighbouring data sets.

    If an epoch's batches are parts of an order of the records, a removed record leaves a gap: all
    others stay in their batches ("zero-out", Kairouz et al. 2021; Chua et al. 2024a).
    """

    ADD_REMOVE = "add-remove"  # one record more or less: sums of clipped gradients change by C
    REPLACE = "replace"  # one record for another, or a flipped label: they change by 2 C


class Sampling(StrEnum):
    """Random choice of the records of a step, unknown to the adversary."""

    POISSON = "poisson"  # each record independently; rate 1 also stands for batches that are known
    SHUFFLE = "shuffle"  # an epoch's batches are successive parts of one random order
    BALLS_AND_BINS = "balls-and-bins"  # each record joins one of an epoch's batches, independently


@dataclass(frozen=True)
class UpperBound:
    """Upper bound on ε or δ, with the name of the accountant that answered."""

    upper: float
    accountant: str
    # Why another accountant answered, and the assumption if `status` is `if-assumed`.
    note: str = ""
    status: Status = Status.CERTIFIED


@dataclass(frozen=True)
class Training(Claim):
    """DP-SGD: `steps` sums of gradients clipped to C, each with noise `noise_multiplier` * C.

    Each record takes part in a step with probability `sample_rate`; 1 also stands for
    mini-batches that the adversary knows. With `sampling` other than Poisson it is in one batch
    of each epoch, which is drawn independently of the data. As the claim of a mechanism, `steps`
    counts the releases that may contain the canary. Accountants bound its ε and δ (`epsilon_of`).
    """

    key = "noise_multiplier"
    noise_multiplier: float
    steps: int
    sample_rate: float = 1.0
    adjacency: str = Adjacency.ADD_REMOVE
    sampling: str = Sampling.POISSON
    unit: str = "record"

    def __post_init__(self) -> None:
        """Checks the fields, and turns names into enumerations. Raises ValueError."""
        noise = self.noise_multiplier
        if not 0 <= noise < math.inf:
            raise ValueError(f"noise_multiplier must be at least 0 and finite, got {noise}")
        if not isinstance(self.steps, Integral) or self.steps < 0:
            raise ValueError(f"steps must be a whole number of at least 0, got {self.steps}")
        if not 0 < self.sample_rate <= 1:
            raise ValueError(f"sample_rate must lie in (0, 1], got {self.sample_rate}")
        object.__setattr__(self, "adjacency", _choice(Adjacency, "adjacency", self.adjacency))
        sampling = _choice(Sampling, "sampling", self.sampling)
        check_unit(self.unit)
        one_batch = self.sample_rate == 1  # it has all records, whatever the sampling
        object.__setattr__(self, "sampling", Sampling.POISSON if one_batch else sampling)

    @property
    def gaussian(self) -> bool:
        # Shuffling has no proven amplification: its claim is that of `unamplified`.
        return self.sample_rate == 1 or self.sampling is Sampling.SHUFFLE

    @property
    def worst_is_gaussian(self) -> bool:
        return True

    @property
    def noise(self) -> float:
        return self.noise_multiplier

    def weakened(self, noise: float) -> "Training":
        return replace(self, noise_multiplier=noise)

    @property
    def words(self) -> str:
        return f"noise multiplier {plain(self.noise_multiplier, '.3g')}"

    @property
    def unit_noise(self) -> float:
        """Standard deviation of the noise over the largest change of a sum by one record.

        With sampling under replacement, a step's loss depends on more than this ratio.
        """
        largest_change = 2 if self.adjacency is Adjacency.REPLACE else 1  # in clipping norms
        return self.noise_multiplier / largest_change

    @property
    def batches(self) -> int:
        """The fewest batches of an epoch: records that do not fill the last one may be dropped."""
        return math.floor((1 + _ROUNDING) / self.sample_rate)

    @property
    def epochs(self) -> int:
        """Number of epochs that were begun: a record may have taken part in each."""
        return -(-self.steps // self.batches)  # rounded up

    @property
    def unamplified(self) -> "Training":
        """Equivalent training for an adversary who knows all batches: proven for any sampling.

        The order of an epoch is drawn independently of the data. Given this order, a record changes
        one sum per epoch, at a step that is known: this makes `epochs` adaptive Gaussian releases
        (Dong, Roth, Su 2022, Corollary 2.14). To forget the order is post-processing. An epoch that
        ends early counts as a complete one.
        """
        if self.sampling is Sampling.POISSON:
            return self
        return Training(self.noise_multiplier, self.epochs, 1.0, self.adjacency)

    def after(self, steps: int) -> "Training":
        """Returns this training run with another number of steps."""
        return replace(self, steps=steps)

    @property
    def known(self) -> float | None:
        """The ε that needs no accountant: 0 without steps, infinite without noise; else None.

        As a δ, it is 1 at most.
        """
        if self.steps == 0:
            return 0.0
        return math.inf if self.noise_multiplier == 0 else None


def _choice(
    kind: type[E],
    name: str,
    value: str,
) -> E:
    """Returns the member of an enumeration by its value. Raises ValueError with all of them."""
    try:
        return kind(value)
    except ValueError:
        raise ValueError(f"{name} must be one of {', '.join(kind)}, got {value!r}") from None
