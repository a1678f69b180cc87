"""Which trials a sweep has, which of them remain, and what was promised of them."""

from .model import Pack, Plan, PlannedAudit
from .open_run import finished, kept, open_run, preview
from .planner import MAX_PACKS, make
from .record import FILE, SWEEP_FILE, from_json, load, read, require, to_json

__all__ = [
    "FILE",
    "MAX_PACKS",
    "SWEEP_FILE",
    "Pack",
    "Plan",
    "PlannedAudit",
    "finished",
    "from_json",
    "kept",
    "load",
    "make",
    "open_run",
    "preview",
    "read",
    "require",
    "to_json",
]
