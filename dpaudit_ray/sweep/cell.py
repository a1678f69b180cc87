"""The audit of one point of the grid: its mechanism, its adversary, and its estimators."""

import functools
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import model_validator

from .. import stats
from ..accounting import Claim
from ..adversaries.base import Adversary
from ..errors import REQUIRED, Mistakes, SpecError
from ..mechanisms.base import Mechanism
from ..plugins import Plugin, Strict, Unread, is_users, parse, parts, validated
from ..stats.budget import Budget
from .audit import AuditSpec, EstimatorSpec
from .grid import LABEL_SEPARATOR

CANARY = "canary "  # before the number of a drawn canary, in labels
MAX_HORIZONS = 10_000  # steps whose scores are recorded, per audit


def digest(value: Any) -> str:
    """Returns a hex digest (128 bits) of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Cell(Strict):
    """An audit of the grid; `label` is its name in messages and tables."""

    mechanism: Mechanism
    adversary: Adversary
    audit: AuditSpec
    label: str

    @model_validator(mode="after")
    def _check_scores(self) -> Self:
        """Raises SpecError for estimators that cannot judge the scores, and for incomplete runs."""
        if self.audit.paired and (self.adversary.one_run or not self.sampled):
            runs = "one training run" if self.adversary.one_run else "no training runs"
            raise SpecError(
                "audit.paired",
                f"takes pairs of training runs, got {runs} ({self.label}); leave it out",
            )
        for index, estimator in enumerate(self.audit.estimators):
            if not estimator.unimported and not self._can_judge(estimator.method):
                raise self._misfit(f"audit.estimators.{index}", estimator)
        unit = self.together
        numbers = {"trials": self.audit.trials, "up_to": self.audit.up_to or 0}
        for key, trials in numbers.items():
            rounded_down = trials // unit * unit
            if trials != rounded_down:
                raise SpecError(
                    f"audit.{key}",
                    f"is {trials}, but {self.unit}; "
                    f"use {max(rounded_down, unit)} or {max(rounded_down + unit, 2 * unit)}",
                )
        return self

    def _misfit(self, key: str, estimator: EstimatorSpec) -> SpecError:
        """Makes the error of an estimator that cannot judge the scores of this audit."""
        fitting = sorted(
            name
            for name, method in stats.estimators().items()
            if method.status.holds and self._can_judge(method)
        )
        if estimator.method.by_pair:
            needs = "pairs of training runs; set audit.paired: true, or"
        else:
            source = "pairs do" if self.audit.paired else f"{self.adversary.name} does"
            needs = f"scores of many training runs, one of each, which {source} not give;"
        return SpecError(
            key,
            f"{estimator.name} takes {needs} choose another estimator: {', '.join(fitting)}",
        )

    def _can_judge(self, method: type[stats.Estimator]) -> bool:
        """Returns whether an estimator takes scores with the dependence of this audit's."""
        if self.audit.paired or method.by_pair:
            return self.audit.paired and method.by_run
        if self.independent:
            return True
        return method.one_run or (method.by_run and not self.adversary.one_run)

    @property
    def sampled(self) -> bool:
        """Whether trials are run."""
        return self.mechanism.sampled

    @property
    def independent(self) -> bool:
        """Whether each trial has a separate training run."""
        return self.canaries == 1

    @property
    def canaries(self) -> int:
        """Number of consecutive trials of one training run, or of one pair; 0 for all trials."""
        return 0 if self.adversary.one_run else self.together

    @property
    def together(self) -> int:
        """Number of consecutive trials that have to be in the same pack."""
        return self.adversary.canaries * (2 if self.audit.paired else 1)

    @property
    def unit(self) -> str:
        """The size of a training run or pair, in the words of messages."""
        if self.audit.paired:
            return f"each pair of training runs has {self.together} trials"
        return f"each training run has {self.together} canaries, a trial each"

    @property
    def parts(self) -> Iterator[Plugin]:
        """Mechanism and adversary, and all plug-ins in their options."""
        yield from parts(self.mechanism)
        yield from parts(self.adversary)

    @property
    def unimported(self) -> bool:
        """Whether a class of the audit was not imported, but read as data."""
        return any(isinstance(part, Unread) for part in self.parts)

    @property
    def foreign(self) -> bool:
        """Whether a user-defined class computes its claim."""
        return any(map(is_users, self.claim_parts))

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        """The parts whose code computes what the audit claims."""
        return (self.mechanism, *self.mechanism.claim_parts, self.adversary)

    @property
    def fingerprint(self) -> str:
        """Hex digest of all that determines bits and scores.

        Options that were added later are a part of it only if they differ from their defaults, so
        that earlier runs keep their digest.
        """
        identity: list[Any] = [self.mechanism.identity(), self.adversary.identity()]
        if self.audit.paired:
            identity.append("paired")
        if self.audit.canary > 1:
            identity.append({"canary": self.audit.canary})
        return digest(identity)

    def claimed(self, step: int | None = None) -> Claim:
        """Returns what is claimed after a step; None stands for the last step."""
        return self.mechanism.claimed(self.adversary, step or self.horizons[-1])

    def trade_off(self, step: int | None = None) -> stats.TradeOff:
        """Returns the known trade-off function after a step; None stands for the last step."""
        return self.mechanism.trade_off(self.adversary, step or self.horizons[-1])

    def one_per_canary(self) -> Iterator[Self]:
        """Yields the audit once for each canary of `canaries_drawn`."""
        if self.audit.canaries_drawn == 1:
            yield self
            return
        for number in range(1, self.audit.canaries_drawn + 1):
            audit = self.audit.model_copy(update={"canary": number})
            label = f"{self.label}{LABEL_SEPARATOR}{CANARY}{number}"
            yield self.model_copy(update={"audit": audit, "label": label})

    def identity(self) -> dict[str, Any]:
        """Returns all options that change a result, as plain JSON, but not the number of trials."""
        return {
            "mechanism": self.mechanism.identity(),
            "adversary": self.adversary.identity(),
            "audit": self.audit.model_dump(
                mode="json", exclude={"trials", "stop_when"}, exclude_defaults=True
            ),
        }

    @property
    def horizons(self) -> tuple[int, ...]:
        """The steps at which scores are recorded; the last is the end of training."""
        return self.mechanism.horizons(self.audit.record_every)

    @functools.cached_property
    def budget(self) -> Budget:
        """The audit's error budget, shared by estimators that hold their level, at every step."""
        deciding = [
            estimator.name
            for estimator in self.audit.estimators
            if estimator.unimported or estimator.make(planned=self.audit.trials).status.holds
        ]
        return Budget(self.audit.confidence, tuple(deciding), self.horizons)


def parse_cell(
    sections: Mapping[str, Any],
    label: str,
    older: bool,
) -> Cell:
    """Returns a cell from the file's sections at a point of the grid.

    Args:
        sections: `mechanism`, `adversary` and `audit`, as parsed from YAML.
        label: name of the cell; if it is empty, the adversary's name is taken.
        older: whether `gaussian` is the default accountant of all mechanisms, as in older versions.

    Raises:
        SpecError: the sweep has mistakes, all of which the message lists.
    """
    mistakes = Mistakes()
    with mistakes.noted():
        mechanism = parse(Mechanism, _required(sections, "mechanism"), "mechanism")
    with mistakes.noted():
        adversary = parse(Adversary, _required(sections, "adversary"), "adversary")
    with mistakes.noted():
        audit = validated(AuditSpec, _required(sections, "audit"), "audit")
    mistakes.raise_if_any()
    default = mechanism.default_accountant
    if default != "gaussian" and "accountants" not in audit.model_fields_set and not older:
        audit = audit.model_copy(update={"accountants": [default]})
    if mechanism.default_estimator != "accuracy" and "estimators" not in audit.model_fields_set:
        estimators = [EstimatorSpec(name=mechanism.default_estimator)]
        audit = audit.model_copy(update={"estimators": estimators})
    mechanism = mechanism.for_audit(audit.delta, audit.accountants[0])
    mechanism = mechanism.against(adversary)
    cell = Cell(
        mechanism=mechanism, adversary=adversary, audit=audit, label=label or adversary.name
    )
    if not cell.unimported:
        with mistakes.noted():
            mechanism.check(adversary)
        with mistakes.noted():
            _check_recording(audit.record_every, mechanism)
        mistakes.raise_if_any()
    return cell


def _required(sections: Mapping[str, Any], key: str) -> Any:
    """Returns a section of the sweep. Raises SpecError if it is missing."""
    if sections[key] is None:
        raise SpecError(key, REQUIRED)
    return sections[key]


def _check_recording(every: int | None, mechanism: Mechanism) -> None:
    """Raises SpecError if too many steps are recorded, or none."""
    horizons = mechanism.horizons(None)
    steps = horizons[-1]
    least = math.ceil(steps / MAX_HORIZONS)
    possible = len(horizons) <= MAX_HORIZONS if every is None else least <= every <= steps
    if not possible:
        raise SpecError(
            "audit.record_every",
            f"must be {least} to {steps}: of {steps} steps at most {MAX_HORIZONS} are recorded; "
            f"got {every or 'none'}",
        )
