"""Label privacy from the gradients of a training (Yuan, Xue, Wang, Shen 2021), as a mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, cast

import numpy as np
import numpy.typing as npt
from pydantic import Field, SerializeAsAny

from ...accounting import Adjacency
from ...adversaries.base import Adversary
from ...adversaries.label import Label
from ...errors import SpecError
from ...plugins import Plugin, nested
from ...stats import Estimate, TradeOff
from ..base import Arrays, Claimed, Mechanism, PartSeeds, Preparation, Session, recorded_steps
from ..dp_sgd import DpSgd
from ..dp_sgd.sampling import Fixed, Shuffle
from . import release
from .release import Noise, Shape, Target, Trials

if TYPE_CHECKING:
    from ...data.base import Dataset


class LabelGradient(Mechanism):
    """A release of each step of a training, from which one label of its batch is guessed.

    The target is trained once, by `training`, as the preparation of all audits that attack it; the
    first `batches` of its steps are attacked (all, if not said). `clipping: all` is that of DP-SGD;
    `attacked` clips and releases the attacked weights alone, as it is printed. `backend: sampled`
    runs trials, of a batch and a record with its label turned or not; `exact` has closed forms, one
    horizon for each batch. `seed` draws other trials, for repetitions.

    A turned label replaces a record, so that is what claims are of; `training.epsilon` sets the
    noise by that of adding one.
    """

    exact_estimators: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "exact": "",
            "closed-form": "by the published attack, in closed form",
            "complement": "",
            "extrapolated": "",
        }
    )

    attacked_as: ClassVar[str] = "label-gradient"

    name: Literal["label-gradient"] = "label-gradient"
    training: Annotated[SerializeAsAny[Mechanism], nested(Mechanism)]  # the target, `dp-sgd`
    batches: int | None = Field(default=None, ge=1)  # steps that are attacked; null: all
    clipping: Literal["all", "attacked"] = "all"  # what is clipped and released
    backend: Literal["sampled", "exact"] = "sampled"  # run trials, or closed forms
    seed: int = Field(default=0, ge=0)  # of the trials

    @property
    def sampled(self) -> bool:
        return self.backend == "sampled"

    @property
    def target(self) -> DpSgd:
        """The training that is attacked."""
        if not isinstance(self.training, DpSgd):
            raise SpecError(
                "mechanism.training.name", f"is {self.training.name}; it must be dp-sgd"
            )
        return self.training

    @property
    def steps(self) -> int:
        """Number of steps that are attacked."""
        return self.target.steps if self.batches is None else self.batches

    @property
    def measured(self) -> tuple[str, ...]:
        """The share of labels that are determined, and of those that are rebuilt as they were."""
        return ("accuracy", "determined") if self.sampled else ()

    def for_audit(self, delta: float, accountant: str) -> Self:
        training = self.training.for_audit(delta, accountant)
        return self.model_copy(update={"training": training})

    def worked_out(self) -> Mapping[str, float]:
        return self.training.worked_out()

    def given(self, worked_out: Mapping[str, float]) -> Self:
        return self.model_copy(update={"training": self.training.given(worked_out)})

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        return (self.training, *self.training.claim_parts)

    @property
    def claim_reads_data(self) -> bool:
        """An epoch has as many batches as the records make."""
        return True

    def horizons(self, record_every: int | None) -> tuple[int, ...]:
        """The last batch; with `exact`, every one, or every `record_every`."""
        if self.sampled:
            return (self.steps,)
        return recorded_steps(self.steps, record_every or 1)

    def check(self, adversary: Adversary) -> None:
        super().check(adversary)
        target = self.target
        required = {
            "sampling": (isinstance(target.sampling, Fixed | Shuffle), "fixed or shuffle"),
            "batches": (target.batches == "known", "known"),
            "loss": (target.loss == "cross-entropy", "cross-entropy: labels are classes"),
            "augmentations": (target.augmentations == 1, "1: a release is of records, not views"),
            "held_out": (target.held_out is None, "nothing: the target has no models to compare"),
            "model.initialization": (target.model.initialization == "fixed", "fixed"),
        }
        for key, (fits, wanted) in required.items():
            if not fits:
                raise SpecError(f"mechanism.training.{key}", f"must be {wanted}")
        if self.steps > target.steps:
            raise SpecError(
                "mechanism.batches",
                f"is {self.steps}, but the training has {target.steps} steps; use at most that",
            )
        if not self.sampled and (self.seed or cast(Label, adversary).record != "random"):
            raise SpecError(
                "mechanism.seed" if self.seed else "adversary.record",
                "is for sampled trials; with backend: exact nothing is drawn, leave it out",
            )

    def datasets(self) -> Mapping[str, Dataset]:
        return self.training.datasets()

    def check_inputs(self) -> None:
        try:
            self.training.check_inputs()
        except SpecError as error:
            key = error.key.removeprefix("mechanism.")
            raise SpecError(f"mechanism.training.{key}", error.problem) from error
        data = self.target.data
        if (classes := data.load().classes) != 2:
            raise SpecError(
                "mechanism.training.data",
                f"{data.name} has {classes} classes; labels must be 0 or 1 to be told by a sign",
            )
        _ = self.shape

    def check_records(self, adversary: Adversary) -> None:
        cast(Label, adversary).check_widths(self.shape.sizes, self.target.batch_size)

    def claimed(self, adversary: Adversary, horizon: int) -> Claimed:
        """The steps that can have one record: where batches are shuffled, one in each epoch.

        A sampler of one's own may put a record into every batch, whatever it is a kind of.
        """
        target, releases = self.target, 1
        if not self.sampled:
            shuffled = type(target.sampling) is Shuffle
            releases = -(-horizon // target.sizes.per_epoch) if shuffled else horizon
        return Claimed(target.noise, releases, adjacency=Adjacency.REPLACE)

    def trade_off(self, adversary: Adversary, horizon: int) -> TradeOff:
        """Gaussian for trials of one record, in one batch, which is proved here.

        All but one label is known, so the release is N(g_0, s² I) or N(g_1, s² I) for known g_0
        and g_1, and both statistics are linear in it. Records that are drawn make a mixture. The
        models are given, as they came; that of all trainings is another mixture.
        """
        alone = cast(Label, adversary).record == "largest"
        return TradeOff.GAUSSIAN if alone else TradeOff.UNKNOWN

    def preparation(self, adversary: Adversary) -> Preparation:
        """The target: once for all layers, statistics and backends that attack it."""
        return Preparation(1, {"target": self.training.identity(), "steps": self.steps})

    def prepare_part(self, adversary: Adversary, part: int, seeds: PartSeeds, gpu: bool) -> Arrays:
        training = self.target.training(seeds.sweep, gpu)
        return Target.trained(training, self.shape, self.steps, seeds.part).arrays

    def open(
        self,
        adversary: Adversary,
        seed: int,
        craft_seed: int,
        gpu: bool,
        prepared: tuple[Arrays, ...] = (),
    ) -> Session:
        return Trials.from_target(prepared[0], cast(Label, adversary), self.noise)

    def exact(
        self,
        adversary: Adversary,
        horizons: tuple[int, ...],
        delta: float,
        prepared: tuple[Arrays, ...] = (),
    ) -> dict[int, tuple[Estimate, ...]]:
        """For `backend: exact`, closed forms of all batches so far; nothing before the target."""
        if self.sampled or not prepared:
            return {}
        return release.closed_forms(
            prepared[0], cast(Label, adversary), self.noise, horizons, delta
        )

    def distributions(
        self, adversary: Adversary, delta: float, prepared: tuple[Arrays, ...]
    ) -> Mapping[str, npt.NDArray[np.float64]]:
        """For `backend: exact`: the bound of every label, and the attacked gradients' entries."""
        if self.sampled:
            return {}
        return release.distributions(prepared[0], cast(Label, adversary), self.noise, delta)

    @property
    def noise(self) -> Noise:
        """The noise of every step."""
        return Noise(self.target.clip_norm, self.target.noise, self.clipping == "all")

    @property
    def shape(self) -> Shape:
        """The shape of the target's network."""
        from ..dp_sgd.network import network

        data = self.target.data.load()
        shape = tuple(data.x.shape[1:])
        return Shape.from_module(network(self.target.model, shape, data.classes, 0))
