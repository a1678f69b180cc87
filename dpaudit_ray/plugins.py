"""Plug-ins: a method is one frozen pydantic model whose fields are its options in a sweep file.

A class is usable by its `name` when its module lies in the package of its kind; one elsewhere is
named by its import path, `package.module:Class`. Plug-in modules import torch inside their methods
only. Where a run is only read, an `Unread` stands for a class of somebody's own, with its options.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, TypeVar, cast, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo

from . import imports
from .errors import REQUIRED, SpecError, plain, suggestion, together, unknown_key, unknown_name


class Strict(BaseModel):
    """A frozen model that refuses unknown keys, NaN and inf, and does not coerce types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Plugin(Strict):
    """Base of everything that a sweep file selects by name."""

    model_config = ConfigDict(polymorphic_serialization=True)  # parts with options of their class
    name: str

    kind: ClassVar[str]  # what sweep files call this kind: "mechanism", "adversary", ...
    home: ClassVar[str]  # the package, or the module, that has the classes of this kind
    locations: ClassVar[frozenset[str]] = frozenset()  # fields that say where or how, not what
    is_variant: ClassVar[bool] = False  # of another class, which is the one that is named
    revision: ClassVar[int] = 1  # of what is computed; raised when the same options give other bits

    @classmethod
    def variant(cls, raw: Mapping[str, Any]) -> type[Plugin]:
        """The class to build from these options: this one, or a subclass that they decide for."""
        return cls

    @property
    def address(self) -> str:
        """The name of a class of this project, the import path of any other."""
        cls = type(self)
        return f"{cls.__module__}:{cls.__qualname__}" if is_users(self) else self.name

    def identity(self) -> dict[str, Any]:
        """The options that can change a result, nested plug-ins included, as plain JSON.

        Options at their default are left out, so that one which is added later changes no
        fingerprint; a default must never change its meaning. So is the first `revision`.
        """
        options = self.model_dump(mode="json", exclude=set(self.locations), exclude_defaults=True)
        nested = {
            key: value.identity()
            for key, field in type(self).model_fields.items()
            if isinstance(value := getattr(self, key), Plugin)
            and not (value == field.default and value.revision == 1)
        }
        revised = {"revision": self.revision} if self.revision > 1 else {}
        return options | nested | revised | {"name": self.address}

    def named_modules(self) -> tuple[str, ...]:
        """Modules that it takes from elsewhere than this project, without those of its parts."""
        return (type(self).__module__,) if is_users(self) else ()


class Unread:
    """A class that was not imported: what it computes is known from the run's record only."""


def not_imported(name: str) -> SpecError:
    """The error of whoever asks an `Unread` for what takes its code, `module:Class`."""
    module = name.partition(":")[0]
    return SpecError(name, f"was not imported, and this needs its code; --trust {module}")


def parts(plugin: Plugin) -> Iterator[Plugin]:
    """A plug-in and all that its options hold."""
    yield plugin
    for key in type(plugin).model_fields:
        if isinstance(value := getattr(plugin, key), Plugin):
            yield from parts(value)


def is_users(plugin: Plugin) -> bool:
    """Whether its class is the user's, of no module of this project."""
    return not f"{type(plugin).__module__}.".startswith(f"{__package__}.")


P = TypeVar("P", bound=Plugin)
S = TypeVar("S", bound=BaseModel)


def parse(base: type[P], raw: Any, key: str) -> P:
    """The plug-in that `raw`, a name or a mapping with `name`, describes; else SpecError."""
    if isinstance(raw, base):
        return raw
    if isinstance(raw, str):
        raw = {"name": raw}
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise SpecError(key, f"must be a name or a mapping with a name{got(raw)}")
    if ":" in raw["name"] and imports.is_data(raw["name"]):
        stand_in: type[P] = _stand_in(base)
        return validated(stand_in, raw, key)
    cls = _find(base, raw["name"], f"{key}.name")
    if ":" in raw["name"] and (name := _default_name(cls)) is not None:
        raw = raw | {"name": name}
    return validated(cast(type[P], cls.variant(raw)), raw, key)


def validated(model: type[S], raw: Any, key: str) -> S:
    """`raw` as a `model`; a SpecError under `key` when it is none."""
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise spec_error(error, key, raw, model) from error
    except SpecError as error:
        raise error.under(key) from error


def nested(base: type[P]) -> BeforeValidator:
    """Annotation for a field that holds a plug-in of another kind: named or by its options."""

    def plugin_from_raw(raw: Any, info: ValidationInfo) -> P:
        with carried():
            return parse(base, raw, str(info.field_name))

    return BeforeValidator(plugin_from_raw)


class _CarriedError(ValueError):
    """A SpecError on its way through pydantic, which goes on to look at the other fields."""


@contextlib.contextmanager
def carried() -> Iterator[None]:
    """Within a field's validator: a SpecError is told together with those of other fields."""
    try:
        yield
    except SpecError as error:
        raise _CarriedError(error) from error


def registry(base: type[P], module: str | None = None) -> dict[str, type[P]]:
    """Classes of this kind in its home package, by name; `module` alone is imported where given."""
    package = importlib.import_module(base.home)
    for info in pkgutil.iter_modules(getattr(package, "__path__", [])):  # one file has none
        if module in (None, info.name):
            importlib.import_module(f"{base.home}.{info.name}")
    return {
        name: cls
        for cls in _subclasses(base)
        if (name := _default_name(cls)) is not None
        and f"{cls.__module__}.".startswith(f"{cls.home}.")
        and not cls.is_variant
    }


_PROBLEMS = {
    "missing": REQUIRED,
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "dict_type": "must be a mapping",
    "model_type": "must be a mapping",
    "finite_number": "must be finite",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "must not be empty",
    "literal_error": "must be {expected}",
}


def spec_error(
    error: ValidationError, prefix: str, raw: Any, model: type[BaseModel] | None = None
) -> SpecError:
    """The problems of a pydantic error on `raw`, each one line with its full key."""
    by_path: dict[tuple[str, ...], list[SpecError]] = {}
    for item in error.errors(include_url=False):
        path = _path(item["loc"], raw)
        problems = _problems(cast(dict[str, Any], item), (prefix, *path), model)
        by_path.setdefault(path, problems)  # the first of what the parts of a union say
    return together(problem for problems in by_path.values() for problem in problems)


def _path(loc: tuple[int | str, ...], raw: Any) -> tuple[str, ...]:
    """The keys of a location, without pydantic's names for the parts of unions."""
    path: list[str] = []
    for part in loc:
        listed = isinstance(raw, list | tuple) and isinstance(part, int)
        if not listed and not isinstance(raw, dict):
            break
        path.append(str(part))
        raw = raw[part] if listed else raw.get(part)
    return tuple(path)


def _problems(
    item: dict[str, Any], path: tuple[str, ...], model: type[BaseModel] | None
) -> list[SpecError]:
    """One error of pydantic's, about an option of `model` at `path`, in this project's words."""
    kind, key = item["type"], ".".join(part for part in path if part)
    context = item.get("ctx", {})
    if isinstance(inner := context.get("error"), _CarriedError):
        inside = inner.args[0]
        return list((inside.under(path[0]) if path[0] else inside).problems)
    options = model.model_fields.items() if model and len(path) == 2 else ()
    fields = {field.alias or name: field for name, field in options}
    if kind == "extra_forbidden":
        return [unknown_key(key, list(fields))]
    if kind == "missing":
        listed = get_args(fields[path[-1]].annotation) if path[-1] in fields else ()
        words = " or ".join(word for word in listed if isinstance(word, str))
        return [SpecError(key, f"{REQUIRED}: {words}" if words else REQUIRED)]
    template = _PROBLEMS.get(kind.replace("parsing", "type"))  # a word of the command line
    limits = {name: plain(v) if isinstance(v, int | float) else v for name, v in context.items()}
    theirs = item["msg"].removeprefix("Value error, ")
    problem = template.format(**limits) if template else theirs
    problem += got(item["input"]) if f"'{item['input']}'" not in problem else ""
    if kind == "literal_error" and isinstance(item["input"], str):
        choices = re.findall("'([^']*)'", context["expected"])
        problem += suggestion(item["input"], choices).rstrip("; ")
    return [SpecError(key, problem)]


def got(value: Any) -> str:
    """The offending value for the end of a message; nothing where it would only be long."""
    shown = plain(value, "") if isinstance(value, float) else repr(value)
    return f", got {shown}" if len(shown) <= 80 else ""


def _find(base: type[P], name: str, key: str) -> type[P]:
    if ":" in name:
        return imports.subclass(base, name, key)
    # Most are in a module of their name: no other needs to be imported then.
    classes = registry(base, name.replace("-", "_"))
    if name not in classes:
        classes = registry(base)
    if name not in classes:
        raise SpecError(key, unknown_name(base.kind, name, classes))
    return classes[name]


@functools.cache
def _stand_in(base: Any) -> Any:
    """A class of this kind with any options, all of whose methods say that it was not imported."""

    def lacking(self: Plugin, *_: Any, **__: Any) -> Any:
        raise not_imported(self.name)

    content = {
        **dict.fromkeys(base.__abstractmethods__, lacking),
        "__module__": __name__,
        "__doc__": Unread.__doc__,
        "model_config": ConfigDict(extra="allow"),
        "address": property(lambda self: self.name),
    }
    return type(base)(f"Unread{base.__name__}", (Unread, base), content)


def _default_name(cls: type[Plugin]) -> str | None:
    """The default of the field `name`; None for bases, which have none."""
    default = cls.model_fields["name"].default
    return default if isinstance(default, str) else None


def _subclasses(cls: type[P]) -> Iterator[type[P]]:
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)
