"""The interface of mechanisms: what is audited.

A mechanism is opened once per trainer and audit; the session trains packs and scores them. Of its
secret bits, only `Session.run` gets any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from ..accounting.claim import Claim, StatedClaim
from ..errors import SpecError
from ..plugins import Plugin, Unread, not_imported, registry
from ..stats import TradeOff

if TYPE_CHECKING:
    from ..adversaries.base import Adversary
    from ..data.base import Dataset
    from ..stats import Estimate

Arrays = Mapping[str, NDArray[Any]]
Prepared = tuple[Arrays, ...]  # the parts of a preparation, in order
Members = NDArray[np.bool_]  # [n], True if the canary is in
Scores = NDArray[np.float64]  # [n, horizons]
Horizons = tuple[int, ...]  # steps whose scores are recorded, increasing
StepCount = Annotated[int, Field(ge=1, le=10**7)]  # steps of a training


@dataclass(frozen=True)
class Preparation:
    """Work that is done once, before any pack.

    Audits share a preparation if their seeds, their files and the `identity` are equal.
    """

    parts: int  # number of parts, each of which any machine can compute, in any order
    identity: Mapping[str, Any]  # options that the parts depend on, as plain JSON


@dataclass(frozen=True)
class PartSeeds:
    """Seeds of a part of a preparation."""

    sweep: int  # seed of the sweep, as in `Mechanism.open`
    part: int  # 128 bits, for this part only


@dataclass(frozen=True)
class Missed:
    """The failure of a trial, which has no score."""

    kind: str  # kind of failure, such as the class of an exception
    message: str  # message in one line
    output: str  # text that the trial printed


@dataclass(frozen=True)
class Measured:
    """Scores of a pack, and the utility of its models.

    Attributes:
        scores: float64 [n, horizons]. NaN and inf are scores, too: of a training that diverged.
        utility: float64 [n, horizons] for each name of `Mechanism.measured`.
        missed: failures by the index of the trial, if other trials did not fail; the scores of
            failed trials are ignored. All trials of a training run fail together.
        diverged: reasons why training runs diverged, by the index of a trial; one is enough.
    """

    scores: Scores
    utility: Mapping[str, Scores] = field(default_factory=dict)
    missed: Mapping[int, Missed] = field(default_factory=dict)
    diverged: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, scored: Scores | Measured) -> Measured:
        """Converts a session's result to this class."""
        return scored if isinstance(scored, Measured) else cls(scored)

    @classmethod
    def alternating(
        cls,
        runs: Sequence[Scores | Measured],
        each: int,
    ) -> Measured:
        """Interleaves runs of equal length: `each` trials of the first, of the second, and so on.

        Args:
            runs: results of one or more runs with the same number of trials.
            each: trials of a block that stays in one piece: the canaries of one training run.
        """
        results = [cls.of(run) for run in runs]

        def interleave(arrays: list[Scores]) -> Scores:
            """Returns arrays [n, horizons] block by block in turn, [n · arrays, horizons]."""
            horizons = arrays[0].shape[1]
            blocks = [array.reshape(-1, each, horizons) for array in arrays]
            return np.stack(blocks, axis=1).reshape(-1, horizons)

        utility = {}
        for name in results[0].utility:
            utility[name] = interleave([result.utility[name] for result in results])
        missed = {}
        diverged = {}
        for number, result in enumerate(results):
            for trial in result.missed.keys() | result.diverged.keys():
                block, offset = divmod(trial, each)
                row = (block * len(results) + number) * each + offset
                if trial in result.missed:
                    missed[row] = result.missed[trial]
                if trial in result.diverged:
                    diverged[row] = result.diverged[trial]
        scores = interleave([np.asarray(result.scores) for result in results])
        return cls(scores, utility, missed, diverged)


class Session(Protocol):
    """A mechanism that was opened for one adversary, ready to run trials."""

    def run(
        self,
        members: Members,
        seed: int,
        horizons: Horizons,
    ) -> Scores | Measured:
        """Runs a pack of trials, and scores each at every horizon.

        Args:
            members: bool [n], True if the canary is in.
            seed: 128-bit seed of everything random in the pack.
            horizons: increasing steps; scores at a step are those of a run that ends there.

        Returns:
            Scores, float64 [n, horizons], higher if the canary is more likely in; NaN or inf if
            training diverged. `Measured` if utility is measured, too, or if some trials failed.
        """


class Checkpoints(Protocol):
    """Checkpoints of a pack that is being trained, from which another trainer can continue."""

    def last(self) -> tuple[int, Arrays] | None:
        """Returns the last step that was saved, and its arrays; None at the beginning."""

    @property
    def due(self) -> bool:
        """Whether enough work was done since the last checkpoint to save another."""

    def save(self, step: int, arrays: Arrays) -> None:
        """Saves what is needed to continue after `step`; if that fails, training continues."""


class ResumableSession(ABC):
    """A session that can continue a pack that another trainer began.

    Its packs take time in proportion to their steps.
    """

    @abstractmethod
    def run(
        self,
        members: Members,
        seed: int,
        horizons: Horizons,
        checkpoints: Checkpoints | None = None,
    ) -> Scores | Measured:
        """Implements `Session.run`; training starts from the last of `checkpoints`.

        Scores are, bit for bit, those of a run without an interruption.
        """


def recorded_steps(steps: int, every: int) -> Horizons:
    """Returns multiples of `every` up to `steps`; the last step is always recorded."""
    return tuple(sorted({*range(every, steps + 1, every), steps}))


class Mechanism(Plugin):
    """Base of all mechanisms."""

    kind = "mechanism"
    home = "dpaudit_ray.mechanisms"
    # Whether the mechanism computes in torch: then trainers set torch's threads, and start slowly.
    uses_torch: ClassVar[bool] = True
    # Whether this package, not the user's own code, needs a trainer's GPU to be visible.
    uses_gpu: ClassVar[bool] = True
    several_gpus: ClassVar[bool] = True  # whether one trainer can use several GPUs
    # Estimators that `exact` returns, with their labels in reports. The label is "" if reports draw
    # the estimator "exact" only.
    exact_estimators: ClassVar[Mapping[str, str]] = {"exact": ""}
    for_free: ClassVar[frozenset[str]] = frozenset()  # options that do not change training time
    attacked_as: ClassVar[str] = ""  # `attacks` of the adversaries that can attack it
    # Whether this package adds the claimed Gaussian noise. User-defined code may add another kind:
    # its fields of Gaussian releases state a size of noise only.
    adds_gaussian_noise: ClassVar[bool] = False

    @property
    def auto_pack_size(self) -> int:
        """Trials per pack for `pack_size: auto`; depends on the options only."""
        return 256

    @property
    def trial_limit(self) -> float | None:
        """Seconds after which a trial is ended and gets no score, so that its pack continues."""
        return None

    @property
    def default_accountant(self) -> str:
        """The accountant of the claim if the audit names none."""
        return "gaussian"

    @property
    def default_estimator(self) -> str:
        """The estimator of an audit that names none: it fits the kind of claim."""
        return "accuracy"

    def for_audit(self, delta: float, accountant: str) -> Self:
        """Returns a copy with the options of an audit: δ, and the first of its accountants."""
        return self

    def against(self, adversary: Adversary) -> Self:
        """Returns a copy with options that this adversary needs, such as reserved records."""
        return self

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        """Plug-ins among the options on which the claim also depends."""
        return ()

    def precomputed(self) -> Mapping[str, float]:
        """Computes numbers that take long, once for all trainers; see `with_precomputed`."""
        return {}

    def with_precomputed(self, precomputed: Mapping[str, float]) -> Self:
        """Returns a copy that has the numbers of `precomputed`, and does not compute them."""
        return self

    @property
    def claim_reads_data(self) -> bool:
        """Whether `claimed` loads the data, for the number of records."""
        return False

    @property
    def private_records(self) -> int | None:
        """Number of records that the claim protects; loads the data. None if it is unknown."""
        return None

    @property
    def measured(self) -> tuple[str, ...]:
        """Names of the utility of trained models: some of `storage.scores.UTILITY`."""
        return ()

    @property
    def sampled(self) -> bool:
        """Whether trials are run. If not, `exact` has all estimates."""
        return True

    @abstractmethod
    def horizons(self, record_every: int | None) -> Horizons:
        """Returns the steps at which scores are recorded, increasing; the last ends the training.

        Args:
            record_every: distance of recorded steps, as the audit sets it; None for the default.
        """

    def check(self, adversary: Adversary) -> None:
        """Raises SpecError if this adversary cannot attack this mechanism."""
        if self.attacked_as == adversary.attacks:
            return
        from ..adversaries.base import Adversary as Base

        suitable = [n for n, cls in registry(Base).items() if cls.attacks == self.attacked_as]
        remedy = f"; use {', '.join(sorted(suitable))}" if suitable else ""
        raise SpecError(
            "adversary.name",
            f"{adversary.name} cannot attack {self.name}{remedy}; {adversary.name} is for "
            f"mechanism.name: {adversary.attacks}",
        )

    def datasets(self) -> Mapping[str, Dataset]:
        """Returns the data sets that the mechanism will load, by `Data.key`."""
        return {}

    @abstractmethod
    def check_inputs(self) -> None:
        """Loads all data of the mechanism. Raises DataError or SpecError if it is unusable."""

    def check_records(self, adversary: Adversary) -> None:
        """Loads all data of the adversary. Raises DataError or SpecError if it is unusable."""

    @abstractmethod
    def claimed(self, adversary: Adversary, horizon: int) -> Claim:
        """Returns what is claimed of a run that ends at `horizon`.

        Mostly a `Training`, whose steps are the releases that an accountant must count.
        """

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Returns what is known of the trade-off function that this adversary audits.

        `GAUSSIAN` only if the docstring proves it, and states for which release. An ε converted
        from a certified μ counts as certified only then. `CLAIMED` only if the docstring proves
        that the trade-off function is that of the claim, sampling included, for some size of the
        noise.
        """
        return TradeOff.UNKNOWN

    def independent_canaries(self, adversary: Adversary) -> bool:
        """Returns whether each score of this adversary depends on one secret bit only.

        True only if the docstring proves that all releases are a randomised function of one
        Gaussian for each bit, as `stats.order_statistics` assumes.
        """
        return False

    @abstractmethod
    def open(
        self,
        adversary: Adversary,
        seed: int,
        craft_seed: int,
        gpu: bool,
        prepared: Prepared = (),
    ) -> Session:
        """Opens a session; the adversary crafts its canary now, from public knowledge only.

        Args:
            adversary: the attack.
            seed: seed of the sweep; everything public (initialisation, batches) derives from it.
            craft_seed: 128-bit seed of the adversary's choices.
            gpu: whether to compute on the trainer's GPU.
            prepared: the parts of its preparation, in order; empty without a preparation.
        """

    def preparation(self, adversary: Adversary) -> Preparation | None:
        """Returns the preparation that packs of this adversary wait for; None if none is needed."""
        return None

    def prepare_part(
        self,
        adversary: Adversary,
        part: int,
        seeds: PartSeeds,
        gpu: bool,
    ) -> Arrays:
        """Computes one part of `preparation`: arrays of numbers by name, to be stored.

        The arrays depend only on the arguments and the identity. A part knows no secret bit and no
        other part, and may be computed on any machine, in any order.

        Args:
            adversary: the attack.
            part: number of the part, from 0.
            seeds: seed of the sweep, and seed of this part.
            gpu: whether it may compute on the trainer's GPU.
        """
        raise NotImplementedError(f"{self.name} has a preparation, and no prepare_part()")

    def exact(
        self,
        adversary: Adversary,
        horizons: Horizons,
        delta: float,
        prepared: Prepared = (),
    ) -> dict[int, tuple[Estimate, ...]]:
        """Returns estimates that take no trials, by horizon; empty if there are none.

        Args:
            adversary: the attack.
            horizons: steps, increasing.
            delta: δ of the estimates.
            prepared: all parts of the preparation; empty until all are stored.
        """
        return {}

    def distributions(
        self, adversary: Adversary, delta: float, prepared: Prepared
    ) -> Mapping[str, NDArray[np.float64]]:
        """Returns numbers that reports draw as histograms, by title, float64 [any number].

        Args:
            adversary: the attack.
            delta: δ of bounds among them.
            prepared: all parts of the preparation; empty until all are stored.
        """
        return {}


class Recorded(Unread, Mechanism):
    """A mechanism as the plan describes it, for a run that is read without importing its code."""

    options: dict[str, Any]
    steps: Horizons
    trials: int
    releases: tuple[StatedClaim, ...] | None

    @property
    def sampled(self) -> bool:
        return self.trials > 0

    def horizons(self, record_every: int | None) -> Horizons:
        """Returns the steps of the plan: no other steps can be recorded."""
        return self.steps

    def claimed(self, adversary: Adversary, horizon: int) -> Claim:
        """Returns the claim at a recorded step. Raises SpecError if the plan has no claim."""
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
