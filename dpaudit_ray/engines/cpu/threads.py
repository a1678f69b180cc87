"""Models on several threads. They are independent, and torch and compiled loops free the lock."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

from ..packing.memory import slices

_lent = threading.local()  # `count`: what torch had before `ours`


def count() -> int:
    """How many threads models are computed on: torch's, or those that it had before `ours`."""
    threads: int = getattr(_lent, "count", 0) or torch.get_num_threads()
    return threads


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """Inside, torch has one thread: others spin for milliseconds where models wait for cores."""
    before, _lent.count = getattr(_lent, "count", 0), count()
    try:
        with torchs(1):
            yield
    finally:
        _lent.count = before


@contextlib.contextmanager
def torchs(threads: int = 0) -> Iterator[None]:
    """Inside, torch has so many threads; by default all again, for what is not spread."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads or count())
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spread(task: Callable[[int, slice], None], models: int) -> None:
    """Calls `task` with each thread's number and part of range(models); inside, torch has one."""
    if (threads := min(count(), models)) < 2:
        with torchs():
            task(0, slice(0, models))
        return
    parts = enumerate(slices(models, math.ceil(models / threads)))
    for done in [_pool(threads).submit(task, i, part) for i, part in parts]:
        done.result()


def beside(task: Callable[[], object], worth: bool) -> Callable[[], object]:
    """Runs `task` on one of several threads if it is `worth` it, else now; the result waits."""
    if not worth or count() < 2:
        task()
        return lambda: None
    return _pool(1).submit(task).result


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "models", torch.set_num_threads, (1,))
