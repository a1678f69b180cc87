"""More of them: shared weights, own code, several inputs, and what must be refused."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
import torchvision
from networks import (
    BATCH,
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
    images,
    tokens,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
case(
    "sequential-by-name",
    IMAGE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out((self.net.c(x) + self.net.b(x)).flatten(1)),
        net=nn.Sequential(
            torch.nn.modules.container.OrderedDict(c=nn.Conv2d(2, 3, 3), b=nn.Conv2d(2, 3, 3))
        ),
        out=nn.Linear(108, 3),
    ),
)
case(
    "sequential-called-and-indexed",
    IMAGE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out((self.net(x) + self.net[0](x)[:, :, :3, :3]).flatten(1)),
        net=block(),
        out=nn.Linear(27, 3),
    ),
)

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


case(
    "layer-twice-in-a-row",
    VECTOR,
    SLOW,
    twice_in_a_row,
    "shares a parameter (4.weight is 2.weight)",
)
case("tied", VECTOR, SLOW, tied, "3.weight is 2.weight")
case("tied-by-closure", VECTOR, SLOW, closure)
case("tied-weight-by-closure", VECTOR, SLOW, closure_over_weight)
case("tied-by-list", VECTOR, SLOW, in_a_list)
case("tied-weight-by-list", VECTOR, SLOW, weights_in_a_list)
case(
    "applied-twice",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.mid(torch.tanh(self.mid(self.fc(x))))),
        fc=nn.Linear(8, 5),
        mid=nn.Linear(5, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "weight-used-directly",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(torch.tanh(F.linear(x, self.fc.weight, self.fc.bias))),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "weight-used-twice",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: F.linear(torch.tanh(self.fc(x)), self.fc.weight.t())[:, :3],
        fc=nn.Linear(8, 5),
    ),
)
case(
    "penalty-of-weights",
    VECTOR,
    SLOW,
    lambda: Made(lambda self, x: self.out(x) * self.out.weight.norm(), out=nn.Linear(8, 3)),
)
case(
    "tied-embedding",
    TOKENS,
    SLOW,
    lambda: Made(
        lambda self, x: F.linear(self.embed(x.long()).mean(1), self.embed.weight)[:, :3],
        embed=nn.Embedding(6, 5),
    ),
)

# Layers that take or give more than one tensor ----------------------------------------------------

case(
    "multihead",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.attend(x, x, x)[0].mean(1)),
        attend=nn.MultiheadAttention(8, 2, batch_first=True),
        out=nn.Linear(8, 3),
    ),
)
case(
    "multihead-after",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.attend(*[self.fc(x)] * 3, need_weights=False)[0].mean(1)),
        fc=nn.Linear(8, 8),
        attend=nn.MultiheadAttention(8, 2, batch_first=True),
        out=nn.Linear(8, 3),
    ),
)
case(
    "multihead-sequence-first",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.attend(*[x.transpose(0, 1)] * 3)[0].mean(0)),
        attend=nn.MultiheadAttention(8, 2),
        out=nn.Linear(8, 3),
    ),
)
case(
    "multihead-over-the-batch",
    SEQUENCE,
    REFUSED,
    lambda: Made(
        lambda self, x: self.out(self.attend(x, x, x)[0].mean(1)),
        attend=nn.MultiheadAttention(8, 2),
        out=nn.Linear(8, 3),
    ),
    "others in its batch",
)
case(
    "transformer",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.encode(x).mean(1)),
        encode=nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True),
        out=nn.Linear(8, 3),
    ),
)
case(
    "lstm",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.run(x)[0][:, -1]),
        run=nn.LSTM(8, 4, batch_first=True),
        out=nn.Linear(4, 3),
    ),
)
case(
    "gru",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.run(x)[1][0]),
        run=nn.GRU(8, 4, batch_first=True),
        out=nn.Linear(4, 3),
    ),
)
case(
    "gru-over-the-batch",
    SEQUENCE,
    REFUSED,
    lambda: Made(
        lambda self, x: self.out(self.run(x)[0][:, -1]), run=nn.GRU(8, 4), out=nn.Linear(4, 3)
    ),
    "run (GRU)",
)
case(
    "rnn-cell",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.cell(x[:, 1], self.cell(x[:, 0]))),
        cell=nn.RNNCell(8, 4),
        out=nn.Linear(4, 3),
    ),
)
case(
    "bilinear",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.pair(x[:, :4], x[:, 4:])),
        pair=nn.Bilinear(4, 4, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "parameter-list",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: torch.tanh(x @ self.ws[0]) @ self.ws[1],
        ws=nn.ParameterList([nn.Parameter(torch.randn(8, 5)), nn.Parameter(torch.randn(5, 3))]),
    ),
)
case(
    "parameter-dict",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: torch.tanh(x @ self.ws["a"]) @ self.ws["b"],
        ws=nn.ParameterDict({"a": torch.randn(8, 5), "b": torch.randn(5, 3)}),
    ),
)
case(
    "parameter-of-the-model",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(x * self.scale),
        scale=nn.Parameter(torch.rand(8)),
        out=nn.Linear(8, 3),
    ),
)
case("prelu", VECTOR, SLOW, lambda: around(nn.PReLU()))
case("prelu-by-channel", IMAGE, SLOW, lambda: images(nn.Conv2d(2, 4, 3), nn.PReLU(4)))
case(
    "two-inputs",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.mix(x[:, :4], x[:, 4:])), mix=Made2(), out=nn.Linear(5, 3)
    ),
)
case(
    "keyword-input",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(input=torch.relu(self.fc(input=x))),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "lazy-by-functional",
    IMAGE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(F.adaptive_avg_pool2d(F.relu(self.conv(x)), 2).flatten(1)),
        conv=nn.Conv2d(2, 3, 3),
        out=nn.Linear(12, 3),
    ),
)


class Made2(nn.Module):
    """Its parameters and two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(4, 5))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(left @ self.a) * (right @ self.b)


# The raw input beside what was made of it ---------------------------------------------------------

case(
    "skip-from-the-input",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(torch.relu(x + self.fc(x))),
        fc=nn.Linear(8, 8),
        out=nn.Linear(8, 3),
    ),
)
case(
    "skip-from-the-input-conv",
    IMAGE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out((x + self.conv(x)).flatten(1)),
        conv=nn.Conv2d(2, 2, 3, padding=1),
        out=nn.Linear(128, 3),
    ),
)
case(
    "joined-with-the-input",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(torch.cat([x, torch.tanh(self.fc(x))], 1)),
        fc=nn.Linear(8, 5),
        out=nn.Linear(13, 3),
    ),
)
case(
    "scaled-by-the-input",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(self.fc(x) * x.norm(dim=1, keepdim=True)),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "columns-of-the-input",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(self.a(x[:, :4]) + self.b(x[:, 4:])),
        a=nn.Linear(4, 5),
        b=nn.Linear(4, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "reversed-input",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(self.fc(x.flip(1))), fc=nn.Linear(8, 5), out=nn.Linear(5, 3)
    ),
)
case(
    "counts-rows-before",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(torch.cat([self.fc(x), x.new_ones(x.shape[0], 1)], 1)),
        fc=nn.Linear(8, 5),
        out=nn.Linear(6, 3),
    ),
)

# In place -----------------------------------------------------------------------------------------


def in_place(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    h += 1
    return self.out(h.relu_())


def input_in_place(self: Any, x: Tensor) -> Tensor:
    x.mul_(0.5).sub_(0.1)
    return self.out(torch.tanh(self.fc(x)))


case("relu-in-place", VECTOR, EXACT, lambda: around(nn.ReLU(inplace=True)))
case(
    "relu-in-place-conv",
    IMAGE,
    EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
)
case("relu-in-place-first", IMAGE, EXACT, lambda: images(nn.ReLU(inplace=True), nn.Conv2d(2, 3, 3)))
case(
    "relu-in-place-reused",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.act(h := self.fc(x)) + h),
        fc=nn.Linear(8, 5),
        act=nn.ReLU(inplace=True),
        out=nn.Linear(5, 3),
    ),
)
case(
    "functional-in-place",
    VECTOR,
    SLOW,
    lambda: Made(in_place, fc=nn.Linear(8, 5), out=nn.Linear(5, 3)),
)
case(
    "input-in-place",
    VECTOR,
    SLOW,
    lambda: Made(input_in_place, fc=nn.Linear(8, 5), out=nn.Linear(5, 3)),
)
case(
    "checkpoint",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(
            checkpoint(lambda v: torch.relu(self.fc(v)), x, use_reentrant=False)
        ),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "checkpoint-reentrant",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(checkpoint(self.mid, self.fc(x), use_reentrant=True)),
        fc=nn.Linear(8, 5),
        mid=nn.Sequential(nn.Tanh(), nn.Linear(5, 5)),
        out=nn.Linear(5, 3),
    ),
)


class Doubling(torch.autograd.Function):
    """An identity whose gradient is doubled, and by how many rows there are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (1 + len(g))


case(
    "gradient-by-batch",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(Doubling.apply(self.fc(x))),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "gradient-hook-inside",
    VECTOR,
    SLOW,
    lambda: Made(hooked_inside, fc=nn.Linear(8, 5), out=nn.Linear(5, 3)),
)


def hooked_inside(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    if h.requires_grad:
        h.register_hook(lambda g: g / g.norm())
    return self.out(h)


case(
    "double-outputs",
    VECTOR,
    EXACT,
    lambda: Made(lambda self, x: self.fc(x).double(), fc=nn.Linear(8, 3)),
)

# Samples mixed ------------------------------------------------------------------------------------

MIXING = "others in its batch"


def mixed(mix: Any) -> Any:
    return lambda: Made(lambda self, x: self.out(mix(torch.tanh(self.fc(x)))),
                        fc=nn.Linear(8, 5), out=nn.Linear(5, 3))  # fmt: skip


case("mixes-mean", VECTOR, REFUSED, mixed(lambda h: h - h.mean(0)), MIXING)
case("mixes-softmax", VECTOR, REFUSED, mixed(lambda h: torch.softmax(h, 0)), MIXING)
case(
    "mixes-batch-norm",
    VECTOR,
    REFUSED,
    mixed(lambda h: F.batch_norm(h, None, None, training=True)),
    MIXING,
)
case("mixes-maximum", VECTOR, REFUSED, mixed(lambda h: h / h.abs().max()), MIXING)
case("mixes-order", VECTOR, REFUSED, mixed(lambda h: h.sort(0).values), MIXING)
case("mixes-neighbours", VECTOR, REFUSED, mixed(lambda h: h + h.roll(1, 0)), MIXING)
case("mixes-attention", VECTOR, REFUSED, mixed(lambda h: torch.softmax(h @ h.t(), 1) @ h), MIXING)
case("mixes-detached", VECTOR, REFUSED, mixed(lambda h: h - h.mean(0).detach()), MIXING)
case("mixes-by-where", VECTOR, REFUSED, mixed(lambda h: torch.where(h.sum() > 0, h, -h)), MIXING)
case("mixes-by-count", VECTOR, REFUSED, mixed(lambda h: h * (1 + len(h))), MIXING)
case(
    "mixes-large-batches",
    VECTOR,
    REFUSED,
    mixed(lambda h: h - h.mean(0) if len(h) > 5 else h),
    MIXING,
)
case("mixes-cumulatively", VECTOR, REFUSED, mixed(lambda h: h.cumsum(0)), MIXING)
case("decides-by-mean", VECTOR, REFUSED, mixed(lambda h: 2 * h if h.mean() > 0 else h))
case("decides-by-item", VECTOR, REFUSED, mixed(lambda h: h * round(abs(h.sum().item()))))
case(
    "decides-by-any",
    VECTOR,
    REFUSED,
    mixed(lambda h: h.clamp(max=1) if (h > 40).any() else h),
    "reads from the batch",
)
case("batch-norm", VECTOR, REFUSED, lambda: around(nn.BatchNorm1d(5)), "1 is a BatchNorm1d")
case(
    "batch-norm-evaluating", VECTOR, REFUSED, lambda: around(nn.BatchNorm1d(5).eval()), "GroupNorm"
)
case(
    "batch-norm-deep",
    IMAGE,
    REFUSED,
    lambda: Made(
        lambda self, x: self.out(self.body(x).mean((2, 3))),
        body=nn.ModuleList([nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))])[0],
        out=nn.Linear(4, 3),
    ),
)
case(
    "instance-norm-tracking",
    IMAGE,
    REFUSED,
    lambda: images(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, track_running_stats=True)),
)

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
case(
    "random-depth",
    VECTOR,
    REFUSED,
    lambda: around(torchvision.ops.StochasticDepth(0.3, "row")),
    "1 (StochasticDepth) draws",
)
case("random-noise", VECTOR, REFUSED, mixed(lambda h: h + 0.1 * torch.randn_like(h)), "draws")
case("random-numpy", VECTOR, REFUSED, mixed(lambda h: h * np.random.rand()), "draws")
case("random-python", VECTOR, REFUSED, mixed(lambda h: h * random.random()), "draws")


def own_generator() -> nn.Module:
    generator = np.random.default_rng(0)
    return mixed(lambda h: h * generator.random())()


case("random-own-generator", VECTOR, REFUSED, own_generator, "asked again")
case(
    "random-transformer",
    SEQUENCE,
    REFUSED,
    lambda: Made(
        lambda self, x: self.out(self.encode(x).mean(1)),
        encode=nn.TransformerEncoderLayer(8, 2, 12, batch_first=True),
        out=nn.Linear(8, 3),
    ),
    "p = 0.1",
)
case("gumbel", VECTOR, REFUSED, mixed(lambda h: F.gumbel_softmax(h, dim=1)), "draws")
case("state-number", VECTOR, REFUSED, lambda: Made(counted, calls=0, out=nn.Linear(8, 3)), "calls")
case(
    "state-buffer",
    VECTOR,
    REFUSED,
    lambda: Made(running, fc=nn.Linear(8, 5), out=nn.Linear(5, 3), mean=torch.zeros(5)),
    "changes its mean",
)
case(
    "state-buffer-in-place",
    VECTOR,
    REFUSED,
    lambda: Made(running_in_place, fc=nn.Linear(8, 5), out=nn.Linear(5, 3), count=torch.zeros(())),
    "count",
)
case(
    "embedding-renormalised",
    TOKENS,
    REFUSED,
    lambda: Made(tokens, embed=nn.Embedding(6, 5, max_norm=0.5), out=nn.Linear(5, 3)),
    "max_norm",
)
case(
    "embedding-functional-renormalised",
    TOKENS,
    REFUSED,
    lambda: Made(
        lambda self, x: F.embedding(x.long(), self.w, max_norm=0.5).mean(1),
        w=nn.Parameter(torch.randn(6, 3)),
    ),
)
case(
    "embedding-by-frequency",
    TOKENS,
    REFUSED,
    lambda: Made(tokens, embed=nn.Embedding(6, 5, scale_grad_by_freq=True), out=nn.Linear(5, 3)),
    "max_norm",
)
case(
    "frozen",
    VECTOR,
    REFUSED,
    lambda: around(nn.ReLU(), nn.Linear(5, 5).requires_grad_(False)),
    "frozen",
)
case(
    "complex",
    VECTOR,
    REFUSED,
    lambda: Made(
        lambda self, x: (x.to(self.w.dtype) @ self.w).abs(),
        w=nn.Parameter(torch.randn(8, 3, dtype=torch.complex64)),
    ),
    "complex",
)
case("two-rows-per-example", SEQUENCE, REFUSED, lambda: nn.Linear(8, 3), "row of scores")
case(
    "scores-of-no-row",
    VECTOR,
    REFUSED,
    lambda: Made(lambda self, x: self.out(x).sum(1), out=nn.Linear(8, 3)),
    "row of scores",
)
case(
    "a-tuple", VECTOR, REFUSED, lambda: Made(lambda self, x: (self.out(x), x), out=nn.Linear(8, 3))
)

# Own inventions that are right --------------------------------------------------------------------

case(
    "gated",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(self.a(x) * torch.sigmoid(self.b(x))),
        a=nn.Linear(8, 5),
        b=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "squeeze-and-excite",
    IMAGE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(
            (h := self.conv(x)).mean((2, 3)) * torch.sigmoid(self.gate(h.mean((2, 3))))
        ),
        conv=nn.Conv2d(2, 4, 3),
        gate=nn.Linear(4, 4),
        out=nn.Linear(4, 3),
    ),
)
case(
    "dense-block",
    IMAGE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(torch.cat([h := self.a(x), self.b(torch.relu(h))], 1).flatten(1)),
        a=nn.Conv2d(2, 3, 3),
        b=nn.Conv2d(3, 2, 3, padding=1),
        out=nn.Linear(180, 3),
    ),
)
case(
    "patches",
    IMAGE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(self.fc(F.unfold(x, 4, stride=4).transpose(1, 2)).mean(1)),
        fc=nn.Linear(32, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "patches-by-layer",
    IMAGE,
    EXACT,
    lambda: nn.Sequential(
        nn.Conv2d(2, 5, 4, stride=4), nn.Flatten(2), nn.Linear(4, 2), nn.Flatten(), nn.Linear(10, 3)
    ),
)
case(
    "channels-last",
    IMAGE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(self.fc(self.norm(x.permute(0, 2, 3, 1))).mean((1, 2))),
        norm=nn.LayerNorm(2),
        fc=nn.Linear(2, 5),
        out=nn.Linear(5, 3),
    ),
)
case("pixel-shuffle", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3), nn.PixelShuffle(2)))
case("upsampled", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 3, 3), nn.Upsample(scale_factor=2)))
case("local-response", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3), nn.LocalResponseNorm(2)))
case(
    "unflattened",
    VECTOR,
    EXACT,
    lambda: nn.Sequential(
        nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 3, 2), nn.Flatten(), nn.Linear(3, 3)
    ),
)
case(
    "cosine-layer",
    VECTOR,
    SLOW,
    lambda: Made(
        lambda self, x: 5 * F.normalize(x) @ F.normalize(self.w, dim=0),
        w=nn.Parameter(torch.randn(8, 3)),
    ),
)
case(
    "position-embedding",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(torch.relu(self.fc(x + self.place)).mean(1)),
        place=nn.Parameter(torch.randn(1, BATCH, 8)),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "positions-looked-up",
    SEQUENCE,
    SLOW,
    lambda: Made(
        lambda self, x: self.out(self.fc(x + self.place(torch.arange(BATCH))).mean(1)),
        place=nn.Embedding(BATCH, 8),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "last-token",
    SEQUENCE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(torch.tanh(self.fc(x))[:, -1]),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
case(
    "experts",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: (
            torch.softmax(self.gate(x), 1).unsqueeze(2)
            * torch.stack([e(x) for e in self.experts], 1)
        ).sum(1),
        gate=nn.Linear(8, 2),
        experts=nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)]),
    ),
)
case(
    "residual-twice",
    IMAGE,
    EXACT,
    lambda: Made(
        lambda self, x: self.out((self.c(h := torch.relu(self.a(x))) + self.b(h)).mean((2, 3))),
        a=nn.Conv2d(2, 4, 3),
        b=nn.Conv2d(4, 4, 1),
        c=nn.Conv2d(4, 4, 3, padding=1),
        out=nn.Linear(4, 3),
    ),
)
case(
    "keeps-activations", VECTOR, EXACT, lambda: Made(kept, fc=nn.Linear(8, 5), out=nn.Linear(5, 3))
)


def kept(self: Any, x: Tensor) -> Tensor:
    self.hidden = torch.tanh(self.fc(x))
    return self.out(self.hidden)


case(
    "plain-tensor-constant",
    VECTOR,
    EXACT,
    lambda: Made(constant, fc=nn.Linear(8, 5), out=nn.Linear(5, 3)),
)
SCALE = torch.linspace(0.5, 1.5, 5)


def constant(self: Any, x: Tensor) -> Tensor:
    return self.out(self.fc(x) * SCALE)


case(
    "matrix-constant",
    VECTOR,
    EXACT,
    lambda: Made(
        lambda self, x: self.out(F.linear(self.fc(x), MATRIX.to(x.dtype))),
        fc=nn.Linear(8, 5),
        out=nn.Linear(5, 3),
    ),
)
MATRIX = torch.eye(5) * 2
