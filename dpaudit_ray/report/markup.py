"""Templates of pages: text of others is escaped, and nothing in it is a command."""

from __future__ import annotations

from typing import Any

import jinja2

from ..printable import lines


def environment(**options: Any) -> jinja2.Environment:
    """Where this package's templates are; `options` are Jinja's own."""
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
