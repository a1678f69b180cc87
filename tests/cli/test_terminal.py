"""What is printed: figures people can read, and labels exactly as the user wrote them."""

import json
import math
import re
import sys

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from dpaudit_ray.cli import terminal
from dpaudit_ray.cli.live_view import Display, View
from dpaudit_ray.orchestration.progress import AuditProgress, Progress
from dpaudit_ray.report import verdict
from tests.command import inline, write_sweep


def progress(done: int, trials: int = 100, label: str = "loss") -> Progress:
    return Progress((AuditProgress(label, trials, done, 1.5, 5.545, 1e-5, assumes="if"),))


def test_durations_and_numbers_are_as_people_read_them():
    durations = {
        0.0: "0s", 0.4: "<1s", 8.2: "8s", 59.4: "59s", 59.6: "1m 00s", 200: "3m 20s",
        3599.7: "1h 00m", 18_420: "5h 07m", math.nan: "?", math.inf: "?",
    }  # fmt: skip
    assert {seconds: terminal.duration(seconds) for seconds in durations} == durations
    numbers = [
        (1234567, "1,234,567"), (0.5, "0.500"), (1234.5, "1,234.500"), (math.nan, "–"),
        (None, "–"), (math.inf, "inf"), (np.float64(2.0), "2.000"), (True, "True"),
        ("gaussian", "gaussian"), (0.0004, "4.0e-4"), (0.0, "0"),
    ]  # fmt: skip
    for value, text in numbers:
        assert terminal.number(value) == text


def test_tables_show_labels_as_they_are(capsys):
    """Neither markup nor emoji, and nothing is cut, however long."""
    labels = ["layers=[8, 3]", "[/red]", "[bold]x", ":smile:", "x" * 500]
    terminal.show_table("a title", {"audit": labels, "trials": [1000] * 5, "left out": None})
    title, heads, *rows = capsys.readouterr().out.splitlines()
    assert title == "a title"
    assert heads.split() == ["audit", "trials"]
    assert [row.rsplit(maxsplit=1) for row in rows] == [[label, "1,000"] for label in labels]


def test_json_has_no_nan(capsys):
    value = {"a": [math.nan, 1.5], "b": (np.int64(3), np.bool_(True)), "c": math.inf, "d": None}
    terminal.show_json(value)
    assert json.loads(capsys.readouterr().out) == {
        "a": [None, 1.5],
        "b": [3, True],
        "c": "inf",
        "d": None,
    }


def test_tables_fold_labels_on_a_narrow_terminal(capsys, monkeypatch):
    """24 characters stay in one line; numbers are whole; heads of two lines stand above them."""
    columns = {
        "audit": ["x" * 30, "y" * 10],
        "trials": [1000, 2000],
        "claimed\neps": [2.25, terminal.marked("7.750", above_claim=True)],
    }
    monkeypatch.setattr(terminal, "interactive", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    shown = {}
    for width in (50, 42, 26):
        monkeypatch.setenv("COLUMNS", str(width))
        terminal.show_table("", columns)
        shown[width] = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
        assert all(len(line) <= width for line in shown[width])
    assert [line.split() for line in shown[50]] == [
        ["claimed"],
        ["audit", "trials", "eps"],
        ["x" * 30, "1,000", "2.250"],
        ["y" * 10, "2,000", "!", "7.750"],
    ]
    assert [line.split() for line in shown[42][2:4]] == [["x" * 25, "1,000", "2.250"], ["x" * 5]]
    assert shown[26] == [
        "audit", "x" * 26, "x" * 4, "trials 1,000", "claimed eps 2.250",
        "audit " + "y" * 10, "trials 2,000", "claimed eps ! 7.750",
    ]  # fmt: skip
    terminal.show_table("", columns, unlimited=True)
    assert "x" * 30 in capsys.readouterr().out


@pytest.mark.parametrize("width", [1, 7, 26, 33, 60])
@pytest.mark.parametrize("label", ["x" * 120, "数据" * 30, "a " * 60, "", "e\u0301" * 60])
def test_no_label_makes_a_table_wider_than_the_terminal(label, width, capsys, monkeypatch):
    monkeypatch.setattr(terminal, "interactive", lambda: True)
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(width))
    terminal.show_table("", {"name": [label], "what it is": ["a line of words"], "trials": [1000]})
    lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    assert max(map(cell_len, lines)) <= max(width, 2), "a wide character takes two columns"
    assert width < 6 or "1,000" in "".join(lines)


def test_what_is_written_to_nobody_is_no_error(monkeypatch):
    def closed(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("typer.echo", closed)
    silenced: list[object] = []
    monkeypatch.setattr(terminal, "silence", lambda *streams: silenced.extend(streams))
    terminal.say("out")
    terminal.complain("error")
    assert silenced == [sys.stdout, sys.stderr]


NASTY = "a\x1b[31mred\x1b[0m\rover\u202ethere\x9b2J\x07"
SHOWN = r"a\x1b[31mred\x1b[0m\rover\u202ethere\x9b2J\x07"


def test_no_escape_code_reaches_the_terminal(capsys):
    terminal.say(NASTY)
    terminal.complain(NASTY)
    terminal.add(NASTY)
    terminal.pass_on(NASTY + "\n")
    terminal.explain(NASTY)
    terminal.show_table(NASTY, {"audit": [NASTY, "two\nlines"], "trials": [7, 8]})
    with Display() as display:
        display(progress(99, label=NASTY))
    captured = capsys.readouterr()
    said = captured.out + captured.err
    assert said.count(SHOWN) == 6  # where lines are filled, white space is a space
    assert r"two\nlines" in said
    assert not set("\x07\x9b\r\u202e") & set(said)
    assert "\x1b" not in said


@pytest.mark.parametrize("label", ["[/red]", NASTY])
def test_pictures_show_labels_as_they_are(label):
    view = View(progress(40, label=label), "", 0.0, 5.0, 12.0)
    console = Console(width=100, height=24, **terminal.VERBATIM)
    with console.capture() as captured:
        console.print(view.picture(100, 24))
    shown = captured.get()
    assert (SHOWN if label == NASTY else label) in shown
    assert not set("\x07\x9b\r\u202e\x1b") & set(shown)


def test_a_second_ctrl_c_while_claims_are_judged_says_how_to_resume(light, tmp_path, monkeypatch):
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verdict, "current", interrupted)
    done = inline(write_sweep(tmp_path, light), tmp_path)
    assert done.code == 4
    assert done.err == "dpaudit: stopped; finished packs are safe: run the same command to resume\n"
