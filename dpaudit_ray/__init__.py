"""Audits differentially private training: packed trainings on Ray, valid lower bounds."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from . import accounting, stats
    from .api import run
    from .result import Result

__all__ = ["Result", "__version__", "accounting", "run", "stats"]

_HOMES = {"accounting": None, "stats": None, "run": "api", "Result": "result"}


def __getattr__(name: str) -> Any:
    # Resolved on first use, so that `import dpaudit_ray` loads neither scipy nor torch nor Ray.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES[name]
    if home is None:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)


def __dir__() -> list[str]:
    return __all__  # Tab completion finds what is not imported yet, and nothing else
