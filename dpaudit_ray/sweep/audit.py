"""The section `audit` of a sweep file: how many trials, which estimators, and when it may end."""

import dataclasses
import functools
import json
import typing
from collections.abc import Callable
from typing import Any, Self, TypeVar

from pydantic import (
    BaseModel,
    Field,
    ValidationError,
    create_model,
    field_validator,
    model_validator,
)

from .. import accounting, imports, stats
from ..errors import Mistakes, SpecError, unknown_name
from ..plugins import (
    Count,
    OpenShare,
    Strict,
    options_with_name,
    reported_with_other_fields,
    spec_error,
)

T = TypeVar("T", bound=Any)


class EstimatorSpec(Strict):
    """An estimator, by name or `package.module:Class`, with options of its class."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Any, key: str) -> "EstimatorSpec":
        """Parses a name, or a mapping with `name` and options. Raises SpecError under `key`."""
        options = dict(options_with_name(raw, key))
        name = options.pop("name")
        if imports.stays_unimported(name):
            return cls(name=name, options=options)
        model = options_model(_estimator_class(name, f"{key}.name"))
        try:  # rules of JSON: lists may become tuples, but text is not a number
            valid = model.model_validate_json(json.dumps(options))
        except ValidationError as error:
            raise spec_error(error, key, options, model) from error
        return cls(name=name, options=valid.model_dump(exclude_unset=True))

    def make(
        self,
        planned: int,
        canaries: int = 1,
        family: stats.Family | None = None,
        log_odds: bool = False,
    ) -> stats.Estimator:
        """Makes the estimator, without any trials.

        Args:
            planned: number of trials.
            canaries: number of consecutive trials that depend on each other.
            family: the curves that the claim has by noise multiplier.
            log_odds: whether scores are log odds of the bit.

        Raises:
            ValueError: an option is wrong.
        """
        method = self.method if ":" in self.name else self.name
        options = dict(self.options)
        if family is not None:
            options["family"] = family
        return stats.make(
            method,
            planned,
            independent=canaries == 1,
            canaries=canaries,
            log_odds=log_odds,
            **options,
        )

    @property
    def method(self) -> type[stats.Estimator]:
        """The class of the estimator."""
        return _estimator_class(self.name, self.name)

    @property
    def unimported(self) -> bool:
        """Whether it is a user-defined class whose run is only read, so that it is not imported."""
        return imports.stays_unimported(self.name)

    @property
    def through_claim(self) -> bool:
        """Whether it converts its bounds through the curves of the claim."""
        return self.options.get("curve") == "claimed" and stats.takes_family(self.method)


class StopWhen(Strict):
    """Rules that end an audit, by time-uniform bounds after each pack; the first one met counts."""

    # Ends the audit once the trials refute the claim, at the level of `dpaudit verify`.
    verdict: bool = False
    within: OpenShare | None = None  # ends the audit once ε ≥ (1 - within) claim

    @model_validator(mode="after")
    def _names_a_rule(self) -> Self:
        """Refuses a section without a rule."""
        if not self.verdict and self.within is None:
            raise ValueError("names no rule; give verdict: true or within")
        return self


class AuditSpec(Strict):
    """Number of trials (that may grow `up_to`), level, and what is computed from the scores."""

    # Number of training runs, or of canaries in all training runs.
    trials: int = Field(ge=1, le=100_000_000)
    delta: float = Field(ge=0, lt=1)  # δ of claims and bounds; below 1 / N, 0 for pure ε
    confidence: OpenShare = 0.95  # confidence level of each lower bound
    record_every: Count | None = None  # steps between recorded ones; each is judged as if the last
    # They compute lower bounds.
    estimators: list[EstimatorSpec] = Field(
        default_factory=lambda: [EstimatorSpec(name="accuracy")], min_length=1
    )
    accountants: list[str] = Field(default_factory=lambda: ["gaussian"], min_length=1)  # for claims
    stop_when: StopWhen | None = None  # rules that may end an audit early
    up_to: int | None = Field(default=None, ge=1, le=100_000_000)  # trials it may grow to
    canaries_drawn: int = Field(default=1, ge=1, le=1000)  # number of audits, each with a canary
    canary: int = Field(default=1, ge=1, le=1000)  # number of the canary among these
    paired: bool = False  # two training runs in a row share their noise; one has the canary

    @field_validator("estimators", mode="before")
    @classmethod
    def _parse_estimators(cls, raw: Any) -> Any:
        """Parses a list; pydantic refuses anything else."""
        return _parsed(raw, EstimatorSpec.parse, "estimators") if isinstance(raw, list) else raw

    @field_validator("accountants")
    @classmethod
    def _check_accountants(cls, names: list[str]) -> list[str]:
        """Refuses unknown names, and repeated ones."""
        return _parsed(names, _checked_accountant, "accountants")

    @model_validator(mode="after")
    def _check_estimators(self) -> Self:
        """Makes each estimator once, so that each wrong option is reported under its key."""
        mistakes = Mistakes()
        for index, estimator in enumerate(self.estimators):
            with mistakes.noted():
                try:
                    if not estimator.unimported:
                        made = estimator.make(planned=self.trials)
                        if self.delta == 0 and "estimators" in self.model_fields_set:
                            stats.base.check_pure(made)
                except ValueError as error:
                    raise SpecError(f"estimators.{index}", f"{estimator.name}: {error}") from error
        mistakes.raise_if_any()
        return self

    @property
    def named_modules(self) -> set[str]:
        """The user's modules that define its estimators and accountants."""
        names = [*self.accountants, *(estimator.name for estimator in self.estimators)]
        return {name.partition(":")[0] for name in names if ":" in name}


def _estimator_class(name: str, key: str) -> type[stats.Estimator]:
    """Returns the class of an estimator. Raises SpecError under `key` for an unknown name."""
    registered = stats.estimators()
    if ":" not in name:
        if name in stats.base.REPLACEMENTS:
            raise SpecError(key, f"is {name!r}, but {stats.base.REPLACEMENTS[name]}")
        if name not in registered:
            raise SpecError(key, unknown_name("estimator", name, registered))
        return registered[name]
    cls = imports.subclass(stats.Estimator, name, key)
    status = getattr(cls, "status", None)
    if not hasattr(cls, "name") or not isinstance(status, stats.Status):
        raise SpecError(key, f"{name!r} lacks a name or a status; set both in the class")
    return cls


class _Options(Strict, arbitrary_types_allowed=True):
    """Base of models of an estimator's options, whose types may be user-defined."""


@functools.cache
def options_model(method: type[stats.Estimator]) -> type[BaseModel]:
    """Makes a model with the options of an estimator, which is a dataclass."""
    hints = typing.get_type_hints(method)
    fields = {field.name: field for field in dataclasses.fields(method)}
    options: dict[str, Any] = {}
    for name in stats.option_names(method):
        field = fields[name]
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        options[name] = (hints[name], ... if default is dataclasses.MISSING else default)
    model: type[BaseModel] = create_model(method.__name__, __base__=_Options, **options)
    return model


def _parsed(
    items: list[Any],
    parse: Callable[[Any, str], T],
    key: str,
) -> list[T]:
    """Parses each item of a list. Raises SpecError with all mistakes, repeats among them.

    Args:
        items: the list.
        parse: called with each item and its key.
        key: the key of the list.
    """
    parsed = []
    mistakes = Mistakes()
    for index, item in enumerate(items):
        with mistakes.noted():
            parsed.append(parse(item, f"{key}.{index}"))
    names = [item if isinstance(item, str) else item.name for item in parsed]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        mistakes.errors.append(SpecError(key, f"lists {repeated[0]} twice; remove one of them"))
    with reported_with_other_fields():
        mistakes.raise_if_any()
    return parsed


def _checked_accountant(name: str, key: str) -> str:
    """Returns the name of an accountant. Raises SpecError under `key` for an unknown name."""
    accountants = accounting.accountants()
    if ":" not in name and name not in (accounting.STATED, *accountants):
        raise SpecError(key, unknown_name("accountant", name, accountants))
    if ":" in name and not imports.stays_unimported(name):
        try:
            accounting.find(name)
        except SpecError as error:
            raise SpecError(key, error.problem) from error
    return name
