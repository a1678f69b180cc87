"""YAML as users expect it: 1e-5 is a number, a repeated key is an error, nothing is executed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from .errors import SpecError


class _Loader(yaml.SafeLoader):
    """YAML 1.1 reads 1e-5 as text and lets the last of two equal keys win; this one does not."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise SpecError(str(key), f"is given twice (line {node.start_mark.line + 1})")
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
        raise SpecError("", f"cannot read sweep file {path}: {reason}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """The mapping in YAML `text`; `source` names it in errors."""
    try:
        raw = yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark else ""
        raise SpecError("", f"{source} is not valid YAML{where}: {_problem(error)}") from error
    if not isinstance(raw, dict):
        raise SpecError("", f"{source} must hold a mapping with name, mechanism, adversary, audit")
    return raw


def parse_value(text: str) -> Any:
    """A single value as it would be read from a sweep file (for `--set key=value`)."""
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        raise SpecError("--set", f"{text!r} is not a YAML value") from error


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error).splitlines()[0]
