"""Puts random generators back after a replay, and seeds them."""

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

_STEP = 7919  # between the seeds of generators that are seeded at once


@contextlib.contextmanager
def preserve_generators(generators: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Puts all generators back at the end: Python's, numpy's, torch's, and the passed ones."""
    states = [(generator, generator.get_state()) for generator in generators]
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    gpus = range(torch.cuda.device_count()) if _gpu_in_use() else ()
    with torch.random.fork_rng(gpus):
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            for generator, state in states:
                generator.set_state(state)


@contextlib.contextmanager
def preserve_attributes(objects: Iterable[Any]) -> Iterator[None]:
    """Puts the attributes of all objects back at the end."""
    copies = [(thing, dict(vars(thing))) for thing in objects]
    try:
        yield
    finally:
        for thing, values in copies:
            vars(thing).clear()
            vars(thing).update(values)


def seed_generators(seed: int, generators: Iterable[Any] = ()) -> None:
    """Seeds Python's generator, numpy's, torch's, and the passed ones, of torch or numpy."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if _gpu_in_use():
        torch.cuda.manual_seed_all(seed)
    for index, generator in enumerate(generators):
        number = (seed + _STEP * (index + 1)) % 2**63
        if isinstance(generator, np.random.Generator):
            generator.bit_generator.state = type(generator.bit_generator)(number).state
        else:
            generator.manual_seed(number)


def _gpu_in_use() -> bool:
    ready: bool = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return ready
