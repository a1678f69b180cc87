"""The recording of the README: what a terminal shows becomes an SVG that plays it."""

import re
import subprocess
import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from jobs.readme import recording
from tests.conftest import ROOT
from tests.test_readme import GUIDE

STORED = ROOT / "jobs/readme/run.svg"
SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[str]:
    """The text of each picture, in their order."""
    groups = ET.fromstring(svg).iter(f"{SVG}g")
    return ["\n".join("".join(line.itertext()) for line in group) for group in groups]


def test_recording_plays_what_commands_print(tmp_path):
    terminal = recording.Terminal(tmp_path, {})
    terminal.types(r"sleep .3; printf '\033[1;31ma < b\033[0m\n'; sleep .3; stty size")
    svg = recording.svg(terminal.pictures, b"png", "Two lines.")
    last = texts(svg)[-1]
    assert last.startswith("$ sleep .3; ")
    assert last.endswith("a < b\n24 80")
    assert '<tspan x="16.0" textLength="42.1" class="red b">a &lt; b</tspan>' in svg
    shown = [float(end) for end in re.findall(r"([\d.]+)%\{visibility:hidden\}\}", svg)]
    assert all(begin < end for begin, end in pairwise(shown))


def test_clock_alone_passes_fast(tmp_path):
    terminal = recording.Terminal(tmp_path, {})
    terminal.types(r"for i in 1 2 3; do printf '\rloading, %ds' $i; sleep .3; done")
    first, second = (picture.seconds for picture in terminal.pictures[-3:-1])
    assert second < 0.1 < first


def test_command_that_fails_is_not_recorded(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        recording.Terminal(tmp_path, {}).types("false")


def test_stored_recording_shows_the_run_of_the_pages():
    svg = STORED.read_text()
    assert len(svg) <= 150_000
    (answer,) = (text for text in texts(svg) if "next: dpaudit report" in text)
    words = " ".join(answer.split())
    (printed,) = re.findall(
        r"CONSISTENT: no violation found. Measured ε.*?\.\s+1 of 2", GUIDE, re.S
    )
    assert " ".join(printed.split()) in words
    assert "quickstart: eps at delta = 1e-5, 95 % confidence, claims by gaussian" in words
