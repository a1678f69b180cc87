"""Canaries that are crafted once for all trainers: a preparation of one part, stored as arrays."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ...adversaries.base import (
    Adversary,
    ChangingCanary,
    FinalModelAdversary,
    GradientCanary,
    SampleCanary,
    TrajectoryAdversary,
)
from ...adversaries.crafted_query import QueriedSample
from ...adversaries.malicious_dataset import MaliciousDataset
from ...adversaries.shadows import Shadowed
from ...errors import SpecError
from ..base import Arrays
from . import shadowing
from .frozen import FrozenSession
from .sessions import FinalModelSession, TrajectorySession
from .shadowing import Shadows

if TYPE_CHECKING:
    from .training import DpSgdTraining

Opened = FinalModelSession | TrajectorySession | FrozenSession
_KINDS = (GradientCanary, SampleCanary, QueriedSample)  # which are tensors, and nothing else
_START = "start"  # θ_0, where the adversary chooses it


def crafted(training: DpSgdTraining, adversary: Adversary, seed: int) -> Arrays:
    """The canary's tensors by their names. Raises SpecError for one that is more than tensors."""
    session = opened(training, adversary, seed)
    assert not isinstance(session, FrozenSession)  # which crafts within a second
    canary = session.canary
    if isinstance(canary, ChangingCanary) or type(canary) not in _KINDS:
        raise SpecError(
            "adversary.name",
            f"crafts a {type(canary).__name__}, which is more than tensors; leave out crafted_once",
        )
    found = {name: getattr(canary, name) for name in _names(type(canary))}
    if session.training is not training:
        found[_START] = session.training.initial
    return {name: one.detach().cpu().numpy() for name, one in found.items()}


def opened(
    training: DpSgdTraining, adversary: Adversary, seed: int, prepared: tuple[Arrays, ...] = ()
) -> Opened:
    """A session with the canary that was `prepared`; crafted now where none was.

    With shadow models that were, where the adversary has some.
    """
    if isinstance(adversary, MaliciousDataset):
        return FrozenSession.craft(training, adversary, seed)
    kind: Any
    if isinstance(adversary, FinalModelAdversary):
        kind = FinalModelSession
    elif isinstance(adversary, TrajectoryAdversary):
        kind = TrajectorySession
    else:
        raise TypeError(f"{adversary.name} passed no check() of this mechanism")
    if isinstance(adversary, Shadowed) or not prepared:
        shadowed = _shadows(training, adversary, prepared)
        found: Opened
        found = kind.craft(training, adversary, seed, shadowed)
        return found
    tensors = _tensors(prepared[0], training)
    if _START in tensors:
        training = training.starting(tensors.pop(_START))
    (made,) = (one for one in _KINDS if set(_names(one)) == set(tensors))
    canary = made(**tensors)
    training.check_claim(canary)
    known: Opened = kind(training, adversary, canary)
    return known


def _shadows(
    training: DpSgdTraining, adversary: Adversary, prepared: tuple[Arrays, ...]
) -> Shadows | None:
    if not isinstance(adversary, Shadowed):
        return None
    own = shadowing.records(training, adversary)
    assert own is not None  # else no part was prepared
    return Shadows(shadowing.together(prepared, training.initial), own)


def _names(kind: type[GradientCanary | SampleCanary]) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _tensors(arrays: Arrays, training: DpSgdTraining) -> dict[str, Tensor]:
    device = training.initial.device
    return {name: torch.from_numpy(np.array(a)).to(device) for name, a in arrays.items()}
