"""A training that works, except in processes that play a broken device."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np

TRAINER = "DPAUDIT_TEST_BROKEN_TRAINER"  # a file: the first process to write its id is broken
NODE = "DPAUDIT_TEST_BROKEN_NODE"  # set on a node all of whose processes are


def train(member: bool, seed: int) -> float:
    """N(2 b, 1), a function of the seed."""
    if _broken():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")
    time.sleep(0.02)
    return _score(member, seed)


def _score(member: bool, seed: int) -> float:
    return float(np.random.default_rng(seed).normal() + 2 * member)


def _broken() -> bool:
    if NODE in os.environ:
        return True
    if TRAINER not in os.environ:
        return False
    file = Path(os.environ[TRAINER])
    try:
        file.open("x").write(str(os.getpid()))
    except FileExistsError:
        return file.read_text() == str(os.getpid())
    return True


def hang(member: bool, seed: int) -> float:
    """As `train`, but what would fail hangs."""
    while _broken():
        time.sleep(1)
    return train(member, seed)


def slow(member: bool, seed: int) -> float:
    """As `train`, but what would fail takes most of a second."""
    time.sleep(0.8 if _broken() else 0.02)
    return _score(member, seed)
