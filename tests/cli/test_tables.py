"""Every table in a terminal of every width: names and numbers stay whole, no line is too long."""

import ast
from pathlib import Path
from typing import get_args

import pytest

from dpaudit_ray import cli
from dpaudit_ray.cli import start_verbs
from dpaudit_ray.sweep import schema
from tests.command import completed, inline, write_sweep
from tests.screen import Screen

PLAYED = Path(__file__).with_name("played_tables.py")
WIDTHS = {"0": 80, "40": 40, "60": 60, "80": 80, "100": 100}  # 80 columns where it is not known
MECHANISM = {"name": "landscape", "steps": 6, "batch_size": 2, "noise_multiplier": 2.0}
AUDIT = {"trials": 40, "delta": 1e-5, "record_every": 3, "estimators": ["accuracy"]}
GRID = {
    "mechanism.noise_multiplier": [2.0, 1234.5],
    "mechanism.clip_norm": [1.0000000001, 1.0000000002],
}


@pytest.fixture(scope="module")
def screens(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, list[str]]]]:
    """By width of the terminal: tables, by the name of the function that prints them, as lines."""
    storage = tmp_path_factory.mktemp("runs")
    raw = {"name": "sampled", "mechanism": MECHANISM, "adversary": {"name": "landscape"},
           "audit": AUDIT, "grid": GRID}  # fmt: skip
    completed(inline(write_sweep(storage, raw), storage))
    raw |= {
        "name": "exact",
        "mechanism": MECHANISM | {"backend": "exact"},
        "grid": {"mechanism.noise_multiplier": [1.0, 2.0]},
    }
    completed(inline(write_sweep(storage, raw), storage))
    screen = Screen(
        PLAYED, storage / "sampled", storage / "exact", *WIDTHS, drawn=200, history=9000
    )
    assert screen.end() == 0, "\n".join(screen.shown)
    by_width: dict[str, list[tuple[str, list[str]]]] = {}
    tables: list[tuple[str, list[str]]] = []
    inside = False
    for line in screen.lines:
        if line.startswith("WIDTH "):
            tables = by_width.setdefault(line.split()[1], [])
        elif line.startswith("TABLE "):
            tables.append((line.split()[1], []))
            inside = True
        elif line == "END":
            inside = False
        elif tables and inside:
            tables[-1][1].append(line)
    assert [*by_width] == [*WIDTHS]
    return by_width


def prints_table(call: ast.Call) -> bool:
    return ast.unparse(call.func) == "terminal.show_table"


def test_every_table_of_the_package_is_played(screens):
    printers = set()
    for file in Path(cli.__file__).parent.glob("*.py"):
        for function in ast.walk(ast.parse(file.read_text())):
            calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
            if isinstance(function, ast.FunctionDef) and any(map(prints_table, calls)):
                printers.add(function.name)
    for tables in screens.values():
        assert {printer for printer, _ in tables} == printers
        assert len(tables) == len(screens["100"])


@pytest.mark.parametrize("width", WIDTHS)
def test_no_line_of_a_table_is_longer_than_the_terminal(width, screens):
    for printer, lines in screens[width]:
        assert max(map(len, lines)) <= WIDTHS[width], (printer, lines)


@pytest.mark.parametrize("width", WIDTHS)
def test_words_and_numbers_are_whole_at_every_width(width, screens):
    for (printer, lines), (_, wide) in zip(screens[width], screens["100"], strict=True):
        assert {*" ".join(lines).split()} == {*" ".join(wide).split()}, printer


@pytest.mark.parametrize("width", WIDTHS)
def test_every_name_begins_a_line(width, screens):
    lists = [lines for printer, lines in screens[width] if printer == "list_names"]
    for kind, lines in zip(get_args(start_verbs.Kind), lists, strict=True):
        first_words = [line.split()[0] for line in lines if not line.startswith(" ")]
        assert first_words[1:] == [entry.name for entry in schema.entries(kind)]
