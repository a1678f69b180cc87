"""Networks of other shapes that are right."""

import copy
import threading
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.engines.networks import (
    BATCH,
    EXACT,
    IMAGE,
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
)

# Own inventions that are right --------------------------------------------------------------------

case("gated", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(self.a(x) * torch.sigmoid(self.b(x))), a=nn.Linear(8, 5),
    b=nn.Linear(8, 5), out=nn.Linear(5, 3)))  # fmt: skip
case("squeeze-and-excite", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out((h := self.conv(x)).mean((2,
    3)) * torch.sigmoid(self.gate(h.mean((2, 3))))), conv=nn.Conv2d(2, 4, 3), gate=nn.Linear(4, 4),
    out=nn.Linear(4, 3)))  # fmt: skip
case("dense-block", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out(torch.cat([h := self.a(x), self.b(torch.relu(h))],
    1).flatten(1)), a=nn.Conv2d(2, 3, 3), b=nn.Conv2d(3, 2, 3, padding=1),
    out=nn.Linear(180, 3)))  # fmt: skip
case("patches", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out(self.fc(F.unfold(x, 4, stride=4).transpose(1,
    2)).mean(1)), fc=nn.Linear(32, 5), out=nn.Linear(5, 3)))  # fmt: skip
case("patches-by-layer", IMAGE, EXACT,
    lambda: nn.Sequential(nn.Conv2d(2, 5, 4, stride=4), nn.Flatten(2), nn.Linear(4, 2),
    nn.Flatten(), nn.Linear(10, 3)))  # fmt: skip
case("channels-last", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out(self.fc(self.norm(x.permute(0, 2, 3, 1))).mean((1, 2))),
    norm=nn.LayerNorm(2), fc=nn.Linear(2, 5), out=nn.Linear(5, 3)))  # fmt: skip
case("pixel-shuffle", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3), nn.PixelShuffle(2)))
case("upsampled", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 3, 3), nn.Upsample(scale_factor=2)))
case("local-response", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3), nn.LocalResponseNorm(2)))
case("unflattened", VECTOR, EXACT,
    lambda: nn.Sequential(nn.Unflatten(1, (2, 2, 2)), nn.Conv2d(2, 3, 2), nn.Flatten(),
    nn.Linear(3, 3)))  # fmt: skip
case("cosine-layer", VECTOR, SLOW,
    lambda: Made(lambda self, x: 5 * F.normalize(x) @ F.normalize(self.w, dim=0),
    w=nn.Parameter(torch.randn(8, 3))))  # fmt: skip
case("position-embedding", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(torch.relu(self.fc(x + self.place)).mean(1)),
    place=nn.Parameter(torch.randn(1, BATCH, 8)), **hidden()))  # fmt: skip
case("positions-looked-up", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(self.fc(x + self.place(torch.arange(BATCH))).mean(1)),
    place=nn.Embedding(BATCH, 8), **hidden()))  # fmt: skip
case("last-token", SEQUENCE, EXACT,
    lambda: Made(lambda self, x: self.out(torch.tanh(self.fc(x))[:, -1]), **hidden()))  # fmt: skip
case("experts", VECTOR, EXACT,
    lambda: Made(lambda self, x: (torch.softmax(self.gate(x),
    1).unsqueeze(2) * torch.stack([e(x) for e in self.experts], 1)).sum(1), gate=nn.Linear(8, 2),
    experts=nn.ModuleList([nn.Linear(8, 3), nn.Linear(8, 3)])))  # fmt: skip
case("residual-twice", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out((self.c(h := torch.relu(self.a(x))) + self.b(h)).mean((2,
    3))), a=nn.Conv2d(2, 4, 3), b=nn.Conv2d(4, 4, 1), c=nn.Conv2d(4, 4, 3, padding=1),
    out=nn.Linear(4, 3)))  # fmt: skip
case("keeps-activations", VECTOR, EXACT, lambda: Made(kept, **hidden()))


def kept(self: Any, x: Tensor) -> Tensor:
    self.hidden = torch.tanh(self.fc(x))
    return self.out(self.hidden)


case("plain-tensor-constant", VECTOR, EXACT, lambda: Made(constant, **hidden()))
SCALE = torch.linspace(0.5, 1.5, 5)


def constant(self: Any, x: Tensor) -> Tensor:
    return self.out(self.fc(x) * SCALE)


case("matrix-constant", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(F.linear(self.fc(x), MATRIX.to(x.dtype))),
    **hidden()))  # fmt: skip
MATRIX = torch.eye(5) * 2


def masked(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x).clone()
    h[h < 0] = 0
    return self.out(h)


def gated_without_gradient(self: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        gate = torch.sigmoid(self.fc(x)).mean(1, keepdim=True)
    return self.out(torch.tanh(self.fc(x)) * gate)


class Locked(nn.Module):
    """What no copy can be made of."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.fc = threading.Lock(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


case("masked-in-place", VECTOR, EXACT, lambda: Made(masked, **hidden()))
case("gated-without-gradient", VECTOR, SLOW, lambda: Made(gated_without_gradient, **hidden()))
case("not-copied", VECTOR, SLOW, Locked)
case("by-chunks-of-the-batch", VECTOR, SLOW,
    lambda: Made(lambda self, x: torch.cat([self.out(c) for c in x.split(2)]),
    out=nn.Linear(8, 3)))  # fmt: skip
case("by-rows", VECTOR, SLOW,
    lambda: Made(lambda self, x: torch.stack([self.out(r) for r in x]),
    out=nn.Linear(8, 3)))  # fmt: skip
case("vmapped-by-its-own-code", VECTOR, SLOW,
    lambda: Made(lambda self, x: torch.func.vmap(self.out)(x), out=nn.Linear(8, 3)))  # fmt: skip

# Whole numbers, frozen parameters, layers in eval mode, and numbers kept for later ----------------


def numbers(self: Any, x: Tensor) -> Tensor:
    """Of whole numbers alone."""
    return self.out(self.embed(x).mean(1))


case("tokens", TOKENS, EXACT, lambda: Made(numbers, embed=nn.Embedding(6, 5), out=nn.Linear(5, 3)))
case("one-hot", TOKENS, EXACT,
    lambda: Made(lambda self, x: self.out(F.one_hot(x, 6).to(self.like.dtype).flatten(1)),
    like=torch.zeros(1), out=nn.Linear(42, 3)))  # fmt: skip
case("one-hot-inside", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out((h := self.fc(x)) * F.one_hot(h.argmax(1),
    num_classes=5).to(h.dtype)), **hidden()))  # fmt: skip
case("frozen", VECTOR, EXACT, lambda: around(nn.ReLU(), nn.Linear(5, 5).requires_grad_(False)))
case("frozen-convolution-first", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3).requires_grad_(False), nn.ReLU(),
    nn.Conv2d(4, 3, 3)))  # fmt: skip


def biases_only() -> nn.Module:
    module = around(nn.Tanh())
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return module


case("frozen-weights-trained-biases", VECTOR, SLOW, biases_only, "has no rule of its own")


def adapted(self: Any, x: Tensor) -> Tensor:
    """LoRA, as Hu et al. (2021), section 4.1."""
    return self.out(torch.tanh(self.base(x) + self.up(self.down(x))))


case("low-rank-adapters", VECTOR, EXACT,
    lambda: Made(adapted, base=nn.Linear(8, 5).requires_grad_(False),
    down=nn.Linear(8, 2, bias=False), up=nn.Linear(2, 5, bias=False),
    out=nn.Linear(5, 3)))  # fmt: skip
case("low-rank-adapters-of-bare-parameters", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(torch.tanh(self.base(x) + x @ self.down @ self.up)),
    base=nn.Linear(8, 5).requires_grad_(False), down=nn.Parameter(torch.randn(8, 2)),
    up=nn.Parameter(torch.zeros(2, 5)), out=nn.Linear(5, 3)))  # fmt: skip


def with_statistics(layer: Any) -> nn.Module:
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer.eval()


case("batch-norm-evaluating", VECTOR, SLOW,
    lambda: around(with_statistics(nn.BatchNorm1d(5))),
    "1 (BatchNorm1d) has no rule of its own")  # fmt: skip
case("batch-norm-frozen", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), with_statistics(nn.BatchNorm2d(4)).requires_grad_(False),
    nn.ReLU()))  # fmt: skip
case("instance-norm-evaluating", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3),
    with_statistics(nn.InstanceNorm2d(4, track_running_stats=True))))  # fmt: skip
case("dropout-evaluating", VECTOR, EXACT, lambda: around(nn.Dropout(0.3).eval()))


def remembered(self: Any, x: Tensor) -> Tensor:
    """Positions made at the first call, as rotary embeddings keep them; no buffer."""
    if not hasattr(self, "positions"):
        self.positions = torch.linspace(0, 1, 5).to(x.dtype).expand(5, 5)
        self.masks = {5: torch.eye(5, dtype=x.dtype)}
    return self.out(torch.tanh(self.fc(x)) @ self.positions @ self.masks[5])


def registered(self: Any, x: Tensor) -> Tensor:
    if not hasattr(self, "mask"):
        self.register_buffer("mask", torch.eye(5, dtype=x.dtype), persistent=False)
    return self.out(torch.tanh(self.fc(x)) @ self.mask)


def kept_in_a_dict(self: Any, x: Tensor) -> Tensor:
    mask = self.kept.setdefault("mask", torch.eye(5, dtype=x.dtype))
    return self.out(torch.tanh(self.fc(x)) @ mask)


for made, more in ((remembered, {}), (registered, {}), (kept_in_a_dict, {"kept": {}})):
    case(f"{made.__name__}-at-the-first-call".replace("_", "-"), VECTOR, EXACT,
        lambda made=made, more=more: Made(made, **hidden(), **copy.deepcopy(more)))  # fmt: skip

# What differs only where many models go through together ------------------------------------------


def routed(self: Any, x: Tensor) -> Tensor:
    """A mixture of experts with room for three batches of one model."""
    return self.out(expert(torch.tanh(self.fc(x)) + 1, 3 * BATCH))


class Crowded(torch.autograd.Function):
    """An identity whose gradient is another one where it has many rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * (1 + (len(g) > 3 * BATCH))


case("expert-full-with-many-models", VECTOR, EXACT, lambda: Made(routed, **hidden()))
case("gradient-by-many-models", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(Crowded.apply(self.fc(x))), **hidden()))  # fmt: skip
case("mixes-many-models", VECTOR, EXACT,
    lambda: Made(lambda self,
    x: self.out((h := torch.tanh(self.fc(x))) - (h.mean(0) if len(h) > 3 * BATCH else 0)),
    **hidden()))  # fmt: skip
