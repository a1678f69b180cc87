"""Names that a sweep file can use, with their options, read off the JSON schema of each class."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any, cast

from pydantic import BaseModel

from .. import accounting, plugins, stats
from ..errors import plain
from ..plugins import Plugin
from .audit import options_model

_BASES = {
    "data": ("data.base", "Data"),
    "models": ("models.base", "Model"),
    "adversaries": ("adversaries.base", "Adversary"),
    "mechanisms": ("mechanisms.base", "Mechanism"),
    "sampling": ("mechanisms.dp_sgd.sampling", "Sampler"),
    "optimizers": ("mechanisms.dp_sgd.updates", "Optimizer"),
    "schedules": ("mechanisms.dp_sgd.updates", "Schedule"),
}
_TYPES = {
    "integer": "whole number",
    "number": "number",
    "string": "text",
    "boolean": "true | false",
    "null": "null",
    "object": "mapping",
}
_LIMITS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: what it takes, in words, and its default; `required` has none."""

    name: str
    takes: str
    default: Any = None
    required: bool = False


@dataclasses.dataclass(frozen=True)
class Entry:
    """A name, the first line of its class's docstring and the whole, and its options."""

    name: str
    line: str
    text: str
    options: tuple[Option, ...]


def entries(kind: str) -> list[Entry]:
    """All entries of a kind (in the plural), by name."""
    if kind == "estimators":
        all_entries = [_entry(n, c, [options_model(c)]) for n, c in stats.estimators().items()]
    elif kind == "accountants":
        all_entries = [_entry(n, type(a), []) for n, a in accounting.accountants().items()]
    else:
        classes = plugins.registry(_base(kind))
        # The class and the subclasses that it builds for some of its options.
        all_entries = [
            _entry(name, cls, [cls, *(child for child in cls.__subclasses__() if child.is_variant)])
            for name, cls in classes.items()
        ]
    return sorted(all_entries, key=lambda entry: entry.name)


def _base(kind: str) -> type[Plugin]:
    module, name = _BASES[kind]
    return cast(type[Plugin], getattr(importlib.import_module(f"dpaudit_ray.{module}"), name))


def _entry(name: str, cls: type, models: list[type[BaseModel]]) -> Entry:
    options: dict[str, Option] = {}
    for model in models:
        properties = model.model_json_schema().get("properties", {})
        for field_name, field in model.model_fields.items():
            key, required = field.alias or field_name, field.is_required()
            default = None if required else field.get_default(call_default_factory=True)
            takes = _takes(properties[key])
            first = options.setdefault(key, Option(key, takes, _plain(default), required))
            if takes != first.takes:
                options[key] = dataclasses.replace(first, takes=f"{first.takes} | {takes}")
    options.pop("name", None)
    text = inspect.getdoc(cls) or ""
    return Entry(name, text.partition("\n")[0], text, tuple(options.values()))


def _takes(schema: dict[str, Any]) -> str:
    if "$ref" in schema:
        kinds = {base.__name__: base.kind for base in map(_base, _BASES)}
        kind = kinds.get(schema["$ref"].rpartition("/")[2])
        return "mapping" if kind is None else f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"
    if "anyOf" in schema:
        return " | ".join(map(_takes, schema["anyOf"]))
    if values := schema.get("enum") or ([schema["const"]] if "const" in schema else []):
        return " | ".join(map(str, values))
    if schema.get("type") == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        return f"list of {' or '.join(dict.fromkeys(map(_takes, items)))}"
    limits = [f"{sign} {plain(schema[key])}" for key, sign in _LIMITS.items() if key in schema]
    return " ".join([_TYPES.get(schema.get("type", ""), "anything"), ", ".join(limits)]).strip()


def _plain(default: Any) -> Any:
    """A default as it would stand in a sweep file."""
    if isinstance(default, Plugin):
        return default.name
    return list(default) if isinstance(default, tuple) else default
