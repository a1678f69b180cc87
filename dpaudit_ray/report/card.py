"""A run in a notebook: its verdict, a table and a figure."""

from __future__ import annotations

from . import markup
from .answer import Answer
from .sections import embedded
from .tables import Run, overview


def html(run: Run, answer: Answer, figure: bytes) -> str:
    """As a notebook shows it; `figure` is a PNG file's content."""
    return (
        markup.environment()
        .get_template("card.html.j2")
        .render(
            name=run.sweep.name,
            location=run.directory.location,
            answer=answer,
            rows=list(zip(overview(run), answer.audits, strict=True)),
            figure=embedded(figure),
        )
    )
