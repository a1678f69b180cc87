"""DP-SGD: the mechanism, the recipe of a training, and trainings by it."""

from .mechanism import DpSgd as DpSgd
