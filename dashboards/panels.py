"""Panels as Grafana stores them, from what they ask and what is good or bad of the answer."""

from __future__ import annotations

import dataclasses
from typing import Any

SOURCE = {"type": "prometheus", "uid": "${datasource}"}


@dataclasses.dataclass(frozen=True)
class Colours:
    """Colours by the value from which on they hold; `first` is that of all below."""

    first: str = "green"
    later: tuple[tuple[float, str], ...] = ()

    def build(self) -> dict[str, Any]:
        """The thresholds as Grafana stores them."""
        steps: list[dict[str, Any]] = [{"color": self.first, "value": None}]
        steps += [{"color": colour, "value": value} for value, colour in self.later]
        return {"mode": "absolute", "steps": steps}


PLAIN = Colours()
RED_FROM_1 = Colours(later=((1, "red"),))
RED_ABOVE_1 = Colours(later=((1.000001, "red"),))  # a step begins with its value
RED_BELOW_0 = Colours("red", ((0, "green"),))
RED_BELOW_1 = Colours("red", ((1, "green"),))
ORANGE_FROM_1 = Colours(later=((1, "orange"),))
VERDICTS = {"0": "not refuted", "1": "refuted"}


@dataclasses.dataclass(frozen=True)
class Panel:
    """One question and the expressions that answer it, by legend.

    Values that have words in `words` are shown as these.
    """

    title: str
    help: str
    targets: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    colours: Colours = PLAIN
    words: dict[str, str] = dataclasses.field(default_factory=dict)

    def build(self, place: dict[str, int]) -> dict[str, Any]:
        """The panel at its place, as Grafana stores it."""
        defaults: dict[str, Any] = {"unit": self.unit, "thresholds": self.colours.build()}
        defaults["mappings"] = _mappings(self.words)
        if self.colours is not RED_BELOW_0:
            defaults["min"] = 0
        elif self.kind == "timeseries":
            defaults["custom"] = {"thresholdsStyle": {"mode": "line+area"}}
        return _head(self, self.kind, place) | {
            "datasource": SOURCE,
            "fieldConfig": {"defaults": defaults, "overrides": []},
            "options": _options(self.kind, self.colours),
            "targets": [
                {"refId": chr(65 + i), "expr": expr, "legendFormat": legend}
                for i, (legend, expr) in enumerate(self.targets.items())
            ],
        }


@dataclasses.dataclass(frozen=True)
class Column:
    """A number of each audit, as it is now."""

    title: str
    expr: str
    unit: str = "short"
    colours: Colours = PLAIN
    words: dict[str, str] = dataclasses.field(default_factory=dict)

    def override(self) -> dict[str, Any]:
        """The options that set it apart from the other columns, as Grafana stores them."""
        kind = "auto" if self.colours is PLAIN else "color-background"
        properties = {
            "unit": self.unit,
            "thresholds": self.colours.build(),
            "custom.cellOptions": {"type": kind},
            "mappings": _mappings(self.words),
        }
        return {
            "matcher": {"id": "byName", "options": self.title},
            "properties": [{"id": key, "value": value} for key, value in properties.items()],
        }


@dataclasses.dataclass(frozen=True)
class Table:
    """A row per audit, the largest of the first column first."""

    title: str
    help: str
    columns: tuple[Column, ...]
    width: int = 24

    def build(self, place: dict[str, int]) -> dict[str, Any]:
        """The table as Grafana stores it: its values of one moment, merged by labels."""
        names = {f"Value #{chr(65 + i)}": column.title for i, column in enumerate(self.columns)}
        order = {name: i for i, name in enumerate(["sweep", "audit", *names])}
        organized = {"excludeByName": {"Time": True}, "indexByName": order, "renameByName": names}
        return _head(self, "table", place) | {
            "datasource": SOURCE,
            "fieldConfig": {"defaults": {}, "overrides": [c.override() for c in self.columns]},
            "options": {"sortBy": [{"displayName": self.columns[0].title, "desc": True}]},
            "targets": [
                {"refId": chr(65 + i), "expr": c.expr, "instant": True, "format": "table"}
                for i, c in enumerate(self.columns)
            ],
            "transformations": [
                {"id": "merge", "options": {}},
                {"id": "organize", "options": organized},
            ],
        }


@dataclasses.dataclass(frozen=True)
class Notes:
    """A text, in Markdown."""

    title: str
    help: str
    text: str
    width: int = 24

    def build(self, place: dict[str, int]) -> dict[str, Any]:
        """The text at its place, as Grafana stores it."""
        options = {"mode": "markdown", "content": self.text}
        return _head(self, "text", place) | {"options": options}


def _head(panel: Panel | Table | Notes, kind: str, place: dict[str, int]) -> dict[str, Any]:
    """What panels of all kinds have: a title with help, and a place of a width."""
    return {
        "type": kind,
        "title": panel.title,
        "description": panel.help,
        "gridPos": {**place, "w": panel.width, "h": 8},
    }


def _mappings(words: dict[str, str]) -> list[dict[str, Any]]:
    if not words:
        return []
    return [{"type": "value", "options": {value: {"text": text} for value, text in words.items()}}]


def _options(kind: str, colours: Colours) -> dict[str, Any]:
    if kind == "timeseries":
        return {"legend": {"displayMode": "list", "placement": "bottom"}}
    shown = {"reduceOptions": {"calcs": ["lastNotNull"]}, "orientation": "horizontal"}
    if kind == "stat":
        shown["colorMode"] = "value" if colours is PLAIN else "background"
    return shown
