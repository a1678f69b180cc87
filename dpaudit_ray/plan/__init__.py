"""Plans of sweeps: their trials, those that remain, and their claims."""

from .finished_trials import remaining as remaining
from .open_run import finished as finished
from .open_run import open_run as open_run
from .open_run import preview as preview
from .open_run import with_stored_trials as with_stored_trials
from .planner import make as make
from .record import FILE as FILE
from .record import from_json as from_json
from .record import load as load
from .record import read as read
from .record import require as require
from .record import to_json as to_json
