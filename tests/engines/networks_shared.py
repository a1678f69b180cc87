"""Sequentials that are not only called, and shared weights."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.engines.networks import EXACT, IMAGE, SLOW, VECTOR, Made, around, case

# Sequentials that are not only called -------------------------------------------------------------


def indexed(self: Any, x: Tensor) -> Tensor:
    h = self.net[0](x)
    h = self.net[1](h) + 1  # a ReLU, not the pool
    return self.out(self.net[2](h).flatten(1))


def halves(self: Any, x: Tensor) -> Tensor:
    return self.out((self.net[:2](x) - 0.1).flatten(1))


def stepwise(self: Any, x: Tensor) -> Tensor:
    for layer in self.net:
        x = layer(x) + 0.5
    return self.out(x.flatten(1))


def block() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2))


case("sequential-indexed", IMAGE, EXACT, lambda: Made(indexed, net=block(), out=nn.Linear(27, 3)))
case("sequential-sliced", IMAGE, EXACT, lambda: Made(halves, net=block(), out=nn.Linear(108, 3)))
case("sequential-iterated", IMAGE, EXACT, lambda: Made(stepwise, net=block(), out=nn.Linear(27, 3)))
case("sequential-by-name", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out((self.net.c(x) + self.net.b(x)).flatten(1)),
    net=nn.Sequential(torch.nn.modules.container.OrderedDict(c=nn.Conv2d(2, 3, 3),
    b=nn.Conv2d(2, 3, 3))), out=nn.Linear(108, 3)))  # fmt: skip
case("sequential-called-and-indexed", IMAGE, SLOW,
    lambda: Made(lambda self, x: self.out((self.net(x) + self.net[0](x)[:, :, :3, :3]).flatten(1)),
    net=block(), out=nn.Linear(27, 3)))  # fmt: skip

# Shared weights -----------------------------------------------------------------------------------


def twice_in_a_row() -> nn.Module:
    layer = nn.Linear(5, 5)
    return around(nn.ReLU(), layer, nn.Tanh(), layer)


def tied() -> nn.Module:
    net = around(nn.ReLU(), nn.Linear(5, 5))
    net[2].weight = nn.Parameter(torch.randn(5, 5))
    net.append(nn.Linear(3, 3))
    net[3], net[4] = nn.Linear(5, 5), nn.Linear(5, 3)
    net[3].weight = net[2].weight
    return net


def closure() -> nn.Module:
    fc = nn.Linear(8, 8)
    return Made(
        lambda self, x: self.out(torch.tanh(fc(torch.tanh(self.fc(x))))), fc=fc, out=nn.Linear(8, 3)
    )


def closure_over_weight() -> nn.Module:
    fc = nn.Linear(8, 8)
    weight = fc.weight
    return Made(
        lambda self, x: self.out(F.linear(torch.tanh(self.fc(x)), weight)),
        fc=fc,
        out=nn.Linear(8, 3),
    )


def in_a_list() -> nn.Module:
    made = Made(lambda self, x: self.out(self.all[0](torch.tanh(self.fc(x)))),
                fc=nn.Linear(8, 8), out=nn.Linear(8, 3))  # fmt: skip
    made.all = [made.fc]
    return made


def weights_in_a_list() -> nn.Module:
    made = Made(lambda self, x: self.out(F.linear(torch.tanh(self.fc(x)), self.all[0])),
                fc=nn.Linear(8, 8), out=nn.Linear(8, 3))  # fmt: skip
    made.all = [made.fc.weight]
    return made


case("layer-twice-in-a-row", VECTOR, SLOW,
    twice_in_a_row, "shares a parameter (4.weight is 2.weight)")  # fmt: skip
case("tied", VECTOR, SLOW, tied, "3.weight is 2.weight")
case("tied-by-closure", VECTOR, SLOW, closure)
case("tied-weight-by-closure", VECTOR, SLOW, closure_over_weight)
case("tied-by-list", VECTOR, SLOW, in_a_list)
case("tied-weight-by-list", VECTOR, SLOW, weights_in_a_list)
case("weight-used-twice", VECTOR, SLOW,
    lambda: Made(lambda self, x: F.linear(torch.tanh(self.fc(x)), self.fc.weight.t())[:, :3],
    fc=nn.Linear(8, 5)))  # fmt: skip
case("penalty-of-weights", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(x) * self.out.weight.norm(),
    out=nn.Linear(8, 3)))  # fmt: skip
