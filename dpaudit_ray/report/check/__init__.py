"""`dpaudit check`: is everything in a run directory what follows from its sweep and its scores?

What follows is derived again by the code that a run uses, in memory, and compared with what is
stored: the plan from the sweep, bits from the plan, estimates, records and the verdict from the
scores. Nothing is derived from what differs itself.
"""

from .derived_files import check_run
from .findings import Checked, Difference

__all__ = ["Checked", "Difference", "check_run"]
