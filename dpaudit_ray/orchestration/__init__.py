"""Drives a sweep: packs to trainers, scores to the aggregator, estimates to the run directory.

The `driver` hands packs to the `dispatcher`, which has trainers (`workers`) that an executor runs,
in this process or on a Ray cluster. Ray is imported in `ray_executor`, `actors` and `submission`
only; everything else runs and is tested without it.
"""

from typing import Literal

ExecutorName = Literal["ray", "inline"]  # each is a file here, `<name>_executor`
