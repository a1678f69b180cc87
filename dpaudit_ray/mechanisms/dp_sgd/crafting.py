"""Canaries that are crafted once for all trainers: a preparation of one part, stored as arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ...adversaries.base import (
    Adversary,
    Canary,
    FinalModelAdversary,
    GradientCanary,
    SampleCanary,
    TrajectoryAdversary,
)
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
_FIELDS = {GradientCanary: ("direction",), SampleCanary: ("x", "y")}


def crafted(training: DpSgdTraining, adversary: Adversary, seed: int) -> Arrays:
    """The canary's tensors by their names. Raises SpecError for one that is more than tensors."""
    session = opened(training, adversary, seed)
    assert not isinstance(session, FrozenSession)  # which crafts within a second
    canary = session.canary
    for kind, fields in _FIELDS.items():
        if isinstance(canary, kind):
            return {name: getattr(canary, name).detach().cpu().numpy() for name in fields}
    raise SpecError(
        "adversary.name",
        f"crafts a {type(canary).__name__}, which is more than tensors; leave out crafted_once",
    )


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
    canary = _canary(prepared[0], training)
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


def _canary(arrays: Arrays, training: DpSgdTraining) -> Canary:
    device = training.initial.device
    tensors = {name: torch.from_numpy(np.array(a)).to(device) for name, a in arrays.items()}
    if "direction" in tensors:
        return GradientCanary(tensors["direction"])
    return SampleCanary(tensors["x"], tensors["y"])
