"""The numbers of a run as tables: every estimate, and one line per audit."""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Iterator
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

EXACT = "exact"  # the estimator of an audit without trials that certifies something


@dataclasses.dataclass(frozen=True)
class Run:
    """A run directory opened for reading."""

    directory: RunDirectory
    sweep: Sweep
    plan: Plan
    estimates: pd.DataFrame

    @classmethod
    def open(cls, location: str) -> Run:
        """Raises RunDirectoryError when there is no readable run at `location`."""
        directory = RunDirectory(location, OPENING)
        sweep, plan = planning.read(directory)
        estimates = directory.estimates(record.most_estimates(sweep, plan))
        names = {spec.name for cell in sweep.cells for spec in cell.audit.estimators}
        # One that was not imported may derive from any mechanism of this package.
        kinds = {type(cell.mechanism) for cell in sweep.cells} | {*registry(Mechanism).values()}
        names |= {name for kind in kinds for name in kind.exact_estimators}
        record.check_estimates(estimates, plan, directory, names)
        return cls(directory, sweep, plan, estimates)

    def cell(self, audit: PlannedAudit) -> Cell:
        return self.sweep.cells[self.number(audit)]

    def number(self, audit: PlannedAudit) -> int:
        """Returns the number of an audit in the plan."""
        return self._numbers[audit.id]

    def done(self, audit: PlannedAudit) -> int:
        """Finished trials of an audit."""
        return FinishedTrials(self.directory, self.plan, self.number(audit)).stored_trials

    def prefix(self, audit: PlannedAudit) -> Iterator[ConsumedPack]:
        """The trials that the audit's estimates rest on."""
        index = self.number(audit)
        return outcomes.finished_trials(self.directory, self.sweep, self.plan, index).packs()

    def above(self, audit: PlannedAudit) -> bool:
        """Whether a bound that holds together with all others of the run exceeds its claim."""
        return audit.id in self._above

    def rows(self, audit: PlannedAudit) -> pd.DataFrame:
        """The rows of an audit in `table`."""
        return self.table.take(self._places.get(audit.id, []))

    def last_rows(self, audit: PlannedAudit) -> dict[str, dict[Any, Any]]:
        """Its rows at the last step, with the claim of the first accountant, by estimator."""
        return self._last_rows.get(audit.id, {})

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {audit.id: number for number, audit in enumerate(self.plan.audits)}

    @functools.cached_property
    def _above(self) -> set[Any]:
        """Audits with a bound that is `above_claim`, by id."""
        return set(self.table.loc[self.table["above_claim"], "audit"])

    @functools.cached_property
    def _last_rows(self) -> dict[Any, dict[str, dict[Any, Any]]]:
        """`last_rows` of all audits, by id: one pass over the table, which a pass each repeats."""
        table = self.table
        steps = {audit.id: audit.horizons[-1] for audit in self.plan.audits}
        accountants = {audit.id: next(iter(audit.claims)) for audit in self.plan.audits}
        at_last_step = table["step"] == table["audit"].map(steps)
        by_first_accountant = table["accountant"] == table["audit"].map(accountants)
        last_rows = dict[Any, dict[str, dict[Any, Any]]]()
        for row in table[at_last_step & by_first_accountant].to_dict("records"):
            last_rows.setdefault(row["audit"], {})[row["estimator"]] = row
        return last_rows

    @functools.cached_property
    def anytime(self) -> set[str]:
        """Estimators that may be looked at before all trials are in."""
        return _anytime(self)

    @functools.cached_property
    def _places(self) -> dict[Any, Any]:
        return self.table.groupby("audit").indices

    @functools.cached_property
    def table(self) -> pd.DataFrame:
        """Every row of estimates.parquet, with the audit's label and what may be made of the bound.

        A fixed-R bound before the first declared R trials are in is `interim`: it does not hold for
        whoever looks until it suits. `above_claim` marks bounds that contradict their claim; of
        true claims, one is marked in at most 1 - confidence of sweeps. `assumes_other_curve` marks
        an ε that was converted from μ by a Gaussian curve, which the claim or its mechanism is not
        known to have: above the claim, it refutes nothing.
        """
        labels = {audit.id: audit.label for audit in self.plan.audits}
        planned = {audit.id: audit.looks[0] for audit in self.plan.audits}
        table = self.estimates.copy()
        table.insert(1, "label", table["audit"].map(labels))
        partial = table["trials"] < table["audit"].map(planned).astype("int64")
        table["interim"] = partial & ~table["estimator"].isin(self.anytime)
        is_gaussian = _claim_is_gaussian(self, table)
        converted = table["mu_lower"].notna() & ~table["status"].isin(_NOT_BY_GAUSSIAN)
        table["assumes_other_curve"] = converted & ~is_gaussian
        table["above_claim"] = _above_claim(table, is_gaussian)
        return table

    @functools.cached_property
    def complete(self) -> bool:
        """Whether the run is marked as complete, and no trial or part is missing."""
        return outcomes.complete(self.directory, self.plan, self.decided)

    @functools.cached_property
    def decided(self) -> dict[int, int]:
        """The trials that were enough, by index of the audits that `stop_when` has ended."""
        return outcomes.decided(self.directory, self.sweep, self.plan)


def bounds(run: Run) -> pd.DataFrame:
    """`Run.table`, one row for each audit, step and estimator, with options and claims.

    A column `claim_NAME` has the claims by that accountant; `epsilon_upper` is the first one's.
    """
    key = ["audit", "step", "estimator"]
    table = run.table.assign(above_claim=run.table.groupby(key)["above_claim"].transform("any"))
    by_name = table.set_index([*key, "accountant"])["epsilon_upper"].unstack().add_prefix("claim_")
    rows = table.drop_duplicates(key).merge(by_name.reset_index(), on=key, how="left")
    return with_options(run, rows)


def with_options(run: Run, table: pd.DataFrame) -> pd.DataFrame:
    """A table with columns `audit` and `label`, and behind these what the grid sets.

    A column for each option, as `mechanism.noise_multiplier`, and always for the names of mechanism
    and adversary. NaN where an audit has no such option; lists are text.
    """
    cells = run.sweep.cells
    stated = pd.json_normalize([cell.identity() for cell in cells])  # but for defaults
    options = stated.combine_first(pd.json_normalize([c.model_dump(mode="json") for c in cells]))
    options = options.map(lambda value: str(value) if isinstance(value, list) else value)
    varied = {*stated, *options.columns[options.nunique() > 1]}
    keys = {"mechanism.name", "adversary.name", *grid.keys(run.sweep.raw)}
    set_by_grid = re.compile("|".join(rf"{re.escape(key)}(\..+)?" for key in keys))
    shown = sorted(name for name in map(str, varied) if set_by_grid.fullmatch(name))
    options["audit"] = [audit.id for audit in run.plan.audits]
    whole = table.merge(options[["audit", *shown]], on="audit")
    first = ["audit", "label", *shown]
    return whole[[*first, *whole.columns.drop(first)]]


# An ε of these is not converted from its μ by a Gaussian curve, or the curve is known to be one.
_NOT_BY_GAUSSIAN = (Status.CERTIFIED, Status.IF_CLAIMED, Status.IF_ASSUMED)


def _claim_is_gaussian(run: Run, table: pd.DataFrame) -> pd.Series[bool]:
    """Returns `claims.is_gaussian` for each row of a table."""
    gaussian = {}
    for audit, cell in zip(run.plan.audits, run.sweep.cells, strict=True):
        for accountant in audit.claims:
            gaussian[audit.id, accountant] = claims.is_gaussian(cell, accountant)
    keys = zip(table["audit"], table["accountant"], strict=True)
    return pd.Series([gaussian[key] for key in keys], table.index, dtype=bool)


def _above_claim(table: pd.DataFrame, is_gaussian: pd.Series[bool]) -> pd.Series[bool]:
    """Compares bounds on trials, at the sweep's split level; `verify` compares what is exact.

    An ε that takes the curve for Gaussian refutes the claim of a mechanism that adds Gaussian noise
    (`claims.is_gaussian`): the certified μ is then above that of the claim. So does one that was
    read through the claim's own curves, unless the accountant is somebody's own: the certified hit
    rate refutes the claimed noise, and more.
    """
    certified = table["status"] == Status.CERTIFIED
    by_mu = (table["status"] == Status.IF_GAUSSIAN) & is_gaussian
    ours = ~table["accountant"].str.contains(":")
    by_family = (table["status"] == Status.IF_CLAIMED) & ours
    above = table["epsilon_lower_together"] > table["epsilon_upper"]
    return (certified | by_mu | by_family) & above & (table["trials"] > 0)


def may_exceed_claim(row: dict[Any, Any], refuted: bool = False) -> bool:
    """Returns whether a row's ε may be shown above the claim.

    A bound that assumes a Gaussian curve refutes no other claim, whatever else does.

    Args:
        row: one of `Run.last_rows`.
        refuted: whether the test of the whole claim refutes it.
    """
    return bool(row["above_claim"] or (refuted and not row["assumes_other_curve"]))


def assumption_free(rows: dict[str, dict[Any, Any]], row: dict[Any, Any]) -> dict[Any, Any] | None:
    """Returns a row with the assumption-free bound that stands beside `row`; None without one."""
    name = str(row["free_estimator"])
    if name in rows:
        listed = rows[name]
        return None if math.isnan(listed["epsilon_lower_together"]) else listed
    if not name or math.isnan(row["epsilon_lower_free"]):
        return None
    bound = {"epsilon_lower": row["epsilon_lower_free"], "epsilon_lower_together": math.nan}
    kind = {"estimator": name, "status": Status.CERTIFIED.value, "mu_lower": math.nan}
    return row | bound | kind | {"assumes_other_curve": False}


def best(run: Run) -> dict[Any, Any] | None:
    """The row with the largest certified ε, at the level of all together; None where none is."""
    certified = run.table[run.table["status"] == Status.CERTIFIED]
    bounds = certified[certified["epsilon_lower_together"] > 0]
    largest = bounds.sort_values("epsilon_lower_together", ascending=False, kind="stable").head(1)
    return next(iter(largest.to_dict("records")), None)


def overview(run: Run) -> list[dict[str, Any]]:
    """One entry per audit: progress, and what stands for it at the last step, with the claim.

    `epsilon_lower` is to be read with `status`, and rests on the trials `used`; NaN where there are
    none. `above_claim` speaks for all steps and estimators. `accuracy` and `loss` are means over
    all trainings at the last step, NaN where nothing is held out.
    """
    return [_entry(run, audit) for audit in run.plan.audits]


def _entry(run: Run, audit: PlannedAudit) -> dict[str, Any]:
    first, mechanism = representative(run, audit), run.cell(audit).mechanism
    rows = run.last_rows(audit)
    row = rows.get(first)
    used = 0 if row is None else int(row["trials"])
    trials = Trials.joined(audit, run.prefix(audit)) if mechanism.measured else None
    measured = utilities(audit, trials) if trials else ()
    if row is not None and mechanism.sampled and audit.claim < math.inf:
        together = row["epsilon_lower_together"]
        bound = row["epsilon_lower"] if math.isnan(together) else together
        if bound > audit.claim and not may_exceed_claim(row):
            row = assumption_free(rows, row)
    numbers = ("mu_lower", "epsilon_lower", "epsilon_lower_together", "epsilon_lower_free")
    if row is None or (mechanism.sampled and used == 0):  # no trial bounds nothing: not even 0
        row = dict.fromkeys(numbers, math.nan) | {"status": "", "free_estimator": ""}
        row["interim"] = first not in run.anytime
        row |= {"estimator": first, "assumes_other_curve": False}
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
        "above_claim": run.above(audit),
        "assumes_other_curve": row["assumes_other_curve"],
        **dict.fromkeys(UTILITY, math.nan),
        **{it["measure"]: it["mean"] for it in measured if it["canary"] == "any"},
    }


def representative(run: Run, audit: PlannedAudit) -> str:
    """The one that stands for the audit: its first, or `exact` where no trials are run.

    Where the number of trials follows from the trials, the first that is time-uniform.
    """
    cell = run.cell(audit)
    if not cell.mechanism.sampled:
        return EXACT
    first = cell.audit.estimators[0].name
    if audit.extended or run.number(audit) in run.decided:  # looked at meanwhile
        rows = zip(*(run.rows(audit)[name] for name in ("estimator", "status")), strict=True)
        return next((str(name) for name, status in rows if Status(status).holds), first)
    return first


def _anytime(run: Run) -> set[str]:
    """Estimators that may be looked at before all trials are in."""
    specs = [spec for cell in run.sweep.cells for spec in cell.audit.estimators]
    foreign = {
        spec.name
        for spec in specs
        if ":" in spec.name and not spec.unimported and spec.method.interim_valid
    }
    return foreign | {name for name, cls in stats.estimators().items() if cls.interim_valid}
