"""One audit of a sweep: a mechanism, an adversary, and how it is judged."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any, Self

from pydantic import model_validator

from ..adversaries.base import Adversary
from ..errors import REQUIRED, Mistakes, SpecError
from ..mechanisms.base import Mechanism
from ..plugins import Plugin, Strict, Unread, is_own, parse, parts, validated
from ..stats import estimators
from ..stats.budget import Budget
from .audit import AuditSpec
from .fingerprint import digest

MAX_HORIZONS = 10_000  # steps whose scores are recorded, per audit


class Cell(Strict):
    """One audit of the grid. `label` says in words which cell it is."""

    mechanism: Mechanism
    adversary: Adversary
    audit: AuditSpec
    label: str

    @model_validator(mode="after")
    def _one_kind_of_scores(self) -> Self:
        if self.independent:
            return self
        for index, estimator in enumerate(self.audit.estimators):
            if estimator.unread:
                continue
            takes = estimator.method
            if not (takes.one_run or (takes.by_run and not self.adversary.one_run)):
                others = (
                    name
                    for name, cls in sorted(estimators().items())
                    if cls.status.holds
                    and (cls.one_run or (cls.by_run and not self.adversary.one_run))
                )
                raise SpecError(
                    f"audit.estimators.{index}",
                    f"{estimator.name} takes scores of many training runs, one of each, which "
                    f"{self.adversary.name} does not give; choose another estimator: "
                    + ", ".join(others),
                )
        each = self.adversary.canaries
        if rest := self.audit.trials % each:
            more = self.audit.trials - rest + each
            raise SpecError(
                "audit.trials",
                f"is {self.audit.trials}, but each training has {each} canaries, a trial each; "
                f"use {max(more - each, each)} or {max(more, 2 * each)}",
            )
        return self

    @property
    def independent(self) -> bool:
        """Whether every score comes from a training of its own."""
        return self.canaries == 1

    @property
    def canaries(self) -> int:
        """How many trials in a row are canaries of one training; 0: all."""
        return 0 if self.adversary.one_run else self.adversary.canaries

    @property
    def parts(self) -> Iterator[Plugin]:
        """Mechanism and adversary, and all that their options hold."""
        yield from parts(self.mechanism)
        yield from parts(self.adversary)

    @property
    def unread(self) -> bool:
        """Whether a class of it was not imported, but read as data."""
        return any(isinstance(part, Unread) for part in self.parts)

    @property
    def foreign(self) -> bool:
        """Whether it takes a class of somebody's own to tell what it claims."""
        return any(map(is_own, self.claim_parts))

    @property
    def claim_parts(self) -> tuple[Plugin, ...]:
        """What tells what it claims."""
        return (self.mechanism, *self.mechanism.claim_parts, self.adversary)

    @property
    def fingerprint(self) -> str:
        """Hex digest of what determines bits and scores: mechanism and adversary."""
        return digest([self.mechanism.identity(), self.adversary.identity()])

    def identity(self) -> dict[str, Any]:
        """What changes a result of this audit; how many trials are run is not part of it."""
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
            one.name
            for one in self.audit.estimators
            if one.unread or one.make(planned=self.audit.trials).status.holds
        )
        return Budget(self.audit.confidence, tuple(deciding), self.horizons)


def cell_of(sections: Mapping[str, Any], label: str) -> Cell:
    """A cell from the sections of the file as one point of the grid has them.

    Raises:
        SpecError: all that is wrong, each with the key and what to do.
    """
    mistakes = Mistakes()
    with mistakes.noted():
        mechanism = parse(Mechanism, _required(sections, "mechanism"), "mechanism")
    with mistakes.noted():
        adversary = parse(Adversary, _required(sections, "adversary"), "adversary")
    with mistakes.noted():
        audit = validated(AuditSpec, _required(sections, "audit"), "audit")
    mistakes.settle()
    mechanism = mechanism.for_audit(audit.delta, audit.accountants[0]).against(adversary)
    cell = Cell(
        mechanism=mechanism, adversary=adversary, audit=audit, label=label or adversary.name
    )
    if not cell.unread:
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
    known = mechanism.horizons(None)
    steps = known[-1]
    if every is None and len(known) > MAX_HORIZONS:
        raise SpecError(
            "audit.record_every",
            f"is not given, which records {len(known)} steps, more than {MAX_HORIZONS}; give "
            f"{-(-steps // MAX_HORIZONS)} or more",
        )
    if every is not None and not steps / MAX_HORIZONS <= every <= steps:
        raise SpecError(
            "audit.record_every",
            f"is {every}, but there are only {steps} steps; use at most that"
            if every > steps
            else f"is {every}, which records more than {MAX_HORIZONS} of {steps} steps; raise it",
        )
