"""The text of a sweep file, which knows where its mistakes are written."""

from __future__ import annotations

import dataclasses

import yaml

from ..errors import SpecError, UnknownKeyError, together
from . import yamlfile


@dataclasses.dataclass(frozen=True)
class Source:
    """A sweep file as it was read, and the keys that options have set since (`--set a.b=v`)."""

    name: str
    text: str
    options: tuple[str, ...] = ()

    def placed(self, error: SpecError) -> SpecError:
        """The same mistakes with the place of each, in the order of the file.

        Unknown keys come first all the same: what they were meant to be may be missing.
        """
        root = yamlfile.nodes(self.text)
        found = [self._placed(problem, root) for problem in error.problems]
        return together(one for _, one in sorted(found, key=lambda pair: pair[0]))

    def _placed(self, problem: SpecError, root: yaml.Node | None) -> tuple[int, SpecError]:
        """With its offset in the text."""
        if problem.place or not problem.key:
            return (-1, problem)
        for key in self.options:
            if f"{problem.written}.".startswith(f"{key}."):
                beside = f"{problem.key}.".startswith(f"{key}.")
                said = problem.key if beside else f"{key}: {problem.key}"
                return (-1, problem.moved(key=f"--set {said}"))
        mark = _mark(problem, root)
        if mark is None:
            return (-1, problem.moved(place=self.name))
        return (mark.index, problem.moved(place=yamlfile.place(mark, self.name)))


def _mark(problem: SpecError, root: yaml.Node | None) -> yaml.Mark | None:
    """Where a key is written, its value if that is what is wrong, or what should hold it."""
    if root is None:
        return None
    rest, node, mark = problem.written, root, root.start_mark
    while rest:
        entry = _entry(node, rest)
        if entry is None:
            break
        mark, node, rest = entry
        beside = node.start_mark.line == mark.line and not isinstance(problem, UnknownKeyError)
        mark = node.start_mark if beside else mark
    return mark


def _entry(node: yaml.Node, rest: str) -> tuple[yaml.Mark, yaml.Node, str] | None:
    """The first step of the path `rest`, whose keys may be dotted: mark, value, what is left."""
    if isinstance(node, yaml.SequenceNode):
        index, _, left = rest.partition(".")
        if index.isdigit() and int(index) < len(node.value):
            return node.value[int(index)].start_mark, node.value[int(index)], left
    if isinstance(node, yaml.MappingNode):
        named = [(key, value) for key, value in node.value if isinstance(key, yaml.ScalarNode)]
        fits = [pair for pair in named if f"{rest}.".startswith(f"{pair[0].value}.")]
        if fits:
            key, value = max(fits, key=lambda pair: len(pair[0].value))
            return key.start_mark, value, rest[len(key.value) + 1 :]
    return None
