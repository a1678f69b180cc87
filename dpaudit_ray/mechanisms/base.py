"""The interface between a mechanism and everything that schedules it.

A mechanism turns secret bits into scores. It is opened once per trainer and audit (data loaded,
canary crafted), then runs packs. It never sees storage, Ray or statistics.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from ..accounting import Adjacency, Sampling, Training
from ..plugins import Plugin
from ..stats import TradeOff

if TYPE_CHECKING:
    from ..adversaries.base import Adversary
    from ..data.base import Dataset
    from ..stats import Estimate


@dataclasses.dataclass(frozen=True)
class Claimed:
    """What an accountant is asked: `releases` Gaussian releases of sensitivity one.

    `noise_multiplier` is the noise's standard deviation over the sensitivity of adding or
    removing the canary; `sample_rate` is the chance that a release contains it, by `sampling`.
    Where the canary takes the place of another record, `adjacency` says so, and doubles the
    sensitivity; the noise multiplier stays.
    """

    noise_multiplier: float
    releases: int
    sample_rate: float = 1.0
    sampling: Sampling = Sampling.POISSON
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    @property
    def training(self) -> Training:
        """The same, as accountants take it."""
        return self.at_noise(self.noise_multiplier)

    def at_noise(self, noise_multiplier: float) -> Training:
        """The same with another noise multiplier."""
        return Training(
            noise_multiplier, self.releases, self.sample_rate, self.adjacency, self.sampling
        )

    @property
    def gaussian(self) -> bool:
        """Whether the claimed trade-off curve is Gaussian: then a μ above its own refutes it.

        So it is where batches are known, and of shuffling, of which no accountant proves more.
        """
        return self.sample_rate == 1 or self.sampling is Sampling.SHUFFLE


class Session(Protocol):
    """A mechanism opened for one adversary: crafted once, then run pack by pack."""

    def run(
        self, members: npt.NDArray[np.bool_], seed: int, horizons: tuple[int, ...]
    ) -> npt.NDArray[np.float64]:
        """Trains `len(members)` models and scores each at every horizon.

        Args:
            members: bool [n], True where the canary is in.
            seed: 128-bit seed of everything random in the pack.
            horizons: increasing steps; scores at each are those of a run that ends there.

        Returns:
            float64 [n, len(horizons)], higher = more "in"; NaN or inf where training diverged.
        """


class Mechanism(Plugin):
    """Base of all mechanisms."""

    kind: ClassVar[str] = "mechanism"
    home: ClassVar[str] = "dpaudit_ray.mechanisms"

    @property
    def auto_pack_size(self) -> int:
        """Trials per pack for `pack_size: auto`: a function of the options alone."""
        return 256

    def for_audit(self, delta: float, accountant: str) -> Self:
        """Itself, with what it takes from an audit: the δ, and the first of its accountants."""
        return self

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        """Those of its options that are plug-ins and decide, beside itself, what is claimed."""
        return ()

    @property
    def sampled(self) -> bool:
        """Whether trials are run. Where they are not, `exact` says all there is to say."""
        return True

    @abstractmethod
    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The steps at which scores are recorded, increasing; the last is the full run."""

    @abstractmethod
    def check(self, adversary: Adversary) -> None:
        """Raises SpecError when this adversary cannot attack this mechanism."""

    def datasets(self) -> Mapping[str, Dataset]:
        """What it will load, by `Data.key`; put on every node once, for all trainers there."""
        return {}

    @abstractmethod
    def check_inputs(self) -> None:
        """Loads what the mechanism reads; raises DataError or SpecError if it is unusable."""

    @abstractmethod
    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """The releases that an accountant must count for a run that ends at `horizon`."""

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """The shape of the trade-off curve of what this adversary audits, for a run to `horizon`.

        Gaussian only where its docstring proves it and says of which release: then, and only then,
        an ε that was converted from a certified μ is certified. Claimed where the docstring proves
        that it is the claimed mechanism, as sampled, up to the noise. The size of the curve stays
        unknown: the noise may be less than promised.
        """
        return TradeOff.UNKNOWN

    @abstractmethod
    def open(self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool) -> Session:
        """Prepares the mechanism for packs.

        Args:
            adversary: crafts its canary now, from public knowledge only.
            seed: the sweep's seed; everything public (initialisation, batches) derives from it.
            craft_seed: 128-bit seed of the adversary's own choices.
            gpu: compute on the trainer's GPU.
        """

    def exact(
        self, adversary: Adversary, horizons: tuple[int, ...], delta: float
    ) -> dict[int, tuple[Estimate, ...]]:
        """What is known at each horizon without trials; nothing for most mechanisms."""
        return {}
