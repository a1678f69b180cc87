"""Makes the pictures of the README from one run of its sweep: `python -m jobs.readme`.

It needs the test extra, Chromium for the page at the end, and a minute. Run it in a folder that has
`jobs/quickstart.yaml`; the run directory is `runs/quickstart`, which must not exist yet.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import dpaudit_ray as da
from jobs.readme import figure, recording

HERE = Path(__file__).parent
RUN = Path("runs/quickstart")
COMMANDS = ("dpaudit run jobs/quickstart.yaml", "dpaudit report runs/quickstart")
_WINDOW = (1000, 690)  # pixels of the page at the end
_COLOURS = 48  # of the page, which make its picture a third as large


def page_as_png(page: Path) -> bytes:
    """Returns the top of an HTML page as headless Chromium shows it.

    Raises:
        FileNotFoundError: Chromium is not installed.
    """
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise FileNotFoundError("chromium is not installed; install it and run this again")
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "page.png"
        width, height = _WINDOW
        subprocess.run(
            [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--window-size={width},{height}", f"--screenshot={picture}", page.resolve().as_uri()],
            check=True, capture_output=True, timeout=120,
        )  # fmt: skip
        few_colours = Image.open(picture).convert("RGB").quantize(_COLOURS)
        few_colours.save(picture, optimize=True)
        return picture.read_bytes()


def main() -> None:
    """Records the commands in this folder, and writes both pictures beside this file."""
    if RUN.exists():
        sys.exit(f"{RUN} exists; remove it, since the recording shows a first run")
    folder = Path(sys.executable).parent
    terminal = recording.Terminal(Path.cwd(), {"PATH": f"{folder}:/usr/bin:/bin"})
    for command in COMMANDS:
        terminal.types(command)
    words = "A terminal: dpaudit runs a sweep of 4,000 training runs, then shows its report."
    last = page_as_png(RUN / "report.html")
    recorded = recording.svg(terminal.pictures, last, words)
    (HERE / "run.svg").write_text(recorded, encoding="utf-8")
    (HERE / "bounds.svg").write_text(figure.drawn(da.open(RUN)), encoding="utf-8")


if __name__ == "__main__":
    main()
