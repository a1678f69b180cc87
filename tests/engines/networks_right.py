"""Networks that were right from the beginning, layers without gradient, and odd shapes."""

from typing import Any

import torch
from torch import Tensor, nn

from tests.engines.networks import (
    BATCH,
    EXACT,
    IMAGE,
    REFUSED,
    SEQUENCE,
    SIGNAL,
    SLOW,
    TOKENS,
    VECTOR,
    VOLUME,
    Made,
    around,
    case,
    hidden,
    images,
    tokens,
)

# Right before, and to stay so ---------------------------------------------------------------------

case("conv", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3)))
case("conv-strided", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3, stride=(2, 1), padding=1)))
case("conv-dilated", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3, dilation=2)))
case("conv-pool", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)))
case("conv-pool-overlapping", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)))  # fmt: skip
case("conv-pool-ceil", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 2), nn.MaxPool2d(2, ceil_mode=True)))  # fmt: skip
case("conv-transposed", IMAGE, SLOW,
    lambda: images(nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1),
    nn.ReLU()))  # fmt: skip
for mode in ("zeros", "reflect", "replicate", "circular"):
    case(f"conv-padding-{mode}", IMAGE, EXACT,
        lambda mode=mode: images(nn.Conv2d(2, 3, 3, padding=1, padding_mode=mode),
        nn.Tanh()))  # fmt: skip
case("conv-same", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 3, (3, 4), padding="same")))
case("conv-1d-transposed", SIGNAL, SLOW,
    lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 3), nn.Tanh(), nn.Flatten(),
    nn.Linear(42, 3)))  # fmt: skip
case("conv-3d", VOLUME, SLOW,
    lambda: nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.Flatten(),
    nn.Linear(54, 3)))  # fmt: skip
case("group-norm", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU()))
case("group-norm-first", IMAGE, EXACT, lambda: images(nn.GroupNorm(1, 2), nn.Conv2d(2, 4, 3)))
case("group-norm-not-affine", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4, affine=False)))  # fmt: skip
case("instance-norm", IMAGE, SLOW,
    lambda: images(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)))  # fmt: skip
case("instance-norm-not-affine", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4), nn.SiLU()))  # fmt: skip
case("layer-norm", VECTOR, EXACT, lambda: around(nn.LayerNorm(5), nn.GELU()))
case("layer-norm-several", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 3, 3), nn.LayerNorm([3, 6, 6])))  # fmt: skip
case("layer-norm-no-bias", VECTOR, EXACT, lambda: around(nn.LayerNorm(5, bias=False)))
case("rms-norm", VECTOR, SLOW, lambda: around(nn.RMSNorm(5), nn.Tanh()), "1 (RMSNorm)")
case("linear-3d", SEQUENCE, EXACT,
    lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Flatten(),
    nn.Linear(5 * BATCH, 3)))  # fmt: skip
case("embedding", TOKENS, EXACT,
    lambda: Made(tokens, embed=nn.Embedding(6, 5), out=nn.Linear(5, 3)))  # fmt: skip
case("embedding-padding", TOKENS, EXACT,
    lambda: Made(tokens, embed=nn.Embedding(6, 5, padding_idx=2),
    out=nn.Linear(5, 3)))  # fmt: skip
case("embedding-sparse", TOKENS, EXACT,
    lambda: Made(tokens, embed=nn.Embedding(6, 5, sparse=True), out=nn.Linear(5, 3)))  # fmt: skip
case("embedding-bag", TOKENS, SLOW,
    lambda: Made(lambda self, x: self.out(self.embed(x.long())), embed=nn.EmbeddingBag(6, 5),
    out=nn.Linear(5, 3)))  # fmt: skip
case("fused", VECTOR, EXACT, lambda: around(nn.ReLU()))
case("one-output", VECTOR, EXACT,
    lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1)))  # fmt: skip
case("no-bias", VECTOR, EXACT, lambda: nn.Sequential(nn.Linear(8, 3, bias=False)))


class Attention(nn.Module):
    """By hand, one head; averaged over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 15), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out((torch.softmax(q @ k.transpose(1, 2) / 5**0.5, -1) @ v).mean(1))


case("attention-by-hand", SEQUENCE, EXACT, Attention)


class Residual(nn.Module):
    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*inner)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


case("residual-inside", VECTOR, EXACT,
    lambda: around(Residual(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 5)), nn.ReLU()))  # fmt: skip
case("nested", VECTOR, EXACT,
    lambda: around(nn.Sequential(nn.ReLU(),
    nn.Sequential(nn.Linear(5, 5), nn.Identity()))))  # fmt: skip
case("dropout-of-zero", VECTOR, EXACT, lambda: around(nn.Dropout(0.0), nn.ReLU()))
case("buffer-constant", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(torch.tanh(self.fc(x * self.scale))), **hidden(),
    scale=torch.linspace(0.5, 2, 8)))  # fmt: skip

# Layers without gradient, and shapes --------------------------------------------------------------

case("unused-layer", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(self.fc(x)), fc=nn.Linear(8, 5), spare=nn.Linear(8, 5),
    out=nn.Linear(5, 3)))  # fmt: skip
case("unused-conv", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.net(x), net=images(nn.Conv2d(2, 3, 3)),
    spare=nn.Conv2d(2, 3, 3)))  # fmt: skip


def auxiliary(self: Any, x: Tensor) -> Tensor:
    h = torch.tanh(self.fc(x))
    self.aside(h)
    return self.out(h)


case("auxiliary-head", VECTOR, EXACT,
    lambda: Made(auxiliary, fc=nn.Linear(8, 5), aside=nn.Linear(5, 2),
    out=nn.Linear(5, 3)))  # fmt: skip
case("detached", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(torch.tanh(self.fc(x)).detach()),
    **hidden()))  # fmt: skip
case("linear-fused-on-sequences", SEQUENCE, REFUSED, lambda: around(nn.ReLU()), "row of scores")
case("linear-fused-then-mean", SEQUENCE, EXACT,
    lambda: Made(lambda self, x: self.net(x).mean(1), net=around(nn.ReLU())))  # fmt: skip
case("flatten-from-zero", VECTOR, REFUSED,
    lambda: nn.Sequential(nn.Flatten(0), nn.Linear(48, 5), nn.ReLU(),
    nn.Linear(5, 3)))  # fmt: skip
case("flatten-from-two", IMAGE, EXACT,
    lambda: nn.Sequential(nn.Flatten(2), nn.Linear(64, 5), nn.ReLU(), nn.Flatten(),
    nn.Linear(10, 3)))  # fmt: skip
case("time-folded-into-batch", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(torch.tanh(self.fc(x.reshape(-1, 8))).view(-1,
    5 * BATCH)), fc=nn.Linear(8, 5), out=nn.Linear(5 * BATCH, 3)))  # fmt: skip
case("time-folded-by-rows", SEQUENCE, EXACT,
    lambda: Made(lambda self, x: self.out(torch.tanh(self.fc(x)).reshape(len(x), -1)),
    fc=nn.Linear(8, 5), out=nn.Linear(5 * BATCH, 3)))  # fmt: skip
case("counts-rows", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out(self.conv(x).view(x.shape[0], -1)),
    conv=nn.Conv2d(2, 3, 3), out=nn.Linear(108, 3)))  # fmt: skip


def sequence_first(self: Any, x: Tensor) -> Tensor:
    h = torch.tanh(self.fc(x.transpose(0, 1)))  # [T, B, d]
    return self.out(h.mean(0))


case("sequence-first", SEQUENCE, SLOW, lambda: Made(sequence_first, **hidden()))
case("sequence-first-later", SEQUENCE, SLOW,
    lambda: Made(lambda self, x: self.out(self.mid(self.fc(x).transpose(0, 1)).sum(0)),
    fc=nn.Linear(8, 5), mid=nn.Linear(5, 5), out=nn.Linear(5, 3)))  # fmt: skip
