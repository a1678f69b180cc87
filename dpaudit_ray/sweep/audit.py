"""The section `audit` of a sweep file: how many trials, and what is made of them."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from .. import accounting, imports
from ..errors import Mistakes, SpecError, unknown_name
from ..plugins import Strict, carried
from .estimator import EstimatorSpec
from .stop_when import StopWhen


class AuditSpec(Strict):
    """How many trials, at which level, and what is computed from them."""

    trials: int = Field(ge=1, le=100_000_000)
    delta: float = Field(gt=0, lt=1)
    confidence: float = Field(default=0.95, gt=0, lt=1)
    record_every: int | None = Field(default=None, ge=1)
    estimators: list[EstimatorSpec] = Field(
        default_factory=lambda: [EstimatorSpec(name="accuracy")], min_length=1
    )
    accountants: list[str] = Field(default_factory=lambda: ["gaussian"], min_length=1)
    stop_when: StopWhen | None = None

    @field_validator("estimators", mode="before")
    @classmethod
    def _estimators(cls, raw: Any) -> Any:
        if not isinstance(raw, list):
            return raw
        found, mistakes = [], Mistakes()
        for index, item in enumerate(raw):
            with mistakes.noted():
                found.append(EstimatorSpec.parse(item, f"estimators.{index}"))
        with carried():
            mistakes.settle()
        return found

    @field_validator("accountants")
    @classmethod
    def _accountants(cls, names: list[str]) -> list[str]:
        mistakes = Mistakes()
        for index, name in enumerate(names):
            with mistakes.noted():
                _check_accountant(name, f"accountants.{index}")
        with mistakes.noted():
            _refuse_repeats("accountants", names)
        with carried():
            mistakes.settle()
        return names

    @model_validator(mode="after")
    def _whole(self) -> Self:
        mistakes = Mistakes()
        with mistakes.noted():
            _refuse_repeats("estimators", [e.name for e in self.estimators])
        for index, estimator in enumerate(self.estimators):
            with mistakes.noted():
                _check_estimator(estimator, self.trials, f"estimators.{index}")
        mistakes.settle()
        return self

    @property
    def named_modules(self) -> set[str]:
        """Modules that its estimators and accountants are taken from, where those are not ours."""
        named = (*(one.name for one in self.estimators), *self.accountants)
        return {name.partition(":")[0] for name in named if ":" in name}


def _check_estimator(estimator: EstimatorSpec, trials: int, key: str) -> None:
    """Raises SpecError for an option outside its bounds."""
    try:
        if not estimator.unread:
            estimator.make(planned=trials)
    except ValueError as error:
        raise SpecError(key, f"{estimator.name}: {error}") from error


def _check_accountant(name: str, key: str) -> None:
    """Raises SpecError for one that is not known, nor can be imported, nor is only read."""
    if ":" not in name and name not in accounting.accountants():
        raise SpecError(key, unknown_name("accountant", name, accounting.accountants()))
    if ":" in name and not imports.is_data(name):
        try:
            accounting.find(name)
        except SpecError as error:
            raise SpecError(key, error.problem) from error


def _refuse_repeats(key: str, names: list[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise SpecError(key, f"lists {name} twice; remove one of them")
