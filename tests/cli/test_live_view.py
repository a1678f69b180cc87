"""The live view: its pictures fit and show what matters first; and as a user sees it."""

import dataclasses
import math
import re
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len
from rich.console import Console

from dpaudit_ray.cli import live_view
from dpaudit_ray.cli.live_view import View, final_line
from dpaudit_ray.orchestration.progress import Activity, AuditProgress, Progress
from tests.command import dpaudit, write_sweep
from tests.pace import Pace
from tests.screen import DPAUDIT, Screen


def audit(label: str, done: int, **more: object) -> AuditProgress:
    return AuditProgress(label, 2000, done, 1.25, 13.207, 1e-5, **more)  # type: ignore[arg-type]


def twenty_audits() -> Progress:
    """Twelve are done, of which one is above its claim; three run, one was given up."""
    done = [2000] * 12 + [800, 0, 0] + [0] * 4 + [120]
    audits = [
        audit(f"model=模型{i}, adversary=biased-dimension choice=simulated, clip_norm={i}", n)
        for i, n in enumerate(done)
    ]
    audits[7] = dataclasses.replace(audits[7], epsilon_lower=13.487)
    at_work = {"trainers": 3, "packs_in_flight": 3, "pack_seconds": 1.0}
    running, over = frozenset({12, 13, 14}), frozenset({19})
    activity = Activity(failed={19: 60}, running=running, over=over, **at_work)
    return Progress(tuple(audits), activity)


def shown(progress: Progress, width: int, height: int, *pace: float) -> list[str]:
    view = View(progress, "", 0, *(pace or (37.0, 95.0)))
    console = Console(width=width, height=height)
    with console.capture() as captured:
        console.print(view.picture(width, height))
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize(
    ("width", "height"), [(20, 3), (40, 5), (60, 10), (80, 24), (140, 40), (300, 5), (20, 40)]
)
def test_pictures_fit(width, height):
    for progress in (twenty_audits(), Progress(twenty_audits().audits[:1])):
        lines = shown(progress, width, height)
        assert 0 < len(lines) < height
        assert max(map(cell_len, lines)) <= width


def test_running_audits_come_first_and_the_rest_is_counted():
    totals, legend, _, *rows, rest = shown(twenty_audits(), 80, 14)
    assert totals == "24,920 / 40,000 trials, 60 failed  37 trials/s, ETA 1m 35s"
    assert legend == "audit: model, clip_norm; all: adversary=biased-dimension choice=simulated"
    assert [row.split()[1] for row in rows] == ["12", "13", "14", "7", "19"]
    assert rest == "+15 more: 11 done, 4 waiting"


def test_a_bound_above_its_claim_is_not_lost_among_those_that_are_done():
    (row,) = (line for line in shown(twenty_audits(), 100, 24) if "13.49" in line)
    assert "! 13.49" in row
    assert final_line(twenty_audits(), 60).plain == (
        "24,920 / 40,000 trials, 60 failed in 1m 00s; 12 of 20 audits done, 1 above its claim (!)"
    )


def test_a_small_bound_keeps_its_digits():
    small = dataclasses.replace(audit("one", 200), epsilon_lower=0.0012)
    progress = Progress((small,))
    assert "1.2e-3" in "".join(shown(progress, 100, 24))
    assert "eps >= 1.2e-3 so far" in View(progress, "", 0, 1, 1).log_line


def test_decided_audits_and_preparations_say_so():
    progress = Progress(
        (audit("decided", 420, decided=400), audit("waits", 0, parts_done=3, parts=16))
    )
    _, _, decided, waits = shown(progress, 80, 24)
    assert "420 enough" in decided
    assert "prepared 3 / 16" in waits
    assert "–" in waits, "of no trial there is no bound"


def test_nothing_is_said_of_the_pace_that_is_not_known():
    assert "? trials/s, ETA ?" in shown(twenty_audits(), 80, 24, math.nan, math.nan)[0]
    view = View(twenty_audits(), "", 0, math.nan, math.nan)
    assert view.log_line.startswith("24920/40000 trials, ? trials/s, ETA ?; model=")


def test_a_log_has_a_line_at_first_now_and_then_and_at_the_end(monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)

    def said() -> str:
        deadline = time.time() + 200
        while time.time() < deadline and not (out := capsys.readouterr().out):
            time.sleep(0.01)
        return out

    def trained(done: int, seconds: float) -> Progress:
        known = {"packs_in_flight": 2, "pack_seconds": 0.5, "training_seconds": seconds}
        return Progress((audit("one", 20 * done),), Activity(trainers=2, **known))

    with live_view.Display() as display:
        display.phase("starting Ray")
        now = 112.0
        assert said() == "starting Ray, 12s\n"
        display(Progress((audit("one", 0, assumes="if"),)))
        start = (
            "0/2000 trials, trainers start and import what they run, 0s; one: 0/2000, eps >= – so "
            "far (δ = 1e-5, if), claim"
        )
        assert said().startswith(start)
        for now, done in ((113.0, 10), (115.0, 30), (118.0, 60)):
            display(trained(done, now - 112))
        assert said().startswith("1200/2000 trials, 200 trials/s, ETA 4s; one: 1200/2000, eps >= 1")
        now = 119.0
        display(trained(100, 7.0))
        last = "2000/2000 trials, the last estimates are computed"
        assert said() == f"{last}, 0s\n", "the table has the one ε to quote"
        now = 125.0
        assert said() == f"{last}, 6s\n"
        display.phase("ending Ray")
        now = 132.0
        assert said() == "2000/2000 trials, ending Ray, 7s\n"
        now = 140.0
        ThreadPoolExecutor().submit(display.tell, "the head is gone").result()
        display(Progress((audit("two", 0),)))
    assert capsys.readouterr() == ("", "dpaudit: the head is gone\n"), "a thread's line is the last"


PLAYED = Path(__file__).with_name("played.py")
TOTALS = re.compile(r"[\d,]+ / [\d,]+ trials(, \d+ failed)?  ")  # the picture's first line


@pytest.fixture
def twenty(light: dict[str, Any], pace: Pace, tmp_path: Path) -> list[str | Path]:
    """`dpaudit run` of twenty audits with 100 trials each, in packs of ten."""
    raw = pace.of(light) | {
        "name": "twenty",
        "audit": {"trials": 100, "delta": 1e-5, "estimators": ["accuracy"]},
        "grid": {
            "mechanism.gradient": ["threshold", "constant"],
            "mechanism.noise_multiplier": [1, 1.5, 2, 2.5, 3],
            "mechanism.clip_norm": [1, 2],
        },
    }
    pace.slow(0.1)
    return inline(raw, tmp_path)


@pytest.fixture
def two(light: dict[str, Any], pace: Pace, tmp_path: Path) -> list[str | Path]:
    """Of two audits with 90 trials."""
    pace.slow(0.5)
    return inline(pace.of(light), tmp_path)


def inline(raw: dict[str, Any], folder: Path) -> list[str | Path]:
    sweep = write_sweep(folder, raw)
    return [*DPAUDIT, "run", sweep, "--storage-path", folder, "--executor", "inline"]


def picture(frame: list[str]) -> list[str]:
    """The live view, which must be on the screen once, as the last thing."""
    starts = [place for place, line in enumerate(frame) if TOTALS.match(line)]
    assert len(starts) == 1, "\n".join(frame)
    lines = frame[starts[0] :]
    while lines and not lines[-1]:
        lines.pop()
    return lines


def test_twenty_audits_fit_any_terminal_and_a_stopped_run_goes_on(twenty, pace):
    screen = Screen(*twenty)
    shown = picture(screen.text("trials/s, ETA"))
    totals, legend, heads, first, *_, rest = shown
    assert len(shown) < 24
    assert totals.split()[1:4] == ["/", "2,000", "trials"]
    assert heads.split() == ["audit", "trials", "ε", "≥", "so", "far", "δ", "assumes", "claim"]
    assert legend == "audit: gradient, noise_multiplier, clip_norm"
    assert first.startswith("threshold, 1, 1 ")
    assert first.split()[-1] == "4.38", "the claim is not cut off"
    assert rest == "+8 more: 8 waiting"
    screen.resize(140, 40)
    shown = picture(screen.until(lambda frame: not any(" more: " in line for line in frame)))
    assert len(shown) == 23, "twenty audits, and none is only counted"
    pace.slow(1)
    screen.types(b"\x03")
    words = re.compile("dpaudit: stopping|" + TOTALS.pattern)
    frame = screen.until(lambda frame: sum(bool(words.match(line)) for line in frame) == 2)
    (said,) = (y for y, line in enumerate(frame) if line.startswith("dpaudit: stopping: running"))
    assert said < next(y for y, line in enumerate(frame) if TOTALS.match(line))
    picture(frame)
    assert screen.end() == 4
    assert sum("stopping" in line for line in screen.lines) == 1
    (final,) = (line for line in screen.lines if " of 20 audits done" in line)
    done = int(final.split()[0].replace(",", ""))
    assert final.startswith(f"{done:,} / 2,000 trials in ")
    assert not any("\x1b" in line or "x1b" in line for line in screen.lines)

    pace.hurry()
    again = Screen(*twenty)
    assert again.end() == 0
    assert f"dpaudit: resuming at {done:,} of 2,000 trials" in again.lines
    (final,) = (line for line in again.lines if "20 of 20 audits done" in line)
    assert final.startswith("2,000 / 2,000 trials in ")
    after = again.lines[again.lines.index(final) + 1 :]
    assert after[0].startswith("twenty: eps at delta = ")
    assert not any(TOTALS.match(line) for line in after)
    assert all(len(line) <= 80 for line in after)
    assert after[1] == "audit: gradient, noise_multiplier, clip_norm"


def test_a_terminal_that_is_closed_ends_a_run_gracefully(two, tmp_path):
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        pytest.skip("the tests run under nohup, and so does what they start: it goes on")
    errors = tmp_path / "errors"
    screen = Screen(*two, errors=errors)
    screen.text("trials/s, ETA")
    screen.close()
    assert screen.process.wait(200) == 4
    said = errors.read_text()
    assert "dpaudit: stopping: running packs have 30 s to finish" in said
    assert said.splitlines()[-1].startswith("dpaudit: stopped; finished packs are safe")
    assert "Traceback" not in said
    assert not (tmp_path / "tiny/driver.json").exists()
    assert "not complete" in dpaudit("status", tmp_path / "tiny").out


def test_a_run_under_nohup_outlives_its_terminal(two, pace, tmp_path):
    screen = Screen(*two, hangups=False)
    screen.text("trials/s, ETA")
    screen.close()
    pace.hurry()
    assert screen.process.wait(200) == 0
    assert (tmp_path / "tiny/_SUCCESS").exists()


@pytest.mark.parametrize(
    ("size", "environment", "colour"),
    [((80, 24), {}, "red"), ((140, 40), {"NO_COLOR": "1"}, "default")],
)
def test_messages_stand_above_the_picture_and_a_bound_above_its_claim_is_marked(
    size, environment, colour
):
    screen = Screen(PLAYED, "messages", size=size, environment=environment)
    frame = screen.text("from a signal's handler")
    assert len(picture(frame)) == 9, "one line for what labels share"
    assert screen.colour("! 5.60") == colour
    assert screen.colour("1.50") == "default"
    assert screen.end() == 0
    said = ("dpaudit: from the driver", "UserWarning: of a library",
            "printed by code of the user's", "dpaudit: from a signal's handler")  # fmt: skip
    for text in said:
        (place,) = (y for y, line in enumerate(screen.lines) if text in line)
        assert place < screen.lines.index("said afterwards") - 1
    last = screen.lines[screen.lines.index("said afterwards") - 1]
    assert re.fullmatch(
        r"600 / 600 trials in \S+; 6 of 6 audits done, 1 above its claim \(!\)", last
    )


def test_messages_go_where_standard_error_goes(tmp_path):
    screen = Screen(PLAYED, "messages", errors=tmp_path / "errors")
    assert screen.end() == 0
    assert "from the driver" in (tmp_path / "errors").read_text()
    assert not any("from the driver" in line for line in screen.lines)


def test_no_signal_finds_the_view_locked():
    screen = Screen(PLAYED, "storm")
    assert screen.end() == 0
    struck = [int(line.split()[-1]) for line in screen.lines if "struck" in line]
    (total,) = (int(line.split()[-1]) for line in screen.lines if " all " in line)
    assert total >= 200
    assert sorted(struck) == list(range(1, total + 1)), "none is lost"


def test_phases_are_shown_until_a_pack_has_ended():
    screen = Screen(PLAYED, "phases")
    assert screen.text("starting Ray on this machine, 1s ...")
    assert picture(screen.text("0 / 600 trials  trainers start and import what they run, "))
    assert picture(screen.text("0 / 600 trials  the first packs are trained, "))
    assert picture(screen.text("20 / 600 trials  200 trials/s, ETA 3s"))
    assert picture(screen.text("20 / 600 trials  stopping, 2 packs under way, "))
    assert screen.end() == 0


def test_nothing_stays_of_a_view_that_had_nothing_to_show():
    screen = Screen(PLAYED, "fails")
    screen.text("reading the sweep, ")
    assert screen.end() == 2
    assert not any(screen.lines)
