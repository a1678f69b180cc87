"""The verb `dpaudit risk`: what a claim means, without any training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from . import terminal
from .arguments import ANY_ERROR, RESULTS, AsJson, verb

if TYPE_CHECKING:
    from ..accounting import Claim
    from ..report.risk import Risk

app = typer.Typer()


Epsilon = Annotated[float | None, typer.Option(metavar="E", help="The claimed ε.")]
Delta = Annotated[float, typer.Option(metavar="D", help="δ of the claim.")]
Rho = Annotated[float | None, typer.Option(metavar="R", help="ρ of zero-concentrated DP.")]
Mu = Annotated[float | None, typer.Option(metavar="M", help="μ of Gaussian DP.")]
Figure = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a PNG file.")]


@verb(
    app, RESULTS, "risk --epsilon 8 --delta 1e-5", f"0 shown, {ANY_ERROR}", page="read-the-answer"
)
def risk(
    epsilon: Epsilon = None,
    delta: Delta = 0.0,
    rho: Rho = None,
    mu: Mu = None,
    figure: Figure = None,
    as_json: AsJson = False,
) -> None:
    """Show what a claim allows an attacker to learn. Needs no run."""
    from ..report import risk as risks

    claims = risks.variants(_claim(epsilon, delta, rho, mu))
    by_name = {name: risks.of_claim(claim, delta) for name, claim in claims.items()}
    if figure is not None:
        figure.write_bytes(risks.picture(claims))
    if as_json:
        terminal.show_json({name: asdict(most) for name, most in by_name.items()})
        return
    _show_risks(by_name)
    if figure is not None:
        terminal.say(str(figure))


def _claim(
    epsilon: float | None,
    delta: float,
    rho: float | None,
    mu: float | None,
) -> Claim:
    """Returns the claim that is stated by exactly one of three options."""
    from ..accounting.claim import from_fields
    from ..errors import SpecError

    stated = {"epsilon": epsilon, "rho": rho, "mu": mu}
    fields = {name: value for name, value in stated.items() if value is not None}
    if len(fields) != 1:
        got = ", ".join(f"--{name}" for name in fields) or "none"
        raise SpecError("", f"risk takes one of --epsilon, --rho and --mu, got {got}")
    if epsilon is not None and delta:
        fields["delta"] = delta
    try:
        return from_fields(fields)
    except ValueError as error:
        raise SpecError("", f"--{error}") from error


def _show_risks(risks: dict[str, Risk]) -> None:
    """Prints a column for each kind of mechanism, and a row for each thing an attacker may do."""
    from ..errors import percent, plain

    first = risks["any mechanism"]
    columns: terminal.Columns = {
        "at most": [
            "right answers to a fair question",
            *(f"members found, {percent(rate)} of others accused" for rate in first.members),
            *(f"a belief of {percent(prior)} becomes" for prior in first.beliefs),
        ]
    }
    for name, risk in risks.items():
        cells = []
        for share in (risk.accuracy, *risk.members.values(), *risk.beliefs.values()):
            cells.append(terminal.Figure(percent(round(share, 4))))
        columns[name] = cells
    terminal.show_table(f"{first.claim}: what it allows", columns)
    terminal.explain(first.sentence)
    if first.unlimited:
        terminal.explain(
            f"no belief is bounded with a chance of δ = {plain(first.unlimited)} for each record"
        )
