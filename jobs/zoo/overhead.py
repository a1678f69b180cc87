"""Costs of watching: `python -m jobs.zoo.overhead`, seconds of runs of the healthy scripts.

Each run is a child process with one thread: by itself, with a canary in every other step, and
inspected.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from dpaudit_ray.isolation import Limits
from dpaudit_ray.scripts import script_runs
from dpaudit_ray.scripts.protocol import RunRequest
from dpaudit_ray.scripts.script_runs import Target
from jobs.zoo.healthy import SCRIPTS

WAYS: dict[str, dict[str, Any]] = {"canaries": {"canary": "steps"}, "inspected": {"inspects": True}}
LIMITS = Limits(600.0)


def seconds(name: str, repeats: int) -> dict[str, float]:
    """Medians of the same number of runs of each kind, taken in turn."""
    target = Target(Path(__file__).parent / "healthy.py", name)
    taken: dict[str, list[float]] = {"by itself": [], **{way: [] for way in WAYS}}
    with script_runs.sandbox_for(target) as sandbox:
        # The process that all others are forked from is there after the first.
        script_runs.run_once(sandbox, target, RunRequest(seed=0), LIMITS, 1)
        for number in range(repeats):
            ended = sandbox.call("jobs.zoo.healthy:run_unwatched", name, LIMITS)
            taken["by itself"].append(ended.seconds)
            for way, asked in WAYS.items():
                seen = script_runs.run_once(
                    sandbox, target, RunRequest(seed=number, **asked), LIMITS, 1
                )
                taken[way].append(seen.ended.seconds)
    return {way: statistics.median(each) for way, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m jobs.zoo.overhead", description=__doc__)
    parser.add_argument("names", nargs="*", default=SCRIPTS, help="functions of healthy.py")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print("| script | by itself, s | canaries | inspected |\n|---|---|---|---|", flush=True)
    for name in given.names:
        alone, *others = seconds(name, given.repeats).values()
        more = " | ".join(f"{each:.2f} ({100 * (each / alone - 1):+.0f} %)" for each in others)
        print(f"| {name} | {alone:.2f} | {more} |", flush=True)


if __name__ == "__main__":
    main()
