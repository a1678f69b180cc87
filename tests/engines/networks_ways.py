"""Networks that people write with other things than layers of torch.nn in a row."""

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

from dpaudit_ray.engines.packing.packed import PackedModel
from tests.engines.networks import (
    CASES,
    EXACT,
    IMAGE,
    SEQUENCE,
    SIGNAL,
    SLOW,
    TOKENS,
    VECTOR,
    Made,
    case,
    images,
)


def _signals(*layers: nn.Module) -> nn.Module:
    width = nn.Sequential(*layers, nn.Flatten())(torch.zeros(2, 2, 12)).shape[1]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(width, 3))


for groups, outputs in ((2, 2), (2, 6), (4, 4), (4, 8)):
    for options in ({}, {"stride": 2, "padding": 1}, {"dilation": 2, "bias": False}):
        case(f"ways-grouped-{groups}-{outputs}-{'-'.join(options) or 'plain'}", IMAGE, EXACT,
            lambda g=groups, o=outputs, k=options: images(nn.Conv2d(2, 4, 1), nn.Tanh(),
            nn.Conv2d(4, o, 3, groups=g, **k), nn.ReLU()))  # fmt: skip
case("ways-grouped-first", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3, groups=2), nn.ReLU(), nn.MaxPool2d(2)))  # fmt: skip
case("ways-grouped-circular", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular", groups=2),
    nn.Tanh()))  # fmt: skip
for name, options in {
    "plain": {}, "strided": {"stride": 2, "padding": 1}, "dilated": {"dilation": 3},
    "no-bias": {"bias": False}, "same": {"padding": "same"}, "depthwise": {"groups": 2},
    "circular": {"padding": 2, "padding_mode": "circular"},
    "reflect": {"padding": 2, "padding_mode": "reflect"},
}.items():  # fmt: skip
    case(f"ways-signal-{name}", SIGNAL, EXACT,
        lambda k=options: _signals(nn.Conv1d(2, 4, 3, **k), nn.Tanh(),
        nn.Conv1d(4, 2, 3)))  # fmt: skip


def _last(self: Made, x: Tensor) -> Tensor:
    return self.out(self.rnn(x)[0][:, -1])  # type: ignore[operator, no-any-return]


for kind in (nn.RNN, nn.GRU, nn.LSTM):
    for options in ({}, {"bidirectional": True}, {"num_layers": 2, "bias": False}):
        width = 8 if "bidirectional" in options else 4
        case(f"ways-{kind.__name__}-{'-'.join(options) or 'plain'}", SEQUENCE, SLOW,
            lambda k=kind, o=options, w=width: Made(_last, rnn=k(8, 4, batch_first=True, **o),
            out=nn.Linear(w, 3)), "through autograd")  # fmt: skip
case("ways-relu-in-place", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.b(F.relu(self.a(x), inplace=True)), a=nn.Linear(8, 6),
    b=nn.Linear(6, 3)))  # fmt: skip
case("ways-weight-read", VECTOR, SLOW,
    lambda: Made(lambda self, x: F.linear(F.linear(x, self.a.weight), self.b.weight),
    a=nn.Linear(8, 6), b=nn.Linear(6, 3)))  # fmt: skip
case("ways-twice", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.b(self.a(torch.tanh(self.a(x)))), a=nn.Linear(8, 8),
    b=nn.Linear(8, 3)))  # fmt: skip
case("ways-tied", TOKENS, SLOW,
    lambda: Made(lambda self, x: F.linear(self.e(x.long()).mean(1), self.e.weight)[:, :3],
    e=nn.Embedding(6, 5)))  # fmt: skip
case("ways-parameter-list", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.a(x * self.s[0]) * self.s[1], a=nn.Linear(8, 3),
    s=nn.ParameterList([torch.ones(8), torch.ones(3)])))  # fmt: skip
case("ways-bare-scale", VECTOR, SLOW,
    lambda: Made(lambda self, x: self.a(x) * self.s, a=nn.Linear(8, 3),
    s=nn.Parameter(torch.ones(3))))  # fmt: skip
case("ways-rms-norm", VECTOR, SLOW,
    lambda: nn.Sequential(nn.Linear(8, 6), nn.RMSNorm(6), nn.Tanh(), nn.Linear(6, 3)))  # fmt: skip
case("ways-separable", IMAGE, EXACT,
    lambda: images(nn.Conv2d(2, 2, 3, groups=2, padding=1), nn.GroupNorm(1, 2), nn.Conv2d(2, 6, 1),
    nn.GELU(), nn.Conv2d(6, 2, 1)))  # fmt: skip
case("ways-skip", IMAGE, EXACT,
    lambda: Made(lambda self, x: self.out(torch.cat([x, self.up(self.down(x))], 1).flatten(1)),
    down=nn.Conv2d(2, 4, 3, stride=2, padding=1), out=nn.Linear(2 * 128, 3),
    up=nn.Sequential(nn.Upsample(scale_factor=2), nn.Conv2d(4, 2, 1))))  # fmt: skip

EXAMPLES = 32


def way(model: PackedModel) -> str:
    """The rung of the ladder that a settled model stands on."""
    if model._alone is None:
        return "rules" if not model._without_rule else "rules, vmap for a layer"
    if model._alone.stacked:
        return "vmap over models"
    return "vmap" if model._alone.mapped else "one by one"


def settled(name: str) -> PackedModel:
    """A case's model, by the way that was found for it."""
    torch.manual_seed(0)
    kind = CASES[name].kind
    x = torch.randn(EXAMPLES, *kind.value) if kind is not TOKENS else (
        torch.randint(0, 6, (EXAMPLES, *kind.value)).float()
    )  # fmt: skip
    model = PackedModel(CASES[name].make())
    model.settle(x, torch.arange(EXAMPLES) % 3)
    return model
