"""Loss landscapes in one dimension, simulated and computed exactly."""

from .mechanism import Landscape as Landscape
