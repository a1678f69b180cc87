"""`dpaudit` as a user types it, without a process of its own: the real `main()`, in here."""

import contextlib
import dataclasses
import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from dpaudit_ray.cli import main as cli
from dpaudit_ray.storage.run_directory import RunDirectory
from dpaudit_ray.storage.scores import score_frame


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str


def dpaudit(*arguments: str | Path) -> Outcome:
    """Runs `dpaudit ARGUMENTS`; sys.argv, sys.path and the streams are as before afterwards."""
    out, err = io.StringIO(), io.StringIO()
    before = sys.argv, list(sys.path)
    sys.argv = ["dpaudit", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            cli.main()
    except SystemExit as stopped:
        return Outcome(int(stopped.code or 0), out.getvalue(), err.getvalue())
    finally:
        sys.argv, sys.path[:] = before
    raise AssertionError("main() returned")


def completed(outcome: Outcome) -> Outcome:
    """The same, which must have ended in exit 0."""
    assert outcome.code == 0, outcome.out + outcome.err
    return outcome


def refused(*arguments: str | Path) -> str:
    """The one line of a command that must end in exit 2, without its beginning."""
    outcome = dpaudit(*arguments)
    assert outcome.code == 2, outcome
    assert outcome.err.count("\n") == 1, outcome.err
    assert outcome.err.startswith("dpaudit: ")
    assert "Traceback" not in outcome.out + outcome.err
    return outcome.err.removeprefix("dpaudit: ").rstrip("\n")


def write_sweep(folder: Path, sweep: Mapping[str, Any]) -> Path:
    """The sweep as a file in `folder`."""
    file = folder / "sweep.yaml"
    file.write_text(yaml.safe_dump(dict(sweep), sort_keys=False))
    return file


def inline(sweep: Path, storage: Path, *more: str | Path) -> Outcome:
    """`dpaudit run` in this process."""
    return dpaudit("run", sweep, "--storage-path", storage, "--executor", "inline", *more)


def contents(folder: str | Path) -> dict[str, bytes]:
    """Every file below a folder, by its path from there."""
    files = (file for file in Path(folder).rglob("*") if file.is_file())
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def changed(sweep: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """Sets a dotted key, in place, and returns the sweep."""
    *parents, last = key.split(".")
    node = sweep
    for parent in parents:
        node = node.setdefault(parent, {})
    node[last] = value
    return sweep


def stored_scores(run: RunDirectory, audit: str) -> pd.DataFrame:
    """Returns the columns of an audit's score files, in trial order."""
    files = sorted(run.score_files(audit))
    return score_frame(audit, [run.read_scores(audit, *file) for file in files])
