"""Share of whole audits that call a script broken; each has another seed of `dpaudit audit`.

`python -m jobs.zoo.alarms FILE jobs/zoo/healthy.py:mlp --last 199 --processes 2` appends a line of
JSON an audit to FILE, and goes on where an earlier call was cut. `python -m jobs.zoo.alarms FILE`
prints the table of what FILE has. Layers, budget and runs are those of `dpaudit audit`; but the
process that has imported everything, from which runs are forked, serves all audits of a script.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing
import os
import signal
import statistics
import sys
from pathlib import Path
from typing import Any

import psutil

from dpaudit_ray.errors import ScriptError
from dpaudit_ray.report.verdict import Verdict
from dpaudit_ray.scripts.script_audit import Audit, Options
from dpaudit_ray.scripts.script_runs import LocalRunner, Target
from dpaudit_ray.stats import clopper_pearson_lower, clopper_pearson_upper

HEAD = (
    "| script | audits | VIOLATION | share, 95 % | by layer | INCONCLUSIVE | processor s |",
    "|---|---|---|---|---|---|---|",
)


class LastingRunner(LocalRunner):
    """One run at a time; the process that runs are forked from outlasts an audit."""

    def __init__(self, target: Target) -> None:
        super().__init__(target, cores=1)

    def close(self) -> None:
        """Nothing: the next audit's runs are forked from the same process."""

    def end(self) -> None:
        super().close()


def processor_seconds() -> float:
    """Returns CPU seconds of this process and its children, with their ended processes."""
    this = psutil.Process()
    times = [process.cpu_times() for process in (this, *this.children())]
    return sum(t.user + t.system + t.children_user + t.children_system for t in times)


def audit(target: Target, options: Options, runner: LocalRunner) -> dict[str, Any]:
    """A line of the file: the audit's verdict, what broke the promise, trials and seconds."""
    began = processor_seconds()
    line: dict[str, Any] = {"script": str(target), "seed": options.seed}
    try:
        judged = Audit(target, runner, options, lambda _: None).verdict()
    except ScriptError as error:
        line |= {"verdict": "none", "help": [str(error)]}
    else:
        broken = [[item.layer, item.look, str(item)] for item in judged.violations]
        line |= {
            "verdict": judged.verdict, "violations": broken, "help": judged.help,
            "sentence": judged.sentence, "measured": [m.epsilon for m in judged.measured],
            "runs": judged.runs, "step_trials": judged.step_trials,
            "run_trials": judged.run_trials, "seconds": judged.seconds,
        }  # fmt: skip
    return line | {"processor": processor_seconds() - began}


def read(file: Path) -> list[dict[str, Any]]:
    """The lines of a file, without what was cut off while it was written."""
    lines = []
    for text in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


def work(file: Path, audits: list[tuple[Target, Options]], parent: int) -> None:
    """One process: its audits after each other, while the process that started it is there."""
    runners = {target: LastingRunner(target) for target, _ in audits}
    for target, options in audits:
        if os.getppid() != parent:
            break
        line = json.dumps(audit(target, options, runners[target]), ensure_ascii=False)
        with file.open("a", encoding="utf-8") as out:
            out.write(f"\n{line}")  # after whatever was cut
    for runner in runners.values():
        runner.end()


def row(script: str, lines: list[dict[str, Any]]) -> str:
    """A line of the table; the interval is that of Clopper and Pearson."""
    broken = [line for line in lines if line["verdict"] == Verdict.VIOLATION]
    n, k = len(lines), len(broken)
    low = float(clopper_pearson_lower(k, n, 0.025))
    high = float(clopper_pearson_upper(k, n, 0.025))
    first = sorted(line["violations"][0][0] for line in broken)
    layers = collections.Counter(f"L{layer}" for layer in first)
    by_layer = ", ".join(f"{name}: {count}" for name, count in layers.items())
    unsure = sum(line["verdict"] == Verdict.INCONCLUSIVE for line in lines)
    seconds = [line["processor"] for line in lines]
    cells = (
        script, n, k, f"{low:.3f} to {high:.3f}", by_layer, unsure,
        f"{statistics.median(seconds):.0f} ({min(seconds):.0f} to {max(seconds):.0f})",
    )  # fmt: skip
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m jobs.zoo.alarms", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("scripts", nargs="*", help="path/to/script.py:function")
    parser.add_argument("--first", type=int, default=0, help="seed of the first audit")
    parser.add_argument("--last", type=int, default=19)
    parser.add_argument("--layers", default="0,1,2", help="0 one run, 1 steps, 2 runs")
    parser.add_argument("--processes", type=int, default=1, help="of one thread each")
    given = parser.parse_args()
    done = {(line["script"], line["seed"]) for line in read(given.file)}
    layers = tuple(map(int, given.layers.split(",")))
    audits = []
    for seed in range(given.first, given.last + 1):
        for script in given.scripts:
            if (target := Target.from_text(script)) is None:
                parser.error(f"{script} is no script; write path/to/script.py:function")
            if (str(target), seed) not in done:
                audits.append((target, Options(layers=layers, seed=seed)))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(4))  # daemons end with it
    context = multiprocessing.get_context("spawn")
    processes = [
        context.Process(
            target=work, args=(given.file, audits[k :: given.processes], os.getpid()), daemon=True
        )
        for k in range(given.processes)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    by_script = collections.defaultdict[str, list[dict[str, Any]]](list)
    for line in read(given.file):
        by_script[line["script"]].append(line)
    print(*HEAD, *(row(script, lines) for script, lines in by_script.items()), sep="\n")
    if any(process.exitcode for process in processes):
        sys.exit("a process failed: call this again")


if __name__ == "__main__":
    main()
