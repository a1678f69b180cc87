"""DP-SGD: its options, and trainings by them."""

from .options import DpSgd

__all__ = ["DpSgd"]
