"""`dpaudit check`: is everything in a run directory what follows from its sweep and its scores?"""

from .findings import Checked, Difference
from .whole import of

__all__ = ["Checked", "Difference", "of"]
