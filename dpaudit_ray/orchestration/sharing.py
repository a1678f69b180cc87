"""A cluster that several sweeps use at once: each gets as much as it wants, up to an equal part.

Sweeps find each other by the names of their trainers, so what a dead one had is free at once.
Parts are max-min fair, for CPUs and GPUs apart: what a sweep does not want is divided among the
others, and one that trains on GPUs is not held back by one that has all CPUs but a few.
"""

from __future__ import annotations

import collections
import contextlib
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from .needs import Needs

TRAINER = "-trainer-"  # between the sweep's name and a number
_SHARED = ("CPU", "GPU")
_OWNER = 8  # digits of the driver's name in the namespace; others follow
_NAMESPACE = re.compile(r"dpaudit-[0-9a-f]+-(?P<CPU>[0-9.]+)-(?P<GPU>[0-9.]+)")
_CLOSE = 1e-9  # between floats


def fair_part(others: Iterable[float]) -> float:
    """The largest part of 1 that one sweep may have beside `others`, which hold or want theirs."""
    left = 1.0
    wanted = sorted(others)
    for position, want in enumerate(wanted):
        sweeps = len(wanted) - position + 1
        if want > left / sweeps:
            return left / sweeps
        left -= want
    return left


class Share:
    """What this sweep may have of the cluster. `own` is its namespace."""

    def __init__(self, ray: Any, needs: Needs, owner: str | None = None) -> None:
        self._ray, self._needs = ray, needs
        self.namespace = _namespace(needs, owner)

    def of(self, room: int) -> tuple[int, int]:
        """Of `room` trainers, how many this sweep may keep and how many it may ask for.

        They differ by less than one trainer, so that sweeps do not pass it to and fro.
        """
        trainers: collections.Counter[str] = collections.Counter()
        for actor in self._ray.util.list_named_actors(all_namespaces=True):
            if TRAINER in actor["name"] and actor["namespace"] != self.namespace:
                trainers[actor["namespace"]] += 1
        part = min((self._part(name, room, trainers) for name in _SHARED), default=1.0) * room
        return max(1, math.ceil(part - _CLOSE)), max(1, math.floor(part + _CLOSE))

    def end(self, owner: str) -> int:
        """Ends all actors of a driver whose run is ours now; returns how many trainers it had."""
        if not re.fullmatch("[0-9a-f]{16}", owner):
            return 0  # of somebody's else making
        ended = 0
        for actor in self._ray.util.list_named_actors(all_namespaces=True):
            if actor["namespace"].startswith(f"dpaudit-{owner[:_OWNER]}"):
                with contextlib.suppress(ValueError):  # it has just ended
                    self._ray.kill(self._ray.get_actor(actor["name"], actor["namespace"]))
                    ended += TRAINER in actor["name"]
        return ended

    def holders(self) -> str:
        """The sweeps whose trainers hold or await places beside ours, as a part of a line."""
        found = collections.Counter(
            actor["name"].rpartition(TRAINER)[0]
            for actor in self._ray.util.list_named_actors(all_namespaces=True)
            if TRAINER in actor["name"] and actor["namespace"] != self.namespace
        )
        return ", ".join(f"{count} trainers of {name}" for name, count in sorted(found.items()))

    def _part(self, resource: str, room: int, others: Mapping[str, int]) -> float:
        """Of the room, as far as one resource is contended; `others` are trainers by namespace."""
        total = self._ray.cluster_resources().get(resource, 0.0)
        wanted = room * self._needs.resources.get(resource, 0.0)
        if not total or not wanted:
            return 1.0
        held = [
            count * float(found[resource]) / total
            for name, count in others.items()
            if (found := _NAMESPACE.fullmatch(name))
        ]
        fair = fair_part(held)
        return 1.0 if wanted / total <= fair + _CLOSE else fair


def _namespace(needs: Needs, owner: str | None) -> str:
    """A Ray namespace of a sweep's own, which tells others whose it is and what its trainers take.

    Names stay short in it, and one that a killed driver left is no clash.
    """
    amounts = "-".join(f"{needs.resources.get(name, 0):.4f}" for name in _SHARED)
    name = (owner or secrets.token_hex(_OWNER))[:_OWNER]
    return f"dpaudit-{name}{secrets.token_hex(2)}-{amounts}"
