"""Plug-ins: a method is one frozen pydantic model whose fields are its options in a sweep file.

A class is usable by its `name` when its module lies in the package of its kind; one elsewhere is
named by its import path, `package.module:Class`. Plug-in modules import torch inside their methods
only. If a run is only read, an `Unread` stands for a class of the user's, with its options.
"""

import contextlib
import functools
import importlib
import itertools
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, TypeVar, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
)

from . import imports
from .errors import REQUIRED, SpecError, plain, suggestion, together, unknown_key, unknown_name


def _may_be_imported(path: str, info: ValidationInfo) -> str:
    """Returns an import path. Raises SpecError under its key if it may not be imported."""
    return imports.require_importable(path, str(info.field_name))


# An option that names an object of a module, as `package.module:name`.
ImportPath = Annotated[str, Field(pattern=r"^[\w.]+:[\w.]+$"), AfterValidator(_may_be_imported)]


class Strict(BaseModel):
    """A frozen model that refuses unknown keys, NaN and inf, and does not coerce types."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Plugin(Strict):
    """Base of everything that a sweep file selects by name."""

    model_config = ConfigDict(polymorphic_serialization=True)  # parts with options of their class
    name: str

    kind: ClassVar[str]  # in sweep files: "mechanism", "adversary", ...
    home: ClassVar[str]  # the package, or the module, that has the classes of this kind
    # Fields that change where or how something is computed, but not the result.
    locations: ClassVar[frozenset[str]] = frozenset()
    is_variant: ClassVar[bool] = False  # whether `variant` of another class chooses this one
    revision: ClassVar[int] = 1  # is raised if the same options give other results than before

    @classmethod
    def variant(cls, raw: Mapping[str, Any]) -> "type[Plugin]":
        """Returns the class to build from these options: this one, or a subclass for them."""
        return cls

    @property
    def address(self) -> str:
        """The name of a class of this project, the import path of any other."""
        cls = type(self)
        return f"{cls.__module__}:{cls.__qualname__}" if is_users(self) else self.name

    def identity(self) -> dict[str, Any]:
        """Returns the options that can change a result, nested plug-ins included, as plain JSON.

        Options at their default are left out, so that one which is added later changes no
        fingerprint; a default must never change its meaning. A `revision` of 1 is left out, too.
        """
        options = self.model_dump(mode="json", exclude=set(self.locations), exclude_defaults=True)
        for key, field in type(self).model_fields.items():
            value = getattr(self, key)
            if isinstance(value, Plugin) and (value != field.default or value.revision > 1):
                options[key] = value.identity()
        if self.revision > 1:
            options["revision"] = self.revision
        options["name"] = self.address
        return options

    @property
    def code_paths(self) -> tuple[str, ...]:
        """`module:name` of the functions and classes that its options name."""
        return ()

    def named_modules(self) -> tuple[str, ...]:
        """Returns modules outside this project that it needs, without those of its parts."""
        of_class = (type(self).__module__,) if is_users(self) else ()
        return (*of_class, *dict.fromkeys(path.partition(":")[0] for path in self.code_paths))


class Unread:
    """A class that was not imported: its results are known from the run's record only."""


def not_imported(name: str) -> SpecError:
    """Returns the error of a method of an `Unread`, `module:Class`, that needs its code."""
    module = name.partition(":")[0]
    return SpecError(name, f"was not imported, and this needs its code; --trust {module}")


def parts(plugin: Plugin) -> Iterator[Plugin]:
    """Yields a plug-in and all those in its options."""
    yield plugin
    for key in type(plugin).model_fields:
        value = getattr(plugin, key)
        if isinstance(value, Plugin):
            yield from parts(value)


def is_users(plugin: Plugin) -> bool:
    """Returns whether the class of a plug-in is in no module of this project."""
    return not f"{type(plugin).__module__}.".startswith(f"{__package__}.")


# Types of options, with the limits that errors and `dpaudit list` state.
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
OpenShare = Annotated[float, Field(gt=0, lt=1)]

P = TypeVar("P", bound=Plugin)
S = TypeVar("S", bound=BaseModel)


def parse(
    base: type[P],
    raw: Any,
    key: str,
) -> P:
    """Returns the plug-in that an entry of a sweep file describes.

    Args:
        base: the class of its kind.
        raw: a name, or a mapping with `name`; a plug-in is returned as it is.
        key: key in the sweep file, for errors.

    Raises:
        SpecError: there is no such plug-in, or it does not take these options.
    """
    if isinstance(raw, base):
        return raw
    raw = options_with_name(raw, key)
    path = raw["name"]
    if imports.stays_unimported(path):
        stand_in: type[P] = _stand_in(base)
        return validated(stand_in, raw, key)
    cls = _find(base, path, f"{key}.name")
    default_name = _default_name(cls)
    if ":" in path and default_name is not None:
        raw = raw | {"name": default_name}
    return validated(cast(type[P], cls.variant(raw)), raw, key)


def options_with_name(raw: Any, key: str) -> dict[str, Any]:
    """Returns a name, or a mapping with `name`, as a mapping. Raises SpecError under `key`."""
    if isinstance(raw, str):
        return {"name": raw}
    if not isinstance(raw, dict) or not isinstance(raw.get("name"), str):
        raise SpecError(key, f"must be a name or a mapping with a name{offending_value(raw)}")
    return raw


def validated(
    model: type[S],
    raw: Any,
    key: str,
) -> S:
    """Returns options as an object of a model.

    Args:
        model: class of the object.
        raw: the options as plain data.
        key: key of the options in the sweep file, for errors; may be "".

    Raises:
        SpecError: the options are not valid.
    """
    try:
        return model.model_validate(raw)
    except ValidationError as error:
        raise spec_error(error, key, raw, model) from error
    except SpecError as error:
        raise error.under(key) from error


def nested(base: type[P]) -> BeforeValidator:
    """Returns an annotation for a field that holds a plug-in: named or by its options."""

    def plugin_from_raw(raw: Any, info: ValidationInfo) -> P:
        """Returns the plug-in that the field names. Raises SpecError under the field's name."""
        with reported_with_other_fields():
            return parse(base, raw, str(info.field_name))

    return BeforeValidator(plugin_from_raw)


class _CarriedError(ValueError):
    """A SpecError on its way through pydantic, which continues with the other fields."""


@contextlib.contextmanager
def reported_with_other_fields() -> Iterator[None]:
    """Has a SpecError in a field's validator reported together with those of other fields."""
    try:
        yield
    except SpecError as error:
        raise _CarriedError(error) from error


def registry(
    base: type[P],
    module: str | None = None,
) -> dict[str, type[P]]:
    """Returns the classes of this kind in its home package, by name.

    Args:
        base: the class of the kind.
        module: the only module of the package to import; None: all of them.
    """
    package = importlib.import_module(base.home)
    folders = getattr(package, "__path__", [])  # none if the home is a single module
    for info in pkgutil.iter_modules(folders):
        if module in (None, info.name):
            importlib.import_module(f"{base.home}.{info.name}")
    classes = {}
    for cls in _subclasses(base):
        name = _default_name(cls)  # None for bases of several classes
        is_at_home = f"{cls.__module__}.".startswith(f"{cls.home}.")
        if name is not None and is_at_home and not cls.is_variant:
            classes[name] = cls
    return classes


_PROBLEMS = {
    "missing": REQUIRED,
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "list_type": "must be a list",
    "tuple_type": "must be a list",
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
    error: ValidationError,
    prefix: str,
    raw: Any,
    model: type[BaseModel] | None = None,
) -> SpecError:
    """Translates a pydantic error into one line for each problem, with its full key.

    Args:
        error: error of pydantic.
        prefix: key of the options in the sweep file.
        raw: the options.
        model: class of the options, whose fields are suggested for unknown keys.
    """
    by_path: dict[tuple[str, ...], list[SpecError]] = {}
    for item in error.errors(include_url=False):
        path = _path(item["loc"], raw)
        problems = _problems(item, (prefix, *path), model)
        by_path.setdefault(path, problems)  # a union has an error for each of its types
    return together(itertools.chain.from_iterable(by_path.values()))


def _path(
    loc: tuple[int | str, ...],
    raw: Any,
) -> tuple[str, ...]:
    """Returns the keys of a location, without pydantic's names for the parts of unions."""
    path = []
    for part in loc:
        is_index = isinstance(raw, list | tuple) and isinstance(part, int)
        if not is_index and not isinstance(raw, dict):
            break
        path.append(str(part))
        raw = raw[part] if is_index else raw.get(part)
    return tuple(path)


def _problems(
    item: Any,
    path: tuple[str, ...],
    model: type[BaseModel] | None,
) -> list[SpecError]:
    """Translates one error of pydantic's about an option of `model` at `path`.

    Args:
        item: an error, as pydantic lists it.
        path: keys that lead to the option.
        model: class of the option's fields, for unknown and missing ones; None if it is not known.
    """
    kind = item["type"]
    key = ".".join(filter(None, path))
    context = item.get("ctx", {})
    cause = context.get("error")
    if isinstance(cause, _CarriedError):
        carried_error = cause.args[0]
        return list((carried_error.under(path[0]) if path[0] else carried_error).problems)
    # The path has the key of the options, and an option of `model` itself; deeper, it has others.
    options = model.model_fields.items() if model and len(path) == 2 else ()
    fields = {field.alias or name: field for name, field in options}
    if kind == "extra_forbidden":
        return [unknown_key(key, list(fields))]
    if kind == "missing":
        choices = get_args(fields[path[-1]].annotation) if path[-1] in fields else ()
        in_words = " or ".join(choice for choice in choices if isinstance(choice, str))
        return [SpecError(key, f"{REQUIRED}: {in_words}" if in_words else REQUIRED)]
    value = item["input"]
    template = _PROBLEMS.get(kind.replace("parsing", "type"))  # a word of a command line is parsed
    problem = item["msg"].removeprefix("Value error, ")
    if template:
        limits = {
            name: plain(limit) if isinstance(limit, int | float) else limit
            for name, limit in context.items()
        }
        problem = template.format(**limits)
    names_value = f"'{value}'" in problem or ", got " in problem
    if not names_value:
        problem += offending_value(value)
    if kind == "literal_error" and isinstance(value, str):
        expected = re.findall("'([^']*)'", context["expected"])
        problem += suggestion(value, expected).rstrip("; ")
    return [SpecError(key, problem)]


def offending_value(value: Any) -> str:
    """Returns the offending value for the end of a message, unless it is long."""
    text = plain(value, "") if isinstance(value, float) else repr(value)
    return f", got {text}" if len(text) <= 80 else ""


def _find(
    base: type[P],
    name: str,
    key: str,
) -> type[P]:
    """Returns the class that `name` names. Raises SpecError under `key` for an unknown name.

    Args:
        base: kind of the class.
        name: name of a plug-in, or `package.module:Class`.
        key: key of the option that has the name.
    """
    if ":" in name:
        return imports.subclass(base, name, key)
    # Most classes are in a module of their name, so the other modules need not be imported.
    classes = registry(base, name.replace("-", "_"))
    if name not in classes:
        classes = registry(base)
    if name not in classes:
        raise SpecError(key, unknown_name(base.kind, name, classes))
    return classes[name]


@functools.cache
def _stand_in(base: Any) -> Any:
    """Makes a class of this kind with any options, whose methods raise `not_imported`."""

    def refuse(self: Plugin, *_: Any, **__: Any) -> Any:
        """Takes the place of every abstract method."""
        raise not_imported(self.name)

    content = {
        **dict.fromkeys(base.__abstractmethods__, refuse),
        "__module__": __name__,
        "__doc__": Unread.__doc__,
        "model_config": ConfigDict(extra="allow"),
        "address": property(lambda self: self.name),
    }
    return type(base)(f"Unread{base.__name__}", (Unread, base), content)


def _default_name(cls: type[Plugin]) -> str | None:
    """Returns the default of the field `name`; None for bases, which have none."""
    default = cls.model_fields["name"].default
    return default if isinstance(default, str) else None


def _subclasses(cls: type[P]) -> Iterator[type[P]]:
    """Yields all subclasses of a class, each followed by its own."""
    for child in cls.__subclasses__():
        yield child
        yield from _subclasses(child)
