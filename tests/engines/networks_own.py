"""Networks of other shapes that are right."""

from __future__ import annotations

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
    VECTOR,
    Made,
    case,
    images,
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


case(
    "masked-in-place",
    VECTOR,
    EXACT,
    lambda: Made(masked, fc=nn.Linear(8, 5), out=nn.Linear(5, 3)),
)
case(
    "gated-without-gradient",
    VECTOR,
    SLOW,
    lambda: Made(gated_without_gradient, fc=nn.Linear(8, 5), out=nn.Linear(5, 3)),
)
case("not-copied", VECTOR, SLOW, Locked)
case(
    "by-chunks-of-the-batch",
    VECTOR,
    SLOW,
    lambda: Made(lambda self, x: torch.cat([self.out(c) for c in x.split(2)]), out=nn.Linear(8, 3)),
)
case(
    "by-rows",
    VECTOR,
    SLOW,
    lambda: Made(lambda self, x: torch.stack([self.out(r) for r in x]), out=nn.Linear(8, 3)),
)
case(
    "vmapped-by-its-own-code",
    VECTOR,
    SLOW,
    lambda: Made(lambda self, x: torch.func.vmap(self.out)(x), out=nn.Linear(8, 3)),
)
