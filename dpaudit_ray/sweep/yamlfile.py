"""Reads and writes YAML: 1e-5 is a number, a repeated key is an error, nothing is executed."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from ..errors import SpecError, first_line
from ..storage import strangers
from ..storage.files import reason

# YAML 1.1 reads 1e-5 as text; here reader and writer agree that it is a number.
_FLOAT = (
    "tag:yaml.org,2002:float",
    re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"),
    list("-+0123456789."),
)
# Limits of a file that anyone may have written: an alias is a few bytes long, and stands for all
# that it repeats. Ten letters count as a value.
MAX_VALUES = 100_000
MAX_DEPTH = 64  # lists and mappings inside each other
_LETTERS = 10
MAX_DIGITS = 400  # characters of a number; the largest float has 309 digits
_TABLES = (".csv", ".tsv", ".npz")
_TAG = "tag:yaml.org,2002:"
_NUMBERS = (f"{_TAG}int", f"{_TAG}float")


class _Loader(yaml.SafeLoader):
    """Bounds aliases and numbers, and refuses a repeated key, where YAML keeps its last value."""

    def __init__(self, text: str, source: str) -> None:
        """Takes a file's text, and its name for messages."""
        super().__init__(text)
        self.name = source
        self._values = self._depth = 0
        self._sizes: dict[int, int] = {}  # sizes in values, by the identity of a node

    def compose_node(
        self,
        parent: yaml.Node | None,
        index: Any,
    ) -> yaml.Node | None:
        """Composes a node, and counts its values.

        A scalar counts as one value, plus one for every ten letters; an alias as all that it
        repeats.
        """
        values_before = self._values
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
            self._sizes[id(node)] = self._values - values_before
        if self._values > MAX_VALUES:
            self._refuse(
                f"it holds more than {MAX_VALUES:,} values, with those that aliases repeat; write "
                "fewer"
            )
        return node

    def resolve(
        self,
        kind: type[yaml.Node],
        value: Any,
        implicit: Any,
    ) -> str:
        """Returns a node's tag; 1:30 is text as in YAML 1.2, and not a number in base 60."""
        tag: str = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        if tag in _NUMBERS and kind is yaml.ScalarNode and ":" in value:
            return f"{_TAG}str"
        return tag

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Constructs a value; a value that its tag does not allow is an error with its place."""
        if node.tag in _NUMBERS and len(node.value) > MAX_DIGITS:
            raise _unusable(
                node, f"a number has {len(node.value):,} characters; write at most {MAX_DIGITS}"
            )
        try:
            return super().construct_object(node, deep)
        except (yaml.YAMLError, RecursionError, MemoryError):
            raise
        except Exception as error:  # PyYAML passes on anything that a conversion raises
            raise _unusable(
                node,
                f"{node.value!r:.40} cannot be read as {node.tag.removeprefix(_TAG)} "
                f"({first_line(error)})",
            ) from error

    def _refuse(self, problem: str) -> None:
        """Raises an error about the place in the file that is being read."""
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        raise yaml.composer.ComposerError(None, None, problem, mark)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a number."""


_Loader.add_implicit_resolver(*_FLOAT)
_Dumper.add_implicit_resolver(*_FLOAT)


def _unusable(node: yaml.Node, problem: str) -> yaml.YAMLError:
    """Returns the error about a node, with its place in the file."""
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


def _mapping(
    loader: _Loader,
    node: yaml.MappingNode,
) -> dict[Any, Any]:
    """Constructs a mapping; a repeated key is an error."""
    keys = set()
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode):
            if key.value in keys:
                raise _unusable(key, f"{key.value} is given twice; remove one of them")
            keys.add(key.value)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


def read_text(path: Path) -> str:
    """Returns the text of a sweep file. Raises SpecError if it cannot be read."""
    if path.suffix in _TABLES:
        raise SpecError(
            "",
            f"{path} is a table and no sweep file; `dpaudit init --data-path {path}` writes one "
            "for it",
        )
    try:
        return strangers.content(str(path), strangers.SWEEP).decode()
    except (OSError, ValueError) as error:
        why = reason(error)
        remedy = "give the path of a YAML file"
        inside = path / "sweep.yaml"  # a run directory has it
        if inside.is_file():
            remedy = f"give {inside}"
        elif isinstance(error, UnicodeDecodeError):
            why = "not UTF-8 text"
            remedy += ", or save it as UTF-8"
        raise SpecError("", f"cannot read sweep file {path}: {why}; {remedy}") from error


def parse_yaml(text: str, source: str) -> dict[str, Any]:
    """Reads a sweep file.

    Args:
        text: content of the file.
        source: path of the file, for messages.

    Raises:
        SpecError: the file is not YAML, or not a mapping, or has a key twice.
    """
    if source.endswith(".py"):
        raise SpecError("", f"{source} is a script: `dpaudit audit {source}:FUNCTION` audits it")
    try:
        strangers.require_at_most(len(text), strangers.SWEEP)
        raw = _load(text, source)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{mark.name}:{mark.line + 1}:{mark.column + 1}" if mark else source
        raise SpecError("", f"{where}: not valid YAML: {_problem(error)}") from error
    if raw is None:
        raise SpecError("", f"{source} is empty; `dpaudit init` writes a sweep file to begin with")
    if not isinstance(raw, dict):
        raise SpecError("", f"{source} must hold a mapping with name, mechanism, adversary, audit")
    return raw


def parse_changes(changes: Sequence[str] | None) -> dict[str, Any]:
    """Returns values by dotted key, from `--set key=value` options."""
    parsed = {}
    for change in changes or ():
        key, equals, value = change.partition("=")
        if not equals or not key:
            raise SpecError("--set", f"takes key=value, got {change!r}")
        parsed[key] = parse_value(value)
    return parsed


def parse_value(text: str) -> Any:
    """Reads a single value as in a sweep file (for `--set key=value`)."""
    try:
        return _load(text, "--set")
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise SpecError("--set", f"{text!r} is not a YAML value: {_problem(error)}") from error


def dump_yaml(
    value: Mapping[str, Any],
    in_one_line: bool = False,
) -> str:
    """Writes a mapping as YAML that `parse_yaml` reads; keys stay in order."""
    return yaml.dump(
        dict(value),
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        width=10**6 if in_one_line else None,
        default_flow_style=in_one_line,
    )


def _load(text: str, source: str) -> Any:
    """Parses one YAML document; `source` names it in errors."""
    loader = _Loader(text, source)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _problem(error: Exception) -> str:
    """Returns what the parser found wrong, and what to check."""
    parts = [getattr(error, part, None) for part in ("context", "problem")]
    problem = ", ".join(filter(None, parts))
    if not problem:
        problem = str(error).partition("\n")[0]
    return f"{problem}; check brackets, quotes and indentation"
