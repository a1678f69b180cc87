"""YAML as users expect it: 1e-5 is a number, a repeated key is an error, nothing is executed.

A `Source` knows where in the text a mistake is written.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import SpecError, together
from ..storage import strangers

# YAML 1.1 reads 1e-5 as text; here reader and writer agree that it is a number.
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)


# Limits of what a file may stand for, since anybody may have written it: an alias is a few bytes
# long, and stands for all that it repeats. Ten letters count as a value.
MAX_VALUES = 100_000
MAX_DEPTH = 64  # lists and mappings inside each other
_LETTERS = 10


class _Loader(yaml.SafeLoader):
    """Notes repeated keys, of which YAML lets the last one win, and bounds what aliases repeat."""

    def __init__(self, text: str, source: str) -> None:
        super().__init__(text)
        self.name = source
        self.repeated: list[SpecError] = []
        self._values = self._depth = 0
        self._sizes: dict[int, int] = {}  # of nodes by their identity, in values

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """A node, counted with all that aliases in it stand for."""
        before = self._values
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"lists and mappings are nested deeper than {MAX_DEPTH} levels")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if id(node) in self._sizes:  # an alias
            self._values += self._sizes[id(node)]
        else:
            letters = len(node.value) if isinstance(node, yaml.ScalarNode) else 0
            self._values += 1 + letters // _LETTERS
            self._sizes[id(node)] = self._values - before
        if self._values > MAX_VALUES:
            self._refuse(
                f"it holds more than {MAX_VALUES:,} values, with those that aliases repeat; write "
                "fewer"
            )
        return node

    def _refuse(self, problem: str) -> None:
        mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        raise yaml.composer.ComposerError(None, None, problem, mark)


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
            loader.repeated.append(SpecError(key.value, problem, place=_position(key.start_mark)))
        seen.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_text(path: Path) -> str:
    """The text of a sweep file. Raises SpecError where it is missing, too large, or no text."""
    try:
        return strangers.content(str(path), strangers.SWEEP).decode()
    except (OSError, strangers.StrangeFileError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        reason = str(error) if isinstance(error, strangers.StrangeFileError) else reason
        raise SpecError(
            "", f"cannot read sweep file {path}: {reason}; give the path of a YAML file"
        ) from error


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """The mapping in YAML `text` of `source`. Raises SpecError for others, or a key twice."""
    try:
        strangers.require_size(len(text), strangers.SWEEP)
        raw = _load(text, source)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = _position(mark) if mark else source
        raise SpecError("", f"not valid YAML: {_problem(error)}", place=where) from error
    if not isinstance(raw, dict):
        raise SpecError("", f"{source} must hold a mapping with name, mechanism, adversary, audit")
    return raw


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


def dump_yaml(value: Mapping[str, Any], in_one_line: bool = False) -> str:
    """The inverse of `parse_yaml`; keys stay in order."""
    width = 10**6 if in_one_line else None
    return yaml.dump(
        dict(value), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=width,
        default_flow_style=in_one_line,
    )  # fmt: skip


def _problem(error: Exception) -> str:
    parts = [getattr(error, part, None) for part in ("context", "problem")]
    return ", ".join(part for part in parts if part) or str(error).partition("\n")[0]


@dataclasses.dataclass(frozen=True)
class Source:
    """A sweep file as it was read, and the keys that options have set since (`--set a.b=v`)."""

    name: str
    text: str
    options: tuple[str, ...] = ()

    def placed(self, error: SpecError) -> SpecError:
        """Returns the mistakes with the place of each, in the order of the file.

        Unknown keys come first all the same: the keys that were meant may be missing.
        """
        root = yaml.compose(self.text, Loader=yaml.SafeLoader)
        placed = [self._placed(problem, root) for problem in error.problems]
        return together(problem for _, problem in sorted(placed, key=lambda pair: pair[0]))

    def _placed(self, problem: SpecError, root: yaml.Node | None) -> tuple[int, SpecError]:
        """The offset in the text (-1: none), and the mistake with its place."""
        if problem.place or not problem.key:
            return (-1, problem)
        for key in self.options:
            if f"{problem.written}.".startswith(f"{key}."):
                beside = f"{problem.key}.".startswith(f"{key}.")
                path = problem.key if beside else f"{key}: {problem.key}"
                return (-1, problem.moved(key=f"--set {path}"))
        if root is None:
            return (-1, problem.moved(place=self.name))
        mark = _mark(problem, root)
        return (mark.index, problem.moved(place=_position(mark, self.name)))


def _position(mark: yaml.Mark, source: str | None = None) -> str:
    """`file:line:column`, both from 1, as editors and terminals understand it."""
    return f"{source or mark.name}:{mark.line + 1}:{mark.column + 1}"


def _mark(problem: SpecError, root: yaml.Node) -> yaml.Mark:
    """The position of a key, of its value if that is wrong, or of what should hold it."""
    rest, node, mark = problem.written, root, root.start_mark
    while rest and (entry := _entry(node, rest)) is not None:
        mark, node, rest = entry
        beside = node.start_mark.line == mark.line and problem.meant is None
        mark = node.start_mark if beside else mark
    return mark


def _entry(node: yaml.Node, path: str) -> tuple[yaml.Mark, yaml.Node, str] | None:
    """The first step of a path whose keys may be dotted: mark, value, and the rest of the path."""
    if isinstance(node, yaml.SequenceNode):
        index, _, rest = path.partition(".")
        if index.isdigit() and int(index) < len(node.value):
            return node.value[int(index)].start_mark, node.value[int(index)], rest
    if isinstance(node, yaml.MappingNode):
        scalars = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        fitting = [pair for pair in scalars if f"{path}.".startswith(f"{pair[0].value}.")]
        if fitting:
            key, value = max(fitting, key=lambda pair: len(pair[0].value))
            return key.start_mark, value, path[len(key.value) + 1 :]
    return None
