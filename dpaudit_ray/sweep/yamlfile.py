"""YAML as users expect it: 1e-5 is a number, a repeated key is an error, nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import SpecError, together

# YAML 1.1 reads 1e-5 as text; here reader and writer agree that it is a number.
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 lets the last of two equal keys win; this one notes them."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.name = source
        self.repeated: list[SpecError] = []


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a number."""


_Loader.add_implicit_resolver(*_FLOAT)
_Dumper.add_implicit_resolver(*_FLOAT)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[str] = set()
    for key, _ in node.value:
        if not isinstance(key, yaml.ScalarNode):
            continue
        if key.value in seen:
            problem = "is given twice; remove one of them"
            loader.repeated.append(SpecError(key.value, problem, place=place(key.start_mark)))
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_text(path: Path) -> str:
    """The text of a sweep file.

    Raises:
        SpecError: the file is missing, or is no text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SpecError(
            "", f"cannot read sweep file {path}: {reason}; give the path of a YAML file"
        ) from error


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """The mapping in YAML `text`; `source` names it in errors.

    Raises:
        SpecError: it is not YAML, holds no mapping, or a key twice.
    """
    try:
        raw = _load(text, source)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise _invalid(error, source) from error
    if not isinstance(raw, dict):
        raise SpecError("", f"{source} must hold a mapping with name, mechanism, adversary, audit")
    return raw


def nodes(text: str) -> yaml.Node | None:
    """The tree of what `parse_yaml` has read, with the place of every entry."""
    return yaml.compose(text, Loader=yaml.SafeLoader)


def place(mark: yaml.Mark, source: str | None = None) -> str:
    """`file:line:column`, both from 1, as editors and terminals understand it."""
    return f"{source or mark.name}:{mark.line + 1}:{mark.column + 1}"


def parse_value(text: str) -> Any:
    """A single value as it would be read from a sweep file (for `--set key=value`)."""
    try:
        return _load(text, "--set")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError("--set", f"{text!r} is not a YAML value: {_problem(error)}") from error


def _load(text: str, source: str) -> Any:
    loader = _Loader(text, source)
    try:
        raw = loader.get_single_data()
    finally:
        loader.dispose()
    if loader.repeated:
        raise together(loader.repeated)
    return raw


def parse_changes(changes: Sequence[str] | None) -> dict[str, Any]:
    """Values by dotted key, from `--set key=value` options."""
    parsed = {}
    for change in changes or ():
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise SpecError("--set", f"takes key=value, got {change!r}")
        parsed[key] = parse_value(value)
    return parsed


def dump_yaml(value: Mapping[str, Any]) -> str:
    """The inverse of `parse_yaml`; keys stay in order."""
    return yaml.dump(dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True)


def _invalid(error: Exception, source: str) -> SpecError:
    """Where and why, as far as the parser knows."""
    mark = getattr(error, "problem_mark", None)
    where = place(mark) if mark else source
    return SpecError("", f"not valid YAML: {_problem(error)}", place=where)


def _problem(error: Exception) -> str:
    parts = [getattr(error, part, None) for part in ("context", "problem")]
    return ", ".join(part for part in parts if part) or str(error).partition("\n")[0]
