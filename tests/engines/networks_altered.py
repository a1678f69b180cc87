"""Layers that are not what their class says: subclasses, hooks, parametrisations."""

from collections.abc import Callable

import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.engines.networks import (
    EXACT,
    IMAGE,
    REFUSED,
    SLOW,
    TOKENS,
    VECTOR,
    Made,
    around,
    case,
    images,
    tokens,
)

# Taken for their base class -----------------------------------------------------------------------


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Squared(nn.ReLU):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) ** 2


class Sharp(nn.MaxPool2d):
    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class Standardised(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / w.std((1, 2, 3), keepdim=True)
        return F.conv2d(x, w, self.bias)


class Reversed(nn.Flatten):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flip(1)


class Scaled(nn.GroupNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * x.mean((1, 2, 3), keepdim=True)


class Backwards(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(list(self)):
            x = layer(x)
        return x


class Shifted(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward((x + 1) % 6)


case("subclass-linear", VECTOR, SLOW,
    lambda: nn.Sequential(Doubled(8, 5), nn.ReLU(), nn.Linear(5, 3)), "0 (Doubled)")  # fmt: skip
case("subclass-relu", VECTOR, EXACT, lambda: around(Squared()))
case("subclass-pool", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 3, 3), nn.ReLU(), Sharp(2)))
case("subclass-relu-pool", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 3, 3), Squared(), nn.MaxPool2d(2), Squared()))  # fmt: skip
case("subclass-conv", IMAGE, SLOW,
    lambda: images(Standardised(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)), "Standardised")  # fmt: skip
case("subclass-flatten", VECTOR, EXACT,
    lambda: nn.Sequential(Reversed(), nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 3)))  # fmt: skip
case("subclass-norm", IMAGE, SLOW, lambda: images(nn.Conv2d(2, 4, 3), Scaled(2, 4)))
case("subclass-sequential", VECTOR, EXACT,
    lambda: Backwards(nn.Linear(5, 3), nn.ReLU(), nn.Linear(8, 5)))  # fmt: skip
case("subclass-embedding", TOKENS, SLOW,
    lambda: Made(tokens, embed=Shifted(6, 5), out=nn.Linear(5, 3)))  # fmt: skip


def own_forward() -> nn.Module:
    net = around(nn.ReLU())
    net[1].forward = lambda x: x**3
    return net


case("forward-of-its-own", VECTOR, SLOW, own_forward, "1 (ReLU) has a forward of its own")

# Hooks and parametrisations -----------------------------------------------------------------------


def hooked(register: Callable[[nn.Sequential], object]) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        net = around(nn.ReLU())
        register(net)
        return net

    return make


case("hook-forward", VECTOR, SLOW,
    hooked(lambda net: net[0].register_forward_hook(lambda m, i, o: o * 3)),
    "0 (Linear) has hooks")  # fmt: skip
case("hook-on-all", VECTOR, SLOW,
    hooked(lambda net: net.register_forward_hook(lambda m, i, o: o * 3)))  # fmt: skip
case("hook-before", VECTOR, SLOW,
    hooked(lambda net: net[1].register_forward_pre_hook(lambda m, i: (i[0] - 1,))))  # fmt: skip
case("hook-backward", VECTOR, SLOW,
    hooked(lambda net: net[1].register_full_backward_hook(lambda m, gi,
    go: (gi[0] * 2,))))  # fmt: skip
case("hook-before-backward", VECTOR, SLOW,
    hooked(lambda net: net[2].register_full_backward_pre_hook(lambda m,
    go: (go[0] * 2,))))  # fmt: skip
case("hook-on-parameter", VECTOR, SLOW,
    hooked(lambda net: net[0].weight.register_hook(lambda g: g * 2)))  # fmt: skip
case("weight-norm", VECTOR, SLOW,
    lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 5)), nn.ReLU(),
    nn.Linear(5, 3)), "parametrised")  # fmt: skip
case("weight-norm-conv", IMAGE, SLOW,
    lambda: images(parametrizations.weight_norm(nn.Conv2d(2, 3, 3))))  # fmt: skip


def old_weight_norm() -> nn.Module:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 5)), nn.ReLU(), nn.Linear(5, 3))


case("weight-norm-old", VECTOR, SLOW, old_weight_norm)
case("spectral-norm", VECTOR, REFUSED,
    lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 5)), nn.ReLU(),
    nn.Linear(5, 3)), "changes its")  # fmt: skip


class Symmetric(nn.Module):
    def forward(self, w: Tensor) -> Tensor:
        return w.triu() + w.triu(1).transpose(-1, -2)


def symmetric() -> nn.Module:
    net = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
    parametrize.register_parametrization(net[0], "weight", Symmetric())
    return net


case("parametrised", VECTOR, SLOW, symmetric, "0 (ParametrizedLinear) has parametrised weights")
