"""Code of the user's in processes of its own, with limits: `rooms` asks, `zygote` forks."""

from .rooms import Ended, Limits, Room

__all__ = ["Ended", "Limits", "Room"]
