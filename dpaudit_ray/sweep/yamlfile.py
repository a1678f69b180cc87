"""YAML as users expect it: 1e-5 is a number, a repeated key is an error, nothing is executed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import SpecError

# YAML 1.1 reads 1e-5 as text; here reader and writer agree that it is a number.
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


class _Loader(yaml.SafeLoader):
    """YAML 1.1 lets the last of two equal keys win; this one does not."""


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
            line = key.start_mark.line + 1
            raise SpecError(key.value, f"is given twice (again in line {line}); remove one of them")
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file.

    Raises:
        SpecError: the file is missing, is not YAML, or holds no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SpecError(
            "", f"cannot read sweep file {path}: {reason}; give the path of a YAML file"
        ) from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """The mapping in YAML `text`; `source` names it in errors."""
    try:
        raw = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError("", f"{source} is not valid YAML{_problem(error)}") from error
    if not isinstance(raw, dict):
        raise SpecError("", f"{source} must hold a mapping with name, mechanism, adversary, audit")
    return raw


def parse_value(text: str) -> Any:
    """A single value as it would be read from a sweep file (for `--set key=value`)."""
    try:
        return yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError("--set", f"{text!r} is not a YAML value{_problem(error)}") from error


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


def _problem(error: Exception) -> str:
    """Where and why, as far as the parser knows."""
    mark = getattr(error, "problem_mark", None)
    parts = [getattr(error, part, None) for part in ("context", "problem")]
    why = ", ".join(part for part in parts if part) or str(error).partition("\n")[0]
    return (f" at line {mark.line + 1}" if mark else "") + f": {why}"
