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


PLAYED = []


def record(title, columns, whole=False):
    """Records a table and the name of the function that prints it."""
    PLAYED.append((sys._getframe(1).f_code.co_name, (title, columns, whole)))


def show(printer, table) -> None:
    """Prints a table between lines, the first of which names the function that prints it."""
    terminal.say(f"TABLE {printer}")
    show_table(*table)
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
    dpaudit("risk", "--epsilon", "8", "--delta", "1e-5")
    for run in (sampled, exact):
        dpaudit("status", run)
        dpaudit("verify", run)
        dpaudit("plan", f"{run}/sweep.yaml", "--storage-path", f"{run}/..")
    with contextlib.chdir(f"{sampled}/.."):  # names as short as people type them
        dpaudit("status", "sampled", "exact")
    dpaudit("report", sampled, "--format", "table")
    dpaudit("compare", sampled, exact)
    few = tables._MANY
    for tables._MANY in (0, few):
        dpaudit("run", f"{sampled}/sweep.yaml", "--storage-path", f"{sampled}/..",
                "--executor", "inline")  # fmt: skip


if __name__ == "__main__":
    show_table, terminal.show_table = terminal.show_table, record
    bench.measure = lambda *options: MEASURED
    sampled, exact, *widths = sys.argv[1:]
    play(sampled, exact)
    for width in widths:
        size = struct.pack("HHHH", 24 if int(width) else 0, int(width), 0, 0)
        fcntl.ioctl(1, termios.TIOCSWINSZ, size)
        terminal.say(f"WIDTH {width}")
        for printer, table in PLAYED:
            show(printer, table)
