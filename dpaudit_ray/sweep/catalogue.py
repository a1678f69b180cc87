"""What can be named in a sweep file, with its options, as the classes themselves say it."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import types
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from .. import accounting, plugins, stats
from ..plugins import Plugin

_HOMES = {
    "data": ("data.base", "Data"),
    "models": ("models.base", "Model"),
    "adversaries": ("adversaries.base", "Adversary"),
    "mechanisms": ("mechanisms.base", "Mechanism"),
    "sampling": ("mechanisms.dp_sgd.sampling", "Sampler"),
    "optimizers": ("mechanisms.dp_sgd.updates", "Optimizer"),
    "schedules": ("mechanisms.dp_sgd.updates", "Schedule"),
}
_WORDS = {
    int: "whole number",
    float: "number",
    str: "text",
    bool: "true | false",
    type(None): "null",
    Any: "anything",
}
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclasses.dataclass(frozen=True)
class Option:
    """One option: what it takes, in words, and its default; `required` has none."""

    name: str
    takes: str
    default: Any = None
    required: bool = False


@dataclasses.dataclass(frozen=True)
class Entry:
    """A name, what its class says of itself in a line and in full, and its options."""

    name: str
    line: str
    text: str
    options: tuple[Option, ...]


def entries(kind: str) -> list[Entry]:
    """All of a kind, in the plural, by name."""
    if kind == "estimators":
        found = [_entry(n, c, _of_estimator(c)) for n, c in stats.estimators().items()]
    elif kind == "accountants":
        found = [_entry(n, type(one), ()) for n, one in accounting.accountants().items()]
    else:
        module, name = _HOMES[kind]
        base: type[Plugin] = getattr(importlib.import_module(f"dpaudit_ray.{module}"), name)
        found = [_entry(n, c, _of_plugin(c)) for n, c in plugins.known(base).items()]
    return sorted(found, key=lambda entry: entry.name)


def _entry(name: str, cls: type, options: Iterable[Option]) -> Entry:
    text = inspect.getdoc(cls) or ""
    return Entry(name, text.partition("\n")[0], text, tuple(options))


def _of_plugin(cls: type[Plugin]) -> list[Option]:
    """Its fields, and those that only some variants of it have."""
    found: dict[str, Option] = {}
    for each in (cls, *(child for child in cls.__subclasses__() if child.is_variant)):
        for name, field in each.model_fields.items():
            option = _of_field(field.alias or name, field)
            known = found.setdefault(option.name, option)
            if option.takes != known.takes:
                both = f"{known.takes} | {option.takes}"
                found[option.name] = dataclasses.replace(known, takes=both)
    return [option for name, option in found.items() if name != "name"]


def _of_field(key: str, field: FieldInfo) -> Option:
    limits = [
        f"{sign} {getattr(limit, name):g}"
        for limit in field.metadata
        for name, sign in _SIGNS.items()
        if getattr(limit, name, None) is not None
    ]
    plain, null, rest = _takes(field.annotation).partition(" | null")
    takes = " ".join([plain, ", ".join(limits)]).strip() + null + rest
    if field.is_required():
        return Option(key, takes, required=True)
    return Option(key, takes, _plain(field.get_default(call_default_factory=True)))


def _of_estimator(cls: type[stats.Estimator]) -> Iterator[Option]:
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}
    for name in stats.option_names(cls):
        default, factory = fields[name].default, fields[name].default_factory
        if factory is not dataclasses.MISSING:
            default = factory()
        required = default is dataclasses.MISSING
        yield Option(name, _takes(hints[name]), None if required else _plain(default), required)


def _takes(annotation: Any) -> str:
    """A type in the words of whoever writes a sweep file."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _takes(parts[0])
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin in (typing.Union, types.UnionType):
        return " | ".join(_takes(part) for part in parts)
    if origin in (list, tuple):
        kinds = list(dict.fromkeys(_takes(part) for part in parts if part is not Ellipsis))
        return f"list of {' or '.join(kinds)}"
    if isinstance(annotation, type) and issubclass(annotation, Plugin):
        return f"{'an' if annotation.kind[0] in 'aeiou' else 'a'} {annotation.kind}"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, BaseModel)):
        return "mapping"
    return _WORDS.get(annotation) or str(getattr(annotation, "__name__", annotation))


def _plain(value: Any) -> Any:
    """As it would stand in a sweep file."""
    if value is PydanticUndefined:
        return None
    if isinstance(value, Plugin):
        return value.name
    return list(value) if isinstance(value, tuple) else value
