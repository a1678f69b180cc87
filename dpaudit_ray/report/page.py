"""The HTML report: one self-contained file."""

from __future__ import annotations

import base64
import datetime
import hashlib

import markupsafe

from ..version import __version__
from . import markup, sections
from .tables import Run

FILE = "report.html"


def write(run: Run) -> str:
    """Writes report.html and figures/ into the run directory; returns the report's address."""
    environment = markup.environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("report.html.j2").render(
        script=markupsafe.Markup(script),
        only=f"sha256-{digest}",  # no other script runs, whatever a label says
        name=run.sweep.name,
        version=__version__,
        fingerprint=run.plan.fingerprint,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        specification=run.sweep.canonical(),
        **sections.all_sections(run),
    )
    run.directory.write_text(FILE, page)
    return f"{run.directory.location}/{FILE}"
