"""One-dimensional loss landscapes, simulated and computed exactly."""

from .options import Landscape

__all__ = ["Landscape"]
