"""Layers of several inputs, the raw input used again, and work in place."""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.engines.networks import (
    EXACT,
    IMAGE,
    REFUSED,
    SEQUENCE,
    SLOW,
    VECTOR,
    Made,
    around,
    case,
    hidden,
    images,
)

# Layers that take or give more than one tensor ----------------------------------------------------

case("multihead", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(self.attend(x, x, x)[0].mean(1)),
    attend=nn.MultiheadAttention(8, 2, batch_first=True), out=nn.Linear(8, 3)))  # fmt: skip
case("multihead-after", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(self.attend(*[self.fc(x)] * 3,
    need_weights=False)[0].mean(1)), fc=nn.Linear(8, 8),
    attend=nn.MultiheadAttention(8, 2, batch_first=True), out=nn.Linear(8, 3)))  # fmt: skip
case("multihead-sequence-first", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(self.attend(*[x.transpose(0, 1)] * 3)[0].mean(0)),
    attend=nn.MultiheadAttention(8, 2), out=nn.Linear(8, 3)))  # fmt: skip
case("multihead-over-the-batch", SEQUENCE, REFUSED,
    lambda: Made(lambda self, x: self.out(self.attend(x, x, x)[0].mean(1)),
    attend=nn.MultiheadAttention(8, 2), out=nn.Linear(8, 3)), "others in its batch")  # fmt: skip
case("transformer", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(self.encode(x).mean(1)),
    encode=nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True),
    out=nn.Linear(8, 3)))  # fmt: skip
case("gru", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(self.run(x)[1][0]), run=nn.GRU(8, 4, batch_first=True),
    out=nn.Linear(4, 3)))  # fmt: skip
case("gru-over-the-batch", SEQUENCE, REFUSED,
    lambda: Made(lambda self, x: self.out(self.run(x)[0][:, -1]), run=nn.GRU(8, 4),
    out=nn.Linear(4, 3)), "run (GRU)")  # fmt: skip
case("rnn-cell", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(self.cell(x[:, 1], self.cell(x[:, 0]))),
    cell=nn.RNNCell(8, 4), out=nn.Linear(4, 3)))  # fmt: skip
case("bilinear", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(self.pair(x[:, :4], x[:, 4:])), pair=nn.Bilinear(4, 4, 5),
    out=nn.Linear(5, 3)))  # fmt: skip
case("parameter-dict", VECTOR, SLOW,
    lambda: Made(lambda self, x: torch.tanh(x @ self.ws["a"]) @ self.ws["b"],
    ws=nn.ParameterDict({"a": torch.randn(8, 5), "b": torch.randn(5, 3)})))  # fmt: skip
case("parameter-of-the-model", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(x * self.scale), scale=nn.Parameter(torch.rand(8)),
    out=nn.Linear(8, 3)))  # fmt: skip
case("prelu", VECTOR, SLOW, lambda: around(nn.PReLU()))
case("prelu-by-channel", IMAGE, SLOW, lambda: images(nn.Conv2d(2, 4, 3), nn.PReLU(4)))
case("two-inputs", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(self.mix(x[:, :4], x[:, 4:])), mix=Made2(),
    out=nn.Linear(5, 3)))  # fmt: skip
case("keyword-input", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(input=torch.relu(self.fc(input=x))),
    **hidden()))  # fmt: skip
case("lazy-by-functional", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out(F.adaptive_avg_pool2d(F.relu(self.conv(x)),
    2).flatten(1)), conv=nn.Conv2d(2, 3, 3), out=nn.Linear(12, 3)))  # fmt: skip


class Made2(nn.Module):
    """Its parameters and two inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, 5)), nn.Parameter(torch.randn(4, 5))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return torch.tanh(left @ self.a) * (right @ self.b)


# The raw input beside what was made of it ---------------------------------------------------------

case("skip-from-the-input", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(torch.relu(x + self.fc(x))), fc=nn.Linear(8, 8),
    out=nn.Linear(8, 3)))  # fmt: skip
case("skip-from-the-input-conv", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out((x + self.conv(x)).flatten(1)),
    conv=nn.Conv2d(2, 2, 3, padding=1), out=nn.Linear(128, 3)))  # fmt: skip
case("joined-with-the-input", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(torch.cat([x, torch.tanh(self.fc(x))], 1)),
    fc=nn.Linear(8, 5), out=nn.Linear(13, 3)))  # fmt: skip
case("scaled-by-the-input", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(self.fc(x) * x.norm(dim=1, keepdim=True)),
    **hidden()))  # fmt: skip
case("columns-of-the-input", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(self.a(x[:, :4]) + self.b(x[:, 4:])), a=nn.Linear(4, 5),
    b=nn.Linear(4, 5), out=nn.Linear(5, 3)))  # fmt: skip
case("reversed-input", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(self.fc(x.flip(1))), **hidden()))  # fmt: skip
case("counts-rows-before", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(torch.cat([self.fc(x), x.new_ones(x.shape[0], 1)], 1)),
    fc=nn.Linear(8, 5), out=nn.Linear(6, 3)))  # fmt: skip

# In place -----------------------------------------------------------------------------------------


def in_place(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    h += 1
    return self.out(h.relu_())


def input_in_place(self: Any, x: Tensor) -> Tensor:
    x.mul_(0.5).sub_(0.1)
    return self.out(torch.tanh(self.fc(x)))


case("relu-in-place", VECTOR, EXACT, lambda: around(nn.ReLU(inplace=True)))
case("relu-in-place-conv", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(inplace=True),
    nn.MaxPool2d(2)))  # fmt: skip
case("relu-in-place-first", IMAGE, EXACT, lambda: images(nn.ReLU(inplace=True), nn.Conv2d(2, 3, 3)))
case("relu-in-place-reused", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(self.act(h := self.fc(x)) + h), fc=nn.Linear(8, 5),
    act=nn.ReLU(inplace=True), out=nn.Linear(5, 3)))  # fmt: skip
case("functional-in-place", VECTOR, SLOW, lambda: Made(in_place, **hidden()))
case("input-in-place", VECTOR, SLOW, lambda: Made(input_in_place, **hidden()))
case("checkpoint", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(checkpoint(lambda v: torch.relu(self.fc(v)), x,
    use_reentrant=False)), **hidden()))  # fmt: skip
case("checkpoint-reentrant", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(checkpoint(self.mid, self.fc(x), use_reentrant=True)),
    fc=nn.Linear(8, 5), mid=nn.Sequential(nn.Tanh(), nn.Linear(5, 5)),
    out=nn.Linear(5, 3)))  # fmt: skip


class Doubling(torch.autograd.Function):
    """An identity whose gradient is doubled, and by how many rows there are."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (1 + len(g))


case("gradient-by-batch", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(Doubling.apply(self.fc(x))), **hidden()))  # fmt: skip
case("gradient-hook-inside", VECTOR, SLOW, lambda: Made(hooked_inside, **hidden()))


def hooked_inside(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    if h.requires_grad:
        h.register_hook(lambda g: g / g.norm())
    return self.out(h)


case("double-outputs", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.fc(x).double(), fc=nn.Linear(8, 3)))  # fmt: skip
