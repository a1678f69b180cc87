"""Plug-ins: a method is one frozen pydantic model whose fields are its options in a sweep file.

A class becomes usable by its `name` when its module lies in the package of its kind; a class of
one's own elsewhere is named by its import path, `package.module:Class`. Plug-in modules import
torch inside their methods only, so that reading a sweep file stays cheap.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo

from .errors import SpecError


class Strict(BaseModel):
    """A frozen model that refuses unknown keys and does not coerce types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class Plugin(Strict):
    """Base of everything that a sweep file selects by name."""

    name: str

    kind: ClassVar[str]  # what sweep files call this kind: "mechanism", "adversary", ...
    home: ClassVar[str]  # the package that is searched for classes of this kind
    locations: ClassVar[frozenset[str]] = frozenset()  # fields that say where, not what

    def identity(self) -> dict[str, Any]:
        """The options that can change a result, nested plug-ins included, as plain JSON."""
        own = self.model_dump(mode="json", exclude=set(self.locations))
        nested = {
            key: value.identity()
            for key in type(self).model_fields
            if isinstance(value := getattr(self, key), Plugin)
        }
        return own | nested


P = TypeVar("P", bound=Plugin)


def parse(base: type[P], raw: Any, key: str) -> P:
    """Builds the plug-in that `raw` (a mapping with `name`) describes.

    Raises:
        SpecError: under `key`, when the name is unknown or an option is wrong.
    """
    if isinstance(raw, base):
        return raw
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise SpecError(key, f"must be a mapping with a name, got {raw!r}")
    cls = _find(base, raw["name"], f"{key}.name")
    try:
        return cls.model_validate(raw)
    except ValidationError as error:
        raise spec_error(error, key) from error
    except SpecError as error:
        raise error.under(key) from error


def nested(base: type[P]) -> BeforeValidator:
    """Annotation for a field that holds a plug-in of another kind."""

    def build(raw: Any, info: ValidationInfo) -> P:
        return parse(base, raw, str(info.field_name))

    return BeforeValidator(build)


def known(base: type[P]) -> dict[str, type[P]]:
    """Every class of this kind that lies in its home package, by name."""
    package = importlib.import_module(base.home)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{base.home}.{module.name}")
    return {
        str(cls.model_fields["name"].default): cls
        for cls in _subclasses(base)
        if cls.model_fields["name"].default and cls.__module__.startswith(base.home)
    }


def spec_error(error: ValidationError, prefix: str) -> SpecError:
    """The first problem of a pydantic error as one line with its full key."""
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    key = ".".join(part for part in (prefix, path) if part)
    if first["type"] == "extra_forbidden":
        return SpecError(key, "unknown key; see the sweep file section of the README")
    if first["type"] == "missing":
        return SpecError(key, "is required")
    message = first["msg"].removeprefix("Value error, ")
    given = first["input"]
    shown = "" if isinstance(given, dict | BaseModel) else f", got {given!r}"
    return SpecError(key, message[:1].lower() + message[1:] + shown)


def _find(base: type[P], name: str, key: str) -> type[P]:
    if ":" in name:
        return _imported(base, name, key)
    classes = known(base)
    if name not in classes:
        raise SpecError(key, f"unknown {base.kind} {name!r}; known: {', '.join(sorted(classes))}")
    return classes[name]


def _imported(base: type[P], name: str, key: str) -> type[P]:
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SpecError(key, f"cannot import {name!r} ({error}); is it on PYTHONPATH?") from error
    if not (isinstance(found, type) and issubclass(found, base)):
        raise SpecError(key, f"{name!r} is not a subclass of {base.__name__}")
    return found


def _subclasses(cls: type[P]) -> Iterator[type[P]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)
