"""Audits differentially private training: packed training runs on Ray, valid lower bounds.

Stable, with the arguments that `docs/python.md` shows: `run`, `open`, `Result`, `DpauditError`,
`stats.estimate` and `accounting.epsilon`. All else may change from one version to the next.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import accounting, stats
    from .accounting import Claim
    from .api import run
    from .errors import DpauditError
    from .release_audit import audit
    from .result import Result
    from .stats.reference_attacks import membership

    open = Result.open

__version__ = "1.1.0"
__all__ = ["Claim", "DpauditError", "Result", "__version__", "accounting", "audit", "membership",
           "open", "run", "stats"]  # fmt: skip

_HOMES = {"Result": "result", "run": "api", "DpauditError": "errors", "audit": "release_audit",
          "Claim": "accounting", "membership": "stats.reference_attacks"}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, and raises AttributeError for any other."""
    # Resolved on first use, so that `import dpaudit_ray` loads neither scipy nor torch nor Ray.
    if name == "open":
        return __getattr__("Result").open
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name not in _HOMES:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__  # Tab completion also finds what is not imported yet
