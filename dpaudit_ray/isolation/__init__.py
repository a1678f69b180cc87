"""Code of the user's in processes of its own, with limits: `sandbox` asks, `forkserver` forks."""

from .sandbox import Ended, Limits, Sandbox

__all__ = ["Ended", "Limits", "Sandbox"]
