"""The section `resources` of a sweep file: trainers, their needs, and limits of failures."""

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ByteSize,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    field_validator,
)

from ..plugins import Strict

_UNITS = 10_000  # parts of a resource in which Ray counts
_MOST = 10**6  # units of a resource; no node has as many
_LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABELS = rf"!?({_LABEL}|(in)?\({_LABEL}(, ?{_LABEL})*\))"


def _amount(value: float) -> float:
    """Returns an amount of a resource. Raises ValueError if Ray cannot count it."""
    if abs(value) > _MOST:
        raise ValueError(f"must be at most {_MOST:,}")
    if abs(value * _UNITS - round(value * _UNITS)) > 1e-6:
        raise ValueError("must be a multiple of 0.0001, which is as fine as Ray counts")
    return value


def _byte_size(value: Any) -> Any:
    """Returns a number of bytes, or its text. Raises ValueError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError("must be a whole number of bytes or text such as 8GiB")
    return value


def _label_key(key: str) -> str:
    """Returns the key of a node's label. Raises ValueError if Ray allows no such key."""
    if not re.fullmatch(rf"([a-z0-9.-]{{1,253}}/)?{_LABEL}", key):
        raise ValueError("names a node's label, such as ray.io/accelerator-type")
    return key


def _label_selector(value: str) -> str:
    """Returns a label selector of Ray. Raises ValueError for another form."""
    if not re.fullmatch(_LABELS, value):
        raise ValueError("must be a label's value, !value, in(value,value) or !in(value,value)")
    return value


Amount = Annotated[float, AfterValidator(_amount)]
PositiveAmount = Annotated[Amount, Field(gt=0)]
LabelKey = Annotated[str, AfterValidator(_label_key)]
LabelSelector = Annotated[str, AfterValidator(_label_selector)]
AutoOrCount = Annotated[int, Field(ge=1)] | Literal["auto"]
AutoOrSeconds = Annotated[float, Field(gt=0)] | Literal["auto"]


class ResourceSpec(Strict):
    """Needs of a trainer, the share of the cluster for the sweep, and limits of failures.

    `pack_deadline: auto` follows from the packs that were timed, and from the longest time of a
    trial by its mechanism. If a mechanism cannot be interrupted, its pack begins again when its
    trainer dies, whatever `checkpoint_minutes` is. On a cluster that grows with demand,
    `max_concurrent_trainers` may wait for nodes; auto: at least 8.
    """

    num_cpus: Amount = Field(default=1, gt=0)  # of each trainer
    num_gpus: Amount = Field(default=0, ge=0)  # of each trainer; shares are allowed
    # of each trainer, as Ray reserves it
    memory: Annotated[ByteSize, BeforeValidator(_byte_size)] = Field(default=ByteSize(0), ge=0)
    custom_resources: dict[str, PositiveAmount] = Field(default_factory=dict)  # of Ray, for each
    label_selector: dict[LabelKey, LabelSelector] = Field(default_factory=dict)  # of nodes, as Ray
    pack_size: AutoOrCount = "auto"  # trials that are trained together
    max_concurrent_trainers: AutoOrCount = "auto"  # auto: as many as have room
    max_trial_failures: NonNegativeInt = 100  # packs that may fail
    max_worker_losses: NonNegativeInt = 100  # trainers that may die
    max_core_hours: PositiveFloat | None = None  # of packs in one attempt; then it stops
    pack_deadline: AutoOrSeconds = "auto"  # seconds of silence; auto: by packs so far
    grace_seconds: NonNegativeFloat = 30  # for running packs, when stopped
    checkpoint_minutes: PositiveFloat | None = 10  # between saves; null: none

    @field_validator("num_gpus")
    @classmethod
    def _whole_gpus(cls, count: float) -> float:
        """Refuses shares above 1, as Ray shares a single GPU only."""
        if count > 1 and not count.is_integer():
            raise ValueError("is above 1, so it must be a whole number: Ray shares one GPU only")
        return count

    @field_validator("custom_resources")
    @classmethod
    def _others(
        cls,
        named: dict[str, float],
    ) -> dict[str, float]:
        """Refuses resources that have a key of their own in the sweep file."""
        for name in named.keys() & {"CPU", "GPU", "memory", "object_store_memory"}:
            raise ValueError(f"names {name}; use num_cpus, num_gpus or memory")
        return named
