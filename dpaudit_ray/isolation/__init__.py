"""User-defined code in child processes, with limits: `sandbox` asks, `forkserver` forks."""

from .sandbox import Ended, Limits, Sandbox

__all__ = ["Ended", "Limits", "Sandbox"]
