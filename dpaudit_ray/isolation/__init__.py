"""User-defined code in child processes, with limits: `sandbox` calls, `forkserver` forks."""

from .sandbox import Ended, Limits, Sandbox

__all__ = ["Ended", "Limits", "Sandbox"]
