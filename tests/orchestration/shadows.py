"""A training whose score rests on what was prepared, and preparations of all kinds."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

LOG = (
    "DPAUDIT_TEST_PREPARED"  # a folder: a file for each time that a part is made, with the process
)
FAILS = "DPAUDIT_TEST_UNPREPARED"  # the part that fails
SECONDS = "DPAUDIT_TEST_PREPARES"  # how long a part takes

Arrays = Mapping[str, np.ndarray]


def shadow(part: int, seed: int) -> Arrays:
    if folder := os.environ.get(LOG):
        (Path(folder) / f"{part}-{time.time_ns()}").write_text(str(os.getpid()))
    time.sleep(float(os.environ.get(SECONDS, 0)))
    if os.environ.get(FAILS) == str(part):
        raise ValueError("no memory left")
    weights = np.random.default_rng(seed).normal(size=(3, 1)).astype(np.float32)
    return {"weights": weights, "part": np.array(part), "none": np.empty((0, 2), dtype=np.int8)}


def listing(part: int, seed: int) -> Any:
    """Returns an object that cannot be stored."""
    return {"weights": np.array([{}], dtype=object)}


def train(member: bool, seed: int, prepared: tuple[Arrays, ...], noise: float = 1.0) -> float:
    """N(2 b, noise²), moved by what was prepared."""
    assert [int(each["part"]) for each in prepared] == list(range(len(prepared)))
    moved = float(sum(each["weights"].sum() for each in prepared))
    return moved + float(noise * np.random.default_rng(seed).normal() + 2 * member)
