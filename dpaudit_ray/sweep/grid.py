"""Changes a sweep while it is plain data: overrides, unrolled grid, labels, absolute paths."""

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
from ..plugins import offending_value

SECTIONS = ("mechanism", "adversary", "audit")  # parts of a cell, which a grid may change
MAX_AUDITS = 10_000  # of a sweep
LABEL_SEPARATOR = ", "  # between the parts of a label
_LOCATIONS = ("path", "root")
_PART = re.compile(r"(?s)(?:([^ =]+)=)?(.*)")  # part of a label: `loss period=5` has no key


def plain(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a deep copy of plain data. Raises SpecError for values that no YAML can hold."""

    def converted(value: Any) -> Any:
        """Returns an array or number of NumPy as plain data, and anything else as text."""
        return value.tolist() if hasattr(value, "tolist") else str(value)

    try:
        text = json.dumps(dict(raw), default=converted, ensure_ascii=False)
        return dict(json.loads(text.encode()))
    except (TypeError, ValueError, RecursionError) as error:
        raise SpecError("", f"a sweep must be plain data, as in a YAML file ({error})") from error


def override(
    tree: dict[str, Any],
    changes: Mapping[str, Any],
) -> None:
    """Sets values by dotted key. Raises SpecError for keys that the grid would set again."""
    for key, value in changes.items():
        most_dots = 1 if key.startswith("grid.") else -1  # keys of the grid are dotted themselves
        _put(tree, key.split(".", most_dots), key, value)
    for key in changes:
        for grid_key in checked(tree):
            if any(f"{key}.".startswith(f"{part}.") for part in _parts(grid_key)):
                raise SpecError(key, f"is set by the grid in every audit; set grid.{grid_key}")


def cells(
    tree: Mapping[str, Any],
) -> Iterator[tuple[dict[str, Any], str]]:
    """Yields the sections of every cell, and its label, which no other cell has.

    Keys joined by commas change together: `mechanism.steps, adversary.period: [[250, 1], ...]`.
    """
    grid = checked(tree)
    for values in itertools.product(*grid.values()):
        cell = copy.deepcopy({section: tree.get(section) for section in SECTIONS})
        labels = {}
        for (key, rows), row in zip(grid.items(), values, strict=True):
            parts = _parts(key)
            in_label = _distinguishing(parts, rows)
            row = [row] if len(parts) == 1 else row
            for part, value in zip(parts, row, strict=True):
                _put(cell, part.split("."), f"grid.{part}", copy.deepcopy(value))
                if part in in_label:
                    labels[part] = _label(part, value)
        yield cell, LABEL_SEPARATOR.join(labels.values())


def keys(tree: Mapping[str, Any]) -> list[str]:
    """Returns the dotted keys that the grid sets."""
    return list(itertools.chain.from_iterable(map(_parts, checked(tree))))


def checked(
    tree: Mapping[str, Any],
) -> dict[str, list[Any]]:
    """Returns the grid, if it can be unrolled. Raises SpecError with all mistakes."""
    grid = tree.get("grid") or {}
    mistakes = Mistakes()
    if not isinstance(grid, dict):
        raise SpecError("grid", f"must map dotted keys to lists of values{offending_value(grid)}")
    for key, values in grid.items():
        with mistakes.noted():
            _check_entry(key, values)
    mistakes.raise_if_any()
    audits = math.prod(map(len, grid.values()))
    if audits > MAX_AUDITS:
        raise SpecError(
            "grid", f"gives {audits:,} audits, more than {MAX_AUDITS:,}; make several sweeps"
        )
    return grid


def _check_entry(key: str, values: Any) -> None:
    """Raises SpecError for an entry of the grid whose key or values cannot be unrolled."""
    parts = _parts(key)
    for section, *below in (part.split(".") for part in parts):
        if section not in SECTIONS:
            meant = suggestion(section, SECTIONS).rstrip("; ")
            raise SpecError(f"grid.{key}", f"must start with one of {', '.join(SECTIONS)}{meant}")
        if not all(below):
            raise SpecError(f"grid.{key}", "has an empty part; write section.option")
    if not isinstance(values, list) or not values:
        raise SpecError(
            f"grid.{key}", f"must be a list of at least one value{offending_value(values)}"
        )
    for value in values if len(parts) > 1 else ():
        if not isinstance(value, list) or len(value) != len(parts):
            raise SpecError(
                f"grid.{key}", f"must list {len(parts)} values each{offending_value(value)}"
            )


def shared_parts(
    labels: Sequence[str],
) -> tuple[str, list[str]]:
    """Splits the parts that all labels have from the others; a single label stays as it is.

    Returns:
        The shared parts as one label, and each label without them.
    """
    if len(labels) < 2:
        return "", list(labels)
    parts = [label.split(LABEL_SEPARATOR) for label in labels]
    shared = parts[0]
    for label in parts:
        shared = [part for part in shared if part in label]
    shorter = []
    for label in parts:
        shorter.append(LABEL_SEPARATOR.join(part for part in label if part not in shared))
    return LABEL_SEPARATOR.join(shared), shorter


def shorten_labels(
    labels: Sequence[str],
) -> tuple[str, list[str]]:
    """Moves parts that labels share to a legend.

    The legend has the parts that all labels share, "all: SHARED". If the other parts have the same
    keys in the same order, it has these, too, "audit: KEY, KEY", and labels have the values alone.
    If a label would become empty, all labels stay as they are.

    Returns:
        The legend, and each label, in order, without the parts that the legend has.
    """
    shared, shorter = shared_parts(labels)
    if not all(shorter):
        return "", list(labels)
    legend = [f"all: {shared}"] if shared else []
    keys = set()
    values = []
    for label in shorter:
        pairs = [_PART.findall(part)[0] for part in label.split(LABEL_SEPARATOR)]
        keys.add(tuple(key for key, _ in pairs))
        values.append(LABEL_SEPARATOR.join(value for _, value in pairs))
    if len(labels) > 1 and len(keys) == 1:
        names = keys.pop()
        if any(names):
            legend.insert(0, f"audit: {LABEL_SEPARATOR.join(name or 'name' for name in names)}")
            shorter = values
    return "; ".join(legend), shorter


def located(
    node: Any,
    folders: Sequence[Path],
    key: str = "",
) -> Any:
    """Makes relative paths absolute in the first folder that has such a file.

    Args:
        node: a sweep as plain data, or a part of it.
        folders: where files are looked up, in this order.
        key: the key whose value is `node`.

    Returns:
        A copy of `node`.
    """
    if isinstance(node, dict):
        return {
            name: located(value, folders, name.rpartition(".")[2]) for name, value in node.items()
        }
    if isinstance(node, list):
        return [located(item, folders, key) for item in node]
    if isinstance(node, str) and node and key in _LOCATIONS:
        # Functions of os.path raise for no path: of an unknown user, too long, forbidden, with \0.
        for folder in folders:
            path = folder / os.path.expanduser(node)
            if os.path.exists(path):
                return str(path.resolve())
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
    """Returns the dotted keys that a key of the grid joins by commas."""
    return [part.strip() for part in key.split(",")]


def _distinguishing(
    parts: list[str],
    rows: list[Any],
) -> list[str]:
    """Returns the keys that a label names: keys of `audit` only if others are equal in some rows.

    Args:
        parts: keys that change together.
        rows: values of the keys, a list for each point if there are several keys.
    """
    not_of_audit = [part for part in parts if not part.startswith("audit.")]
    if len(parts) == 1 or not not_of_audit:
        return parts
    values = set()
    for row in rows:
        by_key = dict(zip(parts, row, strict=True))
        values.add(repr([by_key[part] for part in not_of_audit]))
    return not_of_audit if len(values) == len(rows) else parts


def _label(key: str, value: Any) -> str:
    """Returns the part of a label that names a value of a key of the grid."""
    if isinstance(value, str) and key in SECTIONS:
        return value
    if isinstance(value, dict):
        words = [str(value.get("name", ""))]
        words += [f"{name}={option}" for name, option in value.items() if name != "name"]
        return " ".join(words).strip()
    return f"{key.rpartition('.')[2]}={value}"


def _put(
    tree: dict[str, Any],
    path: list[str],
    key: str,
    value: Any,
) -> None:
    """Sets the value at a path; `key` is its name in errors.

    Args:
        tree: nested mappings, changed in place.
        path: keys from the root.
        key: name of the value in errors.
        value: the value to set.
    """
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
