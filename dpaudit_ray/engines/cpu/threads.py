"""Computation of models on several threads: torch and compiled loops free Python's lock."""

import functools
import math
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager

import torch

from ..packing.memory import slices

# By thread, `count`: the number of torch's threads before `torch_on_one_thread`; 0 or missing if
# there is no limit now.
_before_limit = threading.local()


def thread_count() -> int:
    """Returns the number of threads for models: that of torch, without a limit to one."""
    threads: int = getattr(_before_limit, "count", 0) or torch.get_num_threads()
    return threads


@contextmanager
def torch_on_one_thread() -> Iterator[None]:
    """Limits torch to one thread: more threads would spin while models wait for cores."""
    before = getattr(_before_limit, "count", 0)
    _before_limit.count = thread_count()
    try:
        with _torch_threads(1):
            yield
    finally:
        _before_limit.count = before


def torch_on_all_threads() -> AbstractContextManager[None]:
    """Lets torch use all threads, for work that is not divided among threads of this module."""
    return _torch_threads(thread_count())


@contextmanager
def _torch_threads(threads: int) -> Iterator[None]:
    """Sets the number of torch's threads, and restores the earlier one at exit."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_on_threads(
    task: Callable[[int, slice], None],
    models: int,
) -> None:
    """Calls `task(thread, part)` on several threads, each with a part of range(models).

    Inside each of several threads, torch computes on one. A single task has all of torch's threads.
    """
    threads = min(thread_count(), models)
    if threads < 2:
        with torch_on_all_threads():
            task(0, slice(0, models))
        return
    parts = slices(models, math.ceil(models / threads))
    futures = [_pool(threads).submit(task, i, part) for i, part in enumerate(parts)]
    for future in futures:
        future.result()


def start_in_background(
    task: Callable[[], object],
    worthwhile: bool,
) -> Callable[[], object]:
    """Starts `task` on another thread if that is `worthwhile`, else runs it at once.

    Returns:
        A function that waits until the task has finished.
    """
    if not worthwhile or thread_count() < 2:
        task()
        return lambda: None
    return _pool(1).submit(task).result


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Returns threads that stay for the next step, in each of which torch has one thread."""
    return ThreadPoolExecutor(threads, "models", torch.set_num_threads, (1,))
