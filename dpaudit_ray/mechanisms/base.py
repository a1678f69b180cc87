"""The interface of mechanisms: opened once per trainer and audit, they turn bits into scores."""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, NonNegativeInt

from ..accounting import Adjacency, Sampling, Training
from ..errors import SpecError
from ..plugins import Plugin, Unread, not_imported, registry
from ..stats import TradeOff

if TYPE_CHECKING:
    from ..adversaries.base import Adversary
    from ..data.base import Dataset
    from ..stats import Estimate

Arrays = Mapping[str, npt.NDArray[Any]]
Prepared = tuple[Arrays, ...]  # the parts of a preparation, in order
Members = npt.NDArray[np.bool_]  # [n], True where the canary is in
Scores = npt.NDArray[np.float64]  # [n, horizons]


@dataclasses.dataclass(frozen=True)
class Claimed:
    """What accountants bound: `releases` Gaussian releases of sensitivity one.

    `noise_multiplier` is that of adding or removing the canary, whatever the `adjacency`;
    `sample_rate` the chance that a release contains it.
    """

    noise_multiplier: Annotated[float, Field(ge=0, lt=math.inf)]
    releases: NonNegativeInt
    sample_rate: Annotated[float, Field(gt=0, le=1)] = 1.0
    sampling: Sampling = Sampling.POISSON
    adjacency: Adjacency = Adjacency.ADD_REMOVE

    @property
    def training(self) -> Training:
        """The same, as accountants take it."""
        return self.at_noise(self.noise_multiplier)

    def at_noise(self, noise_multiplier: float) -> Training:
        """The same with another noise multiplier."""
        rest = (self.releases, self.sample_rate, self.adjacency, self.sampling)
        return Training(noise_multiplier, *rest)

    @property
    def gaussian(self) -> bool:
        """Whether the claimed curve is Gaussian, as for shuffling: then a larger μ refutes it."""
        return self.sample_rate == 1 or self.sampling is Sampling.SHUFFLE


@dataclasses.dataclass(frozen=True)
class Preparation:
    """Work done once, in `parts`, before packs, for audits of one seed, files and `identity`."""

    parts: int
    identity: Mapping[str, Any]  # options, as plain JSON


@dataclasses.dataclass(frozen=True)
class PartSeeds:
    """`sweep`: the sweep's seed, as in `open`; `part`: 128 bits, of this part alone."""

    sweep: int
    part: int


@dataclasses.dataclass(frozen=True)
class Missed:
    """A trial that gave no score: `message` says why in a line, `output` what it printed."""

    kind: str
    message: str
    output: str


@dataclasses.dataclass(frozen=True)
class Measured:
    """Scores of a pack, float64 [n, horizons], and the utility of its models, each likewise.

    `utility` has the names of `Mechanism.measured`. Trials in `missed`, by their place in the pack,
    failed while others did not; their numbers are not looked at. All trials of one training are
    missed together. NaN and inf are no misses: a training that diverged is an outcome.
    """

    scores: Scores
    utility: Mapping[str, Scores] = dataclasses.field(default_factory=dict)
    missed: Mapping[int, Missed] = dataclasses.field(default_factory=dict)

    @classmethod
    def of(cls, scored: Scores | Measured) -> Measured:
        """What a session gave, as this class."""
        return scored if isinstance(scored, Measured) else cls(scored)

    @classmethod
    def alternating(cls, runs: Sequence[Scores | Measured], each: int) -> Measured:
        """Runs of as many trials: `each` of the first, as many of the second, and so on."""
        sides = [cls.of(run) for run in runs]

        def woven(parts: list[Scores]) -> Scores:
            apart = [part.reshape(-1, each, part.shape[1]) for part in parts]
            return np.stack(apart, axis=1).reshape(-1, parts[0].shape[1])

        utility = {name: woven([side.utility[name] for side in sides]) for name in sides[0].utility}
        missed = {
            (row // each * len(sides) + number) * each + row % each: miss
            for number, side in enumerate(sides)
            for row, miss in side.missed.items()
        }
        return cls(woven([np.asarray(side.scores) for side in sides]), utility, missed)


class Session(Protocol):
    """A mechanism opened for one adversary."""

    def run(self, members: Members, seed: int, horizons: tuple[int, ...]) -> Scores | Measured:
        """Trains `len(members)` models and scores each at every horizon.

        Args:
            members: bool [n], True where the canary is in.
            seed: 128-bit seed of everything random in the pack.
            horizons: increasing steps; scores at each are those of a run that ends there.

        Returns:
            float64 [n, len(horizons)], higher = more "in"; NaN or inf where training diverged. Or
            `Measured`, where more is measured than that, or some trials failed.
        """


class Checkpoints(Protocol):
    """Checkpoints of a pack while it is trained, so that it can go on elsewhere."""

    def last(self) -> tuple[int, Arrays] | None:
        """Returns the last step that was saved, and its arrays; None at the beginning."""

    @property
    def due(self) -> bool:
        """Whether enough was done since the last checkpoint to save another."""

    def save(self, step: int, arrays: Arrays) -> None:
        """Saves what is needed to go on after `step`, with nothing lost where that fails."""


class ResumableSession(ABC):
    """A session whose packs may outlast their node, and take time in proportion to their steps."""

    @abstractmethod
    def run(
        self,
        members: Members,
        seed: int,
        horizons: tuple[int, ...],
        checkpoints: Checkpoints | None = None,
    ) -> Scores | Measured:
        """`Session.run` from the last of `checkpoints` on; the same scores, bit for bit."""


def recorded_steps(steps: int, every: int) -> tuple[int, ...]:
    """Multiples of `every` up to the last of `steps`, which is always recorded."""
    return tuple(sorted({*range(every, steps + 1, every), steps}))


class Mechanism(Plugin):
    """Base of all mechanisms."""

    kind: ClassVar[str] = "mechanism"
    home: ClassVar[str] = "dpaudit_ray.mechanisms"
    # Whether it computes in torch, whose threads are set first; trainers start faster without.
    uses_torch: ClassVar[bool] = True
    # Whether this package, not the user's own code, needs a trainer's GPU to be visible.
    uses_gpu: ClassVar[bool] = True
    several_gpus: ClassVar[bool] = True  # whether a trainer of it may have use for more than one
    # Estimators of `exact`, and words for those that reports draw beside `exact` itself; else "".
    exact_estimators: ClassVar[Mapping[str, str]] = MappingProxyType({"exact": ""})
    for_free: ClassVar[frozenset[str]] = frozenset()  # options that change no training's time
    attacked_as: ClassVar[str] = ""  # what adversaries that can attack it say in `attacks`
    # Whether this package adds the claimed Gaussian noise. Code of somebody's own may add another
    # kind: its fields of Gaussian releases state a size of noise only.
    adds_gaussian_noise: ClassVar[bool] = False

    @property
    def auto_pack_size(self) -> int:
        """Trials per pack for `pack_size: auto`: a function of the options alone."""
        return 256

    @property
    def trial_limit(self) -> float | None:
        """Seconds after which a trial is ended, and a miss: packs that wait for it do not hang."""
        return None

    @property
    def default_accountant(self) -> str:
        """The accountant of the claim where the audit names none."""
        return "gaussian"

    def for_audit(self, delta: float, accountant: str) -> Self:
        """A copy with what it takes from an audit: the δ, and the first of its accountants."""
        return self

    def against(self, adversary: Adversary) -> Self:
        """A copy with the options that it takes from an adversary, such as records in reserve."""
        return self

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        """Its options that are plug-ins and decide, beside itself, what is claimed."""
        return ()

    def worked_out(self) -> Mapping[str, float]:
        """Numbers that take long to compute from its options: trainers get them by `given`."""
        return {}

    def given(self, worked_out: Mapping[str, float]) -> Self:
        """A copy with the numbers that were `worked_out` elsewhere."""
        return self

    @property
    def claim_reads_data(self) -> bool:
        """Whether `claimed` loads the data: mostly to know how many records there are."""
        return False

    @property
    def private_records(self) -> int | None:
        """Number of records that the claim protects; loads the data. None where none is known."""
        return None

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of what is measured of the trained models: of `storage.scores.UTILITY`."""
        return ()

    @property
    def sampled(self) -> bool:
        """Whether trials are run. Where they are not, `exact` has all estimates."""
        return True

    @abstractmethod
    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The steps at which scores are recorded, increasing; the last is the full run."""

    def check(self, adversary: Adversary) -> None:
        """Raises SpecError when this adversary cannot attack this mechanism."""
        if self.attacked_as == adversary.attacks:
            return
        from ..adversaries.base import Adversary as Base

        can = [n for n, cls in registry(Base).items() if cls.attacks == self.attacked_as]
        remedy = f"; use {', '.join(sorted(can))}" if can else ""
        raise SpecError(
            "adversary.name",
            f"{adversary.name} cannot attack {self.name}{remedy}; {adversary.name} is for "
            f"mechanism.name: {adversary.attacks}",
        )

    def datasets(self) -> Mapping[str, Dataset]:
        """The data sets that it will load, by `Data.key`."""
        return {}

    @abstractmethod
    def check_inputs(self) -> None:
        """Loads what the mechanism reads; raises DataError or SpecError if it is unusable."""

    def check_records(self, adversary: Adversary) -> None:
        """Loads what the adversary reads; raises DataError or SpecError if it is unusable."""

    @abstractmethod
    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """The releases that an accountant must count for a run that ends at `horizon`."""

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """The shape of the trade-off curve of what this adversary audits, for a run to `horizon`.

        Gaussian only where its docstring proves it and says of which release: only then is an ε
        certified that was converted from a certified μ. Claimed where the docstring proves that it
        is the claimed mechanism, as sampled, up to the size of the noise.
        """
        return TradeOff.UNKNOWN

    def independent_canaries(self, adversary: Adversary) -> bool:
        """Whether no score of this adversary tells of two secret bits at once.

        True only where its docstring proves that all that is released is a randomised function of
        one Gaussian for each bit: that of `stats.order_statistics`.
        """
        return False

    @abstractmethod
    def open(
        self, adversary: Adversary, seed: int, craft_seed: int, gpu: bool, prepared: Prepared = ()
    ) -> Session:
        """Prepares for packs; the adversary crafts its canary now, from public knowledge only.

        Args:
            adversary: who attacks.
            seed: the sweep's seed; everything public (initialisation, batches) derives from it.
            craft_seed: 128-bit seed of the adversary's own choices.
            gpu: compute on the trainer's GPU.
            prepared: the parts of its preparation, in order; one that has none may leave it out.
        """

    def preparation(self, adversary: Adversary) -> Preparation | None:
        """The preparation that packs against this adversary wait for; None for none."""
        return None

    def prepare_part(self, adversary: Adversary, part: int, seeds: PartSeeds, gpu: bool) -> Arrays:
        """One part (from 0) of `preparation`: arrays of numbers by name, which are stored.

        A function of the arguments and of its identity alone: it knows no secret bit and no other
        part, and runs anywhere, in any order. `gpu`: compute on the trainer's.
        """
        raise NotImplementedError(f"{self.name} has a preparation, and no prepare_part()")

    def exact(
        self, adversary: Adversary, horizons: tuple[int, ...], delta: float, prepared: Prepared = ()
    ) -> dict[int, tuple[Estimate, ...]]:
        """Estimates at each horizon that take no trials; `prepared` is empty until all is there."""
        return {}

    def distributions(
        self, adversary: Adversary, delta: float, prepared: Prepared
    ) -> Mapping[str, npt.NDArray[np.float64]]:
        """Numbers that a report draws as histograms, by their titles, float64 [any number]."""
        return {}


class Recorded(Unread, Mechanism):
    """A mechanism that was not imported, as a run is only read: what a plan recorded of it."""

    options: dict[str, Any]
    steps: tuple[int, ...]
    trials: int
    releases: tuple[Claimed, ...] | None

    @property
    def sampled(self) -> bool:
        return self.trials > 0

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The steps whose scores the recording has; none can be recorded beside them."""
        return self.steps

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """Raises SpecError where nothing was recorded."""
        if self.releases is None:
            raise not_imported(self.name)
        return self.releases[self.steps.index(horizon)]

    def identity(self) -> dict[str, Any]:
        return self.options | {"name": self.name}

    def check(self, adversary: Adversary) -> None:
        raise not_imported(self.name)

    def check_inputs(self) -> None:
        raise not_imported(self.name)

    def open(self, *_: Any, **__: Any) -> Session:
        raise not_imported(self.name)
