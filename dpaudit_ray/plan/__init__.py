"""Which trials a sweep has, which of them remain, and what was promised of them."""

from .open_run import finished, kept, open_run, preview
from .planner import make
from .record import FILE, from_json, load, read, require, to_json

__all__ = [
    "FILE",
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
