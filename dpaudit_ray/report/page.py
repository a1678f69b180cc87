"""The HTML report, one self-contained file, and a notebook's card; both escape foreign text."""

import base64
import datetime
import hashlib
import re
from typing import Any

import jinja2
import markupsafe

from .. import __version__
from ..errors import lines, percent, plain
from . import many_audits, words
from .quote import claimed, epsilon_text
from .tables import Run, overview
from .verdict import Answer, Progress

FILE = "report.html"


def write(run: Run, progress: Progress | None = None) -> str:
    """Writes report.html and figures/ into the run directory; returns the report's address.

    Args:
        run: the run.
        progress: called with the number of judged audits and of all, if a verdict is computed.
    """
    from . import sections  # matplotlib takes a while to load

    templates = environment()
    files = ["report.js", "charts.js"]
    if len(run.plan.audits) > many_audits.FEW:
        files.append("many.js")
    script = "".join(templates.get_template(file).render() for file in files)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = templates.get_template("report.html.j2").render(
        script=markupsafe.Markup(script),
        only=f"sha256-{digest}",  # no other script runs, whatever a label says
        name=run.sweep.name,
        version=__version__,
        fingerprint=run.plan.fingerprint,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        specification=run.sweep.canonical(),
        **sections.all_sections(run, progress),
    )
    run.directory.write_text(FILE, page)
    return f"{run.directory.location}/{FILE}"


def notebook_card(run: Run, answer: Answer, figure: bytes) -> str:
    """Returns a run as HTML for a notebook: verdict, table and figure.

    Args:
        run: the run.
        answer: verdict on the run in words.
        figure: content of a PNG file.
    """
    quotes = [audit.quote for audit in answer.audits]
    template = environment().get_template("card.html.j2")
    return template.render(
        name=run.sweep.name,
        location=run.directory.location,
        answer=answer,
        rows=list(zip(overview(run), answer.audits, strict=True)),
        heading=". ".join([words.heading(quotes), *words.lines_below(quotes)]),
        figure=figure,
    )


def environment(**options: Any) -> jinja2.Environment:
    """Returns the environment of this package's templates, with further `options` of Jinja."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("dpaudit_ray.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        **options,
    )
    templates.filters |= {
        "claimed": claimed,
        "significant": epsilon_text,
        "plain": plain,
        "percent": percent,
        "coded": _coded,
        "explained": _explained,
        "embedded": lambda png: f"data:image/png;base64,{base64.b64encode(png).decode()}",
        "short": many_audits.short,
        "measure": words.MEASURES.__getitem__,
    }
    return templates


def _coded(text: str) -> markupsafe.Markup:
    """Returns text as HTML; parts in backticks become code."""
    escaped = str(markupsafe.escape(lines(text)))
    return markupsafe.Markup(re.sub("`([^`]*)`", r"<code>\1</code>", escaped))


def _explained(text: str) -> markupsafe.Markup:
    """Returns a word of the glossary as HTML that shows its meaning under a pointer or a tap."""
    meaning = words.GLOSSARY.get(text.removesuffix(" ≥").removesuffix(" ="))
    if meaning is None:
        return markupsafe.escape(text)
    markup = markupsafe.Markup('<abbr tabindex="0" title="{}">{}</abbr>')
    return markup.format(meaning, text)


def _shown(value: Any) -> Any:
    """Returns text without control characters, and anything else as it is."""
    return lines(value) if type(value) is str else value
