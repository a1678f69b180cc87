"""Measures strangers' networks beside autograd: `python -m jobs.engines`.

Each network is measured in a process of its own, in turn with its peers, by processor time. Prints
a Markdown table and what it amounts to.
"""

import argparse
import dataclasses
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from .measure import Row
from .networks import NETWORKS

_LIMIT = 300.0  # seconds a network


def main(arguments: Sequence[str] | None = None) -> None:
    """Measures networks by arguments of a command line; None for those of this process."""
    parser = argparse.ArgumentParser(prog="python -m jobs.engines", description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="networks; else all")
    parser.add_argument("--models", type=int, default=16, help="that are trained together")
    parser.add_argument("--batch", type=int, default=16, help="examples of a step")
    parser.add_argument("--rounds", type=int, default=3, help="of all ways in turn")
    parser.add_argument("--compiled", action="store_true", help="compile vmap over models, too")
    parser.add_argument("--audit", action="store_true", help="a whole audit of each network, too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to this file")
    options = parser.parse_args(arguments)
    names = options.only or list(NETWORKS)
    for name in names:
        if name not in NETWORKS:
            parser.error(f"--only: is {name!r}, but must be one of {', '.join(NETWORKS)}")
    sys.stdout.write(f"{_machine()}\n\n{_HEAD}\n")
    rows = []
    for name in names:
        row = _measured(name, options)
        rows.append(row)
        sys.stdout.write(_line(row) + "\n")
        sys.stdout.flush()
        if options.json:  # after each network: the rest may be stopped
            listed = [dataclasses.asdict(row) for row in rows]
            options.json.write_text(json.dumps(listed, indent=1) + "\n")
    sys.stdout.write("\n" + _summary(rows) + "\n")


def _machine() -> str:
    load = os.getloadavg()[0]
    return f"{platform.processor() or platform.machine()}, one thread, load {load:.1f} at the start"


def _measured(name: str, options: argparse.Namespace) -> Row:
    """Measures a network in a child process; a row with the problem if that fails."""
    numbers = [str(number) for number in (options.models, options.batch, options.rounds)]
    flags = [flag for flag in ("compiled", "audit") if getattr(options, flag)]
    command = [sys.executable, "-W", "ignore", "-m", "jobs.engines.measure", name, *numbers, *flags]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    try:
        answer = subprocess.run(
            command, capture_output=True, text=True, env=environment, timeout=_LIMIT, check=False
        )
        return Row(**json.loads(answer.stdout.splitlines()[-1]))
    except (subprocess.TimeoutExpired, IndexError, ValueError) as error:
        return Row(name, problem=f"not measured ({type(error).__name__})")


_HEAD = """\
| network | parameters | way | error | ours, ms | other ways that are right, ms | `vmap(grad)` model by model | ratio | compiled | audit |
| --- | --: | --- | --: | --: | --- | --: | --: | --: | --- |"""  # noqa: E501


def _line(row: Row) -> str:
    if row.problem:
        return f"| {row.name} | | {row.problem} | | | | | | | |"
    others = ", ".join(f"{way} {ms:.3g}" for way, ms in row.ways.items() if way != row.way)
    by_model = "does not run" if row.by_model is None else f"{row.by_model:.3g}"
    ratio = "" if row.ratio is None else f"{row.ratio:.1f}"
    compiled = "" if row.compiled is None else f"{row.compiled:.3g}"
    cells = (
        row.name, f"{row.parameters:,}", row.way, f"{row.error:.0e}", f"{row.ours:.3g}", others,
        by_model, ratio, compiled, row.audit,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _summary(rows: Sequence[Row]) -> str:
    """Returns medians, and how often another way than the one taken is faster."""
    done = [row for row in rows if not row.problem]
    ratios = sorted(row.ratio for row in done if row.ratio is not None)
    lines = [f"{len(done)} of {len(rows)} computed; the largest error is {_worst(done):.0e}."]
    if ratios:
        lines.append(
            f"`vmap(grad)` model by model takes {statistics.median(ratios):.1f} times as long "
            f"(median of {len(ratios)}; {ratios[0]:.2f} to {ratios[-1]:.1f})."
        )
    gains = sorted(row.ours / min(row.ways.values()) for row in done if row.ways)
    if gains:
        slower = sum(gain > 1.1 for gain in gains)
        lines.append(
            f"Another right way is more than a tenth faster on {slower}, at most {gains[-1]:.2f} "
            "times as fast."
        )
    return " ".join(lines)


def _worst(rows: Sequence[Row]) -> float:
    return max((row.error for row in rows), default=0.0)


if __name__ == "__main__":
    main()
