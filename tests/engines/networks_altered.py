"""Layers that are not what their class says, shared ones, and networks that are refused."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import torchvision
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from tests.engines.networks import (
    EXACT,
    IMAGE,
    REFUSED,
    SEQUENCE,
    SLOW,
    TOKENS,
    VECTOR,
    Made,
    around,
    case,
    expert,
    hidden,
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


# Samples mixed ------------------------------------------------------------------------------------

MIXING = "others in its batch"


def mixed(mix: Any) -> Any:
    return lambda: Made(lambda self, x: self.out(mix(torch.tanh(self.fc(x)))),
                        fc=nn.Linear(8, 5), out=nn.Linear(5, 3))  # fmt: skip


case("mixes-mean", VECTOR, REFUSED, mixed(lambda h: h - h.mean(0)), MIXING)
case("mixes-softmax", VECTOR, REFUSED, mixed(lambda h: torch.softmax(h, 0)), MIXING)
case("mixes-batch-norm", VECTOR, REFUSED,
    mixed(lambda h: F.batch_norm(h, None, None, training=True)), MIXING)  # fmt: skip
case("mixes-maximum", VECTOR, REFUSED, mixed(lambda h: h / h.abs().max()), MIXING)
case("mixes-order", VECTOR, REFUSED, mixed(lambda h: h.sort(0).values), MIXING)
case("mixes-neighbours", VECTOR, REFUSED, mixed(lambda h: h + h.roll(1, 0)), MIXING)
case("mixes-attention", VECTOR, REFUSED, mixed(lambda h: torch.softmax(h @ h.t(), 1) @ h), MIXING)
case("mixes-detached", VECTOR, REFUSED, mixed(lambda h: h - h.mean(0).detach()), MIXING)
case("mixes-by-where", VECTOR, REFUSED, mixed(lambda h: torch.where(h.sum() > 0, h, -h)), MIXING)
case("mixes-by-count", VECTOR, REFUSED, mixed(lambda h: h * (1 + len(h))), MIXING)
case("mixes-large-batches", VECTOR, REFUSED,
    mixed(lambda h: h - h.mean(0) if len(h) > 5 else h), MIXING)  # fmt: skip


def crowded(room: int, function: Any) -> Any:
    """`function` of hidden numbers, from more rows than `room` on."""
    return lambda h: function(h) if len(h) > room else h


case("mixes-where-an-expert-is-full", VECTOR, REFUSED, mixed(lambda h: expert(h, 5)), MIXING)
case("mixes-large-batches-in-a-wide-network", VECTOR, REFUSED,
    lambda: Made(lambda self, x: self.out(crowded(5,
    lambda h: h - h.mean(0))(torch.tanh(self.fc(x)))), fc=nn.Linear(8, 10_000),
    out=nn.Linear(10_000, 3)), MIXING)  # fmt: skip
case("mixes-more-than-two-in-a-large-network", VECTOR, REFUSED,
    lambda: Made(lambda self, x: self.out(crowded(2,
    lambda h: h - h.mean(0))(torch.tanh(self.fc(x)))), fc=nn.Linear(8, 90_000),
    out=nn.Linear(90_000, 3)), MIXING)  # fmt: skip
case("mixes-cumulatively", VECTOR, REFUSED, mixed(lambda h: h.cumsum(0)), MIXING)
case("decides-by-mean", VECTOR, REFUSED, mixed(lambda h: 2 * h if h.mean() > 0 else h))
case("decides-by-item", VECTOR, REFUSED, mixed(lambda h: h * round(abs(h.sum().item()))))
case("decides-by-any", VECTOR, REFUSED,
    mixed(lambda h: h.clamp(max=1) if (h > 40).any() else h), "reads from the batch")  # fmt: skip
case("batch-norm", VECTOR, REFUSED, lambda: around(nn.BatchNorm1d(5)), "1 is a BatchNorm1d")
case("batch-norm-without-statistics", VECTOR, REFUSED,
    lambda: around(nn.BatchNorm1d(5, track_running_stats=False).eval()),
    "statistics of a batch")  # fmt: skip
case("batch-norm-deep", IMAGE, REFUSED,
    lambda: Made(lambda self, x: self.out(self.body(x).mean((2, 3))),
    body=nn.ModuleList([nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))])[0],
    out=nn.Linear(4, 3)))  # fmt: skip
case("instance-norm-tracking", IMAGE, REFUSED,
    lambda: images(nn.Conv2d(2, 4, 3),
    nn.InstanceNorm2d(4, track_running_stats=True)), "1 is a InstanceNorm2d")  # fmt: skip

# Random numbers and state -------------------------------------------------------------------------


def counted(self: Any, x: Tensor) -> Tensor:
    self.calls += 1
    return self.out(x) * (1 + self.calls)


def running(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    self.mean = 0.9 * self.mean + 0.1 * h.mean(0).detach()
    return self.out(h - self.mean)


def running_in_place(self: Any, x: Tensor) -> Tensor:
    self.count.add_(1)
    return self.out(self.fc(x))


case("random-dropout", VECTOR, REFUSED, mixed(lambda h: F.dropout(h, 0.3)), "draws random numbers")
case("random-dropout-layer", VECTOR, REFUSED, lambda: around(nn.Dropout(0.3)), "p = 0.3")
case("random-rrelu", VECTOR, REFUSED, lambda: around(nn.RReLU()), "1 (RReLU) draws random numbers")
case("random-depth", VECTOR, REFUSED,
    lambda: around(torchvision.ops.StochasticDepth(0.3, "row")),
    "1 (StochasticDepth) draws")  # fmt: skip
case("random-noise", VECTOR, REFUSED, mixed(lambda h: h + 0.1 * torch.randn_like(h)), "draws")
case("random-numpy", VECTOR, REFUSED, mixed(lambda h: h * np.random.rand()), "draws")
case("random-python", VECTOR, REFUSED, mixed(lambda h: h * random.random()), "draws")


def own_generator() -> nn.Module:
    generator = np.random.default_rng(0)
    return mixed(lambda h: h * generator.random())()


case("random-own-generator", VECTOR, REFUSED, own_generator, "asked again")
case("random-transformer", SEQUENCE, REFUSED,
    lambda: Made(lambda self, x: self.out(self.encode(x).mean(1)),
    encode=nn.TransformerEncoderLayer(8, 2, 12, batch_first=True), out=nn.Linear(8, 3)),
    "p = 0.1")  # fmt: skip
case("gumbel", VECTOR, REFUSED, mixed(lambda h: F.gumbel_softmax(h, dim=1)), "draws")
case("state-number", VECTOR, REFUSED, lambda: Made(counted, calls=0, out=nn.Linear(8, 3)), "calls")
case("state-buffer", VECTOR, REFUSED,
    lambda: Made(running, **hidden(), mean=torch.zeros(5)), "changes its mean")  # fmt: skip
case("state-buffer-in-place", VECTOR, REFUSED,
    lambda: Made(running_in_place, **hidden(), count=torch.zeros(())), "count")  # fmt: skip
case("embedding-renormalised", TOKENS, REFUSED,
    lambda: Made(tokens, embed=nn.Embedding(6, 5, max_norm=0.5), out=nn.Linear(5, 3)),
    "max_norm")  # fmt: skip
case("embedding-functional-renormalised", TOKENS, REFUSED,
    lambda: Made(lambda self, x: F.embedding(x.long(), self.w, max_norm=0.5).mean(1),
    w=nn.Parameter(torch.randn(6, 3))))  # fmt: skip
case("embedding-by-frequency", TOKENS, REFUSED,
    lambda: Made(tokens, embed=nn.Embedding(6, 5, scale_grad_by_freq=True), out=nn.Linear(5, 3)),
    "max_norm")  # fmt: skip
case("no-parameters", VECTOR, REFUSED, nn.Flatten, "has no parameters to train")
case("frozen-whole", VECTOR, REFUSED,
    lambda: around(nn.ReLU()).requires_grad_(False),
    "all of its parameters are frozen")  # fmt: skip
case("scripted", VECTOR, REFUSED,
    lambda: torch.jit.script(around(nn.ReLU())),
    "give the module that it was scripted")  # fmt: skip
case("complex", VECTOR, REFUSED,
    lambda: Made(lambda self, x: (x.to(self.w.dtype) @ self.w).abs(),
    w=nn.Parameter(torch.randn(8, 3, dtype=torch.complex64))), "complex")  # fmt: skip
case("two-rows-per-example", SEQUENCE, REFUSED, lambda: nn.Linear(8, 3), "row of scores")
case("scores-of-no-row", VECTOR, REFUSED,
    lambda: Made(lambda self, x: self.out(x).sum(1), out=nn.Linear(8, 3)),
    "row of scores")  # fmt: skip
case("a-tuple", VECTOR, REFUSED,
    lambda: Made(lambda self, x: (self.out(x), x), out=nn.Linear(8, 3)))  # fmt: skip


def counted_from_the_first(self: Any, x: Tensor) -> Tensor:
    self.calls = getattr(self, "calls", 0) + 1
    return self.out(x) * (1 if self.calls < 40 else 2)


def clamped(self: Any, x: Tensor) -> Tensor:
    self.out.weight.data.clamp_(-0.1, 0.1)
    return self.out(x)


case("state-number-made-late", VECTOR, REFUSED,
    lambda: Made(counted_from_the_first, out=nn.Linear(8, 3)), "changes its calls")  # fmt: skip
case("state-weights-clamped", VECTOR, REFUSED,
    lambda: Made(clamped, out=nn.Linear(8, 3)), "changes its out.weight")  # fmt: skip
case("softmax-over-the-batch", VECTOR, REFUSED, lambda: around(nn.Softmax(0)), "1 (Softmax) gives")
case("decides-by-list", VECTOR, REFUSED,
    mixed(lambda h: h * (2 if sum(h[:, 0].tolist()) > 0 else 1)))  # fmt: skip
