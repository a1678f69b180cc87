"""Numbers of a page of many audits, from which the browser draws the figures of a chosen one.

A figure for each of 500 audits would take minutes to draw and megabytes to store. So a page of more
than FEW audits begins with a map of all of them, and draws the figures of one when it is chosen.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import markupsafe
import numpy as np
import pandas as pd

from ..plan.model import PlannedAudit
from ..sweep.cell import Cell
from .charts import rounded, spaced
from .figures.whole_run import step_bounds
from .measures import HitRate
from .tables import Run, with_options
from .verdict import AuditAnswer, measured
from .words import OTHER_CURVE_MARK

FEW = 40  # audits: with more, their figures are not drawn beforehand
_BINS = 24  # bins of a histogram of scores
_STEPS = 40  # points of a line over steps
_PANELS = 12  # maps side by side
_ACROSS = 25  # cells of a row if fewer than two keys vary


@dataclass(frozen=True)
class Varied:
    """A key of the grid: its name, and the text of its value by audit."""

    name: str
    values: tuple[str, ...]


@dataclass(frozen=True)
class AuditMap:
    """A map of all audits: a panel for each value of further keys, a cell for each audit.

    Attributes:
        across: name of the key from left to right, empty if cells are in the order of audits.
        down: name of the key from top to bottom, or empty.
        columns: values of `across`.
        rows: values of `down`.
        panels: titles of the panels, with the (audit, column, row) of their cells.
        left_out: panels that are not shown.
    """

    across: str
    down: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    panels: tuple[tuple[str, tuple[tuple[int, int, int], ...]], ...]
    left_out: int


def varied_keys(run: Run) -> tuple[Varied, ...]:
    """Returns the options of the grid that differ between audits, in the order of the table."""
    named = [{"audit": audit.id, "label": audit.label} for audit in run.plan.audits]
    audits = pd.DataFrame(named)
    options = with_options(run, audits).drop(columns=["audit", "label"])
    keys = []
    for name in options.columns:
        values = tuple(map(_text, options[name]))
        if len(set(values)) > 1:
            keys.append(Varied(str(name), values))
    return tuple(keys)


def audit_map(keys: Sequence[Varied], audits: int) -> AuditMap:
    """Places audits by the two keys that have the most values; other keys make panels.

    Args:
        keys: options that differ between audits.
        audits: number of audits.
    """
    by_size = sorted(keys, key=lambda key: -len(set(key.values)))
    if len(by_size) < 2:  # audits by their number, in rows of _ACROSS
        columns_by_audit = tuple(str(audit % _ACROSS) for audit in range(audits))
        rows_by_audit = tuple(str(audit // _ACROSS) for audit in range(audits))
        by_size = [Varied("", columns_by_audit), Varied("", rows_by_audit)]
    across, down, *panel_keys = by_size
    columns = tuple(dict.fromkeys(across.values))
    rows = tuple(dict.fromkeys(down.values))
    panels = dict[str, list[tuple[int, int, int]]]()
    for audit in range(audits):
        title = ", ".join(f"{short(key.name)}={key.values[audit]}" for key in panel_keys)
        column = columns.index(across.values[audit])
        row = rows.index(down.values[audit])
        panels.setdefault(title, []).append((audit, column, row))
    visible = list(panels.items())[:_PANELS]
    return AuditMap(
        across=short(across.name),
        down=short(down.name),
        columns=columns,
        rows=rows,
        panels=tuple((title, tuple(cells)) for title, cells in visible),
        left_out=len(panels) - len(visible),
    )


def short(key: str) -> str:
    """Returns a dotted key without its first part."""
    return key.partition(".")[2] or key


def numbers(
    run: Run,
    index: int,
    answer: AuditAnswer,
) -> dict[str, Any]:
    """Returns the numbers of an audit that the browser draws, as plain JSON without NaN.

    Args:
        run: the run.
        index: number of the audit.
        answer: verdict on the run.
    """
    audit, cell = run.pairs[index]
    quote = answer.quote
    share = math.nan
    if quote.epsilon is not None and 0 < quote.claim < math.inf:
        share = quote.epsilon / quote.claim
    content: dict[str, Any] = {
        "id": audit.id,
        "label": audit.label,
        "verdict": str(answer.verdict),
        "reason": answer.reason,
        "epsilon": measured(quote),
        "ratio": rounded(share),
    }
    bounds = step_bounds(run, audit).set_index("step")["bound"]
    claims = audit.claims[audit.accountant]
    positions = spaced(len(audit.horizons), _STEPS)
    if len(positions) > 1:
        steps = [audit.horizons[position] for position in positions]
        content["steps"] = steps
        content["bounds"] = [rounded(bounds.get(step, math.nan)) for step in steps]
        content["claims"] = [rounded(claims[position]) for position in positions]
    content["estimates"] = []
    for row in run.last_rows(audit).values():
        mark = OTHER_CURVE_MARK if row["assumes_other_curve"] else ""
        values = rounded(row["mu_lower"]), rounded(row["epsilon_lower"])
        content["estimates"].append([row["estimator"], *values, mark])
    if cell.sampled:
        content |= _scores(run, audit, cell)
    return content


def page_json(content: Any) -> markupsafe.Markup:
    """Returns JSON that may stand in a page: nothing in it ends a script or opens a tag."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return markupsafe.Markup(text)


def _scores(
    run: Run,
    audit: PlannedAudit,
    cell: Cell,
) -> dict[str, Any]:
    """Returns histograms of the last step's scores, and the rate of correct guesses.

    Args:
        run: the run.
        audit: the audit in the plan.
        cell: the audit in the sweep.

    Returns:
        "hits" with the number of guesses and rates in percent, and "scores" with both ends and
        counts without and with the canary; either is left out if it is not defined.
    """
    trials = run.trials(audit)
    content: dict[str, Any] = {}
    if audit.independent and len(trials.members):
        hits = HitRate.from_trials(trials, cell.audit.confidence)
        if hits is not None:
            rates = (hits.rate, hits.low, hits.high)
            percentages = [round(100 * rate, 2) for rate in rates]
            content["hits"] = [hits.guesses, *percentages]
    scored = trials.scored
    last = scored.scores[:, -1] if len(scored.members) else np.empty(0)
    finite = np.isfinite(last)
    if finite.any():
        with np.errstate(over="ignore", invalid="ignore"):
            low, high = last[finite].min(), last[finite].max()
            edges = np.linspace(low, high, _BINS + 1)
        if np.isfinite(edges).all() and edges[0] < edges[-1]:
            outside, _ = np.histogram(last[finite & ~scored.members], edges)
            inside, _ = np.histogram(last[finite & scored.members], edges)
            ends = [rounded(edges[0]), rounded(edges[-1])]
            content["scores"] = [ends, outside.tolist(), inside.tolist()]
    return content


def _text(value: Any) -> str:
    """Returns an option as text: 3 for 3.0, to which tables turn a 3 if some audits have none."""
    if isinstance(value, float):
        return "–" if math.isnan(value) else f"{value:.12g}"
    return str(value)
