"""The house: rooms stand on rooms below them, and no two modules import each other."""

import ast
import functools
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import dpaudit_ray

PACKAGE = Path(dpaudit_ray.__file__).parent
# From the ground up; a room may import what comes before it.
ROOMS = (
    *("errors", "seeds", "imports", "plugins"),
    "isolation",
    *("stats", "accounting"),
    "storage",
    "engines",
    *("data", "models", "adversaries", "mechanisms"),
    *("sweep", "plan"),
    "orchestration",
    *("report", "result", "callbacks", "api", "release_audit", "forecast"),
    *("opacus", "scripts", "releases", "testing"),
    *("cli", "__main__"),
)


def modules() -> dict[str, Path]:
    found = {}
    for file in PACKAGE.rglob("*.py"):
        parts = file.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imported(name: str, file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Modules of the package that one imports: at any place, for types only too."""
    own = name.split(".") if name else []
    package = own if file.name == "__init__.py" else own[:-1]
    for node in ast.walk(ast.parse(file.read_text())):
        if not isinstance(node, ast.ImportFrom) or not node.level:
            continue
        base = package[: len(package) - node.level + 1]
        target = ".".join([*base, *([node.module] if node.module else [])])
        for alias in node.names:
            if (target, alias.name) == ("", "__version__"):
                continue  # of the package itself, which loads nothing with it
            longer = f"{target}.{alias.name}".lstrip(".")
            yield longer if longer in known else target


@functools.cache
def graph() -> dict[str, set[str]]:
    known = modules()
    return {name: set(imported(name, file, known)) - {name} for name, file in known.items() if name}


def test_every_file_is_in_a_room():
    assert {name.partition(".")[0] for name in graph()} == set(ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_stands_on_rooms_below_it(room):
    below = ROOMS[: ROOMS.index(room) + 1]
    for name, targets in graph().items():
        if name.partition(".")[0] == room:
            upwards = {target for target in targets if target.partition(".")[0] not in below}
            assert not upwards, f"{name} imports {', '.join(sorted(upwards))}"


def test_no_modules_import_each_other_in_a_circle():
    try:
        graphlib.TopologicalSorter(graph()).prepare()
    except graphlib.CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_an_import_upwards_would_be_found(tmp_path):
    file = tmp_path / "low.py"
    file.write_text(
        "from typing import TYPE_CHECKING\nfrom .. import seeds\n"
        "if TYPE_CHECKING:\n    from ..cli.main import main\n"
    )
    assert {*imported("stats.low", file, modules())} == {"seeds", "cli.main"}
