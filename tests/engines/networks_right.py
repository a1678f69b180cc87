"""Networks that are right: layers, shapes, inputs and inventions of many kinds."""

import copy
import threading
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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
    expert,
    hidden,
    images,
    tokens,
)

# Right before, and to stay so ---------------------------------------------------------------------

case("conv", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 3)))
case("conv-pool", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)))
case("conv-pool-ceil", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 2), nn.MaxPool2d(2, ceil_mode=True)))  # fmt: skip
case("conv-transposed", IMAGE, SLOW,
    lambda: images(nn.ConvTranspose2d(2, 3, 3, stride=2, output_padding=1),
    nn.ReLU()))  # fmt: skip
case("conv-padding-replicate", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate"), nn.Tanh()))  # fmt: skip
case("conv-1d-transposed", SIGNAL, SLOW,
    lambda: nn.Sequential(nn.ConvTranspose1d(2, 3, 3), nn.Tanh(), nn.Flatten(),
    nn.Linear(42, 3)))  # fmt: skip
case("conv-3d", VOLUME, SLOW,
    lambda: nn.Sequential(nn.Conv3d(1, 2, 3), nn.ReLU(), nn.Flatten(),
    nn.Linear(54, 3)))  # fmt: skip
case("group-norm-not-affine", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4, affine=False)))  # fmt: skip
case("instance-norm", IMAGE, SLOW,
    lambda: images(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4, affine=True)))  # fmt: skip
case("instance-norm-not-affine", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), nn.InstanceNorm2d(4), nn.SiLU()))  # fmt: skip
case("layer-norm-several", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 3, 3), nn.LayerNorm([3, 6, 6])))  # fmt: skip
case("linear-3d", SEQUENCE, EXACT,
    lambda: nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Flatten(),
    nn.Linear(5 * BATCH, 3)))  # fmt: skip
case("embedding", TOKENS, EXACT,
    lambda: Made(tokens, embed=nn.Embedding(6, 5), out=nn.Linear(5, 3)))  # fmt: skip
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
