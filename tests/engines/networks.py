"""Networks of many kinds, and what must become of each.

EXACT: packed, as autograd has it. SLOW: the same, by a way that is warned of. REFUSED: one line.
"""

import copy
import dataclasses
import enum
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torchvision.ops import DeformConv2d

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


def loss_of(outputs: Tensor, y: Tensor) -> Tensor:
    if outputs.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs.dtype))
    return F.cross_entropy(outputs, y)


def slow_clipped_sum(module: nn.Module, flat: Tensor, x: Tensor, y: Tensor, clip: float) -> Tensor:
    """One model: one gradient per example, by a backward pass each."""
    parameters = [p for p in module.parameters() if p.requires_grad]
    nn.utils.vector_to_parameters(flat, parameters)
    total = torch.zeros_like(flat)
    for j in range(len(y)):
        module.zero_grad()
        loss_of(module(x[j : j + 1].clone()), y[j : j + 1]).backward()
        grads = [torch.zeros_like(p) if p.grad is None else p.grad.to_dense() for p in parameters]
        gradient = torch.cat([g.flatten() for g in grads])
        total += gradient * min(1.0, clip / max(float(gradient.norm()), 1e-300))
    return total


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


VECTOR, IMAGE, SEQUENCE, SIGNAL, TOKENS = Kind
EXACT, SLOW, REFUSED = Outcome

# Right before, and to stay so ---------------------------------------------------------------------

case("conv-pool", IMAGE, EXACT, lambda: images(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)))
case("embedding-sparse", TOKENS, EXACT,
    lambda: Made(tokens, embed=nn.Embedding(6, 5, sparse=True), out=nn.Linear(5, 3)))  # fmt: skip
case("embedding-bag", TOKENS, SLOW,
    lambda: Made(lambda self, x: self.out(self.embed(x.long())), embed=nn.EmbeddingBag(6, 5),
    out=nn.Linear(5, 3)))  # fmt: skip
case("fused", VECTOR, EXACT, lambda: around(nn.ReLU()))
case("one-output", VECTOR, EXACT,
    lambda: nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1)))  # fmt: skip


# Layers without gradient, and shapes --------------------------------------------------------------

case("unused-layer", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(self.fc(x)), fc=nn.Linear(8, 5), spare=nn.Linear(8, 5),
    out=nn.Linear(5, 3)))  # fmt: skip


case("detached", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(torch.tanh(self.fc(x)).detach()),
    **hidden()))  # fmt: skip
case("linear-fused-on-sequences", SEQUENCE, REFUSED, lambda: around(nn.ReLU()), "row of scores")
case("flatten-from-two", IMAGE, EXACT,
    lambda: nn.Sequential(nn.Flatten(2), nn.Linear(64, 5), nn.ReLU(), nn.Flatten(),
    nn.Linear(10, 3)))  # fmt: skip
case("time-folded-into-batch", SEQUENCE, EXACT,
    lambda: Made(lambda self, x: self.out(torch.tanh(self.fc(x.reshape(-1, 8))).view(-1,
    5 * BATCH)), fc=nn.Linear(8, 5), out=nn.Linear(5 * BATCH, 3)))  # fmt: skip
case("sequence-first-later", SEQUENCE, EXACT,
    lambda: Made(lambda self, x: self.out(self.mid(self.fc(x).transpose(0, 1)).sum(0)),
    fc=nn.Linear(8, 5), mid=nn.Linear(5, 5), out=nn.Linear(5, 3)))  # fmt: skip


# Own inventions that are right --------------------------------------------------------------------

case("channels-last", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out(self.fc(self.norm(x.permute(0, 2, 3, 1))).mean((1, 2))),
    norm=nn.LayerNorm(2), fc=nn.Linear(2, 5), out=nn.Linear(5, 3)))  # fmt: skip
case("positions-looked-up", SEQUENCE, EXACT,
    lambda: Made(lambda self, x: self.out(self.fc(x + self.place(torch.arange(BATCH))).mean(1)),
    place=nn.Embedding(BATCH, 8), **hidden()))  # fmt: skip


class Locked(nn.Module):
    """Layer that cannot be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.fc = threading.Lock(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


case("not-copied", VECTOR, SLOW, Locked)

# Whole numbers, frozen parameters, layers in eval mode, and numbers kept for later ----------------


def numbers(self: Any, x: Tensor) -> Tensor:
    """Forward pass of a layer that takes whole numbers only."""
    return self.out(self.embed(x).mean(1))


case("tokens", TOKENS, EXACT, lambda: Made(numbers, embed=nn.Embedding(6, 5), out=nn.Linear(5, 3)))
case("one-hot", TOKENS, EXACT,
    lambda: Made(lambda self, x: self.out(F.one_hot(x, 6).to(self.like.dtype).flatten(1)),
    like=torch.zeros(1), out=nn.Linear(42, 3)))  # fmt: skip
case("frozen", VECTOR, EXACT, lambda: around(nn.ReLU(), nn.Linear(5, 5).requires_grad_(False)))


def biases_only() -> nn.Module:
    module = around(nn.Tanh())
    for name, parameter in module.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return module


case("frozen-weights-trained-biases", VECTOR, SLOW, biases_only, "has no rule of this package")


def with_statistics(layer: Any) -> nn.Module:
    layer.running_mean.normal_()
    layer.running_var.uniform_(0.5, 2)
    return layer.eval()


case("batch-norm-evaluating", VECTOR, EXACT,
    lambda: around(with_statistics(nn.BatchNorm1d(5))))  # fmt: skip
case("batch-norm-frozen", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3), with_statistics(nn.BatchNorm2d(4)).requires_grad_(False),
    nn.ReLU()))  # fmt: skip
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

# Parameters without a rule, between layers that have one ------------------------------------------


class RootMeanSquare(nn.Module):
    """A norm as published language models write it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 1.5, 5))

    def forward(self, h: Tensor) -> Tensor:
        return self.weight * h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)


class ByChannel(nn.LayerNorm):
    """A norm of the channels at every position of an image."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Named(nn.Linear):
    """A layer of another name that does the same."""


def with_token(self: Any, x: Tensor) -> Tensor:
    h = torch.cat([self.token.expand(len(x), -1, -1), self.fc(x)], 1) + self.places
    return self.out((self.scale * torch.tanh(self.mid(h)))[:, 0])


def stepped(self: Any, x: Tensor) -> Tensor:
    """A residual that is added in place."""
    h = self.first(x)
    h += self.second(torch.tanh(h))
    return self.out(h.flatten(1))


def attended(self: Any, x: Tensor, **options: Any) -> Tensor:
    h = self.fc(x).transpose(0, 1)
    mask = torch.ones(BATCH, BATCH, dtype=torch.bool).triu(1)
    return self.out(self.attend(h, h, h, attn_mask=mask, **options)[0].mean(0))


def padded(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    mask = (x[..., 0] > 1).to(h.dtype) * -3
    outputs, weights = self.attend(h, h, h, key_padding_mask=mask, average_attn_weights=False)
    return self.out(outputs.mean(1)) + weights.mean((1, 2))[:, :3]


case("ways-bare-norm", VECTOR, EXACT, lambda: around(nn.Tanh(), RootMeanSquare()))
case("ways-bare-norm-of-torch", SEQUENCE, EXACT, lambda: Made(
    lambda self, x: self.out(self.norm(self.fc(x)).mean(1)),
    norm=nn.RMSNorm(5), **hidden()))  # fmt: skip
case("ways-bare-norm-by-channel", IMAGE, EXACT, lambda: images(
    nn.Conv2d(2, 3, 3), ByChannel(3), nn.GELU(), nn.Conv2d(3, 3, 3, groups=3)))  # fmt: skip
case("ways-bare-volume", IMAGE, EXACT, lambda: nn.Sequential(
    nn.Unflatten(1, (1, 2)), nn.Conv3d(1, 2, 2), nn.Tanh(), nn.Flatten(),
    nn.Linear(98, 3)))  # fmt: skip
case("ways-named", VECTOR, EXACT, lambda: around(Named(5, 5), nn.ReLU()))
case("ways-bare-token", SEQUENCE, EXACT, lambda: Made(with_token, mid=nn.Linear(5, 5), **hidden(),
    token=nn.Parameter(torch.randn(1, 1, 5)), places=nn.Parameter(torch.randn(1, 7, 5)),
    scale=nn.Parameter(torch.linspace(0.5, 1.5, 5))))  # fmt: skip
case("ways-in-place", IMAGE, EXACT, lambda: Made(stepped, first=nn.Conv2d(2, 3, 3, padding=1),
    second=nn.Conv2d(3, 3, 3, padding=1), out=nn.Linear(192, 3)))  # fmt: skip
case("ways-attention-causal", SEQUENCE, EXACT, lambda: Made(attended,
    fc=nn.Linear(8, 4), attend=nn.MultiheadAttention(4, 2), out=nn.Linear(4, 3)))  # fmt: skip
case("ways-attention-padded", SEQUENCE, EXACT, lambda: Made(padded, fc=nn.Linear(8, 4),
    attend=nn.MultiheadAttention(4, 2, bias=False, batch_first=True),
    out=nn.Linear(4, 3)))  # fmt: skip
case("ways-attention-with-keys", SEQUENCE, SLOW, lambda: Made(
    lambda self, x: self.out(self.attend(x, x, x)[0].mean(1)), out=nn.Linear(8, 3),
    attend=nn.MultiheadAttention(8, 2, add_bias_kv=True, batch_first=True)))  # fmt: skip

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
case("gradient-by-many-models", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(Crowded.apply(self.fc(x))), **hidden()))  # fmt: skip


# Code that joins the batch with what follows from parameters --------------------------------------

case("ways-with-the-batch-residual", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(x + self.back(torch.tanh(self.fc(x)))),
    fc=nn.Linear(8, 5), back=nn.Linear(5, 8), out=nn.Linear(8, 3)))  # fmt: skip
case("ways-with-the-batch-graph", SEQUENCE, EXACT,
    lambda: Made(lambda self, x: self.out((torch.softmax(x @ x.mT, 2) @ self.fc(x)).mean(1)),
    **hidden()))  # fmt: skip
case("ways-with-the-batch-masked", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(torch.where(x > 0, torch.tanh(self.fc(x)), x)),
    fc=nn.Linear(8, 8), out=nn.Linear(8, 3)))  # fmt: skip


# Layers that take or give more than one tensor ----------------------------------------------------

case("multihead", SEQUENCE, EXACT,
    lambda: Made(lambda self, x: self.out(self.attend(x, x, x)[0].mean(1)),
    attend=nn.MultiheadAttention(8, 2, batch_first=True), out=nn.Linear(8, 3)))  # fmt: skip
case("gru-over-the-batch", SEQUENCE, REFUSED,
    lambda: Made(lambda self, x: self.out(self.run(x)[0][:, -1]), run=nn.GRU(8, 4),
    out=nn.Linear(4, 3)), "others in its batch")  # fmt: skip
case("prelu", VECTOR, EXACT, lambda: around(nn.PReLU()))
case("keyword-input", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(input=torch.relu(self.fc(input=x))),
    **hidden()))  # fmt: skip


# In place -----------------------------------------------------------------------------------------


def input_in_place(self: Any, x: Tensor) -> Tensor:
    x.mul_(0.5).sub_(0.1)
    return self.out(torch.tanh(self.fc(x)))


case("relu-in-place", VECTOR, EXACT, lambda: around(nn.ReLU(inplace=True)))
case("relu-in-place-reused", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(self.act(h := self.fc(x)) + h), fc=nn.Linear(8, 5),
    act=nn.ReLU(inplace=True), out=nn.Linear(5, 3)))  # fmt: skip
case("input-in-place", VECTOR, EXACT, lambda: Made(input_in_place, **hidden()))
case("checkpoint", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.out(checkpoint(lambda v: torch.relu(self.fc(v)), x,
    use_reentrant=False)), **hidden()))  # fmt: skip


case("gradient-hook-inside", VECTOR, SLOW, lambda: Made(hooked_inside, **hidden()))


def hooked_inside(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    if h.requires_grad:
        h.register_hook(lambda g: g / g.norm())
    return self.out(h)


case("double-outputs", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.fc(x).double(), fc=nn.Linear(8, 3)))  # fmt: skip

# Taken for their base class -----------------------------------------------------------------------


class Doubled(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Backwards(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for layer in reversed(list(self)):
            x = layer(x)
        return x


case("subclass-linear", VECTOR, SLOW,
    lambda: nn.Sequential(Doubled(8, 5), nn.ReLU(), nn.Linear(5, 3)), "0 (Doubled)")  # fmt: skip
case("subclass-sequential", VECTOR, EXACT,
    lambda: Backwards(nn.Linear(5, 3), nn.ReLU(), nn.Linear(8, 5)))  # fmt: skip


def own_forward() -> nn.Module:
    net = around(nn.ReLU())
    net[1].forward = lambda x: x**3
    return net


case("forward-of-its-own", VECTOR, SLOW, own_forward, "1 (ReLU) has its own forward()")

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
case("hook-backward", VECTOR, SLOW,
    hooked(lambda net: net[1].register_full_backward_hook(lambda m, gi,
    go: (gi[0] * 2,))))  # fmt: skip
case("hook-on-parameter", VECTOR, SLOW,
    hooked(lambda net: net[0].weight.register_hook(lambda g: g * 2)))  # fmt: skip
case("weight-norm", VECTOR, SLOW,
    lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 5)), nn.ReLU(),
    nn.Linear(5, 3)), "parametrised")  # fmt: skip


case("spectral-norm", VECTOR, REFUSED,
    lambda: nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 5)), nn.ReLU(),
    nn.Linear(5, 3)), "changes its")  # fmt: skip


# Sequentials that are not only called -------------------------------------------------------------


def indexed(self: Any, x: Tensor) -> Tensor:
    h = self.net[0](x)
    h = self.net[1](h) + 1  # a ReLU, not the pool
    return self.out(self.net[2](h).flatten(1))


def block() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2))


case("sequential-indexed", IMAGE, EXACT, lambda: Made(indexed, net=block(), out=nn.Linear(27, 3)))
case("sequential-called-and-indexed", IMAGE, SLOW,
    lambda: Made(lambda self, x: self.out((self.net(x) + self.net[0](x)[:, :, :3, :3]).flatten(1)),
    net=block(), out=nn.Linear(27, 3)))  # fmt: skip

# Shared weights -----------------------------------------------------------------------------------


def twice_in_a_row() -> nn.Module:
    layer = nn.Linear(5, 5)
    return around(nn.ReLU(), layer, nn.Tanh(), layer)


def tied() -> nn.Module:
    net = around(nn.ReLU(), nn.Linear(5, 5), nn.Linear(5, 5))
    net[3].weight = net[2].weight
    return net


def closure() -> nn.Module:
    fc = nn.Linear(8, 8)
    return Made(
        lambda self, x: self.out(torch.tanh(fc(torch.tanh(self.fc(x))))), fc=fc, out=nn.Linear(8, 3)
    )


case("ways-twice-in-a-row", VECTOR, SLOW,
    twice_in_a_row, "shares a parameter (4.weight is 2.weight)")  # fmt: skip
case("ways-tied", VECTOR, SLOW, tied, "3.weight is 2.weight")
case("tied-by-closure", VECTOR, SLOW, closure)


# Samples mixed ------------------------------------------------------------------------------------

MIXING = "others in its batch"


def mixed(mix: Any) -> Any:
    return lambda: Made(lambda self, x: self.out(mix(torch.tanh(self.fc(x)))),
                        fc=nn.Linear(8, 5), out=nn.Linear(5, 3))  # fmt: skip


case("mixes-mean", VECTOR, REFUSED, mixed(lambda h: h - h.mean(0)), MIXING)
case("mixes-by-count", VECTOR, REFUSED, mixed(lambda h: h * (1 + len(h))), MIXING)


case("mixes-where-an-expert-is-full", VECTOR, REFUSED, mixed(lambda h: expert(h, 5)), MIXING)
READING = "reads numbers from its batch"
case("decides-by-any", VECTOR, SLOW,
    mixed(lambda h: h.clamp(max=1) if (h > 40).any() else h), READING)  # fmt: skip
case("decides-by-maximum", VECTOR, SLOW, mixed(lambda h: 2 * h if h.max() > 0.6 else h), READING)
case("decides-by-item", VECTOR, SLOW, mixed(lambda h: h / max(1.0, h.norm().item())), READING)


def masked_mean(self: Any, x: Tensor) -> Tensor:
    """Skips the mask where no token is padded, as attention of published models does."""
    h, real = self.embed(x.long()), x > 0
    if real.all():
        return self.out(h.mean(1))
    weights = real.unsqueeze(2).to(h.dtype)
    return self.out((h * weights).sum(1) / weights.sum(1).clamp(min=1))


case("decides-by-padding", TOKENS, SLOW,
    lambda: Made(masked_mean, embed=nn.Embedding(6, 5), out=nn.Linear(5, 3)),
    READING)  # fmt: skip
case("batch-norm", VECTOR, REFUSED, lambda: around(nn.BatchNorm1d(5)), "1 is a BatchNorm1d")
case("batch-norm-without-statistics", VECTOR, REFUSED,
    lambda: around(nn.BatchNorm1d(5, track_running_stats=False).eval()),
    "statistics of a batch")  # fmt: skip

# Random numbers and state -------------------------------------------------------------------------


def running(self: Any, x: Tensor) -> Tensor:
    h = self.fc(x)
    self.mean = 0.9 * self.mean + 0.1 * h.mean(0).detach()
    return self.out(h - self.mean)


case("random-dropout", VECTOR, REFUSED, mixed(lambda h: F.dropout(h, 0.3)), "draws random numbers")
case("random-dropout-layer", VECTOR, REFUSED, lambda: around(nn.Dropout(0.3)), "p = 0.3")
case("random-numpy", VECTOR, REFUSED, mixed(lambda h: h * np.random.rand()), "draws")
case("random-python", VECTOR, REFUSED, mixed(lambda h: h * random.random()), "draws")


def own_generator() -> nn.Module:
    generator = np.random.default_rng(0)
    return mixed(lambda h: h * generator.random())()


case("random-own-generator", VECTOR, REFUSED, own_generator, "called again")
case("state-buffer", VECTOR, REFUSED,
    lambda: Made(running, **hidden(), mean=torch.zeros(5)), "changes its mean")  # fmt: skip
for name, options in {
    "renormalised": {"max_norm": 0.5},
    "by-frequency": {"scale_grad_by_freq": 1},
}.items():
    case(f"embedding-{name}", TOKENS, REFUSED, lambda k=options: Made(tokens,
        embed=nn.Embedding(6, 5, **k), out=nn.Linear(5, 3)), "max_norm")  # fmt: skip
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


class Counting(nn.Module):
    """Counts its calls in the class, which all of its layers share."""

    calls = 0

    def forward(self, h: Tensor) -> Tensor:
        Counting.calls += 1
        return h


case("state-of-a-class", VECTOR, REFUSED, lambda: around(Counting()), "changes its 1.calls")


class CountingPerClass(Counting):
    def forward(self, x):
        type(self).calls += 1  # the derived class gets a number of its own
        return x


case("state-of-a-derived-class", VECTOR, REFUSED,
    lambda: around(CountingPerClass()), "changes its 1.calls")  # fmt: skip
case("one-value-in-a-group", VECTOR, REFUSED,
    lambda: around(nn.GroupNorm(5, 5)), "but not on one alone")  # fmt: skip
case("state-number-made-late", VECTOR, REFUSED,
    lambda: Made(counted_from_the_first, out=nn.Linear(8, 3)), "changes its calls")  # fmt: skip
case("state-weights-clamped", VECTOR, REFUSED,
    lambda: Made(clamped, out=nn.Linear(8, 3)), "changes its out.weight")  # fmt: skip

# Refused, or one example at a time, in an earlier version ----------------------------------------


def signals(*layers: nn.Module) -> nn.Module:
    width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(2, 2, 12)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3))


for name, options in {
    "strided": {"stride": 2, "padding": 1}, "dilated": {"dilation": 3, "bias": False},
    "same": {"padding": "same", "groups": 2}, "reflect": {"padding": 2, "padding_mode": "reflect"},
}.items():  # fmt: skip
    case(f"ways-signal-{name}", SIGNAL, EXACT,
        lambda k=options: signals(nn.Conv1d(2, 4, 3, **k), nn.Tanh(),
        nn.Conv1d(4, 2, 3)))  # fmt: skip


def last_of(self: Made, x: Tensor) -> Tensor:
    return self.out(self.rnn(x)[0][:, -1])  # type: ignore[operator, no-any-return]


for kind, width, options in (
    (nn.GRU, 8, {"bidirectional": True}), (nn.LSTM, 4, {"num_layers": 2, "bias": False}),
):  # fmt: skip
    case(f"ways-{kind.__name__}", SEQUENCE, SLOW,
        lambda k=kind, o=options, w=width: Made(last_of, rnn=k(8, 4, batch_first=True, **o),
        out=nn.Linear(w, 3)), "through autograd")  # fmt: skip
case("ways-relu-in-place", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.b(F.relu(self.a(x), inplace=True)), a=nn.Linear(8, 6),
    b=nn.Linear(6, 3)))  # fmt: skip
case("ways-weight-read", VECTOR, SLOW,
    lambda: Made(lambda self, x: F.linear(F.linear(x, self.a.weight), self.b.weight),
    a=nn.Linear(8, 6), b=nn.Linear(6, 3)))  # fmt: skip
case("ways-parameter-list", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.a(x * self.s[0]) * self.s[1], a=nn.Linear(8, 3),
    s=nn.ParameterList([torch.ones(8), torch.ones(3)])))  # fmt: skip

# Layers with another way where no gradient is asked for -------------------------------------------


def evaluated(layer: nn.Module) -> nn.Module:
    """A layer in `eval()`, of which torch takes a fused way in some modes and not in others."""
    return Made(lambda self, x: self.out(self.layer(x).mean(1)),
        layer=layer.eval(), out=nn.Linear(8, 3))  # fmt: skip


case("evaluated-encoder", SEQUENCE, EXACT, lambda: evaluated(nn.TransformerEncoder(
    nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True), 1)))  # fmt: skip
case("evaluated-encoder-layer", SEQUENCE, EXACT,
    lambda: evaluated(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)))  # fmt: skip
case("evaluated-attention", SEQUENCE, EXACT, lambda: Made(
    lambda self, x: self.out(self.layer(x, x, x, need_weights=False)[0].mean(1)),
    layer=nn.MultiheadAttention(8, 2, batch_first=True).eval(), out=nn.Linear(8, 3)))  # fmt: skip


# Code that does not take any value ----------------------------------------------------------------


def deformed(self: Any, x: Tensor) -> Tensor:
    """A value far from the data makes it read outside of its memory, which ends the process."""
    return self.out(self.deform(x, self.offset(x)).relu().mean((2, 3)))


case("deformable-convolution", IMAGE, EXACT,
    lambda: Made(deformed, offset=nn.Conv2d(2, 18, 3, padding=1),
        deform=DeformConv2d(2, 4, 3, padding=1), out=nn.Linear(4, 3)))  # fmt: skip
case("category-in-a-column", VECTOR, EXACT,
    lambda: Made(lambda self, x: self.out(self.embed(x[:, 0].abs().long())),
        embed=nn.Embedding(9, 4), out=nn.Linear(4, 3)))  # fmt: skip
