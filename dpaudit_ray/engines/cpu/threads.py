"""Models on several threads. They are independent, and torch and compiled loops free the lock."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch

_own = threading.local()


def count() -> int:
    """How many threads models are computed on: torch's, or those that it had before `ours`."""
    lent: int | None = getattr(_own, "count", None)
    return torch.get_num_threads() if lent is None else lent


@contextlib.contextmanager
def ours() -> Iterator[None]:
    """Inside, torch has one thread.

    Those that an operation of many numbers was shared with spin for milliseconds behind it, where
    models wait for their cores: a tenth of a step of `cnn4`.
    """
    before = getattr(_own, "count", None)
    _own.count = count()
    try:
        with _torch_has(1):
            yield
    finally:
        _own.count = before


@contextlib.contextmanager
def torchs() -> Iterator[None]:
    """Inside, torch has them all again, for what is not spread."""
    with _torch_has(count()):
        yield


@contextlib.contextmanager
def _torch_has(threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def spread(task: Callable[[int, slice], None], models: int) -> None:
    """Calls `task` with the number of a thread and its part of range(models), for each thread.

    Inside, torch has the one thread. Its own way of using several, within every operation, costs
    small networks more than it gains: a ConvNet's step takes 3.1 ms on two threads, 3.6 on one.
    """
    threads = min(count(), models)
    if threads < 2:
        with torchs():
            task(0, slice(0, models))
        return
    size = math.ceil(models / threads)
    parts = [slice(start, min(start + size, models)) for start in range(0, models, size)]
    for done in [_pool(threads).submit(task, i, part) for i, part in enumerate(parts)]:
        done.result()


def beside(task: Callable[[], object], worth: bool) -> Callable[[], object]:
    """Runs `task` while others compute, on a thread of its own, where there are several.

    Where there is one, or it is not `worth` a thread, at once. Who calls the result waits for it.
    """
    if not worth or count() < 2:
        task()
        return lambda: None
    return _pool(1).submit(task).result


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "models", torch.set_num_threads, (1,))
