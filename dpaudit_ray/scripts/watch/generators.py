"""The generators that a script's randomness comes from: kept, put back, seeded anew."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch


@contextlib.contextmanager
def kept(own: Iterable[torch.Generator] = ()) -> Iterator[None]:
    """Puts all generators back at the end: Python's, numpy's, torch's and the script's `own`."""
    states = [(one, one.get_state()) for one in own]
    python, old, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if _gpu() else []
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(old)
        torch.set_rng_state(cpu)
        if gpus:
            torch.cuda.set_rng_state_all(gpus)
        for one, state in states:
            one.set_state(state)


def seed(number: int, own: Iterable[torch.Generator] = ()) -> None:
    """Seeds them all."""
    random.seed(number)
    np.random.seed(number % 2**32)
    torch.default_generator.manual_seed(number)
    if _gpu():
        torch.cuda.manual_seed_all(number)
    for index, one in enumerate(own):
        one.manual_seed((number + 7919 * (index + 1)) % 2**63)


def _gpu() -> bool:
    ready: bool = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return ready


def of(optimizer: Any) -> list[torch.Generator]:
    """The generators that an optimizer holds itself."""
    return [one for one in vars(optimizer).values() if isinstance(one, torch.Generator)]
