"""What a trainer needs of a node, and which nodes have it."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

from ..sweep.resources import ResourceSpec

GIB = 2**30
NODE_ID = "ray.io/node-id"  # the label that Ray gives every node
_SELECTOR = re.compile(r"(!?)(?:(?:in)?\((.*)\)|(.*))", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Needs:
    """Resources by Ray's names, and a label selector."""

    resources: Mapping[str, float]
    labels: Mapping[str, str]

    @classmethod
    def of(cls, spec: ResourceSpec) -> Needs:
        """What the sweep file asks for."""
        counted = {"CPU": spec.num_cpus, "GPU": spec.num_gpus, "memory": float(spec.memory)}
        asked = counted | spec.custom_resources
        return cls({name: value for name, value in asked.items() if value}, spec.label_selector)

    def __str__(self) -> str:
        parts = [_amount(name, value) for name, value in self.resources.items()]
        parts += [f"{key} {value}" for key, value in self.labels.items()]
        return ", ".join(parts[:-1]) + (" and " if parts[:-1] else "") + parts[-1]

    def fits(self, resources: Mapping[str, float]) -> int:
        """How many trainers a node with these resources holds."""
        shares = [resources.get(name, 0) / value for name, value in self.resources.items()]
        return int(min(shares) + 1e-9)  # 0.3 / 0.1 is less than 3

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels is one that the selector names."""
        return all(_selects(value, labels.get(key)) for key, value in self.labels.items())

    def options(self, left_out: set[str]) -> dict[str, Any]:
        """Ray's options for an actor that has these needs, on no node of `left_out`."""
        rest = {k: v for k, v in self.resources.items() if k not in ("CPU", "GPU", "memory")}
        selector = dict(self.labels)
        if left_out:
            selector.setdefault(NODE_ID, f"!in({','.join(sorted(left_out))})")
        return {
            "num_cpus": self.resources.get("CPU", 0),
            "num_gpus": self.resources.get("GPU", 0),
            "memory": self.resources.get("memory"),
            "resources": rest,
            "label_selector": selector,
        }


def _amount(name: str, value: float) -> str:
    return f"{value / GIB:.3g} GiB memory" if name == "memory" else f"{value:g} {name}"


def _selects(selector: str, value: str | None) -> bool:
    found = _SELECTOR.fullmatch(selector)
    assert found is not None, selector
    negated, several, one = found.groups()
    named = [one] if several is None else [each.strip() for each in several.split(",")]
    return (value not in named) if negated else (value in named)
