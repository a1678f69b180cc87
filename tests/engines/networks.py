"""Networks of many kinds, and what must become of each.

EXACT: packed, as autograd has it. SLOW: the same, by a way that is warned of. REFUSED: one line.
"""

import copy
import dataclasses
import enum
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

BATCH = 6


class Outcome(enum.Enum):
    EXACT = enum.auto()
    SLOW = enum.auto()
    REFUSED = enum.auto()


class Kind(enum.Enum):
    """Shapes of one example. A sequence is as long as a batch is wide."""

    VECTOR = (8,)
    IMAGE = (2, 8, 8)
    SEQUENCE = (BATCH, 8)
    SIGNAL = (2, 12)
    VOLUME = (1, 5, 5, 5)
    TOKENS = (7,)


@dataclasses.dataclass(frozen=True)
class Case:
    make: Callable[[], nn.Module]
    kind: Kind
    outcome: Outcome
    said: str = ""  # in the warning or the error


class Made(nn.Module):
    """Layers by name, and a function of them and the input."""

    def __init__(self, call: Callable[[Any, Tensor], Tensor], **layers: Any) -> None:
        super().__init__()
        self.call = call
        for name, layer in layers.items():
            if isinstance(layer, Tensor) and not isinstance(layer, nn.Parameter):
                self.register_buffer(name, layer)
            else:
                setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.call(self, x)


CASES: dict[str, Case] = {}


def case(
    name: str, kind: Kind, outcome: Outcome, make: Callable[[], nn.Module], said: str = ""
) -> None:
    assert name not in CASES
    CASES[name] = Case(make, kind, outcome, said)


def images(*layers: nn.Module) -> nn.Module:
    width = nn.Sequential(*copy.deepcopy(layers), nn.Flatten())(torch.zeros(2, 2, 8, 8)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3))


def around(*layers: nn.Module, width: int = 5) -> nn.Module:
    """Between two linear layers."""
    return nn.Sequential(nn.Linear(8, 5), *layers, nn.Linear(width, 3))


def hidden() -> dict[str, nn.Module]:
    """A layer to five hidden numbers, and one to three scores."""
    return {"fc": nn.Linear(8, 5), "out": nn.Linear(5, 3)}


def tokens(self: Any, x: Tensor) -> Tensor:
    return self.out(self.embed(x.long()).mean(1))


def expert(h: Tensor, room: int) -> Tensor:
    """Two experts, by a sign; each takes the first rows that it has room for, and drops others."""
    first = h[:, :1] > 0
    taken = torch.where(first, first.cumsum(0), (~first).cumsum(0)) <= room
    return torch.where(first, 2 * h, -h) * taken


VECTOR, IMAGE, SEQUENCE, SIGNAL, VOLUME, TOKENS = Kind
EXACT, SLOW, REFUSED = Outcome
