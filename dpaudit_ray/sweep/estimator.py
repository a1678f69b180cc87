"""An estimator as a sweep file names it; its options are typed by the estimator's own fields."""

from __future__ import annotations

import json
import typing
from typing import Any

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from .. import stats
from ..errors import SpecError
from ..plugins import Strict, got, spec_error


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
        known = stats.estimators()
        name = raw["name"]
        if name not in known:
            shown = ", ".join(sorted(known))
            raise SpecError(f"{key}.name", f"unknown estimator {name!r}; known: {shown}")
        types = _option_types(known[name])
        options = {}
        for option in (part for part in raw if part != "name"):
            path = f"{key}.{option}"
            if option not in types:
                takes = ", ".join(types) or "no options"
                raise SpecError(path, f"unknown option of {name}; it takes {takes}")
            options[option] = _typed(types[option], raw[option], path)
        return cls(name=name, options=options)

    def make(self, planned: int, canaries: int = 1) -> stats.Estimator:
        """The streaming state; raises ValueError for an option outside its bounds.

        `canaries`: so many trials in a row are canaries of one training.
        """
        return stats.make(
            self.name,
            planned=planned,
            independent=canaries == 1,
            canaries=canaries,
            **self.options,
        )


def _option_types(estimator: type[stats.Estimator]) -> dict[str, Any]:
    hints = typing.get_type_hints(estimator)
    return {name: hints[name] for name in stats.option_names(estimator)}


def _typed(expected: Any, value: Any, key: str) -> Any:
    """`value` as `expected`, by the rules of JSON: lists may become tuples, text no number."""
    adapter = TypeAdapter(expected, config=ConfigDict(strict=True, allow_inf_nan=False))
    try:
        return adapter.validate_json(json.dumps(value))
    except ValidationError as error:
        raise spec_error(error, key) from error
