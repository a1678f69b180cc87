"""The verb `dpaudit risk`: what a claim means, without any training."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import SpecError, percent, plain
from . import terminal
from .arguments import ANY_ERROR, RESULTS, AsJson, TrustedToRead, verb
from .read_verbs import open_run

if TYPE_CHECKING:
    from ..accounting import Claim
    from ..report.risk import Risk

app = typer.Typer()
_CLAIM_FILES = (".yaml", ".yml", ".toml")
_SUBJECT = "Run directory, or a YAML or TOML file with the keys of `claim`."

Subject = Annotated[str | None, typer.Argument(metavar="RUN|FILE", help=_SUBJECT)]
Epsilon = Annotated[float | None, typer.Option(metavar="E", help="The claimed ε.")]
Delta = Annotated[float, typer.Option(metavar="D", help="δ of the claim.")]
Rho = Annotated[float | None, typer.Option(metavar="R", help="ρ of zero-concentrated DP.")]
Mu = Annotated[float | None, typer.Option(metavar="M", help="μ of Gaussian DP.")]
Figure = Annotated[Path | None, typer.Option(metavar="FILE", help="Draw a PNG file.")]


@verb(
    app, RESULTS, "risk --epsilon 8 --delta 1e-5", f"0 shown, {ANY_ERROR}", page="read-the-answer"
)
def risk(  # noqa: PLR0913 (options of a command line)
    subject: Subject = None,
    epsilon: Epsilon = None,
    delta: Delta = 0.0,
    rho: Rho = None,
    mu: Mu = None,
    figure: Figure = None,
    as_json: AsJson = False,
    trust: TrustedToRead = None,
) -> None:
    """Show what a claim, or the measured ε of a run, allows an attacker to learn."""
    from ..report import risk as risks

    stated = {"epsilon": epsilon, "rho": rho, "mu": mu}
    fields = {name: value for name, value in stated.items() if value is not None}
    if subject is not None and not fields and not subject.endswith(_CLAIM_FILES):
        subjects = risks.of_run(open_run(subject))
    else:
        # A single claim has no label.
        subjects = {"": risks.of_claim(_claim(subject, fields, delta), delta)}
    if figure is not None:
        if len(subjects) > 1:
            raise SpecError("--figure", f"draws one audit, but {subject} has {len(subjects)}")
        (only,) = subjects.values()
        figure.write_bytes(only.picture())
    by_label = {label: subject.risks() for label, subject in subjects.items()}
    if as_json:
        entries = {}
        for label, by_name in by_label.items():
            entries[label] = {name: asdict(most) for name, most in by_name.items()}
        terminal.show_json(entries.get("", entries))  # the risks alone, of a claim without a label
        return
    for label, by_name in by_label.items():
        _show_risks(label, by_name)
    if figure is not None:
        terminal.say(str(figure))


def _claim(subject: str | None, fields: dict[str, Any], delta: float) -> Claim:
    """Returns the claim that a file states, or exactly one of three options.

    Args:
        subject: path of a file; None if options state the claim.
        fields: values of the options that were given.
        delta: δ of `--epsilon`; 0 without one.
    """
    from ..accounting.claim import from_fields

    source = "--"
    if subject is not None and not fields:
        fields = _claim_file(Path(subject))
        source = f"{subject}: "
    elif len(fields) != 1 or subject is not None:
        options = [f"--{name}" for name in fields]
        got = ", ".join(filter(None, [subject, *options])) or "none"
        raise SpecError(
            "", f"risk takes one of --epsilon, --rho, --mu, a run and a claim file, got {got}"
        )
    elif "epsilon" in fields and delta:
        fields["delta"] = delta
    try:
        return from_fields(fields)
    except ValueError as error:
        raise SpecError("", f"{source}{error}") from error


def _claim_file(path: Path) -> Any:
    """Reads the fields of a claim, or the key `claim` that has them."""
    import tomllib

    from ..sweep.yamlfile import parse_yaml, read_text

    text = read_text(path)
    if path.suffix == ".toml":
        try:
            content = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            raise SpecError("", f"{path}: not valid TOML: {error}") from error
    else:
        content = parse_yaml(text, str(path))
    return content.get("claim", content)


def _show_risks(label: str, risks: dict[str, Risk]) -> None:
    """Prints a column for each claim, and a row for each thing an attacker may do."""
    first = next(iter(risks.values()))
    columns: terminal.Columns = {
        "at most": [
            "correct guesses about one record",
            *(f"members found, {percent(rate)} of others accused" for rate in first.members),
            *(f"a belief of {percent(prior)} becomes" for prior in first.beliefs),
        ]
    }
    for name, risk in risks.items():
        shares = (risk.accuracy, *risk.members.values(), *risk.beliefs.values())
        columns[name] = [terminal.Figure(percent(round(share, 4))) for share in shares]
    title = first.claim
    sentence = first.sentence
    if label:
        claims = [f"{name} {risk.claim}" for name, risk in risks.items()]
        title = f"{label}, {', '.join(claims)}"
        sentence = f"if {first.claim} is true, {sentence}"
    terminal.show_table(f"{title}: risks that it allows", columns)
    terminal.explain(sentence)
    if "measured" in risks:
        terminal.explain("measured: risks that this ε allows; no smaller ε holds for the mechanism")
    if first.unlimited:
        chance = f"δ = {plain(first.unlimited)} for each {first.unit}"
        terminal.explain(f"with a probability of {chance}, no belief is bounded")
