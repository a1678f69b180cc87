"""A sweep that is only played to the live view: `python played.py SCENE`, in a terminal."""

import signal
import sys
import time
import warnings
from types import FrameType

from dpaudit_ray.cli import terminal
from dpaudit_ray.cli.live_view import Display
from dpaudit_ray.orchestration.progress import Activity, AuditProgress, Progress


def snapshot(done: int, audits: int = 6, **activity: object) -> Progress:
    """After so many of 100 trials each, in order; the second audit is above its claim."""
    shown = tuple(
        AuditProgress(
            f"number={i}, learning_rate=0.1",
            100,
            min(100, max(0, done - 100 * i)),
            5.6 if i == 1 else 1.5,
            5.5,
            1e-5,
        )
        for i in range(audits)
    )
    known = {"trainers": 2, "packs_in_flight": 2, "pack_seconds": 0.1, "training_seconds": 0.1}
    return Progress(shown, Activity(**{**known, **activity}))  # type: ignore[arg-type]


def messages(display: Display) -> None:
    """From everywhere, while it is drawn."""
    display(snapshot(150, running=frozenset({1})))
    display.tell("from the driver")
    time.sleep(0.3)  # rich may draw a first picture twice, where two threads write it at once
    warnings.warn("of a library", stacklevel=1)
    print("printed by code of the user's")  # noqa: T201 (as they do)
    signal.signal(signal.SIGUSR1, lambda *_: display.tell("from a signal's handler"))
    signal.raise_signal(signal.SIGUSR1)
    time.sleep(0.5)
    display(snapshot(600, running=frozenset()))


def storm(display: Display) -> None:
    """Signals at every moment, among them those in which something is drawn or handed over."""
    count = 0

    def strike(number: int, frame: FrameType | None) -> None:
        nonlocal count
        count += 1
        display.tell(f"struck {count}")

    signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    while count < 200:
        display(snapshot(150))
    signal.setitimer(signal.ITIMER_REAL, 0)
    display.tell(f"all {count}")  # one more may have come before the timer was off
    display(snapshot(600))


def phases(display: Display) -> None:
    """Plays the phases of a sweep on Ray."""
    display.phase("starting Ray on this machine")
    time.sleep(1.2)
    idle = {"trainers": 0, "packs_in_flight": 0, "pack_seconds": None, "training_seconds": None}
    display(snapshot(0, **idle))
    time.sleep(0.4)
    display(snapshot(0, **(idle | {"trainers": 2, "packs_in_flight": 4})))
    time.sleep(0.4)
    display(snapshot(20))
    time.sleep(0.4)
    display(snapshot(20, stopping=True))
    time.sleep(0.4)


def fails(display: Display) -> None:
    """Before anything is planned."""
    display.phase("reading the sweep")
    time.sleep(0.4)
    raise SystemExit(2)


if __name__ == "__main__":
    with Display() as view:
        {scene.__name__: scene for scene in (messages, storm, phases, fails)}[sys.argv[1]](view)
    terminal.say("said afterwards")
