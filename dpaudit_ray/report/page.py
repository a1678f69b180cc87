"""The HTML report: one self-contained file, written once, or anew while its sweep runs."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import markupsafe

from ..errors import DpauditError
from ..storage.run_directory import RunDirectory
from ..version import __version__
from . import markup, sections
from .tables import Run

FILE = "report.html"
AGAIN_SECONDS = 10.0
SHARE = 0.1  # of one core, at most: a page of 50,000 packs takes a minute
LAST_SECONDS = 60.0  # that a driver waits for the last page; a longer one is finished without it


def write(run: Run, again: float | None = None) -> str:
    """Writes report.html and figures/ into the run directory; returns the report's address.

    With `again` a browser that shows the page loads it anew every so many seconds.
    """
    environment = markup.environment()
    script = environment.get_template("report.js").render()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    page = environment.get_template("report.html.j2").render(
        script=markupsafe.Markup(script),
        only=f"sha256-{digest}",  # no other script runs, whatever a label says
        name=run.sweep.name,
        version=__version__,
        fingerprint=run.plan.fingerprint,
        written=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        specification=run.sweep.canonical(),
        again=again,
        **sections.all_sections(run),
    )
    run.directory.write_text(FILE, page)
    return f"{run.directory.location}/{FILE}"


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def follow(
    location: str, tell: Callable[[str], None], pause: Callable[[float], bool] = _sleep
) -> None:
    """Writes the page whenever there is news, until the run is complete.

    Args:
        location: of a run directory.
        tell: takes lines with the page's address.
        pause: waits for so many seconds; true asks for the last page before that.

    Raises:
        DpauditError: what is there cannot be read, or the page not be written.
    """
    shown: object = None
    last = False
    while True:
        began = time.monotonic()
        run = Run.open(location)
        last |= run.directory.complete
        news = (last, [run.done(audit) for audit in run.plan.audits], run.estimates.to_json())
        if news != shown:
            address = write(run, None if last else AGAIN_SECONDS)
            if last:
                tell(address)
            elif shown is None:
                tell(f"{address} is written anew until the run is complete; Ctrl-C ends that")
            shown = news
        if last:
            return
        last = pause(max(AGAIN_SECONDS, (time.monotonic() - began) / SHARE))


@contextlib.contextmanager
def beside(run: RunDirectory) -> Iterator[None]:
    """A process that keeps the page fresh while this is open, and writes it once more then.

    It does so however this process ends, and costs the sweep nothing when it fails.
    """
    writer = subprocess.Popen(
        [sys.executable, "-m", __name__, run.location],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert writer.stdin is not None
    try:
        yield
    finally:
        writer.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            writer.wait(LAST_SECONDS)


def _write_until_input_ends(location: str) -> None:
    """Standard input ends with the driver. Signals to all its processes are for the driver."""
    os.nice(10)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)

    def pause(seconds: float) -> bool:
        return bool(select.select([sys.stdin], [], [], seconds)[0])

    while True:
        with contextlib.suppress(DpauditError):  # storage may answer again in a while
            follow(location, lambda line: None, pause)
            return
        if pause(AGAIN_SECONDS):
            return


if __name__ == "__main__":
    _write_until_input_ends(sys.argv[1])
