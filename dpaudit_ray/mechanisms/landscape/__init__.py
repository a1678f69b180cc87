"""One-dimensional loss landscapes, simulated and computed exactly."""

from .mechanism import Landscape as Landscape
