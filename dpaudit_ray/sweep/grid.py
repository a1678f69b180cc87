"""A sweep as plain data: overrides, the grid unrolled, labels, paths; `spec` gives types."""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..errors import Mistakes, SpecError, suggestion
from ..plugins import got

SECTIONS = ("mechanism", "adversary", "audit")  # what a cell has, and so what a grid may change
MAX_AUDITS = 10_000  # of a sweep
LABEL_SEPARATOR = ", "  # between the parts of a label
_LOCATIONS = ("path", "root")
_PART = re.compile(r"(?s)(?:([^ =]+)=)?(.*)")  # of a label: `loss period=5` has no key


def plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    """A deep copy as YAML could have given it. Raises SpecError for what no YAML can hold."""

    def converted(value: Any) -> Any:
        return value.tolist() if hasattr(value, "tolist") else str(value)

    try:
        text = json.dumps(dict(raw), default=converted, ensure_ascii=False)
        return dict(json.loads(text.encode()))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError("", f"a sweep must be plain data, as in a YAML file ({error})") from error


def override(tree: dict[str, Any], changes: Mapping[str, Any]) -> None:
    """Sets values by dotted key; refuses those that the grid would set again."""
    for key, value in changes.items():
        section, _, rest = key.partition(".")
        # The keys of the grid are dotted themselves.
        path = [section, rest] if section == "grid" and rest else key.split(".")
        _put(tree, path, key, value)
    for key in changes:
        for changed in checked(tree):
            if any(f"{key}.".startswith(f"{part}.") for part in _parts(changed)):
                raise SpecError(key, f"is set by the grid in every audit; set grid.{changed}")


def cells(tree: Mapping[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The sections of every cell, and a label that tells it from the others.

    Keys joined by commas change together: `mechanism.steps, adversary.period: [[250, 1], ...]`.
    """
    grid = checked(tree)
    for chosen in itertools.product(*grid.values()):
        cell = copy.deepcopy({section: tree.get(section) for section in SECTIONS})
        labels: dict[str, str] = {}
        for (key, rows), value in zip(grid.items(), chosen, strict=True):
            parts = _parts(key)
            changes = dict(zip(parts, [value] if len(parts) == 1 else value, strict=True))
            for part, changed in changes.items():
                _put(cell, part.split("."), f"grid.{part}", copy.deepcopy(changed))
            labels |= {part: _label(part, changes[part]) for part in _distinguishing(parts, rows)}
        yield cell, LABEL_SEPARATOR.join(labels.values())


def keys(tree: Mapping[str, Any]) -> list[str]:
    """The dotted keys that the grid sets."""
    return [part for key in checked(tree) for part in _parts(key)]


def checked(tree: Mapping[str, Any]) -> dict[str, list[Any]]:
    """The grid, which can be unrolled; raises SpecError with all that is wrong."""
    grid, mistakes = tree.get("grid") or {}, Mistakes()
    if not isinstance(grid, dict):
        raise SpecError("grid", f"must map dotted keys to lists of values{got(grid)}")
    for key, values in grid.items():
        with mistakes.noted():
            _check_entry(key, values)
    mistakes.settle()
    audits = math.prod(map(len, grid.values()))
    if audits > MAX_AUDITS:
        raise SpecError(
            "grid", f"gives {audits:,} audits, more than {MAX_AUDITS:,}; make several sweeps"
        )
    return grid


def _check_entry(key: str, values: Any) -> None:
    parts = _parts(key)
    for section, *below in (part.split(".") for part in parts):
        if section not in SECTIONS:
            meant = suggestion(section, SECTIONS).rstrip("; ")
            raise SpecError(f"grid.{key}", f"must start with one of {', '.join(SECTIONS)}{meant}")
        if not all(below):
            raise SpecError(f"grid.{key}", "has an empty part; write section.option")
    if not isinstance(values, list) or not values:
        raise SpecError(f"grid.{key}", f"must be a list of at least one value{got(values)}")
    for value in values if len(parts) > 1 else ():
        if not isinstance(value, list) or len(value) != len(parts):
            raise SpecError(f"grid.{key}", f"must list {len(parts)} values each{got(value)}")


def shared_parts(labels: Sequence[str]) -> tuple[str, list[str]]:
    """The parts that all labels have, and each label without them; a lone label stays whole."""
    parts = [label.split(LABEL_SEPARATOR) for label in labels]
    if len(parts) < 2:
        return "", list(labels)
    shared = [part for part in parts[0] if all(part in other for other in parts)]
    rest = [LABEL_SEPARATOR.join(p for p in label if p not in shared) for label in parts]
    return LABEL_SEPARATOR.join(shared), rest


def shorten_labels(labels: Sequence[str]) -> tuple[str, list[str]]:
    """A legend, and each label, in order, without the parts that the legend has.

    The legend says what all labels share, "all: SHARED", and where they have the same keys in one
    order, these, "audit: KEY, KEY". Where a label would become empty, labels stay as they are.
    """
    shared, rest = shared_parts(labels)
    if not all(rest):
        return "", list(labels)
    legend = [f"all: {shared}"] if shared else []
    pairs = [[_PART.findall(part)[0] for part in label.split(LABEL_SEPARATOR)] for label in rest]
    keys = {tuple(key for key, _ in label) for label in pairs}
    if len(labels) > 1 and len(keys) == 1 and any(names := keys.pop()):
        legend.insert(0, f"audit: {LABEL_SEPARATOR.join(name or 'name' for name in names)}")
        rest = [LABEL_SEPARATOR.join(value for _, value in label) for label in pairs]
    return "; ".join(legend), rest


def located(node: Any, folders: Sequence[Path], key: str = "") -> Any:
    """`node` with relative paths made absolute in the first folder that has such a file."""
    if isinstance(node, dict):
        return {k: located(v, folders, k.rpartition(".")[2]) for k, v in node.items()}
    if isinstance(node, list):
        return [located(item, folders, key) for item in node]
    if isinstance(node, str) and node and key in _LOCATIONS:
        # Functions of os.path raise for no path: of an unknown user, too long, forbidden, with \0.
        places = (folder / os.path.expanduser(node) for folder in folders)
        return next((str(place.resolve()) for place in places if os.path.exists(place)), node)
    return node


def locations(node: Any, key: str = "") -> Iterator[str]:
    """Yields the paths in a sweep, which `located` has made absolute where they exist."""
    if isinstance(node, dict):
        for name, value in node.items():
            yield from locations(value, name.rpartition(".")[2])
    elif isinstance(node, list):
        for item in node:
            yield from locations(item, key)
    elif isinstance(node, str) and key in _LOCATIONS:
        yield node


def _parts(key: str) -> list[str]:
    return [part.strip() for part in key.split(",")]


def _distinguishing(parts: list[str], rows: list[Any]) -> list[str]:
    """Keys for a label: those of `audit` only where the others do not tell the rows apart."""
    indices = [i for i, part in enumerate(parts) if not part.startswith("audit.")]
    if len(parts) == 1 or not indices:
        return parts
    values = {repr([row[i] for i in indices]) for row in rows}
    return [parts[i] for i in indices] if len(values) == len(rows) else parts


def _label(key: str, value: Any) -> str:
    if isinstance(value, str) and key in SECTIONS:
        return value
    if isinstance(value, dict):
        rest = [f"{k}={v}" for k, v in value.items() if k != "name"]
        return " ".join([str(value.get("name", "")), *rest]).strip()
    return f"{key.rpartition('.')[2]}={value}"


def _put(tree: dict[str, Any], path: list[str], key: str, value: Any) -> None:
    """Sets a value; `key` names it in errors."""
    if not all(path):
        raise SpecError(key, "has an empty part; write section.option")
    node = tree
    for parent in path[:-1]:
        if node.get(parent) is None:
            node[parent] = {}
        node = node[parent]
        if not isinstance(node, dict):
            raise SpecError(key, f"{parent} is {node!r}, no mapping that could hold {path[-1]}")
    node[path[-1]] = value
