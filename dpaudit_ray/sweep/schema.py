"""Lists the names that a sweep file can use, with their options, from each class's JSON schema."""

import importlib
import inspect
from dataclasses import dataclass, replace
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
    "noise": ("mechanisms.dp_sgd.noise", "Noise"),
    "sampling": ("mechanisms.dp_sgd.sampling", "Sampler"),
    "optimizers": ("mechanisms.dp_sgd.updates", "Optimizer"),
    "schedules": ("mechanisms.dp_sgd.updates", "Schedule"),
    "units": ("mechanisms.dp_sgd.units", "Unit"),
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


@dataclass(frozen=True)
class Option:
    """An option of a name; a required one has no default."""

    name: str
    takes: str  # the possible values, in words
    default: Any = None
    required: bool = False


@dataclass(frozen=True)
class Entry:
    """A name, and the options of its class."""

    name: str
    line: str  # the first line of the class's docstring
    text: str  # all of the docstring
    options: tuple[Option, ...]


def entries(kind: str) -> list[Entry]:
    """Returns all entries of a kind (in the plural), by name."""
    listed = []
    if kind == "estimators":
        for name, method in stats.estimators().items():
            listed.append(_entry(name, method, [options_model(method)]))
    elif kind == "accountants":
        for name, accountant in accounting.accountants().items():
            listed.append(_entry(name, type(accountant), []))
    else:
        for name, cls in plugins.registry(_base(kind)).items():
            # For some options, the class builds objects of these subclasses.
            variants = [child for child in cls.__subclasses__() if child.is_variant]
            listed.append(_entry(name, cls, [cls, *variants]))
    return sorted(listed, key=lambda entry: entry.name)


def _base(kind: str) -> type[Plugin]:
    """Returns the base class of a kind of plug-ins, in the plural as in _BASES."""
    module, name = _BASES[kind]
    return cast(type[Plugin], getattr(importlib.import_module(f"dpaudit_ray.{module}"), name))


def _entry(
    name: str,
    cls: type,
    models: list[type[BaseModel]],
) -> Entry:
    """Describes a class by its docstring, and by the fields of `models`.

    An option of several models is listed once, with all the kinds of values that they take.
    """
    options: dict[str, Option] = {}
    for model in models:
        properties = model.model_json_schema().get("properties", {})
        for field_name, field in model.model_fields.items():
            key = field.alias or field_name
            required = field.is_required()
            default = None if required else _plain(field.get_default(call_default_factory=True))
            option = Option(key, _takes(properties[key]), default, required)
            first = options.setdefault(key, option)
            if option.takes != first.takes:
                options[key] = replace(first, takes=f"{first.takes} | {option.takes}")
    options.pop("name", None)  # the name chooses the class, and is not an option of it
    text = inspect.getdoc(cls) or ""
    first_line = text.partition("\n")[0]
    return Entry(name, first_line, text, tuple(options.values()))


def _takes(schema: dict[str, Any]) -> str:
    """Returns the values that a JSON schema allows, in words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        for base in map(_base, _BASES):
            if base.__name__ == name:
                return f"{'an' if base.kind[0] in 'aeiou' else 'a'} {base.kind}"
        return "mapping"
    if "anyOf" in schema:
        return " | ".join(map(_takes, schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    kind = schema.get("type", "")
    if kind == "array":
        items = schema.get("prefixItems") or [schema.get("items", {})]
        return f"list of {' or '.join(dict.fromkeys(map(_takes, items)))}"
    limits = [f"{sign} {plain(schema[key])}" for key, sign in _LIMITS.items() if key in schema]
    words = _TYPES.get(kind, "anything")
    return f"{words} {', '.join(limits)}" if limits else words


def _plain(default: Any) -> Any:
    """Returns a default as a sweep file would have it."""
    if isinstance(default, Plugin):
        return default.name
    return list(default) if isinstance(default, tuple) else default
