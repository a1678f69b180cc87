"""One audit of a sweep: a mechanism, an adversary, and how it is judged."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import model_validator

from .. import stats
from ..adversaries.base import Adversary
from ..errors import REQUIRED, Mistakes, SpecError
from ..mechanisms.base import Mechanism
from ..plugins import Plugin, Strict, Unread, is_users, parse, parts, validated
from ..stats.budget import Budget
from .audit import AuditSpec
from .grid import LABEL_SEPARATOR

CANARY = "canary "  # before the number of a drawn one, in labels
MAX_HORIZONS = 10_000  # steps whose scores are recorded, per audit


def digest(value: Any) -> str:
    """Hex digest (128 bits) of plain data, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Cell(Strict):
    """One audit of the grid. `label` says in words which cell it is."""

    mechanism: Mechanism
    adversary: Adversary
    audit: AuditSpec
    label: str

    @model_validator(mode="after")
    def _check_scores(self) -> Self:
        if self.audit.paired and (self.adversary.one_run or not self.mechanism.sampled):
            has = "one training" if self.adversary.one_run else "no trainings"
            raise SpecError(
                "audit.paired", f"takes pairs of trainings, got {has} ({self.label}); leave it out"
            )
        for index, estimator in enumerate(self.audit.estimators):
            if not estimator.unimported and not self._can_judge(estimator.method):
                names = sorted(
                    name
                    for name, method in stats.estimators().items()
                    if method.status.holds and self._can_judge(method)
                )
                needs = (
                    "takes pairs of trainings; set audit.paired: true, or"
                    if estimator.method.by_pair
                    else "takes scores of many training runs, one of each, which "
                    f"{'pairs do' if self.audit.paired else f'{self.adversary.name} does'} not "
                    "give;"
                )
                raise SpecError(
                    f"audit.estimators.{index}",
                    f"{estimator.name} {needs} choose another estimator: {', '.join(names)}",
                )
        n = self.together
        for key, trials in (("trials", self.audit.trials), ("up_to", self.audit.up_to or 0)):
            if rest := trials % n:
                raise SpecError(
                    f"audit.{key}",
                    f"is {trials}, but {self.unit}; "
                    f"use {max(trials - rest, n)} or {max(trials - rest + n, 2 * n)}",
                )
        return self

    def _can_judge(self, method: type[stats.Estimator]) -> bool:
        if self.audit.paired or method.by_pair:
            return self.audit.paired and method.by_run
        if self.independent:
            return True
        return method.one_run or (method.by_run and not self.adversary.one_run)

    @property
    def independent(self) -> bool:
        return self.canaries == 1

    @property
    def canaries(self) -> int:
        """Number of trials in a row that are of one training, or of one pair; 0: all of them."""
        return 0 if self.adversary.one_run else self.together

    @property
    def together(self) -> int:
        """Number of trials in a row of which a pack holds all or none."""
        return self.adversary.canaries * (2 if self.audit.paired else 1)

    @property
    def unit(self) -> str:
        """What trials in a row make up, in words."""
        if self.audit.paired:
            return f"each pair of trainings has {self.together} trials"
        return f"each training has {self.together} canaries, a trial each"

    @property
    def parts(self) -> Iterator[Plugin]:
        """Mechanism and adversary, and all that their options hold."""
        yield from parts(self.mechanism)
        yield from parts(self.adversary)

    @property
    def unimported(self) -> bool:
        """Whether a class of it was not imported, but read as data."""
        return any(isinstance(part, Unread) for part in self.parts)

    @property
    def foreign(self) -> bool:
        """Whether its claim is computed by a class of the user's."""
        return any(map(is_users, self.claim_parts))

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        """The parts whose code computes what the audit claims."""
        return (self.mechanism, *self.mechanism.claim_parts, self.adversary)

    @property
    def fingerprint(self) -> str:
        """Hex digest of what determines bits and scores: mechanism, adversary, canary, pairing."""
        more: list[Any] = ["paired"] if self.audit.paired else []
        more += [{"canary": self.audit.canary}] if self.audit.canary > 1 else []
        return digest([self.mechanism.identity(), self.adversary.identity(), *more])

    def canaries_apart(self) -> Iterator[Self]:
        """This audit once for each canary that `canaries_drawn` asks for."""
        if self.audit.canaries_drawn == 1:
            yield self
            return
        for number in range(1, self.audit.canaries_drawn + 1):
            audit = self.audit.model_copy(update={"canary": number})
            label = f"{self.label}{LABEL_SEPARATOR}{CANARY}{number}"
            yield self.model_copy(update={"audit": audit, "label": label})

    def identity(self) -> dict[str, Any]:
        """Options that change a result of this audit, as plain JSON; not the number of trials."""
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
        """The audit's error, shared by its estimators that hold their level, at every step."""
        deciding = (
            estimator.name
            for estimator in self.audit.estimators
            if estimator.unimported or estimator.make(planned=self.audit.trials).status.holds
        )
        return Budget(self.audit.confidence, tuple(deciding), self.horizons)


def parse_cell(sections: Mapping[str, Any], label: str, older: bool = False) -> Cell:
    """Returns a cell from the file's sections at a point of the grid.

    Args:
        sections: `mechanism`, `adversary` and `audit`, as parsed from YAML.
        label: name of the cell; that of its adversary where empty.
        older: whether the accountant is `gaussian` where none is named, as in older versions.

    Raises:
        SpecError: with all mistakes.
    """
    mistakes = Mistakes()
    with mistakes.noted():
        mechanism = parse(Mechanism, _required(sections, "mechanism"), "mechanism")
    with mistakes.noted():
        adversary = parse(Adversary, _required(sections, "adversary"), "adversary")
    with mistakes.noted():
        audit = validated(AuditSpec, _required(sections, "audit"), "audit")
    mistakes.settle()
    default = mechanism.default_accountant
    if default != "gaussian" and "accountants" not in audit.model_fields_set and not older:
        audit = audit.model_copy(update={"accountants": [default]})
    mechanism = mechanism.for_audit(audit.delta, audit.accountants[0]).against(adversary)
    cell = Cell(
        mechanism=mechanism, adversary=adversary, audit=audit, label=label or adversary.name
    )
    if not cell.unimported:
        with mistakes.noted():
            mechanism.check(adversary)
        with mistakes.noted():
            _check_recording(audit.record_every, mechanism)
        mistakes.settle()
    return cell


def _required(sections: Mapping[str, Any], key: str) -> Any:
    if sections[key] is None:
        raise SpecError(key, REQUIRED)
    return sections[key]


def _check_recording(every: int | None, mechanism: Mechanism) -> None:
    horizons = mechanism.horizons(None)
    steps = horizons[-1]
    least = -(-steps // MAX_HORIZONS)
    wrong = len(horizons) > MAX_HORIZONS if every is None else not least <= every <= steps
    if wrong:
        raise SpecError(
            "audit.record_every",
            f"must be {least} to {steps}: of {steps} steps at most {MAX_HORIZONS} are recorded; "
            f"got {every or 'none'}",
        )
