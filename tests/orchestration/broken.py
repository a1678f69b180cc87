"""A mechanism whose every pack raises what a broken device raises."""

from typing import Any

from dpaudit_ray.mechanisms.base import Session
from dpaudit_ray.mechanisms.landscape import Landscape


class Broken(Landscape):
    """It opens, and then nothing works."""

    name: str = "tests.orchestration.broken:Broken"  # type: ignore[assignment]

    def open(self, *arguments: Any) -> Session:
        """A session whose packs fail."""
        return _BrokenSession()


class _BrokenSession:
    def run(self, *arguments: Any) -> Any:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
