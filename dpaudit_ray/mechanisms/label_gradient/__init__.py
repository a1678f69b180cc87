"""Labels from the gradients that a training releases: its options, attacks and exact bounds."""

from .mechanism import LabelGradient

__all__ = ["LabelGradient"]
