"""Compiled loops on several threads: they release the interpreter's lock."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

Part = tuple[int, int]


def spread(loop: Callable[[Part], None], count: int) -> None:
    """Calls `loop` with parts [first, end) of `count`, one for each of torch's threads."""
    size = math.ceil(count / torch.get_num_threads())
    parts = [(start, min(start + size, count)) for start in range(0, count, size)]
    if len(parts) < 2:
        for part in parts:
            loop(part)
        return
    for done in [_pool(len(parts)).submit(loop, part) for part in parts]:
        done.result()


@functools.cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="loops")
