"""Estimators and bounds, pure numpy and scipy: importable without torch and Ray.

Functions raise ValueError for an argument outside its bounds; the message names value and bound.
Adding a module with an `Estimator` subclass to this package makes it available by its name.
"""

import importlib
import pkgutil

from . import budget, claim, e_process, gdp, label, multi_canary, one_run, power, profile
from .base import Estimator, assumption_free, estimate, estimators, make, option_names, takes_family
from .error_rates import clopper_pearson_lower, clopper_pearson_upper
from .lower_bound import Estimate, Family, Status, TradeOff

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Estimate",
    "Estimator",
    "Family",
    "Status",
    "TradeOff",
    "assumption_free",
    "budget",
    "claim",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "e_process",
    "estimate",
    "estimators",
    "gdp",
    "label",
    "make",
    "multi_canary",
    "one_run",
    "option_names",
    "power",
    "profile",
    "takes_family",
]
