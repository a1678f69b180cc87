"""What watching costs: `python -m jobs.zoo.overhead`, seconds of runs of the healthy scripts.

Each run is a child process with one thread: by itself, with a canary in every other step, and
looked into.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from dpaudit_ray.isolation import Limits
from jobs.zoo.alarms import SCRIPTS, Script

WAYS: dict[str, dict[str, Any]] = {"canaries": {"canary": "steps"}, "looked into": {"looks": True}}


def seconds(name: str, repeats: int) -> dict[str, float]:
    """Medians of the same number of runs of each kind, taken in turn."""
    script = Script(name)
    script.run(0)  # the process that all others are forked from is there now
    taken: dict[str, list[float]] = {"by itself": [], **{way: [] for way in WAYS}}
    try:
        for number in range(repeats):
            ended = script.alone("jobs.zoo.healthy:run_unwatched", name, Limits(600.0))
            taken["by itself"].append(ended.seconds)
            for way, asked in WAYS.items():
                taken[way].append(script.run(number, **asked).ended.seconds)
    finally:
        script.close()
    return {way: statistics.median(each) for way, each in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m jobs.zoo.overhead", description=__doc__)
    parser.add_argument("names", nargs="*", default=SCRIPTS, help="functions of healthy.py")
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    print("| script | by itself, s | canaries | looked into |\n|---|---|---|---|", flush=True)
    for name in given.names:
        alone, *others = seconds(name, given.repeats).values()
        more = " | ".join(f"{each:.2f} ({each / alone - 1:+.0%})" for each in others)
        print(f"| {name} | {alone:.2f} | {more} |", flush=True)


if __name__ == "__main__":
    main()
