"""Labels from the gradients that a training releases: its options, attacks and exact bounds."""

from .options import LabelGradient

__all__ = ["LabelGradient"]
