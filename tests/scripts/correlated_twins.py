"""Loops with correlated noise: healthy ones, and those with mistakes that people make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from dpaudit_ray.opacus import audited
from jobs.frameworks import torch_correlated_noise as healthy

STEPS, SEPARATION = healthy.STEPS, healthy.SEPARATION


@contextmanager
def replaced(**functions: Any) -> Iterator[None]:
    with patch.multiple(healthy, **functions):
        yield


def trained(strategy: Tensor) -> Any:
    """Trains with a strategy that the script states, too."""
    with replaced(banded=lambda *_: strategy):
        return healthy.train(strategy, healthy.sensitivity(strategy, SEPARATION))


def banded() -> tuple[Tensor, float]:
    strategy = healthy.banded(STEPS, healthy.BAND)
    return strategy, healthy.sensitivity(strategy, SEPARATION)


@audited(delta=1e-5)
def identity():
    return trained(torch.eye(STEPS, dtype=torch.float64))


@audited(delta=1e-5)
def blt():
    strategy = torch.eye(STEPS, dtype=torch.float64)
    for lag in range(1, STEPS):
        value = 0.3 * 0.9 ** (lag - 1) + 0.2 * 0.5 ** (lag - 1)
        strategy += torch.diag(torch.full((STEPS - lag,), value, dtype=torch.float64), -lag)
    return trained(strategy)


@audited(delta=1e-5)
def all_bands():
    return trained(healthy.banded(STEPS, STEPS))


@audited(delta=1e-5)
def closer():
    """Seven batches in turn, where ten are claimed."""
    return healthy.train(*banded(), batches=7)


@audited(delta=1e-5)
def resumed():
    """The noise of the first half is lost at a restart."""

    def forgetful(strategy, deviation, step, past, model):
        kept = past
        if step >= STEPS // 2:
            lost = [[0 * p for p in noise] for noise in past[: STEPS // 2]]
            kept = lost + past[STEPS // 2 :]
        return solved(strategy, deviation, step, kept, model)

    solved = healthy.next_noise
    with replaced(next_noise=forgetful):
        return healthy.train(*banded())


@audited(delta=1e-5)
def inverse():
    """C z for C⁻¹ z."""
    strategy, deviation = banded()
    return healthy.train(torch.linalg.inv(strategy), deviation)


@audited(delta=1e-5)
def one_epoch():
    """The sensitivity of records that take part once, where they take part three times."""
    strategy, _ = banded()
    return healthy.train(strategy, healthy.sensitivity(strategy, STEPS))


@audited(delta=1e-5)
def reused():
    """The seed changes every second step only."""

    def repeated(strategy, deviation, step, past, model):
        if step % 2 == 0:
            torch.manual_seed(torch.seed() % 2**32)
            state.append(torch.get_rng_state())
        torch.set_rng_state(state[-1])
        return solved(strategy, deviation, step, past, model)

    state: list[Tensor] = []
    solved = healthy.next_noise
    with replaced(next_noise=repeated):
        return healthy.train(*banded())
