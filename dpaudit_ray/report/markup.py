"""Pages from templates: text of others is escaped, and nothing in it is a command."""

from __future__ import annotations

import base64
from typing import Any

import jinja2

from ..errors import lines
from . import words
from .tables import Run, overview
from .verdict import Answer


def environment(**options: Any) -> jinja2.Environment:
    """This package's templates, with Jinja's own `options`."""
    return jinja2.Environment(
        loader=jinja2.PackageLoader("dpaudit_ray.report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_shown,
        **options,
    )


def _shown(value: Any) -> Any:
    """Text as it may be shown; what is markup was made here, from text that had been shown."""
    return lines(value) if type(value) is str else value


def embedded(png: bytes) -> str:
    """An address that holds a figure, a PNG file's content."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def notebook_card(run: Run, answer: Answer, figure: bytes) -> str:
    """A run as a notebook shows it: verdict, a table, and a figure, a PNG file's content."""
    return (
        environment()
        .get_template("card.html.j2")
        .render(
            name=run.sweep.name,
            location=run.directory.location,
            answer=answer,
            rows=list(zip(overview(run), answer.audits, strict=True)),
            heading=words.heading([audit.quote for audit in answer.audits]),
            figure=embedded(figure),
        )
    )
