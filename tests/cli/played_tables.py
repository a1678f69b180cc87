"""Every table of the command line: `python played_tables.py SAMPLED EXACT WIDTH...`, in a terminal.

Each width is that of the terminal while its tables are printed; 0 is a terminal of unknown size.
"""

import contextlib
import fcntl
import struct
import sys
import termios
from typing import get_args

from dpaudit_ray.cli import main, start_verbs, tables, terminal
from dpaudit_ray.forecast import bench

ROW = bench.Row("convnet", 550_570, 128, 1.2e9, 32, 0.01234, {32: 0.01234}, 0.0567)
MEASURED = bench.Benchmark("Intel(R) Xeon(R) CPU @ 2.60GHz, a long name", 1, False, 9e10, (ROW,))


def marking(title, columns, whole=False, show=terminal.show_table):
    """Prints the table between lines with the name of the function that prints it."""
    terminal.say(f"TABLE {sys._getframe(1).f_code.co_name}")
    show(title, columns, whole)
    terminal.say("END")


def dpaudit(*arguments: str) -> None:
    sys.argv = ["dpaudit", *arguments]
    with contextlib.suppress(SystemExit):
        main.main()


def play(sampled: str, exact: str) -> None:
    dpaudit("list")
    for kind in get_args(start_verbs.Kind):
        dpaudit("list", kind, "--all")
    dpaudit("list", "mechanisms", "dp-sgd")
    dpaudit("bench")
    for run in (sampled, exact):
        dpaudit("status", run)
        dpaudit("verify", run)
        dpaudit("plan", f"{run}/sweep.yaml", "--storage-path", f"{run}/..")
    dpaudit("report", sampled, "--format", "table")
    dpaudit("compare", sampled, exact)
    few = tables._MANY
    for tables._MANY in (0, few):
        dpaudit("run", f"{sampled}/sweep.yaml", "--storage-path", f"{sampled}/..",
                "--executor", "inline")  # fmt: skip


if __name__ == "__main__":
    terminal.show_table = marking
    bench.measure = lambda *options: MEASURED
    sampled, exact, *widths = sys.argv[1:]
    for width in widths:
        size = struct.pack("HHHH", 24 if int(width) else 0, int(width), 0, 0)
        fcntl.ioctl(1, termios.TIOCSWINSZ, size)
        terminal.say(f"WIDTH {width}")
        play(sampled, exact)
