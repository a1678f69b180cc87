"""Models on several threads. They are independent, and torch and compiled loops free the lock."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch


def spread(task: Callable[[int, slice], None], count: int) -> None:
    """Calls `task` with the number of a thread and its part of range(count), for each of torch's.

    Inside, torch has the one thread. Its own way of using several, within every operation, costs
    small networks more than it gains: a ConvNet's step takes 3.1 ms on two threads, 3.6 on one.
    """
    threads = min(torch.get_num_threads(), count)
    if threads < 2:
        task(0, slice(0, count))
        return
    size = math.ceil(count / threads)
    parts = [slice(start, min(start + size, count)) for start in range(0, count, size)]
    for done in [_pool(threads).submit(task, i, part) for i, part in enumerate(parts)]:
        done.result()


def beside(task: Callable[[], object], worth: bool) -> Callable[[], object]:
    """Runs `task` while others compute, on a thread of its own, where torch has several.

    Where it has one, or it is not `worth` a thread, at once. Who calls the result waits for it.
    """
    if not worth or torch.get_num_threads() < 2:
        task()
        return lambda: None
    return _pool(1).submit(task).result


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, "models", torch.set_num_threads, (1,))
