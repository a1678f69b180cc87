"""Trainings of which some trials fail, each in its own way; light to import, as each child does.

What imports torch is in `torch_trials`: their processes would all wait for it.
"""

# ruff: noqa: T201 (what a trial prints is kept)

import math
import os
import threading
import time
from typing import Any

import numpy as np

GIB = 2**30
_LOCK = threading.Lock()
_COUNT = 0


def scored(member: bool, seed: int) -> float:
    """N(6 b, 1)."""
    return float(np.random.default_rng(seed).normal() + 6 * member)


def release(member: bool, seed: int, noise: float = 2.0, steps: int = 4) -> float:
    """`steps` Gaussian releases of the canary's bit, summed: μ = √steps / noise."""
    rng = np.random.default_rng(seed)
    return float((member + noise * rng.normal(size=steps)).sum())


def broken(member: bool, seed: int) -> Any:
    return "a score"


def some_raise(member: bool, seed: int) -> float:
    """One in nine raises, in one of two ways, and one in nine diverges; none tells the bit."""
    print(f"trains with seed {seed}")
    if seed % 9 == 0:
        raise ValueError(f"boom at {seed % 7}")
    if seed % 9 == 1:
        return math.nan
    if seed % 27 == 2:
        raise RuntimeError("no convergence")
    return scored(member, seed)


def all_kinds(member: bool, seed: int) -> float:
    if seed % 6 == 0:
        time.sleep(60)
    if seed % 6 == 1:
        kept = bytearray(GIB)
        kept[:: 2**12] = b"x" * len(kept[:: 2**12])
        time.sleep(60)
    if seed % 6 == 2:
        os._exit(5)
    return scored(member, seed)


def raising(member: bool, seed: int) -> Any:
    print("about to fail")
    raise ValueError("boom")


def raising_in_a_pack(member: bool, seed: int, first: int) -> float:
    """All of some packs fail: those whose first seeds are `first` modulo 3."""
    if seed % 3 != first:
        raise ValueError("boom")
    return scored(member, seed)


def counted(member: bool, seed: int) -> float:
    """Returns how often it was called in its process: state that trials would share."""
    global _COUNT
    with _LOCK:
        _COUNT += 1
    return float(_COUNT)


def arrays(part: int, seed: int) -> dict[str, np.ndarray]:
    made = np.random.default_rng(seed).normal(size=(2, 3)).astype(np.float32)
    return {"made/of it": made, "part": np.array(part), "none": np.empty((0, 2), np.int8)}


def shadowed(member: bool, seed: int, prepared: tuple[dict[str, np.ndarray], ...]) -> float:
    assert [int(each["part"]) for each in prepared] == [0, 1]
    for each in prepared:
        assert list(each) == ["made/of it", "part", "none"]
        assert each["made/of it"].dtype == np.float32
        assert each["none"].shape == (0, 2)
    return scored(member, seed) + float(sum(each["made/of it"].sum() for each in prepared))


def ends_zygote(member: bool, seed: int, flag: str) -> float:
    """Ends what it was forked from, once."""
    try:
        os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return scored(member, seed)
    os.kill(os.getppid(), 9)
    time.sleep(60)
    return math.nan
