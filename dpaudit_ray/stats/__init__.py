"""Estimators and bounds, pure numpy and scipy: importable without torch and Ray.

Adding a module with an `Estimator` subclass to this package makes it available by its name.
"""

import importlib
import pkgutil

from . import betting, budget, claim, gdp, label, one_run, power, profile, several
from .assumptions import assumption_free
from .base import Estimator, estimate, estimators, make, option_names, takes_family
from .binomial import clopper_pearson_lower, clopper_pearson_upper
from .statement import Estimate, Family, Status, TradeOff

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "Estimate",
    "Estimator",
    "Family",
    "Status",
    "TradeOff",
    "assumption_free",
    "betting",
    "budget",
    "claim",
    "clopper_pearson_lower",
    "clopper_pearson_upper",
    "estimate",
    "estimators",
    "gdp",
    "label",
    "make",
    "one_run",
    "option_names",
    "power",
    "profile",
    "several",
    "takes_family",
]
