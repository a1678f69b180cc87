"""What is printed: figures people can read, and labels exactly as the user wrote them."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from dpaudit_ray.cli import terminal
from dpaudit_ray.orchestration.progress import AuditProgress, Progress


def progress(done: int, trials: int = 100, label: str = "loss") -> Progress:
    return Progress((AuditProgress(label, trials, done, 1.5, 5.545),))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0s"),
        (0.4, "<1s"),
        (8.2, "8s"),
        (59.4, "59s"),
        (59.6, "1m 00s"),
        (200, "3m 20s"),
        (3599.7, "1h 00m"),
        (18_420, "5h 07m"),
        (math.nan, "?"),
        (math.inf, "?"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert terminal.duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234567, "1,234,567"),
        (0.5, "0.500"),
        (1234.5, "1,234.500"),
        (math.nan, "–"),
        (None, "–"),
        (math.inf, "inf"),
        (np.float64(2.0), "2.000"),
        (True, "True"),
        ("gaussian", "gaussian"),
    ],
)
def test_figures(value: object, text: str) -> None:
    assert terminal.number(value) == text


def test_tables_show_labels_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither markup nor emoji, and nothing is cut, however long."""
    labels = ["layers=[8, 3]", "[/red]", "[bold]x", ":smile:", "x" * 500]
    terminal.show_table("a title", ("audit", "trials"), [(label, 1000) for label in labels])
    title, heads, *rows = capsys.readouterr().out.splitlines()
    assert title == "a title"
    assert heads.split() == ["audit", "trials"]
    assert [row.rsplit(maxsplit=1) for row in rows] == [[label, "1,000"] for label in labels]


def test_tables_fit_their_text_in_a_narrow_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    terminal.show_table("", ("audit", "trials"), [("y" * 60, 7)])
    assert "y" * 60 in capsys.readouterr().out


def test_json_has_no_nan(capsys: pytest.CaptureFixture[str]) -> None:
    value = {"a": [math.nan, 1.5], "b": (np.int64(3), np.bool_(True)), "c": math.inf, "d": None}
    terminal.show_json(value)
    assert json.loads(capsys.readouterr().out) == {
        "a": [None, 1.5],
        "b": [3, True],
        "c": "inf",
        "d": None,
    }


def test_progress_without_a_terminal_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with terminal.Display(plain=True) as display:
        for second, done in [(0, 0), (1, 10), (4, 40), (6, 60), (7, 70), (10, 100), (10, 100)]:
            now = 100.0 + second
            display(progress(done))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(
        "0/100 trials, 0/s, ETA ?; loss: 0/100, eps >= 1.50 (if-gaussian, any t"
    )
    assert lines[1].startswith("60/100 trials, 10/s, ETA 4s; loss: 60/100")
    assert lines[2].startswith("100/100 trials, 10/s, ETA 0s")
    assert len(lines) == 3


def test_the_rate_leaves_out_what_was_there_before(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    with terminal.Display(plain=True) as display:
        display(progress(90))
        now = 10.0
        display(progress(95))
    assert capsys.readouterr().out.splitlines()[-1].startswith("95/100 trials, 0.5/s, ETA 10s")


def test_a_live_display_takes_any_label(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.Display(plain=False) as display:
        display(progress(40, label="[/red]"))
    assert "[/red]" in capsys.readouterr().out


NASTY = "a\x1b[31mred\x1b[0m\rover\u202ethere\x9b2J\x07"
SHOWN = r"a\x1b[31mred\x1b[0m\rover\u202ethere\x9b2J\x07"


def test_no_escape_code_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.say(NASTY)
    terminal.complain(NASTY)
    terminal.add(NASTY)
    terminal.pass_on(NASTY + "\n")
    terminal.explain(NASTY)
    terminal.show_table(NASTY, ("audit", "trials"), [(NASTY, 7), ("two\nlines", 8)])
    with terminal.Display(plain=True) as display:
        display(progress(100, label=NASTY))
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert said.count(SHOWN) == 7  # where lines are filled, white space is a space
    assert r"two\nlines" in said
    assert not set("\x07\x9b\r\u202e") & set(said)
    assert "\x1b" not in said


def test_no_escape_code_reaches_a_live_display(capsys: pytest.CaptureFixture[str]) -> None:
    with terminal.Display(plain=False) as display:
        display(progress(40, label="\x1b[31mred\x07"))
    said = capsys.readouterr().out
    assert r"\x1b[31mred\x07" in said
    assert "\x1b[31m" not in said
    assert "\x07" not in said
