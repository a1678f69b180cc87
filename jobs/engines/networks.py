"""Sixty networks that strangers might bring: published ones in small, and layers written by hand.

Those of timm and Transformers need these packages; none has weights from elsewhere.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (torch's own convention)
from torch import Tensor, nn

CLASSES = 3
TOKENS = 100  # in the vocabulary
IMAGE, TEXT, TABLE, SERIES, POINTS = (3, 32, 32), (16,), (12,), (24, 4), (32, 3)


@dataclass(frozen=True)
class Network:
    """A network and the shape of one example; `package` is None for layers written by hand."""

    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    package: str | None = None


NETWORKS: dict[str, Network] = {}


def made(name: str) -> nn.Module:
    """Returns the network of that name, as `model: {name: module}` of a sweep file calls it."""
    return NETWORKS[name].make()


def by_hand(shape: tuple[int, ...]) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Registers a class under its name."""

    def register(kind: type[nn.Module]) -> type[nn.Module]:
        NETWORKS[kind.__name__] = Network(kind, shape)
        return kind

    return register


# Layers written by hand ---------------------------------------------------------------------------


class Scale(nn.Module):
    """A learned factor for each channel of the last dimension."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.ones(width))

    def forward(self, h: Tensor) -> Tensor:
        return h * self.factor


@by_hand(TABLE)
class CrossNetwork(nn.Module):
    """Deep and cross: x₀ (xᵀ w) + b + x, three times."""

    def __init__(self) -> None:
        super().__init__()
        self.cross = nn.ModuleList([nn.Linear(12, 12) for _ in range(3)])
        self.deep = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(44, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for layer in self.cross:
            h = x * layer(h) + h
        return self.out(torch.cat([h, self.deep(x)], 1))


@by_hand(TABLE)
class FactorizationMachine(nn.Module):
    """Products of pairs of columns, by learned factors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 16)
        self.factors = nn.Parameter(0.1 * torch.randn(12, 16))
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        sums = (x @ self.factors).square() - x.square() @ self.factors.square()
        return self.out(self.linear(x) + 0.5 * sums)


@by_hand(TABLE)
class Siren(nn.Module):
    """Sines between linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(12, 64), nn.Linear(64, 64), nn.Linear(64, 64)])
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(3 * layer(x))
        return self.out(x)


@by_hand(TABLE)
class Highway(nn.Module):
    """Gates that let the input through."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(12, 48)
        self.change = nn.ModuleList([nn.Linear(48, 48) for _ in range(4)])
        self.gate = nn.ModuleList([nn.Linear(48, 48) for _ in range(4)])
        self.out = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for change, gate in zip(self.change, self.gate, strict=True):
            share = torch.sigmoid(gate(h))
            h = share * torch.relu(change(h)) + (1 - share) * h
        return self.out(h)


@by_hand(TABLE)
class AdditiveModel(nn.Module):
    """A small network for each column."""

    def __init__(self) -> None:
        super().__init__()
        self.columns = nn.ModuleList(
            [nn.Sequential(nn.Linear(1, 16), nn.ELU(), nn.Linear(16, CLASSES)) for _ in range(12)]
        )

    def forward(self, x: Tensor) -> Tensor:
        return sum(column(x[:, i : i + 1]) for i, column in enumerate(self.columns))


@by_hand(TABLE)
class SplineLayers(nn.Module):
    """Learned functions of single numbers: a Kolmogorov-Arnold network on radial bases."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centres", torch.linspace(-2, 2, 8))
        self.first, self.second = nn.Linear(12 * 8, 24), nn.Linear(24 * 8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for layer in (self.first, self.second):
            x = layer(torch.exp(-((x.unsqueeze(2) - self.centres) ** 2)).flatten(1))
        return x


@by_hand(TABLE)
class NumericTokens(nn.Module):
    """Each column as a token by a weight and a bias of its own, through attention."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(12, 32) * 0.3)
        self.bias = nn.Parameter(torch.zeros(12, 32))
        layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x.unsqueeze(2) * self.weight + self.bias).mean(1))


@by_hand(TABLE)
class Maxout(nn.Module):
    """The largest of four linear functions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(12, 160), nn.Linear(40, 160)
        self.out = nn.Linear(40, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).view(-1, 40, 4).amax(2)
        return self.out(self.second(h).view(-1, 40, 4).amax(2))


@by_hand(TABLE)
class Prototypes(nn.Module):
    """Classes by the distance to learned points."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 64), nn.Tanh(), nn.Linear(64, 16))
        self.points = nn.Parameter(torch.randn(CLASSES, 16))

    def forward(self, x: Tensor) -> Tensor:
        return -(self.body(x).unsqueeze(1) - self.points).square().sum(2)


@by_hand(TABLE)
class EulerSteps(nn.Module):
    """One residual layer, applied five times."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.step, self.out = (
            nn.Linear(12, 32),
            nn.Linear(32, 32),
            nn.Linear(32, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        for _ in range(5):
            h = h + 0.2 * torch.tanh(self.step(h))
        return self.out(h)


@by_hand(TABLE)
class Adapter(nn.Module):
    """A frozen body with trained corrections of low rank."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(12, 64).requires_grad_(False)
        self.down, self.up = nn.Linear(12, 4, bias=False), nn.Linear(4, 64, bias=False)
        self.out = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.relu(self.body(x) + self.up(self.down(x))))


@by_hand(TEXT)
class TextConvolutions(nn.Module):
    """Kernels of three widths over embedded tokens, and the largest value of each."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 24)
        self.widths = nn.ModuleList([nn.Conv1d(24, 16, width) for width in (2, 3, 4)])
        self.out = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).transpose(1, 2)
        return self.out(torch.cat([torch.relu(conv(h)).amax(2) for conv in self.widths], 1))


@by_hand(TEXT)
class GatedUnits(nn.Module):
    """Gated mixing along the sequence, with a norm that has a scale only."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 32)
        self.norm = nn.RMSNorm(32)
        self.up, self.mix, self.down = nn.Linear(32, 64), nn.Linear(16, 16), nn.Linear(32, 32)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        values, gates = self.up(self.norm(h)).chunk(2, dim=2)
        h = h + self.down(values * self.mix(gates.transpose(1, 2)).transpose(1, 2))
        return self.out(h.mean(1))


@by_hand(TEXT)
class Diagonal(nn.Module):
    """A diagonal state space along the sequence, as a convolution by Fourier transforms."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 16)
        self.decay = nn.Parameter(torch.linspace(-2, 1, 16))
        self.mix, self.out = nn.Linear(16, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        times = torch.arange(h.shape[1], device=h.device)
        kernel = torch.exp(-torch.exp(self.decay) * times.unsqueeze(1))
        length = 2 * h.shape[1]
        spectrum = torch.fft.rfft(h, length, 1) * torch.fft.rfft(kernel, length, 0)
        h = torch.fft.irfft(spectrum, length, 1)[:, : x.shape[1]]
        return self.out(F.gelu(self.mix(h)).mean(1))


@by_hand(TEXT)
class AttentionPooling(nn.Module):
    """Positions are embedded, and a learned query weighs them."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(TOKENS, 32), nn.Embedding(16, 32)
        self.query = nn.Parameter(torch.randn(32) * 0.2)
        self.mid, self.out = nn.Linear(32, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.mid(self.embed(x) + self.place(torch.arange(x.shape[1]))))
        return self.out((torch.softmax(h @ self.query, 1).unsqueeze(2) * h).sum(1))


@by_hand(TEXT)
class Recurrent(nn.Module):
    """An LSTM in both directions."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 16)
        self.run = nn.LSTM(16, 16, batch_first=True, bidirectional=True)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.run(self.embed(x))[0].amax(1))


@by_hand(TEXT)
class Decoder(nn.Module):
    """Attention to earlier tokens alone, time first."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0)
        self.register_buffer("mask", torch.full((16, 16), -math.inf).triu(1))
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(self.embed(x).transpose(0, 1), src_mask=self.mask)
        return self.out(h[-1])


@by_hand(SERIES)
class WaveNet(nn.Module):
    """Dilated causal convolutions with gates and skips."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(4, 24, 1)
        self.filters = nn.ModuleList([nn.Conv1d(24, 48, 2, dilation=2**i) for i in range(4)])
        self.skips = nn.ModuleList([nn.Conv1d(24, 24, 1) for _ in range(4)])
        self.out = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x.transpose(1, 2))
        total = torch.zeros_like(h)
        for i, (conv, skip) in enumerate(zip(self.filters, self.skips, strict=True)):
            values, gates = conv(F.pad(h, (2**i, 0))).chunk(2, 1)
            part = skip(torch.tanh(values) * torch.sigmoid(gates))
            h, total = h + part, total + part
        return self.out(torch.relu(total).mean(2))


@by_hand(SERIES)
class TimeMixer(nn.Module):
    """Layers along time and along channels, around the input itself."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm([24, 4])
        self.time, self.channels = nn.Linear(24, 24), nn.Linear(4, 4)
        self.out = nn.Linear(96, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.time(self.norm(x).transpose(1, 2)).transpose(1, 2)
        return self.out((x + torch.relu(self.channels(x))).flatten(1))


@by_hand(SERIES)
class SmallUnet(nn.Module):
    """Down, up by a transposed convolution, and a skip, on a signal."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.down = nn.Conv1d(4, 16, 3, padding=1), nn.Conv1d(16, 32, 4, 2, 1)
        self.up, self.mix = nn.ConvTranspose1d(32, 16, 2, 2), nn.Conv1d(32, 48, 3, padding=1)
        self.out = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = F.silu(self.enter(x.transpose(1, 2)))
        up = self.up(F.silu(self.down(h)))
        return self.out(F.silu(self.mix(torch.cat([h, up], 1))).mean(2))


@by_hand(POINTS)
class PointSet(nn.Module):
    """A network for every point, and the largest value of each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.each = nn.Sequential(nn.Linear(3, 32), nn.ReLU(), nn.Linear(32, 64), nn.ReLU())
        self.all = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return self.all(self.each(x).amax(1))


@by_hand(POINTS)
class LearnedQueries(nn.Module):
    """Queries that are parameters attend to the points."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Linear(3, 32)
        self.queries = nn.Parameter(torch.randn(1, 4, 32))
        self.attend = nn.MultiheadAttention(32, 4, batch_first=True)
        self.out = nn.Linear(128, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        queries = self.queries.expand(len(x), -1, -1)
        return self.out(self.attend(queries, h, h, need_weights=False)[0].flatten(1))


@by_hand(IMAGE)
class SqueezeExcite(nn.Module):
    """Channels are weighted by what all positions have in common."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, 2, 1), nn.Conv2d(16, 32, 3, 2, 1)
        self.squeeze, self.excite = nn.Conv2d(32, 8, 1), nn.Conv2d(8, 32, 1)
        self.out = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.second(torch.relu(self.first(x))))
        weights = torch.sigmoid(self.excite(torch.relu(self.squeeze(h.mean((2, 3), keepdim=True)))))
        return self.out((h * weights).mean((2, 3)))


@by_hand(IMAGE)
class ParametricUnits(nn.Module):
    """Convolutions with a learned slope for each channel."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 12, 3, 2, 1), nn.PReLU(12), nn.Conv2d(12, 24, 3, 2, 1), nn.PReLU(24),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(96, CLASSES),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


@by_hand(IMAGE)
class Conditioned(nn.Module):
    """Features scaled and shifted by numbers that another part computes from the same image."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 5, 4, 2), nn.Conv2d(16, 16, 3, 1, 1)
        self.condition = nn.Linear(3, 32)
        self.norm = nn.GroupNorm(4, 16, affine=False)
        self.out = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        scale, shift = self.condition(x.mean((2, 3))).view(-1, 2, 16, 1, 1).unbind(1)
        h = torch.relu(self.norm(self.first(x)) * (1 + scale) + shift)
        return self.out(self.second(h).amax((2, 3)))


@by_hand(IMAGE)
class Involution(nn.Module):
    """Kernels that are computed at every position, on unfolded patches."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.kernel = nn.Conv2d(3, 8, 4, 4), nn.Conv2d(8, 9, 1)
        self.scale, self.out = Scale(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x)
        patches = F.unfold(h, 3, padding=1).view(len(h), 8, 9, *h.shape[2:])
        h = (patches * self.kernel(h).unsqueeze(1)).sum(2)
        return self.out(self.scale(torch.relu(h).mean((2, 3))))


@by_hand(IMAGE)
class Frames(nn.Module):
    """The channels as frames of a film: convolutions of three dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (
            nn.Conv3d(1, 8, 3, (1, 2, 2), 1),
            nn.Conv3d(8, 16, 3, (1, 2, 2), 1),
        )
        self.out = nn.Linear(16 * 3 * 4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.second(torch.relu(self.first(x.unsqueeze(1)))))
        return self.out(F.adaptive_avg_pool3d(h, (3, 2, 2)).flatten(1))


# Published ones, in small -------------------------------------------------------------------------


class Logits(nn.Module):
    """A model of Transformers, whose answer is a number of a named tuple."""

    def __init__(self, model: nn.Module, entry: str) -> None:
        super().__init__()
        self.model = model
        self.entry = entry
        self.is_pooled = entry == "last_hidden_state"

    def forward(self, x: Tensor) -> Tensor:
        values = getattr(self.model(x), self.entry)
        return values.mean(1)[:, :CLASSES] if self.is_pooled else values


_WIDTHS = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
}  # fmt: skip
_NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _of_transformers(
    config: str, model: str, entry: str, shape: tuple[int, ...], options: Mapping[str, Any]
) -> None:
    def make() -> nn.Module:
        package = importlib.import_module("transformers")
        settings = getattr(package, config)(**options)
        return Logits(getattr(package, model)(settings).eval(), entry)

    NETWORKS[model] = Network(make, shape, "transformers")


_TEXT = {"vocab_size": TOKENS, "num_labels": CLASSES, "pad_token_id": 0, **_WIDTHS}
for kind in ("Camembert", "Ernie", "RemBert", "Esm", "ConvBert"):
    _of_transformers(
        f"{kind}Config", f"{kind}Model", "last_hidden_state", TEXT, {**_TEXT, **_NO_DROPOUT}
    )
_HEADS = {"num_key_value_heads": 4, "head_dim": 8, "bos_token_id": 1, "eos_token_id": 2}
for kind in ("Gemma", "Phi", "Olmo", "StableLm", "Starcoder2", "Cohere", "Granite", "Mistral"):
    _of_transformers(
        f"{kind}Config", f"{kind}Model", "last_hidden_state", TEXT, {**_TEXT, **_HEADS}
    )
_of_transformers(
    "OPTConfig", "OPTModel", "last_hidden_state", TEXT,
    {**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32, "max_position_embeddings": 32},
)  # fmt: skip
_of_transformers(
    "BloomConfig", "BloomModel", "last_hidden_state", TEXT,
    {"vocab_size": TOKENS, "hidden_size": 32, "n_layer": 2, "n_head": 4},
)  # fmt: skip
_of_transformers(
    "FNetConfig", "FNetModel", "last_hidden_state", TEXT,
    {**_TEXT, "hidden_dropout_prob": 0.0, "max_position_embeddings": 32},
)  # fmt: skip
_of_transformers(
    "ViTConfig", "ViTForImageClassification", "logits", IMAGE,
    {**_WIDTHS, "image_size": 32, "patch_size": 8, "num_labels": CLASSES},
)  # fmt: skip
_of_transformers(
    "BeitConfig", "BeitForImageClassification", "logits", IMAGE,
    {**_WIDTHS, "image_size": 32, "patch_size": 8, "num_labels": CLASSES, "drop_path_rate": 0.0},
)  # fmt: skip


def _of_timm(name: str, **options: Any) -> None:
    def make() -> nn.Module:
        timm = importlib.import_module("timm")
        return timm.create_model(name, num_classes=CLASSES, **options).eval()

    NETWORKS[name] = Network(make, IMAGE, "timm")


def _of_class(module: str, kind: str, **options: Any) -> None:
    def make() -> nn.Module:
        package = importlib.import_module(f"timm.models.{module}")
        return getattr(package, kind)(num_classes=CLASSES, **options).eval()

    NETWORKS[kind] = Network(make, IMAGE, "timm")


_PATCHES = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2}
_of_timm("deit_tiny_distilled_patch16_224", num_heads=4, **_PATCHES)
_of_timm("cait_xxs24_224", num_heads=4, depth_token_only=1, **_PATCHES)
_of_timm("beitv2_base_patch16_224", num_heads=4, **_PATCHES)
_of_timm("eva02_tiny_patch14_224", num_heads=4, **_PATCHES)
_of_timm("xcit_nano_12_p16_224", num_heads=4, cls_attn_layers=1, **_PATCHES)
_of_timm("swinv2_tiny_window8_256", img_size=32, patch_size=4, embed_dim=24, depths=(1, 1),
    num_heads=(2, 4), window_size=4)  # fmt: skip
_FOUR, _DIMS = (1, 1, 1, 1), (16, 16, 32, 32)
_of_timm("convnextv2_atto", depths=_FOUR, dims=_DIMS)
_of_timm("inception_next_tiny", depths=_FOUR, dims=(24, 24, 32, 32), norm_layer=nn.Identity)
_of_class("metaformer", "MetaFormer", depths=_FOUR, dims=_DIMS)
_of_class("focalnet", "FocalNet", embed_dim=16, depths=_FOUR)
_of_class("pvt_v2", "PyramidVisionTransformerV2", depths=_FOUR, embed_dims=_DIMS,
    num_heads=(1, 2, 4, 4))  # fmt: skip
_of_class("davit", "DaVit", depths=_FOUR, embed_dims=_DIMS, num_heads=(1, 1, 2, 2))
_of_class("resnetv2", "ResNetV2", layers=_FOUR, channels=(32, 32, 64, 64), stem_chs=32)
_of_class("sequencer", "Sequencer2d", layers=(1, 1, 1, 1), embed_dims=(16, 16, 16, 16),
    hidden_sizes=(8, 8, 8, 8), patch_sizes=(4, 2, 1, 1), img_size=32)  # fmt: skip


def _of_torchvision(name: str, shape: tuple[int, ...], call: Callable[[Any], nn.Module]) -> None:
    def make() -> nn.Module:
        return call(importlib.import_module("torchvision.models")).eval()

    NETWORKS[name] = Network(make, shape, "torchvision")


_of_torchvision("SwinTransformer", IMAGE, lambda models: models.SwinTransformer(
    [2, 2], 16, [1, 1], [2, 2], [4, 4], stochastic_depth_prob=0.0, num_classes=CLASSES,
))  # fmt: skip
_of_torchvision("SqueezeNet", IMAGE, lambda models: models.SqueezeNet("1_1", CLASSES, 0.0))
