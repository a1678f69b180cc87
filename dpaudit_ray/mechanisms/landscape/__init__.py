"""One-dimensional loss landscapes, simulated and computed exactly."""

from .mechanism import Landscape

__all__ = ["Landscape"]
