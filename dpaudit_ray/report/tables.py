"""The numbers of a run as tables: every estimate, and one line per audit."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from .. import plan as planning
from .. import stats
from ..mechanisms.base import Mechanism
from ..plan import claims, outcomes, record
from ..plan.finished_trials import FinishedTrials
from ..plan.model import Plan, PlannedAudit
from ..plan.score_stream import ConsumedPack, Trials
from ..plugins import registry
from ..stats import Status
from ..storage.place import OPENING
from ..storage.run_directory import RunDirectory
from ..storage.scores import UTILITY
from ..sweep import grid
from ..sweep.cell import Cell
from ..sweep.spec import Sweep
from .measures import utilities

Row = dict[Any, Any]  # a row of `Run.table`: values by column
EXACT = "exact"  # the estimator of an audit without trials that certifies something


@dataclass(frozen=True)
class Run:
    """A run directory opened for reading."""

    directory: RunDirectory
    sweep: Sweep
    plan: Plan
    estimates: pd.DataFrame

    @classmethod
    def open(cls, location: str) -> Run:
        """Opens a run. Raises RunDirectoryError if there is no readable one at `location`."""
        directory = RunDirectory(location, OPENING)
        sweep, plan = planning.read(directory)
        estimates = directory.estimates(record.most_estimates(sweep, plan))
        # A mechanism that was not imported may have the estimators of any of this package, from
        # which it may derive.
        mechanisms = {*registry(Mechanism).values()}
        names = set[str]()
        for cell in sweep.cells:
            mechanisms.add(type(cell.mechanism))
            names.update(spec.name for spec in cell.audit.estimators)
        for mechanism in mechanisms:
            names.update(mechanism.exact_estimators)
        record.check_estimates(estimates, plan, directory, names)
        return cls(directory, sweep, plan, estimates)

    @property
    def pairs(self) -> list[tuple[PlannedAudit, Cell]]:
        """All audits, as they are planned and as the sweep file states them."""
        return list(zip(self.plan.audits, self.sweep.cells, strict=True))

    def done(self, audit: PlannedAudit) -> int:
        """Returns the number of finished trials of an audit."""
        return FinishedTrials(self.directory, self.plan, self.numbers[audit.id]).stored_trials

    def finished_prefix(self, audit: PlannedAudit) -> Iterator[ConsumedPack]:
        """Yields the packs of trials that the audit's estimates rest on."""
        index = self.numbers[audit.id]
        return outcomes.finished_trials(self.directory, self.sweep, self.plan, index).packs()

    def trials(self, audit: PlannedAudit) -> Trials:
        """Reads all trials that the audit's estimates rest on."""
        return Trials.joined(audit, self.finished_prefix(audit))

    def has_bound_above_claim(self, audit: PlannedAudit) -> bool:
        """Returns whether a bound of the audit that holds with all others exceeds its claim."""
        return bool(self.rows(audit)["above_claim"].any())

    def rows(self, audit: PlannedAudit) -> pd.DataFrame:
        """Returns the rows of an audit in `table`."""
        return self.table.take(self._positions.get(audit.id, []))

    def last_rows(self, audit: PlannedAudit) -> dict[str, Row]:
        """Returns an audit's last step with the claim of the first accountant, by estimator."""
        return self._last_rows.get(audit.id, {})

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each audit in the plan, by its id."""
        return {audit.id: number for number, audit in enumerate(self.plan.audits)}

    @cached_property
    def _last_rows(self) -> dict[Any, dict[str, Row]]:
        """`last_rows` of all audits, by id: one pass over the table for all of them."""
        table = self.table
        steps = {audit.id: audit.horizons[-1] for audit in self.plan.audits}
        accountants = {audit.id: audit.accountant for audit in self.plan.audits}
        at_last_step = table["step"] == table["audit"].map(steps)
        by_first_accountant = table["accountant"] == table["audit"].map(accountants)
        chosen = table[at_last_step & by_first_accountant]
        last_rows = dict[Any, dict[str, Row]]()
        for row in chosen.to_dict("records"):
            last_rows.setdefault(row["audit"], {})[row["estimator"]] = row
        return last_rows

    @cached_property
    def anytime(self) -> set[str]:
        """Estimators whose bounds hold before all trials are finished."""
        names = {name for name, method in stats.estimators().items() if method.interim_valid}
        for cell in self.sweep.cells:
            for spec in cell.audit.estimators:
                if not spec.unimported and spec.method.interim_valid:
                    names.add(spec.name)
        return names

    @cached_property
    def _positions(self) -> dict[Any, Any]:
        """Positions of an audit's rows in `table`, by its id."""
        return self.table.groupby("audit").indices

    @cached_property
    def table(self) -> pd.DataFrame:
        """All rows of estimates.parquet, with the audit's label and marks of the bound.

        A bound for a fixed number of trials is `interim` until the first declared number is
        finished: it does not hold for a reader who stops when it suits. `above_claim` marks bounds
        that contradict their claim; in at most 1 - confidence of sweeps, a true claim is marked.
        `assumes_other_curve` marks an ε that was converted from μ by a Gaussian curve, which the
        claim or its mechanism is not known to have: above the claim, it refutes nothing.
        """
        labels = {audit.id: audit.label for audit in self.plan.audits}
        first_declared = {audit.id: audit.looks[0] for audit in self.plan.audits}
        table = self.estimates.copy()
        table.insert(1, "label", table["audit"].map(labels))
        is_partial = table["trials"] < table["audit"].map(first_declared).astype("int64")
        table["interim"] = is_partial & ~table["estimator"].isin(self.anytime)
        is_gaussian = _claim_is_gaussian(self, table)
        converted = table["mu_lower"].notna() & ~table["status"].isin(_NOT_BY_GAUSSIAN)
        table["assumes_other_curve"] = converted & ~is_gaussian
        table["above_claim"] = _above_claim(table, is_gaussian)
        return table

    @cached_property
    def complete(self) -> bool:
        """Whether the run is marked as complete, and no trial or part is missing."""
        return outcomes.complete(self.directory, self.plan, self.decided)

    @cached_property
    def decided(self) -> dict[int, int]:
        """Trials that were enough, by number of the audits that `stop_when` has ended."""
        return outcomes.decided(self.directory, self.sweep, self.plan)


def bounds(run: Run) -> pd.DataFrame:
    """Returns `Run.table`, a row for each audit, step and estimator, with options and claims.

    A column `claim_NAME` has the claims by that accountant; `epsilon_upper` is the first one's.
    """
    key = ["audit", "step", "estimator"]
    above = run.table.groupby(key)["above_claim"].transform("any")
    table = run.table.assign(above_claim=above)
    claimed = table.set_index([*key, "accountant"])["epsilon_upper"].unstack()
    by_accountant = claimed.add_prefix("claim_").reset_index()
    rows = table.drop_duplicates(key).merge(by_accountant, on=key, how="left")
    return with_options(run, rows)


def with_options(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """Returns a table with the options that the grid sets behind its `audit` and `label`.

    It gets a column for each option, such as `mechanism.noise_multiplier`, and always for the names
    of mechanism and adversary. A value is NaN if an audit has no such option. Lists are text.
    """
    cells = run.sweep.cells
    stated = pd.json_normalize([cell.identity() for cell in cells])  # without defaults
    complete = pd.json_normalize([cell.model_dump(mode="json") for cell in cells])
    options = stated.combine_first(complete)
    options = options.map(lambda value: str(value) if isinstance(value, list) else value)
    # Options that are stated or vary are shown if the grid sets them, or an option above them.
    candidates = {*stated, *options.columns[options.nunique() > 1]}
    keys = {"mechanism.name", "adversary.name", *grid.keys(run.sweep.raw)}
    prefixes = tuple(f"{key}." for key in keys)
    visible = sorted(name for name in candidates if f"{name}.".startswith(prefixes))
    options["audit"] = [audit.id for audit in run.plan.audits]
    merged = table.merge(options[["audit", *visible]], on="audit")
    first = ["audit", "label", *visible]
    return merged[[*first, *merged.columns.drop(first)]]


# An ε with such a status was not converted by a Gaussian curve, or the curve is known to be one.
_NOT_BY_GAUSSIAN = (Status.CERTIFIED, Status.IF_CLAIMED, Status.IF_ASSUMED)


def _claim_is_gaussian(
    run: Run,
    table: pd.DataFrame,
) -> pd.Series[bool]:
    """Returns whether each row's claim is Gaussian (`claims.is_gaussian`), bool [rows]."""
    gaussian = {}
    for audit, cell in run.pairs:
        for accountant in audit.claims:
            gaussian[audit.id, accountant] = claims.is_gaussian(cell, accountant)
    keys = zip(table["audit"], table["accountant"], strict=True)
    values = [gaussian[key] for key in keys]
    return pd.Series(values, table.index, bool)


def _above_claim(
    table: pd.DataFrame,
    is_gaussian: pd.Series[bool],
) -> pd.Series[bool]:
    """Compares bounds on trials with claims, at the sweep's split level.

    Three kinds of ε above the claim refute it. A certified ε does. So does an ε that assumes a
    Gaussian curve, if the claim is that of Gaussian noise (`claims.is_gaussian`): what is certified
    is μ, and it is above the claim's. So does an ε that was converted by the claim's own curves,
    unless the accountant is user-defined: what is certified is the hit rate, and it refutes the
    claimed noise, and any larger noise.

    Args:
        table: rows of `estimates.parquet`.
        is_gaussian: whether the claim of each row is Gaussian, bool [rows].

    Returns:
        Whether each bound refutes its claim, bool [rows].
    """
    certified = table["status"] == Status.CERTIFIED
    by_mu = (table["status"] == Status.IF_GAUSSIAN) & is_gaussian
    user_defined = table["accountant"].str.contains(":")
    by_family = (table["status"] == Status.IF_CLAIMED) & ~user_defined
    above = table["epsilon_lower_together"] > table["epsilon_upper"]
    return (certified | by_mu | by_family) & above & (table["trials"] > 0)


def may_exceed_claim(row: Row, refuted: bool = False) -> bool:
    """Returns whether a row's ε may be shown above the claim.

    A bound that assumes a Gaussian curve refutes no claim with another curve.

    Args:
        row: one of `Run.last_rows`.
        refuted: whether the test of the whole claim refutes it.
    """
    return bool(row["above_claim"] or (refuted and not row["assumes_other_curve"]))


def assumption_free(
    rows: Mapping[str, Row],
    row: Row,
) -> Row | None:
    """Returns a row with the assumption-free bound that belongs to `row`; None without one.

    If the estimator of that bound has a row, that row is returned. Otherwise it is `row` with the
    bound exchanged. This bound holds for its audit alone, and not for all simultaneously.

    Args:
        rows: the audit's rows, `Run.last_rows`.
        row: one of these rows.
    """
    name = str(row["free_estimator"])
    if name in rows:
        listed = rows[name]
        return None if math.isnan(listed["epsilon_lower_together"]) else listed
    if not name or math.isnan(row["epsilon_lower_free"]):
        return None
    return row | {
        "epsilon_lower": row["epsilon_lower_free"],
        "epsilon_lower_together": math.nan,
        "estimator": name,
        "status": Status.CERTIFIED.value,
        "mu_lower": math.nan,
        "assumes_other_curve": False,
    }


def best(run: Run) -> Row | None:
    """Returns the row with the largest certified ε that holds simultaneously with all others."""
    certified = run.table["status"] == Status.CERTIFIED
    positive = run.table["epsilon_lower_together"] > 0
    largest = run.table[certified & positive].nlargest(1, "epsilon_lower_together")
    rows = largest.to_dict("records")
    return rows[0] if rows else None


def overview(run: Run) -> list[dict[str, Any]]:
    """Returns an entry for each audit: progress, and its bound at the last step with the claim.

    `epsilon_lower` holds under the assumption of its `status`, and rests on the trials `used`; it
    is NaN if there are none. `above_claim` is of all steps and estimators. `accuracy` and `loss`
    are means over all training runs at the last step, NaN if no data are held out.
    """
    return [_entry(run, audit, cell) for audit, cell in run.pairs]


def _entry(
    run: Run,
    audit: PlannedAudit,
    cell: Cell,
) -> dict[str, Any]:
    """Returns the entry of one audit in `overview`.

    Args:
        run: the run.
        audit: the audit in the plan.
        cell: the audit as the sweep has it.
    """
    mechanism = cell.mechanism
    estimator = representative(run, audit)
    rows = run.last_rows(audit)
    row = rows.get(estimator)
    used = 0 if row is None else int(row["trials"])
    if row is not None and mechanism.sampled:
        familywise = row["epsilon_lower_together"]
        bound = row["epsilon_lower"] if math.isnan(familywise) else familywise
        if bound > audit.claim and not may_exceed_claim(row):
            row = assumption_free(rows, row)
    numbers = ("mu_lower", "epsilon_lower", "epsilon_lower_together", "epsilon_lower_free")
    if row is None or (mechanism.sampled and used == 0):  # without trials, ε ≥ 0 is no result
        row = dict.fromkeys(numbers, math.nan) | {
            "status": "",
            "free_estimator": "",
            "interim": estimator not in run.anytime,
            "estimator": estimator,
            "assumes_other_curve": False,
        }
    utility = dict.fromkeys(UTILITY, math.nan)
    if mechanism.measured:
        for measure in utilities(audit, run.trials(audit)):
            if measure["canary"] == "any":
                utility[measure["measure"]] = measure["mean"]
    return {
        "audit": audit.id,
        "label": audit.label,
        "trials": audit.trials,
        "done": run.done(audit),
        "used": used,
        "estimator": row["estimator"],
        **{name: row[name] for name in ("status", *numbers, "free_estimator")},
        "epsilon_upper": audit.claim,
        "ratio": row["epsilon_lower"] / audit.claim if audit.claim > 0 else math.nan,
        "interim": row["interim"],
        "above_claim": run.has_bound_above_claim(audit),
        "assumes_other_curve": row["assumes_other_curve"],
        **utility,
    }


def representative(run: Run, audit: PlannedAudit) -> str:
    """Returns the estimator that is quoted: the audit's first, or `exact` if no trials are run.

    If trials were added or left out after results were known, the first estimator whose bound
    holds nevertheless is returned.
    """
    index = run.numbers[audit.id]
    cell = run.sweep.cells[index]
    if not cell.sampled:
        return EXACT
    if audit.extended or index in run.decided:
        rows = run.rows(audit)
        for name, status in zip(rows["estimator"], rows["status"], strict=True):
            if Status(status).holds:
                return str(name)
    return cell.audit.estimators[0].name
