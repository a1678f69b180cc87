"""What the live view shows of a sweep: a picture that fits the terminal, however many audits."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from rich.cells import cell_len
from rich.style import Style
from rich.text import Text

from ..orchestration.progress import AuditProgress, Progress
from ..printable import printable
from ..sweep.labels import briefly
from .figures import ALARM, duration, marked, middle, speed

_HEADS = ("audit", "trials", "ε ≥ (any time)", "status", "claim")
_SHORT_HEADS = ("audit", "trials", "ε ≥", "status", "claim")
_NARROW = 100  # columns, below which labels need them more
_LEFT = (0, 3)  # columns of text
_APART = "  "
_FEWEST = 12  # columns that a label is left
_FIGURES = 54  # columns of all that is beside it, at most


@dataclasses.dataclass(frozen=True)
class View:
    """A moment of a sweep: a snapshot, once there is one, and what is known beside it.

    `phase` is what goes on instead of training, for `since` seconds; empty while packs end. `rate`
    is in trials per second, `left` in seconds; NaN while unknown.
    """

    progress: Progress | None
    phase: str
    since: float
    rate: float
    left: float

    @property
    def pace(self) -> str:
        """Speed and remaining time, or what goes on instead."""
        if self.phase:
            return f"{self.phase}, {duration(self.since)}"
        if self.progress is not None and not self.progress.left:
            return "no more to run"
        return f"{speed(self.rate)} trials/s, ETA {duration(self.left)}"


class State(enum.IntEnum):
    """How far an audit is, in the order in which audits are shown."""

    RUNNING = enum.auto()
    STOPPED = enum.auto()  # given up
    WAITING = enum.auto()
    DONE = enum.auto()


_WORDS = {
    State.DONE: "done",
    State.RUNNING: "running",
    State.WAITING: "waiting",
    State.STOPPED: "given up",
}
_NO_BOUND = {
    State.RUNNING: "runs",
    State.STOPPED: "given up",
    State.WAITING: "waits",
    State.DONE: "–",
}


def frame(view: View, width: int, height: int) -> Text:
    """The picture, of less than `height` lines."""
    if view.progress is None:
        return _lines([Text(f"{view.pace} ...")], width)
    progress = view.progress
    lines = [_totals(progress, _APART + view.pace)]
    # Two thirds of the screen at most: what was said before stays in sight.
    rows = min(max(height * 2 // 3, 8) - 4, height - 5)
    if rows > 0:
        legend, labels = _labels(progress, width)
        if legend:
            lines.append(Text(middle(legend, width), style="dim"))
        shown, rest = list(range(len(labels))), []
        if len(labels) > rows:
            shown.sort(key=lambda index: _urgency(progress, index))
            shown, rest = shown[:rows], shown[rows:]
        lines += _table(progress, labels, shown, width)
        if rest:
            lines.append(Text(f"+{len(rest)} more: {_counted(progress, rest)}", style="dim"))
    return _lines(lines, width)


def last(progress: Progress, seconds: float) -> Text:
    """What stays on the screen: a sentence, since tables follow."""
    audits = list(range(len(progress.audits)))
    went_on = (State.RUNNING, State.WAITING)
    counted = _counted(progress, audits, dict.fromkeys(went_on, "not finished"))
    took = "" if progress.activity.pack_seconds is None else f" in {duration(seconds)}"
    return _totals(progress, f"{took}; {len(audits)} audit{'s' * (len(audits) != 1)}: {counted}")


def line(view: View) -> str:
    """The same for a log: one line, with the first audit that is under way."""
    progress = view.progress
    if progress is None or not progress.audits:
        return view.pace
    said = f"{progress.done}/{progress.trials} trials, {_brief(view)}"
    current = min(range(len(progress.audits)), key=lambda index: (state(progress, index), index))
    audit = progress.audits[current]
    if audit.waits:
        return (
            f"{said}; {audit.label}: waits for its preparation, "
            f"{audit.parts_done} of {audit.parts} parts done"
        )
    return (
        f"{said}; {audit.label}: {audit.done}/{audit.trials}, "
        f"eps >= {'! ' * audit.above}{audit.epsilon_lower:.2f} ({audit.status}, any time), "
        f"claim {audit.claim:.2f}"
    )


def state(progress: Progress, index: int) -> State:
    """Of the audit with this number."""
    audit, activity = progress.audits[index], progress.activity
    failed = activity.failed.get(index, 0)
    if audit.decided is not None or audit.done + failed >= audit.trials:
        return State.DONE
    if index in activity.running:
        return State.RUNNING
    if index in activity.over:
        return State.STOPPED
    return State.WAITING


def _brief(view: View) -> str:
    if view.phase:
        return view.phase
    return f"{speed(view.rate)}/s, ETA {duration(view.left)}"


def _urgency(progress: Progress, index: int) -> tuple[int, bool, int]:
    """Running ones first; a bound above its claim is not to be overlooked among those at rest."""
    where, above = state(progress, index), progress.audits[index].above
    return (State.STOPPED if above and where > State.STOPPED else where, not above, index)


def _counted(
    progress: Progress, audits: list[int], others: Mapping[State, str] = MappingProxyType({})
) -> str:
    """How many are how far; `others` are words for the end."""
    words = {**_WORDS, **others}
    counts = Counter(words[state(progress, index)] for index in audits)
    said = [f"{counts[word]} {word}" for word in dict.fromkeys(words.values()) if counts[word]]
    above = sum(progress.audits[index].above for index in audits)
    return ", ".join([*said, *([f"{above} above its claim (!)"] if above else [])])


def _labels(progress: Progress, width: int) -> tuple[str, list[str]]:
    """As they are where there is room; else what they share is said once, above them."""
    whole = [printable(audit.label) for audit in progress.audits]
    if max(map(cell_len, whole), default=0) + _FIGURES <= width:
        return "", whole
    return briefly(whole)


def _totals(progress: Progress, more: str) -> Text:
    failed = sum(progress.activity.failed.values())
    text = Text(f"{progress.done:,} / {progress.trials:,} trials", style="bold")
    if failed:
        text.append(f", {failed:,} failed", style=ALARM)
    return text.append(more, style=Style(bold=False))


def _table(progress: Progress, labels: list[str], shown: list[int], width: int) -> list[Text]:
    cells = [_cells(progress, index, labels[index]) for index in shown]
    heads = _SHORT_HEADS if width < _NARROW else _HEADS
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    room = width - sum(widths[1:]) - len(_APART) * (len(widths) - 1)
    widths[0] = max(_FEWEST, min(widths[0], room))
    lines = [Text(_row(heads, widths), style="underline")]
    for index, row in zip(shown, cells, strict=True):
        above = progress.audits[index].above
        quiet = state(progress, index) in (State.WAITING, State.DONE)
        text = _row((middle(row[0], widths[0]), *row[1:]), widths)
        lines.append(Text(text, style=ALARM if above else "dim" * quiet))
    return lines


def _row(cells: tuple[str, ...], widths: list[int]) -> str:
    padded = []
    for place, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        space = " " * (width - cell_len(cell))
        padded.append(cell + space if place in _LEFT else space + cell)
    return _APART.join(padded).rstrip()


def _cells(progress: Progress, index: int, label: str) -> tuple[str, ...]:
    audit = progress.audits[index]
    done = f"{audit.done:,} / {audit.trials:,}"
    if audit.waits:
        done = f"prepared {audit.parts_done:,} / {audit.parts:,}"
    elif audit.decided is not None:
        done = f"{audit.done:,} enough"
    bound, status = _bound(audit, state(progress, index))
    return label, done, bound, status, f"{audit.claim:.2f}"


def _bound(audit: AuditProgress, where: State) -> tuple[str, str]:
    """Of no trial there is none."""
    if not audit.done or math.isnan(audit.epsilon_lower):
        return "–", _NO_BOUND[where]
    return marked(f"{audit.epsilon_lower:.2f}", audit.above), str(audit.status)


def _lines(lines: list[Text], width: int) -> Text:
    for each in lines:
        each.truncate(width, overflow="ellipsis")
    joined = Text("\n", no_wrap=True, overflow="crop").join(lines)
    joined.no_wrap, joined.overflow = True, "crop"
    return joined
