"""An estimator as a sweep file names it; its options are typed by the estimator's own fields.

One of this project goes by its name, one of somebody's own by its import path,
`package.module:Class`.
"""

from __future__ import annotations

import inspect
import json
import typing
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from .. import imports, stats
from ..errors import Mistakes, SpecError, UnknownKeyError, suggestion, unknown_name
from ..plugins import Strict, got, spec_error
from ..stats.base import RETIRED


class EstimatorSpec(Strict):
    """An estimator by name, with its options."""

    name: str
    options: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def parse(cls, raw: Any, key: str) -> EstimatorSpec:
        """From a name, or a mapping with `name` and options; SpecError under `key`."""
        if isinstance(raw, str):
            raw = {"name": raw}
        if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
            raise SpecError(key, f"must be a name or a mapping with a name{got(raw)}")
        name = raw["name"]
        if _unread(name):
            return cls(name=name, options={part: raw[part] for part in raw if part != "name"})
        types = _option_types(_found(name, f"{key}.name"))
        options, mistakes = {}, Mistakes()
        for option in (part for part in raw if part != "name"):
            path = f"{key}.{option}"
            with mistakes.noted():
                if option not in types:
                    takes = f"it takes {', '.join(types) or 'no options'}"
                    meant = suggestion(option, types)
                    raise UnknownKeyError(path, f"unknown option of {name}{meant}{takes}")
                options[option] = _typed(types[option], raw[option], path)
        mistakes.settle()
        return cls(name=name, options=options)

    def make(
        self, planned: int, canaries: int = 1, family: stats.Family | None = None
    ) -> stats.Estimator:
        """The streaming state; raises ValueError for an option outside its bounds.

        `canaries`: so many trials in a row are canaries of one training. `family`: the claim's
        curves, for one that is `through_claim`.
        """
        method = self.method if ":" in self.name else self.name
        options = self.options | ({} if family is None else {"family": family})
        return stats.make(
            method, planned=planned, independent=canaries == 1, canaries=canaries, **options
        )

    @property
    def method(self) -> type[stats.Estimator]:
        """Its class. Raises SpecError where that may not be imported."""
        return _found(self.name, self.name)

    @property
    def unread(self) -> bool:
        """Whether its class was not imported, but is read as data."""
        return _unread(self.name)

    @property
    def through_claim(self) -> bool:
        """Whether it reads what it certifies through the claim's own curves."""
        return self.options.get("curve") == "claimed" and stats.takes_family(self.method)


def _unread(name: str) -> bool:
    return ":" in name and imports.is_data(name)


def _found(name: str, key: str) -> type[stats.Estimator]:
    known = stats.estimators()
    if ":" not in name:
        if name in RETIRED:
            raise SpecError(key, f"{name!r} was taken out; use {RETIRED[name]}")
        if name not in known:
            raise SpecError(key, unknown_name("estimator", name, known))
        return known[name]
    found = imports.imported(name, key)
    if not (isinstance(found, type) and issubclass(found, stats.Estimator)):
        raise SpecError(key, f"{name!r} is no subclass of dpaudit_ray.stats.Estimator")
    if inspect.isabstract(found):
        lacking = ", ".join(sorted(found.__abstractmethods__))
        raise SpecError(key, f"{name!r} does not define {lacking}")
    if not (hasattr(found, "name") and isinstance(getattr(found, "status", None), stats.Status)):
        raise SpecError(key, f"{name!r} does not say its name and status")
    return found


def _option_types(estimator: type[stats.Estimator]) -> dict[str, Any]:
    hints = typing.get_type_hints(estimator)
    return {name: hints[name] for name in stats.option_names(estimator)}


def _typed(expected: Any, value: Any, key: str) -> Any:
    """`value` as `expected`, by the rules of JSON: lists may become tuples, text no number."""
    adapter = TypeAdapter(expected, config=ConfigDict(strict=True, allow_inf_nan=False))
    try:
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        raise spec_error(error, key, value) from error
