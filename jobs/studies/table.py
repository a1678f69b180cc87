"""The table of a study: error rate and median bound of every method, or how claims fared."""

from __future__ import annotations

import math
import sys

import numpy as np
import pandas as pd
import typer
from scipy import optimize, special

import dpaudit_ray as da
from dpaudit_ray import stats
from dpaudit_ray.plan.finished_trials import FinishedTrials
from dpaudit_ray.report.tables import Run
from dpaudit_ray.stats import gdp
from jobs.studies.coverage import Coverage, Worlds, subsampled_noise
from jobs.studies.verdicts import NEVER, Verdicts


def true_mu(worlds: Worlds, epsilon: float, delta: float) -> float:
    """The smallest μ for which the mechanism is μ-GDP: what a bound on μ must not exceed."""
    if worlds == "gaussian":
        return float(gdp.mu(epsilon, delta))
    if worlds == "randomised-response":
        return 2 * float(-special.ndtri(special.expit(-epsilon)))
    if worlds == "told-response":
        return math.inf  # what one world never says is beyond every μ
    if worlds == "subsampled-gaussian":
        return 1 / subsampled_noise(epsilon, delta) if epsilon > 0 else 0.0  # far out in the tail
    if worlds == "rarely-in":
        return float(-special.ndtri(0.5 * math.exp(-epsilon)))  # its curve has one corner

    def at(log_alpha: float) -> float:  # z(1 - α) - z(β(α)), best of all tests
        alpha = math.exp(log_alpha)
        beta = 1 - alpha * math.exp(epsilon)
        if alpha > math.exp(-epsilon) / 2:
            beta = math.exp(-epsilon) / (4 * alpha)
        return float(-special.ndtri(alpha) - special.ndtri(beta))

    found = optimize.minimize_scalar(
        lambda a: -at(a), bounds=(-epsilon - 12, math.log(0.5)), method="bounded"
    )
    return max(-float(found.fun), at(-epsilon / 2 - math.log(2))) if epsilon > 0 else 0.0


def true_epsilon(worlds: Worlds, epsilon: float, delta: float) -> float:
    """ε at δ; pure mechanisms gain a little from δ."""
    if worlds in ("gaussian", "subsampled-gaussian", "told-response"):
        return epsilon
    if worlds == "rarely-in":
        return max(0.0, epsilon + math.log1p(-2 * delta))
    if worlds == "laplace":
        return max(0.0, epsilon + 2 * math.log1p(-delta))
    odds = math.log(max(special.expit(epsilon) - delta, 0.5)) + math.log1p(math.exp(epsilon))
    return max(0.0, odds)


def tabulate(location: str) -> pd.DataFrame:
    """Error rate and median bound per method, worlds, ε and R."""
    run = Run.open(location)
    rows = []
    for index, (audit, cell) in enumerate(zip(run.plan.audits, run.sweep.cells, strict=True)):
        study = cell.mechanism
        if not isinstance(study, Coverage):
            raise typer.BadParameter(f"{location} is no coverage study")
        method = stats.estimators()[study.method]
        bounds_mu = not math.isnan(stats.make(study.method, planned=10).bound(1e-5, 0.95).mu_lower)
        truth = (true_mu if bounds_mu else true_epsilon)(study.worlds, study.epsilon, study.delta)
        if study.faults == "diverges-inside":
            truth = math.inf  # a run that diverged was in; otherwise faults hide, and tell nothing
        scores = FinishedTrials(run.directory, run.plan, index).frame()
        for size, group in scores.groupby("step"):
            rows.append(
                {
                    "method": study.method,
                    "status": str(method.status),
                    "audit": audit.label,
                    "looks": study.looks,
                    "worlds": study.worlds,
                    "faults": study.faults,
                    "epsilon": study.epsilon,
                    "R": size,
                    "bounds": "mu" if bounds_mu else "epsilon",
                    "truth": truth,
                    "error": float((group["score"] > truth + 1e-9).mean()),
                    "median": float(group["score"].median()),
                    "audits": len(group),
                }
            )
    return pd.DataFrame(rows)


def tabulate_verdicts(location: str) -> pd.DataFrame:
    """A row per cell: the share of audits that were refuted, and quantiles of when."""
    run, rows = Run.open(location), []
    for index, cell in enumerate(run.sweep.cells):
        study = cell.mechanism
        if not isinstance(study, Verdicts):
            raise typer.BadParameter(f"{location} is no study of verdicts")
        scores = FinishedTrials(run.directory, run.plan, index).frame()
        after = scores[scores["step"] == 2]["score"].replace(NEVER, math.inf)
        rows.append(
            {
                "epsilon": study.epsilon,
                "noise": study.share,
                "faults": study.faults,
                "trials": study.sizes[-1],
                "audits": len(after),
                "refuted": float(np.isfinite(after).mean()),
                "median": float(after.quantile(0.5, interpolation="higher")),
                "80 %": float(after.quantile(0.8, interpolation="higher")),
            }
        )
    return pd.DataFrame(rows)


def main(location: str) -> None:
    """Writes coverage.csv into the run directory and prints the worst error rate per method.

    Of a study of verdicts, prints how often claims were refuted.
    """
    if isinstance(Run.open(location).sweep.cells[0].mechanism, Verdicts):
        typer.echo(tabulate_verdicts(location).to_string(index=False))
        return
    table = tabulate(location)
    file = f"{location.rstrip('/')}/coverage.csv"
    table.to_csv(file, index=False)
    worst = table.sort_values("error").groupby(["method", "looks"], sort=False).tail(1)
    typer.echo(worst.sort_values(["status", "method"]).to_string(index=False))
    typer.echo(f"all rows: {file} ({da.__version__})")


if __name__ == "__main__":
    main(sys.argv[1])
